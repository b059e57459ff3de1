"""Which pairs belong together: statistics of two sides, how many pairs are wrong, and which partner would be better."""

from contraport.auditing.pairs.decoys import DecoyDataset, add_decoys, check_paired_dataset
from contraport.auditing.pairs.mismatches import couples, exchanged
from contraport.auditing.pairs.noise_rate import NoiseRate, above, estimate_fdr, estimate_noise_rate
from contraport.auditing.pairs.pair_statistics import STATISTICS, Statistic, scores, sum_standardized
from contraport.auditing.pairs.paired_features import NEIGHBORS, ItemPairs, PairedFeatures
from contraport.auditing.pairs.partners import find_better_partners, select_partner_candidates
from contraport.auditing.pairs.vector_pairs import MAX_VECTOR_WIDTH, has_vector_views, load_vector_pairs

__all__ = [
    "MAX_VECTOR_WIDTH",
    "NEIGHBORS",
    "STATISTICS",
    "DecoyDataset",
    "ItemPairs",
    "NoiseRate",
    "PairedFeatures",
    "Statistic",
    "above",
    "add_decoys",
    "check_paired_dataset",
    "couples",
    "estimate_fdr",
    "estimate_noise_rate",
    "exchanged",
    "find_better_partners",
    "has_vector_views",
    "load_vector_pairs",
    "scores",
    "select_partner_candidates",
    "sum_standardized",
]
