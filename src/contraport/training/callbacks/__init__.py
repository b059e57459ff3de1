"""Callbacks of the training loop: what is checked, measured, written and shown while it runs."""

from contraport.training.callbacks.checkpoints import CheckpointFile, Checkpoints
from contraport.training.callbacks.finite import FiniteGuard, FoundLate, RunGuard
from contraport.training.callbacks.loggers import check_loggers, make_loggers
from contraport.training.callbacks.meter import Meter
from contraport.training.callbacks.monitor import Monitor
from contraport.training.callbacks.online_audit import AuditCallback
from contraport.training.callbacks.profile import Profile
from contraport.training.callbacks.progress_bar import progress_on

__all__ = [
    "AuditCallback",
    "CheckpointFile",
    "Checkpoints",
    "FiniteGuard",
    "FoundLate",
    "Meter",
    "Monitor",
    "Profile",
    "RunGuard",
    "check_loggers",
    "make_loggers",
    "progress_on",
]
