"""Many processes, one plan: every collective that contraport issues, in one module.

Under `torch.distributed` each process brings its share of the batch, and the plan is taken over the whole of it. The
embeddings are gathered, every process holds the vectors of the whole problem and computes the same loss from them, and
the tiles of each pass over the pairs are shared out, so that work falls with the number of processes and memory stays
O(N d). The gradient of `gather` is scaled so that the average over processes, which is what DistributedDataParallel
takes, is the gradient of one process on the whole batch.

With one process, or within `local`, everything here is the identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

_local: ContextVar[bool] = ContextVar("contraport_local", default=False)


@contextmanager
def local() -> Iterator[None]:
    """Take the plan over this process's own batch within the ``with`` block, whatever `torch.distributed` says."""
    token = _local.set(True)
    try:
        yield
    finally:
        _local.reset(token)


def world() -> tuple[int, int]:
    """Return this process's rank and the number of processes that share a plan."""
    if _local.get() or not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def gather(value: Tensor) -> Tensor:
    """Return the rows of all processes, in the order of their ranks: (n_r, ...) to (sum of n_r, ...); differentiable.

    Processes may bring different numbers of rows. Backward expects the same gradient on every process, as follows from
    a loss that all compute alike, and returns the own rows of it times the number of processes.
    """
    _, processes = world()
    if processes == 1:
        return value
    if value.device.type == "cpu" and value.dtype in (torch.float16, torch.bfloat16):
        value = value.float()  # the CPU's collectives know no half precision
    gathered: Tensor = _Gather.apply(value)
    return gathered


def gather_batch(views: Sequence[Tensor], attributes: Mapping[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return the views, (n, d) each, and what is known of the items, (n, ...), over all processes."""
    _, processes = world()
    if processes == 1:
        return list(views), dict(attributes)
    stacked = gather(torch.stack(list(views), 1))
    return list(stacked.unbind(1)), {name: gather(value) for name, value in attributes.items()}


def add_up(*values: Tensor | None) -> None:
    """Replace each value by its sum over all processes."""
    _, processes = world()
    for value in values:
        if value is not None and processes > 1:
            dist.all_reduce(value)


def total(value: Tensor) -> Tensor:
    """Return the sum over all processes; differentiable, each process using it in its own way."""
    _, processes = world()
    if processes == 1:
        return value
    summed: Tensor = _Total.apply(value)
    return summed


def join_log_sums(maximum: Tensor, total: Tensor) -> None:
    """Replace log-sums, given as maximum and sum of exp(value - maximum), by those over all processes."""
    _, processes = world()
    if processes > 1:
        overall = maximum.clone()
        dist.all_reduce(overall, dist.ReduceOp.MAX)
        total *= torch.exp(maximum - overall.masked_fill(overall == -torch.inf, 0))
        dist.all_reduce(total)
        maximum.copy_(overall)


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        summed = value.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        summed: Tensor = gradient.clone()
        dist.all_reduce(summed)
        return summed


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        rank, processes = world()
        counts = [torch.zeros(1, dtype=torch.long, device=value.device) for _ in range(processes)]
        dist.all_gather(counts, torch.tensor([len(value)], device=value.device))
        sizes = [int(count) for count in counts]
        padded = value.new_zeros(max(sizes), *value.shape[1:])
        padded[: len(value)] = value
        pieces = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(pieces, padded)
        ctx.own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        ctx.processes = processes
        return torch.cat([piece[:size] for piece, size in zip(pieces, sizes, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        own: Tensor = gradient[ctx.own] * ctx.processes
        return own
