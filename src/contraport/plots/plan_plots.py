"""Plans: as pictures beside what is wanted, between their marginals, and as lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contraport.errors import check
from contraport.plots.colors import BLUE, GREY, ORANGE
from contraport.plots.figure_setup import escape_dollars, mass_colormap, panels
from contraport.plots.mass_scale import Scale, excludes_self_pairs, log_masses, share_on_target
from contraport.plots.plot_inputs import Array, Folder, Values, array, is_folder, sampled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAINTEST = 0.02
"""A line whose share of the strongest is less than this is not drawn."""


def plan(plan: Values | Folder, target: Values | None = None, *, width: float = 7.4) -> Figure:
    """Draw a plan, and beside it on the same scale the plan that is wanted.

    The scale is logarithmic, over five decades at most. Pairs of an embedding with itself, which are never compared,
    are grey.

    Args:
        plan: (N, M), nonnegative; or the folder of an evaluated run, which has both.
        target: the plan that is wanted, (N, M); None draws the plan alone.
        width: of the figure, in inches; below 5.8 the two stand one below the other.

    Raises:
        UsageError: shapes do not fit, an entry is negative, nothing has any mass, the run has no plan, or matplotlib is
            not installed.

    >>> figure = plan(np.eye(3) / 3, np.eye(3) / 3)
    >>> [ax.get_title() for ax in figure.axes[:2]]
    ['plan: 100% of its mass on target', 'target']
    """
    if is_folder(plan):
        check(target is None, "target: expected none beside a run, which has its own.")
        samples = sampled(plan, "plan")
        plan, target = samples["plan"], samples["target"]
    found = _masses("plan", plan)
    matrices = {"plan": found}
    if target is not None:
        matrices["target"] = wanted = _masses("target", target)
        check(wanted.shape == found.shape, f"target: expected the plan's shape {found.shape}, got {wanted.shape}.")
    scale = Scale.of(matrices.values())
    assert scale is not None
    without_self = excludes_self_pairs(found, matrices.get("target", found))
    figure, axes = panels(len(matrices), width=width, ratio=1.05)
    for ax, (name, mass) in zip(axes, matrices.items(), strict=True):
        shown = log_masses(mass, scale, without_self=without_self)
        low = scale.low if scale.high > scale.low else scale.high - 1
        image = ax.imshow(shown, cmap=mass_colormap(ax), interpolation="nearest", vmin=low, vmax=scale.high)
        ax.set(xticks=[], yticks=[], title=name, xlabel="columns", ylabel="rows")
        ax.spines[:].set_visible(False)
    if target is not None:
        axes[0].set_title(f"plan: {share_on_target(found, matrices['target']):.0%} of its mass on target")
    powers: list[float] = [power for power, _ in scale.ticks] or [scale.high]
    bar = figure.colorbar(image, ax=axes, location="bottom", fraction=0.05, shrink=0.8, aspect=30, ticks=powers)
    bar.ax.set_xticklabels([f"$10^{{{power:.3g}}}$" for power in powers])
    bar.set_label("mass of a pair")
    return figure


def couplings(
    plans: Values | Mapping[str, Values],
    a: Values | None = None,
    b: Values | None = None,
    *,
    width: float | None = None,
) -> Figure:
    """Draw plans between two distributions on a line, which stand along their edges: rows at the left, columns on top.

    The colour of a pair goes by the root of its mass, each plan on a scale of its own: a plan that is spread over all
    pairs and a matching could not be seen on one scale.

    Args:
        plans: one, (N, M), nonnegative, or several by their names.
        a: what the rows were to carry, (N,); drawn as a line over what they do. None draws what they do alone.
        b: likewise of the columns, (M,).
        width: of the figure, in inches; None is 2.6 a plan.

    Raises:
        UsageError: there is no plan, shapes do not fit, an entry is negative, or matplotlib is not installed.

    >>> figure = couplings({"exact": np.eye(4) / 4, "spread": np.full((4, 4), 1 / 16)})
    >>> [ax.get_xlabel() for ax in figure.axes]
    ['exact', 'spread']
    """
    several = plans if isinstance(plans, Mapping) else {"": plans}
    check(len(several) > 0, "plans: expected one or more, got none.")
    figure, axes = panels(len(several), 2.6, width=width, ratio=1.0)
    for ax, (name, matrix) in zip(axes, several.items(), strict=True):
        mass = _masses("plans", matrix)
        wanted = [None if side is None else array(word, side, 1) for word, side in (("a", a), ("b", b))]
        for word, side, size in zip(("a", "b"), wanted, mass.shape, strict=True):
            good = side is None or len(side) == size
            check(good, f"{word}: expected {size} masses, got {0 if side is None else len(side)}.")
        _draw_coupling(ax, mass, *wanted)
        ax.set_xlabel(escape_dollars(name))
    return figure


def _draw_coupling(ax: Axes, plan: Array, a: Array | None = None, b: Array | None = None) -> None:
    """Draw one plan with what its rows and columns carry along its edges, and as lines what they were to carry."""
    n, m = plan.shape
    ax.imshow(np.sqrt(plan), cmap=mass_colormap(ax), interpolation="nearest", aspect="auto", vmin=0)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(True)
    ax.spines[:].set_color(GREY)
    top, left = ax.inset_axes((0, 1.02, 1, 0.25)), ax.inset_axes((-0.27, 0, 0.25, 1))
    rows, columns = np.arange(n), np.arange(m)
    top.fill_between(columns, plan.sum(0), step="mid", color=ORANGE, alpha=0.6, linewidth=0)
    left.fill_betweenx(rows, plan.sum(1), step="mid", color=BLUE, alpha=0.6, linewidth=0)
    if b is not None:
        top.step(columns, b, where="mid", color=ORANGE, linewidth=1)
    if a is not None:
        left.plot(np.repeat(a, 2), np.stack([rows - 0.5, rows + 0.5], 1).ravel(), color=BLUE, linewidth=1)
    top.set(xlim=(-0.5, m - 0.5), ylim=(0, None))
    left.set(ylim=(n - 0.5, -0.5), xlim=(0, None))
    left.invert_xaxis()
    top.axis("off")
    left.axis("off")


def draw_plan_lines(ax: Axes, plan: Array, partners: Array) -> None:
    """Draw a plan as lines from rows at the left to columns at the right, as strong as their mass.

    Args:
        ax: where.
        plan: (N, M), nonnegative.
        partners: (N, M), true where a row and a column belong together: these lines are blue, the others orange.
    """
    n, m = plan.shape
    rows, columns = np.linspace(1, 0, n), np.linspace(1, 0, m)
    even = 1 / n
    for i, j in zip(*np.nonzero(plan > FAINTEST * even), strict=True):
        share = min(1.0, float(plan[i, j]) / even)
        color = BLUE if partners[i, j] else ORANGE
        ax.plot([0, 1], [rows[i], columns[j]], color=color, linewidth=0.4 + 2.6 * share, alpha=0.15 + 0.75 * share)
    _dots(ax, 0.0, rows, plan.sum(1) * n)
    _dots(ax, 1.0, columns, plan.sum(0) * m)
    ax.set(xlim=(-0.12, 1.12), ylim=(-0.06, 1.06))
    ax.axis("off")


def _dots(ax: Axes, x: float, heights: Array, shares: Array) -> None:
    """Draw points as large as the share that they carry of what they should, over a ring of just that."""
    places = np.full(len(heights), x)
    ax.scatter(places, heights, s=60, facecolor="none", edgecolor=GREY, linewidth=0.8, zorder=3)
    ax.scatter(places, heights, s=60 * shares, color=GREY, linewidth=0, zorder=4)


def _masses(name: str, values: Any) -> Array:
    mass = array(name, values, 2)
    check(bool((mass >= 0).all()), f"{name}: expected nonnegative masses, got one of {mass.min():.3g}.")
    check(bool(mass.any()), f"{name}: expected some mass, got none.")
    return mass
