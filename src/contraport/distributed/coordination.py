"""The processes that torchrun started: how they join, agree and fail together, and who of them writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from contraport.distributed.collectives import world
from contraport.errors import check

T = TypeVar("T")

PATIENCE = timedelta(days=1)
_patients: dict[dist.ProcessGroup | None, dist.ProcessGroup] = {}


@contextmanager
def torchrun_process_group(device: str = "auto") -> Iterator[None]:
    """Be one of the processes that torchrun started while the block runs; alone, or among others already, do nothing.

    Raises:
        UsageError: there are more processes on this machine than GPUs, and the device is not the CPU.
    """
    if not dist.is_torchelastic_launched() or dist.is_initialized():
        yield
        return
    if torch.cuda.is_available() and device != "cpu":
        local, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        check(local < gpus, f"nproc_per_node: expected at most the {gpus} GPUs of this machine.")
        torch.cuda.set_device(local)
    dist.init_process_group()  # gloo between CPUs, NCCL between GPUs
    try:
        yield
    finally:
        dist.destroy_process_group()


def is_main_process() -> bool:
    """Return whether this process is the one that writes and speaks."""
    return world().rank == 0


def machine_layout() -> tuple[int, int]:
    """Return how many processes there are on each machine, and how many machines."""
    processes = world().size
    here = int(os.environ["LOCAL_WORLD_SIZE"]) if processes > 1 else 1
    return here, processes // here


@contextmanager
def propagate_errors() -> Iterator[None]:
    """Fail in all processes where the block fails in one: the first that failed tells why, the others exit quietly.

    The block may take one process long, such as the first that decodes images for all: the others wait for a day.

    Raises:
        SystemExit: another process tells why.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:  # whatever it is, the others must not wait for this process for ever
        failure = error
    processes = world().size
    failed = [failure is not None] * processes
    if processes > 1:
        dist.all_gather_object(failed, failure is not None, group=_patient())
    if any(failed):
        raise_on_one_rank(failure, told_by=failed.index(True))


def _patient() -> dist.ProcessGroup:
    """Return a group of all processes that waits long; it is made where they first come together."""
    if dist.group.WORLD not in _patients:
        _patients.clear()  # those of a group that is no more
        group = dist.new_group(backend="gloo", timeout=PATIENCE)
        _patients[dist.group.WORLD] = cast(dist.ProcessGroup, group)
    return _patients[dist.group.WORLD]


def raise_on_one_rank(error: BaseException | None, *, told_by: int = 0, status: int = 2) -> None:
    """Raise an error that all processes met in one of them, and let the others exit quietly with a status.

    Raises:
        SystemExit: in the others.
    """
    raise cast(BaseException, error) if world().rank == told_by else SystemExit(status)


def broadcast_object(value: T) -> T:
    """Return what the first process gives, in all of them."""
    processes = world().size
    values = [value]
    if processes > 1:
        dist.broadcast_object_list(values)
    return values[0]


def first_non_none(value: T | None) -> T | None:
    """Return, in all processes, what one of them gives, the first that gives something; None where none does.

    >>> first_non_none(3)
    3
    """
    processes = world().size
    if processes == 1 or not any(any_process(value is not None)):
        return value
    values = [value] * processes
    dist.all_gather_object(values, value)
    return next(given for given in values if given is not None)


def any_process(*facts: bool) -> tuple[bool, ...]:
    """Return for each fact whether it holds in any process."""
    processes = world().size
    if processes == 1:
        return facts
    holds = torch.tensor(facts, dtype=torch.int32)
    dist.all_reduce(holds, dist.ReduceOp.MAX)
    return tuple(bool(fact) for fact in holds.tolist())
