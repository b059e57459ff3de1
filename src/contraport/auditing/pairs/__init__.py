"""Audit of two-view pairs: scores, noise-rate estimates, deliberate mismatches, proposals of better partners.

Training may import this package; what starts training runs is in `contraport.auditing`.
"""
