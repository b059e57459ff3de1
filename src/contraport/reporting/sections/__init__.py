"""Sections of the report, each built by one function that adds its figures and returns its texts."""
