"""Coordination of torchrun processes: process group, shared decisions, and errors on all ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from contraport.distributed.collectives import current_processes
from contraport.errors import check

T = TypeVar("T")

ERROR_TIMEOUT = timedelta(days=1)
"""Timeout of processes in `propagate_errors`; the default of minutes is too short for a block that
prepares data on one process."""

_error_groups: dict[dist.ProcessGroup | None, dist.ProcessGroup] = {}


@contextmanager
def torchrun_process_group(device: str = "auto") -> Iterator[None]:
    """Context manager: initialize the process group of torchrun, and destroy it at the end.

    Without torchrun, or if a process group is initialized already, it does nothing.

    Raises:
        UsageError: this machine has more processes than GPUs, and the device is not the CPU.
    """
    if not dist.is_torchelastic_launched() or dist.is_initialized():
        yield
        return
    if torch.cuda.is_available() and device != "cpu":
        local_rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        processes = os.environ["LOCAL_WORLD_SIZE"]
        check(local_rank < gpus, f"nproc_per_node: must be <= {gpus}, the GPUs of this machine, got {processes}.")
        torch.cuda.set_device(local_rank)
    dist.init_process_group()  # Gloo between CPUs, NCCL between GPUs
    try:
        yield
    finally:
        dist.destroy_process_group()


def is_main_process() -> bool:
    """Return whether this process has rank 0 and thus writes files and logs."""
    return current_processes().rank == 0


def machine_layout() -> tuple[int, int]:
    """Return the number of processes per machine and the number of machines."""
    processes = current_processes().size
    per_machine = int(os.environ["LOCAL_WORLD_SIZE"]) if processes > 1 else 1
    return per_machine, processes // per_machine


@contextmanager
def propagate_errors() -> Iterator[None]:
    """Context manager: if one process fails, all stop; the first to fail raises its error, the others exit quietly.

    The block may take one process long, such as the main process that decodes images for all: the others wait up to a
    day.

    Raises:
        SystemExit: the error is raised on another process.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:  # any error: the other processes would wait for this one until the timeout
        failure = error
    processes = current_processes().size
    failed = [failure is not None] * processes
    if processes > 1:
        dist.all_gather_object(failed, failure is not None, group=_error_group())
    if any(failed):
        raise_once_across_ranks(failure, rank=failed.index(True))


def _error_group() -> dist.ProcessGroup:
    """Return a process group with a long timeout, which all processes create together on first use."""
    if dist.group.WORLD not in _error_groups:
        _error_groups.clear()  # groups of a process group that was destroyed
        group = dist.new_group(backend="gloo", timeout=ERROR_TIMEOUT)
        _error_groups[dist.group.WORLD] = cast(dist.ProcessGroup, group)
    return _error_groups[dist.group.WORLD]


def raise_once_across_ranks(error: BaseException | None, *, rank: int = 0, status: int = 2) -> None:
    """Raise an error that occurs on all processes on one rank only; the other processes exit without a message.

    Raises:
        SystemExit: on the other ranks.
    """
    raise cast(BaseException, error) if current_processes().rank == rank else SystemExit(status)


def broadcast_object(value: T) -> T:
    """Broadcast an object from rank 0 to all processes."""
    values = [value]
    if current_processes().size > 1:
        dist.broadcast_object_list(values)
    return values[0]


def first_non_none(value: T | None) -> T | None:
    """Return on all processes the value of the lowest rank whose value is not None; None if there is none.

    >>> first_non_none(3)
    3
    """
    processes = current_processes().size
    if processes == 1 or not any(any_process(value is not None)):
        return value
    values = [value] * processes
    dist.all_gather_object(values, value)
    return next(value for value in values if value is not None)


def any_process(*flags: bool) -> tuple[bool, ...]:
    """Return for each flag whether it is true on any process (logical or)."""
    if current_processes().size == 1:
        return flags
    reduced = torch.tensor(flags, dtype=torch.int32)
    dist.all_reduce(reduced, dist.ReduceOp.MAX)
    return tuple(bool(flag) for flag in reduced.tolist())
