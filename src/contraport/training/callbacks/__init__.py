"""Callbacks of the training loop: checkpoints, metrics, finite guard, profiler, progress, loggers."""

from contraport.auditing.pairs.pair_filter import AuditCallback
from contraport.training.callbacks.checkpoints import Checkpoints, CheckpointWriter
from contraport.training.callbacks.finite_guard import FailedStepRecorder, FiniteGuard, NonFiniteEarlierStep
from contraport.training.callbacks.loggers import check_loggers, open_loggers
from contraport.training.callbacks.meter import Meter
from contraport.training.callbacks.online_metrics import OnlineMetrics
from contraport.training.callbacks.profiler import ProfilerCallback
from contraport.training.callbacks.progress_bar import progress_callback

__all__ = [
    "AuditCallback",
    "CheckpointWriter",
    "Checkpoints",
    "FailedStepRecorder",
    "FiniteGuard",
    "Meter",
    "NonFiniteEarlierStep",
    "OnlineMetrics",
    "ProfilerCallback",
    "check_loggers",
    "open_loggers",
    "progress_callback",
]
