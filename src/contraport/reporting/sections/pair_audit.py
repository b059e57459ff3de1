"""Section of the online audit: estimated mismatch rate, distribution of the scores, and the lowest pairs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from contraport.auditing.pairs import estimate_fdr
from contraport.reporting.page_builder import PageBuilder, PlotElement, Section
from contraport.reporting.plotly_figures import CURVE_HEIGHT, MUTED, PERCENT, build_figure, titled_axis
from contraport.reporting.report_run import ReportRun

NUM_WORST = 10
BINS = 40


class SuspectPair(NamedTuple):
    """Pair with one of the lowest audit scores.

    Attributes:
        item: index among the training items.
        score: lower is worse.
        fdr: estimated share of matching pairs among all pairs with at most this score.
        partner: item whose second view fits the first view better, or None.
        sketches: places of its two views and of the better partner's among all sketches of the page, or None if the
            evaluation has not stored them.
    """

    item: int
    score: float
    fdr: float
    partner: int | None
    sketches: tuple[int, int, int] | None


class AuditSummary(NamedTuple):
    """Audit of one run: mismatch rate with its interval, histogram of scores, lowest pairs, names of the views."""

    run: ReportRun
    pairs: int
    rate: float
    low: float
    high: float
    plot: PlotElement
    worst: list[SuspectPair]
    views: tuple[str, str]


def build_pair_audit(builder: PageBuilder) -> Section | None:
    """Build the section of the online audits; return None unless a run was trained with an audit."""
    audits = [_summarize(builder, run) for run in builder.runs if run.pairs is not None]
    return Section("pairs", "Pair audit", {"audits": audits}) if audits else None


def _summarize(builder: PageBuilder, run: ReportRun) -> AuditSummary:
    assert run.pairs is not None
    scores, mismatched = run.pairs["scores"].astype(float), run.pairs["mismatched"].astype(float)
    rate, low, high = (float(run.pairs[name]) for name in ("rate", "low", "high"))
    partners = run.pairs.get("partners", np.full(len(scores), -1))
    edges = np.histogram_bin_edges(np.concatenate([scores, mismatched]), BINS)
    traces = [
        {
            "type": "bar",
            "x": ((edges[1:] + edges[:-1]) / 2).round(5).tolist(),
            "y": (np.histogram(values, edges)[0] / max(1, len(values))).round(5).tolist(),
            "marker": {"color": color},
            "opacity": 0.65,
            "name": name,
            "hovertemplate": "%{y:.1%}<extra>%{fullData.name}</extra>",
        }
        for name, values, color in (("pairs", scores, run.color), ("known mismatches", mismatched, MUTED))
    ]
    figure = build_figure(
        traces,
        height=CURVE_HEIGHT,
        barmode="overlay",
        bargap=0,
        hovermode="x unified",
        x=titled_axis("score (higher: better match)"),
        y={"tickformat": PERCENT},
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
    )
    counts = f"{len(scores):,} pairs and {len(mismatched):,} known mismatches"
    plot = builder.add_plot(f"scores-{run.position}", figure, f"{run.name}: scores of {counts}; {rate:.1%} mismatched.")
    fdr = estimate_fdr(scores, mismatched, rate)
    order = np.argsort(scores, kind="stable")[:NUM_WORST]
    sketches = _add_sketches(builder, run, order)
    worst = [
        SuspectPair(
            int(pair),
            float(scores[pair]),
            float(fdr[pair]),
            int(partners[pair]) if partners[pair] >= 0 else None,
            sketches[place] if sketches else None,
        )
        for place, pair in enumerate(order)
    ]
    first, second = (run.samples or {}).get("worst_views", ("first view", "second view"))
    return AuditSummary(run, len(scores), rate, low, high, plot, worst, (str(first), str(second)))


def _add_sketches(builder: PageBuilder, run: ReportRun, worst: np.ndarray) -> list[tuple[int, int, int]]:
    """Add sketches of the lowest pairs to the page; none if the evaluation stored those of other pairs."""
    samples = run.samples or {}
    if not np.array_equal(samples.get("worst", ()), worst):  # evaluated before the last audit, or on other data
        return []
    places = [builder.add_sketches(samples[key]) for key in ("worst_1", "worst_2", "worst_better")]
    return list(zip(*places, strict=True))
