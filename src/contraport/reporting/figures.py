"""The figures of the page as plotly figures; colours are CSS variables, which the page paints in light and in dark."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from contraport.plots.colors import MASS_ON_LIGHT, class_colors
from contraport.plots.curves import thinned
from contraport.plots.masses import Scale, excludes_self, log_masses, share_on_target
from contraport.reporting.shown import Shown

INK, MUTED, GRID = "var(--ink)", "var(--muted)", "var(--line)"
STEPS = len(MASS_ON_LIGHT)
COLORSCALE = [[step / (STEPS - 1), f"var(--mass-{step})"] for step in range(STEPS)]


class Sprite(NamedTuple):
    """The thumbnails of a data set in one image, row by row."""

    uri: str
    columns: int
    width: int
    height: int
    items: int


class PlanFigures(NamedTuple):
    """A plan beside its target."""

    plan: go.Figure
    target: go.Figure
    plan_mass: float
    target_mass: float
    on_target: float
    excludes_self: bool


def curve(runs: Sequence[Shown], key: str) -> go.Figure:
    """Draw one column of the metrics over the steps, one line a run."""
    figure = _figure(height=290)
    for run in runs:
        rows = thinned(run.metrics, key)
        figure.add_scatter(
            x=[row["step"] for row in rows],
            y=[row[key] for row in rows],
            mode="lines" if len(rows) > 1 else "markers",
            line={"color": run.color, "dash": run.dash, "width": 1.8},
            meta=run.position,
            name=html.escape(run.name),
            hovertemplate="%{y:.4~g}<extra>%{fullData.name}</extra>",
        )
    figure.update_xaxes(title_text="step", rangemode="tozero")
    figure.update_yaxes(exponentformat="power")
    return figure


def scatter(run: Shown) -> go.Figure:
    """Draw the test embeddings of a run in the plane, one trace a class; hovering is the page's."""
    assert run.samples is not None
    points = run.samples["points"].astype(np.float32)
    positions = np.arange(len(points))
    figure = _figure(height=None, margin=4)
    labels = run.samples.get("labels", np.zeros(len(points), dtype=int))
    colors = class_colors(len(run.class_names)) or [MUTED]
    for label in np.unique(labels):
        members = positions[labels == label]
        figure.add_scatter(
            x=points[members, 0],
            y=points[members, 1],
            customdata=members,
            meta=int(label),
            mode="markers",
            marker={"size": 5, "opacity": 0.8, "color": colors[int(label)], "line": {"width": 0}},
            hoverinfo="none",
        )
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False, scaleanchor="x")
    figure.update_layout(hovermode="closest")
    return figure


def plan_scale(runs: Sequence[Shown]) -> Scale | None:
    """Return the one colour scale of all plans and targets; none where there is no plan."""
    return Scale.of(
        run.samples[name] for run in runs if run.samples and "plan" in run.samples for name in ("plan", "target")
    )


def plan_figures(run: Shown, scale: Scale) -> PlanFigures:
    """Draw a plan and its target as heatmaps of square cells on a logarithmic scale."""
    assert run.samples is not None
    plan, target = (run.samples[name].astype(float) for name in ("plan", "target"))
    items = int(run.samples["plan_items"])
    without_self = plan.shape[0] == 2 * items and excludes_self(plan, target)
    labels = run.samples.get("plan_labels")
    names = [f" ({run.class_names[label]})" for label in labels] if labels is not None else [""] * items
    return PlanFigures(
        plan=_heatmap(plan, scale, names, without_self),
        target=_heatmap(target, scale, names, without_self),
        plan_mass=float(plan.sum()),
        target_mass=float(target.sum()),
        on_target=share_on_target(plan, target),
        excludes_self=without_self,
    )


def sprite(thumbnails: np.ndarray) -> tuple[str, Sprite]:
    """Pack thumbnails `(m, C, H, W)` uint8 into one PNG; the same thumbnails have the same key.

    Three channels are colours; of any other number the mean is shown.
    """
    items, channels, height, width = thumbnails.shape
    pixels = thumbnails if channels == 3 else thumbnails.mean(axis=1, keepdims=True).round().astype(np.uint8)
    columns = math.ceil(math.sqrt(items))
    rows = math.ceil(items / columns)
    sheet = np.zeros((rows * columns, *pixels.shape[1:]), dtype=np.uint8)
    sheet[:items] = pixels
    sheet = sheet.reshape(rows, columns, -1, height, width).transpose(0, 3, 1, 4, 2)
    buffer = io.BytesIO()
    Image.fromarray(sheet.reshape(rows * height, columns * width, -1).squeeze()).save(buffer, "PNG", optimize=True)
    uri = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    return hashlib.sha256(buffer.getvalue()).hexdigest()[:12], Sprite(uri, columns, width, height, items)


def to_json(figure: go.Figure) -> str:
    """Return a figure as JSON that is safe inside a script element."""
    return str(figure.to_json()).replace("<", "\\u003c")


def _figure(height: int | None, margin: int | None = None) -> go.Figure:
    axis: dict[str, Any] = {
        "gridcolor": GRID,
        "linecolor": GRID,
        "zeroline": False,
        "automargin": True,
        "fixedrange": False,
        "title": {"standoff": 10},
    }
    figure = go.Figure(layout={"template": "none"})
    figure.update_layout(
        height=height,
        showlegend=False,
        margin={"l": 8, "r": 8, "t": 8, "b": 8} if margin is None else dict.fromkeys("lrtb", margin),
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "var(--sans)", "size": 12, "color": MUTED},
        hoverlabel={"bgcolor": "var(--raised)", "bordercolor": GRID, "font": {"color": INK}, "namelength": -1},
        hovermode="x unified",
        xaxis=axis,
        yaxis=axis,
    )
    return figure


def _heatmap(mass: np.ndarray, scale: Scale, names: list[str], without_self: bool) -> go.Figure:
    shown = log_masses(mass, scale, without_self=without_self)
    rows, columns = mass.shape
    figure = _figure(height=None)
    figure.add_heatmap(
        z=shown,
        customdata=mass.astype(np.float32),
        meta={"rows": _places(rows, names, view=1), "columns": _places(columns, names, view=2)},
        zmin=scale.low,
        zmax=scale.high,
        colorscale=COLORSCALE,
        showscale=False,
        hoverinfo="none",
        hoverongaps=True,
    )
    line = {"line": {"color": MUTED, "width": 1, "dash": "dot"}}
    if columns > len(names):
        figure.add_vline(x=columns / 2 - 0.5, **line)
    if rows > len(names):
        figure.add_hline(y=rows / 2 - 0.5, **line)
    figure.update_xaxes(title_text="column embedding", **_view_ticks(columns, len(names), view=2))
    figure.update_yaxes(title_text="row embedding", **_view_ticks(rows, len(names), view=1))
    figure.update_yaxes(autorange="reversed", scaleanchor="x", tickangle=-90)
    figure.update_layout(hovermode="closest")
    return figure


def _view_ticks(size: int, items: int, *, view: int) -> dict[str, Any]:
    """Name the views along an axis: both, one after the other, where it has more places than items."""
    middles, words = (
        ([size / 4, 3 * size / 4], ["view 1", "view 2"]) if size > items else ([size / 2], [f"view {view}"])
    )
    return {
        "tickvals": [middle - 0.5 for middle in middles],
        "ticktext": words,
        "showgrid": False,
        "constrain": "domain",
    }


def _places(size: int, names: list[str], *, view: int) -> list[str]:
    """Name each row or column: its view, its item and, with labels, its class."""
    items = len(names)
    return [
        f"view {1 + position // items if size > items else view}, item {position % items + 1}{names[position % items]}"
        for position in range(size)
    ]
