"""Entropic optimal transport in small examples, such as couplings on a line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from contraport.engine import Geometry, Gibbs, MatrixLogKernel
from contraport.errors import (
    check,
    check_all_values,
    check_finite,
    check_nonempty_sequence,
    check_positive,
    format_value,
    type_and_shape,
)
from contraport.metrics.retrieval_ranks import check_points, is_dense_real_tensor
from contraport.objectives import Balanced, Exact, PlanRequest, Rows, Simplex, Unbalanced, transport
from contraport.objectives.constraints.sinkhorn import SinkhornConstraint
from contraport.options import keep_deprecated_attributes
from contraport.plots import barycentric_maps_1d, couplings
from contraport.plots.figure_setup import GREY, ORANGE, create_panels, mass_colormap
from contraport.plots.plan_plots import draw_bipartite_plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@keep_deprecated_attributes(error="marginal_error")
class Coupling(NamedTuple):
    """Transport plan between two distributions on a line, with its cost.

    Attributes:
        plan: transport plan P, (N, M).
        cost: transport cost <C, P>, in squared units of the line.
        entropy: entropy -sum P log P of the plan, in nats.
        marginal_error: L1 distance of the row and column sums from a and b.
        iterations: number of Sinkhorn iterations; 0 for the exact plan.
    """

    plan: Tensor
    cost: float
    entropy: float
    marginal_error: float
    iterations: int


@keep_deprecated_attributes(by_iterations="lowest_temperature_coupling_by_iterations")
@dataclass(frozen=True, eq=False)
class Couplings1D:
    """Exact and entropic couplings of the same two distributions on a line.

    Attributes:
        a: masses of the rows, (N,), normalized to a sum of 1.
        b: masses of the columns, (M,), normalized to a sum of 1.
        exact: coupling of least transport cost.
        by_temperature: converged entropic couplings by temperature.
        lowest_temperature_coupling_by_iterations: couplings at the lowest temperature by number of Sinkhorn iterations.
        x: positions of the rows, (N,).
        y: positions of the columns, (M,).
    """

    a: Tensor
    b: Tensor
    exact: Coupling
    by_temperature: Mapping[float, Coupling]
    lowest_temperature_coupling_by_iterations: Mapping[int, Coupling]
    x: Tensor
    y: Tensor

    def figure(self) -> Figure:
        """Draw the exact and entropic couplings with their marginals."""
        lowest = min(self.by_temperature)
        plans = {f"exact\ncost {self.exact.cost:.4f}": self.exact.plan}
        for temperature, one in sorted(self.by_temperature.items()):
            plans[f"temperature {temperature:g}\ncost {one.cost:.4f}"] = one.plan
        for count, one in self.lowest_temperature_coupling_by_iterations.items():
            plans[f"{count} iteration{'s' * (count > 1)} at {lowest:g}\nmarginal error {one.marginal_error:.2f}"] = (
                one.plan
            )
        columns = max(1 + len(self.by_temperature), len(self.lowest_temperature_coupling_by_iterations))
        return couplings(plans, self.a, self.b, width=2.9 * columns)

    def arrow_figure(self) -> Figure:
        """Draw each coupling as arrows from positions to their mean targets."""
        plans = {"exact": self.exact.plan}
        plans |= {f"temperature {value:g}": one.plan for value, one in sorted(self.by_temperature.items())}
        return barycentric_maps_1d(plans, self.x, self.y, width=2.9 * len(plans))


def compute_couplings_1d(
    a: Tensor,
    b: Tensor,
    *,
    temperatures: Sequence[float] = (0.001, 0.01, 0.1),
    iterations: Sequence[int] = (1, 4, 16, 64),
    x: Tensor | None = None,
    y: Tensor | None = None,
) -> Couplings1D:
    """Compute exact and entropic optimal couplings of two distributions on a line.

    An entropic coupling minimizes the squared distance minus temperature x entropy.

    The exact coupling is a monotone curve. A higher temperature spreads it towards the product of the distributions
    and raises its cost; a lower one needs more iterations of Sinkhorn's algorithm.

    Args:
        a: masses of the rows, (N,), positive; they are normalized.
        b: masses of the columns, (M,), positive; they are normalized.
        temperatures: weights of the entropy, in squared units of the line.
        iterations: numbers of Sinkhorn iterations after which the plan at the lowest temperature is recorded.
        x: positions of the rows, (N,); None: evenly spaced from 0 to 1.
        y: positions of the columns, (M,); None: evenly spaced from 0 to 1.

    Raises:
        UsageError: masses are not positive, shapes do not match, there is no temperature, or a number is out of range.

    Source: Peyré and Cuturi (2019), Computational optimal transport, sections 2.3, 4.1 and 4.2.

    >>> a, b = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.1, 0.2, 0.7])
    >>> result = compute_couplings_1d(a, b, temperatures=[0.1, 1.0])
    >>> result.exact.plan
    tensor([[0.1000, 0.2000, 0.4000],
            [0.0000, 0.0000, 0.2000],
            [0.0000, 0.0000, 0.1000]], dtype=torch.float64)
    >>> [round(one.cost, 4) for one in (result.exact, *result.by_temperature.values())]
    [0.5, 0.5003, 0.5426]
    """
    _check_temperatures(temperatures)
    is_list = isinstance(iterations, Sequence) and not isinstance(iterations, str | bytes)
    check(is_list, f"iterations: must be a list of numbers, got {format_value(iterations)}.", "type")
    a, b = _normalize_masses("a", a), _normalize_masses("b", b)
    x, y = _resolve_position_column("x", x, a), _resolve_position_column("y", y, b)
    cost = (x - y.T).square()

    def summarize(plan: Tensor, count: int) -> Coupling:
        error = (plan.sum(1) - a).abs().sum() + (plan.sum(0) - b).abs().sum()
        entropy = torch.special.entr(plan).sum()
        return Coupling(plan, float((cost * plan).sum()), float(entropy), float(error), count)

    def entropic(temperature: float, constraint: Balanced) -> Coupling:
        solution = transport(x, y, Gibbs("sqeuclidean", temperature), constraint, a=a, b=b)
        return summarize(solution.plan.dense(), solution.iterations)

    (exact,) = Exact()(Geometry(Gibbs("sqeuclidean", 1.0)(x, y)), PlanRequest((a.log(), b.log())))
    return Couplings1D(
        a,
        b,
        summarize(exact.dense(), 0),
        {temperature: entropic(temperature, Balanced(100_000, 1e-7)) for temperature in temperatures},
        {count: entropic(min(temperatures), Balanced(count)) for count in iterations},
        x[:, 0],
        y[:, 0],
    )


def _check_temperatures(temperatures: Sequence[float]) -> None:
    """Raise `UsageError` unless temperatures are a nonempty list of positive numbers."""
    check_nonempty_sequence("temperatures", temperatures, "a list of at least one positive number")
    for temperature in temperatures:
        check_positive("temperatures", temperature)


def _normalize_masses(argument: str, masses: Tensor) -> Tensor:
    """Return validated masses, (n,), in double precision with sum 1."""
    good = is_dense_real_tensor(masses) and masses.ndim == 1 and len(masses) > 0
    check(good, f"{argument}: must be a tensor (n,) of masses, got {type_and_shape(masses)}.", "shape")
    check_all_values(argument, masses, (masses > 0) & torch.isfinite(masses), "positive finite masses")
    masses = masses.detach().double()
    return masses / masses.sum()


def _resolve_position_column(argument: str, positions: Tensor | None, masses: Tensor) -> Tensor:
    """Return validated positions as a column, (n, 1), by default evenly spaced."""
    if positions is None:
        return torch.linspace(0, 1, len(masses), dtype=torch.float64)[:, None]
    good = is_dense_real_tensor(positions) and positions.shape == masses.shape
    check(
        good, f"{argument}: must be a tensor of positions, ({len(masses)},), got {type_and_shape(positions)}.", "shape"
    )
    check_all_values(argument, positions, torch.isfinite(positions), "finite positions")
    return positions.detach().double()[:, None]


@keep_deprecated_attributes(
    partner_share="true_pair_share",
    columns="column_mass_shares",
    column_masses="column_mass_shares",
    columns_used="effective_num_columns",
)
class PlanWithStatistics(NamedTuple):
    """Transport plan between two sets of embeddings, with its statistics.

    Attributes:
        plan: transport plan, (N, M).
        mass: total mass of the plan; 1 if no mass was dropped.
        true_pair_share: share of the mass on pairs that belong together, 0 to 1.
        column_mass_shares: share of the mass in each column, (M,).
        unevenness: total variation distance of those shares from uniform, sum |share - 1/M| / 2.
        effective_num_columns: exponential of the entropy of those shares, 1 to M.
    """

    plan: Tensor
    mass: float
    true_pair_share: float
    column_mass_shares: Tensor
    unevenness: float
    effective_num_columns: float


@keep_deprecated_attributes(partners="true_pair_mask", true_pairs="true_pair_mask", plans="plans_by_constraint")
@dataclass(frozen=True, eq=False)
class ConstraintComparison:
    """Transport plans between the same two sets of embeddings under three constraints.

    Attributes:
        true_pair_mask: (N, M), true where a row and a column belong together.
        plans_by_constraint: transport plans by the name of the constraint: ``rows``, ``balanced``, ``unbalanced``.
    """

    true_pair_mask: Tensor
    plans_by_constraint: Mapping[str, PlanWithStatistics]

    def figure(self) -> Figure:
        """Draw each plan as lines whose width is the mass.

        Lines are blue between true pairs, orange between others. The area of a dot is the mass of a row or column, that
        of its ring the mass it should have.
        """
        figure, axes = create_panels(len(self.plans_by_constraint), 3.6, ratio=0.85)
        for ax, (name, one) in zip(axes, self.plans_by_constraint.items(), strict=True):
            draw_bipartite_plan(ax, one.plan.numpy(), self.true_pair_mask.numpy())
            mass = "" if one.mass > 0.995 else f", mass {one.mass:.2f}"
            ax.set_title(
                f"{name}{mass}\n{100 * one.true_pair_share:.0f}% on partners, unevenness {one.unevenness:.2f}",
                fontsize="medium",
            )
        return figure


def compare_constraints(
    z0: Tensor, z1: Tensor, partners: Tensor | None = None, *, temperature: float = 0.1, relaxation: float = 0.1
) -> ConstraintComparison:
    """Match two sets of embeddings under three constraints: rows, balanced, unbalanced.

    With rows only, several rows may choose the same column, a hub. A balanced plan uses every column equally, so a row
    whose nearest column is taken moves to another one. An unbalanced plan drops mass that fits nowhere.

    Args:
        z0: embeddings, (N, d), of any length.
        z1: embeddings, (M, d), of any length.
        partners: mask of the rows and columns that belong together, (N, M); None: row i and column i.
        temperature: in units of the cosine distance.
        relaxation: price of a marginal deviation in `Unbalanced`, in units of the cosine distance.

    Raises:
        UsageError: shapes do not match, or a number is not positive.

    Source: the balanced matching of inverse optimal transport for contrastive learning, eq. 13-17 and its figure.

    >>> z0, z1 = torch.tensor([[1.0, 0.0], [0.8, 0.6]]), torch.tensor([[1.0, 0.1], [0.1, 1.0]])
    >>> plans = compare_constraints(z0, z1).plans_by_constraint
    >>> [round(plan.unevenness, 3) for plan in plans.values()]
    [0.428, 0.0, 0.324]
    """
    check_points("z0", z0, 1)
    check_points("z1", z1, 1)
    shape = (len(z0), len(z1))
    if partners is None:
        check(shape[0] == shape[1], f"partners: required for z0 and z1 of {shape} rows, not given.", "missing")
        partners = torch.eye(len(z0), dtype=torch.bool)
    good = is_dense_real_tensor(partners) and partners.shape == shape and partners.dtype == torch.bool
    check(good, f"partners: must be Booleans of shape {shape}, got {type_and_shape(partners)}.", "shape")
    constraints: dict[str, SinkhornConstraint] = {
        "rows": Rows(),
        "balanced": Balanced(10_000, 1e-7),
        "unbalanced": Unbalanced(relaxation, 10_000, tolerance=1e-7),
    }
    z0, z1, kernel = z0.detach().double(), z1.detach().double(), Gibbs("cosine", temperature)
    plans = {name: transport(z0, z1, kernel, constraint).plan.dense() for name, constraint in constraints.items()}
    return ConstraintComparison(
        partners, {name: _compute_plan_statistics(plan, partners) for name, plan in plans.items()}
    )


def _compute_plan_statistics(plan: Tensor, true_pair_mask: Tensor) -> PlanWithStatistics:
    """Compute a plan's total mass, true-pair share and mass distribution over columns."""
    mass = plan.sum()
    columns = plan.sum(0) / mass
    return PlanWithStatistics(
        plan,
        float(mass),
        float(plan[true_pair_mask].sum() / mass),
        columns,
        float((columns - 1 / len(columns)).abs().sum() / 2),
        float(torch.special.entr(columns).sum().exp()),
    )


TRIANGLE_CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]], dtype=torch.float64)
"""Corners of the equilateral triangle in which three masses are drawn, as x and y, (3, 2)."""


@keep_deprecated_attributes(values="expected_costs", margins="smallest_masses", optimum="unregularized_solution")
@dataclass(frozen=True, eq=False)
class SimplexEntropicPath:
    """Solutions of an entropic linear program in three unknown masses, by temperature.

    Attributes:
        costs: cost c of each of the three masses, (3,).
        temperatures: weights of the entropy, (k,), ascending.
        solutions: masses p at each temperature, (k, 3), which minimize <c, p> - temperature H(p).
        expected_costs: expected cost <c, p> of each solution, (k,).
        entropies: entropy H(p) = -sum p log p of each solution, (k,), in nats, at most log 3.
        smallest_masses: smallest mass of each solution, (k,); 0 on the boundary of the triangle, 1/3 in the middle.
        unregularized_solution: solution without entropy, (3,): a corner, or the mean of equally good corners.
    """

    costs: Tensor
    temperatures: Tensor
    solutions: Tensor
    expected_costs: Tensor
    entropies: Tensor
    smallest_masses: Tensor
    unregularized_solution: Tensor

    def figure(self) -> Figure:
        """Draw the objective over the probability simplex at several temperatures."""
        chosen = torch.linspace(0, len(self.temperatures) - 1, 4).round().long()[1:].unique()  # beside temperature 0
        figure, axes = create_panels(1 + len(chosen), 2.9, ratio=1.0)
        _draw_triangle(axes[0], self.costs, 0.0, self.unregularized_solution, self.solutions)
        axes[0].set_title("linear program")
        for ax, k in zip(axes[1:], chosen, strict=True):
            temperature = float(self.temperatures[k])
            _draw_triangle(ax, self.costs, temperature, self.solutions[k], self.solutions)
            ax.set_title(f"temperature {temperature:.2g}")
        return figure


def solve_entropic_program(
    costs: Sequence[float] | Tensor = (0.0, 0.3, 1.0), temperatures: Sequence[float] | None = None
) -> SimplexEntropicPath:
    """Solve an entropic linear program in three unknown masses at several temperatures.

    The masses sum to 1. Without entropy the optimum is a corner. With entropy every mass is positive: the optimum
    leaves the boundary and moves to the middle as the temperature grows. The pairs of a plan behave alike; the solver
    is the constraint `Simplex`.

    Args:
        costs: c, three numbers.
        temperatures: positive; None: 49 from 0.01 to 10 times the range of the costs.

    Raises:
        UsageError: costs are not three finite numbers, or a temperature is missing or not positive.

    Source: Peyré and Cuturi (2019), Computational optimal transport, section 4.1 and figure 4.1.

    >>> path = solve_entropic_program((0.0, 0.3, 1.0), (0.1, 1.0))
    >>> path.unregularized_solution.tolist(), path.solutions.round(decimals=3)
    ([1.0, 0.0, 0.0], tensor([[0.9530, 0.0470, 0.0000],
                              [0.4740, 0.3510, 0.1740]], dtype=torch.float64))
    """
    costs = costs.tolist() if is_dense_real_tensor(costs) else costs
    check_nonempty_sequence("costs", costs, "three finite numbers")
    for cost in costs:
        check_finite("costs", cost)
    c = torch.tensor([float(cost) for cost in costs], dtype=torch.float64)
    check(c.shape == (3,), f"costs: must be three numbers, got {len(c)}.")
    if temperatures is None:
        unit = float(c.max() - c.min()) or 1.0
        temperatures = (unit * torch.logspace(-2, 1, 49, dtype=torch.float64)).tolist()
    _check_temperatures(temperatures)
    ordered = torch.tensor(sorted(temperatures), dtype=torch.float64)
    plans = [Simplex()(Geometry(MatrixLogKernel(-c[None] / temperature)))[0] for temperature in ordered]
    solutions = torch.stack([plan.dense()[0] for plan in plans])
    best = (c == c.min()).double()
    return SimplexEntropicPath(
        c,
        ordered,
        solutions,
        expected_costs=solutions @ c,
        entropies=torch.special.entr(solutions).sum(1),
        smallest_masses=solutions.amin(1),
        unregularized_solution=best / best.sum(),
    )


def _draw_triangle(ax: Axes, costs: Tensor, temperature: float, optimum: Tensor, optima_path: Tensor) -> None:
    """Draw an entropic objective on the probability simplex, with its minimizers."""
    steps = 60
    counts = [(i, j, steps - i - j) for i in range(steps + 1) for j in range(steps + 1 - i)]
    masses = torch.tensor(counts, dtype=torch.float64) / steps
    height = masses @ costs - temperature * torch.special.entr(masses).sum(1)
    x, y = (masses @ TRIANGLE_CORNERS).T
    ax.tricontourf(x.numpy(), y.numpy(), -height.numpy(), levels=14, cmap=mass_colormap(ax))
    ax.plot(*TRIANGLE_CORNERS[[0, 1, 2, 0]].T, color=GREY, linewidth=1)
    ax.plot(*(optima_path @ TRIANGLE_CORNERS).T, color=ORANGE, linewidth=2)
    ax.plot(*(optimum @ TRIANGLE_CORNERS), "o", color=ORANGE, markeredgecolor="white", markersize=9)
    for corner, cost, shift in zip(TRIANGLE_CORNERS, costs, ((0, -0.09), (0, -0.09), (0, 0.03)), strict=True):
        ax.text(float(corner[0]) + shift[0], float(corner[1]) + shift[1], f"cost {float(cost):g}", ha="center")
    ax.set(aspect="equal", xlim=(-0.12, 1.12), ylim=(-0.12, 0.98))
    ax.axis("off")
