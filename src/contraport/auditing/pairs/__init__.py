"""Scores of two-view pairs: statistics of paired features, noise-rate estimation, decoys, and better partners.

Training may import this package; what runs trainings is in `contraport.auditing`.
"""

from contraport.auditing.pairs.noise_rate import NoiseRate, area_under_roc_curve, estimate_fdr, estimate_noise_rate
from contraport.auditing.pairs.pair_scoring import (
    STATISTICS,
    Statistic,
    find_better_partners,
    score_pairs,
    select_lowest_scoring_items,
    sum_standardized,
)
from contraport.auditing.pairs.paired_features import (
    MAX_VECTOR_WIDTH,
    NUM_NEIGHBORS,
    PairedFeatures,
    PairIndices,
    has_vector_views,
    load_vector_pairs,
)
from contraport.auditing.pairs.synthetic_mismatches import (
    DecoyDataset,
    add_decoys,
    check_paired_dataset,
    draw_exchange_groups,
    rotate_partners,
)

__all__ = [
    "MAX_VECTOR_WIDTH",
    "NUM_NEIGHBORS",
    "STATISTICS",
    "DecoyDataset",
    "NoiseRate",
    "PairIndices",
    "PairedFeatures",
    "Statistic",
    "add_decoys",
    "area_under_roc_curve",
    "check_paired_dataset",
    "draw_exchange_groups",
    "estimate_fdr",
    "estimate_noise_rate",
    "find_better_partners",
    "has_vector_views",
    "load_vector_pairs",
    "rotate_partners",
    "score_pairs",
    "select_lowest_scoring_items",
    "sum_standardized",
]
