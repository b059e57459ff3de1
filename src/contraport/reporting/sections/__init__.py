"""Sections of the report, each built by one function that adds its figures to the page and returns its texts."""
