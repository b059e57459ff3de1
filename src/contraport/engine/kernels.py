"""Kernels: how alike two embeddings are.

Every built-in kernel has one normal form. Its logarithm is a pointwise link h of an affine function of the inner
product::

    log K_ij = h(T_ij),    T_ij = <x_i, y_j> + r_i + c_j

so that the passes over all pairs know one matrix product and nothing of costs or temperatures: scaling, normalising and
squared norms happen once per embedding, in plain autograd, and the temperature receives its exact gradient through
them. A cost that is a callable has no such form; its tiles are recomputed and differentiated one by one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

from contraport.errors import UsageError, check, check_positive, unknown_name

Cost: TypeAlias = Callable[[Tensor, Tensor], Tensor]

COLDEST = 0.01
"""The lowest temperature that a learnable temperature may reach (a scale of 100, as in CLIP)."""


class Link(Protocol):
    """A pointwise function of T and its derivative; both take and return tensors of one shape."""

    def value(self, t: Tensor) -> Tensor:
        """Return h(T)."""

    def derivative(self, t: Tensor) -> Tensor:
        """Return h'(T)."""


class Weight(Protocol):
    """A linear functional of an (N, M) matrix, in whatever form is cheap to sum against."""

    def apply(self, y: Tensor) -> Tensor:
        """Return the weight times y: (M, d) to (N, d)."""

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Return the sums of its rows, (N,), and of its columns, (M,)."""

    def dense(self) -> Tensor:
        """Return it as an (N, M) tensor."""


class LogKernel(ABC):
    """log K between N rows and M columns, evaluated where it is asked for and never as a whole unless it is asked to.

    Attributes:
        inputs: the tensors that it depends on; gradients are returned in this order.
        temperature: the temperature of the kernel, a number or a tensor without dimensions.
        shape: (N, M).
    """

    inputs: tuple[Tensor, ...]
    temperature: float | Tensor
    shape: tuple[int, int]

    @property
    @abstractmethod
    def T(self) -> LogKernel:
        """The same kernel with rows and columns exchanged."""

    @abstractmethod
    def at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return log K at the given entries: two index tensors of shape (k,) to a tensor of shape (k,)."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return log K as an (N, M) tensor, differentiable by plain autograd."""

    def inner(self, weight: Weight) -> Tensor:
        """Return sum_ij weight_ij log K_ij, differentiable; no pass over the pairs where the kernel allows it."""
        return (weight.dense() * self.dense()).sum()

    @abstractmethod
    def tile(self, rows: slice, columns: slice) -> tuple[Tensor, object]:
        """Return log K on a tile (a fresh tensor that the caller may overwrite) and what `pull` needs to know of it."""

    @abstractmethod
    def pull(self, rows: slice, columns: slice, memory: object, weight: Tensor, gradients: list[Tensor | None]) -> None:
        """Add the gradient of sum(weight * log K on the tile) to `gradients`, which is aligned with `inputs`.

        The weight may be overwritten. Inputs whose gradient is None are not wanted.
        """


class AffineLogKernel(LogKernel):
    """log K_ij = h(<x_i, y_j> + r_i + c_j); see the module's first lines.

    Args:
        x: (N, d).
        y: (M, d). The same tensor as x where rows and columns are the same embeddings.
        row_bias: r, (N,).
        column_bias: c, (M,).
        link: h; None is the identity.
        temperature: the temperature that x, y, r and c already hold.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        row_bias: Tensor,
        column_bias: Tensor,
        link: Link | None,
        temperature: float | Tensor,
    ) -> None:
        self.x, self.y, self.row_bias, self.column_bias, self.link = x, y, row_bias, column_bias, link
        self.inputs = (x, y, row_bias, column_bias)
        self.temperature = temperature
        self.shape = (x.shape[0], y.shape[0])

    @property
    def T(self) -> AffineLogKernel:
        return AffineLogKernel(self.y, self.x, self.column_bias, self.row_bias, self.link, self.temperature)

    def _linked(self, t: Tensor) -> Tensor:
        return t if self.link is None else self.link.value(t)

    def at(self, rows: Tensor, columns: Tensor) -> Tensor:
        inner = (self.x[rows] * self.y[columns]).sum(-1)
        return self._linked(inner + self.row_bias[rows] + self.column_bias[columns])

    def dense(self) -> Tensor:
        return self._linked(self.x @ self.y.T + self.row_bias[:, None] + self.column_bias)

    def inner(self, weight: Weight) -> Tensor:
        if self.link is not None:
            return super().inner(weight)
        a, b = weight.marginals()
        return (self.x * weight.apply(self.y)).sum() + a @ self.row_bias + b @ self.column_bias

    def tile(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor | None]:
        x, y, row_bias, column_bias = (v.detach() for v in self.inputs)
        t = torch.addmm(column_bias[columns], x[rows], y[columns].T).add_(row_bias[rows, None])
        return (t, None) if self.link is None else (self.link.value(t), t)

    def pull(self, rows: slice, columns: slice, memory: object, weight: Tensor, gradients: list[Tensor | None]) -> None:
        if self.link is not None:
            assert isinstance(memory, Tensor)
            weight.mul_(self.link.derivative(memory))
        x, y, row_bias, column_bias = gradients
        if x is not None:
            x[rows].addmm_(weight, self.y.detach()[columns])
        if y is not None:
            y[columns].addmm_(weight.T, self.x.detach()[rows])
        if row_bias is not None:
            row_bias[rows] += weight.sum(1)
        if column_bias is not None:
            column_bias[columns] += weight.sum(0)


class CallableLogKernel(LogKernel):
    """log K = -cost(x, y) / temperature for any differentiable cost; slower, and still tile by tile.

    The parameters of a cost that is a module are inputs too and receive their gradient.
    """

    def __init__(self, cost: Cost, x: Tensor, y: Tensor, temperature: float | Tensor) -> None:
        parameters = tuple(cost.parameters()) if isinstance(cost, nn.Module) else ()
        scale = (temperature,) if isinstance(temperature, Tensor) else ()
        self.cost, self.x, self.y = cost, x, y
        self.inputs = (x, y, *scale, *parameters)
        self.temperature = temperature
        self.shape = (x.shape[0], y.shape[0])

    @property
    def T(self) -> CallableLogKernel:
        cost = self.cost
        flipped = cost.cost if isinstance(cost, _Flipped) else _Flipped(cost)
        return CallableLogKernel(flipped, self.y, self.x, self.temperature)

    def _evaluate(self, x: Tensor, y: Tensor) -> Tensor:
        value = self.cost(x, y)
        expected = (x.shape[0], y.shape[0])
        if value.shape != expected:
            raise UsageError(f"cost: expected a callable that returns shape {expected}, got {tuple(value.shape)}.")
        return -value / self.temperature

    def at(self, rows: Tensor, columns: Tensor) -> Tensor:
        def one(x: Tensor, y: Tensor) -> Tensor:
            return self._evaluate(x[None], y[None])[0, 0]

        return torch.func.vmap(one)(self.x[rows], self.y[columns])

    def dense(self) -> Tensor:
        return self._evaluate(self.x, self.y)

    def tile(self, rows: slice, columns: slice) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        with torch.enable_grad():
            x, y = (v.detach()[s].requires_grad_() for v, s in ((self.x, rows), (self.y, columns)))
            value = self._evaluate(x, y)
        return value.detach().clone(), (x, y, value)

    def pull(self, rows: slice, columns: slice, memory: object, weight: Tensor, gradients: list[Tensor | None]) -> None:
        assert isinstance(memory, tuple)
        x, y, value = memory
        wanted = [(v, g) for v, g in zip(self.inputs[2:], gradients[2:], strict=True) if g is not None]
        local = torch.autograd.grad(
            value, [x, y, *(v for v, _ in wanted)], weight, allow_unused=True, retain_graph=True
        )
        slots = [g[s] if g is not None else None for g, s in zip(gradients[:2], (rows, columns), strict=True)]
        for slot, gradient in zip([*slots, *(g for _, g in wanted)], local, strict=True):
            if slot is not None and gradient is not None:
                slot += gradient


class _Flipped(nn.Module):
    """A cost with its two arguments exchanged."""

    def __init__(self, cost: Cost) -> None:
        super().__init__()
        self.cost = cost

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.cost(y, x).T


class Kernel(nn.Module, ABC):
    """A positive function of two embeddings with a temperature; call it on (N, d) and (M, d) to get a `LogKernel`."""

    def __init__(self, temperature: float, *, learnable: bool) -> None:
        super().__init__()
        check_positive("temperature", temperature)
        self._fixed = float(temperature)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature))) if learnable else None

    @property
    def temperature(self) -> float:
        """The temperature as a number; assign to it to change it, between steps, on a schedule."""
        return self._fixed if self.log_temperature is None else math.exp(self.log_temperature.item())

    @temperature.setter
    def temperature(self, value: float) -> None:
        check_positive("temperature", value)
        self._fixed = float(value)
        if self.log_temperature is not None:
            with torch.no_grad():
                self.log_temperature.fill_(math.log(value))

    def _scale(self) -> float | Tensor:
        """Return the temperature as it enters the computation: a tensor with a gradient if it is learnable."""
        if self.log_temperature is None:
            return self._fixed
        with torch.no_grad():  # a projection, not a clamp in the graph: at the bound the gradient still leads back up
            self.log_temperature.clamp_(min=math.log(COLDEST))
        return self.log_temperature.exp()

    def forward(self, x: Tensor, y: Tensor) -> LogKernel:
        """Return log K between the rows x (N, d) and the columns y (M, d), in at least single precision."""
        with torch.autocast(x.device.type, enabled=False):
            same = x is y
            x = x if x.dtype == torch.float64 else x.float()
            y = x if same else y if y.dtype == torch.float64 else y.float()
            return self._log_kernel(x, y)

    @abstractmethod
    def _log_kernel(self, x: Tensor, y: Tensor) -> LogKernel: ...


class Gibbs(Kernel):
    """The Gibbs kernel, log K_ij = -C_ij / temperature.

    Args:
        cost: ``"cosine"`` 1 - cos, ``"sqeuclidean"`` ||x - y||^2, ``"dot"`` -<x, y>, or a callable (a module, even with
            parameters) that maps (n, d) and (m, d) to (n, m).
        temperature: in units of the cost; the epsilon of entropic transport.
        learnable: whether the temperature is a parameter; it is then kept at 0.01 or above.

    Raises:
        UsageError: the temperature is not positive, or the cost has an unknown name.

    Source: Cuturi (2013), eq. 2; with the cosine cost, the exponential of SimCLR's scaled similarity.

    >>> import torch
    >>> x = torch.eye(2)
    >>> Gibbs("cosine", temperature=0.5)(x, x).dense().exp()
    tensor([[1.0000, 0.1353],
            [0.1353, 1.0000]])
    """

    def __init__(self, cost: str | Cost = "cosine", temperature: float = 0.5, *, learnable: bool = False) -> None:
        super().__init__(temperature, learnable=learnable)
        if isinstance(cost, str) and cost not in _AFFINE:
            raise unknown_name("cost", cost, _AFFINE)
        check(isinstance(cost, str) or callable(cost), f"cost: expected a name or a callable, got {cost!r}.")
        self.cost = cost

    def _log_kernel(self, x: Tensor, y: Tensor) -> LogKernel:
        temperature = self._scale()
        if isinstance(self.cost, str):
            return _AFFINE[self.cost](x, y, temperature)
        return CallableLogKernel(self.cost, x, y, temperature)

    def __repr__(self) -> str:
        return f"Gibbs({self.cost!r}, {self.temperature:g}{_learnable(self)})"


class StudentT(Kernel):
    """Student's t-kernel, log K_ij = -(df + 1)/2 log(1 + ||x_i - y_j||^2 / (temperature df)).

    Its tails are heavy, so that embeddings that are only fairly alike may stay apart; df -> infinity is a Gibbs kernel
    of the squared distance. It takes embeddings as they come: they are not normalised.

    Args:
        df: degrees of freedom; 1 is the kernel of t-SNE.
        temperature: in units of the squared distance.
        learnable: whether the temperature is a parameter; it is then kept at 0.01 or above.

    Raises:
        UsageError: df or temperature is not positive.

    Source: van der Maaten and Hinton (2008), eq. 4; Hu et al. (2023), t-SimCLR.

    >>> import torch
    >>> x = torch.eye(2)
    >>> StudentT(df=1)(x, x).dense().exp()
    tensor([[1.0000, 0.3333],
            [0.3333, 1.0000]])
    """

    def __init__(self, df: float = 1.0, temperature: float = 1.0, *, learnable: bool = False) -> None:
        super().__init__(temperature, learnable=learnable)
        check_positive("df", df)
        self.df = df

    def _log_kernel(self, x: Tensor, y: Tensor) -> LogKernel:
        temperature = self._scale()
        t = _sqeuclidean(x, y, temperature * self.df)
        return AffineLogKernel(t.x, t.y, t.row_bias, t.column_bias, _StudentLink(self.df), temperature)

    def __repr__(self) -> str:
        return f"StudentT({self.df:g}, {self.temperature:g}{_learnable(self)})"


class _StudentLink:
    """h(T) = -(df + 1)/2 log(1 - T), T = minus a squared distance, which rounding may leave a hair above zero."""

    def __init__(self, df: float) -> None:
        self.exponent = (df + 1) / 2

    def value(self, t: Tensor) -> Tensor:
        return -self.exponent * torch.log1p((-t).clamp_min(0))

    def derivative(self, t: Tensor) -> Tensor:
        return self.exponent / (1 + (-t).clamp_min(0))


def normalize(z: Tensor) -> Tensor:
    """Return the rows of z, (n, d), at unit length; a zero row has no direction, stays zero and gets no gradient."""
    squared = z.square().sum(-1, keepdim=True)
    zero = squared == 0
    return z * torch.where(zero, 0, torch.where(zero, 1, squared).rsqrt())


def _both(prepare: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Prepare x and y, once if they are one tensor: by that identity a symmetric problem is known."""
    first = prepare(x)
    return first, first if y is x else prepare(y)


def _dot(x: Tensor, y: Tensor, temperature: float | Tensor) -> AffineLogKernel:
    x, y = _both(lambda z: z / temperature**0.5, x, y)
    row, column = _both(lambda z: z.new_zeros(len(z)), x, y)
    return AffineLogKernel(x, y, row, column, None, temperature)


def _cosine(x: Tensor, y: Tensor, temperature: float | Tensor) -> AffineLogKernel:
    x, y = _both(lambda z: normalize(z) / temperature**0.5, x, y)
    row, column = _both(lambda z: z.new_ones(len(z)) * (-0.5 / temperature), x, y)
    return AffineLogKernel(x, y, row, column, None, temperature)


def _sqeuclidean(x: Tensor, y: Tensor, temperature: float | Tensor) -> AffineLogKernel:
    # Distances do not change when all points move together, and near the origin the expansion of the square cancels
    # less.
    centre = x.detach().mean(0) if len(x) else 0
    x, y = _both(lambda z: (z - centre) * (2 / temperature) ** 0.5, x, y)
    row, column = _both(lambda z: -z.square().sum(-1) / 2, x, y)
    return AffineLogKernel(x, y, row, column, None, temperature)


_AFFINE = {"cosine": _cosine, "dot": _dot, "sqeuclidean": _sqeuclidean}


def _learnable(kernel: Kernel) -> str:
    return "" if kernel.log_temperature is None else ", learnable=True"
