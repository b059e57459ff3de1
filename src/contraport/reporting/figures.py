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

from contraport.reporting.shown import COLORS, Shown

POINTS_PER_LINE = 1_000
"""A longer curve is drawn by every k-th of its rows."""

DECADES = 5
"""How far below its largest cell the colour scale of a plan reaches."""

INK, MUTED, GRID = "var(--ink)", "var(--muted)", "var(--line)"
COLORSCALE = [[step / 6, f"var(--mass-{step})"] for step in range(7)]


class Sprite(NamedTuple):
    """The thumbnails of a data set in one image, row by row."""

    uri: str
    columns: int
    width: int
    height: int
    items: int


class Scale(NamedTuple):
    """The decimal logarithms of the masses at the ends of the colour scale."""

    low: float
    high: float

    @property
    def ticks(self) -> list[tuple[int, float]]:
        """The whole powers of ten on the scale, and how far along it each lies, from 0 to 1."""
        powers = range(math.ceil(self.low), math.floor(self.high) + 1)
        return [(power, (power - self.low) / ((self.high - self.low) or 1)) for power in powers]


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
        rows = [row for row in run.metrics if row.get(key) is not None]
        rows = rows[:: max(1, math.ceil(len(rows) / POINTS_PER_LINE))]
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
    matrices = [
        run.samples[name] for run in runs if run.samples and "plan" in run.samples for name in ("plan", "target")
    ]
    largest = [math.log10(matrix.max()) for matrix in matrices]
    smallest = [math.log10(matrix[matrix > 0].min()) for matrix in matrices]
    return Scale(max(min(smallest), max(largest) - DECADES), max(largest)) if matrices else None


def plan_figures(run: Shown, scale: Scale) -> PlanFigures:
    """Draw a plan and its target as heatmaps of square cells on a logarithmic scale."""
    assert run.samples is not None
    plan, target = (run.samples[name].astype(float) for name in ("plan", "target"))
    items = int(run.samples["plan_items"])
    square = plan.shape[0] == plan.shape[1] == 2 * items
    excludes_self = square and not np.diag(plan).any() and not np.diag(target).any()
    labels = run.samples.get("plan_labels")
    names = [f" ({run.class_names[label]})" for label in labels] if labels is not None else [""] * items
    return PlanFigures(
        plan=_heatmap(plan, scale, names, excludes_self),
        target=_heatmap(target, scale, names, excludes_self),
        plan_mass=float(plan.sum()),
        target_mass=float(target.sum()),
        on_target=float(plan[target > 0].sum() / plan.sum()),
        excludes_self=excludes_self,
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


def class_colors(classes: int) -> list[str]:
    """Return one colour a class: the palette of the page, or evenly spaced hues where it has too few."""
    if classes <= COLORS:
        return [f"var(--class-{label})" for label in range(classes)]
    return [f"hsl({360 * label / classes:.0f}, 62%, {44 + 14 * (label % 2)}%)" for label in range(classes)]


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


def _heatmap(mass: np.ndarray, scale: Scale, names: list[str], excludes_self: bool) -> go.Figure:
    shown = np.log10(np.maximum(mass, 10**scale.low)).astype(np.float32)
    if excludes_self:
        np.fill_diagonal(shown, np.nan)
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
