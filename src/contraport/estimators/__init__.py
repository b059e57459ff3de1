"""Estimators with the interface of scikit-learn: contrastive encoders, t-SNE, and inverse optimal transport."""

from contraport.estimators.contrastive_encoder import ContrastiveEncoder
from contraport.estimators.inverse_ot import InverseOT
from contraport.estimators.sne import SNE, TSNE

__all__ = ["SNE", "TSNE", "ContrastiveEncoder", "InverseOT"]
