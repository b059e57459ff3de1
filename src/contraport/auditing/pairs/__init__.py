"""Scores of two-view pairs, noise-rate estimates, deliberate mismatches and better partners.

Training may import this package; what starts training runs is in `contraport.auditing`.
"""
