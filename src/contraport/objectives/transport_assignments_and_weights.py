"""Optimal transport of point sets, with soft assignments and item weights from plans."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, cast

import torch
from torch import Tensor

from contraport.distributed import gather, use_local_batch
from contraport.engine import Geometry, Gibbs, Kernel, autocast_disabled
from contraport.errors import check, check_type, is_number, type_and_shape
from contraport.objectives.constraints import (
    Balanced,
    Constraint,
    DensePlan,
    DenseTsallisPlan,
    Exact,
    LogMarginals,
    PlanRequest,
    Tsallis,
    solve_dense_tsallis,
)
from contraport.objectives.constraints.sinkhorn import SinkhornConstraint
from contraport.objectives.inputs import check_values, check_views
from contraport.objectives.plan import Plan, RoundedPlan
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes


@keep_deprecated_attributes(error="marginal_error")
@dataclass(frozen=True, eq=False)
class Transport:
    """Solution of an entropic transport problem, with plan, cost and potentials.

    All but `marginal_error` is differentiable in the points, the masses and the temperature; of `Exact`, `value` alone.

    Attributes:
        plan: Plan P in terms of potentials: ``plan.top(k)``, ``plan.apply(v)``, ``plan.barycentric(v)``,
            ``plan.dense()``, ``plan.mass()``.
        constraint: Constraint of the plan.
        marginals: Log masses of the points, log a, (N,), and log b, (M,).
        kernel: Kernel between the points: cost and temperature.
    """

    plan: Plan
    constraint: Constraint
    marginals: LogMarginals
    kernel: Kernel

    @property
    def _temperature(self) -> float | Tensor:
        """Temperature with which the plan was computed."""
        return self.plan.log_kernel_without_link.temperature

    @cached_property
    def value(self) -> Tensor:
        """Value of the problem, cost plus entropic regularizer plus marginal penalty.

        The regularizer is temperature KL(P | a x b), or temperature sum P (log P - 1) with ``reference="counting"``;
        for `Tsallis` of order q, temperature sum P^q / (q (q - 1)); for `Exact` there is none.

        The gradient of `Exact` and `Tsallis` is the plan in the costs, and the dual potentials in the masses. For
        `Exact` it is right wherever plan and potentials are unique, and its plan and cost have no gradient in the
        masses. Those of `Tsallis` are differentiable where the set of pairs with mass does not change.
        """
        plan, constraint = self.plan, self.constraint
        if isinstance(constraint, Exact):
            terms = [self.cost]
            for potential, log_mass in zip(self.potentials, self.marginals, strict=True):
                mass = log_mass.exp()
                terms.append(potential.detach().to(mass) @ (mass - mass.detach()))  # 0, with the gradient
            return torch.stack([term.to(self.cost) for term in terms]).sum()
        if isinstance(constraint, Tsallis):
            order, masses = constraint.order, cast(DenseTsallisPlan, plan).masses
            present = masses > 0
            powers = torch.where(present, torch.where(present, masses, 1) ** order, 0).sum() / (order * (order - 1))
            return self.cost + (self._temperature * powers).to(self.cost)
        assert isinstance(constraint, SinkhornConstraint)
        rows, columns = plan.log_row_mass().exp(), plan.log_column_mass().exp()
        log_a, log_b = self.marginals
        # From potentials and masses, as log P = log K + f + g: no pass that would sum P log P.
        if constraint.reference == "counting":
            entropy = rows @ plan.f + columns @ plan.g - columns.sum()
        else:
            entropy = rows @ (plan.f - log_a) + columns @ (plan.g - log_b) - columns.sum()
            entropy = entropy + log_a.exp().sum() * log_b.exp().sum()
        return self._temperature * entropy + constraint.marginal_penalty(plan)

    @cached_property
    def cost(self) -> Tensor:
        """Transport cost of the plan, sum P_ij C_ij, a scalar tensor.

        It takes one pass over the pairs, and another for a cost that is not a distance.
        """
        return self.plan.row_cost(detach_plan=False).sum()

    @property
    def potentials(self) -> tuple[Tensor, Tensor]:
        """Dual potentials of both sets, (N,) and (M,), in cost units.

        P = a b exp((f + g - C) / temperature); for `Tsallis`, P = [(q-1)(f + g - C)/temperature]_+^(1/(q-1)). For
        `Exact`, f_i + g_j <= C_ij, with equality where P has mass: they prove that the plan is optimal, as its cost is
        sum a f + sum b g.
        """
        if isinstance(self.plan, DensePlan):
            return self.plan.dual_potentials
        log_a, log_b = self.marginals
        return self._temperature * (self.plan.f - log_a), self._temperature * (self.plan.g - log_b)

    @property
    def iterations(self) -> int:
        """Number of Sinkhorn iterations that ran."""
        return self.plan.iterations or 0

    @cached_property
    def marginal_error(self) -> float:
        """L1 distance of row and column sums from the points' masses."""
        return self.plan.marginal_error()

    @cached_property
    def rounded(self) -> RoundedPlan:
        """Transport plan rounded to meet both marginals exactly, without gradient.

        Its cost, ``rounded.row_cost().sum()``, is an upper bound on that of unregularized transport. Plans of `Exact`
        and balanced ones of `Tsallis` meet both marginals without it. See `Plan.round_to_marginals`.
        """
        is_sinkhorn = isinstance(self.constraint, SinkhornConstraint)
        message = f"rounded: requires a plan of Sinkhorn iterations, got one of {self.constraint!r}."
        check(is_sinkhorn, message, "conflict")
        return self.plan.round_to_marginals()

    def __repr__(self) -> str:
        n, m = self.plan.shape
        return f"Transport({n} x {m}, {self.constraint!r}, value={self.value.item():.6g}, iterations={self.iterations})"


def transport(
    x: Tensor,
    y: Tensor,
    kernel: Kernel,
    constraint: SinkhornConstraint | Exact | Tsallis | None = None,
    *,
    a: Tensor | None = None,
    b: Tensor | None = None,
) -> Transport:
    """Solve entropic optimal transport between two sets of points.

    The result is differentiable: with a tolerance at convergence, else through exactly the iterations that ran; both
    gradients, as the plan, take O((N + M) d) memory. Under `torch.distributed` every process solves its own problem.

    Args:
        x: points, (N, d), of any floating-point type.
        y: points, (M, d).
        kernel: cost and temperature (the epsilon of the entropy, in units of the cost), usually `Gibbs`.
        constraint: `Balanced`, `Unbalanced`, `Rows` or `Columns`; default: ``Balanced(1000, tolerance=1e-6)``. `Exact`
            solves the problem without entropy, by SciPy on the whole matrix; only the cost of the kernel counts.
            `Tsallis` of an order above 0 has another regularizer, on the whole matrix and with a `Gibbs` kernel; its
            temperature is that of sum P^q / (q (q - 1)), and useful ones grow with the number of points for q = 2.
        a: masses of the points x, (N,), positive; default: 1/N each.
        b: masses of the points y, (M,), likewise; with the same total as a unless the constraint is unbalanced.

    Raises:
        UsageError: points or masses of another shape or type, masses that are not positive and finite, totals that
            differ, a constraint without half-steps; with a tolerance, `Exact` or `Tsallis`, a cost that is NaN.

    Source: Peyré and Cuturi (2019), Computational optimal transport, sections 4.1-4.4.

    >>> import torch
    >>> from contraport import Gibbs
    >>> x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.1], [1.1], [5.0]])
    >>> result = transport(x, y, Gibbs("sqeuclidean", temperature=0.5))
    >>> (1000 * result.plan.dense()).round()
    tensor([[328., 172.,   0.],
            [  6., 161., 333.]])
    >>> result.plan.barycentric(y).flatten()
    tensor([0.4446, 3.6888])
    """
    check_type("kernel", kernel, Kernel, "Gibbs('sqeuclidean', 1.0)")
    constraint = Balanced(1000, 1e-6) if constraint is None else constraint
    message = f"constraint: must be Balanced, Unbalanced, Rows, Columns, Exact or Tsallis, got {constraint!r}."
    check(isinstance(constraint, SinkhornConstraint | Exact | Tsallis), message, "type")
    if isinstance(constraint, Tsallis):
        required = "an order above 0 and regularizes_row_shares=False"
        message = f"constraint: must have {required} for transport, got {constraint!r}."
        check(constraint.order > 0 and not constraint.regularizes_row_shares, message)
        check(isinstance(kernel, Gibbs), f"kernel: must be Gibbs with Tsallis, got {kernel!r}.", "conflict")
        if constraint.order == 1:
            entropic = constraint.build_entropic_limit()
            required = "mass_constraint='rows' or 'balanced'"
            message = f"constraint: order 1 requires {required}, got {constraint.mass_constraint!r}."
            check(isinstance(entropic, SinkhornConstraint), message)
            return transport(x, y, kernel, cast(SinkhornConstraint, entropic), a=a, b=b)
    ndims = (2, 3) if kernel.compares_sets else (2,)
    for name, points in (("x", x), ("y", y)):
        good = isinstance(points, Tensor) and points.ndim in ndims and len(points) > 0 and points.is_floating_point()
        check(good, f"{name}: must be a floating-point tensor of points, (n, d), got {type_and_shape(points)}.")
    # Within use_local_batch() kernels do not gather: every process solves its own problem.
    with autocast_disabled(x), use_local_batch():
        geometry = Geometry(kernel(x, y), has_no_empty_row_or_column=True)
        like = geometry.log_kernel.inputs[0]
        log_a = _log_checked_masses_or_uniform("a", a, len(x), like)
        log_b = _log_checked_masses_or_uniform("b", b, len(y), like)
        if constraint.fixes_both_marginals:
            totals = log_a.exp().sum().item(), log_b.exp().sum().item()
            close = abs(totals[0] - totals[1]) <= 1e-4 * totals[0]
            message = f"b: must have the total of a, {totals[0]:.6g}, got {totals[1]:.6g}; or use Unbalanced."
            check(close, message, "total")
        if isinstance(constraint, Tsallis):
            tsallis = solve_dense_tsallis(geometry, constraint.order, constraint.mass_constraint, log_a, log_b)
            return Transport(tsallis, constraint, (log_a, log_b), kernel)
        is_uniform = isinstance(constraint, Exact) and a is None and b is None
        (plan,) = constraint(geometry, PlanRequest(None if is_uniform else (log_a, log_b)))
    return Transport(plan, constraint, (log_a, log_b), kernel)


def sinkhorn_divergence(
    x: Tensor,
    y: Tensor,
    kernel: Kernel,
    constraint: SinkhornConstraint | None = None,
    *,
    a: Tensor | None = None,
    b: Tensor | None = None,
) -> Tensor:
    """Compute the Sinkhorn divergence of two sets of points.

    This debiased transport cost is zero for equal sets. It is OT(x, y) - (OT(x, x) + OT(y, y)) / 2, plus half the
    temperature times the squared difference of the total masses. The arguments are those of `transport`.

    Source: Feydy et al. (2019), Interpolating between optimal transport and MMD using Sinkhorn divergences, eq. 3;
    Séjourné et al. (2019), Sinkhorn divergences for unbalanced optimal transport, definition 7.

    >>> import torch
    >>> from contraport import Gibbs
    >>> x = torch.tensor([[0.0], [1.0]])
    >>> sinkhorn_divergence(x, x + 0.5, Gibbs("sqeuclidean", temperature=0.5))
    tensor(0.2500)
    """
    across = transport(x, y, kernel, constraint, a=a, b=b)
    within = transport(x, x, kernel, constraint, a=a, b=a), transport(y, y, kernel, constraint, a=b, b=b)
    masses = [log_mass.exp().sum() for log_mass in across.marginals]
    difference = (masses[0] - masses[1]).square()
    return across.value - (within[0].value + within[1].value) / 2 + across._temperature / 2 * difference


def _log_checked_masses_or_uniform(argument: str, masses: Tensor | None, num_points: int, like: Tensor) -> Tensor:
    """Return the log masses of points, (num_points,), uniform by default."""
    if masses is None:
        masses = like.new_full((num_points,), 1 / num_points)
    good = isinstance(masses, Tensor) and masses.shape == (num_points,) and masses.is_floating_point()
    expected = f"a floating-point tensor of masses, ({num_points},)"
    check(good, f"{argument}: must be {expected}, got {type_and_shape(masses)}.", "shape")
    check_values(argument, masses, (masses > 0) & torch.isfinite(masses), "positive finite masses of all points")
    return masses.to(like).log()


@torch.no_grad()
def soft_assignments(z: Tensor, prototypes: Tensor, temperature: float = 0.05, iterations: int = 3) -> Tensor:
    """Compute soft assignments (n, k) to prototypes by balanced transport (SwAV).

    The rows sum to 1 and are detached: use them as the target of another view of the same items. Under
    `torch.distributed` the plan is that of the items of all processes, and each gets its own rows.

    Args:
        z: embeddings of the items, (n, d).
        prototypes: (k, d), the same on every process.
        temperature: of the Gibbs kernel with the cosine cost.
        iterations: number of Sinkhorn iterations, prototypes first, items last.

    Raises:
        UsageError: the shapes do not fit, or the temperature or the iterations are not positive.

    Source: Caron et al. (2020), Unsupervised learning of visual features by contrasting cluster assignments (SwAV),
    eq. 3-5.

    >>> import torch, contraport
    >>> prototypes, z0, z1 = torch.randn(5, 8), torch.randn(16, 8), torch.randn(16, 8)
    >>> swap = contraport.info_nce(temperature=0.1, symmetric=False, shared_columns=True)
    >>> value = swap(z0, prototypes, target=soft_assignments(z1, prototypes))
    """
    check_views((z, prototypes), last_is_shared_columns=True)
    kernel = Gibbs("cosine", temperature)
    with autocast_disabled(z):
        (plan,) = Balanced(iterations)(Geometry(kernel(prototypes, gather(z))))
        # The last half-step gives every item the same mass: its shares are a softmax over the prototypes.
        shares: Tensor = (kernel(z, prototypes).dense() + plan.f).softmax(1)
        return shares


@accept_deprecated_keywords(given="batch_item_weights", item_weights="batch_item_weights")
@keep_deprecated_attributes(item_weights="batch_item_weights")
@dataclass(frozen=True, eq=False)
class WeightsFromPlan:
    """Weights of items in the loss, taken from the batch's balanced transport plan.

    In the balanced plan P of two views of n items, each item has mass 1/n, and n P_ii is the share that goes to its own
    other view. The weight of the item is 1 - strength + strength n P_ii, detached: pairs that the rest of the batch
    contradicts count less. With more than two views it is the mean over the pairs of views. The plan is that of the
    objective's kernel. Usage: ``weights=WeightsFromPlan()``, or ``weights="plan"`` for the default strength.

    Args:
        strength: from 0, equal weights, to 1.
        iterations: number of Sinkhorn iterations, at least 1.
        batch_item_weights: further factor of each item of the batch, (n,), nonnegative; default: 1.

    Raises:
        UsageError: a value is out of range.

    >>> import torch, contraport
    >>> z0, z1 = torch.eye(4), torch.eye(4)[[0, 1, 3, 2]]
    >>> rows = contraport.info_nce(0.2)(z0, z1, weights=contraport.WeightsFromPlan(0.9), reduction="none")
    >>> [round(value, 1) for value in rows.tolist()]
    [0.0, 0.0, 1.0, 1.0]
    """

    strength: float = 0.9
    iterations: int = 20
    batch_item_weights: Any = None

    def __post_init__(self) -> None:
        good = is_number(self.strength) and 0 <= self.strength <= 1
        check(good, f"strength: must be a number from 0 to 1, got {self.strength!r}.")
        Balanced(self.iterations)  # checks the number

    def __call__(self, views: tuple[Tensor, ...], kernel: Kernel) -> Tensor:
        """Return each item's weight, (n,), without gradient, from the views of all items."""
        check(len(views) > 1, "weights: 'plan' requires two or more views, got one.", "single_view")
        n, shares = len(views[0]), []
        items = torch.arange(n, device=views[0].device)
        with torch.no_grad():
            for z0, z1 in combinations(views, 2):
                plan = transport(z0, z1, kernel, Balanced(self.iterations)).plan
                # Row masses are met only approximately after a few iterations, so that a share can exceed 1.
                shares.append((n * plan.log_at(items, items).exp()).clamp(max=1))
            weights = 1 - self.strength + self.strength * torch.stack(shares).mean(0)
        return weights.detach()  # forward-mode differentiation ignores no_grad
