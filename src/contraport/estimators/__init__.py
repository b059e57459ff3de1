"""Scikit-learn estimators: contrastive encoders, t-SNE, inverse optimal transport."""

from typing import TYPE_CHECKING

from contraport._utils.lazy_imports import make_package_lazy

if TYPE_CHECKING:
    from contraport.estimators.contrastive_encoder import ContrastiveEncoder
    from contraport.estimators.inverse_ot import InverseOT
    from contraport.estimators.inverse_ot_command import LearnedCost, inverse_ot
    from contraport.estimators.map_command import Map, map
    from contraport.estimators.sne import SNE, TSNE

__all__ = ["SNE", "TSNE", "ContrastiveEncoder", "InverseOT", "LearnedCost", "Map", "inverse_ot", "map"]

make_package_lazy(
    __name__,
    ContrastiveEncoder="contrastive_encoder",
    InverseOT="inverse_ot",
    **dict.fromkeys(["LearnedCost", "inverse_ot"], "inverse_ot_command"),
    **dict.fromkeys(["SNE", "TSNE"], "sne"),
    **dict.fromkeys(["Map", "map"], "map_command"),
)
