"""Doors into other libraries' training: our objectives under the calls that their loops make.

No door imports the library that it leads to: it is called by it. The losses need torch and numpy only, and so do these.
"""

from contraport.integrations.lightly import MemoryBankLoss
from contraport.integrations.open_clip import ClipLoss, create_loss
from contraport.integrations.pytorch_metric_learning import MetricLearningLoss
from contraport.integrations.sentence_transformers import SentenceTransformerLoss
from contraport.integrations.transformers import TrainerLoss

__all__ = ["ClipLoss", "MemoryBankLoss", "MetricLearningLoss", "SentenceTransformerLoss", "TrainerLoss", "create_loss"]
