"""Differentiable collective operations, and a stop of all processes if one fails.

Under `torch.distributed` each process has a part of the batch, and the plan is taken over the whole of it. The
embeddings are gathered, every process holds the vectors of the whole problem and computes the same loss from them, and
the tiles of each pass over the pairs are shared out: work falls with the number of processes, and memory stays O(N d).
`contraport.distributed.ring_exchange` is the other way, in which embeddings are not gathered.

Gradients. DistributedDataParallel averages over processes; the average is the gradient of one process on the whole
batch. The adjoint of `Processes.gather` adds up the gradients of all processes and takes the own rows, so that a
process may return the part of the gradient that comes from its own tiles, times the number of processes. A value that
is replicated on all processes (a temperature, prototypes) passes through `Processes.with_averaged_gradient`.

An operation takes its `Processes` when it starts and keeps them for its gradient, so that it makes no difference where
and in which thread backward runs. With one process, or within `use_local_batch`, everything here is the identity.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from contraport.errors import check

T = TypeVar("T")

_error_group_by_default_group: dict[dist.ProcessGroup | None, dist.ProcessGroup] = {}
"""Process group of `stop_all_on_error`, with the default process group as key; at most one entry."""

# Collectives between equal shares and one tensor. Newer versions of torch have other names for them, and warn of these.
_all_gather_into_tensor = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_tensor = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_uses_local_batch: ContextVar[bool] = ContextVar("contraport_local", default=False)
"""True within `use_local_batch`."""


@contextmanager
def use_local_batch() -> Iterator[None]:
    """Context manager that computes losses on the batch of this process only.

    An operation that starts within the block stays local: its gradient may be taken outside.
    """
    token = _uses_local_batch.set(True)
    try:
        yield
    finally:
        _uses_local_batch.reset(token)


class Processes(NamedTuple):
    """Group of processes that share a batch, with its collectives.

    Attributes:
        rank: Index of this process, from 0.
        size: Number of processes.
    """

    rank: int = 0
    size: int = 1

    def gather(self, value: Tensor, row_counts: tuple[int, ...] | None = None) -> Tensor:
        """Gather the rows of all processes in the order of their ranks.

        Processes may have different numbers of rows. Backward adds up the gradients of all processes.

        Args:
            value: the rows of this process.
            row_counts: number of rows of each process; None exchanges them first.
        """
        if self.size == 1:
            return value
        counts = self._gather_row_counts(value) if row_counts is None else row_counts
        gathered: Tensor = _Gather.apply(self, counts, value)
        return gathered

    def own_rows(self, replicated: Tensor, row_counts: tuple[int, ...]) -> Tensor:
        """Return this process's rows of a replicated value, the reverse of `gather`.

        The backward pass gathers the gradients of the rows of all processes, and divides by the number of processes.

        Args:
            replicated: the rows of all processes, in the order of their ranks.
            row_counts: number of rows of each process.
        """
        own: Tensor = _OwnRowsOfReplicated.apply(self, row_counts, replicated)
        return own

    def gather_row_offset(self, value: Tensor) -> int:
        """Gather the numbers of rows, and return the sum over lower ranks."""
        return 0 if self.size == 1 else sum(self._gather_row_counts(value)[: self.rank])

    def with_averaged_gradient(self, replicated: Tensor) -> Tensor:
        """Return a value that all processes share; its gradient is averaged over processes."""
        if self.size == 1:
            return replicated
        same: Tensor = _IdentityAveragingGradient.apply(self, replicated)
        return same

    def all_reduce(self, value: Tensor) -> Tensor:
        """Return the differentiable sum of a value over all processes."""
        if self.size == 1:
            return value
        summed: Tensor = _AllReduce.apply(self, value)
        return summed

    def all_reduce_(self, *values: Tensor | None) -> None:
        """Sum values over all processes in place, without gradient."""
        for value in values:
            if value is not None and self.size > 1:
                dist.all_reduce(value)

    def all_reduce_log_sums_(self, maximum: Tensor, total: Tensor) -> None:
        """Combine log-sum-exps of all processes in place, given as maxima and scaled sums.

        Each is log(`total`) + `maximum`. Totals are rescaled to the common maximum before they are added.
        """
        if self.size > 1:
            overall = maximum.clone()
            dist.all_reduce(overall, dist.ReduceOp.MAX)
            total *= torch.exp(maximum - overall.masked_fill(overall == -torch.inf, 0))
            dist.all_reduce(total)
            maximum.copy_(overall)

    def _gather_row_counts(self, value: Tensor) -> tuple[int, ...]:
        """Return the number of rows of each process."""
        return tuple(size for (size,) in self.gather_integers([len(value)], value.device))

    def gather_integers(self, local_values: Sequence[int], device: torch.device) -> list[list[int]]:
        """Gather k integers from each process as one list per process."""
        gathered = torch.empty(self.size * len(local_values), dtype=torch.long, device=device)
        _all_gather_into_tensor(gathered, torch.tensor(local_values, device=device))
        integers: list[list[int]] = gathered.view(self.size, len(local_values)).tolist()
        return integers

    def gather_strings(self, local_text: str) -> list[str]:
        """Gather a string from each process (slow, for error messages only)."""
        strings: list[str] = [""] * self.size
        dist.all_gather_object(strings, local_text)
        return strings

    @property
    def collective_device(self) -> torch.device:
        """Device for collectives (the current GPU with NCCL, else the CPU)."""
        on_gpu = self.size > 1 and dist.get_backend() == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


_SINGLE_PROCESS = Processes()
"""One process, with nothing to exchange."""

_IS_DISTRIBUTED_AVAILABLE = dist.is_available()  # read once: this is on the path of every small batch


def current_processes() -> Processes:
    """Return the processes that share each batch, possibly only this one."""
    if not _IS_DISTRIBUTED_AVAILABLE or not dist.is_initialized() or _uses_local_batch.get():
        return _SINGLE_PROCESS
    return Processes(dist.get_rank(), dist.get_world_size())


def gather(value: Tensor) -> Tensor:
    """Return the rows of all processes in rank order, differentiably."""
    return current_processes().gather(value)


class _Gather(torch.autograd.Function):
    """Autograd function that gathers the rows of all processes."""

    @staticmethod
    def forward(ctx: Any, processes: Processes, row_counts: tuple[int, ...], value: Tensor) -> Tensor:
        ctx.processes, ctx.row_counts = processes, row_counts
        padded = value
        if len(value) < max(row_counts):  # the collective takes equal sizes; uneven last batches are padded
            padded = value.new_zeros(max(row_counts), *value.shape[1:])
            padded[: len(value)] = value
        gathered = value.new_empty(processes.size * max(row_counts), *value.shape[1:])
        # As bytes, since not every version of Gloo supports half precision.
        _all_gather_into_tensor(gathered.view(-1).view(torch.uint8), padded.contiguous().view(-1).view(torch.uint8))
        if min(row_counts) == max(row_counts):
            return gathered
        pieces = gathered.split(max(row_counts))
        return torch.cat([piece[:count] for piece, count in zip(pieces, row_counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        return None, None, _ReduceScatter.apply(ctx.processes, ctx.row_counts, gradient)


class _ReduceScatter(torch.autograd.Function):
    """Autograd function that returns this process's rows of a sum over processes.

    The backward pass is `_Gather`.
    """

    @staticmethod
    def forward(ctx: Any, processes: Processes, row_counts: tuple[int, ...], value: Tensor) -> Tensor:
        ctx.processes, ctx.row_counts = processes, row_counts
        rank = processes.rank
        if value.is_cuda and min(row_counts) == max(row_counts):  # the collective takes equal shares
            own = value.new_empty(row_counts[rank], *value.shape[1:])
            _reduce_scatter_tensor(own, value.contiguous())
            return own
        half = value.dtype in (torch.float16, torch.bfloat16)
        # Gloo has no reduce-scatter, and no sums in half precision.
        summed = value.contiguous()
        summed = summed.float() if half and not value.is_cuda else summed.clone()
        dist.all_reduce(summed)
        # A copy, as a view would keep the rows of all processes in memory.
        return summed[sum(row_counts[:rank]) : sum(row_counts[: rank + 1])].to(value.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, own_gradient: Tensor) -> tuple[None, None, Tensor]:
        return None, None, _Gather.apply(ctx.processes, ctx.row_counts, own_gradient)


class _OwnRowsOfReplicated(torch.autograd.Function):
    """Autograd function that selects this process's rows of a replicated tensor."""

    @staticmethod
    def forward(ctx: Any, processes: Processes, row_counts: tuple[int, ...], replicated: Tensor) -> Tensor:
        ctx.processes, ctx.row_counts = processes, row_counts
        start = sum(row_counts[: processes.rank])
        return replicated[start : start + row_counts[processes.rank]].clone()

    @staticmethod
    def backward(ctx: Any, own_gradient: Tensor) -> tuple[None, None, Tensor]:
        return None, None, _Gather.apply(ctx.processes, ctx.row_counts, own_gradient) / ctx.processes.size


class _IdentityAveragingGradient(torch.autograd.Function):
    """Identity autograd function whose gradient is averaged over processes."""

    @staticmethod
    def forward(ctx: Any, processes: Processes, replicated: Tensor) -> Tensor:
        ctx.processes = processes
        return replicated.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, _AllReduce.apply(ctx.processes, gradient) / ctx.processes.size


class _AllReduce(torch.autograd.Function):
    """Autograd function that sums over all processes, forward and backward."""

    @staticmethod
    def forward(ctx: Any, processes: Processes, value: Tensor) -> Tensor:
        ctx.processes = processes
        summed = value.contiguous().clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, _AllReduce.apply(ctx.processes, gradient)


@contextmanager
def torchrun_process_group(device: str = "auto") -> Iterator[None]:
    """Context manager that initializes and destroys the process group of torchrun.

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
        _error_group_by_default_group.clear()  # a group that is still referenced would keep its threads
        dist.destroy_process_group()


def is_main_process() -> bool:
    """Return whether this process has rank 0, which writes files and logs."""
    return current_processes().rank == 0


@contextmanager
def stop_all_on_error() -> Iterator[None]:
    """Context manager that ends all processes if any raises an exception.

    Only the lowest failed rank raises its own. The block may take one process long, such as the main process that
    decodes images for all: the others wait up to a day.

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
        dist.all_gather_object(failed, failure is not None, group=_get_error_group())
    if any(failed):
        raise_on_one_rank(failure, rank=failed.index(True))


def _get_error_group() -> dist.ProcessGroup:
    """Return the process group for exchanging errors, with a timeout of a day."""
    if dist.group.WORLD not in _error_group_by_default_group:
        _error_group_by_default_group.clear()  # groups of a process group that was destroyed
        # The default timeout of minutes is too short if one process prepares data for all.
        group = dist.new_group(backend="gloo", timeout=timedelta(days=1))
        _error_group_by_default_group[dist.group.WORLD] = cast(dist.ProcessGroup, group)
    return _error_group_by_default_group[dist.group.WORLD]


def raise_on_one_rank(error: BaseException | None, *, rank: int = 0, status: int = 2) -> NoReturn:
    """Raise an error on one rank and exit silently on the others.

    All ranks must call this; on the others `error` may be None.

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


def first_non_none_across_ranks(value: T | None) -> T | None:
    """Return the first value in rank order that is not None, or None.

    >>> first_non_none_across_ranks(3)
    3
    """
    processes = current_processes().size
    if processes == 1 or not any(any_across_processes(value is not None)):
        return value
    values = [value] * processes
    dist.all_gather_object(values, value)
    return next(value for value in values if value is not None)


def any_across_processes(*flags: bool) -> tuple[bool, ...]:
    """Return for each flag whether it is true on at least one process."""
    if current_processes().size == 1:
        return flags
    reduced = torch.tensor(flags, dtype=torch.int32)
    dist.all_reduce(reduced, dist.ReduceOp.MAX)
    return tuple(bool(flag) for flag in reduced.tolist())
