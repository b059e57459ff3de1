"""Figures of transport plans as heatmaps, couplings with marginals, and bipartite graphs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from contraport.errors import check, check_boolean
from contraport.plots.figure_setup import BLUE, GREY, ORANGE, create_panels, escape_dollars, mass_colormap
from contraport.plots.plot_inputs import Array, RunSource, Values, as_plot_array, is_run_source, load_evaluation_arrays

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_DECADES = 5
"""Maximum number of decades (powers of ten) that the color scale of a plan covers, down from its largest cell."""


class LogScale(NamedTuple):
    """Logarithmic color scale for masses from ``10**log10_low`` to ``10**log10_high``."""

    log10_low: float
    log10_high: float

    @classmethod
    def from_matrices(cls, matrices: Iterable[Array]) -> LogScale | None:
        """Build a color scale for several matrices, or None if all are zero.

        >>> LogScale.from_matrices([np.eye(2) / 2, np.full((2, 2), 1e-9)])
        LogScale(log10_low=-5.301..., log10_high=-0.301...)
        """
        masses = [matrix[matrix > 0] for matrix in matrices]
        masses = [mass for mass in masses if mass.size]
        if not masses:
            return None
        high = math.log10(max(float(mass.max()) for mass in masses))
        return cls(max(math.log10(min(float(mass.min()) for mass in masses)), high - MAX_DECADES), high)

    @property
    def exponents_and_positions(self) -> list[tuple[int, float]]:
        """Exponents of ten on the scale, with their positions from 0 to 1."""
        exponents = range(math.ceil(self.log10_low), math.floor(self.log10_high) + 1)
        return [(one, (one - self.log10_low) / ((self.log10_high - self.log10_low) or 1)) for one in exponents]


def log10_with_floor(mass: Array, scale: LogScale, *, without_self: bool = False) -> Array:
    """Return log10 of masses, at least the low end of `scale`."""
    logs = np.log10(np.maximum(mass, 10**scale.log10_low)).astype(np.float32)
    if without_self:
        np.fill_diagonal(logs, np.nan)
    return logs


def share_on_target(plan: Array, target: Array) -> float:
    """Return the share of a plan's mass where the target is positive.

    >>> share_on_target(np.array([[3.0, 1.0]]), np.array([[1.0, 0.0]]))
    0.75
    """
    mass = plan.sum()
    return float(plan[target > 0].sum() / mass) if mass > 0 else 0.0


def excludes_self_pairs(plan: Array, target: Array) -> bool:
    """Return whether plan and target are square with only zeros on the diagonal."""
    is_square = plan.shape[0] == plan.shape[1] > 1
    return is_square and not np.diag(plan).any() and not np.diag(target).any()


def plan(plan: Values | RunSource, target: Values | None = None, *, width: float = 7.4) -> Figure:
    """Draw a transport plan as a heatmap beside its target.

    Both have one logarithmic color scale, which covers at most five decades. Pairs of an embedding with itself,
    which are never compared, are gray.

    Args:
        plan: (N, M), nonnegative; or the folder of an evaluated run, which holds plan and target.
        target: the target plan, (N, M); None: only the plan is drawn.
        width: of the figure, in inches; below 5.8 the panels stand one below the other.

    Raises:
        UsageError: shapes do not match, an entry is negative, a plan is empty, the run has no plan, or matplotlib is
            not installed.

    >>> figure = plan(np.eye(3) / 3, np.eye(3) / 3)
    >>> [ax.get_title() for ax in figure.axes[:2]]
    ['plan: 100% of its mass on target', 'target']
    """
    if is_run_source(plan):
        check(target is None, "target: cannot be combined with a run, which has its own target.", "conflict")
        samples = load_evaluation_arrays(plan, "plan")
        plan, target = samples["plan"], samples["target"]
    mass = _as_mass_matrix("plan", plan)
    matrices = {"plan": mass}
    if target is not None:
        matrices["target"] = _as_mass_matrix("target", target)
        shape = matrices["target"].shape
        check(shape == mass.shape, f"target: must have the plan's shape {mass.shape}, got {shape}.", "shape")
    scale = LogScale.from_matrices(matrices.values())
    assert scale is not None
    without_self = excludes_self_pairs(mass, matrices.get("target", mass))
    # Equal masses get the darkest color.
    low = scale.log10_low if scale.log10_high > scale.log10_low else scale.log10_high - 1
    figure, axes = create_panels(len(matrices), figure_width=width, ratio=1.05)
    for ax, (name, matrix) in zip(axes, matrices.items(), strict=True):
        logs = log10_with_floor(matrix, scale, without_self=without_self)
        image = ax.imshow(logs, cmap=mass_colormap(ax), interpolation="nearest", vmin=low, vmax=scale.log10_high)
        ax.set(xticks=[], yticks=[], title=name, xlabel="columns", ylabel="rows")
        ax.spines[:].set_visible(False)
    if target is not None:
        axes[0].set_title(f"plan: {share_on_target(mass, matrices['target']):.0%} of its mass on target")
    exponents: list[float] = [exponent for exponent, _ in scale.exponents_and_positions] or [scale.log10_high]
    bar = figure.colorbar(image, ax=axes, location="bottom", fraction=0.05, shrink=0.8, aspect=30, ticks=exponents)
    bar.ax.set_xticklabels([f"$10^{{{exponent:.3g}}}$" for exponent in exponents])
    bar.set_label("mass of a pair")
    return figure


def couplings(
    plans: Values | Mapping[str, Values],
    a: Values | None = None,
    b: Values | None = None,
    *,
    common_scale: bool = False,
    width: float | None = None,
) -> Figure:
    """Draw transport plans with their row and column sums along the edges.

    The color of a pair is the square root of its mass.

    Args:
        plans: one plan, (N, M), nonnegative, or several by name.
        a: target masses of the rows, (N,), drawn as a line over the row sums; None: no line.
        b: target masses of the columns, (M,), drawn as a line over the column sums; None: no line.
        common_scale: use one color scale for all plans. Default: one per plan, since a matching and a plan that is
            spread over all pairs cannot share one.
        width: of the figure, in inches; None: 2.6 per plan.

    Raises:
        UsageError: there is no plan, shapes do not match, an entry is negative, or matplotlib is not installed.

    >>> figure = couplings({"exact": np.eye(4) / 4, "spread": np.full((4, 4), 1 / 16)})
    >>> [ax.get_xlabel() for ax in figure.axes]
    ['exact', 'spread']
    """
    several = plans if isinstance(plans, Mapping) else {"": plans}
    check(len(several) > 0, "plans: must have at least one plan, got none.", "missing")
    check_boolean("common_scale", common_scale)
    marginals = {name: as_plot_array(name, v, 1) for name, v in (("a", a), ("b", b)) if v is not None}
    for side, masses in marginals.items():
        check(bool((masses >= 0).all()), f"{side}: must be nonnegative, got {masses.min():.3g}.", "negative")
    figure, axes = create_panels(len(several), 2.6, figure_width=width, ratio=1.0)
    masses_by_name = {name: _as_mass_matrix("plans", matrix) for name, matrix in several.items()}
    largest = max(mass.max() for mass in masses_by_name.values()) if common_scale else None
    for ax, (name, mass) in zip(axes, masses_by_name.items(), strict=True):
        sizes = dict(zip("ab", mass.shape, strict=True))
        for side, masses in marginals.items():
            is_fitting = len(masses) == sizes[side]
            check(is_fitting, f"{side}: must have {sizes[side]} masses, got {len(masses)}.", "shape")
        _draw_coupling(ax, mass, **marginals, largest=largest)
        ax.set_xlabel(escape_dollars(name))
    return figure


def barycentric_maps_1d(
    plans: Values | Mapping[str, Values],
    x: Values | None = None,
    y: Values | None = None,
    *,
    width: float | None = None,
) -> Figure:
    """Draw arrows from points to the mass-weighted means of their partners.

    Rows and columns are points on two lines. An arrow is opaque in proportion to the mass of its row. The bar at its
    end is one standard deviation of the columns to either side: a deterministic map has none. At most 24 evenly spaced
    rows have an arrow.

    Args:
        plans: one plan, (N, M), nonnegative, or several by name.
        x: positions of the rows, (N,), drawn at the bottom; None: evenly spaced from 0 to 1.
        y: positions of the columns, (M,), drawn on top; None: likewise.
        width: of the figure, in inches; None: 3.2 per plan.

    Raises:
        UsageError: there is no plan, shapes do not match, an entry is negative, or matplotlib is not installed.

    Source: the barycentric map of a plan, Peyré and Cuturi (2019), Computational optimal transport, remark 4.11.

    >>> figure = barycentric_maps_1d({"exact": np.eye(4) / 4, "spread": np.full((4, 4), 1 / 16)})
    >>> [ax.get_xlabel() for ax in figure.axes]
    ['exact', 'spread']
    """
    several = plans if isinstance(plans, Mapping) else {"": plans}
    check(len(several) > 0, "plans: must have at least one plan, got none.", "missing")
    figure, axes = create_panels(len(several), 2.4, figure_width=width, ratio=1.33)
    for ax, (name, matrix) in zip(axes, several.items(), strict=True):
        mass = _as_mass_matrix("plans", matrix)
        places = [
            np.linspace(0, 1, size) if values is None else as_plot_array(side, values, 1)
            for side, values, size in zip("xy", (x, y), mass.shape, strict=True)
        ]
        for side, positions, size in zip("xy", places, mass.shape, strict=True):
            check(len(positions) == size, f"{side}: must have {size} positions, got {len(positions)}.", "shape")
        _draw_barycentric_arrows(ax, mass, *places)
        ax.set_xlabel(escape_dollars(name))
    return figure


def _draw_barycentric_arrows(ax: Axes, plan: Array, x: Array, y: Array) -> None:
    """Draw arrows from points `x` to the means of their partners in `y`."""
    rows, columns = plan.sum(1), plan.sum(0)
    sent = np.flatnonzero(rows > 0)
    for i in sent[np.linspace(0, len(sent) - 1, min(24, len(sent))).round().astype(int)]:  # more would overlap
        shares = plan[i] / rows[i]
        mean = float(shares @ y)
        deviation = float(np.sqrt(shares @ (y - mean) ** 2))
        style: dict[str, Any] = {"color": ORANGE, "alpha": 0.25 + 0.75 * float(rows[i] / rows.max())}
        ax.annotate("", (mean, 1), (x[i], 0), arrowprops={"arrowstyle": "->", "linewidth": 0.9, **style})
        ax.plot([mean - deviation, mean + deviation], [1, 1], linewidth=2.5, solid_capstyle="butt", **style)
    # The masses stand on their lines: rows below, columns above.
    ax.fill_between(x, -0.04, -0.04 - 0.3 * rows / rows.max(), step="mid", color=BLUE, alpha=0.6, linewidth=0)
    ax.fill_between(y, 1.06, 1.06 + 0.3 * columns / columns.max(), step="mid", color=GREY, alpha=0.6, linewidth=0)
    ax.set(xticks=[], yticks=[], ylim=(-0.38, 1.4))
    ax.spines[:].set_visible(False)


def _draw_coupling(
    ax: Axes, plan: Array, a: Array | None = None, b: Array | None = None, *, largest: float | None = None
) -> None:
    """Draw one transport plan with row and column sums along the edges."""
    n, m = plan.shape
    darkest = None if largest is None else np.sqrt(largest)
    ax.imshow(np.sqrt(plan), cmap=mass_colormap(ax), interpolation="nearest", aspect="auto", vmin=0, vmax=darkest)
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


def draw_bipartite_plan(ax: Axes, plan: Array, true_pair_mask: Array) -> None:
    """Draw a plan as lines from rows to columns, thicker for more mass.

    Lines of pairs that belong together, where `true_pair_mask` (N, M) is true, are blue, others orange.
    """
    n, m = plan.shape
    rows, columns = np.linspace(1, 0, n), np.linspace(1, 0, m)
    even = 1 / n
    for i, j in zip(*np.nonzero(plan > 0.02 * even), strict=True):  # smaller masses would clutter the figure
        share = min(1.0, float(plan[i, j]) / even)
        color = BLUE if true_pair_mask[i, j] else ORANGE
        ax.plot([0, 1], [rows[i], columns[j]], color=color, linewidth=0.4 + 2.6 * share, alpha=0.15 + 0.75 * share)
    _draw_mass_dots(ax, 0.0, rows, plan.sum(1) * n)
    _draw_mass_dots(ax, 1.0, columns, plan.sum(0) * m)
    ax.set(xlim=(-0.12, 1.12), ylim=(-0.06, 1.06))
    ax.axis("off")


def _draw_mass_dots(ax: Axes, x: float, heights: Array, relative_masses: Array) -> None:
    """Draw masses as areas of dots, inside rings for the mass if all were equal."""
    places = np.full(len(heights), x)
    ax.scatter(places, heights, s=60, facecolor="none", edgecolor=GREY, linewidth=0.8, zorder=3)
    ax.scatter(places, heights, s=60 * relative_masses, color=GREY, linewidth=0, zorder=4)


def _as_mass_matrix(argument: str, values: Any) -> Array:
    """Convert a plan to a checked float64 array (N, M) of masses."""
    mass = as_plot_array(argument, values, 2)
    check(bool((mass >= 0).all()), f"{argument}: must be nonnegative, got {mass.min():.3g}.", "negative")
    check(bool(mass.any()), f"{argument}: must have some mass, got only zeros.", "empty")
    return mass
