"""Estimators in the manner of scikit-learn: arrays in, arrays out."""

from contraport.estimators.contrastive_encoder import ContrastiveEncoder
from contraport.estimators.inverse_ot import InverseOT
from contraport.estimators.sne import SNE, TSNE

__all__ = ["SNE", "TSNE", "ContrastiveEncoder", "InverseOT"]
