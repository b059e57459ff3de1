"""Distributed training: process groups, differentiable collectives, and coordinated starts and failures."""

import warnings
from typing import Any

from contraport.distributed.processes import (
    Processes,
    any_process,
    broadcast_object,
    current_processes,
    first_non_none,
    gather,
    is_main_process,
    machine_layout,
    propagate_errors,
    raise_once_across_ranks,
    torchrun_process_group,
    use_local_batch,
)
from contraport.distributed.ring_exchange import RingExchange

__all__ = [
    "Processes", "RingExchange", "any_process", "broadcast_object", "current_processes", "first_non_none", "gather",
    "is_main_process", "machine_layout", "propagate_errors", "raise_once_across_ranks", "torchrun_process_group",
    "use_local_batch",
]  # fmt: skip

_DEPRECATED = {"local": "use_local_batch", "local_batch": "use_local_batch"}


def __getattr__(name: str) -> Any:
    if name not in _DEPRECATED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = f"{__name__}.{name} is deprecated; use {__name__}.{_DEPRECATED[name]}."
    warnings.warn(message, FutureWarning, stacklevel=2)
    return globals()[_DEPRECATED[name]]
