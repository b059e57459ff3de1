"""Sections of the report, each built by one function.

It adds the figures of the section to the page, and returns its texts.
"""
