"""Report section on the online audit of training pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from contraport.auditing.pairs.noise_rate import estimate_pair_fdrs, is_rate_reliable
from contraport.reporting.html_page_parts import PageAssets, Section
from contraport.reporting.plotly_figures import (
    CURVE_HEIGHT_PIXELS,
    MUTED_COLOR,
    PERCENT_TICK_FORMAT,
    PlotlyFigure,
    build_figure,
    build_titled_axis,
)
from contraport.reporting.reported_run import ReportedRun

NUM_LOWEST_PAIRS = 10  # pairs listed, from the lowest score


def build_pair_audit_section(assets: PageAssets) -> Section | None:
    """Build the section of online audits, or None if there is none."""
    audits = []
    for run in assets.runs:
        if not run.online_audit_arrays:
            continue
        scores, mismatched = (run.online_audit_arrays[name].astype(float) for name in ("scores", "mismatched"))
        rate, low, high = (float(run.online_audit_arrays[name]) for name in ("rate", "low", "high"))
        is_reliable = is_rate_reliable(scores, mismatched, low)
        share = f"{rate:.1%}" if is_reliable else "an unknown share"
        counts = f"{len(scores):,} pairs and {len(mismatched):,} known mismatches"
        label = f"{run.name}: scores of {counts}; {share} mismatched."
        figure = _draw_score_histograms(scores, mismatched, run.color)
        audit = {
            "run": run,
            "num_pairs": len(scores),
            "rate": rate,
            "is_rate_reliable": is_reliable,
            "low": low,
            "high": high,
            "histogram": assets.add_plot(f"scores-{run.position}", figure, label),
            "lowest_pairs": _build_lowest_pair_rows(assets, run, scores, estimate_pair_fdrs(scores, mismatched, rate)),
            "view_names": [str(name) for name in run.figure_arrays.get("worst_views", ("first view", "second view"))],
        }
        audits.append(audit)
    return Section("pairs", "Pair audit", {"audits": audits}) if audits else None


def _draw_score_histograms(pair_scores: np.ndarray, mismatch_scores: np.ndarray, color: str) -> PlotlyFigure:
    """Draw score histograms of all pairs in color and known mismatches in gray."""
    edges = np.histogram_bin_edges(np.concatenate([pair_scores, mismatch_scores]), 40)
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
        for name, values, color in (("pairs", pair_scores, color), ("known mismatches", mismatch_scores, MUTED_COLOR))
    ]
    return build_figure(
        traces,
        height=CURVE_HEIGHT_PIXELS,
        barmode="overlay",
        bargap=0,
        hovermode="x unified",
        x=build_titled_axis("score (higher: better match)"),
        y={"tickformat": PERCENT_TICK_FORMAT},
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
    )


def _build_lowest_pair_rows(
    assets: PageAssets, run: ReportedRun, scores: np.ndarray, fdrs: np.ndarray
) -> list[dict[str, Any]]:
    """Build table rows for the lowest-scoring pairs, with previews of their items."""
    assert run.online_audit_arrays
    partners = run.online_audit_arrays.get("partners", np.full(len(scores), -1))
    order = np.argsort(scores, kind="stable")[:NUM_LOWEST_PAIRS]
    arrays, previews = run.figure_arrays, None
    if np.array_equal(arrays.get("worst", ()), order):  # otherwise evaluated before the last audit, or on other data
        by_view = [assets.add_previews(arrays[key]) for key in ("worst_1", "worst_2", "worst_better")]
        previews = list(zip(*by_view, strict=True))
    return [
        {
            "index": int(pair),
            "score": float(scores[pair]),
            "fdr": float(fdrs[pair]),
            "better_partner": int(partners[pair]) if partners[pair] >= 0 else None,
            "previews": previews[place] if previews else None,
        }
        for place, pair in enumerate(order)
    ]
