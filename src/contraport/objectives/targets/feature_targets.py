"""Targets from another space in which the items are known: the input's, or a teacher's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from contraport.distributed import gather
from contraport.engine import Geometry, Gibbs, Kernel, is_in_torch_func
from contraport.errors import UsageError, check, check_integer
from contraport.objectives.inputs import Attributes, check_values
from contraport.objectives.layouts import Block
from contraport.objectives.targets.kernel_target import KernelTarget
from contraport.objectives.targets.target import SparseTarget, Target


@dataclass(frozen=True, eq=False, repr=False)
class SoftNeighbors(Target):
    """Each row is wanted where another space finds it alike: the row-normalised kernel of given features.

    Args:
        features: the batch in that space (the input's, or a teacher's), one tensor (n, k) for all views or one per
            view; None is ``features=`` of the call.
        kernel: how alike two items are there.

    Raises:
        UsageError: on a block, the features are not one per item, or not finite.

    Source: the target of stochastic neighbour embedding, Hinton and Roweis (2002); with a teacher, relational
    distillation.

    >>> import torch, contraport as cp
    >>> teacher = cp.SoftNeighbors(torch.eye(3), cp.Gibbs("cosine", 1.0))
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), teacher, cp.KL())
    >>> loss.target_plan(torch.eye(3), torch.eye(3))
    tensor([[0.1920, 0.0706, 0.0706],
            [0.0706, 0.1920, 0.0706],
            [0.0706, 0.0706, 0.1920]])
    """

    features: Tensor | tuple[Tensor, ...] | None = field(default=None, repr=False)
    kernel: Kernel = field(default_factory=lambda: Gibbs("cosine", 0.1))
    _backward: bool = field(default=False, repr=False)

    @property
    def requires_features(self) -> bool:
        """Whether it was given none."""
        return self.features is None

    def __call__(self, block: Block, attributes: Attributes) -> KernelTarget:
        """Return the target plan of a block."""
        if self.features is None:
            x, y = call_features(attributes, block, backward=self._backward)
        else:
            x, y = _feature_sides(tuple(gather(v) for v in _views(self.features)), block)
        with torch.no_grad():
            same, x = x is y, x.to(block.precision)
            return KernelTarget.by_rows(Geometry(self.kernel(x, x if same else y.to(x)), block.pattern.masks))

    def mirrored(self) -> SoftNeighbors:
        if self.features is None:
            return replace(self, _backward=not self._backward)
        return replace(self, features=_exchanged(self.features))


@dataclass(frozen=True, eq=False, repr=False)
class Neighbors(Target):
    """Each row is wanted at its nearest neighbours in another space: mass 1/N a row, in equal parts.

    Args:
        features: the batch in that space, one tensor (n, k) for all views or one per view.
        neighbors: how many, by Euclidean distance, at least 1; at most as many as a row is compared with are taken.

    Raises:
        UsageError: neighbors is not positive or, on a block, the features are not one per item, or not finite.

    >>> import torch, contraport as cp
    >>> features = torch.tensor([[0.0], [1.0], [3.0]])
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Neighbors(features, 1), cp.KL())
    >>> loss.target_plan(torch.eye(3), torch.eye(3))
    tensor([[0.3333, 0.0000, 0.0000],
            [0.0000, 0.3333, 0.0000],
            [0.0000, 0.0000, 0.3333]])
    """

    features: Tensor | tuple[Tensor, ...] = field(repr=False)
    neighbors: int = 5

    def __post_init__(self) -> None:
        check_integer("neighbors", self.neighbors)

    def __call__(self, block: Block, attributes: Attributes) -> SparseTarget:
        """Return the target plan of a block."""
        n, m = block.shape
        with torch.no_grad():
            x, y = _feature_sides(tuple(gather(v) for v in _views(self.features)), block)
            distances = block.pattern.masked(torch.cdist(x, y), torch.inf)
            found = distances.topk(min(self.neighbors, m), largest=False)
        near = found.values < torch.inf
        rows = torch.arange(n, device=x.device)[:, None].expand_as(near)[near]
        share = 1 / (n * near.sum(1).clamp_min(1)).to(block.precision)
        return SparseTarget(rows, found.indices[near], share[rows], block.shape)

    def mirrored(self) -> Neighbors:
        return Neighbors(_exchanged(self.features), self.neighbors)


def call_features(attributes: Attributes, block: Block, *, backward: bool) -> tuple[Tensor, Tensor]:
    """Return ``features=`` of the call at the rows and at the columns; one tensor where these are the same.

    Args:
        attributes: what is known of the items.
        block: one direction of a block.
        backward: whether that is from the second view to the first.

    Raises:
        UsageError: there are none, or not as many views of them as the layout compares.
    """
    check("features" in attributes, "features: expected features=, (n, k) or (n, views, k), in the call.")
    features = attributes["features"]
    views = (features,) if features.ndim == 2 else features.unbind(1)
    return _feature_sides(views[::-1] if backward else views, block)


def _views(features: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return features if isinstance(features, tuple) else (features,)


def _feature_sides(views: tuple[Tensor, ...], block: Block) -> tuple[Tensor, Tensor]:
    """Return the features of the rows and of the columns; the same tensor where rows and columns are the same."""
    items = block.pattern.size
    for view in views:
        if not (isinstance(view, Tensor) and view.ndim == 2 and len(view) == items):
            got = f"{tuple(view.shape)}" if isinstance(view, Tensor) else type(view).__name__
            raise UsageError(f"features: expected one row per item, ({items}, k), got {got}.")
        if not is_in_torch_func():
            check_values("features", view, view.isfinite(), "finite numbers")
    if len(views) == 1:
        x, y = block.pattern.spread(views[0])
        return (x, x) if block.x is block.y else (x, y)
    stacked, chosen = torch.cat(views), block.pattern.chosen
    if block.x is block.y and chosen is None and len(stacked) != block.shape[0]:
        raise UsageError(f"features: expected {block.shape[0] // items} views, got {len(views)}.")
    x, y = (stacked, stacked) if block.x is block.y else (views[0], views[1])
    x, y = (x, y) if chosen is None else (x[chosen[0]], y[chosen[1]])
    return (x, x) if block.x is block.y else (x, y)


def _exchanged(features: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    return features[::-1] if isinstance(features, tuple) else features
