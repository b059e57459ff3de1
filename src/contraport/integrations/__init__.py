"""Doors into other libraries' training: our objectives under the calls that their loops make.

No door imports the library that it leads to: it is called by it. The losses need torch and numpy only, and so do these.
"""

from contraport.integrations.lightly import BankLoss
from contraport.integrations.open_clip import ClipLoss, create_loss
from contraport.integrations.pytorch_metric_learning import MetricLoss
from contraport.integrations.sentence_transformers import SentenceLoss
from contraport.integrations.transformers import TrainerLoss

__all__ = ["BankLoss", "ClipLoss", "MetricLoss", "SentenceLoss", "TrainerLoss", "create_loss"]
