"""The training loop: a dataset, a model and an objective go in, a run folder comes out."""

from contraport.training.fit import train
from contraport.training.replay import replay

__all__ = ["replay", "train"]
