"""Optimal couplings of two distributions on a line: exact, at several temperatures, and before Sinkhorn is done."""

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

MOST_ITERATIONS = 100_000
"""Of Sinkhorn's algorithm, for a plan at convergence; a warning says where they do not suffice."""


class Coupling(NamedTuple):
    """A plan between two distributions, (N, M), and what it is worth.

    Attributes:
        plan: P.
        cost: <C, P>, in squared units of the line.
        entropy: -sum P log P, in nats.
        error: by how much the masses of rows and columns are off from a and b, in all.
        iterations: of Sinkhorn's algorithm; 0 for the exact plan.
    """

    plan: Tensor
    cost: float
    entropy: float
    error: float
    iterations: int


@dataclass(frozen=True, eq=False)
class Couplings:
    """Couplings of the same two distributions.

    Attributes:
        a: masses of the rows, (N,), and `b` of the columns, (M,); each adds up to 1.
        b: see a.
        exact: the plan of least cost.
        by_temperature: the entropic plan at convergence, temperature by temperature.
        by_iterations: the plan at the lowest temperature after a few iterations, number by number.
    """

    a: Tensor
    b: Tensor
    exact: Coupling
    by_temperature: Mapping[float, Coupling]
    by_iterations: Mapping[int, Coupling]

    def figure(self) -> Figure:
        """Draw the exact plan and those at each temperature, then those after few iterations, with their marginals."""
        lowest = min(self.by_temperature)
        named = {f"exact\ncost {self.exact.cost:.4f}": self.exact.plan}
        for temperature, found in sorted(self.by_temperature.items()):
            named[f"temperature {temperature:g}\ncost {found.cost:.4f}"] = found.plan
        for made, found in self.by_iterations.items():
            named[f"{made} iteration{'s' * (made > 1)} at {lowest:g}\nmasses off by {found.error:.2f}"] = found.plan
        return couplings(named, self.a, self.b, width=2.9 * max(1 + len(self.by_temperature), len(self.by_iterations)))


def optimal_couplings(
    a: Tensor,
    b: Tensor,
    *,
    temperatures: Sequence[float] = (0.001, 0.01, 0.1),
    iterations: Sequence[int] = (1, 4, 16, 64),
    x: Tensor | None = None,
    y: Tensor | None = None,
) -> Couplings:
    """Couple two distributions on a line at the least squared distance, less the temperature times the entropy.

    The exact coupling is a monotone curve. The temperature spreads it, up to the product of the distributions, and it
    costs more; Sinkhorn's algorithm needs the more iterations the lower the temperature is.

    Args:
        a: masses, (N,), positive; they are divided by their total.
        b: masses, (M,), likewise.
        temperatures: of the entropy, in squared units of the line.
        iterations: of Sinkhorn's algorithm at the lowest temperature, before convergence.
        x: where a lies, (N,); None is evenly from 0 to 1.
        y: where b lies, (M,); likewise.

    Raises:
        UsageError: masses are not positive or not one of each point, there is no temperature, or a number is out of its
            range.

    Source: Peyré and Cuturi (2019), Computational optimal transport, sections 2.3, 4.1 and 4.2.

    >>> found = optimal_couplings(torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.1, 0.2, 0.7]), temperatures=[0.1, 1.0])
    >>> found.exact.plan
    tensor([[0.1000, 0.2000, 0.4000],
            [0.0000, 0.0000, 0.2000],
            [0.0000, 0.0000, 0.1000]], dtype=torch.float64)
    >>> [round(one.cost, 4) for one in (found.exact, *found.by_temperature.values())]
    [0.5, 0.5003, 0.5426]
    """
    check(len(temperatures) > 0, "temperatures: expected one or more, got none.")
    for temperature in temperatures:
        check_positive("temperatures", temperature)
    a, b = _masses("a", a), _masses("b", b)
    x, y = _places("x", x, a), _places("y", y, b)
    cost = (x - y.T).square()

    def weighed(plan: Tensor, made: int) -> Coupling:
        off = (plan.sum(1) - a).abs().sum() + (plan.sum(0) - b).abs().sum()
        entropy = torch.special.entr(plan).sum()
        return Coupling(plan, float((cost * plan).sum()), float(entropy), float(off), made)

    def entropic(temperature: float, constraint: Balanced) -> Coupling:
        found = transport(x, y, Gibbs("sqeuclidean", temperature), constraint, a=a, b=b)
        return weighed(found.plan.dense(), found.iterations)

    (exact,) = Exact()(Geometry(Gibbs("sqeuclidean", 1.0)(x, y)), PlanRequest((a.log(), b.log())))
    return Couplings(
        a,
        b,
        weighed(exact.dense(), 0),
        {temperature: entropic(temperature, Balanced(MOST_ITERATIONS, 1e-7)) for temperature in temperatures},
        {made: entropic(min(temperatures), Balanced(made)) for made in iterations},
    )


def _masses(name: str, masses: Tensor) -> Tensor:
    good = isinstance(masses, Tensor) and masses.ndim == 1 and len(masses) > 0
    check(good, f"{name}: expected a tensor (n,) of masses, got {describe_value(masses)}.")
    check_all_values(name, masses, masses > 0, "positive masses")
    masses = masses.double()
    return masses / masses.sum()


def _places(name: str, places: Tensor | None, masses: Tensor) -> Tensor:
    """Return where the masses lie, (n, 1)."""
    if places is None:
        return torch.linspace(0, 1, len(masses), dtype=torch.float64)[:, None]
    found = tuple(places.shape)
    check(found == (len(masses),), f"{name}: expected one place for each of {len(masses)} masses, got shape {found}.")
    return places.double()[:, None]
