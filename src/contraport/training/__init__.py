"""The training loop: a dataset, a model and an objective go in, a run folder comes out."""

from contraport.training.fit import train

__all__ = ["train"]
