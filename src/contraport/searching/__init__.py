"""Finding things by features: what is near a photo, what is there twice, what belongs together."""

from contraport.searching.cluster import Cluster, Clusters, cluster
from contraport.searching.duplicates import Group, Groups, duplicates
from contraport.searching.neighbors import Nearest, Neighbor, neighbors
from contraport.searching.search import search

__all__ = [
    "Cluster",
    "Clusters",
    "Group",
    "Groups",
    "Nearest",
    "Neighbor",
    "cluster",
    "duplicates",
    "neighbors",
    "search",
]
