"""Distributed training: process groups, differentiable collectives, shared errors."""

from contraport.distributed.collectives import (
    Processes,
    any_across_processes,
    broadcast_object,
    current_processes,
    first_non_none_across_ranks,
    gather,
    is_main_process,
    raise_on_one_rank,
    stop_all_on_error,
    torchrun_process_group,
    use_local_batch,
)
from contraport.distributed.ring_exchange import RingExchange
from contraport.options import keep_deprecated_module_names

__all__ = [
    "Processes",
    "RingExchange",
    "any_across_processes",
    "broadcast_object",
    "current_processes",
    "first_non_none_across_ranks",
    "gather",
    "is_main_process",
    "raise_on_one_rank",
    "stop_all_on_error",
    "torchrun_process_group",
    "use_local_batch",
]  # fmt: skip

__getattr__ = keep_deprecated_module_names(
    __name__,
    local="use_local_batch",
    local_batch="use_local_batch",
    first_non_none="first_non_none_across_ranks",
    any_process="any_across_processes",
)
