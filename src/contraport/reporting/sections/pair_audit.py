"""Report section: online audit of the training pairs, with mismatch rate, scores and lowest pairs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from contraport.auditing.pairs.noise_rate import estimate_fdr
from contraport.reporting.html_page import PageBuilder, PlotElement, Section
from contraport.reporting.plotly_figures import CURVE_HEIGHT, MUTED, PERCENT, build_figure, build_titled_axis
from contraport.reporting.report_run import ReportRun

NUM_WORST = 10
BINS = 40


class SuspectPair(NamedTuple):
    """Training pair with one of the lowest audit scores, probably a mismatch.

    Attributes:
        pair_index: index of the pair among the training items.
        audit_score: audit score of the pair; lower is worse.
        fdr: false discovery rate: estimated share of correct pairs among all pairs with at most this score.
        better_partner_index: index of the item whose second view fits the first view better; None if there is none.
        sketch_indices: indices of the sketches of both views and of the partner's second view; None if not stored.
    """

    pair_index: int
    audit_score: float
    fdr: float
    better_partner_index: int | None
    sketch_indices: tuple[int, int, int] | None


class AuditSummary(NamedTuple):
    """Result of the online audit of one run.

    Attributes:
        run: run that was trained with the audit.
        num_pairs: number of training pairs.
        mismatch_rate: estimated share of mismatched pairs, 0 to 1.
        rate_low: low end of the confidence interval of the rate.
        rate_high: high end of the confidence interval of the rate.
        score_histogram: histogram of the scores of pairs and of known mismatches.
        lowest_pairs: pairs with the lowest scores, lowest first.
        view_names: names of the two views.
    """

    run: ReportRun
    num_pairs: int
    mismatch_rate: float
    rate_low: float
    rate_high: float
    score_histogram: PlotElement
    lowest_pairs: list[SuspectPair]
    view_names: tuple[str, str]


def build_pair_audit_section(builder: PageBuilder) -> Section | None:
    """Build the section of online audits; return None if no run was trained with an audit."""
    audits = [_summarize(builder, run) for run in builder.runs if run.audit_arrays is not None]
    return Section("pairs", "Pair audit", {"audits": audits}) if audits else None


def _summarize(builder: PageBuilder, run: ReportRun) -> AuditSummary:
    assert run.audit_arrays is not None
    scores, mismatched = run.audit_arrays["scores"].astype(float), run.audit_arrays["mismatched"].astype(float)
    rate, low, high = (float(run.audit_arrays[name]) for name in ("rate", "low", "high"))
    partners = run.audit_arrays.get("partners", np.full(len(scores), -1))
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
        x=build_titled_axis("score (higher: better match)"),
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
    first, second = (run.figure_arrays or {}).get("worst_views", ("first view", "second view"))
    return AuditSummary(run, len(scores), rate, low, high, plot, worst, (str(first), str(second)))


def _add_sketches(builder: PageBuilder, run: ReportRun, worst: np.ndarray) -> list[tuple[int, int, int]]:
    """Add sketches of the lowest-scored pairs to the page and return their indices; empty if no sketches are stored."""
    samples = run.figure_arrays or {}
    if not np.array_equal(samples.get("worst", ()), worst):  # evaluated before the last audit, or on other data
        return []
    places = [builder.add_sketches(samples[key]) for key in ("worst_1", "worst_2", "worst_better")]
    return list(zip(*places, strict=True))
