"""Gradient caching: the gradient of a big batch with the memory of a chunk of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Embed = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
"""Turns the views of some items, ``(b, ...)`` each, into tensors ``(b, ...)``."""


def in_chunks(embed: Embed, network: nn.Module, views: Sequence[Tensor], size: int) -> tuple[Tensor, ...]:
    """Return what `embed` gives for a batch, keeping the activations of at most `size` items at a time.

    Only what `embed` returns is kept; backward computes each chunk again, with the random numbers of the first time,
    so that the gradient is exactly that of the whole batch. Layers that look at the batch, such as batch norm, see one
    chunk at a time; their running statistics move in the first pass only.

    Args:
        embed: what is computed, item by item but for layers that look at the batch.
        network: the modules that it uses, whose buffers the second pass leaves as they are.
        views: of the batch, ``(b, ...)`` each.
        size: most items in a chunk; the chunks of a batch are equal but for one item.

    Source: Gao, Zhang, Han and Callan (2021), Scaling deep contrastive learning batch size under memory limited setup.

    >>> layer = nn.Linear(3, 2)
    >>> in_chunks(lambda views: (layer(views[0]),), layer, [torch.zeros(5, 3)], size=2)[0].shape
    torch.Size([5, 2])
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _buffers_kept(network)

    count = math.ceil(len(views[0]) / size)
    pieces = [
        checkpoint(embed, chunk, use_reentrant=False, preserve_rng_state=True, context_fn=contexts)
        for chunk in zip(*(view.tensor_split(count) for view in views), strict=True)
    ]
    return tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))


@contextmanager
def _buffers_kept(network: nn.Module) -> Iterator[None]:
    """Let the modules move copies of their buffers, such as the running statistics of batch norm."""
    kept = [(module, dict(module.named_buffers(recurse=False))) for module in network.modules()]
    for module, buffers in kept:
        for name, buffer in buffers.items():
            setattr(module, name, buffer.clone())
    try:
        yield
    finally:
        for module, buffers in kept:
            for name, buffer in buffers.items():
                setattr(module, name, buffer)
