"""Which pairs belong together: statistics of two sides, how many pairs are wrong, and which partner would be better."""

from contraport.pairs.decoys import Decoyed, check_pairs, with_decoys
from contraport.pairs.exchange import couples, exchanged
from contraport.pairs.noise import NoiseRate, above, false_discovery, noise
from contraport.pairs.partners import better_partners
from contraport.pairs.sides import NEIGHBORS, ItemPairs, Sides
from contraport.pairs.statistics import STATISTICS, Statistic, scores

__all__ = [
    "NEIGHBORS",
    "STATISTICS",
    "Decoyed",
    "ItemPairs",
    "NoiseRate",
    "Sides",
    "Statistic",
    "above",
    "better_partners",
    "check_pairs",
    "couples",
    "exchanged",
    "false_discovery",
    "noise",
    "scores",
    "with_decoys",
]
