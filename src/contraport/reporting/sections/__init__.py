"""Sections of the report: one function for each builds its figures and texts."""
