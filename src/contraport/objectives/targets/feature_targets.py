"""Targets from features in another space, such as a teacher's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.distributed import gather
from contraport.engine import (
    Geometry,
    Gibbs,
    Kernel,
    autocast_disabled,
    checkpoint_row_blocks,
    constant_vector,
    is_in_torch_func,
    row_log_sums,
    traceable_log,
)
from contraport.errors import UsageError, check, check_integer, check_type, type_and_shape
from contraport.objectives.inputs import Attributes, check_dense_and_not_meta, check_values
from contraport.objectives.layouts import Block
from contraport.objectives.targets.target import SparseTargetPlan, Target, TargetPlan


@dataclass(frozen=True, eq=False, repr=False)
class SoftNeighbors(Target):
    """Target with positives weighted by similarity in another space (SNE, distillation).

    The target plan is the row-normalized kernel of the features.

    Args:
        features: of the batch in that space (the input, or a teacher's), one tensor (n, k) for all views or one per
            view; None is ``features=`` of the call.
        kernel: similarity of two items in that space.

    Raises:
        UsageError: kernel is not a `Kernel`; for a block, the features are not one row per item, or not finite.

    Source: the target of stochastic neighbor embedding, Hinton and Roweis (2002); with a teacher, relational
    distillation.

    >>> import torch, contraport as cp
    >>> teacher = cp.SoftNeighbors(torch.eye(3), cp.Gibbs("cosine", 1.0))
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), teacher, cp.KL())
    >>> loss.target_plan(torch.eye(3), torch.eye(3))
    tensor([[0.1920, 0.0706, 0.0706],
            [0.0706, 0.1920, 0.0706],
            [0.0706, 0.0706, 0.1920]])
    """

    read_attributes: ClassVar[tuple[str, ...]] = ()

    features: Tensor | tuple[Tensor, ...] | None = field(default=None, repr=False)
    kernel: Kernel = field(default_factory=lambda: Gibbs("cosine", 0.1))
    _transposed: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        check_type("kernel", self.kernel, Kernel, "Gibbs('cosine', 0.1)")

    @property
    def requires_features_argument(self) -> bool:
        return self.features is None

    def __call__(self, block: Block, attributes: Attributes) -> KernelTargetPlan:
        if self.features is None:
            x, y = select_row_and_column_features(attributes, block, transposed=self._transposed)
        else:
            x, y = _get_row_and_column_features(_gather_views(self.features), block)
        with torch.no_grad():
            same, x = x is y, x.to(block.compute_dtype)
            geometry = Geometry(self.kernel(x, x if same else y.to(x)), block.pattern.masks)
            return KernelTargetPlan.with_uniform_row_masses(geometry)

    def for_transposed_block(self) -> SoftNeighbors:
        if self.features is None:
            return replace(self, _transposed=not self._transposed)
        return replace(self, features=self.features[::-1]) if isinstance(self.features, tuple) else self


@dataclass(frozen=True, eq=False, repr=False)
class Neighbors(Target):
    """Target whose positives are the k nearest neighbors in another space.

    Each row has mass 1/N, divided equally.

    Args:
        features: of the batch in that space, one tensor (n, k) for all views or one per view.
        neighbors: number of neighbors by Euclidean distance, at least 1; limited to the compared pairs of a row.

    Raises:
        UsageError: neighbors is not positive or, for a block, the features are not one row per item, or not finite.

    >>> import torch, contraport as cp
    >>> features = torch.tensor([[0.0], [1.0], [3.0]])
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Neighbors(features, 1), cp.KL())
    >>> loss.target_plan(torch.eye(3), torch.eye(3))
    tensor([[0.3333, 0.0000, 0.0000],
            [0.0000, 0.3333, 0.0000],
            [0.0000, 0.0000, 0.3333]])
    """

    read_attributes: ClassVar[tuple[str, ...]] = ()

    features: Tensor | tuple[Tensor, ...] = field(repr=False)
    neighbors: int = 5

    def __post_init__(self) -> None:
        check_integer("neighbors", self.neighbors)

    def __call__(self, block: Block, attributes: Attributes) -> SparseTargetPlan:
        n, m = block.shape
        with torch.no_grad():
            x, y = _get_row_and_column_features(_gather_views(self.features), block)
            distances = block.pattern.fill_masked(torch.cdist(x, y), torch.inf)
            nearest = distances.topk(min(self.neighbors, m), largest=False)
        # Masked pairs are infinitely far: they are among the nearest only if too few pairs are compared.
        compared = nearest.values < torch.inf
        rows = torch.arange(n, device=x.device)[:, None].expand_as(compared)[compared]
        share = 1 / (n * compared.sum(1).clamp_min(1)).to(block.compute_dtype)
        return SparseTargetPlan(rows, nearest.indices[compared], share[rows], block.shape)

    def for_transposed_block(self) -> Neighbors:
        return replace(self, features=self.features[::-1]) if isinstance(self.features, tuple) else self


def select_row_and_column_features(attributes: Attributes, block: Block, *, transposed: bool) -> tuple[Tensor, Tensor]:
    """Return row and column features of a block from the loss argument ``features``.

    Both are one tensor if rows and columns are the same.
    """
    expected = "(n, k) or (n, views, k)"
    check("features" in attributes, f"features: required, not given. Pass features=, {expected}.", "missing")
    features = attributes["features"]
    views = (features,) if features.ndim == 2 else features.unbind(1)
    return _get_row_and_column_features(views[::-1] if transposed else views, block)


def _gather_views(features: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Gather item features of all processes, as one tensor or one per view."""
    return tuple(gather(view) for view in (features if isinstance(features, tuple) else (features,)))


def _get_row_and_column_features(views: tuple[Tensor, ...], block: Block) -> tuple[Tensor, Tensor]:
    """Return row and column features of a block from the views' features.

    Raises:
        UsageError: a view has not one finite row per item, or views are missing.
    """
    items, same = block.pattern.num_items, block.x is block.y
    for view in views:
        good = isinstance(view, Tensor) and view.ndim == 2 and len(view) == items and view.shape[1] > 0
        if not (good and view.is_floating_point()):
            expected = f"a floating-point tensor with one row per item, ({items}, k)"
            raise UsageError(f"features: must be {expected}, got {type_and_shape(view)}.", kind="shape")
        check_dense_and_not_meta("features", view, block.x.device)
        if not is_in_torch_func():
            check_values("features", view, view.isfinite(), "finite numbers")
    if len(views) == 1:
        x, y = (views[0][side] for side in block.pattern.items)
        return x, x if same else y
    stacked, selection = torch.cat(views), block.pattern.selected_indices
    if same and selection is None and len(stacked) != block.shape[0]:
        message = f"features: must have {block.shape[0] // items} views, as the embeddings, got {len(views)}."
        raise UsageError(message, kind="views")
    x, y = (stacked, stacked) if same else (views[0], views[1])
    x, y = (x, y) if selection is None else (x[selection[0]], y[selection[1]])
    return x, x if same else y


@dataclass(frozen=True, eq=False)
class KernelTargetPlan(TargetPlan):
    """Target plan from a kernel on features, without gradient.

    It is p_ij = exp(S_ij + r_i + c_j), with the log-kernel S and the potentials r and c. Sums are computed for some
    rows at a time, also in backward: no (N, M) matrix is stored.

    Attributes:
        geometry: Geometry of the target: compared pairs under the log-kernel S.
        row_potential: Log potential of each row, (N,); minus infinity for rows without mass.
        column_potential: Log potential of each column, (M,).
        cached_row_mass: Mass of each row, (N,), if known; else None.
        num_appended_columns: Number of columns without mass that follow those of the kernel.
    """

    geometry: Geometry
    row_potential: Tensor
    column_potential: Tensor
    cached_row_mass: Tensor | None = None
    num_appended_columns: int = 0

    @classmethod
    def with_uniform_row_masses(cls, geometry: Geometry) -> KernelTargetPlan:
        """Build the target plan from a kernel, with mass 1/N in each nonempty row."""
        (n, m), like = geometry.shape, geometry.log_kernel.inputs[0]
        zeros = constant_vector(m, 0.0, like)
        with torch.no_grad():
            log_row_sums = row_log_sums(geometry, zeros)
        # Rows without compared pairs have log sum -inf: their potential must not become +inf.
        nonempty = log_row_sums > -torch.inf
        f = torch.where(nonempty, -log_row_sums - traceable_log(n, like), -torch.inf)
        return cls(geometry, f, zeros, nonempty.to(f) / n)

    def _map_row_blocks(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a function to row blocks of the target matrix, and concatenate the results."""

        def evaluate(rows: slice) -> Tensor:
            log_kernel = self.geometry.take_rows(rows).dense()
            return function(torch.exp(log_kernel + self.row_potential[rows, None] + self.column_potential))

        with torch.no_grad(), autocast_disabled(self.row_potential):
            return checkpoint_row_blocks(evaluate, *self.geometry.shape)

    def apply(self, y: Tensor) -> Tensor:
        y = y[: self.geometry.shape[1]]
        if is_in_torch_func():  # an autograd.Function without a vmap rule cannot be transformed
            return self._map_row_blocks(lambda plan: plan).to(y.dtype) @ y
        product: Tensor = _KernelTargetPlanProduct.apply(self, y)
        return product

    def row_mass(self) -> Tensor:
        if self.cached_row_mass is not None:
            return self.cached_row_mass
        return self._map_row_blocks(lambda plan: plan.sum(1))

    def row_negative_entropy(self) -> Tensor:
        return self._map_row_blocks(lambda plan: torch.xlogy(plan, plan).sum(1))

    def row_squared_norm(self) -> Tensor:
        return self._map_row_blocks(lambda plan: plan.square().sum(1))

    def dense(self) -> Tensor:
        return F.pad(self._map_row_blocks(lambda plan: plan), (0, self.num_appended_columns))

    @property
    def T(self) -> KernelTargetPlan:
        """Transposed target plan, with rows and columns exchanged."""
        check(self.num_appended_columns == 0, "target: cannot be transposed with appended columns.", "appended_columns")
        return KernelTargetPlan(self.geometry.T, self.column_potential, self.row_potential)

    def take_rows(self, rows: slice) -> KernelTargetPlan:
        mass = None if self.cached_row_mass is None else self.cached_row_mass[rows]
        return replace(
            self, geometry=self.geometry.take_rows(rows), row_potential=self.row_potential[rows], cached_row_mass=mass
        )

    def scale_rows(self, factors: Tensor) -> KernelTargetPlan:
        mass = None if self.cached_row_mass is None else factors * self.cached_row_mass
        return replace(
            self, row_potential=self.row_potential + factors.to(self.row_potential).log(), cached_row_mass=mass
        )

    def append_columns(self, num_columns: int) -> KernelTargetPlan:
        return replace(self, num_appended_columns=self.num_appended_columns + num_columns)


class _KernelTargetPlanProduct(torch.autograd.Function):
    """Autograd function of the product of the plan and a matrix."""

    @staticmethod
    def forward(ctx: Any, target: KernelTargetPlan, y: Tensor) -> Tensor:
        ctx.target = target
        return target._map_row_blocks(lambda plan: plan.to(y.dtype) @ y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, _KernelTargetPlanProduct.apply(replace(ctx.target, num_appended_columns=0).T, gradient)
