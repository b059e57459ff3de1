"""Many processes, one plan: every collective that contraport issues, in one module.

Under `torch.distributed` each process brings its share of the batch, and the plan is taken over the whole of it. The
embeddings are gathered, every process holds the vectors of the whole problem and computes the same loss from them, and
the tiles of each pass over the pairs are shared out, so that work falls with the number of processes and memory stays
O(N d).

Gradients. What DistributedDataParallel takes, the average over processes, is the gradient of one process on the whole
batch. The adjoint of `gather` adds up what all processes send back and keeps the own rows, so that a process may send
back the part of the gradient that comes from its own tiles, times the number of processes; what is the same on every
process (a temperature, prototypes) passes through `shared`, whose adjoint is the mean.

Who takes part is a value, `Processes`, that an operation takes when it begins and keeps for its gradient: where and in
which thread backward runs makes no difference. With one process, or within `local`, everything here is the identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

# Newer versions of torch have other names for these, and warn of the old ones.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_local: ContextVar[bool] = ContextVar("contraport_local", default=False)


@contextmanager
def local_batch() -> Iterator[None]:
    """Take the plan over this process's own batch within the ``with`` block, whatever `torch.distributed` says.

    What begins within the block is local for good: its gradient may be taken outside.
    """
    token = _local.set(True)
    try:
        yield
    finally:
        _local.reset(token)


class Processes(NamedTuple):
    """The processes that share a plan.

    Attributes:
        rank: this process, counted from 0.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    def gather(self, value: Tensor, sizes: tuple[int, ...] | None = None) -> Tensor:
        """Return the rows of all processes in the order of their ranks, (n_r, ...) to (sum of n_r, ...).

        Processes may bring different numbers of rows. Backward adds up the gradients of all processes.

        Args:
            value: the rows of this process.
            sizes: how many rows each process brings, where that is known; else they say so first.
        """
        if self.size == 1:
            return value
        if value.device.type == "cpu" and value.dtype in (torch.float16, torch.bfloat16):
            value = value.float()  # the CPU's collectives know no half precision
        gathered: Tensor = _Gather.apply(self, self._sizes(value) if sizes is None else sizes, value)
        return gathered

    def row_offset(self, value: Tensor) -> int:
        """Return how many rows of such a value the processes before this one bring."""
        return 0 if self.size == 1 else sum(self._sizes(value)[: self.rank])

    def as_replicated(self, value: Tensor) -> Tensor:
        """Return a value that is the same on every process; its gradient is the mean over processes."""
        if self.size == 1:
            return value
        same: Tensor = _Shared.apply(self, value)
        return same

    def all_reduce(self, value: Tensor) -> Tensor:
        """Return the sum over all processes; differentiable, each process using it in its own way."""
        if self.size == 1:
            return value
        summed: Tensor = _Total.apply(self, value)
        return summed

    def all_reduce_(self, *values: Tensor | None) -> None:
        """Replace each value by its sum over all processes."""
        for value in values:
            if value is not None and self.size > 1:
                dist.all_reduce(value)

    def all_reduce_log_sums_(self, maximum: Tensor, total: Tensor) -> None:
        """Replace log-sums, given as maximum and sum of exp(value - maximum), by those over all processes."""
        if self.size > 1:
            overall = maximum.clone()
            dist.all_reduce(overall, dist.ReduceOp.MAX)
            total *= torch.exp(maximum - overall.masked_fill(overall == -torch.inf, 0))
            dist.all_reduce(total)
            maximum.copy_(overall)

    def _sizes(self, value: Tensor) -> tuple[int, ...]:
        """Return how many rows each process brings."""
        return tuple(size for (size,) in self.gather_integers([len(value)], value.device))

    def gather_integers(self, own: Sequence[int], device: torch.device) -> list[list[int]]:
        """Return some whole numbers of each process, (processes, k), where each brings as many."""
        everyone = torch.empty(self.size * len(own), dtype=torch.long, device=device)
        _all_gather(everyone, torch.tensor(own, device=device))
        numbers: list[list[int]] = everyone.view(self.size, len(own)).tolist()
        return numbers

    def gather_strings(self, own: str) -> list[str]:
        """Return a text of each process; slow, and for errors alone."""
        everyone: list[str] = [""] * self.size
        dist.all_gather_object(everyone, own)
        return everyone

    @property
    def device(self) -> torch.device:
        """The device of tensors in collectives, if no tensor determines it."""
        on_gpu = self.size > 1 and dist.get_backend() == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


_ALONE = Processes()

_DISTRIBUTED = dist.is_available()


def world() -> Processes:
    """Return the processes that share a plan here and now."""
    if not _DISTRIBUTED or not dist.is_initialized() or _local.get():
        return _ALONE
    return Processes(dist.get_rank(), dist.get_world_size())


def gather(value: Tensor) -> Tensor:
    """Return the rows of all processes; see `Processes.gather`."""
    return world().gather(value)


class _Gather(torch.autograd.Function):
    """The rows of all processes; its adjoint is `_Scatter`."""

    @staticmethod
    def forward(ctx: Any, processes: Processes, sizes: tuple[int, ...], value: Tensor) -> Tensor:
        ctx.processes, ctx.sizes = processes, sizes
        padded = value
        if len(value) < max(sizes):
            padded = value.new_zeros(max(sizes), *value.shape[1:])
            padded[: len(value)] = value
        gathered = value.new_empty(processes.size * max(sizes), *value.shape[1:])
        _all_gather(gathered, padded.contiguous())
        if min(sizes) == max(sizes):
            return gathered
        pieces = gathered.split(max(sizes))
        return torch.cat([piece[:size] for piece, size in zip(pieces, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        return None, None, _Scatter.apply(ctx.processes, ctx.sizes, gradient)


class _Scatter(torch.autograd.Function):
    """The own rows of the sum over processes; its adjoint is `_Gather`."""

    @staticmethod
    def forward(ctx: Any, processes: Processes, sizes: tuple[int, ...], value: Tensor) -> Tensor:
        ctx.processes, ctx.sizes = processes, sizes
        rank = processes.rank
        if value.is_cuda and min(sizes) == max(sizes):
            own = value.new_empty(sizes[rank], *value.shape[1:])
            _reduce_scatter(own, value.contiguous())
            return own
        summed = value.contiguous().clone()  # gloo has no reduce-scatter of its own
        dist.all_reduce(summed)
        return summed[sum(sizes[:rank]) : sum(sizes[: rank + 1])].clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        return None, None, _Gather.apply(ctx.processes, ctx.sizes, gradient)


class _Shared(torch.autograd.Function):
    """The identity; its adjoint is `_Total`, divided by the number of processes."""

    @staticmethod
    def forward(ctx: Any, processes: Processes, value: Tensor) -> Tensor:
        ctx.processes = processes
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, _Total.apply(ctx.processes, gradient) / ctx.processes.size


class _Total(torch.autograd.Function):
    """The sum over processes, which is its own adjoint."""

    @staticmethod
    def forward(ctx: Any, processes: Processes, value: Tensor) -> Tensor:
        ctx.processes = processes
        summed = value.contiguous().clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, _Total.apply(ctx.processes, gradient)
