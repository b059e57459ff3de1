"""Scores of two-view pairs: statistics of paired features, noise-rate estimation, decoys, and better partners.

Training may import this package; what runs trainings is in `contraport.auditing`.
"""
