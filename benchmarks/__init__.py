"""Benchmarks, as scripts: each prints a table of ratios measured in one run and writes the results as JSON."""
