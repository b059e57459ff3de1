"""What was measured, as scripts: each prints a table of ratios taken in one run and writes JSON beside it."""
