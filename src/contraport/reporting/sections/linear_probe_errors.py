"""Report section with the linear probe's confusion matrix and most confident errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from contraport.reporting.html_page_parts import PageAssets, Section
from contraport.reporting.plotly_figures import (
    HEATMAP_COLORSCALE,
    PlotlyFigure,
    build_byte_heatmap_trace,
    build_figure,
    build_titled_axis,
    escape_tags,
    shorten_label,
)
from contraport.reporting.reported_run import ReportedRun

MAX_CLASSES_WITH_NUMBERS = 12
"""Maximum number of classes for numbers in the cells; up to three times as many classes have names on the axes."""


def build_confusion_section(assets: PageAssets) -> Section | None:
    """Build the section of confusion matrices, or None without a linear probe."""
    entries = []
    for run in assets.runs:
        counts = run.figure_arrays.get("confusion")
        if counts is None or len(counts) < 2:
            continue
        class_names = [run.class_names[k] if k < len(run.class_names) else str(k) for k in range(len(counts))]
        drawn = len(counts) <= 120  # the cells of a larger matrix would be too small; the list is longer instead
        worst = frequent_confusion_sentences(counts, class_names, 3 if drawn else 12)
        label = f"{run.name}: {'; '.join(worst) or 'no errors'}."
        figure = draw_confusion_matrix(counts, class_names) if drawn else None
        plot = None if figure is None else assets.add_plot(f"confusion-{run.position}", figure, label, "square")
        views = [str(name) for name in run.figure_arrays.get("mistaken_views", ())]
        entries.append((run, plot, worst, views, build_confident_error_records(assets, run, class_names)))
    return Section("confusion", "Confusion", {"entries": entries}) if entries else None


def build_confident_error_records(assets: PageAssets, run: ReportedRun, class_names: list[str]) -> list[dict[str, Any]]:
    """Build records of the most confident errors, and add previews of items to the page."""
    arrays = run.figure_arrays
    if "mistaken" not in arrays:
        return []
    previews = [assets.add_previews(arrays[f"mistaken_{view}"]) for view in range(len(arrays["mistaken_views"]))]
    return [
        {
            "item": int(item),
            "key": str(arrays["mistaken_keys"][place]) if "mistaken_keys" in arrays else "",
            "true_class": class_names[int(arrays["mistaken_true"][place])],
            "predicted_class": class_names[int(arrays["mistaken_told"][place])],
            "probability": float(arrays["mistaken_sure"][place]),
            "previews": [of_view[place] for of_view in previews],
        }
        for place, item in enumerate(arrays["mistaken"])
    ]


def draw_confusion_matrix(counts: np.ndarray, class_names: list[str]) -> PlotlyFigure:
    """Draw a confusion matrix with rows (true classes) normalized to sum 1."""
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(totals, 1)
    hover = [
        [
            f"{class_names[i]} predicted as {class_names[j]}\n{share:.1%} ({counts[i, j]} of {totals[i, 0]})"
            for j, share in enumerate(row)
        ]
        for i, row in enumerate(shares)
    ]
    trace = build_byte_heatmap_trace(255 * shares, colorscale=HEATMAP_COLORSCALE, customdata=hover)
    if len(counts) <= MAX_CLASSES_WITH_NUMBERS:
        numbers = [["" if share < 0.01 else f"{100 * share:.0f}" for share in row] for row in shares]
        trace |= {"text": numbers, "texttemplate": "%{text}", "textfont": {"size": 11}}
    if len(class_names) > 3 * MAX_CLASSES_WITH_NUMBERS:
        ticks: dict[str, Any] = {"showgrid": False, "showticklabels": False}
    else:
        labels = [escape_tags(shorten_label(name)) for name in class_names]
        ticks = {"tickvals": list(range(len(class_names))), "ticktext": labels, "showgrid": False}
    x = build_titled_axis("predicted class", autotickangles=[0, -60, -90], **ticks)
    return build_figure([trace], x=x, y=build_titled_axis("true class", autorange="reversed", **ticks))


def frequent_confusion_sentences(counts: np.ndarray, class_names: list[str], max_confusions: int = 3) -> list[str]:
    """Describe the most frequent confusions, such as "cat predicted as dog (7%, 3 of 43)".

    Single errors are listed only if no confusion is repeated.
    """
    errors = counts * ~np.eye(len(counts), dtype=bool)
    shares = errors / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    order = np.lexsort((-errors.ravel(), -shares.ravel()))
    worst = [divmod(place, len(counts)) for place in order[errors.flat[order] >= np.clip(errors.max(), 1, 2)].tolist()]
    return [
        f"{class_names[true]} predicted as {class_names[other]} "
        f"({shares[true, other]:.0%}, {counts[true, other]} of {counts[true].sum()})"
        for true, other in worst[:max_confusions]
    ]
