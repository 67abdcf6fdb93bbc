"""What happened: printed text → observations → findings, hypotheses, advice. Prints nothing itself."""
