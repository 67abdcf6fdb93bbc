"""Records in, text, JSON and pages out. Nothing here computes, prints or opens files."""
