"""Links: pointwise functions h with log K = h(T), each with its derivative.

T is minus a cost in some unit, so that T <= 0 up to rounding wherever the cost is a distance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.engine.autograd import pullback


class Link(Protocol):
    """A pointwise function of T and its derivative; both take and return tensors of one shape."""

    def value(self, t: Tensor) -> Tensor:
        """Return h(T); differentiable."""

    def derivative(self, t: Tensor) -> Tensor:
        """Return h'(T), and 0 where h(T) is minus infinity."""


@dataclass(frozen=True)
class LogDecay:
    """h(T) = -power log(1 - T): polynomial tails."""

    power: float

    def value(self, t: Tensor) -> Tensor:
        return -self.power * torch.log1p((-t).clamp_min(0))

    def derivative(self, t: Tensor) -> Tensor:
        return self.power / (1 + (-t).clamp_min(0))


@dataclass(frozen=True)
class PowerDecay:
    """h(T) = -(-T)^power: the exponent of a powered cost."""

    power: float

    def value(self, t: Tensor) -> Tensor:
        # A power below one has no derivative at zero; autograd must not meet it there.
        return -((-t).clamp_min(torch.finfo(t.dtype).tiny) ** self.power)

    def derivative(self, t: Tensor) -> Tensor:
        return self.power * (-t).clamp_min(torch.finfo(t.dtype).tiny) ** (self.power - 1)


@dataclass(frozen=True)
class SquaredKernelLink:
    """h(T) = 2 inner(T): the kernel squared."""

    inner: Link

    def value(self, t: Tensor) -> Tensor:
        return 2 * self.inner.value(t)

    def derivative(self, t: Tensor) -> Tensor:
        return 2 * self.inner.derivative(t)


@dataclass(frozen=True)
class CostWeightedLink:
    """h(T) = inner(T) + log(level - T): the kernel times its cost, raised by a level that leaves none below 0.

    It is minus infinity, without gradient, where T is not below the level: at level 0 where a distance is 0.
    """

    inner: Link | None
    level: float | Tensor = 0.0

    def value(self, t: Tensor) -> Tensor:
        raised = self.level - t
        log_cost = torch.where(raised > 0, torch.where(raised > 0, raised, 1).log(), -torch.inf)
        return log_cost + (t if self.inner is None else self.inner.value(t))

    def derivative(self, t: Tensor) -> Tensor:
        inner, raised = 1 if self.inner is None else self.inner.derivative(t), self.level - t
        return torch.where(raised > 0, inner - 1 / torch.where(raised > 0, raised, 1), 0)


@dataclass(frozen=True)
class LogSoftplus:
    """h(T) = log log(1 + e^T): what a pair that should be apart costs in logistic regression, as an exponent."""

    def value(self, t: Tensor) -> Tensor:
        # Far below zero log(1 + e^T) is e^T to the last digit, and would underflow.
        linear = t < _LINEAR
        return torch.where(linear, t, F.softplus(torch.where(linear, 0, t), threshold=-_LINEAR).log())

    def derivative(self, t: Tensor) -> Tensor:
        linear = t < _LINEAR
        safe = torch.where(linear, 0, t)
        return torch.where(linear, 1, safe.sigmoid() / F.softplus(safe, threshold=-_LINEAR))


_LINEAR = -37.0
"""e^T is below half a unit in the last place of 1, in double precision; as is e^-T above its opposite."""


@dataclass(frozen=True)
class LogFunction:
    """h(T) = log psi(T) for any nonnegative pointwise function psi; minus infinity, without gradient, where psi is
    0.
    """

    psi: Callable[[Tensor], Tensor]

    def value(self, t: Tensor) -> Tensor:
        psi = self.psi(t)
        nothing = psi <= 0  # not where it is no number, which goes on as one
        return torch.where(nothing, -torch.inf, torch.where(nothing, 1, psi).log())

    def derivative(self, t: Tensor) -> Tensor:
        finite = self.value(t) != -torch.inf
        (slope,) = pullback(lambda t: torch.where(finite, self.value(t), 0), [t], torch.ones_like(t))
        return torch.zeros_like(t) if slope is None else torch.where(finite, slope, 0)


@dataclass(frozen=True)
class LogPower:
    """h(T) = power log T; minus infinity, without gradient, where T is not above zero: a pair weighs nothing there."""

    power: float = 1.0

    def value(self, t: Tensor) -> Tensor:
        return torch.where(t <= 0, -torch.inf, self.power * torch.where(t <= 0, 1, t).log())

    def derivative(self, t: Tensor) -> Tensor:
        return torch.where(t <= 0, 0, self.power / torch.where(t <= 0, 1, t))


@dataclass(frozen=True)
class LogHinge:
    """h(T) = power log(1 + T); minus infinity, without gradient, where T is not above -1."""

    power: float = 1.0

    def value(self, t: Tensor) -> Tensor:
        return torch.where(t <= -1, -torch.inf, self.power * torch.where(t <= -1, 0, t).log1p())

    def derivative(self, t: Tensor) -> Tensor:
        return torch.where(t <= -1, 0, self.power / (1 + torch.where(t <= -1, 0, t)))
