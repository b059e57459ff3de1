"""What a training that audited its pairs says of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from contraport import pages
from contraport.auditing.pairs import estimate_fdr
from contraport.reporting.page_builder import Canvas, Plot, Section
from contraport.reporting.plotly_figures import CURVE_HEIGHT, MUTED, PERCENT, figure, titled
from contraport.reporting.report_run import ReportRun

WORST = 10
BINS = 40


class Pair(NamedTuple):
    """A pair that seems wrong.

    Attributes:
        item: its place among the training items.
        score: the less, the worse.
        fdr: of all pairs that score as low, the estimated share that is right.
        partner: the item whose second view would suit it more, if one would.
        views: what its two views and that of the better partner show, places among `DATA.sketches`, where the
            evaluation kept that.
    """

    item: int
    score: float
    fdr: float
    partner: int | None
    views: tuple[int, int, int] | None


class Judged(NamedTuple):
    """What is shown of the pairs of a run: how many seem wrong, how scores are spread, and the worst.

    Attributes:
        views: the names of the two views.
    """

    run: ReportRun
    pairs: int
    rate: float
    low: float
    high: float
    plot: Plot
    worst: list[Pair]
    views: tuple[str, str]


def pairs(canvas: Canvas) -> Section | None:
    """Return what was found of the pairs of each run that was trained with an audit; nothing where none was."""
    judged = [_judged(canvas, run) for run in canvas.runs if run.pairs is not None]
    return Section("pairs", "Audit of the pairs", {"judged": judged}) if judged else None


def _judged(canvas: Canvas, run: ReportRun) -> Judged:
    assert run.pairs is not None
    scores, mismatched = run.pairs["scores"].astype(float), run.pairs["mismatched"].astype(float)
    rate, low, high = (float(run.pairs[name]) for name in ("rate", "low", "high"))
    partners = run.pairs.get("partners", np.full(len(scores), -1))
    edges = np.histogram_bin_edges(np.concatenate([scores, mismatched]), BINS)
    traces: list[dict[str, Any]] = []
    for name, values, color in (("pairs", scores, run.color), ("known mismatches", mismatched, MUTED)):
        share = np.histogram(values, edges)[0] / max(1, len(values))
        traces.append(
            {
                "type": "bar",
                "x": ((edges[1:] + edges[:-1]) / 2).round(5).tolist(),
                "y": share.round(5).tolist(),
                "marker": {"color": color},
                "opacity": 0.65,
                "name": name,
                "hovertemplate": "%{y:.1%}<extra>%{fullData.name}</extra>",
            }
        )
    x, y = titled("score (more: belongs together)"), {"tickformat": PERCENT}
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
    drawing = figure(
        traces,
        height=CURVE_HEIGHT,
        barmode="overlay",
        bargap=0,
        hovermode="x unified",
        x=x,
        y=y,
        showlegend=True,
        legend=legend,
    )
    beside = f"{len(scores):,} pairs beside {len(mismatched):,} known mismatches"
    label = f"{run.name}: scores of {beside}; {rate:.1%} seem wrong."
    fdr = estimate_fdr(scores, mismatched, rate)
    order = np.argsort(scores, kind="stable")[:WORST]
    shown = _sketched(canvas, run, order)
    worst = [
        Pair(
            int(pair),
            float(scores[pair]),
            float(fdr[pair]),
            int(partners[pair]) if partners[pair] >= 0 else None,
            shown[place] if shown else None,
        )
        for place, pair in enumerate(order)
    ]
    first, second = (run.samples or {}).get("worst_views", ("first view", "second view"))
    plot = canvas.draw(f"scores-{run.position}", drawing, label)
    return Judged(run, len(scores), rate, low, high, plot, worst, (str(first), str(second)))


def _sketched(canvas: Canvas, run: ReportRun, worst: np.ndarray) -> list[tuple[int, int, int]]:
    """Keep for the page what the views of the worst pairs show, and return where; nothing of other pairs."""
    samples = run.samples or {}
    if not np.array_equal(samples.get("worst", ()), worst):  # not evaluated since, or not on its own data
        return []
    kept = canvas.data.setdefault("sketches", [])
    places = []
    for key in ("worst_1", "worst_2", "worst_better"):
        places.append(range(len(kept), len(kept) + len(worst)))
        kept += pages.drawings(samples[key])
    return list(zip(*places, strict=True))
