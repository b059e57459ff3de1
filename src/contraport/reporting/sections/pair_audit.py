"""Report section: online audit of the training pairs, with mismatch rate, scores and lowest pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from contraport.auditing.pairs.noise_rate import estimate_pair_fdrs, is_rate_reliable
from contraport.reporting.html_page import PageAssets, Section
from contraport.reporting.plotly_figures import (
    CURVE_HEIGHT_PIXELS,
    MUTED_COLOR,
    PERCENT_TICK_FORMAT,
    build_figure,
    build_titled_axis,
)
from contraport.reporting.reported_run import ReportedRun

NUM_LOWEST_PAIRS = 10  # pairs listed, from the lowest score
NUM_HISTOGRAM_BINS = 40  # of the scores


def build_pair_audit_section(assets: PageAssets) -> Section | None:
    """Build the section of online audits; None if no run was trained with an audit."""
    audits = [_build_audit_template_data(assets, run) for run in assets.runs if run.online_audit_arrays]
    return Section("pairs", "Pair audit", {"audits": audits}) if audits else None


def _build_audit_template_data(assets: PageAssets, run: ReportedRun) -> dict[str, Any]:
    """Draw the histogram of pair scores, and return it with the mismatch rate and the lowest pairs for the template."""
    assert run.online_audit_arrays
    scores, mismatched = (run.online_audit_arrays[name].astype(float) for name in ("scores", "mismatched"))
    rate, low, high = (float(run.online_audit_arrays[name]) for name in ("rate", "low", "high"))
    partners = run.online_audit_arrays.get("partners", np.full(len(scores), -1))
    edges = np.histogram_bin_edges(np.concatenate([scores, mismatched]), NUM_HISTOGRAM_BINS)
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
        for name, values, color in (("pairs", scores, run.color), ("known mismatches", mismatched, MUTED_COLOR))
    ]
    figure = build_figure(
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
    is_reliable = is_rate_reliable(scores, mismatched, low)
    share = f"{rate:.1%}" if is_reliable else "an unknown share"
    counts = f"{len(scores):,} pairs and {len(mismatched):,} known mismatches"
    plot = assets.add_plot(f"scores-{run.position}", figure, f"{run.name}: scores of {counts}; {share} mismatched.")
    fdr = estimate_pair_fdrs(scores, mismatched, rate)
    order = np.argsort(scores, kind="stable")[:NUM_LOWEST_PAIRS]
    previews = _add_pair_previews(assets, run, order)
    lowest_pairs = [
        {
            "index": int(pair),
            "score": float(scores[pair]),
            "fdr": float(fdr[pair]),
            "better_partner": int(partners[pair]) if partners[pair] >= 0 else None,
            "previews": previews[place] if previews else None,
        }
        for place, pair in enumerate(order)
    ]
    return {
        "run": run,
        "num_pairs": len(scores),
        "rate": rate,
        "is_rate_reliable": is_reliable,
        "low": low,
        "high": high,
        "histogram": plot,
        "lowest_pairs": lowest_pairs,
        "view_names": [str(name) for name in run.figure_arrays.get("worst_views", ("first view", "second view"))],
    }


def _add_pair_previews(assets: PageAssets, run: ReportedRun, worst: np.ndarray) -> list[tuple[int, int, int]]:
    """Add previews of the lowest pairs to the page; return indices of first, second and better view (or none)."""
    arrays = run.figure_arrays
    if not np.array_equal(arrays.get("worst", ()), worst):  # evaluated before the last audit, or on other data
        return []
    indices_by_view = [assets.add_previews(arrays[key]) for key in ("worst_1", "worst_2", "worst_better")]
    return list(zip(*indices_by_view, strict=True))
