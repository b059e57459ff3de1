"""Adapters that let objectives serve as losses in the trainers of other libraries.

None of these modules imports the library that it integrates with: that library calls it. They need torch and numpy
only.
"""

from contraport.integrations.memory_bank_loss import MemoryBankLoss
from contraport.integrations.open_clip_loss import ClipLoss, create_loss
from contraport.integrations.pytorch_metric_learning import MetricLearningLoss
from contraport.integrations.sentence_transformers import SentenceTransformerLoss
from contraport.integrations.transformers_trainer import TrainerLoss

__all__ = ["ClipLoss", "MemoryBankLoss", "MetricLearningLoss", "SentenceTransformerLoss", "TrainerLoss", "create_loss"]
