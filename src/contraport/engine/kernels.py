"""Kernels: how alike two embeddings are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from contraport.distributed import world
from contraport.engine.autograd import disable_autocast_in_backward, is_in_torch_func, without_autocast
from contraport.engine.learned_numbers import parameter_value, scalar_parameter
from contraport.engine.links import LogDecay, PowerDecay
from contraport.engine.log_kernels import AffineLogKernel, CallableLogKernel, CostFunction, LogKernel, MatrixLogKernel
from contraport.engine.tensor_cache import constant
from contraport.errors import UsageError, check, check_nonnegative, check_positive, unknown_name_error

MIN_LEARNED_TEMPERATURE = 0.01
"""The lowest temperature that a learnable temperature may reach (a scale of 100, as in CLIP)."""


class LearnedTemperature(float):
    """A temperature that is learned from this value on."""


TemperatureLike: TypeAlias = float | Tensor | Literal["learn"]
"""A temperature as a kernel takes it: a number, a tensor that a model owns, or one that is learned from here on."""

START = 0.5
"""Where a temperature starts that is only said to be learned."""

CostIn: TypeAlias = Callable[[float | Tensor], LogKernel]
"""Gives T = -cost / unit, for a unit, as a log-kernel without a link."""


class Kernel(nn.Module, ABC):
    """A positive function of two embeddings with a temperature; call it on (N, d) and (M, d) to get a `LogKernel`.

    A subclass says in `log_kernel` what it makes of the cost.

    Args:
        cost: a name or a callable.
        temperature: a number; ``"learn"``, a parameter that starts at 0.5, or `Learned` of another start; or a tensor
            of one element, such as a parameter of the model, which is read in each call, gets its gradient, and stays
            the model's: it is no parameter of this module, and whoever owns it keeps it positive.
        learnable: whether a number is where a parameter starts; a tensor is learned by its owner.

    Raises:
        UsageError: the temperature is not positive, or is a tensor that comes from others by a computation.
    """

    def __init__(self, cost: str | CostFunction, temperature: TemperatureLike, *, learnable: bool) -> None:
        super().__init__()
        temperature = LearnedTemperature(_number_of(temperature)) if isinstance(temperature, str) else temperature
        if isinstance(cost, str) and cost not in _SIDES:
            raise unknown_name_error("cost", cost, _SIDES)
        check(isinstance(cost, str) or callable(cost), f"cost: expected a name or a callable, got {cost!r}.")
        self.cost = cost
        number = _number_of(temperature)
        # In a tuple, as a module would take a parameter for its own.
        self._owned: tuple[Tensor] | None = (temperature,) if isinstance(temperature, Tensor) else None
        if isinstance(temperature, Tensor):
            check(
                temperature.is_leaf,
                "temperature: this tensor is computed from others, once; expected a parameter, whose value is read in "
                "each call, or temperature= in the call.",
            )
        self._fixed = number
        learned = self._owned is None and (learnable or isinstance(temperature, LearnedTemperature))
        check(not learned or number >= MIN_LEARNED_TEMPERATURE, _too_cold(number))
        self.log_temperature = scalar_parameter(self, math.log(number)) if learned else None

    @property
    def learns(self) -> bool:
        """Whether the temperature is to have a gradient."""
        return self.log_temperature is not None or (self._owned is not None and self._owned[0].requires_grad)

    @property
    def temperature(self) -> float:
        """The temperature as a number; assign to it to change it, between steps, on a schedule.

        Raises:
            UsageError: on assignment, the temperature is a tensor that another owns.
        """
        if self._owned is not None:
            return self._owned[0].item()
        return self._fixed if self.log_temperature is None else math.exp(parameter_value(self.log_temperature))

    @temperature.setter
    def temperature(self, value: float) -> None:
        check_positive("temperature", value)
        check(self._owned is None, "temperature: it is a tensor that another owns; expected a change of its value.")
        check(self.log_temperature is None or value >= MIN_LEARNED_TEMPERATURE, _too_cold(value))
        self._fixed = float(value)
        if self.log_temperature is not None:
            with torch.no_grad():
                self.log_temperature.fill_(math.log(value))

    def _own_temperature(self) -> float | Tensor:
        """Return the temperature as it enters the computation: a tensor with a gradient if it is learnable."""
        if self._owned is not None:
            return world().as_replicated(_checked(self._owned[0]).reshape(()))
        if self.log_temperature is None:
            return self._fixed
        coldest = math.log(MIN_LEARNED_TEMPERATURE)
        # A projection, not a clamp in the graph: at the bound the gradient still leads back up.
        if is_in_torch_func():
            learned = self.log_temperature.reshape(())
            return (learned + (learned.clamp_min(coldest) - learned).detach()).exp()
        with torch.no_grad():
            self.log_temperature.clamp_(min=coldest)
        return world().as_replicated(self.log_temperature.reshape(()).exp())

    def _temperature_in(self, dtype: torch.dtype, given: float | Tensor | None) -> float | Tensor:
        """Return the temperature of a call, its own or the one given, in the precision of the embeddings."""
        if given is None:
            given = self._own_temperature()
        elif isinstance(given, Tensor):
            given = _checked(given)
        return given.to(dtype) if isinstance(given, Tensor) else given

    def forward(self, x: Tensor, y: Tensor, temperature: float | Tensor | None = None) -> LogKernel:
        """Return log K between the rows x (N, d) and the columns y (M, d), in at least single precision.

        Args:
            x: rows.
            y: columns.
            temperature: in this call, instead of the kernel's own: a number, or a tensor without dimensions.

        Raises:
            UsageError: a temperature that is a tensor on the CPU is not positive.
        """
        with without_autocast(x):
            same = x is y
            if x.dtype != y.dtype or x.dtype not in (torch.float32, torch.float64):
                dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
                x, y = x.to(dtype), y.to(dtype)
            tau, sides = self._temperature_in(x.dtype, temperature), (x, x if same else y)
            return self.log_kernel(lambda unit: self._negative_cost(*sides, unit, tau), tau)

    def from_similarities(self, similarities: Tensor, temperature: float | Tensor | None = None) -> LogKernel:
        """Return log K of similarities, (N, M), in place of those of embeddings: cosines, or inner products.

        Args:
            similarities: cosines for the costs that are made of them, inner products for ``"dot"``.
            temperature: as in `forward`.

        Raises:
            UsageError: the cost is no function of the similarity alone.
        """
        if not isinstance(self.cost, str) or self.cost not in _OF_SIMILARITY:
            raise UsageError(
                f"similarities: the cost {self.cost!r} is no function of a similarity alone; expected embeddings, or "
                f"one of {', '.join(_OF_SIMILARITY)}."
            )
        factor, offset = _OF_SIMILARITY[self.cost]
        similarities = similarities.to(torch.promote_types(similarities.dtype, torch.float32))
        matrix, tau = factor * similarities - offset, self._temperature_in(similarities.dtype, temperature)
        return self.log_kernel(lambda unit: MatrixLogKernel(matrix / unit, temperature=tau, unit=unit), tau)

    @abstractmethod
    def log_kernel(self, cost_in: CostIn, temperature: float | Tensor) -> LogKernel:
        """Return log K of the cost of a call.

        Args:
            cost_in: gives minus the cost in a unit.
            temperature: of the call.
        """

    def _negative_cost(self, x: Tensor, y: Tensor, unit: float | Tensor, temperature: float | Tensor) -> LogKernel:
        """Return T = -cost / unit as a log-kernel without a link; x and y that are one tensor stay one tensor."""
        if not isinstance(self.cost, str):
            return CallableLogKernel(self.cost, x, y, temperature)
        if self.cost == "sqeuclidean":
            # Distances do not change when all points move together, and near the origin less cancels in the square.
            centre = x.detach().mean(0)
            x, y = (x - centre, y - centre) if x is not y else (x - centre,) * 2
        rows = _SIDES[self.cost](x, unit)
        columns = rows if x is y else _SIDES[self.cost](y, unit)
        r = rows.biases()
        c = r if x is y else columns.biases()
        bias_sum = None if isinstance(rows.bias, Tensor) else 2 * rows.bias
        return AffineLogKernel(
            rows.z,
            columns.z,
            r,
            c,
            temperature,
            unit,
            bias_sum=bias_sum,
            max_product=rows.square,
            cost_is_distance=self.cost in _DISTANCES,
        )

    def _written(self) -> str:
        """Return the temperature as written; one that is a tensor has the digits of single precision."""
        fixed = self.log_temperature is None and self._owned is None
        return repr(self._fixed if fixed else float(f"{self.temperature:.6g}"))

    def _learnable(self) -> str:
        return ", learnable=True" if self.learns else ""


def _number_of(temperature: TemperatureLike) -> float:
    """Return a temperature as a number.

    Raises:
        UsageError: it is not positive, or a tensor of more than one element.
    """
    if isinstance(temperature, str):
        good = temperature == "learn"
        check(good, f"temperature: expected a number, 'learn' or a tensor of one element, got {temperature!r}.")
        return START
    if not isinstance(temperature, Tensor):
        check_positive("temperature", temperature)
        return float(temperature)
    one = temperature.numel() == 1 and temperature.is_floating_point()
    got = f"{temperature.dtype} of shape {tuple(temperature.shape)}"
    check(one, f"temperature: expected a number, or a floating point tensor of one element, got {got}.")
    check_positive("temperature", temperature.item())
    return temperature.item()


def _too_cold(temperature: float) -> str:
    return f"temperature: one that is learned is kept at {MIN_LEARNED_TEMPERATURE} or above; got {temperature!r}."


def _checked(temperature: Tensor) -> Tensor:
    """Return a temperature whose value another decides.

    On another device than the CPU it is not looked at, as each look would wait for the device: one that is not
    positive gives NaN there.

    Raises:
        UsageError: it is not positive.
    """
    if temperature.device.type == "cpu" and not torch.compiler.is_compiling() and not is_in_torch_func():
        check_positive("temperature", temperature.item())
    return temperature


class Gibbs(Kernel):
    """The Gibbs kernel, log K_ij = -C_ij^power / temperature.

    Args:
        cost: ``"cosine"`` 1 - cos; ``"negative-cosine"`` -cos; ``"chordal"`` 2 - 2 cos, the squared distance on the
            sphere; ``"sqeuclidean"`` ||x - y||^2; ``"dot"`` -<x, y>; or a callable (a module, even with parameters)
            that maps (n, d) and (m, d) to (n, m).
        temperature: in units of the powered cost; the epsilon of entropic transport; as in `Kernel`.
        power: exponent of the cost, for costs that are distances.
        learnable: whether the temperature is a parameter of the kernel; it is then kept at 0.01 or above.

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
        temperature: TemperatureLike = 0.5,
        *,
        power: float = 1.0,
        learnable: bool = False,
    ) -> None:
        super().__init__(cost, temperature, learnable=learnable)
        check_positive("power", power)
        good = power == 1 or cost in _DISTANCES
        check(good, f"power: expected 1 for the cost {cost!r}; other powers need one of {', '.join(_DISTANCES)}.")
        self.power = power

    def log_kernel(self, cost_in: CostIn, temperature: float | Tensor) -> LogKernel:
        kernel = cost_in(temperature ** (1 / self.power))
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
        learnable: whether the temperature is a parameter of the kernel; it is then kept at 0.01 or above.

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
        temperature: TemperatureLike = 1.0,
        *,
        power: float = 1.0,
        learnable: bool = False,
    ) -> None:
        if cost not in _DISTANCES:
            raise unknown_name_error("cost", cost, _DISTANCES)
        super().__init__(cost, temperature, learnable=learnable)
        check_nonnegative("power", power)
        self.power = power

    def log_kernel(self, cost_in: CostIn, temperature: float | Tensor) -> LogKernel:
        return cost_in(temperature).with_link(LogDecay(self.power))

    def __repr__(self) -> str:
        return f"RationalQuadratic({self.cost!r}, {self._written()}, power={self.power!r}{self._learnable()})"


class StudentT(Kernel):
    """Student's t-kernel, log K_ij = -(df + 1)/2 log(1 + ||x_i - y_j||^2 / (temperature df)).

    Its tails are heavy, so that embeddings that are only fairly alike may stay apart; df -> infinity is a Gibbs kernel
    of the squared distance. It takes embeddings as they come: they are not normalised.

    Args:
        df: degrees of freedom; 1 is the kernel of t-SNE.
        temperature: in units of the squared distance.
        learnable: whether the temperature is a parameter of the kernel; it is then kept at 0.01 or above.

    Raises:
        UsageError: df or temperature is not positive.

    Source: van der Maaten and Hinton (2008), eq. 4; Hu et al. (2023), t-SimCLR.

    >>> import torch
    >>> x = torch.eye(2)
    >>> StudentT(df=1)(x, x).dense().exp()
    tensor([[1.0000, 0.3333],
            [0.3333, 1.0000]])
    """

    def __init__(self, df: float = 1.0, temperature: TemperatureLike = 1.0, *, learnable: bool = False) -> None:
        super().__init__("sqeuclidean", temperature, learnable=learnable)
        check_positive("df", df)
        self.df = df

    def log_kernel(self, cost_in: CostIn, temperature: float | Tensor) -> LogKernel:
        return cost_in(temperature * self.df).with_link(LogDecay((self.df + 1) / 2))

    def __repr__(self) -> str:
        return f"StudentT({self.df!r}, {self._written()}{self._learnable()})"


class BilinearCost(nn.Module):
    """The learned cost C_ij = -<x_i, W y_j>: how well each feature of a row goes with each feature of a column.

    As the cost of a `Gibbs` kernel it is the bilinear critic; W starts at zero.

    Args:
        row_features: p.
        column_features: q.

    >>> import torch
    >>> BilinearCost(2, 3)(torch.ones(4, 2), torch.ones(5, 3)).shape
    torch.Size([4, 5])
    """

    def __init__(self, row_features: int, column_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(row_features, column_features))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cost, (n, m), between x (n, p) and y (m, q)."""
        return disable_autocast_in_backward(disable_autocast_in_backward(-x @ self.weight) @ y.T)


def normalize(z: Tensor) -> Tensor:
    """Return the rows of z, (n, d), at unit length; a zero row has no direction, stays zero and gets no gradient.

    A row is first brought to a largest entry of 1, so that lengths of any size the numbers can have neither overflow
    nor vanish, in the value or in the gradient.
    """
    units, inverse = _directions(z)
    return units * inverse


def _directions(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows in units of their largest entry, (n, d), and the inverse of their length in these, (n, 1)."""
    largest = z.detach().abs().amax(1, keepdim=True)  # vector_norm(z, inf) takes twenty times as long
    zero = largest < torch.finfo(z.dtype).tiny
    units = z / largest.masked_fill(zero, torch.inf)
    return units, (units.square().sum(1, keepdim=True) + zero).rsqrt()


class _Side(NamedTuple):
    """What a cost makes of one side's embeddings in T = <x, y> + r + c, in some unit.

    Attributes:
        z: the embeddings, (n, d).
        bias: of each embedding, (n,), or of all of them.
        square: their squared length where all have one that is known beforehand, else infinity.
    """

    z: Tensor
    bias: Tensor | float
    square: float = math.inf

    def biases(self) -> Tensor:
        """Return the bias of each embedding, (n,)."""
        size = self.z.shape[0]
        return self.bias.expand(size) if isinstance(self.bias, Tensor) else constant(size, self.bias, self.z)


def _dot(z: Tensor, unit: float | Tensor) -> _Side:
    return _Side(z / unit**0.5, 0.0)


def _negative_cosine(z: Tensor, unit: float | Tensor) -> _Side:
    units, inverse = _directions(z)
    return _Side(units * (inverse * unit**-0.5), 0.0, math.inf if isinstance(unit, Tensor) else 1 / unit)


def _cosine(z: Tensor, unit: float | Tensor) -> _Side:
    units, _, square = _negative_cosine(z, unit)
    return _Side(units, -0.5 / unit, square)


def _chordal(z: Tensor, unit: float | Tensor) -> _Side:
    return _cosine(z, unit / 2)


def _sqeuclidean(z: Tensor, unit: float | Tensor) -> _Side:
    z = z * (2 / unit) ** 0.5
    return _Side(z, -z.square().sum(-1) / 2)


_SIDES: dict[str, Callable[[Tensor, float | Tensor], _Side]] = {
    "cosine": _cosine,
    "negative-cosine": _negative_cosine,
    "chordal": _chordal,
    "dot": _dot,
    "sqeuclidean": _sqeuclidean,
}

_OF_SIMILARITY: dict[str, tuple[float, float]] = {
    "cosine": (1.0, 1.0),
    "chordal": (2.0, 2.0),
    "negative-cosine": (1.0, 0.0),
    "dot": (1.0, 0.0),
}
"""Minus the cost as an affine function of the similarity s: factor s - offset."""

_DISTANCES = ("cosine", "chordal", "sqeuclidean")
