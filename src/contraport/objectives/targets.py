"""Targets: which plan we want.

A target (`Pairs`, `Labels`, ...) is a rule; on the block of a batch it becomes a target plan, which is sparse,
structured or a matrix, has total mass 1 and never enters a pass over the pairs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.distributed import gather
from contraport.engine import Geometry, Gibbs, Kernel, LogKernel, by_stripes
from contraport.errors import check
from contraport.objectives.equality import Indicator
from contraport.objectives.layouts import Block
from contraport.objectives.part import Part

Attributes = Mapping[str, Tensor]
"""What is known of the items of a batch: ``labels``, ``domains``, ``ids``, ``weights``, each (n,)."""


class LogPlan(Protocol):
    """The logarithm of a plan, (N, M), known where it is asked for: what a target wants to know of a coupling."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""

    def restrict(self, rows: slice) -> LogPlan:
        """Return it on some of its rows."""

    def log_at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return log P at the given entries: index tensors (k,) to a tensor (k,)."""

    def log_dense(self) -> Tensor:
        """Return log P as an (N, M) tensor."""


class TargetPlan(ABC):
    """The plan that is wanted on one block: an (N, M) matrix of nonnegative numbers, in whatever form is cheap."""

    @abstractmethod
    def apply(self, y: Tensor) -> Tensor:
        """Return the plan times y: (M, ...) to (N, ...)."""

    @abstractmethod
    def row_mass(self) -> Tensor:
        """Return the mass of the rows, (N,)."""

    @abstractmethod
    def row_entropy(self) -> Tensor:
        """Return -sum_j p_ij log p_ij, (N,)."""

    @abstractmethod
    def row_square_mass(self) -> Tensor:
        """Return sum_j p_ij^2, (N,)."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return it as an (N, M) tensor."""

    @property
    @abstractmethod
    def T(self) -> TargetPlan:
        """The same plan with rows and columns exchanged."""

    @abstractmethod
    def restrict(self, rows: slice) -> TargetPlan:
        """Return the plan on some of its rows."""

    @abstractmethod
    def beside(self, columns: int) -> TargetPlan:
        """Return the plan with so many further columns, on which it has no mass."""

    def row_inner(self, log_kernel: LogKernel) -> Tensor:
        """Return sum_j p_ij log K_ij, (N,), masks aside."""
        return log_kernel.row_inner(self)

    def row_expectation(self, plan: LogPlan, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return sum_j p_ij function(log P_ij), (N,), P another plan, where this one has mass."""

        def expected(rows: slice) -> Tensor:
            matrix = self.restrict(rows).dense()
            wanted = matrix > 0
            log_plan = torch.where(wanted, plan.restrict(rows).log_dense(), 0)
            return torch.where(wanted, matrix * function(log_plan), 0).sum(1)

        return torch.cat(by_stripes(expected, plan.shape))


class Target(Part, ABC):
    """A rule that says which plan is wanted on a block, from what is known of the items."""

    @property
    def complete(self) -> bool:
        """Whether the plan has all its mass: no row may turn out to have nothing that it could want."""
        return False

    @abstractmethod
    def __call__(self, block: Block, attributes: Attributes) -> TargetPlan:
        """Return the target plan of total mass 1, less where some rows have nothing that they could want."""

    def mirrored(self) -> Target:
        """Return the rule for the same block with rows and columns exchanged."""
        return self


@dataclass(frozen=True, eq=False)
class SparsePlan(TargetPlan):
    """A target plan by its nonzero entries: p at (rows[k], columns[k]) is values[k]."""

    rows: Tensor
    columns: Tensor
    values: Tensor
    shape: tuple[int, int]

    def _by_row(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.shape[0], *values.shape[1:]).index_add(0, self.rows, values)

    def apply(self, y: Tensor) -> Tensor:
        return self._by_row(_times(self.values.to(y.dtype), y[self.columns]))

    def row_mass(self) -> Tensor:
        return self._by_row(self.values)

    def row_entropy(self) -> Tensor:
        return -self._by_row(torch.xlogy(self.values, self.values))

    def row_square_mass(self) -> Tensor:
        return self._by_row(self.values.square())

    def row_inner(self, log_kernel: LogKernel) -> Tensor:
        return self._by_row(self.values * log_kernel.at(self.rows, self.columns))

    def row_expectation(self, plan: LogPlan, function: Callable[[Tensor], Tensor]) -> Tensor:
        return self._by_row(self.values * function(plan.log_at(self.rows, self.columns)))

    def dense(self) -> Tensor:
        return self.values.new_zeros(self.shape).index_put((self.rows, self.columns), self.values, accumulate=True)

    @property
    def T(self) -> SparsePlan:
        return SparsePlan(self.columns, self.rows, self.values, self.shape[::-1])

    def restrict(self, rows: slice) -> SparsePlan:
        top, bottom, _ = rows.indices(self.shape[0])
        here = (self.rows >= top) & (self.rows < bottom)
        shape = bottom - top, self.shape[1]
        return SparsePlan(self.rows[here] - top, self.columns[here], self.values[here], shape)

    def beside(self, columns: int) -> SparsePlan:
        return replace(self, shape=(self.shape[0], self.shape[1] + columns))


@dataclass(frozen=True, eq=False)
class DensePlan(TargetPlan):
    """A target plan as a matrix, (N, M)."""

    matrix: Tensor

    def apply(self, y: Tensor) -> Tensor:
        return self.matrix.to(y.dtype) @ y

    def row_mass(self) -> Tensor:
        return self.matrix.sum(1)

    def row_entropy(self) -> Tensor:
        return -torch.xlogy(self.matrix, self.matrix).sum(1)

    def row_square_mass(self) -> Tensor:
        return self.matrix.square().sum(1)

    def dense(self) -> Tensor:
        return self.matrix

    @property
    def T(self) -> DensePlan:
        return DensePlan(self.matrix.T)

    def restrict(self, rows: slice) -> DensePlan:
        return DensePlan(self.matrix[rows])

    def beside(self, columns: int) -> DensePlan:
        return DensePlan(F.pad(self.matrix, (0, columns)))


@dataclass(frozen=True, eq=False)
class StructuredPlan(TargetPlan):
    """A target plan that is constant on a few sets of pairs: p_ij = r_i c_j sum_k level_k [(i, j) in set k].

    Attributes:
        levels: each set, disjoint from the others, with its level, positive.
        row_scale: r, (N,).
        column_scale: c, (M,).
    """

    levels: tuple[tuple[float, Indicator], ...]
    row_scale: Tensor
    column_scale: Tensor

    def apply(self, y: Tensor) -> Tensor:
        y = _times(self.column_scale.to(y.dtype), y)
        total = sum((level * indicator.apply(y) for level, indicator in self.levels), torch.zeros_like(y[:1]))
        return _times(self.row_scale.to(y.dtype), total)

    def row_mass(self) -> Tensor:
        return self.apply(torch.ones_like(self.column_scale))

    def row_entropy(self) -> Tensor:
        # p log p with log p = log r_i + log c_j + log level_k, each part a sum against the plan's own structure
        of_columns = self.apply(torch.where(self.column_scale > 0, self.column_scale, 1).log())
        of_levels = sum(
            (level * math.log(level) * indicator.apply(self.column_scale) for level, indicator in self.levels),
            torch.zeros_like(self.row_scale),
        )
        return -(torch.xlogy(self.row_mass(), self.row_scale) + of_columns + self.row_scale * of_levels)

    def row_square_mass(self) -> Tensor:
        squared = tuple((level**2, indicator) for level, indicator in self.levels)
        return StructuredPlan(squared, self.row_scale.square(), self.column_scale.square()).row_mass()

    def dense(self) -> Tensor:
        total = sum(level * indicator.dense().to(self.row_scale) for level, indicator in self.levels)
        return self.row_scale[:, None] * total * self.column_scale

    @property
    def T(self) -> StructuredPlan:
        levels = tuple((level, indicator.T) for level, indicator in self.levels)
        return StructuredPlan(levels, self.column_scale, self.row_scale)

    def restrict(self, rows: slice) -> StructuredPlan:
        levels = tuple((level, indicator.restrict(rows)) for level, indicator in self.levels)
        return StructuredPlan(levels, self.row_scale[rows], self.column_scale)

    def beside(self, columns: int) -> StructuredPlan:
        levels = tuple((level, indicator.beside(columns)) for level, indicator in self.levels)
        return StructuredPlan(levels, self.row_scale, F.pad(self.column_scale, (0, columns)))


@dataclass(frozen=True, repr=False)
class Pairs(Target):
    """Each row is wanted at its positives: mass 1/N a row, in equal parts.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(2, 1), torch.zeros(2, 1))
    >>> Pairs()(block, {}).dense()
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """

    @property
    def complete(self) -> bool:
        """Whether every row wants something: it does."""
        return True

    def __call__(self, block: Block, attributes: Attributes) -> SparsePlan:
        """Return the target plan of a block."""
        rows, columns = block.positives
        per_row = torch.zeros_like(block.row_items).index_add(0, rows, torch.ones_like(rows))
        values = 1 / (per_row[rows] * block.shape[0]).to(_precision(block))
        return SparsePlan(rows, columns, values, block.shape)


@dataclass(frozen=True, repr=False)
class Labels(Target):
    """Each row is wanted at all other embeddings of its class: mass 1/N a row, in equal parts.

    The call needs ``labels``, (n,). A row that is alone in its class wants nothing and adds nothing to the loss.

    Source: Khosla et al. (2020), Supervised contrastive learning, eq. 2.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(3, 1), torch.zeros(3, 1))
    >>> (Labels()(block, {"labels": torch.tensor([0, 0, 1])}).dense() * 6).round()
    tensor([[1., 1., 0.],
            [1., 1., 0.],
            [0., 0., 2.]])
    """

    def __call__(self, block: Block, attributes: Attributes) -> StructuredPlan:
        """Return the target plan of a block."""
        same = Indicator.equal(block.spread(_attribute("labels", attributes)))
        return _by_rows(block, ((1.0, block.compared() & same),))


@dataclass(frozen=True, repr=False)
class Domains(Target):
    """Each row is wanted at its positives, and somewhat at other items of its own or of other domains.

    Proportional to 1 at positives, alpha at other items of the same domain, beta at items of another one; mass 1/N a
    row. The call needs ``domains``, (n,).

    Args:
        alpha: level within a domain, nonnegative.
        beta: level across domains, nonnegative.

    Raises:
        UsageError: alpha or beta is negative.

    Source: Chen et al. (2024), the target plan for domain generalisation.
    """

    alpha: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            check(getattr(self, name) >= 0, f"{name}: expected a nonnegative number, got {getattr(self, name)!r}.")

    def __call__(self, block: Block, attributes: Attributes) -> StructuredPlan:
        """Return the target plan of a block."""
        same_item = Indicator.equal(block.items)
        same_domain = Indicator.equal(block.spread(_attribute("domains", attributes)))
        others = block.compared().without(same_item)
        levels = (
            (1.0, block.compared() & same_item),
            (self.alpha, others & same_domain),
            (self.beta, others.without(same_domain)),
        )
        return _by_rows(block, tuple((level, pairs) for level, pairs in levels if level > 0))


@dataclass(frozen=True, eq=False, repr=False)
class Matrix(Target):
    """Any plan that is wanted, given entry by entry.

    Args:
        matrix: proportional to the wanted plan, (N, M) of the layout, nonnegative, dense or `torch.sparse`; it is
            scaled to total mass 1. In the joint layout it is (2n, 2n), view 0 before view 1.

    Raises:
        UsageError: an entry is negative or not finite, all are zero, or, on a block, the shape differs or there is mass
            on a pair that the layout leaves out.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(2, 1), torch.zeros(2, 1))
    >>> Matrix(torch.tensor([[3.0, 1.0], [1.0, 3.0]]))(block, {}).dense()
    tensor([[0.3750, 0.1250],
            [0.1250, 0.3750]])
    """

    matrix: Tensor = field(repr=False)

    @property
    def complete(self) -> bool:
        """Whether the plan has all its mass: it does, however it is spread over the rows."""
        return True

    def __post_init__(self) -> None:
        matrix = self.matrix
        check(isinstance(matrix, Tensor) and matrix.ndim == 2, "target: expected a tensor with two dimensions.")
        values = matrix.to_sparse_coo().coalesce().values() if _is_sparse(matrix) else matrix
        good = bool(torch.isfinite(values).all() and (values >= 0).all() and values.sum() > 0)
        check(good, "target: expected nonnegative finite numbers that are not all zero.")

    def __call__(self, block: Block, attributes: Attributes) -> TargetPlan:
        """Return the target plan of a block."""
        shape = tuple(self.matrix.shape)
        check(shape == block.shape, f"target: expected shape {block.shape}, the layout's pairs, got {shape}.")
        matrix = self.matrix.to(block.x.device, _precision(block))
        if _is_sparse(matrix):
            matrix = matrix.to_sparse_coo().coalesce()
            rows, columns = matrix.indices()
            _check_compared([mask.at(rows, columns) & (matrix.values() > 0) for mask in block.masks])
            values = matrix.values()
            return SparsePlan(rows, columns, values / values.sum(), block.shape)
        _check_compared([mask.tile(slice(None), slice(None)) & (matrix > 0) for mask in block.masks])
        return DensePlan(matrix / matrix.sum())

    def mirrored(self) -> Matrix:
        return Matrix(self.matrix.T)

    def gathered(self) -> Matrix:
        """Return the rule with the rows of all processes."""
        return Matrix(gather(self.matrix.to_dense() if _is_sparse(self.matrix) else self.matrix))


@dataclass(frozen=True, eq=False, repr=False)
class Soft(Target):
    """Each row is wanted where another space finds it alike: the row-normalised kernel of given features.

    Args:
        features: the batch in that space (the input's, or a teacher's), one tensor (n, k) for all views or one per
        view.
        kernel: how alike two items are there.

    Raises:
        UsageError: on a block, the features are not one per item.

    Source: the target of stochastic neighbour embedding, Hinton and Roweis (2002); with a teacher, relational
    distillation.
    """

    features: Tensor | tuple[Tensor, ...] = field(repr=False)
    kernel: Kernel = field(default_factory=lambda: Gibbs("cosine", 0.1))

    def __call__(self, block: Block, attributes: Attributes) -> DensePlan:
        """Return the target plan of a block."""
        with torch.no_grad():
            geometry = Geometry(self.kernel(*_feature_sides(self.features, block)), block.masks)
            wanted = geometry.dense().softmax(1).nan_to_num(0)  # a row with nothing to compare wants nothing
        return DensePlan((wanted / block.shape[0]).to(_precision(block)))

    def mirrored(self) -> Soft:
        return Soft(_exchanged(self.features), self.kernel)


@dataclass(frozen=True, eq=False, repr=False)
class Neighbors(Target):
    """Each row is wanted at its nearest neighbours in another space: mass 1/N a row, in equal parts.

    Args:
        features: the batch in that space, one tensor (n, k) for all views or one per view.
        neighbors: how many, at least 1; at most as many as a row is compared with are taken.

    Raises:
        UsageError: neighbors is not positive or, on a block, the features are not one per item.
    """

    features: Tensor | tuple[Tensor, ...] = field(repr=False)
    neighbors: int = 5

    def __post_init__(self) -> None:
        check(self.neighbors >= 1, f"neighbors: expected at least 1, got {self.neighbors!r}.")

    def __call__(self, block: Block, attributes: Attributes) -> SparsePlan:
        """Return the target plan of a block."""
        n, m = block.shape
        with torch.no_grad():
            x, y = _feature_sides(self.features, block)
            distance = torch.cdist(x, y)
            for mask in block.masks:
                distance.masked_fill_(mask.tile(slice(None), slice(None)), torch.inf)
            found = distance.topk(min(self.neighbors, m), largest=False)
        near = found.values < torch.inf
        rows = torch.arange(n, device=x.device)[:, None].expand_as(near)[near]
        share = 1 / (n * near.sum(1).clamp_min(1)).to(_precision(block))
        return SparsePlan(rows, found.indices[near], share[rows], block.shape)

    def mirrored(self) -> Neighbors:
        return Neighbors(_exchanged(self.features), self.neighbors)


def _by_rows(block: Block, levels: tuple[tuple[float, Indicator], ...]) -> StructuredPlan:
    """Return the plan with the given levels, each row scaled to 1/N, rows that want nothing to zero."""
    (n, m), like = block.shape, torch.empty(0, dtype=_precision(block), device=block.x.device)
    totals = sum((level * pairs.counts(like) for level, pairs in levels), like.new_zeros(n))
    row_scale = torch.where(totals > 0, 1 / (totals.clamp_min(1e-30) * n), 0)
    return StructuredPlan(levels, row_scale, like.new_ones(m))


def _precision(block: Block) -> torch.dtype:
    """Return the precision of the computation."""
    return torch.promote_types(block.x.dtype, torch.float32)


def _attribute(name: str, attributes: Attributes) -> Tensor:
    check(name in attributes, f"{name}: this target needs them; pass {name}=..., one per item, in the call.")
    value = attributes[name]
    check(not value.is_floating_point(), f"{name}: expected integers, got {value.dtype}.")
    return value


def _feature_sides(features: Tensor | tuple[Tensor, ...], block: Block) -> tuple[Tensor, Tensor]:
    """Return the features of the rows and of the columns; the same tensor where rows and columns are the same."""
    items = block.size
    views = tuple(gather(view) for view in (features if isinstance(features, tuple) else (features,)))
    for view in views:
        got = f"{tuple(view.shape)}" if isinstance(view, Tensor) else type(view).__name__
        good = isinstance(view, Tensor) and view.ndim == 2 and len(view) == items
        check(good, f"features: expected one row per item, ({items}, k), got {got}.")
    if len(views) == 1:
        x, y = block.spread(views[0])
        return (x, x) if block.x is block.y else (x, y)
    stacked = torch.cat(views)
    good = len(stacked) == block.shape[0]
    check(good or block.x is not block.y, f"features: expected {block.shape[0] // items} views, got {len(views)}.")
    return (stacked, stacked) if block.x is block.y else (views[0], views[1])


def _check_compared(refused: list[Tensor]) -> None:
    good = not any(bool(pairs.any()) for pairs in refused)
    check(good, "target: puts mass on pairs that are left out (self pairs, say, or items with equal ids).")


def _exchanged(features: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    return features[::-1] if isinstance(features, tuple) else features


def _is_sparse(matrix: Tensor) -> bool:
    return matrix.layout != torch.strided


def _times(weights: Tensor, rows: Tensor) -> Tensor:
    return weights.view(-1, *[1] * (rows.ndim - 1)) * rows
