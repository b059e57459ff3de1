"""Kernels: how alike two embeddings are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from contraport.distributed import world
from contraport.engine.constants import constant
from contraport.engine.links import LogDecay, PowerDecay
from contraport.engine.log_kernels import AffineLogKernel, CallableLogKernel, CostFunction, LogKernel
from contraport.errors import check, check_positive, unknown_name

COLDEST = 0.01
"""The lowest temperature that a learnable temperature may reach (a scale of 100, as in CLIP)."""


class Kernel(nn.Module, ABC):
    """A positive function of two embeddings with a temperature; call it on (N, d) and (M, d) to get a `LogKernel`."""

    def __init__(self, cost: str | CostFunction, temperature: float, *, learnable: bool) -> None:
        super().__init__()
        check_positive("temperature", temperature)
        if isinstance(cost, str) and cost not in _SIDES:
            raise unknown_name("cost", cost, _SIDES)
        check(isinstance(cost, str) or callable(cost), f"cost: expected a name or a callable, got {cost!r}.")
        self.cost = cost
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
        return world().shared(self.log_temperature.exp())

    def forward(self, x: Tensor, y: Tensor) -> LogKernel:
        """Return log K between the rows x (N, d) and the columns y (M, d), in at least single precision."""
        with torch.autocast(x.device.type, enabled=False):
            same = x is y
            if x.dtype != y.dtype or x.dtype not in (torch.float32, torch.float64):
                dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
                x, y = x.to(dtype), y.to(dtype)
            return self._log_kernel(x, x if same else y, self._scale())

    @abstractmethod
    def _log_kernel(self, x: Tensor, y: Tensor, temperature: float | Tensor) -> LogKernel: ...

    def _over_cost(self, x: Tensor, y: Tensor, unit: float | Tensor, temperature: float | Tensor) -> LogKernel:
        """Return T = -cost / unit as a log-kernel without a link; x and y that are one tensor stay one tensor."""
        if not isinstance(self.cost, str):
            return CallableLogKernel(self.cost, x, y, temperature)
        if self.cost == "sqeuclidean":
            # Distances do not change when all points move together, and near the origin less cancels in the square.
            centre = x.detach().mean(0)
            x, y = (x - centre, y - centre) if x is not y else (x - centre,) * 2
        same = x is y
        rows = _SIDES[self.cost](x, unit)
        columns = rows if same else _SIDES[self.cost](y, unit)
        (x, row_bias), (y, column_bias) = rows, columns
        level = row_bias + column_bias if isinstance(row_bias, float) and isinstance(column_bias, float) else None
        r = _vector(row_bias, x)
        c = r if same else _vector(column_bias, y)
        return AffineLogKernel(x, y, r, c, temperature, unit, level=level)

    def _written(self) -> str:
        """Return the temperature as written; a learned one has the digits of single precision."""
        return repr(self._fixed if self.log_temperature is None else float(f"{self.temperature:.6g}"))

    def _learnable(self) -> str:
        return "" if self.log_temperature is None else ", learnable=True"


class Gibbs(Kernel):
    """The Gibbs kernel, log K_ij = -C_ij^power / temperature.

    Args:
        cost: ``"cosine"`` 1 - cos; ``"negative-cosine"`` -cos; ``"chordal"`` 2 - 2 cos, the squared distance on the
            sphere; ``"sqeuclidean"`` ||x - y||^2; ``"dot"`` -<x, y>; or a callable (a module, even with parameters)
            that maps (n, d) and (m, d) to (n, m).
        temperature: in units of the powered cost; the epsilon of entropic transport.
        power: exponent of the cost, for costs that are distances.
        learnable: whether the temperature is a parameter; it is then kept at 0.01 or above.

    Raises:
        UsageError: temperature or power is not positive, the cost has an unknown name, or a power other than 1 is asked
            of a cost that may be negative.

    Source: Cuturi (2013), eq. 2; with the cosine cost, the exponential of SimCLR's scaled similarity.

    >>> import torch
    >>> x = torch.eye(2)
    >>> Gibbs("cosine", temperature=0.5)(x, x).dense().exp()
    tensor([[1.0000, 0.1353],
            [0.1353, 1.0000]])
    """

    def __init__(
        self,
        cost: str | CostFunction = "cosine",
        temperature: float = 0.5,
        *,
        power: float = 1.0,
        learnable: bool = False,
    ) -> None:
        super().__init__(cost, temperature, learnable=learnable)
        check_positive("power", power)
        good = power == 1 or cost in _DISTANCES
        check(good, f"power: expected 1 for the cost {cost!r}; other powers need one of {', '.join(_DISTANCES)}.")
        self.power = power

    def _log_kernel(self, x: Tensor, y: Tensor, temperature: float | Tensor) -> LogKernel:
        kernel = self._over_cost(x, y, temperature ** (1 / self.power), temperature)
        return kernel if self.power == 1 else kernel.with_link(PowerDecay(self.power))

    def __repr__(self) -> str:
        power = "" if self.power == 1 else f", power={self.power!r}"
        return f"Gibbs({self.cost!r}, {self._written()}{power}{self._learnable()})"


class RationalQuadratic(Kernel):
    """The rational quadratic kernel, log K_ij = -power log(1 + C_ij / temperature): polynomial tails.

    Args:
        cost: ``"cosine"``, ``"chordal"`` or ``"sqeuclidean"``, as in `Gibbs`.
        temperature: in units of the cost.
        power: exponent of the tails, nonnegative; 0 weighs all pairs alike.
        learnable: whether the temperature is a parameter; it is then kept at 0.01 or above.

    Raises:
        UsageError: the temperature is not positive, the power negative, or the cost not one of the three.

    Source: the plan of alpha-CL's inverse regulariser, (C + temperature)^(-1/gamma), up to a factor; Tian (2022).

    >>> import torch
    >>> x = torch.eye(2)
    >>> RationalQuadratic("cosine", temperature=1.0, power=1.0)(x, x).dense().exp()
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """

    def __init__(
        self,
        cost: str = "sqeuclidean",
        temperature: float = 1.0,
        *,
        power: float = 1.0,
        learnable: bool = False,
    ) -> None:
        if cost not in _DISTANCES:
            raise unknown_name("cost", cost, _DISTANCES)
        super().__init__(cost, temperature, learnable=learnable)
        check(power >= 0, f"power: expected a nonnegative number, got {power!r}.")
        self.power = power

    def _log_kernel(self, x: Tensor, y: Tensor, temperature: float | Tensor) -> LogKernel:
        return self._over_cost(x, y, temperature, temperature).with_link(LogDecay(self.power))

    def __repr__(self) -> str:
        return f"RationalQuadratic({self.cost!r}, {self._written()}, power={self.power!r}{self._learnable()})"


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
        super().__init__("sqeuclidean", temperature, learnable=learnable)
        check_positive("df", df)
        self.df = df

    def _log_kernel(self, x: Tensor, y: Tensor, temperature: float | Tensor) -> LogKernel:
        return self._over_cost(x, y, temperature * self.df, temperature).with_link(LogDecay((self.df + 1) / 2))

    def __repr__(self) -> str:
        return f"StudentT({self.df!r}, {self._written()}{self._learnable()})"


class Bilinear(nn.Module):
    """The learned cost C_ij = -<x_i, W y_j>: how well each feature of a row goes with each feature of a column.

    As the cost of a `Gibbs` kernel it is the bilinear critic; W starts at zero.

    Args:
        row_features: p.
        column_features: q.

    >>> import torch
    >>> Bilinear(2, 3)(torch.ones(4, 2), torch.ones(5, 3)).shape
    torch.Size([4, 5])
    """

    def __init__(self, row_features: int, column_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(row_features, column_features))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cost, (n, m), between x (n, p) and y (m, q)."""
        return -x @ self.weight @ y.T


def normalize(z: Tensor) -> Tensor:
    """Return the rows of z, (n, d), at unit length; a zero row has no direction, stays zero and gets no gradient.

    A row is first brought to a largest entry of 1, so that lengths of any size the numbers can have neither overflow
    nor vanish, in the value or in the gradient.
    """
    unit, length = _directions(z)
    return unit / length


def _directions(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows in units of their largest entry, (n, d), and their length in these units, (n, 1)."""
    largest = torch.linalg.vector_norm(z.detach(), torch.inf, 1, keepdim=True)
    zero = largest < torch.finfo(z.dtype).tiny
    units = z / largest.masked_fill(zero, torch.inf)
    return units, torch.linalg.vector_norm(units, dim=1, keepdim=True) + zero


Bias: TypeAlias = Tensor | float
"""The bias of each embedding, (n,), or of all of them."""

Side: TypeAlias = tuple[Tensor, Bias]
"""What a cost makes of one side's embeddings in T = <x, y> + r + c: the embeddings and their bias, in some unit."""


def _vector(bias: Bias, z: Tensor) -> Tensor:
    """Return the bias of each embedding."""
    if isinstance(bias, Tensor):
        return bias.expand(len(z))
    return constant(len(z), bias, z)


def _dot(z: Tensor, unit: float | Tensor) -> Side:
    return z / unit**0.5, 0.0


def _negative_cosine(z: Tensor, unit: float | Tensor) -> Side:
    units, length = _directions(z)
    return units / (length * unit**0.5), 0.0


def _cosine(z: Tensor, unit: float | Tensor) -> Side:
    z, _ = _negative_cosine(z, unit)
    return z, -0.5 / unit


def _chordal(z: Tensor, unit: float | Tensor) -> Side:
    return _cosine(z, unit / 2)


def _sqeuclidean(z: Tensor, unit: float | Tensor) -> Side:
    z = z * (2 / unit) ** 0.5
    return z, -z.square().sum(-1) / 2


_SIDES: dict[str, Callable[[Tensor, float | Tensor], Side]] = {
    "cosine": _cosine,
    "negative-cosine": _negative_cosine,
    "chordal": _chordal,
    "dot": _dot,
    "sqeuclidean": _sqeuclidean,
}

_DISTANCES = ("cosine", "chordal", "sqeuclidean")
