"""Estimators in the manner of scikit-learn: arrays in, arrays out."""

from contraport.estimators.contrastive import ContrastiveEncoder
from contraport.estimators.inverse import InverseOT
from contraport.estimators.neighbor import SNE, TSNE

__all__ = ["SNE", "TSNE", "ContrastiveEncoder", "InverseOT"]
