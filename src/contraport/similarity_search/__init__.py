"""Similarity search: nearest items of any view, duplicates, clusters, hard negatives."""

from typing import TYPE_CHECKING

from contraport._utils.lazy_imports import make_package_lazy

if TYPE_CHECKING:
    from contraport.similarity_search.cluster import Cluster, Clusters, cluster
    from contraport.similarity_search.duplicates import DuplicateGroup, DuplicatesResult, duplicates
    from contraport.similarity_search.mine import mine
    from contraport.similarity_search.neighbors import NearestItems, Neighbor, neighbors, search

__all__ = [
    "Cluster", "Clusters", "DuplicateGroup", "DuplicatesResult", "NearestItems", "Neighbor", "cluster", "duplicates",
    "mine", "neighbors", "search",
]  # fmt: skip

make_package_lazy(
    __name__,
    **dict.fromkeys(["Cluster", "Clusters", "cluster"], "cluster"),
    **dict.fromkeys(["DuplicateGroup", "DuplicatesResult", "duplicates"], "duplicates"),
    mine="mine",
    **dict.fromkeys(["NearestItems", "Neighbor", "neighbors", "search"], "neighbors"),
)
