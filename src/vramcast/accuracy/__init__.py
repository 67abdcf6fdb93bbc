"""What others measured, against what the formula engine says: rows in, errors out."""
