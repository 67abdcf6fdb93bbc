"""Printed text → observations → findings, hypotheses and advice. Start at `diagnosis`. Prints nothing itself."""
