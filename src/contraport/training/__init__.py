"""The training loop: a dataset, a model and an objective go in, a run folder comes out."""

from contraport.training.replay import replay
from contraport.training.train import train

__all__ = ["replay", "train"]
