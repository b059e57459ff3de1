"""Log-kernels between row and column embeddings, in a form shared by all backends.

Every built-in kernel has one normal form. Its logarithm is a pointwise link h of an affine function of the inner
product::

    log K_ij = h(T_ij),    T_ij = <x_i, y_j> + r_i + c_j

Why: the passes then need one matrix product and no cost or temperature. Scaling, normalization and squared norms are
computed once per embedding in plain autograd, through which the temperature gets its exact gradient. A cost that is a
callable has no such form; its tiles are recomputed and differentiated one by one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self, TypeAlias

import torch
from torch import Tensor, nn

from contraport.engine.autograd_utilities import (
    checkpoint_row_blocks,
    disable_autocast_in_grad_fn,
    is_in_torch_func,
    vjp,
)
from contraport.engine.constant_tensor_cache import constant_vector
from contraport.engine.kernel_link_functions import Link
from contraport.engine.pytree import flatten, unflatten
from contraport.errors import UsageError, type_and_shape
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes

CostFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Function of x, (n, d), and y, (m, d), that returns the cost of all pairs, (n, m)."""

LOG2E = math.log2(math.e)
"""log2(e), by which exponents are multiplied so that exp2 replaces exp."""

EmbeddingsAndBiases: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
"""Scaled embeddings of rows, (N, d), and columns, (M, d), and their biases, (N,) and (M,)."""

Indices: TypeAlias = Tensor | slice
"""Selection of rows or columns: a tensor of indices, or a slice."""


class LinearOperator(Protocol):
    """Protocol of (N, M) matrices, dense or implicit, with products and row sums."""

    def apply(self, y: Tensor) -> Tensor:
        """Return the product, (N, ...), of the matrix and a tensor y, (M, ...)."""

    def row_mass(self) -> Tensor:
        """Return the sum of each row, (N,)."""

    def take_rows(self, rows: slice) -> LinearOperator:
        """Return the matrix restricted to some rows."""

    def take_rows_and_columns(self, rows: Indices, columns: Indices) -> LinearOperator:
        """Return the matrix restricted to some rows and columns."""

    def dense(self) -> Tensor:
        """Return the matrix as an (N, M) tensor."""


@keep_deprecated_attributes(
    reduce_to_pass_inputs="to_custom_op_input",
    tile="tile_with_link_input",
    cost_scale="cost_unit",
    accumulate_gradient="add_tile_gradients",
    weighted_row_sums="row_sums_of_weighted_log_kernel",
    row_inner_products="row_sums_of_weighted_log_kernel",
    with_columns="with_column_inputs",
    compute_bound_without_biases="compute_absolute_bound_without_biases",
)
class LogKernel(ABC):
    """Base class of log-kernels between N rows and M columns.

    They are computed on demand, by tiles or entries.

    Attributes:
        link: Link function h in log K = h(T); None is the identity.
        temperature: Temperature of the kernel, a number or a tensor without dimensions.
        cost_unit: Unit u of the cost, T = -cost / u.
        cost_is_distance: Whether the cost is a distance, so that T <= 0.
    """

    link: Link | None
    temperature: float | Tensor
    cost_unit: float | Tensor
    cost_is_distance: bool = False

    @property
    @abstractmethod
    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors that the kernel is computed from, learned parameters last."""

    @property
    def num_parameter_inputs(self) -> int:
        """Number of tensors at the end of `inputs` that are learned parameters."""
        return 0

    @property
    def column_input_indices(self) -> tuple[int, ...]:
        """Positions in `inputs` of the tensors that belong to the columns.

        Each comes directly after the corresponding row input.
        """
        raise UsageError(f"exchange: 'ring' requires embeddings, got a {type(self).__name__}.", kind="exchange")

    def with_column_inputs(self, column_inputs: Sequence[Tensor]) -> Self:
        """Return the kernel between the same rows and other columns."""
        raise NotImplementedError

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Number of rows and number of columns, (N, M)."""

    @property
    @abstractmethod
    def T(self) -> LogKernel:
        """Transposed kernel, with rows and columns exchanged."""

    @abstractmethod
    def take_rows(self, rows: slice) -> Self:
        """Return the kernel between some rows and all columns."""

    @abstractmethod
    def with_link(self, link: Link | None, *, factor: float | Tensor = 1.0, row_shift: Tensor | None = None) -> Self:
        """Return a copy of the kernel with another link function.

        The link is applied to factor T + row_shift, with T the argument of the present link.
        """

    @abstractmethod
    def gather_entries(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return log K, (k,), of k pairs with given indices."""

    def gather_one_per_row(self, columns: Tensor, *, diagonal: bool = False) -> Tensor:
        """Return the entry of log K in the given column of each row, (N,).

        Args:
            columns: one index per row.
            diagonal: whether the indices are 0, 1, ..., N - 1, which saves the gather.
        """
        return self.gather_entries(torch.arange(len(columns), device=columns.device), columns)

    @property
    def is_always_finite(self) -> bool:
        """True if log K has no infinite entries by construction."""
        return False

    @property
    def a_priori_absolute_bound(self) -> float:
        """Bound on |log K| that holds for any embeddings, infinity if unknown."""
        return math.inf

    @abstractmethod
    def dense(self) -> Tensor:
        """Return log K as an (N, M) tensor, differentiable by plain autograd."""

    def row_sums_of_weighted_log_kernel(self, weight: LinearOperator) -> Tensor:
        """Return each row's sum of `weight` times log K, (N,), differentiable."""

        def inner(rows: slice) -> Tensor:
            return (weight.take_rows(rows).dense() * self.take_rows(rows).dense()).sum(1)

        return checkpoint_row_blocks(inner, *self.shape)

    def biases_outside_link(self) -> tuple[Tensor, Tensor]:
        """Return the row and column biases added after the link function, (N,) and (M,)."""
        like, (n, m) = self.inputs[0], self.shape
        return like.new_zeros(n), like.new_zeros(m)

    def compute_absolute_bound_without_biases(self) -> float:
        """Return a bound on |log K|, leaving out additive biases; infinity if unknown."""
        return math.inf

    @property
    def is_symmetric(self) -> bool:
        """True if rows and columns are known to be the same embeddings."""
        return False

    def to_custom_op_input(self) -> LogKernel:
        """Return a kernel whose tensors can be passed to a custom torch operator.

        Tensors that no pass uses are left out. The scaled embeddings contain the temperature, so no pass reads it.
        """
        return self

    def with_operand_dtype(self, dtype: torch.dtype) -> Self:
        """Return the log-kernel, with inner products of embeddings in another precision."""
        return self

    @abstractmethod
    def tile_with_link_input(self, rows: slice, columns: slice, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the log-kernel h(T) on a tile, and the inputs T of its link function h.

        Biases that are added after the link are left out. Log K and T may be one tensor, and either may be `out`, a
        buffer of the tile's shape.
        """

    def exp_tile_without_biases(self, rows: slice, columns: slice, out: Tensor | None = None) -> Tensor:
        """Return the kernel on a tile, leaving out additive biases of its logarithm.

        It is written to `out` if given. Its logarithm must be bounded, as no maximum is subtracted before the
        exponential.
        """
        return self.tile_with_link_input(rows, columns, out)[0].exp_()

    @abstractmethod
    def add_tile_gradients(self, rows: slice, columns: slice, weight: Tensor, input_grads: list[Tensor | None]) -> None:
        """Add the gradients of sum(weight * T) on a tile, T the link's input, to `input_grads`."""

    def _apply_link(self, t: Tensor) -> Tensor:
        """Apply the link function h to T = -cost, if the log-kernel has one."""
        return t if self.link is None else self.link.value(t)


@dataclass(frozen=True, eq=False)
class InnerProductLogKernel(LogKernel):
    """Log-kernel h(<x_i, y_j> + r_i + c_j) of scaled embeddings, with link function h.

    Attributes:
        x: Scaled embeddings of the rows, (N, d).
        y: Scaled embeddings of the columns, (M, d); the same tensor as x if rows and columns are the same embeddings.
        row_bias: Biases r of the rows, (N,).
        column_bias: Biases c of the columns, (M,).
        constant_bias: Sum r_i + c_j if it is one number for all pairs.
        cost_is_distance: Whether the cost is a distance, so that T <= 0.
        max_product: Bound on the absolute value of <x_i, y_j> that holds by construction (unit vectors), else infinity.
        operand_dtype: Dtype to which tiles round embeddings before matrix products; None keeps their own dtype.
    """

    x: Tensor
    y: Tensor
    row_bias: Tensor
    column_bias: Tensor
    temperature: float | Tensor
    cost_unit: float | Tensor
    link: Link | None = None
    constant_bias: float | None = None
    cost_is_distance: bool = False
    max_product: float = math.inf
    operand_dtype: torch.dtype | None = None
    column_input_indices = (1, 3)

    @property
    def inputs(self) -> EmbeddingsAndBiases:
        return self.x, self.y, self.row_bias, self.column_bias

    def with_column_inputs(self, column_inputs: Sequence[Tensor]) -> Self:
        y, column_bias = column_inputs
        return replace(self, y=y, column_bias=column_bias)

    def to_custom_op_input(self) -> InnerProductLogKernel:
        return InnerProductLogKernel(self.x, self.y, self.row_bias, self.column_bias, 1.0, 1.0, self.link)

    @property
    def shape(self) -> tuple[int, int]:
        return self.x.shape[0], self.y.shape[0]

    @property
    def T(self) -> InnerProductLogKernel:
        return replace(self, x=self.y, y=self.x, row_bias=self.column_bias, column_bias=self.row_bias)

    def take_rows(self, rows: slice) -> Self:
        return replace(self, x=self.x[rows], row_bias=self.row_bias[rows])

    def with_link(self, link: Link | None, *, factor: float | Tensor = 1.0, row_shift: Tensor | None = None) -> Self:
        changed = self
        # Half of the factor on either side, and one tensor for both sides if it was one: the kernel stays symmetric.
        if not isinstance(factor, float) or factor != 1:
            x = self.x * factor**0.5
            y = x if self.y is self.x else self.y * factor**0.5
            r = self.row_bias * factor
            c = r if self.column_bias is self.row_bias else self.column_bias * factor
            changed = replace(self, x=x, y=y, row_bias=r, column_bias=c, cost_unit=self.cost_unit / factor)
            changed = replace(changed, constant_bias=None, max_product=math.inf)
        if row_shift is not None:
            row_bias = changed.row_bias + row_shift
            changed = replace(changed, row_bias=row_bias, constant_bias=None, cost_is_distance=False)
        return replace(changed, link=link)

    def gather_entries(self, rows: Tensor, columns: Tensor) -> Tensor:
        # index_select and not x[rows]: its gradient is several times as fast.
        inner = torch.linalg.vecdot(self.x.index_select(0, rows), self.y.index_select(0, columns))
        if self.constant_bias is not None:
            return self._apply_link(inner + self.constant_bias)
        biases = self.row_bias.index_select(0, rows) + self.column_bias.index_select(0, columns)
        return self._apply_link(inner + biases)

    def gather_one_per_row(self, columns: Tensor, *, diagonal: bool = False) -> Tensor:
        y = self.y if diagonal and self.y.shape == self.x.shape else self.y.index_select(0, columns)
        inner = torch.linalg.vecdot(self.x, y)
        if self.constant_bias is not None:
            return self._apply_link(inner + self.constant_bias)
        return self._apply_link(inner + self.row_bias + self.column_bias.index_select(0, columns))

    def dense(self) -> Tensor:
        if self.constant_bias is not None:
            return self._apply_link(
                _bias_plus_inner_products(constant_vector(len(self.y), self.constant_bias, self.x), self.x, self.y)
            )
        return self._apply_link(_bias_plus_inner_products(self.column_bias, self.x, self.y) + self.row_bias[:, None])

    def row_sums_of_weighted_log_kernel(self, weight: LinearOperator) -> Tensor:
        if self.link is not None:
            return super().row_sums_of_weighted_log_kernel(weight)
        inner = (self.x * weight.apply(self.y)).sum(1)
        if self.constant_bias is not None:
            return inner + weight.row_mass().to(inner.dtype) * self.constant_bias
        return inner + weight.row_mass().to(inner.dtype) * self.row_bias + weight.apply(self.column_bias)

    @cached_property
    def _rounded_embeddings(self) -> tuple[Tensor, Tensor]:
        """Row and column embeddings, rounded to the precision of matrix products."""
        return self._round_operand(self.x.detach()), self._round_operand(self.y.detach())

    @cached_property
    def _x_times_log2e(self) -> Tensor:
        """Row embeddings times log2(e), so that `exp2` can replace `exp`."""
        return self._round_operand(self.x.detach() * LOG2E)

    def _round_operand(self, value: Tensor) -> Tensor:
        """Round a matrix to the precision in which matrices are multiplied."""
        return value if self.operand_dtype is None else value.to(self.operand_dtype)

    def _matmul_to_embedding_dtype(self, left: Tensor, right: Tensor, out: Tensor | None) -> Tensor:
        """Multiply two operands, and return the product in the dtype of the embeddings."""
        if self.operand_dtype is None:
            return torch.mm(left, right, out=out)
        product = torch.mm(left, right)  # a CPU has no product of bfloat16 with another type of result
        return product.to(self.x.dtype) if out is None else out.copy_(product)

    def with_operand_dtype(self, dtype: torch.dtype) -> Self:
        return replace(self, operand_dtype=dtype)

    def exp_tile_without_biases(self, rows: slice, columns: slice, out: Tensor | None = None) -> Tensor:
        return self._matmul_to_embedding_dtype(
            self._x_times_log2e[rows], self._rounded_embeddings[1][columns].T, out
        ).exp2_()

    def biases_outside_link(self) -> tuple[Tensor, Tensor]:
        if self.link is not None:
            return super().biases_outside_link()
        return self.row_bias.detach(), self.column_bias.detach()

    def compute_absolute_bound_without_biases(self) -> float:
        if self.link is not None:
            return math.inf
        # Cauchy-Schwarz: the longest row times the longest column.
        x, y = self.x.detach(), self.y.detach()
        longest = torch.linalg.vecdot(x, x).amax()
        other = longest if self.y is self.x else torch.linalg.vecdot(y, y).amax()
        return math.sqrt(float(longest * other))

    @property
    def is_always_finite(self) -> bool:
        return self.link is None

    @property
    def a_priori_absolute_bound(self) -> float:
        if self.constant_bias is None or self.link is not None:
            return math.inf
        return abs(self.constant_bias) + self.max_product

    @property
    def is_symmetric(self) -> bool:
        return self.x is self.y and self.row_bias is self.column_bias

    def tile_with_link_input(self, rows: slice, columns: slice, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        (x, y), row_bias, column_bias = self._rounded_embeddings, self.row_bias.detach(), self.column_bias.detach()
        t = self._matmul_to_embedding_dtype(x[rows], y[columns].T, out)
        if self.link is None:
            return t, t
        t.add_(row_bias[rows, None]).add_(column_bias[columns])
        return self.link.value(t), t

    def add_tile_gradients(self, rows: slice, columns: slice, weight: Tensor, input_grads: list[Tensor | None]) -> None:
        x, y, row_bias, column_bias = input_grads
        own, other = self._rounded_embeddings
        rounded = self._round_operand(weight)
        for gradient, part, w, z in ((x, rows, rounded, other[columns]), (y, columns, rounded.T, own[rows])):
            if gradient is None:
                continue
            if self.operand_dtype is None:
                gradient[part].addmm_(w, z)  # in place, without a tensor for the product itself
            else:
                gradient[part] += torch.mm(w, z)
        if row_bias is not None:
            row_bias[rows] += weight.sum(1)
        if column_bias is not None:
            column_bias[columns] += weight.sum(0)


def _bias_plus_inner_products(column_bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return <x_i, y_j> + column_bias_j of all pairs, (N, M)."""
    if is_in_torch_func():
        return disable_autocast_in_grad_fn(torch.addmm(column_bias, x, y.T))
    products: Tensor = _ColumnBiasPlusInnerProducts.apply(column_bias, x, None if y is x else y)
    return products


class _ColumnBiasPlusInnerProducts(torch.autograd.Function):
    """Autograd function of column_bias + x y^T, or column_bias + x x^T if y is None."""

    @staticmethod
    def forward(ctx: Any, column_bias: Tensor, x: Tensor, y: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, y)
        return torch.addmm(column_bias, x, (x if y is None else y).T)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        needs_bias, needs_x, needs_y = ctx.needs_input_grad
        with torch.autocast(grad_output.device.type, enabled=False):
            d_bias = grad_output.sum(0) if needs_bias else None
            if y is None:  # x stands on both sides: G x + G^T x as one product
                return d_bias, (grad_output + grad_output.T) @ x, None
            return d_bias, grad_output @ y if needs_x else None, grad_output.T @ x if needs_y else None


@dataclass(frozen=True, eq=False)
class CallableLogKernel(LogKernel):
    """Log-kernel of an arbitrary cost function cost(x_i, y_j), given as a callable.

    Entries are link(row_bias_i - cost_factor cost(x_i, y_j) / temperature). Slower than the normal form. The
    parameters of a cost that is a module are inputs too and receive their gradient.
    """

    cost: CostFunction
    x: Tensor
    y: Tensor
    temperature: float | Tensor
    link: Link | None = None
    cost_factor: float | Tensor = 1.0
    row_bias: Tensor | None = None
    column_input_indices = (1,)

    @property
    def cost_unit(self) -> float | Tensor:  # type: ignore[override]
        return self.temperature / self.cost_factor

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return (self.x, self.y, *(() if self.row_bias is None else (self.row_bias,)), *self._parameter_inputs())

    @property
    def num_parameter_inputs(self) -> int:
        return len(self._parameter_inputs())

    def with_column_inputs(self, column_inputs: Sequence[Tensor]) -> Self:
        return replace(self, y=column_inputs[0])

    def to_custom_op_input(self) -> CallableLogKernel:
        if not isinstance(self.cost, nn.Module):
            return self
        parameters = dict(self.cost.named_parameters())
        return replace(self, cost=_FunctionalCost(self.cost, tuple(parameters), tuple(parameters.values())))

    def _parameter_inputs(self) -> tuple[Tensor, ...]:
        """Return the tensors among the temperature, the cost factor and the cost's parameters."""
        numbers = (v for v in (self.temperature, self.cost_factor) if isinstance(v, Tensor))
        if isinstance(self.cost, _FunctionalCost):
            return *numbers, *self.cost.values
        return *numbers, *(self.cost.parameters() if isinstance(self.cost, nn.Module) else ())

    @property
    def shape(self) -> tuple[int, int]:
        return self.x.shape[0], self.y.shape[0]

    @property
    def T(self) -> CallableLogKernel:
        if self.row_bias is not None:
            raise UsageError("cost: a callable with a bias on its rows cannot be transposed.", kind="row_bias")
        cost = self.cost.cost if isinstance(self.cost, _TransposedCost) else _TransposedCost(self.cost)
        return replace(self, cost=cost, x=self.y, y=self.x)

    def take_rows(self, rows: slice) -> Self:
        return replace(self, x=self.x[rows], row_bias=None if self.row_bias is None else self.row_bias[rows])

    def with_link(self, link: Link | None, *, factor: float | Tensor = 1.0, row_shift: Tensor | None = None) -> Self:
        bias = None if self.row_bias is None else self.row_bias * factor
        if row_shift is not None:
            bias = row_shift if bias is None else bias + row_shift
        return replace(self, link=link, cost_factor=self.cost_factor * factor, row_bias=bias)

    def _negative_costs_over_cost_unit(self, x: Tensor, y: Tensor) -> Tensor:
        """Return -cost(x, y) / cost_unit of all pairs, (n, m)."""
        value = self.cost(x, y)
        expected = (x.shape[0], y.shape[0])
        if not isinstance(value, Tensor) or value.shape != expected:
            got = type_and_shape(value)
            raise UsageError(f"cost: must be a callable that returns shape {expected}, got {got}.", kind="shape")
        return -value * (self.cost_factor / self.temperature)

    def gather_entries(self, rows: Tensor, columns: Tensor) -> Tensor:
        def one(x: Tensor, y: Tensor) -> Tensor:
            return self._negative_costs_over_cost_unit(x[None], y[None])[0, 0]

        # A cost maps two sets to all their pairs; vmap over sets of one evaluates it at k pairs instead of k^2.
        t = torch.func.vmap(one)(self.x[rows], self.y[columns])
        return self._apply_link(t if self.row_bias is None else t + self.row_bias[rows])

    def dense(self) -> Tensor:
        t = self._negative_costs_over_cost_unit(self.x, self.y)
        return self._apply_link(t if self.row_bias is None else t + self.row_bias[:, None])

    def tile_with_link_input(self, rows: slice, columns: slice, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        t = self._tile_kernel_without_link(rows, columns).dense().detach()
        return self._apply_link(t), t

    def add_tile_gradients(self, rows: slice, columns: slice, weight: Tensor, input_grads: list[Tensor | None]) -> None:
        tensors: list[Tensor] = []
        tile = self._tile_kernel_without_link(rows, columns)
        structure = flatten(tile, tensors)

        def t(*values: Tensor) -> Tensor:
            kernel: CallableLogKernel = unflatten(structure, values)
            return kernel.dense()

        # The tile is computed again: keeping its graph from the forward pass would take more memory than the tile.
        tile_gradients = dict(zip(map(id, tensors), vjp(t, tensors, weight), strict=True))
        slices = rows, columns, *(() if self.row_bias is None else (rows,)), *(... for _ in self._parameter_inputs())
        for gradient, part, source in zip(input_grads, slices, tile.inputs, strict=True):
            value = tile_gradients[id(source)]
            if gradient is not None and value is not None:
                gradient[part] += value

    def _tile_kernel_without_link(self, rows: slice, columns: slice) -> CallableLogKernel:
        """Return the log-kernel of one tile, before the link function is applied."""
        return replace(self.take_rows(rows), y=self.y[columns], link=None)


@dataclass(frozen=True, eq=False)
class _FunctionalCost:
    """Cost module and its parameter tensors, called as a pure function."""

    cost: nn.Module
    names: tuple[str, ...]
    values: tuple[Tensor, ...]

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        parameters = dict(zip(self.names, self.values, strict=True))
        value: Tensor = torch.func.functional_call(self.cost, parameters, (x, y))
        return value


class _TransposedCost(nn.Module):
    """Cost function with its two arguments exchanged."""

    def __init__(self, cost: CostFunction) -> None:
        super().__init__()
        self.cost = cost

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.cost(y, x).T


@accept_deprecated_keywords(cost_scale="cost_unit")
@dataclass(frozen=True, eq=False)
class MatrixLogKernel(LogKernel):
    """Log-kernel link(T), given as an (N, M) matrix T of logits over temperature."""

    matrix: Tensor
    link: Link | None = None
    temperature: float | Tensor = 1.0
    cost_unit: float | Tensor = 1.0

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return (self.matrix,)

    def to_custom_op_input(self) -> MatrixLogKernel:
        return MatrixLogKernel(self.matrix, self.link)

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[0], self.matrix.shape[1]

    @property
    def T(self) -> MatrixLogKernel:
        return replace(self, matrix=self.matrix.T)

    def take_rows(self, rows: slice) -> Self:
        return replace(self, matrix=self.matrix[rows])

    def with_link(self, link: Link | None, *, factor: float | Tensor = 1.0, row_shift: Tensor | None = None) -> Self:
        matrix = self.matrix * factor
        matrix = matrix if row_shift is None else matrix + row_shift[:, None]
        return replace(self, link=link, matrix=matrix, cost_unit=self.cost_unit / factor)

    def gather_entries(self, rows: Tensor, columns: Tensor) -> Tensor:
        return self._apply_link(self.matrix[rows, columns])

    def dense(self) -> Tensor:
        return self._apply_link(self.matrix)

    def tile_with_link_input(self, rows: slice, columns: slice, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        t = self.matrix.detach()[rows, columns].clone()
        return self._apply_link(t), t

    def add_tile_gradients(self, rows: slice, columns: slice, weight: Tensor, input_grads: list[Tensor | None]) -> None:
        if input_grads[0] is not None:
            input_grads[0][rows, columns] += weight
