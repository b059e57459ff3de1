"""The plan beside its target: as heatmaps, as lines between pictures, over the training, and the mass that it keeps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from contraport.plots.mass_scale import DECADES, LogScale, Masses, excludes_self_pairs, share_on_target
from contraport.reporting.page_builder import Canvas, Plot, Section
from contraport.reporting.plotly_figures import (
    COLORSCALE,
    CURVE_HEIGHT,
    MUTED,
    PERCENT,
    Figure,
    encode_byte_matrix,
    escaped,
    figure,
    heatmap,
    line,
    over,
    short,
    titled,
)
from contraport.reporting.report_run import ReportRun

ROUNDING = 1e-3
"""A plan whose mass is this close to 1 has let nothing go."""

LINES = 16
"""Of at most so many items pairs are drawn as lines."""

LEAST_KEPT = 6


class PlanSnapshot(NamedTuple):
    """A plan and its target after an epoch."""

    epoch: int | None
    plan: Masses
    target: Masses

    @property
    def on_target(self) -> float:
        """How much of the plan's mass is where the target has some."""
        return share_on_target(self.plan, self.target)

    @property
    def mass(self) -> float:
        """The plan's mass in all."""
        return float(self.plan.sum())

    @property
    def unevenness(self) -> float | None:
        """Which share of the mass on negatives would have to move for all of them to have as much."""
        negative = self.target == 0
        if self.excludes_self_pairs:
            negative = negative & ~np.eye(len(self.plan), dtype=bool)
        masses = self.plan[negative]
        total = masses.sum()
        return None if total == 0 else float(np.abs(masses / total - 1 / masses.size).sum() / 2)

    @property
    def excludes_self_pairs(self) -> bool:
        """Whether no pair of an embedding with itself is compared."""
        return excludes_self_pairs(self.plan, self.target)


class RunPlan(NamedTuple):
    """What is shown of a run's plan: its last moment, its figures, and whether there are others to slide to."""

    run: ReportRun
    last: PlanSnapshot
    plan: Plot
    target: Plot
    moments: list[PlanSnapshot]
    items: int
    least_kept: list[tuple[int, str, float]]
    sheets: tuple[str, str]
    of_lines: str


def plans(canvas: Canvas) -> Section | None:
    """Return the plan of each run that has one; nothing where none has."""
    moments = {run.position: load_snapshots(run) for run in canvas.runs}
    scale = LogScale.of(
        matrix for found in moments.values() for moment in found for matrix in (moment.plan, moment.target)
    )
    if scale is None:
        return None
    shown = [_shown(canvas, run, moments[run.position], scale) for run in canvas.runs if moments[run.position]]
    longer = [one for one in shown if len(one.moments) > 1]
    course = canvas.draw("on-target", *draw_on_target_curves(longer)) if longer else None
    return Section(
        "plans", "Plans", {"shown": shown, "scale": scale, "decades": DECADES, "course": course, "lines": LINES}
    )


def load_snapshots(run: ReportRun) -> list[PlanSnapshot]:
    """Return the plans of a run that were kept, the last one last."""
    samples = run.samples or {}
    if "plan" not in samples:
        return []
    if "plans" in samples:
        found = zip(samples["plan_epochs"], samples["plans"], samples["targets"], strict=True)
        return [PlanSnapshot(int(epoch), plan.astype(float), target.astype(float)) for epoch, plan, target in found]
    epoch = (run.evaluation or {}).get("epochs")
    return [PlanSnapshot(epoch, samples["plan"].astype(float), samples["target"].astype(float))]


def _shown(canvas: Canvas, run: ReportRun, moments: list[PlanSnapshot], scale: LogScale) -> RunPlan:
    assert run.samples is not None
    items, last = int(run.samples["plan_items"]), moments[-1]
    labels = run.samples.get("plan_labels")
    classes = [run.class_names[label] for label in labels] if labels is not None else [""] * items
    kept = mass_kept_per_item(last, items)
    least = [(int(k), classes[k], float(kept[k])) for k in _let_go(last, kept)]
    key = f"plan-{run.position}"
    first, second = (str(name) for name in run.samples.get("plan_view_names", ("view 1", "view 2")))
    said = [
        f"plan of {run.name}: {_kept(one.mass)}{one.on_target:.0%} of its mass where the target has mass"
        for one in moments
    ]
    of_lines = [
        f"Lines from items of {first} to items of {second}; {one.on_target:.0%} of the mass is on target"
        for one in moments
    ]
    sheets = tuple(canvas.pictures(run.samples.get(f"plan_view_{side}")) for side in (1, 2))
    canvas.data.setdefault("plans", {})[key] = {
        "epochs": [moment.epoch for moment in moments],
        "plans": [encode_byte_matrix(quantize_masses(moment.plan, scale)) for moment in moments],
        "targets": [encode_byte_matrix(quantize_masses(moment.target, scale)) for moment in _different(moments)],
        "onTarget": [round(moment.on_target, 4) for moment in moments],
        "mass": [round(moment.mass, 4) for moment in moments],
        "said": said,
        "ofLines": of_lines,
        "scale": [scale.low, scale.high],
        "withoutSelf": last.excludes_self_pairs,
        "items": items,
        "classes": classes,
        "sheets": sheets,
    }
    names = [f" ({name})" if name else "" for name in classes]
    views = first, second
    plan = canvas.draw(
        key, _heatmap(last.plan, scale, names, views, without_self=last.excludes_self_pairs), said[-1], "square"
    )
    wanted = _heatmap(last.target, scale, names, views, without_self=last.excludes_self_pairs)
    target = canvas.draw(
        f"target-{run.position}", wanted, f"target of {run.name}: mass {last.target.sum():.3f}", "square"
    )
    return RunPlan(run, last, plan, target, moments, items, least, (sheets[0], sheets[1]), of_lines[-1])


def quantize_masses(mass: Masses, scale: LogScale) -> np.ndarray[Any, Any]:
    """Return masses as bytes, 0 to 255 along the logarithmic scale; what is below it is 0."""
    logs = np.log10(np.maximum(mass, 10**scale.low))
    return ((logs - scale.low) / ((scale.high - scale.low) or 1) * 255).round().clip(0, 255).astype(np.uint8)


def mass_kept_per_item(moment: PlanSnapshot, items: int) -> np.ndarray[Any, Any]:
    """Return for each item which share of the mass that it was wanted to have its rows have, `(items,)`."""
    found, wanted = moment.plan.sum(axis=1), moment.target.sum(axis=1)
    if len(found) % items:
        return np.ones(items)
    of_items = [rows.reshape(-1, items).sum(axis=0) for rows in (found, wanted)]
    return np.asarray(of_items[0] / np.maximum(of_items[1], 1e-12))


def draw_on_target_curves(shown: list[RunPlan]) -> tuple[Figure, str]:
    """Draw the share of mass on target over the epochs, one line a run, and say where it ends."""
    lines = []
    for one in shown:
        values = [moment.on_target for moment in one.moments]
        hover = "%{y:.1%}<extra>%{fullData.name}</extra>"
        lines.append(
            line(one.run, [moment.epoch for moment in one.moments], values, mode="lines+markers", hovertemplate=hover)
        )
    ends = "; ".join(f"{one.run.name}: {one.last.on_target:.0%}" for one in shown)
    y = {"tickformat": PERCENT, "rangemode": "tozero"}
    last = max(one.last.epoch or 0 for one in shown)
    drawing = figure(lines, height=CURVE_HEIGHT - 60, hovermode="x unified", x=over("epoch", last), y=y)
    return drawing, f"Share of the plan’s mass on target over the epochs; at the end {ends}."


def _let_go(moment: PlanSnapshot, kept: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the few items of which most was let go, where the plan lets any go."""
    least = np.argsort(kept, kind="stable")[:LEAST_KEPT]
    return least[(kept[least] < 1 - ROUNDING) & (moment.mass < 1 - ROUNDING)]


def _different(moments: list[PlanSnapshot]) -> list[PlanSnapshot]:
    """Return the moments of different targets: the first alone where all have the same."""
    same = all(np.array_equal(moment.target, moments[0].target) for moment in moments)
    return moments[:1] if same else moments


def _kept(mass: float) -> str:
    """Return what the mass of a plan says of the pairs."""
    if abs(mass - 1) < ROUNDING:
        return ""
    return f"mass {mass:.3f}, so that {1 - mass:.0%} was let go; " if mass < 1 else f"mass {mass:.3g}, more than 1; "


def _heatmap(mass: Masses, scale: LogScale, names: list[str], views: tuple[str, str], *, without_self: bool) -> Figure:
    rows, columns = mass.shape
    trace = heatmap(quantize_masses(mass, scale), colorscale=COLORSCALE)
    trace["z"]["withoutSelf"] = without_self
    trace["meta"] = {
        "rows": _places(rows, names, views, view=0),
        "columns": _places(columns, names, views, view=1),
        "scale": [scale.low, scale.high],
    }
    mark = {"type": "line", "line": {"color": MUTED, "width": 1, "dash": "dot"}}
    shapes = []
    if columns > len(names):
        shapes.append(mark | {"x0": columns / 2 - 0.5, "x1": columns / 2 - 0.5, "y0": -0.5, "y1": rows - 0.5})
    if rows > len(names):
        shapes.append(mark | {"y0": rows / 2 - 0.5, "y1": rows / 2 - 0.5, "x0": -0.5, "x1": columns - 0.5})
    x = titled("column embedding", **_view_ticks(columns, len(names), views, view=1))
    y = titled("row embedding", **_view_ticks(rows, len(names), views, view=0))
    return figure([trace], x=x, y={**y, "autorange": "reversed", "scaleanchor": "x", "tickangle": -90}, shapes=shapes)


def _view_ticks(size: int, items: int, views: tuple[str, str], *, view: int) -> dict[str, Any]:
    """Name the views along an axis: both, one after the other, where it has more places than items."""
    middles, words = ([size / 4, 3 * size / 4], views) if size > items else ([size / 2], [views[view]])
    return {
        "tickvals": [middle - 0.5 for middle in middles],
        "ticktext": [escaped(short(word)) for word in words],
        "showgrid": False,
        "constrain": "domain",
    }


def _places(size: int, names: list[str], views: tuple[str, str], *, view: int) -> list[str]:
    """Name each row or column: its view, its item and, with labels, its class."""
    items = len(names)
    return [
        f"{views[position // items if size > items else view]}, item {position % items + 1}{names[position % items]}"
        for position in range(size)
    ]
