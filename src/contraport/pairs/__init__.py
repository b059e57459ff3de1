"""Which pairs belong together: statistics of two sides, how many pairs are wrong, and which partner would be better."""

from contraport.pairs.decoys import Decoyed, check_pairs, with_decoys
from contraport.pairs.exchange import couples, exchanged
from contraport.pairs.noise import NoiseRate, above, estimated_noise, false_discovery
from contraport.pairs.pair_statistics import STATISTICS, Statistic, scores, sum_in_units
from contraport.pairs.paired_features import NEIGHBORS, ItemPairs, Sides
from contraport.pairs.partners import better_partners, free_partners
from contraport.pairs.vector_pairs import WIDEST, are_vectors, as_sides

__all__ = [
    "NEIGHBORS",
    "STATISTICS",
    "WIDEST",
    "Decoyed",
    "ItemPairs",
    "NoiseRate",
    "Sides",
    "Statistic",
    "above",
    "are_vectors",
    "as_sides",
    "better_partners",
    "check_pairs",
    "couples",
    "estimated_noise",
    "exchanged",
    "false_discovery",
    "free_partners",
    "scores",
    "sum_in_units",
    "with_decoys",
]
