"""The quadratic regulariser: plans with exact zeros, by thresholds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from contraport.engine import Geometry, LogKernel, LogOf, held_sums, log_sums, positive_part
from contraport.errors import check, unknown_name
from contraport.objectives.constraints.constraint import Constraint
from contraport.objectives.plan import Plan
from contraport.objectives.targets import TargetPlan


@dataclass(frozen=True, eq=False, kw_only=True)
class QuadraticPlan(Plan):
    """A plan of the quadratic regulariser, P_ij = share [theta_ij - t_i]_+.

    Attributes:
        logits: the pairs under theta, without a link.
        threshold: t, (N,), with its own gradient.
        share: the mass that a threshold serves: 1/N where each row has its own, else 1.
        per_row: whether each row has its own threshold.
    """

    logits: Geometry
    threshold: Tensor
    share: float
    per_row: bool

    @property
    def cost_kernel(self) -> LogKernel:
        return self.logits.log_kernel

    def row_cost(self, *, held: bool) -> Tensor:
        # theta = [theta - t] + t, and t stays at 0 where nothing is compared.
        served = self.share if self.per_row else self.log_row_mass().exp()
        if held:
            plan = self.logits.with_link(positive_part(), row_bias=-self.threshold.detach())
            total = held_sums(plan, self.f, self.g) + (self.threshold * served).detach()
        else:
            total = self.share * self._squares(self.threshold) + self.threshold * served
        return -self.cost_kernel.unit * total

    def row_inner_logits(self, target: TargetPlan) -> Tensor:
        """Return sum_j target_ij theta_ij, (N,)."""
        return target.row_inner(self.logits.log_kernel)

    def conjugate(self) -> Tensor:
        """Return Omega*(theta) for each threshold: (N,) per row, else ().

        The threshold is not held: its own slope is 0, but not the slope of its slope.
        """
        by_row = self._squares(self.threshold) / 2
        return by_row + self.threshold if self.per_row else by_row.sum() + self.threshold[0]

    def _squares(self, threshold: Tensor) -> Tensor:
        """Return sum_j [theta_ij - t_i]_+^2, (N,)."""
        squares = self.logits.with_link(positive_part(2), row_bias=-threshold)
        return log_sums(squares, "rows", torch.zeros_like(self.g)).exp()


@dataclass(frozen=True, repr=False)
class Quadratic(Constraint):
    """The plan under the quadratic regulariser, with exact zeros: sparsemax in place of softmax.

    Its divergence is `FenchelYoung`; KL is infinite on its zeros.

    Args:
        over: ``"rows"``, every row has mass 1/N, or ``"simplex"``, the total mass is 1.
        conditional: with ``"rows"``, regularise the shares of a row, P_i N = sparsemax(-C_i / temperature), rather than
            its masses, P_i N = sparsemax(-C_i N / temperature).

    Raises:
        UsageError: over is neither; conditional without rows.

    Source: the regulariser G of inverse optimal transport for contrastive learning; Martins and Astudillo (2016).
    """

    has_zeros: ClassVar[bool] = True

    over: str = "rows"
    conditional: bool = False

    def __post_init__(self) -> None:
        if self.over not in ("rows", "simplex"):
            raise unknown_name("over", self.over, ("rows", "simplex"))
        check(self.over == "rows" or not self.conditional, "conditional: belongs to over='rows'.")

    def __call__(self, geometry: Geometry, *, reciprocal: bool = False) -> list[Plan]:
        """Return the plan of each direction."""
        return [self._solve(g) for g in ([geometry, geometry.T] if reciprocal else [geometry])]

    def _solve(self, geometry: Geometry) -> QuadraticPlan:
        n, m = geometry.shape
        per_row = self.over == "rows"
        share = 1 / n if per_row else 1.0
        logits = geometry.with_link(None, scale=1.0 if self.conditional else 1 / share)
        zeros = logits.log_kernel.inputs[0].detach().new_zeros(m)
        with torch.no_grad():
            log_sum = self._pool(log_sums(logits, "rows", zeros), log=True)
            # Below the largest logit less 1, where the sum is still at least 1; a row without pairs stays at 0.
            threshold = (log_sum - math.log(m if per_row else n * m) - 1).masked_fill(log_sum == -torch.inf, 0)
            # Logits are sums of terms of this size, and no more certain than their rounding.
            size = threshold.abs().amax() + sum(v.abs().amax() for v in logits.log_kernel.biases() or ())
            for _ in range(_NEWTON_STEPS):
                step = self._newton(logits, threshold, zeros)
                threshold = threshold + step.clamp_min(0)  # below it only by rounding
                if step.amax() <= 64 * torch.finfo(step.dtype).eps * size:
                    break
            else:
                check(False, f"constraint: the thresholds of Quadratic did not settle in {_NEWTON_STEPS} steps.")
        # One more step, differentiated, carries the threshold's own gradient.
        threshold = threshold + self._newton(logits, threshold, zeros)
        plan = logits.with_link(positive_part(), row_bias=-threshold)
        return QuadraticPlan(
            geometry=plan,
            f=torch.full_like(threshold, math.log(share)),
            g=zeros,
            logits=logits,
            threshold=threshold,
            share=share,
            per_row=per_row,
        )

    def _newton(self, logits: Geometry, threshold: Tensor, zeros: Tensor) -> Tensor:
        """Return the step towards sum [theta - t]_+ = 1, a convex function: from below it never overshoots."""
        above = self._pool(log_sums(logits.with_link(positive_part(), row_bias=-threshold), "rows", zeros).exp())
        with torch.no_grad():
            support = LogOf(lambda t: (t > 0).to(t.dtype))
            count = self._pool(log_sums(logits.with_link(support, row_bias=-threshold), "rows", zeros).exp())
        return torch.where(count > 0, above - 1, 0) / count.clamp_min(1)

    def _pool(self, by_row: Tensor, *, log: bool = False) -> Tensor:
        """Return what the rows sum to over the set that shares a threshold."""
        if self.over == "rows":
            return by_row
        return (by_row.logsumexp(0) if log else by_row.sum()).expand_as(by_row)


_NEWTON_STEPS = 200
