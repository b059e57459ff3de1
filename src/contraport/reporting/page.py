"""One HTML page that shows runs beside one another and opens without a network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from contraport import pages
from contraport._utils.files import write_text
from contraport.errors import check, check_new_file, report_write_errors
from contraport.metrics import Metric
from contraport.plots.colors import MASS_ON_DARK, MASS_ON_LIGHT
from contraport.reporting.config import REPORT, ReportOptions
from contraport.reporting.page_builder import Canvas
from contraport.reporting.plotly_figures import to_json
from contraport.reporting.report_run import ReportRun, shown
from contraport.reporting.sections import SECTIONS
from contraport.reporting.summary_text import describe
from contraport.runs import Run

PLOTLY = "plotly-cartesian-4.1.1.min.js.gz"
"""The parts of plotly.js that draw lines, bars and heatmaps, as its authors publish them, compressed."""


@REPORT.with_signature
def report(given: dict[str, Any]) -> Path:
    """Write one self-contained HTML page about one run or more, and return its path.

    Raises:
        UsageError: there is no run, a run is corrupt, `out` does not end in .html, its folder is missing, or it exists
            and `overwrite` is false.
    """
    asked = ReportOptions(**given)
    for run in asked.runs:
        (run if isinstance(run, Run) else Run(run)).check_is_run()
    path = Path(asked.out)
    check(path.suffix.lower() in (".html", ".htm"), f"out: expected a name that ends in .html, got {path.name!r}.")
    check_new_file("out", path, overwrite=asked.overwrite)
    page = render(shown(asked.runs))
    with report_write_errors("out", path):
        write_text(path, page)
    return path


def render(runs: Sequence[ReportRun]) -> str:
    """Return the page as HTML."""
    canvas = Canvas(runs)
    sections = [section for make in SECTIONS if (section := make(canvas)) is not None]
    return pages.render(
        "report.html.j2",
        "contraport.reporting",
        by_group=_by_group,
        runs=runs,
        sentence=describe(runs),
        sections=sections,
        sheets=canvas.sheets,
        plots=Markup(to_json(canvas.plots)),
        sheet_sizes=Markup(to_json({key: kept._asdict() | {"uri": ""} for key, kept in canvas.sheets.items()})),
        data=Markup(to_json(canvas.data)),
        mass={"light": MASS_ON_LIGHT, "dark": MASS_ON_DARK},
        plotly=base64.b64encode(files("contraport.reporting").joinpath(PLOTLY).read_bytes()).decode(),
    )


def _by_group(measures: Sequence[Metric]) -> list[tuple[str, list[tuple[int, Metric]]]]:
    """Return measures by their groups, each with its place among all."""
    groups: dict[str, list[tuple[int, Metric]]] = {}
    for place, measure in enumerate(measures):
        groups.setdefault(measure.group, []).append((place, measure))
    return list(groups.items())
