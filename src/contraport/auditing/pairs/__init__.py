"""Scores of two-view pairs: statistics of paired features, noise-rate estimation, decoys, and better partners.

Training may import this package; what starts training runs is in `contraport.auditing`.
"""
