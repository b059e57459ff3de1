"""Optimal couplings of two distributions on a line: exact, entropic, and after few Sinkhorn iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from contraport.engine import Geometry, Gibbs
from contraport.errors import check, check_all_values, check_positive, describe_value
from contraport.objectives import Balanced, Exact, PlanRequest, transport
from contraport.plots import couplings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_ITERATIONS = 100_000
"""Limit of Sinkhorn's algorithm for a converged plan; a warning is issued where it does not suffice."""


class Coupling(NamedTuple):
    """Transport plan between two distributions on a line, with its cost, entropy and marginal error.

    Attributes:
        plan: transport plan P, (N, M).
        cost: transport cost <C, P>, in squared units of the line.
        entropy: entropy -sum P log P of the plan, in nats.
        error: marginal error: L1 distance of the row and column sums from a and b.
        iterations: number of Sinkhorn iterations; 0 for the exact plan.
    """

    plan: Tensor
    cost: float
    entropy: float
    error: float
    iterations: int


@dataclass(frozen=True, eq=False)
class Couplings:
    """Exact and entropic couplings of the same two distributions.

    Attributes:
        a: masses of the rows, (N,), normalized to a sum of 1.
        b: masses of the columns, (M,), normalized to a sum of 1.
        exact: coupling of least transport cost.
        by_temperature: converged entropic couplings by temperature.
        by_iterations: couplings at the lowest temperature by number of Sinkhorn iterations.
    """

    a: Tensor
    b: Tensor
    exact: Coupling
    by_temperature: Mapping[float, Coupling]
    by_iterations: Mapping[int, Coupling]

    def figure(self) -> Figure:
        """Draw all couplings with their marginals: exact, by temperature, and by number of iterations."""
        lowest = min(self.by_temperature)
        plans = {f"exact\ncost {self.exact.cost:.4f}": self.exact.plan}
        for temperature, one in sorted(self.by_temperature.items()):
            plans[f"temperature {temperature:g}\ncost {one.cost:.4f}"] = one.plan
        for count, one in self.by_iterations.items():
            plans[f"{count} iteration{'s' * (count > 1)} at {lowest:g}\nmarginal error {one.error:.2f}"] = one.plan
        return couplings(plans, self.a, self.b, width=2.9 * max(1 + len(self.by_temperature), len(self.by_iterations)))


def optimal_couplings(
    a: Tensor,
    b: Tensor,
    *,
    temperatures: Sequence[float] = (0.001, 0.01, 0.1),
    iterations: Sequence[int] = (1, 4, 16, 64),
    x: Tensor | None = None,
    y: Tensor | None = None,
) -> Couplings:
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
    >>> result = optimal_couplings(a, b, temperatures=[0.1, 1.0])
    >>> result.exact.plan
    tensor([[0.1000, 0.2000, 0.4000],
            [0.0000, 0.0000, 0.2000],
            [0.0000, 0.0000, 0.1000]], dtype=torch.float64)
    >>> [round(one.cost, 4) for one in (result.exact, *result.by_temperature.values())]
    [0.5, 0.5003, 0.5426]
    """
    check(len(temperatures) > 0, "temperatures: must have at least one number, got none.", "missing")
    for temperature in temperatures:
        check_positive("temperatures", temperature)
    a, b = _normalize_masses("a", a), _normalize_masses("b", b)
    x, y = _check_positions("x", x, a), _check_positions("y", y, b)
    cost = (x - y.T).square()

    def summarize(plan: Tensor, count: int) -> Coupling:
        error = (plan.sum(1) - a).abs().sum() + (plan.sum(0) - b).abs().sum()
        entropy = torch.special.entr(plan).sum()
        return Coupling(plan, float((cost * plan).sum()), float(entropy), float(error), count)

    def entropic(temperature: float, constraint: Balanced) -> Coupling:
        solution = transport(x, y, Gibbs("sqeuclidean", temperature), constraint, a=a, b=b)
        return summarize(solution.plan.dense(), solution.iterations)

    (exact,) = Exact()(Geometry(Gibbs("sqeuclidean", 1.0)(x, y)), PlanRequest((a.log(), b.log())))
    return Couplings(
        a,
        b,
        summarize(exact.dense(), 0),
        {temperature: entropic(temperature, Balanced(MAX_ITERATIONS, 1e-7)) for temperature in temperatures},
        {count: entropic(min(temperatures), Balanced(count)) for count in iterations},
    )


def _normalize_masses(name: str, masses: Tensor) -> Tensor:
    good = isinstance(masses, Tensor) and masses.ndim == 1 and len(masses) > 0
    check(good, f"{name}: must be a tensor (n,) of masses, got {describe_value(masses)}.", "shape")
    check_all_values(name, masses, masses > 0, "positive masses")
    masses = masses.double()
    return masses / masses.sum()


def _check_positions(name: str, positions: Tensor | None, masses: Tensor) -> Tensor:
    """Return positions on the line, (n, 1), evenly spaced if None; raise `UsageError` for a wrong shape."""
    if positions is None:
        return torch.linspace(0, 1, len(masses), dtype=torch.float64)[:, None]
    good = positions.shape == masses.shape
    check(good, f"{name}: must have shape ({len(masses)},), got {tuple(positions.shape)}.", "shape")
    return positions.double()[:, None]
