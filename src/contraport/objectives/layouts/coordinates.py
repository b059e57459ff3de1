"""Another layout over the coordinates of the embeddings instead of the items."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contraport.errors import UsageError, check
from contraport.objectives.layouts.block import Block, Pattern
from contraport.objectives.layouts.layout import Layout, Traits
from contraport.objectives.layouts.over import Over


@dataclass(frozen=True, repr=False)
class Coordinates(Over):
    """Another layout over coordinates: what it takes for embeddings are the coordinates, each a vector over the batch.

    Of views (n, d) it compares d vectors of n numbers each, so that inner products are covariances, and cosines
    correlations. Nothing is known of a coordinate: the call takes no ``ids``, ``weights``, ``present`` or
    ``negatives``.

    Args:
        layout: the layout.
        centred: take off each coordinate's mean and divide by the root of n - 1: inner products are then unbiased
            covariances; else divide by the root of n.
        summed: add up what the coordinates are worth rather than average it.

    Raises:
        UsageError: in the call, one item whose coordinates are to be centred.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Coordinates(Cross())(torch.zeros(3, 2), torch.zeros(3, 2))
    >>> block.shape
    (2, 2)
    """

    layout: Layout
    centred: bool = True
    summed: bool = False

    def __post_init__(self) -> None:
        for name in ("centred", "summed"):
            value = getattr(self, name)
            check(isinstance(value, bool), f"{name}: expected True or False, got {value!r}.")

    @property
    def traits(self) -> Traits:
        """What is true of the other layout, but that rows and columns show items."""
        return self.layout.traits._replace(of_items=False)

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return the other layout's blocks."""
        n, d = views[0].shape
        check(n > 1 or not self.centred, "z0: covariances need at least 2 items, got 1.")
        wide = [z.to(torch.promote_types(z.dtype, torch.float32)) for z in views]
        scaled = [_centred(z) / (n - 1) ** 0.5 if self.centred else z / n**0.5 for z in wide]
        blocks = self.layout(*(z.T for z in scaled))
        return [replace(block, pattern=_times(block.pattern, d)) for block in blocks] if self.summed else blocks

    def further(self, negatives: Tensor) -> Tensor:
        """Raise `UsageError`: coordinates have no negatives."""
        raise UsageError("negatives: this objective compares coordinates, not items (Coordinates).")


def _centred(z: Tensor) -> Tensor:
    """Return each coordinate less its mean; 0, without gradient, where it varies by no more than rounding does."""
    centred = z - z.mean(0)
    least = 8 * torch.finfo(z.dtype).eps * z.detach().abs().amax(0)
    return torch.where(centred.detach().abs().amax(0) <= least, 0, centred)


def _times(pattern: Pattern, factor: int) -> Pattern:
    return pattern.once(("times", factor), lambda: replace(pattern, weight=factor * pattern.weight))
