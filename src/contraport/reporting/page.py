"""Function `report`: writes one HTML page that compares runs and opens without a network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from contraport._utils.files import write_text
from contraport.errors import check, check_new_file, report_write_errors
from contraport.metrics import Metric
from contraport.plots.colors import MASS_ON_DARK, MASS_ON_LIGHT
from contraport.reporting.config import REPORT, ReportOptions
from contraport.reporting.html_page import render_page
from contraport.reporting.page_builder import PageBuilder
from contraport.reporting.plotly_figures import to_script_json
from contraport.reporting.report_run import ReportRun, load_runs
from contraport.reporting.sections import SECTIONS
from contraport.reporting.summary_text import build_report_title
from contraport.runs import Run

PLOTLY = "plotly-cartesian-4.1.1.min.js.gz"
"""Cartesian bundle of plotly.js (lines, bars, heatmaps), as published, compressed with gzip."""


@REPORT.with_option_parameters
def report(arguments: dict[str, Any]) -> Path:
    """Write one self-contained HTML page that compares one or more runs, and return its path.

    Raises:
        UsageError: there is no run, a run is corrupt, `out` does not end in .html, its folder is missing, or it exists
            and `overwrite` is false.
    """
    options = ReportOptions(**arguments)
    for run in options.runs:
        (run if isinstance(run, Run) else Run(run)).check_is_run()
    path = Path(options.out)
    check(path.suffix.lower() in (".html", ".htm"), f"out: must end in .html, got {path.name!r}.")
    check_new_file("out", path, overwrite=options.overwrite)
    html = render_report(load_runs(options.runs))
    with report_write_errors("out", path):
        write_text(path, html)
    return path


def render_report(runs: Sequence[ReportRun]) -> str:
    """Render the report on some runs as the text of an HTML page."""
    builder = PageBuilder(runs)
    sections = [section for build in SECTIONS if (section := build(builder)) is not None]
    return render_page(
        "report.html.j2",
        "contraport.reporting",
        by_group=_group_metrics,
        runs=runs,
        sentence=build_report_title(runs),
        sections=sections,
        sheets=builder.sheets,
        plots=Markup(to_script_json(builder.plots)),
        # The images are in the style sheet; the scripts need only their layout.
        sheet_sizes=Markup(
            to_script_json({key: sheet._asdict() | {"uri": ""} for key, sheet in builder.sheets.items()})
        ),
        data=Markup(to_script_json(builder.script_data)),
        mass={"light": MASS_ON_LIGHT, "dark": MASS_ON_DARK},
        plotly=base64.b64encode(files("contraport.reporting").joinpath(PLOTLY).read_bytes()).decode(),
    )


def _group_metrics(metrics: Sequence[Metric]) -> list[tuple[str, list[tuple[int, Metric]]]]:
    """Return the name and the metrics of each group; each metric is paired with its index among all metrics."""
    groups: dict[str, list[tuple[int, Metric]]] = {}
    for place, metric in enumerate(metrics):
        groups.setdefault(metric.group, []).append((place, metric))
    return list(groups.items())
