"""Frozen embeddings and what they are worth: linear probe, kNN, alignment, uniformity, effective rank."""

from contraport.evaluation.commands import embed, evaluate
from contraport.evaluation.embedding import Embeddings, embed_dataset
from contraport.evaluation.measures import alignment, effective_rank, spectrum, uniformity
from contraport.evaluation.probes import knn, linear_probe

__all__ = [
    "Embeddings",
    "alignment",
    "effective_rank",
    "embed",
    "embed_dataset",
    "evaluate",
    "knn",
    "linear_probe",
    "spectrum",
    "uniformity",
]
