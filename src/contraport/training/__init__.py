"""The training loop: a dataset, a model and an objective go in, a run folder comes out."""

from typing import TYPE_CHECKING

from contraport._utils.lazy import make_package_lazy

if TYPE_CHECKING:
    from contraport.training.replay import replay
    from contraport.training.train import train

__all__ = ["replay", "train"]

make_package_lazy(__name__, replay="replay", train="train")
