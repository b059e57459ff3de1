"""Log-kernels: log K between given rows and columns, in a form that the passes over all pairs can work through.

Every built-in kernel has one normal form. Its logarithm is a pointwise link h of an affine function of the inner
product::

    log K_ij = h(T_ij),    T_ij = <x_i, y_j> + r_i + c_j

so that the passes know one matrix product and nothing of costs or temperatures: scaling, normalising and squared norms
happen once per embedding, in plain autograd, and the temperature receives its exact gradient through them. A cost that
is a callable has no such form; its tiles are recomputed and differentiated one by one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, Self, TypeAlias

import torch
from torch import Tensor, nn

from contraport.engine.autograd import inner_products, pullback
from contraport.engine.links import Link
from contraport.engine.pytree import flatten, unflatten
from contraport.engine.row_blocks import map_row_blocks
from contraport.engine.tensor_cache import constant
from contraport.errors import UsageError

CostFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Weight(Protocol):
    """A linear functional of an (N, M) matrix, in whatever form is cheap to sum against."""

    def apply(self, y: Tensor) -> Tensor:
        """Return the weight times y: (M, ...) to (N, ...)."""

    def row_mass(self) -> Tensor:
        """Return its sum over each row, (N,)."""

    def restrict(self, rows: slice) -> Weight:
        """Return it on some of its rows."""

    def dense(self) -> Tensor:
        """Return it as an (N, M) tensor."""


class LogKernel(ABC):
    """log K between N rows and M columns, evaluated where it is asked for and never as a whole unless it is asked to.

    Attributes:
        link: h in log K = h(T); None is the identity.
        temperature: the temperature of the kernel, a number or a tensor without dimensions.
        unit: the cost is -unit * T.
        cost_is_distance: whether the cost is known to be a distance, so that no T is above 0.
    """

    link: Link | None
    temperature: float | Tensor
    unit: float | Tensor
    cost_is_distance: bool = False

    @property
    @abstractmethod
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that it depends on; gradients are returned in this order."""

    @property
    def parameters(self) -> int:
        """How many of the inputs, the last ones, belong to no row or column."""
        return 0

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(N, M)."""

    @property
    @abstractmethod
    def T(self) -> LogKernel:
        """The same kernel with rows and columns exchanged."""

    @abstractmethod
    def restrict(self, rows: slice) -> Self:
        """Return the same kernel between some of its rows and all columns."""

    @abstractmethod
    def with_link(self, link: Link | None, *, scale: float | Tensor = 1.0, row_bias: Tensor | None = None) -> Self:
        """Return the kernel h(scale T_ij + bias_i) with another link h on the same T; its unit is of T without bias."""

    @abstractmethod
    def at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return log K at the given entries: two index tensors of shape (k,) to a tensor of shape (k,)."""

    def along(self, columns: Tensor, *, own: bool = False) -> Tensor:
        """Return log K of each row at one column: an index tensor (N,) to a tensor (N,).

        Args:
            columns: of each row.
            own: whether they are known to be 0, 1, ..., N - 1.
        """
        return self.at(torch.arange(len(columns), device=columns.device), columns)

    @property
    def finite(self) -> bool:
        """Whether log K is known to be finite everywhere, as far as the numbers reach."""
        return False

    @property
    def reach(self) -> float:
        """How far log K may lie from zero, as far as that is known beforehand; infinity where it is not."""
        return math.inf

    @abstractmethod
    def dense(self) -> Tensor:
        """Return log K as an (N, M) tensor, differentiable by plain autograd."""

    def row_inner_products(self, weight: Weight) -> Tensor:
        """Return sum_j weight_ij log K_ij, (N,), differentiable."""

        def inner(rows: slice) -> Tensor:
            return (weight.restrict(rows).dense() * self.restrict(rows).dense()).sum(1)

        return torch.cat(map_row_blocks(inner, self.shape))

    def biases(self) -> tuple[Tensor, Tensor] | None:
        """Return a (N,) and b (M,) where log K_ij = core_ij + a_i + b_j, or None where the core is all of log K."""
        return None

    def bound(self) -> float:
        """Return a bound on the absolute value of the core, infinity where none is known."""
        return math.inf

    @property
    def symmetric(self) -> bool:
        """Whether K_ij = K_ji is known to hold, rows and columns being the same embeddings."""
        return False

    def for_passes(self) -> LogKernel:
        """Return the same kernel with what passes over all pairs read alone: no temperature, which it has taken in."""
        return self

    @abstractmethod
    def tile(self, rows: slice, columns: slice, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the core and T (less the biases) on a tile.

        Core and T may be one tensor, and either may be `out`, a buffer of the tile's shape.
        """

    def exponential(self, rows: slice, columns: slice, out: Tensor | None = None) -> Tensor:
        """Return exp(core) on a tile, which may be `out`; asked for only where the core is bounded."""
        return self.tile(rows, columns, out)[0].exp_()

    @abstractmethod
    def pull(self, rows: slice, columns: slice, weight: Tensor, gradients: list[Tensor | None]) -> None:
        """Add the gradient of sum(weight * T) on a tile to `gradients`, which is aligned with `inputs`.

        Inputs whose gradient is None are not wanted.
        """

    def _linked(self, t: Tensor) -> Tensor:
        return t if self.link is None else self.link.value(t)


@dataclass(frozen=True, eq=False)
class AffineLogKernel(LogKernel):
    """log K_ij = h(<x_i, y_j> + r_i + c_j); see the module's first lines.

    Attributes:
        x: (N, d).
        y: (M, d). The same tensor as x where rows and columns are the same embeddings.
        row_bias: r, (N,).
        column_bias: c, (M,).
        level: r_i + c_j where it is one known number.
        cost_is_distance: whether no T is above 0.
        spread: what <x_i, y_j> is known beforehand not to exceed, either way; infinity where nothing is.
    """

    x: Tensor
    y: Tensor
    row_bias: Tensor
    column_bias: Tensor
    temperature: float | Tensor
    unit: float | Tensor
    link: Link | None = None
    level: float | None = None
    cost_is_distance: bool = False
    spread: float = math.inf

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.x, self.y, self.row_bias, self.column_bias

    def for_passes(self) -> AffineLogKernel:
        return AffineLogKernel(self.x, self.y, self.row_bias, self.column_bias, 1.0, 1.0, self.link)

    @property
    def shape(self) -> tuple[int, int]:
        return self.x.shape[0], self.y.shape[0]

    @property
    def T(self) -> AffineLogKernel:
        return replace(self, x=self.y, y=self.x, row_bias=self.column_bias, column_bias=self.row_bias)

    def restrict(self, rows: slice) -> Self:
        return replace(self, x=self.x[rows], row_bias=self.row_bias[rows])

    def with_link(self, link: Link | None, *, scale: float | Tensor = 1.0, row_bias: Tensor | None = None) -> Self:
        changed = self
        if not isinstance(scale, float) or scale != 1:
            x = self.x * scale**0.5
            y = x if self.y is self.x else self.y * scale**0.5
            r = self.row_bias * scale
            c = r if self.column_bias is self.row_bias else self.column_bias * scale
            changed = replace(self, x=x, y=y, row_bias=r, column_bias=c, unit=self.unit / scale)
            changed = replace(changed, level=None, spread=math.inf)
        if row_bias is not None:
            changed = replace(changed, row_bias=changed.row_bias + row_bias, level=None, cost_is_distance=False)
        return replace(changed, link=link)

    def at(self, rows: Tensor, columns: Tensor) -> Tensor:
        # index_select, as its gradient is several times as fast as that of indexing.
        inner = torch.linalg.vecdot(self.x.index_select(0, rows), self.y.index_select(0, columns))
        return self._linked(inner + self._bias_at(rows, columns))

    def along(self, columns: Tensor, *, own: bool = False) -> Tensor:
        y = self.y if own and self.y.shape == self.x.shape else self.y.index_select(0, columns)
        inner = torch.linalg.vecdot(self.x, y)
        if self.level is not None:
            return self._linked(inner + self.level)
        return self._linked(inner + self.row_bias + self.column_bias.index_select(0, columns))

    def _bias_at(self, rows: Tensor, columns: Tensor) -> Tensor | float:
        if self.level is not None:
            return self.level
        return self.row_bias.index_select(0, rows) + self.column_bias.index_select(0, columns)

    def dense(self) -> Tensor:
        if self.level is not None:
            level = constant(self.shape[1], self.level, self.x)
            return self._linked(inner_products(level, self.x, self.y))
        return self._linked(inner_products(self.column_bias, self.x, self.y) + self.row_bias[:, None])

    def row_inner_products(self, weight: Weight) -> Tensor:
        if self.link is not None:
            return super().row_inner_products(weight)
        inner = (self.x * weight.apply(self.y)).sum(1)
        if self.level is not None:
            return inner + weight.row_mass().to(inner.dtype) * self.level
        return inner + weight.row_mass().to(inner.dtype) * self.row_bias + weight.apply(self.column_bias)

    @cached_property
    def _binary(self) -> Tensor:
        """The rows in units in which a power of two is the exponential: exp2 is several times as fast as exp."""
        return self.x.detach() * math.log2(math.e)

    def exponential(self, rows: slice, columns: slice, out: Tensor | None = None) -> Tensor:
        return torch.mm(self._binary[rows], self.y.detach()[columns].T, out=out).exp2_()

    def biases(self) -> tuple[Tensor, Tensor] | None:
        return (self.row_bias.detach(), self.column_bias.detach()) if self.link is None else None

    def bound(self) -> float:
        if self.link is not None:
            return math.inf
        x, y = self.x.detach(), self.y.detach()
        longest = torch.linalg.vecdot(x, x).amax()
        other = longest if self.y is self.x else torch.linalg.vecdot(y, y).amax()
        return math.sqrt(float(longest * other))

    @property
    def finite(self) -> bool:
        return self.link is None

    @property
    def reach(self) -> float:
        return math.inf if self.level is None or self.link is not None else abs(self.level) + self.spread

    @property
    def symmetric(self) -> bool:
        return self.x is self.y and self.row_bias is self.column_bias

    def tile(self, rows: slice, columns: slice, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x, y, row_bias, column_bias = (v.detach() for v in self.inputs)
        t = torch.mm(x[rows], y[columns].T, out=out)
        if self.link is None:
            return t, t
        t.add_(row_bias[rows, None]).add_(column_bias[columns])
        return self.link.value(t), t

    def pull(self, rows: slice, columns: slice, weight: Tensor, gradients: list[Tensor | None]) -> None:
        x, y, row_bias, column_bias = gradients
        if x is not None:
            x[rows].addmm_(weight, self.y.detach()[columns])
        if y is not None:
            y[columns].addmm_(weight.T, self.x.detach()[rows])
        if row_bias is not None:
            row_bias[rows] += weight.sum(1)
        if column_bias is not None:
            column_bias[columns] += weight.sum(0)


@dataclass(frozen=True, eq=False)
class CallableLogKernel(LogKernel):
    """log K_ij = h(T_ij), T_ij = -scale cost(x_i, y_j) / temperature + r_i, for any differentiable cost; slower.

    The parameters of a cost that is a module are inputs too and receive their gradient.
    """

    cost: CostFunction
    x: Tensor
    y: Tensor
    temperature: float | Tensor
    link: Link | None = None
    scale: float | Tensor = 1.0
    row_bias: Tensor | None = None

    @property
    def unit(self) -> float | Tensor:  # type: ignore[override]
        """The cost is -unit * T."""
        return self.temperature / self.scale

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return (self.x, self.y, *(() if self.row_bias is None else (self.row_bias,)), *self._common())

    @property
    def parameters(self) -> int:
        return len(self._common())

    def for_passes(self) -> CallableLogKernel:
        if not isinstance(self.cost, nn.Module):
            return self
        names, values = zip(*self.cost.named_parameters(), strict=True) if self._parameters() else ((), ())
        return replace(self, cost=_Called(self.cost, names, values))

    def _common(self) -> tuple[Tensor, ...]:
        return (*(v for v in (self.temperature, self.scale) if isinstance(v, Tensor)), *self._parameters())

    def _parameters(self) -> tuple[Tensor, ...]:
        if isinstance(self.cost, _Called):
            return self.cost.values
        return tuple(self.cost.parameters()) if isinstance(self.cost, nn.Module) else ()

    @property
    def shape(self) -> tuple[int, int]:
        return self.x.shape[0], self.y.shape[0]

    @property
    def T(self) -> CallableLogKernel:
        if self.row_bias is not None:
            raise UsageError("cost: a callable with a bias on its rows cannot be transposed.")
        cost = self.cost.cost if isinstance(self.cost, _Flipped) else _Flipped(self.cost)
        return replace(self, cost=cost, x=self.y, y=self.x)

    def restrict(self, rows: slice) -> Self:
        return replace(self, x=self.x[rows], row_bias=None if self.row_bias is None else self.row_bias[rows])

    def with_link(self, link: Link | None, *, scale: float | Tensor = 1.0, row_bias: Tensor | None = None) -> Self:
        bias = None if self.row_bias is None else self.row_bias * scale
        if row_bias is not None:
            bias = row_bias if bias is None else bias + row_bias
        return replace(self, link=link, scale=self.scale * scale, row_bias=bias)

    def _affine(self, x: Tensor, y: Tensor) -> Tensor:
        value = self.cost(x, y)
        expected = (x.shape[0], y.shape[0])
        if value.shape != expected:
            raise UsageError(f"cost: expected a callable that returns shape {expected}, got {tuple(value.shape)}.")
        return -value * (self.scale / self.temperature)

    def at(self, rows: Tensor, columns: Tensor) -> Tensor:
        def one(x: Tensor, y: Tensor) -> Tensor:
            return self._affine(x[None], y[None])[0, 0]

        t = torch.func.vmap(one)(self.x[rows], self.y[columns])
        return self._linked(t if self.row_bias is None else t + self.row_bias[rows])

    def dense(self) -> Tensor:
        t = self._affine(self.x, self.y)
        return self._linked(t if self.row_bias is None else t + self.row_bias[:, None])

    def tile(self, rows: slice, columns: slice, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        t = self._on(rows, columns).dense().detach()
        return self._linked(t), t

    def pull(self, rows: slice, columns: slice, weight: Tensor, gradients: list[Tensor | None]) -> None:
        tensors: list[Tensor] = []
        tile = self._on(rows, columns)
        structure = flatten(tile, tensors)

        def t(*named: Tensor) -> Tensor:
            kernel: CallableLogKernel = unflatten(structure, named)
            return kernel.dense()

        # The tile is computed again, as the graph of each would take more memory than the tile.
        local = {id(v): g for v, g in zip(tensors, pullback(t, tensors, weight), strict=True)}
        places = rows, columns, *(() if self.row_bias is None else (rows,)), *(... for _ in self._common())
        for gradient, place, source in zip(gradients, places, tile.inputs, strict=True):
            own = local[id(source)]
            if gradient is not None and own is not None:
                gradient[place] += own

    def _on(self, rows: slice, columns: slice) -> CallableLogKernel:
        """Return the kernel of a tile, without its link."""
        return replace(self.restrict(rows), y=self.y[columns], link=None)


@dataclass(frozen=True, eq=False)
class _Called:
    """A cost with other parameters, by their names and values."""

    cost: nn.Module
    names: tuple[str, ...]
    values: tuple[Tensor, ...]

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        parameters = dict(zip(self.names, self.values, strict=True))
        value: Tensor = torch.func.functional_call(self.cost, parameters, (x, y))
        return value


class _Flipped(nn.Module):
    """A cost with its two arguments exchanged."""

    def __init__(self, cost: CostFunction) -> None:
        super().__init__()
        self.cost = cost

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.cost(y, x).T


@dataclass(frozen=True, eq=False)
class MatrixLogKernel(LogKernel):
    """log K given entry by entry, (N, M): logits that come from elsewhere, or a plan that was found as a matrix."""

    matrix: Tensor
    link: Link | None = None
    temperature: float | Tensor = 1.0
    unit: float | Tensor = 1.0

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return (self.matrix,)

    def for_passes(self) -> MatrixLogKernel:
        return MatrixLogKernel(self.matrix, self.link)

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[0], self.matrix.shape[1]

    @property
    def T(self) -> MatrixLogKernel:
        return replace(self, matrix=self.matrix.T)

    def restrict(self, rows: slice) -> Self:
        return replace(self, matrix=self.matrix[rows])

    def with_link(self, link: Link | None, *, scale: float | Tensor = 1.0, row_bias: Tensor | None = None) -> Self:
        matrix = self.matrix * scale
        matrix = matrix if row_bias is None else matrix + row_bias[:, None]
        return replace(self, link=link, matrix=matrix, unit=self.unit / scale)

    def at(self, rows: Tensor, columns: Tensor) -> Tensor:
        return self._linked(self.matrix[rows, columns])

    def dense(self) -> Tensor:
        return self._linked(self.matrix)

    def tile(self, rows: slice, columns: slice, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        t = self.matrix.detach()[rows, columns].clone()
        return self._linked(t), t

    def pull(self, rows: slice, columns: slice, weight: Tensor, gradients: list[Tensor | None]) -> None:
        if gradients[0] is not None:
            gradients[0][rows, columns] += weight
