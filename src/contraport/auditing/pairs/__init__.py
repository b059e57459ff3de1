"""Audit of two-view pairs: scores, noise rates, synthetic mismatches, better partners.

Training may import this package; what starts training runs is in `contraport.auditing`.
"""
