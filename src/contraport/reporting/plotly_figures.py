"""Builders of plotly figures as JSON data with CSS variables as colors.

CSS variables follow the light and dark mode of the page.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from contraport.plots.figure_setup import MASS_SCALE_ON_LIGHT
from contraport.reporting.reported_run import ReportedRun

PlotlyFigure = dict[str, Any]
"""Plotly figure as JSON data: traces under ``data`` and settings under ``layout``, in the schema of plotly.js."""

INK_COLOR, MUTED_COLOR, GRID_COLOR = "var(--ink)", "var(--muted)", "var(--line)"
"""CSS colors of main text, other text and lines."""

HEATMAP_COLORSCALE = [
    [step / (len(MASS_SCALE_ON_LIGHT) - 1), f"var(--mass-{step})"] for step, _ in enumerate(MASS_SCALE_ON_LIGHT)
]
"""Plotly color scale of heatmaps: position from 0 to 1 and CSS color of each step."""

CURVE_HEIGHT_PIXELS = 290  # of a figure of curves
MAX_INTEGER_TICKS = 12  # on an axis with a tick at each integer; plotly spaces the ticks of a longer axis
MAX_LABEL_CHARS = 14  # of a name on an axis, the ellipsis included
PERCENT_TICK_FORMAT = ".1~%"  # tick format of shares in plotly: percent with at most one decimal


class Base64Matrix(TypedDict):
    """Matrix of values from 0 to 255, which the script of the page decodes."""

    bytes: str
    columns: int


def build_figure(
    traces: Iterable[Mapping[str, Any]],
    *,
    height: int | None = None,
    margin: int = 8,
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any] | None = None,
    **layout: Any,
) -> PlotlyFigure:
    """Build a plotly figure in the report's style from its traces."""
    axis: dict[str, Any] = {"gridcolor": GRID_COLOR, "linecolor": GRID_COLOR, "zeroline": False, "automargin": True}
    return {
        "data": [dict(trace) for trace in traces],
        "layout": {
            "template": "none",  # plotly's default template sets colors that ignore the theme
            "showlegend": False,
            "margin": dict.fromkeys("lrtb", margin),
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "var(--sans)", "size": 12, "color": MUTED_COLOR},
            "hoverlabel": {
                "bgcolor": "var(--raised)",
                "bordercolor": GRID_COLOR,
                "font": {"color": INK_COLOR},
                "namelength": -1,
            },
            "hovermode": "closest",
            "xaxis": axis | dict(x or {}),
            "yaxis": axis | dict(y or {}),
        }
        | ({} if height is None else {"height": height})
        | layout,
    }


def build_axis_from_zero(title: str, largest_integer: float | None = None) -> dict[str, Any]:
    """Build the settings of a titled plotly axis that starts at zero.

    It has a tick at each integer if `largest_integer` is small.
    """
    ticks = {} if largest_integer is None or largest_integer > MAX_INTEGER_TICKS else {"dtick": 1}
    return build_titled_axis(title, rangemode="tozero", **ticks)


def build_titled_axis(title: str, **settings: Any) -> dict[str, Any]:
    """Build the plotly settings of an axis with a title."""
    return {"title": {"text": title, "standoff": 10}, **settings}


def build_line_trace(run: ReportedRun, x: Sequence[Any], y: Sequence[Any], **settings: Any) -> dict[str, Any]:
    """Build a plotly line trace with the color and dashes of a run."""
    return {
        "type": "scatter",
        "x": list(x),
        # JSON has no NaN or infinity; null leaves a gap.
        "y": [value if value is not None and math.isfinite(value) else None for value in y],
        "mode": "lines" if len(y) > 1 else "markers",
        "line": {"color": run.color, "dash": run.plotly_dash, "width": 1.8},
        "marker": {"color": run.color, "size": 6},
        "meta": run.position,
        "name": escape_tags(run.name),
        "cliponaxis": False,
        "hovertemplate": "%{y:.4~g}<extra>%{fullData.name}</extra>",
        **settings,
    }


def build_byte_heatmap_trace(values_to_255: np.ndarray[Any, Any], **settings: Any) -> dict[str, Any]:
    """Build a plotly heatmap trace of values from 0 to 255, as bytes."""
    return {
        "type": "heatmap",
        "z": encode_base64_matrix(values_to_255),
        "zmin": 0,
        "zmax": 255,
        "showscale": False,
        "hoverinfo": "none",
        "hoverongaps": True,
        **settings,
    }


def encode_base64_matrix(values_to_255: np.ndarray[Any, Any]) -> Base64Matrix:
    """Return a matrix of values from 0 to 255 as base64 text, and its number of columns.

    It takes a third of the size of JSON numbers.
    """
    return {
        "bytes": base64.b64encode(values_to_255.astype(np.uint8).tobytes()).decode(),
        "columns": values_to_255.shape[1],
    }


def to_script_json(value: Any) -> str:
    """Convert a value to JSON that is safe inside an HTML script element."""
    return json.dumps(value, default=lambda array: array.tolist(), separators=(",", ":"), allow_nan=False).replace(
        "<", "\\u003c"
    )


def shorten_label(name: str) -> str:
    """Shorten a name to 14 characters, with an ellipsis at its end."""
    return name if len(name) <= MAX_LABEL_CHARS else f"{name[: MAX_LABEL_CHARS - 1]}…"


def escape_tags(text: str) -> str:
    """Escape ``&``, ``<`` and ``>``, which plotly reads as HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
