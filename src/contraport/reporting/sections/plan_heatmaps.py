"""Report section with the transport plan of each epoch as a heatmap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from contraport.plots.plan_plots import MAX_DECADES, LogScale, excludes_self_pairs, log10_with_floor, share_on_target
from contraport.plots.plot_inputs import Array
from contraport.reporting.html_page_parts import PageAssets, PlotElement, Section
from contraport.reporting.plotly_figures import (
    CURVE_HEIGHT_PIXELS,
    HEATMAP_COLORSCALE,
    MUTED_COLOR,
    PERCENT_TICK_FORMAT,
    PlotlyFigure,
    build_axis_from_zero,
    build_byte_heatmap_trace,
    build_figure,
    build_line_trace,
    build_titled_axis,
    encode_base64_matrix,
    escape_tags,
    shorten_label,
)
from contraport.reporting.reported_run import ReportedRun

DROPPED_MASS_TOLERANCE = 1e-3
"""Largest deviation from mass 1 at which neither a plan nor an item counts as having dropped mass."""

MAX_ITEMS_FOR_BIPARTITE_DRAWING = 16
"""Maximum number of items of a plan that is also drawn as lines connecting items, as in ``plans.js``."""


class PlanSnapshot(NamedTuple):
    """Plan and target of a batch of test items after an epoch.

    Both have the shape (N, M). The epoch is None if it was not recorded.
    """

    epoch: int | None
    plan: Array
    target: Array

    @property
    def share_on_target(self) -> float:
        """Share of the plan's mass where the target is positive, 0 to 1."""
        return share_on_target(self.plan, self.target)

    @property
    def share_on_target_if_uniform(self) -> float:
        """Share on target of equal masses of all pairs."""
        return share_on_target(1 - np.eye(*self.plan.shape) * self.excludes_self_pairs, self.target)

    @property
    def total_mass(self) -> float:
        """Total mass of the plan, below 1 if the plan drops mass."""
        return float(self.plan.sum())

    @property
    def effective_partners(self) -> float:
        """Effective number of partners per row, the exponential of the mean row entropy.

        The mean is weighted by the masses of the rows.

        >>> plan = np.array([[0.2, 0.2, 0.0], [0.4, 0.0, 0.0]])  # rows with two partners, and with one
        >>> round(PlanSnapshot(None, plan, plan).effective_partners, 3)
        1.414
        """
        mass = self.plan.sum(axis=1, keepdims=True)
        shares = self.plan / np.where(mass > 0, mass, 1)
        entropies = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(axis=1)
        return float(np.exp((mass[:, 0] @ entropies) / (mass.sum() or 1)))

    @property
    def negatives_tv_from_uniform(self) -> float | None:
        """Total variation distance of the negatives' masses from a uniform distribution."""
        negative = self.target == 0
        if self.excludes_self_pairs:
            negative = negative & ~np.eye(len(self.plan), dtype=bool)
        masses = self.plan[negative]
        total = masses.sum()
        return None if total == 0 else float(np.abs(masses / total - 1 / masses.size).sum() / 2)

    @property
    def excludes_self_pairs(self) -> bool:
        """True if the plan and target exclude pairs of an embedding with itself."""
        return excludes_self_pairs(self.plan, self.target)


class PlanCard(NamedTuple):
    """Template variables for the plans of one run.

    Attributes:
        most_dropped_items: item, class name and share of the target mass that the plan keeps, for the least shares.
        sprite_sheet_key: key of the thumbnails of the first view; empty without any.
    """

    run: ReportedRun
    snapshots: list[PlanSnapshot]
    plan_plot: PlotElement
    target_plot: PlotElement
    most_dropped_items: list[tuple[int, str, float]]
    sprite_sheet_key: str
    lines_alt_text: str

    @property
    def last_snapshot(self) -> PlanSnapshot:
        """Snapshot after the last epoch; the card shows it first."""
        return self.snapshots[-1]


def build_plans_section(assets: PageAssets) -> Section | None:
    """Build the section of transport plans, or None if none is stored."""
    snapshots = {run.position: load_plan_snapshots(run) for run in assets.runs}
    matrices = (matrix for several in snapshots.values() for one in several for matrix in (one.plan, one.target))
    scale = LogScale.from_matrices(matrices)
    if scale is None:
        return None
    with_plans = [run for run in assets.runs if snapshots[run.position]]
    plans = [_add_plan_card(assets, run, snapshots[run.position], scale) for run in with_plans]
    over_epochs = None
    if several := [(run, snapshots[run.position]) for run in assets.runs if len(snapshots[run.position]) > 1]:
        over_epochs = _add_share_on_target_plot(assets, several)
    values = {
        "plans": plans,
        "scale": scale,
        "decades": MAX_DECADES,
        "over_epochs": over_epochs,
        "lines": MAX_ITEMS_FOR_BIPARTITE_DRAWING,
    }
    return Section("plans", "Plans", values)


def load_plan_snapshots(run: ReportedRun) -> list[PlanSnapshot]:
    """Load the stored plans and targets of a run, in epoch order."""
    samples = run.figure_arrays
    if "plan" not in samples:
        return []
    if "plans" in samples:
        epochs = zip(samples["plan_epochs"], samples["plans"], samples["targets"], strict=True)
        return [PlanSnapshot(int(epoch), plan.astype(float), target.astype(float)) for epoch, plan, target in epochs]
    epoch = run.evaluation.get("epochs")
    return [PlanSnapshot(epoch, samples["plan"].astype(float), samples["target"].astype(float))]


def _add_plan_card(assets: PageAssets, run: ReportedRun, snapshots: list[PlanSnapshot], scale: LogScale) -> PlanCard:
    """Add the plots of a run's plans to the page, with the data that its JavaScript reads."""
    samples, items, last = run.figure_arrays, int(run.figure_arrays["plan_items"]), snapshots[-1]
    labels = samples.get("plan_labels")
    classes = [run.class_names[label] for label in labels] if labels is not None else [""] * items
    kept = row_mass_over_target_row_mass_per_item(last, items)
    drops_mass = last.total_mass < 1 - DROPPED_MASS_TOLERANCE
    least = np.argsort(kept, kind="stable")[:6]
    dropped = [
        (int(k), classes[k], float(kept[k])) for k in least if drops_mass and kept[k] < 1 - DROPPED_MASS_TOLERANCE
    ]
    key = f"plan-{run.position}"
    first, second = (str(name) for name in samples.get("plan_view_names", ("view 1", "view 2")))
    labels_by_epoch = [
        f"plan of {run.name}: {_total_mass_prefix(one.total_mass)}{one.share_on_target:.0%} of its mass on target"
        for one in snapshots
    ]
    line_labels = [
        f"Lines from {first} to {second}; {one.share_on_target:.0%} of the mass is on target" for one in snapshots
    ]
    first_sheet, second_sheet = (assets.add_thumbnails(samples.get(f"plan_view_{side}")) for side in (1, 2))
    has_one_target = all(np.array_equal(one.target, last.target) for one in snapshots)
    with_targets = snapshots[:1] if has_one_target else snapshots
    assets.script_data.setdefault("plans", {})[key] = {
        "epochs": [one.epoch for one in snapshots],
        "plans": [encode_base64_matrix(quantize_masses(one.plan, scale)) for one in snapshots],
        "targets": [encode_base64_matrix(quantize_masses(one.target, scale)) for one in with_targets],
        "onTarget": [round(one.share_on_target, 4) for one in snapshots],
        "mass": [round(one.total_mass, 4) for one in snapshots],
        "labels": labels_by_epoch,
        "lineLabels": line_labels,
        "scale": [scale.log10_low, scale.log10_high],
        "withoutSelf": last.excludes_self_pairs,
        "items": items,
        "classes": classes,
        "sheets": (first_sheet, second_sheet),
    }
    class_suffix_by_item = [f" ({name})" if name else "" for name in classes]
    plan, target = (
        _draw_heatmap(mass, scale, class_suffix_by_item, (first, second), without_self=last.excludes_self_pairs)
        for mass in (last.plan, last.target)
    )
    target_label = f"target of {run.name}: mass {last.target.sum():.1%}"
    plan_plot = assets.add_plot(key, plan, labels_by_epoch[-1], "square")
    target_plot = assets.add_plot(f"target-{run.position}", target, target_label, "square")
    return PlanCard(run, snapshots, plan_plot, target_plot, dropped, first_sheet, line_labels[-1])


def quantize_masses(mass: Array, scale: LogScale) -> np.ndarray[Any, Any]:
    """Map masses on a logarithmic scale to integers from 0 to 255."""
    span = (scale.log10_high - scale.log10_low) or 1
    codes: Array = (log10_with_floor(mass, scale) - scale.log10_low) / span * 255
    return codes.round().clip(0, 255).astype(np.uint8)


def row_mass_over_target_row_mass_per_item(snapshot: PlanSnapshot, num_items: int) -> np.ndarray[Any, Any]:
    """Return each item's plan mass divided by its target mass, ``(num_items,)``.

    All ratios are 1 if rows are not items.
    """
    actual, target = snapshot.plan.sum(axis=1), snapshot.target.sum(axis=1)
    if len(actual) % num_items:  # rows that are not whole views of the items
        return np.ones(num_items)
    by_item = [rows.reshape(-1, num_items).sum(axis=0) for rows in (actual, target)]
    return np.asarray(by_item[0] / np.maximum(by_item[1], 1e-12))


def _add_share_on_target_plot(
    assets: PageAssets, plans: Sequence[tuple[ReportedRun, Sequence[PlanSnapshot]]]
) -> PlotElement:
    """Add a plot of the share of the plan's mass on target pairs, over the epochs."""
    hover = "%{y:.1%}<extra>%{fullData.name}</extra>"
    lines = []
    for run, snapshots in plans:
        epochs, values = [one.epoch for one in snapshots], [one.share_on_target for one in snapshots]
        lines.append(build_line_trace(run, epochs, values, mode="lines+markers", hovertemplate=hover))
    ends = "; ".join(f"{run.name}: {of[-1].share_on_target:.0%}" for run, of in plans)
    x = build_axis_from_zero("epoch", max(of[-1].epoch or 0 for _, of in plans))
    y = {"tickformat": PERCENT_TICK_FORMAT, "rangemode": "tozero"}
    figure = build_figure(lines, height=CURVE_HEIGHT_PIXELS - 60, hovermode="x unified", x=x, y=y)
    label = f"Share of the plan’s mass on target over the epochs; last values: {ends}."
    return assets.add_plot("on-target", figure, label)


def _total_mass_prefix(mass: float) -> str:
    """Return a label prefix with the plan's total mass, empty if it is 1."""
    text = f"mass {mass:.1%}, {1 - mass:.1%} dropped; " if mass < 1 else f"mass {mass:.1%}, above 100%; "
    return "" if abs(mass - 1) < DROPPED_MASS_TOLERANCE else text


def _draw_heatmap(
    mass: Array, scale: LogScale, class_suffix_by_item: list[str], view_names: tuple[str, str], *, without_self: bool
) -> PlotlyFigure:
    """Draw a plan or target as a heatmap, with dotted lines between views."""
    rows, columns = mass.shape
    items = len(class_suffix_by_item)
    trace = build_byte_heatmap_trace(quantize_masses(mass, scale), colorscale=HEATMAP_COLORSCALE)
    trace["z"]["withoutSelf"] = without_self
    trace["meta"] = {
        "rows": _build_hover_texts(rows, class_suffix_by_item, view_names, view_index=0),
        "columns": _build_hover_texts(columns, class_suffix_by_item, view_names, view_index=1),
        "scale": [scale.log10_low, scale.log10_high],
    }
    style = {"type": "line", "line": {"color": MUTED_COLOR, "width": 1, "dash": "dot"}}
    shapes = []
    if columns > items:
        shapes.append(style | {"x0": columns / 2 - 0.5, "x1": columns / 2 - 0.5, "y0": -0.5, "y1": rows - 0.5})
    if rows > items:
        shapes.append(style | {"y0": rows / 2 - 0.5, "y1": rows / 2 - 0.5, "x0": -0.5, "x1": columns - 0.5})
    x = build_titled_axis("column embedding", **_build_view_name_ticks(columns, items, view_names, view_index=1))
    y = build_titled_axis("row embedding", **_build_view_name_ticks(rows, items, view_names, view_index=0))
    y |= {"autorange": "reversed", "scaleanchor": "x", "tickangle": -90}
    return build_figure([trace], x=x, y=y, shapes=shapes)


def _build_view_name_ticks(
    num_embeddings: int, num_items: int, view_names: tuple[str, str], *, view_index: int
) -> dict[str, Any]:
    """Build the ticks of a plotly axis, labeled with view names."""
    names = list(view_names) if num_embeddings > num_items else [view_names[view_index]]
    middles = [(place + 0.5) * num_embeddings / len(names) for place in range(len(names))]
    return {
        "tickvals": [middle - 0.5 for middle in middles],
        "ticktext": [escape_tags(shorten_label(name)) for name in names],
        "showgrid": False,
        "constrain": "domain",
    }


def _build_hover_texts(
    num_embeddings: int, class_suffix_by_item: list[str], view_names: tuple[str, str], *, view_index: int
) -> list[str]:
    """Build hover texts of rows or columns, such as "view 1, item 3"."""
    items = len(class_suffix_by_item)
    views = [view_names[k // items if num_embeddings > items else view_index] for k in range(num_embeddings)]
    return [f"{view}, item {k % items + 1}{class_suffix_by_item[k % items]}" for k, view in enumerate(views)]
