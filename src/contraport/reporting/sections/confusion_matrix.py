"""Section of the linear probe's confusion matrix and its most confident errors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from contraport.reporting.page_builder import PageBuilder, Section
from contraport.reporting.plotly_figures import (
    COLORSCALE,
    Figure,
    build_figure,
    escape_tags,
    heatmap_trace,
    shorten,
    titled_axis,
)
from contraport.reporting.report_run import ReportRun

MAX_CLASSES_WITH_NUMBERS = 12
"""With more classes the cells have no numbers; with three times as many the axes have no names."""

MAX_CLASSES_DRAWN = 120
"""With more classes there is no matrix, only a longer list of confusions."""

NUM_CONFUSIONS, NUM_CONFUSIONS_WITHOUT_MATRIX = 3, 12


class Misclassified(NamedTuple):
    """A test item that the probe confidently misclassifies.

    Attributes:
        item: index among the test items.
        key: name of the item in the data, such as a file path, or empty.
        true: name of its class.
        predicted: name of the predicted class.
        probability: of the predicted class.
        sketches: places of its views among all sketches of the page.
    """

    item: int
    key: str
    true: str
    predicted: str
    probability: float
    sketches: tuple[int, ...]


def build_confusion(builder: PageBuilder) -> Section | None:
    """Build the section of the confusion matrices; return None without a fitted probe."""
    entries = []
    for run in builder.runs:
        counts = None if run.samples is None else run.samples.get("confusion")
        if run.samples is None or counts is None or len(counts) < 2:
            continue
        names = [run.class_names[k] if k < len(run.class_names) else str(k) for k in range(len(counts))]
        drawn = len(counts) <= MAX_CLASSES_DRAWN
        worst = list_confusions(counts, names, NUM_CONFUSIONS if drawn else NUM_CONFUSIONS_WITHOUT_MATRIX)
        label = f"{run.name}: {'; '.join(worst) or 'no errors'}."
        figure = draw_confusion(counts, names) if drawn else None
        plot = None if figure is None else builder.add_plot(f"confusion-{run.position}", figure, label, "square")
        views = [str(name) for name in run.samples.get("mistaken_views", ())]
        entries.append((run, plot, worst, views, collect_misclassified(builder, run, names)))
    return Section("confusion", "Confusion", {"entries": entries}) if entries else None


def collect_misclassified(builder: PageBuilder, run: ReportRun, names: list[str]) -> list[Misclassified]:
    """Add sketches of a run's most confident errors to the page and return the errors."""
    samples = run.samples or {}
    if "mistaken" not in samples:
        return []
    places = [builder.add_sketches(samples[f"mistaken_{view}"]) for view in range(len(samples["mistaken_views"]))]
    keys = samples.get("mistaken_keys", [""] * len(samples["mistaken"]))
    columns = (samples[f"mistaken{part}"] for part in ("", "_true", "_told", "_sure"))
    return [
        Misclassified(int(item), str(key), names[int(true)], names[int(told)], float(sure), tuple(sketches))
        for item, true, told, sure, key, *sketches in zip(*columns, keys, *places, strict=True)
    ]


def draw_confusion(counts: np.ndarray, names: list[str]) -> Figure:
    """Draw the share of each predicted class (columns) among the items of each true class (rows)."""
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(totals, 1)
    hover = [
        [
            f"{names[i]} predicted as {names[j]}\n{share:.1%} ({counts[i, j]} of {totals[i, 0]})"
            for j, share in enumerate(row)
        ]
        for i, row in enumerate(shares)
    ]
    trace = heatmap_trace(255 * shares, colorscale=COLORSCALE, customdata=hover)
    if len(counts) <= MAX_CLASSES_WITH_NUMBERS:
        numbers = [["" if share < 0.01 else f"{100 * share:.0f}" for share in row] for row in shares]
        trace |= {"text": numbers, "texttemplate": "%{text}", "textfont": {"size": 11}}
    if len(names) > 3 * MAX_CLASSES_WITH_NUMBERS:
        ticks: dict[str, Any] = {"showgrid": False, "showticklabels": False}
    else:
        labels = [escape_tags(shorten(name)) for name in names]
        ticks = {"tickvals": list(range(len(names))), "ticktext": labels, "showgrid": False}
    x = titled_axis("predicted class", autotickangles=[0, -60, -90], **ticks)
    return build_figure([trace], x=x, y=titled_axis("true class", autorange="reversed", **ticks))


def list_confusions(counts: np.ndarray, names: list[str], count: int = NUM_CONFUSIONS) -> list[str]:
    """Describe the most frequent confusions of two classes."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    np.fill_diagonal(shares, 0)
    worst = np.lexsort((-counts.ravel(), -shares.ravel()))[:count]
    entries = [(float(shares.flat[place]), *divmod(int(place), len(names))) for place in worst]
    return [
        f"{share:.0%} of {names[true]} predicted as {names[other]} ({counts[true, other]} of {counts[true].sum()})"
        for share, true, other in entries
        if share > 0
    ]
