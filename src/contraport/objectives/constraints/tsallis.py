"""Regularisers beside the entropy: the family of Tsallis, whose plans are powers instead of exponentials."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from contraport.engine import (
    Geometry,
    LogDecay,
    LogKernel,
    LogPower,
    TimesCost,
    constant,
    held_sums,
    log_sums,
    within_transform,
)
from contraport.errors import check, is_number, unknown_name
from contraport.objectives.constraints.constraint import ASKED, Asked, Constraint, directions
from contraport.objectives.constraints.scaling import Rows
from contraport.objectives.constraints.simplex import Simplex
from contraport.objectives.plan import Plan
from contraport.objectives.targets import TargetPlan


@dataclass(frozen=True, eq=False, kw_only=True)
class TsallisPlan(Plan):
    """A plan of a Tsallis regulariser, P_ij = share [(order - 1) (theta_ij - t_i)]_+^(1 / (order - 1)).

    Attributes:
        compared: the pairs under the kernel, as its own geometry is that of the plan's power.
        logits: the pairs under theta, without a link.
        threshold: t, (N,), with its own gradient.
        power: that of the pairs in the plan's own log-kernel.
        share: the mass that a threshold serves: 1/N where each row has its own, else 1.
        per_row: whether each row has its own threshold.
    """

    compared: Geometry
    logits: Geometry
    threshold: Tensor
    power: Power
    share: float
    per_row: bool

    @property
    def cost_kernel(self) -> LogKernel:
        return self.logits.log_kernel

    def log_row_sums(self) -> Tensor:
        return log_sums(self.compared, "rows")

    def row_cost(self, *, held: bool) -> Tensor:
        # theta = spread T + shift, and the shift stays at 0 where nothing is compared.
        served = self.share if self.per_row else self.log_row_mass().exp()
        power, shift = self.power, self.power.shift(self.threshold)
        if held:
            seen = power.seen(self.logits, self.threshold.detach())
            total = power.spread * held_sums(seen, self.f, self.g) + (shift * served).detach()
        else:
            by_t = self.share * power.scale * power.times_t(self.logits, self.threshold)
            total = power.spread * by_t + shift * served
        return -self.cost_kernel.unit * total

    def row_inner_logits(self, target: TargetPlan) -> Tensor:
        """Return sum_j target_ij theta_ij, (N,)."""
        return target.row_inner(self.logits.log_kernel)

    def conjugate(self) -> Tensor:
        """Return Omega*(theta) of the quadratic regulariser for each threshold: (N,) per row, else ().

        The threshold is not held: its own slope is 0, but not the slope of its slope.
        """
        by_row = self.power.times_t(self.logits, self.threshold) / 2
        return by_row + self.threshold if self.per_row else by_row.sum() + self.threshold[0]


@dataclass(frozen=True)
class Power:
    """How the pairs weigh for a threshold t: scale w(T)^p with p = 1/(order - 1), T = (theta - shift) / spread.

    Above order 1 it is T = theta - t and w(T) = [T]_+. Below, where w(T) = 1 - T, thresholds grow as a power of the
    number of columns: with the shift close to the largest logit, T is small, and no difference of logits is lost in
    rounding.

    Attributes:
        order: of the entropy, at most 2 and not 1.
        spread: a number without dimensions and without gradient.
    """

    order: float
    spread: Tensor

    @property
    def power(self) -> float:
        return 1 / (self.order - 1)

    @property
    def scale(self) -> Tensor:
        return (abs(self.order - 1) * self.spread) ** self.power

    def shift(self, threshold: Tensor) -> Tensor:
        """Return the shift of each row, (N,)."""
        return threshold if self.order > 1 else threshold - self.spread

    def seen(self, logits: Geometry, threshold: Tensor, power: float | None = None) -> Geometry:
        """Return the pairs under the kernel w(T)^power; None is p."""
        power = self.power if power is None else power
        link = LogPower(power) if self.order > 1 else LogDecay(-power)
        return logits.with_link(link, scale=1 / self.spread, row_bias=-self.shift(threshold) / self.spread)

    def sums(self, logits: Geometry, threshold: Tensor, power: float) -> Tensor:
        """Return the sum of [(order - 1) (theta - t)]_+^power over each row, (N,)."""
        factor = (abs(self.order - 1) * self.spread) ** power
        return factor * log_sums(self.seen(logits, threshold, power), "rows").exp()

    def times_t(self, logits: Geometry, threshold: Tensor) -> Tensor:
        """Return the sum of w(T)^p T over each row, (N,)."""
        if self.order > 1:
            return log_sums(self.seen(logits, threshold, self.power + 1), "rows").exp()
        seen = self.seen(logits, threshold)
        return -log_sums(seen.with_link(TimesCost(seen.log_kernel.link)), "rows").exp()


@dataclass(frozen=True, repr=False)
class Tsallis(Constraint):
    """The plan under a Tsallis entropy in place of Shannon's: its pairs weigh as powers of their costs.

    The plan is the argument of min <C, P> + temperature Omega(P), Omega(P) = sum P^order / (order (order - 1)). Order 2
    is the quadratic regulariser, sparsemax in place of softmax; order 1 the entropy itself; below 1 the tails are
    heavy: order 1 - gamma gives weights (cost + a constant)^(-1 / gamma). Above 1 there are exact zeros, on which KL is
    infinite; the divergence of order 2 is then `FenchelYoung`.

    Args:
        order: at most 2.
        over: ``"rows"``, every row has mass 1/N, or ``"simplex"``, the total mass is 1.
        conditional: with ``"rows"``, regularise the shares of a row rather than its masses: for order 2,
            P_i N = sparsemax(-C_i / temperature) rather than sparsemax(-C_i N / temperature).

    Raises:
        UsageError: the order is above 2, over is neither, conditional without rows.

    Source: the regulariser G of inverse optimal transport for contrastive learning; Martins and Astudillo (2016); the
    family, Blondel, Martins and Niculae (2020), Learning with Fenchel-Young losses, section 4.3.

    >>> import torch
    >>> from contraport.engine import Geometry, Gibbs
    >>> x, y = torch.tensor([[0.0]]), torch.tensor([[0.0], [0.3], [1.0]])
    >>> (plan,) = Tsallis(order=2)(Geometry(Gibbs(torch.cdist, temperature=1.0)(x, y)))
    >>> plan.dense()
    tensor([[0.6500, 0.3500, 0.0000]])
    """

    order: float = 2.0
    over: str = "rows"
    conditional: bool = False

    def __post_init__(self) -> None:
        check(is_number(self.order) and self.order <= 2, f"order: expected a number of at most 2, got {self.order!r}.")
        if self.over not in ("rows", "simplex"):
            raise unknown_name("over", self.over, ("rows", "simplex"))
        check(self.over == "rows" or not self.conditional, "conditional: belongs to over='rows'.")

    @property
    def has_zeros(self) -> bool:
        return self.order > 1

    def __call__(self, geometry: Geometry, asked: Asked = ASKED) -> list[Plan]:
        """Return the plan of each direction."""
        if self.order == 1:
            entropic = Rows() if self.over == "rows" else Simplex()
            return entropic(geometry, asked)
        check(asked.log_weights is None, f"column_weights: {self!r} has no reference measure; expected none.")
        return [self._solve(pairs) for pairs, _ in directions(geometry, asked)]

    def _solve(self, geometry: Geometry) -> TsallisPlan:
        n, m = geometry.shape
        per_row = self.over == "rows"
        share, count = (1 / n, m) if per_row else (1.0, n * m)
        slope = self.order - 1
        logits = geometry.with_link(None, scale=1.0 if self.conditional else share**-slope)
        like = logits.log_kernel.inputs[0]
        with torch.no_grad():
            # A sharp log-sum-exp exceeds the largest logit by at most half of what lies between that and the threshold.
            sharpness = max(1.0, 2 * abs(slope) * math.log(count))
            sharp = logits.with_link(None, scale=sharpness)
            largest = self._pool(log_sums(sharp, "rows"), log=True) / sharpness
            empty = largest == -torch.inf
            threshold = (largest - math.log(count) / sharpness - 1 / slope).masked_fill(empty, 0)
            rounding = 64 * torch.finfo(like.dtype).eps
            biases = sum(v.abs().amax() for v in logits.log_kernel.biases() or ())
            for _ in range(_NEWTON_STEPS):
                power = self._power(threshold, largest, empty)
                step = self._newton(logits, threshold, power)
                threshold = threshold + step.clamp_min(0)  # below it only by rounding
                # What is no number stays none. Within a transform nothing can be looked at: all steps are made.
                if within_transform() or (step > rounding * (threshold.abs() + biases + 1)).any():
                    continue
                break
            else:
                settled = within_transform()
                check(settled, f"constraint: the thresholds of Tsallis did not settle in {_NEWTON_STEPS} steps.")
            power = self._power(threshold, largest, empty)
            threshold = torch.where(empty, threshold - power.shift(threshold), threshold)  # the shift of 0
        # A further step, differentiated, carries the threshold's own gradient; where the slopes change too, a second
        # one carries that of the gradient.
        for _ in range(1 if self.order == 2 else 2):
            threshold = threshold + self._newton(logits, threshold, power)
        return TsallisPlan(
            geometry=power.seen(logits, threshold),
            compared=geometry,
            f=(math.log(share) + power.scale.log()).expand(n),
            g=constant(m, 0.0, like),
            known_log_row_mass=constant(n, math.log(share), like) if per_row else None,
            logits=logits,
            threshold=threshold,
            power=power,
            share=share,
            per_row=per_row,
        )

    def _power(self, threshold: Tensor, largest: Tensor, empty: Tensor) -> Power:
        """Return how pairs weigh at a threshold: below order 1, with T < 0 for all."""
        if self.order > 1:
            return Power(self.order, threshold.new_ones(()))
        beyond = (threshold - largest).masked_fill(empty, torch.inf).amin() / 2
        return Power(self.order, torch.where(beyond < torch.inf, beyond, 1))

    def _newton(self, logits: Geometry, threshold: Tensor, power: Power) -> Tensor:
        """Return the step towards h(t) = sum [(order - 1) (theta - t)]_+^p = 1.

        It is Newton's for h^(order - 1), which is nearly linear: a norm, convex and falling, above order 1, and a mean
        of powers, concave and rising, below it; from the left neither overshoots.
        """
        slope = self.order - 1
        total = self._pool(power.sums(logits, threshold, power.power))
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.order != 2):
            falls = self._pool(power.sums(logits, threshold, power.power - 1))
        some = falls > 0
        total = torch.where(some, total, 1)
        return (total - total ** (1 - slope)) / (slope * torch.where(some, falls, 1))

    def _pool(self, by_row: Tensor, *, log: bool = False) -> Tensor:
        """Return what the rows sum to over the set that shares a threshold."""
        if self.over == "rows":
            return by_row
        return (by_row.logsumexp(0) if log else by_row.sum()).expand_as(by_row)


_NEWTON_STEPS = 200
