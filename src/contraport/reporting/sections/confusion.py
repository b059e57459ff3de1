"""What the probe takes for what, and the items that it mistakes most surely."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from contraport import pages
from contraport.reporting.page_builder import Canvas, Section
from contraport.reporting.plotly_figures import COLORSCALE, Figure, escaped, figure, heatmap, short, titled
from contraport.reporting.report_run import ReportRun

CLASSES_WRITTEN = 12
"""With more classes than this the shares are not written into the cells."""

MOST_CLASSES = 120
"""With more classes than this only the worst confusions are said."""

WORST, WORST_ALONE = 3, 12


class Misclassified(NamedTuple):
    """A test item that the probe is sure of and wrong about.

    Attributes:
        item: its place among the test items.
        key: what the data call it, such as the path of a file; empty where it has only its place.
        true: its class.
        told: what the probe takes it for.
        sure: the probability that the probe gives that.
        views: what its views show, places among `DATA.sketches`.
    """

    item: int
    key: str
    true: str
    told: str
    sure: float
    views: tuple[int, ...]


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
        assert run.samples is not None
        views = [str(name) for name in run.samples.get("mistaken_views", ())]
        shown.append((run, plot, worst, views, collect_misclassified(canvas, run, names)))
    return Section("confusion", "What the probe mistakes", {"shown": shown}) if shown else None


def collect_misclassified(canvas: Canvas, run: ReportRun, names: list[str]) -> list[Misclassified]:
    """Keep for the page what the items show that the probe mistakes most surely, and return these."""
    samples = run.samples or {}
    if "mistaken" not in samples:
        return []
    kept = canvas.data.setdefault("sketches", [])
    places = []
    for view in range(len(samples["mistaken_views"])):
        sketches = pages.drawings(samples[f"mistaken_{view}"])
        places.append(range(len(kept), len(kept) + len(sketches)))
        kept += sketches
    keys = samples.get("mistaken_keys", [""] * len(samples["mistaken"]))
    of_items = zip(*(samples[f"mistaken{of}"] for of in ("", "_true", "_told", "_sure")), keys, *places, strict=True)
    return [
        Misclassified(int(item), str(key), names[int(true)], names[int(told)], float(sure), tuple(views))
        for item, true, told, sure, key, *views in of_items
    ]


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
    worst = np.lexsort((-counts.ravel(), -shares.ravel()))[:most]
    found = [(float(shares.flat[place]), *divmod(int(place), len(names))) for place in worst]
    return [
        f"{share:.0%} of {names[true]} taken for {names[told]} ({counts[true, told]} of {counts[true].sum()})"
        for share, true, told in found
        if share > 0
    ]


def _names(run: ReportRun, classes: int) -> list[str]:
    names = run.class_names
    return [names[k] if k < len(names) else str(k) for k in range(classes)]
