"""What all figures of the page share: plotly figures as plain data, whose colours are CSS variables, so that the page
paints them in light and in dark.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from contraport.plots.colors import MASS_ON_LIGHT
from contraport.reporting.report_run import ReportRun

Figure = dict[str, Any]
"""Traces under ``data`` and how they are laid out under ``layout``, as plotly.js takes them."""

INK, MUTED, GRID = "var(--ink)", "var(--muted)", "var(--line)"
STEPS = len(MASS_ON_LIGHT)
COLORSCALE = [[step / (STEPS - 1), f"var(--mass-{step})"] for step in range(STEPS)]

CURVE_HEIGHT = 290
MOST_TICKS = 12
LETTERS = 14
PERCENT = ".1~%"
"""How an axis writes shares: with a decimal where it needs one."""


def figure(
    traces: Iterable[Mapping[str, Any]],
    *,
    height: int | None = None,
    margin: int = 8,
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any] | None = None,
    **layout: Any,
) -> Figure:
    """Return a figure of some traces; of the axes and the layout what is given comes beside what all have."""
    axis: dict[str, Any] = {"gridcolor": GRID, "linecolor": GRID, "zeroline": False, "automargin": True}
    return {
        "data": [dict(trace) for trace in traces],
        "layout": {
            "template": "none",
            "showlegend": False,
            "margin": dict.fromkeys("lrtb", margin),
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "var(--sans)", "size": 12, "color": MUTED},
            "hoverlabel": {"bgcolor": "var(--raised)", "bordercolor": GRID, "font": {"color": INK}, "namelength": -1},
            "hovermode": "closest",
            "xaxis": axis | dict(x or {}),
            "yaxis": axis | dict(y or {}),
        }
        | ({} if height is None else {"height": height})
        | layout,
    }


def over(title: str, last: float | None = None) -> dict[str, Any]:
    """Return what an axis from zero on has; a short one of whole numbers, such as epochs, has a tick at each."""
    ticks = {} if last is None or last > MOST_TICKS else {"dtick": 1}
    return titled(title, rangemode="tozero", **ticks)


def titled(text: str, **further: Any) -> dict[str, Any]:
    """Return what an axis of a title has."""
    return {"title": {"text": text, "standoff": 10}, **further}


def line(run: ReportRun, x: Sequence[Any], y: Sequence[Any], **further: Any) -> dict[str, Any]:
    """Return a line in the colour and the dash of a run; one point is a marker."""
    return {
        "type": "scatter",
        "x": list(x),
        "y": [_number(value) for value in y],
        "mode": "lines" if len(y) > 1 else "markers",
        "line": {"color": run.color, "dash": run.dash, "width": 1.8},
        "marker": {"color": run.color, "size": 6},
        "meta": run.position,
        "name": escaped(run.name),
        "cliponaxis": False,
        "hovertemplate": "%{y:.4~g}<extra>%{fullData.name}</extra>",
        **further,
    }


def heatmap(values: np.ndarray[Any, Any], **further: Any) -> dict[str, Any]:
    """Return a heatmap of bytes, 0 to 255."""
    return {
        "type": "heatmap",
        "z": encode_byte_matrix(values),
        "zmin": 0,
        "zmax": 255,
        "showscale": False,
        "hoverinfo": "none",
        "hoverongaps": True,
        **further,
    }


def encode_byte_matrix(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return a matrix of bytes as letters and the length of a row; the page makes rows of numbers of it."""
    return {"bytes": base64.b64encode(values.astype(np.uint8).tobytes()).decode(), "columns": values.shape[1]}


def to_json(value: Any) -> str:
    """Return figures or data as JSON that is safe inside a script element."""
    return json.dumps(value, default=_plain, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def short(name: str) -> str:
    """Return the beginning of a long name, for an axis or a label."""
    return name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"


def escaped(text: str) -> str:
    """Return a text as plotly shows it, which takes tags for markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _number(value: Any) -> Any:
    """Return what JSON has of a number: one that is not finite is none."""
    return None if value is None or not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    return value.tolist()
