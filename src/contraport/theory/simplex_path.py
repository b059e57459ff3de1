"""Optimum of an entropic linear program over three masses, as a path over the temperature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from contraport.engine import Geometry, MatrixLogKernel
from contraport.errors import check, check_positive
from contraport.objectives import Simplex
from contraport.options import keep_deprecated_attributes
from contraport.plots.colors import GREY, ORANGE
from contraport.plots.figure_setup import create_panels, mass_colormap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]], dtype=torch.float64)
PANELS = 4
"""Number of temperatures at which the triangle is drawn, zero included."""


@keep_deprecated_attributes(values="expected_costs", margins="smallest_masses", optimum="unregularized_solution")
@dataclass(frozen=True, eq=False)
class EntropicPath:
    """Optima of an entropic linear program over three masses, by temperature.

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
        """Draw the objective on the triangle of masses at some temperatures, with the path of its minimum."""
        chosen = torch.linspace(0, len(self.temperatures) - 1, PANELS).round().long()[1:].unique()
        figure, axes = create_panels(1 + len(chosen), 2.9, ratio=1.0)
        _draw_triangle(axes[0], self.costs, 0.0, self.unregularized_solution, self.solutions)
        axes[0].set_title("linear program")
        for ax, k in zip(axes[1:], chosen, strict=True):
            temperature = float(self.temperatures[k])
            _draw_triangle(ax, self.costs, temperature, self.solutions[k], self.solutions)
            ax.set_title(f"temperature {temperature:.2g}")
        return figure


def solve_entropic_program(
    costs: Sequence[float] = (0.0, 0.3, 1.0), temperatures: Sequence[float] | None = None
) -> EntropicPath:
    """Solve a linear program over three masses that sum to 1, with entropy of increasing weight.

    Without entropy the optimum is a corner. With entropy every mass is positive: the optimum leaves the boundary and
    moves to the middle as the temperature grows. The pairs of a plan behave alike; the solver is the constraint
    `Simplex`.

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
    c = torch.as_tensor(costs, dtype=torch.float64)
    check(c.shape == (3,) and bool(c.isfinite().all()), f"costs: must be three finite numbers, got {costs!r}.")
    if temperatures is None:
        unit = float(c.max() - c.min()) or 1.0
        temperatures = (unit * torch.logspace(-2, 1, 49, dtype=torch.float64)).tolist()
    check(len(temperatures) > 0, "temperatures: must have at least one number, got none.", "missing")
    for temperature in temperatures:
        check_positive("temperatures", temperature)
    ordered = torch.tensor(sorted(temperatures), dtype=torch.float64)
    solutions = torch.stack([_solve(c, temperature) for temperature in ordered])
    best = (c == c.min()).double()
    return EntropicPath(
        c,
        ordered,
        solutions,
        expected_costs=solutions @ c,
        entropies=torch.special.entr(solutions).sum(1),
        smallest_masses=solutions.amin(1),
        unregularized_solution=best / best.sum(),
    )


def _solve(costs: Tensor, temperature: Tensor) -> Tensor:
    (plan,) = Simplex()(Geometry(MatrixLogKernel(-costs[None] / temperature)))
    return plan.dense()[0]


def _draw_triangle(ax: Axes, costs: Tensor, temperature: float, optimum: Tensor, path: Tensor) -> None:
    steps = 60
    counts = [(i, j, steps - i - j) for i in range(steps + 1) for j in range(steps + 1 - i)]
    masses = torch.tensor(counts, dtype=torch.float64) / steps
    height = masses @ costs - temperature * torch.special.entr(masses).sum(1)
    x, y = (masses @ CORNERS).T
    ax.tricontourf(x.numpy(), y.numpy(), -height.numpy(), levels=14, cmap=mass_colormap(ax))
    outline = CORNERS[[0, 1, 2, 0]]
    ax.plot(outline[:, 0].numpy(), outline[:, 1].numpy(), color=GREY, linewidth=1)
    way = path @ CORNERS
    ax.plot(way[:, 0].numpy(), way[:, 1].numpy(), color=ORANGE, linewidth=2)
    place = optimum @ CORNERS
    ax.plot(*place.tolist(), "o", color=ORANGE, markeredgecolor="white", markersize=9)
    for corner, cost, shift in zip(CORNERS, costs, ((0, -0.09), (0, -0.09), (0, 0.03)), strict=True):
        ax.text(float(corner[0]) + shift[0], float(corner[1]) + shift[1], f"cost {float(cost):g}", ha="center")
    ax.set(aspect="equal", xlim=(-0.12, 1.12), ylim=(-0.12, 0.98))
    ax.axis("off")
