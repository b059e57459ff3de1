"""Report section: transport plans as heatmaps beside their targets, as lines, and over the epochs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from contraport.plots.figure_setup import Array
from contraport.plots.plan_plots import DECADES, LogScale, excludes_self_pairs, share_on_target
from contraport.reporting.html_page import PageBuilder, PlotElement, Section
from contraport.reporting.plotly_figures import (
    COLORSCALE,
    CURVE_HEIGHT,
    MUTED,
    PERCENT,
    Figure,
    build_axis_from_zero,
    build_figure,
    build_heatmap_trace,
    build_line_trace,
    build_titled_axis,
    encode_byte_matrix,
    escape_tags,
    shorten_label,
)
from contraport.reporting.report_run import ReportRun

MASS_TOLERANCE = 1e-3
"""A plan whose mass is this close to 1 counts as balanced."""

MAX_LINE_ITEMS = 16
"""Number of items between which lines are drawn, as in ``plans.js``."""

NUM_DROPPED = 6


class PlanSnapshot(NamedTuple):
    """Transport plan of a batch of test items after an epoch, with its target.

    Attributes:
        epoch: number of the epoch; None if unknown.
        plan: masses of the plan, (N, M).
        target: masses of the target plan, (N, M).
    """

    epoch: int | None
    plan: Array
    target: Array

    @property
    def share_on_target(self) -> float:
        """Share of the plan's mass in cells where the target is positive, 0 to 1."""
        return share_on_target(self.plan, self.target)

    @property
    def total_mass(self) -> float:
        """Sum of all masses of the plan; below 1 if the plan drops mass."""
        return float(self.plan.sum())

    @property
    def negative_unevenness(self) -> float | None:
        """Total variation distance of the negatives' masses from uniform; None if negatives have no mass."""
        negative = self.target == 0
        if self.excludes_self_pairs:
            negative = negative & ~np.eye(len(self.plan), dtype=bool)
        masses = self.plan[negative]
        total = masses.sum()
        return None if total == 0 else float(np.abs(masses / total - 1 / masses.size).sum() / 2)

    @property
    def excludes_self_pairs(self) -> bool:
        """Whether the plan and target exclude pairs of an embedding with itself."""
        return excludes_self_pairs(self.plan, self.target)


class RunPlan(NamedTuple):
    """Transport plans of one run, in the form that the report page shows.

    Attributes:
        run: run whose encoder and objective give the plans.
        last_snapshot: plan and target after the last epoch.
        plan_plot: heatmap of the last plan.
        target_plot: heatmap of the last target.
        snapshots: plans and targets of all evaluated epochs; the page has a slider if there are several.
        most_dropped_items: index, class name and share of kept mass of the items that lose the most mass.
        sprite_sheet_keys: keys of the sprite sheets of both views; empty strings without images.
        lines_alt_text: description, for screen readers, of the lines between items.
    """

    run: ReportRun
    last_snapshot: PlanSnapshot
    plan_plot: PlotElement
    target_plot: PlotElement
    snapshots: list[PlanSnapshot]
    most_dropped_items: list[tuple[int, str, float]]
    sprite_sheet_keys: tuple[str, str]
    lines_alt_text: str


def build_plans_section(builder: PageBuilder) -> Section | None:
    """Build the section of transport plans; return None if no run has a stored plan."""
    snapshots = {run.position: load_plan_snapshots(run) for run in builder.runs}
    matrices = (matrix for several in snapshots.values() for one in several for matrix in (one.plan, one.target))
    scale = LogScale.from_matrices(matrices)
    if scale is None:
        return None
    plans = [
        _build_run_plan(builder, run, snapshots[run.position], scale) for run in builder.runs if snapshots[run.position]
    ]
    several = [plan for plan in plans if len(plan.snapshots) > 1]
    over_epochs = builder.add_plot("on-target", *draw_mass_on_target_curves(several)) if several else None
    values = {"plans": plans, "scale": scale, "decades": DECADES, "over_epochs": over_epochs, "lines": MAX_LINE_ITEMS}
    return Section("plans", "Plans", values)


def load_plan_snapshots(run: ReportRun) -> list[PlanSnapshot]:
    """Return the stored plans and targets of a run in the order of epochs."""
    samples = run.figure_arrays or {}
    if "plan" not in samples:
        return []
    if "plans" in samples:
        epochs = zip(samples["plan_epochs"], samples["plans"], samples["targets"], strict=True)
        return [PlanSnapshot(int(epoch), plan.astype(float), target.astype(float)) for epoch, plan, target in epochs]
    epoch = (run.evaluation or {}).get("epochs")
    return [PlanSnapshot(epoch, samples["plan"].astype(float), samples["target"].astype(float))]


def _build_run_plan(builder: PageBuilder, run: ReportRun, snapshots: list[PlanSnapshot], scale: LogScale) -> RunPlan:
    assert run.figure_arrays is not None
    samples, items, last = run.figure_arrays, int(run.figure_arrays["plan_items"]), snapshots[-1]
    labels = samples.get("plan_labels")
    classes = [run.class_names[label] for label in labels] if labels is not None else [""] * items
    kept = mass_kept_per_item(last, items)
    dropped = [(int(k), classes[k], float(kept[k])) for k in _items_with_most_dropped_mass(last, kept)]
    key = f"plan-{run.position}"
    first, second = (str(name) for name in samples.get("plan_view_names", ("view 1", "view 2")))
    labels_by_epoch = [
        f"plan of {run.name}: {_describe_mass(one.total_mass)}{one.share_on_target:.0%} of its mass on target"
        for one in snapshots
    ]
    line_labels = [
        f"Lines from {first} to {second}; {one.share_on_target:.0%} of the mass is on target" for one in snapshots
    ]
    first_sheet, second_sheet = (builder.add_thumbnails(samples.get(f"plan_view_{side}")) for side in (1, 2))
    same_target = all(np.array_equal(one.target, snapshots[0].target) for one in snapshots)
    builder.script_data.setdefault("plans", {})[key] = {
        "epochs": [one.epoch for one in snapshots],
        "plans": [encode_byte_matrix(quantize_masses(one.plan, scale)) for one in snapshots],
        "targets": [
            encode_byte_matrix(quantize_masses(one.target, scale)) for one in snapshots[: 1 if same_target else None]
        ],
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
    suffixes = [f" ({name})" if name else "" for name in classes]
    plan, target = (
        _draw_heatmap(mass, scale, suffixes, (first, second), without_self=last.excludes_self_pairs)
        for mass in (last.plan, last.target)
    )
    target_label = f"target of {run.name}: mass {last.target.sum():.3f}"
    return RunPlan(
        run,
        last,
        builder.add_plot(key, plan, labels_by_epoch[-1], "square"),
        builder.add_plot(f"target-{run.position}", target, target_label, "square"),
        snapshots,
        dropped,
        (first_sheet, second_sheet),
        line_labels[-1],
    )


def quantize_masses(mass: Array, scale: LogScale) -> np.ndarray[Any, Any]:
    """Map masses to bytes from 0 to 255 on a logarithmic scale; masses below the scale become 0."""
    logs = np.log10(np.maximum(mass, 10**scale.log10_low))
    result: np.ndarray[Any, Any] = (logs - scale.log10_low) / ((scale.log10_high - scale.log10_low) or 1) * 255
    return result.round().clip(0, 255).astype(np.uint8)


def mass_kept_per_item(snapshot: PlanSnapshot, items: int) -> np.ndarray[Any, Any]:
    """Return the share of its target mass that each item keeps in the plan, ``(items,)``."""
    actual, target = snapshot.plan.sum(axis=1), snapshot.target.sum(axis=1)
    if len(actual) % items:  # rows that are not whole views of the items
        return np.ones(items)
    by_item = [rows.reshape(-1, items).sum(axis=0) for rows in (actual, target)]
    return np.asarray(by_item[0] / np.maximum(by_item[1], 1e-12))


def draw_mass_on_target_curves(plans: list[RunPlan]) -> tuple[Figure, str]:
    """Draw the share of mass on target over the epochs, one line per run; also return a description."""
    hover = "%{y:.1%}<extra>%{fullData.name}</extra>"
    lines = []
    for plan in plans:
        epochs, values = [one.epoch for one in plan.snapshots], [one.share_on_target for one in plan.snapshots]
        lines.append(build_line_trace(plan.run, epochs, values, mode="lines+markers", hovertemplate=hover))
    ends = "; ".join(f"{plan.run.name}: {plan.last_snapshot.share_on_target:.0%}" for plan in plans)
    x = build_axis_from_zero("epoch", max(plan.last_snapshot.epoch or 0 for plan in plans))
    y = {"tickformat": PERCENT, "rangemode": "tozero"}
    figure = build_figure(lines, height=CURVE_HEIGHT - 60, hovermode="x unified", x=x, y=y)
    return figure, f"Share of the plan’s mass on target over the epochs; last values: {ends}."


def _items_with_most_dropped_mass(snapshot: PlanSnapshot, kept: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return indices of the items that lose the most mass; empty if the plan keeps all mass."""
    least = np.argsort(kept, kind="stable")[:NUM_DROPPED]
    return least[(kept[least] < 1 - MASS_TOLERANCE) & (snapshot.total_mass < 1 - MASS_TOLERANCE)]


def _describe_mass(mass: float) -> str:
    if abs(mass - 1) < MASS_TOLERANCE:
        return ""
    return f"mass {mass:.3f}, {1 - mass:.0%} dropped; " if mass < 1 else f"mass {mass:.3g}, above 1; "


def _draw_heatmap(
    mass: Array, scale: LogScale, suffixes: list[str], views: tuple[str, str], *, without_self: bool
) -> Figure:
    """Draw a plan or target as a plotly heatmap, with lines between the blocks of both views."""
    rows, columns = mass.shape
    items = len(suffixes)
    trace = build_heatmap_trace(quantize_masses(mass, scale), colorscale=COLORSCALE)
    trace["z"]["withoutSelf"] = without_self
    trace["meta"] = {
        "rows": _name_embeddings(rows, suffixes, views, view=0),
        "columns": _name_embeddings(columns, suffixes, views, view=1),
        "scale": [scale.log10_low, scale.log10_high],
    }
    style = {"type": "line", "line": {"color": MUTED, "width": 1, "dash": "dot"}}
    shapes = []
    if columns > items:
        shapes.append(style | {"x0": columns / 2 - 0.5, "x1": columns / 2 - 0.5, "y0": -0.5, "y1": rows - 0.5})
    if rows > items:
        shapes.append(style | {"y0": rows / 2 - 0.5, "y1": rows / 2 - 0.5, "x0": -0.5, "x1": columns - 0.5})
    x = build_titled_axis("column embedding", **_build_view_ticks(columns, items, views, view=1))
    y = build_titled_axis("row embedding", **_build_view_ticks(rows, items, views, view=0))
    y |= {"autorange": "reversed", "scaleanchor": "x", "tickangle": -90}
    return build_figure([trace], x=x, y=y, shapes=shapes)


def _build_view_ticks(size: int, items: int, views: tuple[str, str], *, view: int) -> dict[str, Any]:
    """Return axis ticks with the names of the views whose embeddings the axis holds."""
    middles, names = ([size / 4, 3 * size / 4], views) if size > items else ([size / 2], (views[view],))
    return {
        "tickvals": [middle - 0.5 for middle in middles],
        "ticktext": [escape_tags(shorten_label(name)) for name in names],
        "showgrid": False,
        "constrain": "domain",
    }


def _name_embeddings(size: int, suffixes: list[str], views: tuple[str, str], *, view: int) -> list[str]:
    """Return the hover text of each row or column: view, item and class."""
    items = len(suffixes)
    return [
        f"{views[k // items if size > items else view]}, item {k % items + 1}{suffixes[k % items]}" for k in range(size)
    ]
