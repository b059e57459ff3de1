"""What the entropy does to a linear programme: over a triangle, where it can be seen."""

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
from contraport.plots.colors import GREY, ORANGE
from contraport.plots.figure_setup import mass_colormap, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]], dtype=torch.float64)
SHOWN = 4
"""At how many temperatures the triangle is drawn, zero among them."""


@dataclass(frozen=True, eq=False)
class SimplexPath:
    """The way of the optimum into the triangle as the temperature grows.

    Attributes:
        costs: c, (3,).
        temperatures: (k,), lowest first.
        solutions: (k, 3), argmin over p >= 0, sum p = 1 of <c, p> - temperature H(p), H(p) = -sum p log p.
        values: <c, p>, (k,).
        entropies: H(p), (k,), in nats; the most there is is log 3.
        margins: the smallest coordinate, (k,): 0 on the boundary, 1/3 in the middle.
        optimum: p of the linear programme itself, (3,): a corner, or where several are as good the middle between them.
    """

    costs: Tensor
    temperatures: Tensor
    solutions: Tensor
    values: Tensor
    entropies: Tensor
    margins: Tensor
    optimum: Tensor

    def figure(self) -> Figure:
        """Draw the triangle at some temperatures: what is minimised as contours, its minimum, and the whole path."""
        chosen = torch.linspace(0, len(self.temperatures) - 1, SHOWN).round().long()[1:].unique()
        figure, axes = panels(1 + len(chosen), 2.9, ratio=1.0)
        _triangle(axes[0], self.costs, 0.0, self.optimum, self.solutions)
        axes[0].set_title("linear programme")
        for ax, k in zip(axes[1:], chosen, strict=True):
            temperature = float(self.temperatures[k])
            _triangle(ax, self.costs, temperature, self.solutions[k], self.solutions)
            ax.set_title(f"temperature {temperature:.2g}")
        return figure


def simplex_path(costs: Sequence[float] = (0.0, 0.3, 1.0), temperatures: Sequence[float] | None = None) -> SimplexPath:
    """Solve a linear programme over the triangle of three masses that sum to 1, with more and more entropy.

    Without entropy the optimum is a corner. With it no mass is ever 0: the optimum leaves the boundary, and goes to the
    middle as the temperature grows. A plan does the same among its pairs, of which there are only three here; it is
    found by the constraint `Simplex`.

    Args:
        costs: c, three numbers.
        temperatures: positive; None is 49 from 0.01 to 10 times the spread of the costs.

    Raises:
        UsageError: there are not three costs, they are not finite, or a temperature is not positive.

    Source: Peyré and Cuturi (2019), Computational optimal transport, section 4.1 and figure 4.1.

    >>> found = simplex_path((0.0, 0.3, 1.0), (0.1, 1.0))
    >>> found.optimum.tolist(), found.solutions.round(decimals=3)
    ([1.0, 0.0, 0.0], tensor([[0.9530, 0.0470, 0.0000],
                              [0.4740, 0.3510, 0.1740]], dtype=torch.float64))
    """
    c = torch.as_tensor(costs, dtype=torch.float64)
    check(c.shape == (3,) and bool(c.isfinite().all()), f"costs: expected three finite numbers, got {costs!r}.")
    if temperatures is None:
        spread = float(c.max() - c.min()) or 1.0
        temperatures = (spread * torch.logspace(-2, 1, 49, dtype=torch.float64)).tolist()
    check(len(temperatures) > 0, "temperatures: expected one or more, got none.")
    for temperature in temperatures:
        check_positive("temperatures", temperature)
    ordered = torch.tensor(sorted(temperatures), dtype=torch.float64)
    solutions = torch.stack([_solution(c, temperature) for temperature in ordered])
    best = (c == c.min()).double()
    return SimplexPath(
        c,
        ordered,
        solutions,
        values=solutions @ c,
        entropies=torch.special.entr(solutions).sum(1),
        margins=solutions.amin(1),
        optimum=best / best.sum(),
    )


def _solution(costs: Tensor, temperature: Tensor) -> Tensor:
    (plan,) = Simplex()(Geometry(MatrixLogKernel(-costs[None] / temperature)))
    return plan.dense()[0]


def _triangle(ax: Axes, costs: Tensor, temperature: float, optimum: Tensor, path: Tensor) -> None:
    steps = 60
    masses = torch.tensor(
        [(i, j, steps - i - j) for i in range(steps + 1) for j in range(steps + 1 - i)], dtype=torch.float64
    )
    masses = masses / steps
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
