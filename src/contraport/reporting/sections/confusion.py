"""What the probe takes for what."""

from __future__ import annotations

import numpy as np

from contraport.reporting.canvas import Canvas, Section
from contraport.reporting.drawing import COLORSCALE, Figure, escaped, figure, heatmap, short, titled
from contraport.reporting.shown import ShownRun

CLASSES_WRITTEN = 12
"""With more classes than this the shares are not written into the cells."""

MOST_CLASSES = 120
"""With more classes than this only the worst confusions are said."""

WORST, WORST_ALONE = 3, 12


def confusion(canvas: Canvas) -> Section | None:
    """Return a table of true and told classes for each run; nothing where no probe was fitted."""
    shown = []
    for run in canvas.runs:
        counts = None if run.samples is None else run.samples.get("confusion")
        if counts is None or len(counts) < 2:
            continue
        names = _names(run, len(counts))
        drawn = len(counts) <= MOST_CLASSES
        worst = most_confused(counts, names, WORST if drawn else WORST_ALONE)
        label = f"{run.name}: {'; '.join(worst) or 'no item is mistaken'}."
        plot = canvas.draw(f"confusion-{run.position}", table(counts, names), label, "square") if drawn else None
        shown.append((run, plot, worst))
    return Section("confusion", "What the probe mistakes", {"shown": shown}) if shown else None


def table(counts: np.ndarray, names: list[str]) -> Figure:
    """Draw for each true class, a row, which share of its items is told to be of each class."""
    of_row = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(of_row, 1)
    words = [
        [
            f"{names[i]} taken for {names[j]}\n{share:.1%} ({counts[i, j]} of {of_row[i, 0]})"
            for j, share in enumerate(row)
        ]
        for i, row in enumerate(shares)
    ]
    trace = heatmap(255 * shares, colorscale=COLORSCALE, customdata=words)
    if len(counts) <= CLASSES_WRITTEN:
        written = [["" if share < 0.01 else f"{100 * share:.0f}" for share in row] for row in shares]
        trace |= {"text": written, "texttemplate": "%{text}", "textfont": {"size": 11}}
    ticks = {
        "tickvals": list(range(len(names))),
        "ticktext": [escaped(short(name)) for name in names],
        "showgrid": False,
    }
    many = len(names) > 3 * CLASSES_WRITTEN
    ticks = {"showgrid": False, "showticklabels": False} if many else ticks
    y = titled("true class", autorange="reversed", **ticks)
    return figure([trace], x=titled("told class", autotickangles=[0, -60, -90], **ticks), y=y)


def most_confused(counts: np.ndarray, names: list[str], most: int = WORST) -> list[str]:
    """Say which classes are most often taken for which."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    np.fill_diagonal(shares, 0)
    worst = np.argsort(-shares, axis=None, kind="stable")[:most]
    found = [(float(shares.flat[place]), *divmod(int(place), len(names))) for place in worst]
    return [f"{share:.0%} of {names[true]} taken for {names[told]}" for share, true, told in found if share > 0]


def _names(run: ShownRun, classes: int) -> list[str]:
    names = run.class_names
    return [names[k] if k < len(names) else str(k) for k in range(classes)]
