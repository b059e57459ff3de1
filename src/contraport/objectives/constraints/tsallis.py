"""Regularisers beside the entropy: the family of Tsallis, whose plans are powers instead of exponentials."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from contraport.engine import (
    Geometry,
    HostLoop,
    LogDecay,
    LogHinge,
    LogKernel,
    is_in_torch_func,
    log_sums,
    map_row_blocks,
    run_host_loop,
)
from contraport.errors import check, is_number, unknown_name_error
from contraport.objectives.constraints.constraint import DEFAULT_REQUEST, Constraint, PlanRequest, Simplex, directions
from contraport.objectives.constraints.sinkhorn import Rows
from contraport.objectives.plan import Plan
from contraport.objectives.targets import TargetPlan


@dataclass(frozen=True, eq=False, kw_only=True)
class TsallisPlan(Plan):
    """A plan of a Tsallis regulariser, P_ij = share [(order - 1) (theta_ij - t_i)]_+^(1 / (order - 1)).

    Attributes:
        compared: the pairs under the kernel, as its own geometry is that of the plan's power.
        logits: the pairs under theta, without a link.
        potential: of the rows, (N,), by which the threshold t is known; with its own gradient.
        family: what pairs weigh by their logits and the potential.
        per_row: whether each row has its own potential.
    """

    compared: Geometry
    logits: Geometry
    potential: Tensor
    family: QExponential
    per_row: bool

    @property
    def cost_kernel(self) -> LogKernel:
        return self.compared.log_kernel.with_link(None)

    def log_row_sums(self) -> Tensor:
        return log_sums(self.compared, "rows")

    def row_cost(self, *, held: bool) -> Tensor:
        # Each cost enters as it is: it is lost in the rounding of theta - t, which the plan's own kernel knows, as t
        # grows as a power of the number of columns below order 1.
        kernel = self.cost_kernel

        def cost(rows: slice) -> Tensor:
            plan = self.restrict(rows).dense()
            return ((plan.detach() if held else plan) * kernel.restrict(rows).dense()).sum(1)

        return -kernel.unit * torch.cat(map_row_blocks(cost, self.shape))

    def row_inner_logits(self, target: TargetPlan) -> Tensor:
        """Return sum_j target_ij theta_ij, (N,)."""
        return target.row_inner_products(self.logits.log_kernel)

    def conjugate(self) -> Tensor:
        """Return Omega*(theta) of the quadratic regulariser for each potential: (N,) per row, else ().

        The potential is not held: its own slope is 0, but not the slope of its slope.
        """
        by_row = self.family.log_sums(self.logits, self.potential, power=2).exp() / 2
        threshold = self.potential - self.family.gap
        return by_row + threshold if self.per_row else by_row.sum() + threshold[0]


@dataclass(frozen=True)
class QExponential:
    """[(order - 1) (theta - t)]_+^p, p = 1/(order - 1), as level^p [1 + (theta - v) / (p level)]_+^p.

    The potential v = t + p level is what is stored, as no precision is lost in it or in the sum with 1: near order 1
    the level is near 1 and the function near exp(theta - v); where pairs weigh little, the level is near their base.

    Attributes:
        order: of the entropy, at most 2 and not 1.
        count: how many pairs share a mass.
    """

    order: float
    count: int

    @property
    def power(self) -> float:
        """P."""
        return 1 / (self.order - 1)

    @property
    def level(self) -> float:
        """Above order 1 the base of equal pairs. Below, less than the least base, 1: `LogDecay` ends at the level."""
        return self.count ** (1 - self.order) if self.order > 1 else max(0.5, self.order)

    @property
    def gap(self) -> float:
        """By how much the potential exceeds the threshold t."""
        return self.power * self.level

    def log_scale(self, power: float | None = None) -> float:
        """Return by how much the logarithm exceeds that of `kernel`; None is p."""
        return (self.power if power is None else power) * math.log(self.level)

    def kernel(self, logits: Geometry, potential: Tensor, power: float | None = None) -> Geometry:
        """Return the pairs under the kernel [1 + (theta - v) / (p level)]_+^power; None is p."""
        power = self.power if power is None else power
        link, scale = LogHinge(power) if self.order > 1 else LogDecay(-power), 1 / abs(self.gap)
        return logits.with_link(link, scale=scale, row_bias=-potential * scale)

    def log_sums(self, logits: Geometry, potential: Tensor, power: float | None = None) -> Tensor:
        """Return log sum_j [(order - 1) (theta - t)]_+^power, (N,); None is p."""
        return log_sums(self.kernel(logits, potential, power), "rows") + self.log_scale(power)


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
        UsageError: the order is above 2, over is neither, conditional without rows; in the call, the order is so far
            below 0 that thresholds leave the range of the precision.

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
            raise unknown_name_error("over", self.over, ("rows", "simplex"))
        check(self.over == "rows" or not self.conditional, "conditional: belongs to over='rows'.")

    @property
    def has_exact_zeros(self) -> bool:
        return self.order > 1

    def __call__(self, geometry: Geometry, asked: PlanRequest = DEFAULT_REQUEST) -> list[Plan]:
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
        family = QExponential(self.order, count)
        logits = geometry.with_link(None, scale=1.0 if self.conditional else share ** (1 - self.order))
        like = logits.log_kernel.inputs[0]
        _check_range(self.order, count, like.dtype)
        potential, empty = run_host_loop(_Potentials(self, logits.for_passes(), family))
        potential = potential.detach()  # forward mode takes no notice of no_grad
        # A further step, differentiated, carries the potential's own gradient; where the slopes change too, a second
        # one carries that of the gradient. They change no value: what rounding leaves in the sums is divided off.
        for _ in range(1 if self.order == 2 else 2):
            step, log_total = self.newton_step(logits, potential, family)
            potential = potential + (step - step.detach())
        log_scale = math.log(share) + family.log_scale()
        return TsallisPlan(
            geometry=family.kernel(logits, potential),
            compared=geometry,
            f=(log_scale - log_total.detach()).masked_fill(empty, log_scale),
            g=like.new_zeros(m),
            cached_log_row_mass=like.new_full((n,), math.log(share)) if per_row else None,
            logits=logits,
            potential=potential,
            family=family,
            per_row=per_row,
        )

    def start(self, logits: Geometry, family: QExponential) -> Tensor:
        """Return potentials that are not above the right ones, (N,): minus infinity where nothing is compared.

        Below order 1 the weight of a pair is above exp(theta - t - p), and a log-sum-exp of the logits gives such a
        potential. Above it is the largest logit that gives one, which a sharp log-sum-exp exceeds by at most half of
        what lies between that and the threshold.
        """
        lift = family.gap - family.power
        if self.order < 1:
            return self._pool(log_sums(logits, "rows")) + lift
        breadth = math.log(family.count)
        sharpness = max(1.0, 2 * (self.order - 1) * breadth)
        sharp = self._pool(log_sums(logits.with_link(None, scale=sharpness), "rows"))
        return sharp / sharpness + (lift - breadth / sharpness)

    def newton_step(self, logits: Geometry, potential: Tensor, family: QExponential) -> tuple[Tensor, Tensor]:
        """Return the step towards h(t) = sum [(order - 1) (theta - t)]_+^p = 1, and log h(t), (N,) each.

        It is Newton's for h^(order - 1), which is nearly linear: a norm, convex and falling, above order 1, and a mean
        of powers, concave and rising, below it; from the left neither overshoots.
        """
        slope = self.order - 1
        log_total = self._pool(family.log_sums(logits, potential))
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.order != 2):
            log_falls = self._pool(family.log_sums(logits, potential, family.power - 1))
        none = log_falls == -torch.inf
        log_total = log_total.masked_fill(none, 0)
        step = -torch.expm1(-slope * log_total) / slope * torch.exp(log_total - log_falls.masked_fill(none, 0))
        return step, log_total

    def _pool(self, by_row: Tensor) -> Tensor:
        """Return log-sums of the rows over the set that shares a potential."""
        return by_row if self.over == "rows" else by_row.logsumexp(0).expand_as(by_row)


@dataclass(frozen=True, eq=False)
class _Potentials(HostLoop):
    """Newton's iteration for the potentials of a Tsallis plan; it ends once they no longer move.

    Its outputs are the potentials, (N,), 0 where nothing is compared, and where that is, (N,).
    """

    constraint: Tsallis
    logits: Geometry
    family: QExponential

    def run(self) -> list[Tensor]:
        logits, family, like = self.logits, self.family, self.logits.log_kernel.inputs[0]
        potential = self.constraint.start(logits, family)
        empty = potential == -torch.inf
        potential = potential.masked_fill(empty, 0)
        rounding = 64 * torch.finfo(like.dtype).eps
        least = min(1, abs(family.gap))
        biases = sum(v.abs().amax() for v in logits.log_kernel.biases() or ())
        for _ in range(_NEWTON_STEPS):
            step, _ = self.constraint.newton_step(logits, potential, family)
            potential = potential + step.clamp_min(0)  # below it only by rounding
            # What is no number stays none. Within a transform nothing can be looked at: all steps are made.
            if is_in_torch_func() or (step > rounding * (potential.abs() + biases + least)).any():
                continue
            break
        else:
            settled = is_in_torch_func()
            check(settled, f"constraint: the potentials of Tsallis did not settle in {_NEWTON_STEPS} steps.")
        return [potential, empty]

    def empty_outputs(self) -> list[Tensor]:
        like, (n, _) = self.logits.log_kernel.inputs[0], self.logits.shape
        return [like.new_empty(n), like.new_empty(n, dtype=torch.bool)]


def _check_range(order: float, count: int, dtype: torch.dtype) -> None:
    """Raise `UsageError` where thresholds, up to count^(1 - order), leave the range of a precision."""
    largest = 0.9 * math.log(torch.finfo(dtype).max)
    least, name = 1 - largest / math.log(max(count, 2)), str(dtype).removeprefix("torch.")
    check(
        order >= least,
        f"order: must be at least {least:.3g} for {count} pairs that share a mass in {name}, got {order!r}; "
        "use double precision.",
    )


_NEWTON_STEPS = 200
