"""Kernels, which are positive similarities computed from a cost and a temperature."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport.distributed import Processes, current_processes
from contraport.engine.autograd_utilities import (
    autocast_disabled,
    differentiable_gradients,
    disable_autocast_in_grad_fn,
    is_in_torch_func,
)
from contraport.engine.constant_tensor_cache import constant_vector
from contraport.engine.kernel_link_functions import CostPowerLink, PolynomialTailLink
from contraport.engine.log_kernels import (
    CallableLogKernel,
    CostFunction,
    InnerProductLogKernel,
    LogKernel,
    MatrixLogKernel,
)
from contraport.errors import (
    UsageError,
    check,
    check_boolean,
    check_integer,
    check_name,
    check_nonnegative,
    check_positive,
    format_value,
    type_and_shape,
    unknown_name_error,
)

MIN_LEARNED_TEMPERATURE = 0.01
"""Lower bound of a learned temperature; its inverse is the logit scale of 100 of CLIP."""


class InitialTemperature(float):
    """Initial value of a temperature that is learned."""


TemperatureLike: TypeAlias = float | Tensor | Literal["learn"]
"""Temperature argument of a kernel: a number, a tensor that the caller owns, or ``"learn"``."""

CostUnitToLogKernel: TypeAlias = Callable[[float | Tensor], LogKernel]
"""Function of a unit u that returns T = -cost / u as a log-kernel without a link."""


class Kernel(nn.Module, ABC):
    """Base class of kernels, each a function of the cost between two embeddings.

    Embeddings are (N, d) for the rows and (M, d) for the columns. Subclasses define `log_kernel`, the kernel as a
    function of the cost.

    Args:
        cost: a name or a callable.
        temperature: a number; ``"learn"``, a parameter with the initial value 0.5, or `InitialTemperature` of another
            initial value; or a tensor of one element, such as a parameter of the model. A tensor is read in each call
            and gets its gradient, but it stays the caller's: it is no parameter of this module, and the caller keeps it
            positive.
        learnable: whether a number is the initial value of a parameter.

    Attributes:
        compares_sets: Whether an item is a set of vectors, (N, t, d) for N items, rather than one vector.

    Raises:
        UsageError: the temperature is not positive, or is a tensor computed from other tensors.
    """

    compares_sets: ClassVar[bool] = False

    def __init__(self, cost: str | CostFunction, temperature: TemperatureLike, *, learnable: bool) -> None:
        super().__init__()
        if isinstance(temperature, str):
            temperature = InitialTemperature(_get_initial_temperature(temperature))
        check_boolean("learnable", learnable)
        if isinstance(cost, str) and cost not in _SCALING_FUNCTION_BY_COST:
            raise unknown_name_error("cost", cost, _SCALING_FUNCTION_BY_COST)
        if not isinstance(cost, str) and (not callable(cost) or isinstance(cost, type | Kernel)):  # a kernel is no cost
            raise UsageError(f"cost: must be a name or a callable, got {format_value(cost)}.")
        self.cost = cost
        self._value = _get_initial_temperature(temperature)
        # In a tuple: a module would register a bare parameter as its own.
        self._external: tuple[Tensor] | None = (temperature,) if isinstance(temperature, Tensor) else None
        if isinstance(temperature, Tensor):
            message = "temperature: must not be computed from other tensors, as it is read again in each call."
            remedy = "Pass the parameter itself, or temperature= in the call."
            check(temperature.is_leaf, f"{message} {remedy}", "not_leaf")
        learned = self._external is None and (learnable or isinstance(temperature, InitialTemperature))
        if learned:
            _check_learnable_temperature(self._value)
        # By its logarithm: it stays positive, and steps are relative.
        self.log_temperature = create_shardable_scalar_parameter(self, math.log(self._value)) if learned else None

    @property
    def learns_temperature(self) -> bool:
        """True if the temperature is learned."""
        return self.log_temperature is not None or (self._external is not None and self._external[0].requires_grad)

    @property
    def temperature(self) -> float:
        """Temperature as a number, which may be assigned between steps.

        Raises:
            UsageError: on assignment, if the temperature is a tensor of the caller.
        """
        if self._external is not None:
            return self._external[0].item()
        return self._value if self.log_temperature is None else math.exp(gather_scalar_parameter(self.log_temperature))

    @temperature.setter
    def temperature(self, value: float) -> None:
        check_positive("temperature", value)
        message = "temperature: cannot be set, as the kernel reads it from a tensor of yours; change that tensor."
        check(self._external is None, message, "external")
        if self.log_temperature is not None:
            _check_learnable_temperature(value)
            with torch.no_grad():
                self.log_temperature.fill_(math.log(value))
        self._value = float(value)

    def _resolve_temperature(self, dtype: torch.dtype, override: float | Tensor | None) -> float | Tensor:
        """Return the temperature to use, a tensor if it needs a gradient."""
        temperature: float | Tensor = self._value if override is None else override
        if isinstance(override, Tensor):
            _check_temperature_tensor(override)
        elif override is not None:
            check_positive("temperature", override)
        elif self._external is not None:
            _check_temperature_tensor(self._external[0])
            temperature = current_processes().with_averaged_gradient(self._external[0].reshape(()))
        elif self.log_temperature is not None:
            # In place: a clamp in the graph has no gradient beyond the bound, so the temperature could not rise again.
            lowest = math.log(MIN_LEARNED_TEMPERATURE)
            if is_in_torch_func():  # which allows no write in place; value and gradient are equal
                value = self.log_temperature.reshape(())
                learned = value + (value.clamp_min(lowest) - value).detach()
            else:
                with torch.no_grad():
                    self.log_temperature.clamp_(min=lowest)
                learned = self.log_temperature.reshape(())
            temperature = current_processes().with_averaged_gradient(learned.exp())
        return temperature.to(dtype) if isinstance(temperature, Tensor) else temperature

    def forward(
        self,
        x: Tensor,
        y: Tensor,
        temperature: float | Tensor | None = None,
        processes: Processes = Processes(),  # noqa: B008  (a constant)
    ) -> LogKernel:
        """Return the log-kernel between embeddings x, (N, d), and y, (M, d).

        It is computed in at least single precision.

        Args:
            x: rows.
            y: columns.
            temperature: in this call, instead of the kernel's own: a number, or a tensor without dimensions.
            processes: processes that each have some of the rows and columns, if these are not all of them.

        Raises:
            UsageError: x and y are not floating-point tensors (N, d) and (M, d) on one device, or the temperature is
                not positive; on devices other than the CPU the value of a tensor is not checked.
        """
        ndims = (2, 3) if self.compares_sets else (2,)  # a set of one vector may be that vector
        for name, z in (("x", x), ("y", y)):  # no function: a call would cost more than what it checks
            if not isinstance(z, Tensor) or z.ndim not in ndims or not z.is_floating_point() or z.shape[-1] == 0:
                expected = f"a floating-point tensor {'(n, t, d)' if self.compares_sets else '(n, d)'}"
                raise UsageError(f"{name}: must be {expected}, got {type_and_shape(z)}.", kind="shape")
        if x.device != y.device:
            raise UsageError(f"y: is on {y.device}, but x is on {x.device}.", kind="device")
        if x.shape[-1] != y.shape[-1] and isinstance(self.cost, str):
            raise UsageError(f"y: must have {x.shape[-1]} coordinates as x, got {y.shape[-1]}.", kind="shape")
        with autocast_disabled(x):
            same = x is y  # one tensor on both sides, kept one: it marks a symmetric problem
            if x.dtype != y.dtype or x.dtype not in (torch.float32, torch.float64):
                dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
                x, y = x.to(dtype), y.to(dtype)
            tau, sides = self._resolve_temperature(x.dtype, temperature), (x, x if same else y)
            scaled = partial(self._build_log_kernel_before_link, *sides, temperature=tau, processes=processes)
            return self.log_kernel(scaled, tau)

    def from_similarities(self, similarities: Tensor, temperature: float | Tensor | None = None) -> LogKernel:
        """Return the log-kernel of a matrix of similarities, (N, M).

        Args:
            similarities: cosines, or inner products for the cost ``"dot"``.
            temperature: as in `forward`.

        Raises:
            UsageError: the cost is not a function of the similarity alone.
        """
        if not isinstance(self.cost, str) or self.cost not in _SIMILARITY_TO_NEGATIVE_COST_BY_COST:
            raise UsageError(
                f"similarities: the cost {self.cost!r} is not a function of the similarity; pass embeddings, or "
                f"one of {', '.join(_SIMILARITY_TO_NEGATIVE_COST_BY_COST)}.",
                kind="conflict",
            )
        similarities = similarities.to(torch.promote_types(similarities.dtype, torch.float32))
        tau = self._resolve_temperature(similarities.dtype, temperature)
        return self.log_kernel(partial(self._build_matrix_log_kernel, similarities, temperature=tau), tau)

    def _build_matrix_log_kernel(
        self, similarities: Tensor, cost_unit: float | Tensor, temperature: float | Tensor
    ) -> LogKernel:
        """Build the log-kernel from a matrix of similarities, (N, M)."""
        assert isinstance(self.cost, str)
        matrix = _SIMILARITY_TO_NEGATIVE_COST_BY_COST[self.cost](similarities) / cost_unit
        return MatrixLogKernel(matrix, temperature=temperature, cost_unit=cost_unit)

    @abstractmethod
    def log_kernel(self, negative_cost_in_unit: CostUnitToLogKernel, temperature: float | Tensor) -> LogKernel:
        """Build the log-kernel from a function that returns -cost, divided by a unit of cost.

        Args:
            negative_cost_in_unit: returns -cost / u for a unit u, such as the temperature.
            temperature: temperature of this call.
        """

    def _build_log_kernel_before_link(
        self, x: Tensor, y: Tensor, cost_unit: float | Tensor, temperature: float | Tensor, processes: Processes
    ) -> LogKernel:
        """Build the log-kernel without a link: the negative cost over `cost_unit`."""
        if not isinstance(self.cost, str):
            factor = 1.0 if cost_unit is temperature else temperature / cost_unit
            return CallableLogKernel(self.cost, x, y, temperature, cost_factor=factor)
        if self.cost == "sqeuclidean":
            # Distances do not change when all points move together, and ||x||^2 + ||y||^2 - 2 <x, y> loses fewer
            # digits to cancellation near the origin.
            center = x.detach().mean(0) if len(x) else x.detach().new_zeros(x.shape[1])
            processes.all_reduce_(center)  # any point that all processes share would do
            center /= processes.size
            x, y = (x - center, y - center) if x is not y else (x - center,) * 2
        rows = _SCALING_FUNCTION_BY_COST[self.cost](x, cost_unit)
        columns = rows if x is y else _SCALING_FUNCTION_BY_COST[self.cost](y, cost_unit)
        row_bias = rows.bias_vector()
        column_bias = row_bias if x is y else columns.bias_vector()
        return InnerProductLogKernel(
            rows.z,
            columns.z,
            row_bias,
            column_bias,
            temperature,
            cost_unit,
            constant_bias=None if isinstance(rows.bias, Tensor) else 2 * rows.bias,
            max_product=rows.common_squared_norm,
            cost_is_distance=self.cost in _DISTANCE_COST_NAMES,
        )

    def _repr_with_temperature(self, name: str, first_argument: object, options: str = "") -> str:
        """Return the `repr` of the kernel, with its main argument, temperature and options."""
        is_number = self.log_temperature is None and self._external is None
        temperature = self._value if is_number else float(f"{self.temperature:.6g}")
        options += ", learnable=True" if self.learns_temperature else ""
        return f"{name}({first_argument!r}, {temperature!r}{options})"


def create_shardable_scalar_parameter(owner: nn.Module, value: float) -> nn.Parameter:
    """Create a learned scalar of shape (1,), which FSDP2 can shard.

    The module also loads state dicts of earlier versions, in which such parameters have the shape ().
    """
    owner.register_load_state_dict_pre_hook(_upgrade_scalar_parameters)
    return nn.Parameter(torch.tensor([value]))


def gather_scalar_parameter(parameter: Tensor) -> float:
    """Return a scalar parameter as a number, even if it is sharded.

    Every process must then call this function.
    """
    full_tensor = getattr(parameter, "full_tensor", None)
    value: float = (parameter if full_tensor is None else full_tensor()).item()
    return value


def _upgrade_scalar_parameters(owner: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Reshape the scalars in an older state dict from () to (1,)."""
    for name, parameter in owner.named_parameters(recurse=False):
        value = state.get(prefix + name)
        if parameter.shape == (1,) and isinstance(value, Tensor) and value.ndim == 0:
            state[prefix + name] = value.reshape(1)


def _get_initial_temperature(temperature: TemperatureLike) -> float:
    """Return the initial value of a temperature argument, 0.5 for ``"learn"``."""
    if isinstance(temperature, str):
        expected = "temperature: must be a number, 'learn' or a tensor of one element"
        check(temperature == "learn", f"{expected}, got {temperature!r}.", "unknown")
        return 0.5
    if isinstance(temperature, Tensor):
        valid = temperature.numel() == 1 and temperature.is_floating_point() and not temperature.is_meta
        got = f"{temperature.dtype} of shape {tuple(temperature.shape)}"
        check(valid, f"temperature: must be a number or a floating point tensor of one element, got {got}.", "shape")
        temperature = temperature.item()
    check_positive("temperature", temperature)
    return float(temperature)


def _check_learnable_temperature(temperature: float) -> None:
    """Raise `UsageError` if a learned temperature is below `MIN_LEARNED_TEMPERATURE`."""
    valid, bound = temperature >= MIN_LEARNED_TEMPERATURE, MIN_LEARNED_TEMPERATURE
    check(valid, f"temperature: must be >= {bound} if it is learned, got {temperature!r}.", "below_minimum")


def _check_temperature_tensor(temperature: Tensor) -> None:
    """Raise `UsageError` unless a temperature tensor has one element.

    On the CPU the element must be positive. On other devices reading the value would wait for the device: there a
    temperature that is not positive gives NaN.
    """
    if temperature.numel() != 1:
        got = type_and_shape(temperature)
        raise UsageError(f"temperature: must be a number or a tensor of one element, got {got}.", kind="shape")
    if temperature.device.type == "cpu" and not torch.compiler.is_compiling() and not is_in_torch_func():
        check_positive("temperature", temperature.item())


class Gibbs(Kernel):
    """Gibbs kernel: log K_ij = -C_ij^power / temperature.

    Args:
        cost: ``"cosine"`` 1 - cos; ``"negative-cosine"`` -cos; ``"chordal"`` 2 - 2 cos, the squared distance on the
            sphere; ``"sqeuclidean"`` ||x - y||^2; ``"dot"`` -<x, y>; or a callable (a module, even with parameters)
            that maps (n, d) and (m, d) to (n, m).
        temperature: in units of the powered cost; the epsilon of entropic transport; as in `Kernel`.
        power: exponent of the cost, for costs that are distances.
        learnable: whether the temperature is a parameter of the kernel, kept at 0.01 or above.

    Raises:
        UsageError: temperature or power is not positive, the name of the cost is unknown, or the cost may be negative
            and the power is not 1.

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
        distances = ", ".join(_DISTANCE_COST_NAMES)
        message = f"power: must be 1 for the cost {cost!r}, got {power!r}. Other powers require {distances}."
        check(power == 1 or cost in _DISTANCE_COST_NAMES, message, "conflict")
        self.power = power

    def log_kernel(self, negative_cost_in_unit: CostUnitToLogKernel, temperature: float | Tensor) -> LogKernel:
        if self.power == 1:
            return negative_cost_in_unit(temperature)
        # C^p / temperature = (C / temperature^(1/p))^p
        return negative_cost_in_unit(temperature ** (1 / self.power)).with_link(CostPowerLink(self.power))

    def __repr__(self) -> str:
        return self._repr_with_temperature("Gibbs", self.cost, "" if self.power == 1 else f", power={self.power!r}")


class RationalQuadratic(Kernel):
    """Rational quadratic kernel, log K_ij = -power log(1 + C_ij / temperature).

    Args:
        cost: ``"cosine"``, ``"chordal"`` or ``"sqeuclidean"``, as in `Gibbs`.
        temperature: in units of the cost.
        power: exponent of the tails, nonnegative; 0 gives all pairs the same weight.
        learnable: whether the temperature is a parameter of the kernel, kept at 0.01 or above.

    Raises:
        UsageError: the temperature is not positive, the power is negative, or the cost is not one of the three.

    Source: the plan of alpha-CL's inverse regularizer, (C + temperature)^(-1/gamma), up to a factor; Tian (2022).

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
        check_name("cost", cost, _DISTANCE_COST_NAMES)
        super().__init__(cost, temperature, learnable=learnable)
        check_nonnegative("power", power)
        self.power = power

    def log_kernel(self, negative_cost_in_unit: CostUnitToLogKernel, temperature: float | Tensor) -> LogKernel:
        return negative_cost_in_unit(temperature).with_link(PolynomialTailLink(self.power))

    def __repr__(self) -> str:
        return self._repr_with_temperature("RationalQuadratic", self.cost, f", power={self.power!r}")


class StudentT(Kernel):
    """Student's t-kernel of the squared Euclidean distance.

    It is log K_ij = -(df + 1)/2 log(1 + ||x_i - y_j||^2 / (temperature df)). Its heavy tails let moderately similar
    embeddings stay apart; df -> infinity is a Gibbs kernel of the squared distance. Embeddings are not normalized.

    Args:
        df: degrees of freedom; 1 is the kernel of t-SNE.
        temperature: in units of the squared distance.
        learnable: whether the temperature is a parameter of the kernel, kept at 0.01 or above.

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

    def log_kernel(self, negative_cost_in_unit: CostUnitToLogKernel, temperature: float | Tensor) -> LogKernel:
        return negative_cost_in_unit(temperature * self.df).with_link(PolynomialTailLink((self.df + 1) / 2))

    def __repr__(self) -> str:
        return self._repr_with_temperature("StudentT", self.df)


class BilinearCost(nn.Module):
    """Learned bilinear cost, C_ij = -<x_i, W y_j>, for embeddings of different dimensions.

    As the cost of a `Gibbs` kernel it is the bilinear critic of contrastive predictive coding. W is zero initially.

    Args:
        row_features: dimension p of the rows.
        column_features: dimension q of the columns.

    >>> import torch
    >>> BilinearCost(2, 3)(torch.ones(4, 2), torch.ones(5, 3)).shape
    torch.Size([4, 5])
    """

    def __init__(self, row_features: int, column_features: int) -> None:
        super().__init__()
        check_integer("row_features", row_features)
        check_integer("column_features", column_features)
        self.weight = nn.Parameter(torch.zeros(row_features, column_features))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cost, (n, m), between x (n, p) and y (m, q)."""
        if (sizes := (x.shape[-1], y.shape[-1])) != (expected := tuple(self.weight.shape)):
            raise UsageError(f"cost: must have the sizes of the embeddings, {sizes}, got {expected}.", kind="shape")
        return disable_autocast_in_grad_fn(disable_autocast_in_grad_fn(-x @ self.weight) @ y.T)


def normalize(z: Tensor, length: float = 1.0) -> Tensor:
    """Return a matrix, (n, d), with each row scaled to `length`.

    Rows of zeros (or subnormal numbers) get no gradient. A row is first divided by its largest entry, so that its
    squared length neither overflows nor underflows at any scale, in the value or in the gradient.
    """
    if is_in_torch_func():
        return normalize_rows_by_max_then_norm(z, length)[0]
    rows: Tensor = _NormalizeRows.apply(z, length)
    return rows


def normalize_rows_by_max_then_norm(z: Tensor, length: float) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Scale rows to norm `length` in two steps, and return the divisors of both.

    Each row is divided first by its largest entry, then by the norm of the quotient over `length`, (n, 1) each.
    """
    # The gradient of the largest entry cancels; vector_norm(z, inf) takes 10 times as long.
    constant = z.detach() if torch.is_grad_enabled() else z
    largest = constant.abs().amax(1, keepdim=True)
    largest = F.threshold(largest, torch.finfo(z.dtype).tiny, torch.inf)  # rows of zeros: 0, without gradient
    units = z / largest
    # The largest entry of a row is now 1 in size, and so the length at least 1, but for rows of zeros.
    scale = torch.linalg.vector_norm(units, dim=1, keepdim=True).clamp_min(1) / length
    return units / scale, (largest, scale)


class _NormalizeRows(torch.autograd.Function):
    """Autograd function of `normalize`, with fewer operations than plain autograd."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, length: float) -> Tensor:
        rows, (largest, scale) = normalize_rows_by_max_then_norm(z, length)
        ctx.save_for_backward(z, rows, largest, scale)
        ctx.length = length
        return rows

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, None]:
        z, rows, largest, scale = ctx.saved_tensors
        if torch.is_grad_enabled():

            def scaled(z: Tensor) -> tuple[Tensor]:
                return (normalize_rows_by_max_then_norm(z, ctx.length)[0],)

            return differentiable_gradients(scaled, [z], [grad_output], [True])[0], None
        # A row keeps its length, so the part of its gradient along itself is projected out.
        along = (rows * grad_output).sum(1, keepdim=True)
        across = torch.addcmul(grad_output, rows, along, value=-(ctx.length**-2))
        return across / scale / largest, None  # not by their product, which may overflow


class _ScaledEmbeddings(NamedTuple):
    """Embeddings z scaled such that <z_i, z_j> + bias_i + bias_j is -cost / cost_unit.

    Attributes:
        z: Scaled embeddings, (n, d).
        bias: Bias of each embedding, (n,), or one number for all.
        common_squared_norm: Squared length of the embeddings if it is equal for all by construction, else infinity.
    """

    z: Tensor
    bias: Tensor | float
    common_squared_norm: float = math.inf

    def bias_vector(self) -> Tensor:
        """Return `bias` expanded to one value per embedding, (n,)."""
        size = self.z.shape[0]
        return self.bias.expand(size) if isinstance(self.bias, Tensor) else constant_vector(size, self.bias, self.z)


# Each function divides its side by the root of the scale: n d divisions instead of n m, and the temperature gets its
# gradient by plain autograd.
def _scale_for_negative_cosine_cost(z: Tensor, cost_unit: float | Tensor) -> _ScaledEmbeddings:
    """Scale embeddings so that <x, y> is cos(x, y) / cost_unit."""
    if isinstance(cost_unit, Tensor):
        return _ScaledEmbeddings(normalize(z) * cost_unit**-0.5, 0.0)
    return _ScaledEmbeddings(normalize(z, cost_unit**-0.5), 0.0, 1 / cost_unit)


def _scale_for_cosine_distance(z: Tensor, cost_unit: float | Tensor) -> _ScaledEmbeddings:
    """Scale embeddings so that <x, y> + biases is (cos(x, y) - 1) / cost_unit."""
    units, _, common_squared_norm = _scale_for_negative_cosine_cost(z, cost_unit)
    return _ScaledEmbeddings(units, -0.5 / cost_unit, common_squared_norm)  # half of -1 / cost_unit per side


def _scale_for_sqeuclidean(z: Tensor, cost_unit: float | Tensor) -> _ScaledEmbeddings:
    """Scale embeddings so that <x, y> + biases is -||x - y||^2 / cost_unit."""
    z = z * (2 / cost_unit) ** 0.5  # -||x - y||^2 / scale = <x', y'> - ||x'||^2 / 2 - ||y'||^2 / 2
    return _ScaledEmbeddings(z, -z.square().sum(-1) / 2)


_SCALING_FUNCTION_BY_COST: dict[str, Callable[[Tensor, float | Tensor], _ScaledEmbeddings]] = {
    "cosine": _scale_for_cosine_distance,
    "negative-cosine": _scale_for_negative_cosine_cost,
    "chordal": lambda z, cost_unit: _scale_for_cosine_distance(z, cost_unit / 2),  # 2 - 2 cos(x, y) = 2 (1 - cos(x, y))
    "dot": lambda z, cost_unit: _ScaledEmbeddings(z / cost_unit**0.5, 0.0),
    "sqeuclidean": _scale_for_sqeuclidean,
}
"""Function that scales the embeddings of one side for each cost."""

_SIMILARITY_TO_NEGATIVE_COST_BY_COST: dict[str, Callable[[Tensor], Tensor]] = {
    "cosine": lambda similarity: similarity - 1.0,
    "chordal": lambda similarity: 2.0 * similarity - 2.0,
    "negative-cosine": lambda similarity: similarity,
    "dot": lambda similarity: similarity,
}
"""Function from the similarity to minus the cost, by name of the cost."""

_DISTANCE_COST_NAMES = ("cosine", "chordal", "sqeuclidean")
"""Names of costs that are distances: nonnegative, so that a power of them is defined."""
