"""Link functions h that turn T = -cost into the log-kernel h(T).

The cost is in some unit. T <= 0 up to rounding wherever the cost is a distance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.engine.autograd_utilities import vjp
from contraport.options import accept_deprecated_keywords


class Link(ABC):
    """Base class of functions h from T = -cost to the log-kernel."""

    @abstractmethod
    def value(self, t: Tensor) -> Tensor:
        """Return the log-kernel h(T) of the negative scaled costs T, differentiably."""

    def derivative(self, t: Tensor) -> Tensor:
        """Return the derivative h'(T), 0 where the log-kernel is -inf."""
        (slope,) = vjp(self.value, [t], torch.ones_like(t))
        # Where h(T) is minus infinity, the derivative of an inner function may be infinite or NaN.
        return torch.zeros_like(t) if slope is None else torch.where(self.value(t) == -torch.inf, 0, slope)


@dataclass(frozen=True)
class PolynomialTailLink(Link):
    """Link function h(T) = -power * log(1 - T) of T = -cost, for polynomial tails."""

    power: float

    def value(self, t: Tensor) -> Tensor:
        return -self.power * torch.log1p((-t).clamp_min(0))

    def derivative(self, t: Tensor) -> Tensor:  # several times faster than autograd, like those below
        return self.power / (1 + (-t).clamp_min(0))


@dataclass(frozen=True)
class CostPowerLink(Link):
    """Link function h(T) = -(-T)^power of T = -cost, which is -cost^power."""

    power: float

    def value(self, t: Tensor) -> Tensor:
        # A power below one has an infinite derivative at zero, so the cost is kept above the smallest normal number.
        return -((-t).clamp_min(torch.finfo(t.dtype).tiny) ** self.power)

    def derivative(self, t: Tensor) -> Tensor:
        tiny = torch.finfo(t.dtype).tiny
        return torch.where(-t < tiny, 0, self.power * (-t).clamp_min(tiny) ** (self.power - 1))


@dataclass(frozen=True)
class LinkTimesTwo(Link):
    """Link function that doubles another link function, so that the kernel is squared."""

    inner: Link

    def value(self, t: Tensor) -> Tensor:
        return 2 * self.inner.value(t)

    def derivative(self, t: Tensor) -> Tensor:
        return 2 * self.inner.derivative(t)


@dataclass(frozen=True)
class LinkPlusLogCost(Link):
    """Link function that adds log(cost) to another link function: kernel times cost.

    It is h(T) = h_inner(T) + log(cost_at_zero - T). It is minus infinity, without gradient, where the cost is not
    positive.
    """

    inner: Link | None
    cost_at_zero: float | Tensor = 0.0

    def value(self, t: Tensor) -> Tensor:
        cost = self.cost_at_zero - t
        # Two `where`: the gradient of log 0 would be NaN even in the branch that is not chosen. So in all links below.
        log_cost = torch.where(cost > 0, torch.where(cost > 0, cost, 1).log(), -torch.inf)
        return log_cost + (t if self.inner is None else self.inner.value(t))


@dataclass(frozen=True)
class LogSoftplus(Link):
    """Link function h(T) = log log(1 + e^T) of the logits T, for the logistic loss."""

    def value(self, t: Tensor) -> Tensor:
        # Below -37, log(1 + e^T) is e^T in double precision, and may underflow: its logarithm is T itself. e^-37 is
        # 8.5e-17, less than half an ulp of 1.
        linear = t < -37
        return torch.where(linear, t, F.softplus(torch.where(linear, 0, t), threshold=37).log())


@dataclass(frozen=True)
class LogOfFunction(Link):
    """Link function h(T) = log psi(T), minus infinity where psi is not positive."""

    psi: Callable[[Tensor], Tensor]

    def value(self, t: Tensor) -> Tensor:
        psi = self.psi(t)
        is_zero = psi <= 0  # false for NaN, which then shows in the result
        return torch.where(is_zero, -torch.inf, torch.where(is_zero, 1, psi).log())


@accept_deprecated_keywords(power="factor")
@dataclass(frozen=True)
class ScaledLog(Link):
    """Link function h(T) = factor * log T, minus infinity where T <= 0."""

    factor: float = 1.0

    def value(self, t: Tensor) -> Tensor:
        return torch.where(t <= 0, -torch.inf, self.factor * torch.where(t <= 0, 1, t).log())


@accept_deprecated_keywords(power="factor")
@dataclass(frozen=True)
class ScaledLog1p(Link):
    """Link function h(T) = factor * log(1 + T), minus infinity where T <= -1."""

    factor: float = 1.0

    def value(self, t: Tensor) -> Tensor:
        return torch.where(t <= -1, -torch.inf, self.factor * torch.where(t <= -1, 0, t).log1p())

    def derivative(self, t: Tensor) -> Tensor:
        return torch.where(t <= -1, 0, self.factor / (1 + torch.where(t <= -1, 0, t)))
