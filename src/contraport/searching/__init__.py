"""Finding things by features: what is near a photo, what is there twice, what belongs together."""

from typing import TYPE_CHECKING

from contraport._utils.lazy import make_package_lazy

if TYPE_CHECKING:
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

make_package_lazy(
    __name__,
    Cluster="cluster",
    Clusters="cluster",
    cluster="cluster",
    Group="duplicates",
    Groups="duplicates",
    duplicates="duplicates",
    Nearest="neighbors",
    Neighbor="neighbors",
    neighbors="neighbors",
    search="search",
)
