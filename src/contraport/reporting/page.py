"""Self-contained HTML report on training runs."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from contraport._utils.files import write_text
from contraport._utils.formatting import join_names, pluralize
from contraport.errors import check, check_output_file, translate_write_errors
from contraport.metrics import Metric
from contraport.plots.figure_setup import MASS_SCALE_ON_DARK, MASS_SCALE_ON_LIGHT
from contraport.reporting.command_options import REPORT_COMMAND_SPEC, ReportOptions
from contraport.reporting.html_page_parts import PageAssets, Section, render_page
from contraport.reporting.plotly_figures import to_script_json
from contraport.reporting.reported_run import ReportedRun, load_runs, shorten_data_name
from contraport.reporting.sections.embedding_map import build_embedding_map_section
from contraport.reporting.sections.feature_geometry import build_geometry_section
from contraport.reporting.sections.linear_probe_errors import build_confusion_section
from contraport.reporting.sections.metric_curves import (
    build_epoch_curves_section,
    build_robustness_section,
    build_training_curves_section,
)
from contraport.reporting.sections.nearest_neighbors import build_nearest_neighbors_section
from contraport.reporting.sections.online_audit import build_pair_audit_section
from contraport.reporting.sections.plan_heatmaps import build_plans_section
from contraport.reporting.sections.results_and_settings import build_results_section, build_settings_section
from contraport.reporting.verdict import build_verdict_section, compose_heading

SECTION_BUILDERS: tuple[Callable[[PageAssets], Section | None], ...] = (
    build_verdict_section,
    build_results_section,
    build_training_curves_section,
    build_epoch_curves_section,
    build_embedding_map_section,
    build_nearest_neighbors_section,
    build_confusion_section,
    build_plans_section,
    build_geometry_section,
    build_robustness_section,
    build_pair_audit_section,
    build_settings_section,
)
"""Functions that build the sections, in the order of the page; each returns None if the runs have no data for it."""


@REPORT_COMMAND_SPEC.with_option_parameters
def report(arguments: dict[str, Any]) -> Path:
    """Write one self-contained HTML page that compares runs, and return its path.

    Raises:
        UsageError: there is no run, a run is corrupt, `out` does not end in .html, its folder is missing, or it exists
            and `overwrite` is false.
    """
    options = ReportOptions(**arguments)
    path = Path(options.out)
    check(path.suffix.lower() in (".html", ".htm"), f"out: must end in .html, got {path.name!r}.")
    check_output_file("out", path, overwrite=options.overwrite)
    html = render_report(load_runs(options.runs))
    with translate_write_errors("out", path):
        write_text(path, html)
    return path


def render_report(runs: Sequence[ReportedRun]) -> str:
    """Render the report on runs as the text of an HTML page."""
    assets = PageAssets(runs)
    sections = [section for build in SECTION_BUILDERS if (section := build(assets)) is not None]
    return render_sections(assets, sections, compose_title(runs), heading=compose_heading(runs))


def render_sections(assets: PageAssets, sections: Sequence[Section], title: str, *, heading: str | None = None) -> str:
    """Render sections as an HTML page, with the figures and images of `assets`.

    The title stands below the heading; without a heading the title takes its place.
    """
    return render_page(
        "report.html.j2",
        "contraport.reporting",
        by_group=_group_metrics_with_indices,
        runs=assets.runs,
        title=title,
        heading=heading,
        sections=sections,
        sheets=assets.sheets,
        plots=Markup(to_script_json(assets.plots)),
        # The images are in the style sheet; the scripts need only their layout.
        sheet_sizes=Markup(to_script_json({key: {"columns": sheet.columns} for key, sheet in assets.sheets.items()})),
        data=Markup(to_script_json(assets.script_data)),
        mass={"light": MASS_SCALE_ON_LIGHT, "dark": MASS_SCALE_ON_DARK},
        # The cartesian bundle of plotly.js (lines, bars, heatmaps), as published, in gzip.
        plotly=base64.b64encode(
            files("contraport.reporting").joinpath("plotly-cartesian-4.1.1.min.js.gz").read_bytes()
        ).decode(),
    )


def compose_title(runs: Sequence[ReportedRun]) -> str:
    """Return a title such as "mlp encoder trained on digits for 10 epochs."."""

    def values(key: str) -> list[str]:
        return list(dict.fromkeys(str(run.config[key]).strip("<>") for run in runs if key in run.config))

    encoders = list(dict.fromkeys(run.encoder for run in runs))
    data = join_names(list(dict.fromkeys(shorten_data_name(run.config.get("data")) for run in runs)))
    objectives, epochs = values("objective"), values("epochs")
    is_frozen = all(run.config.get("freeze") is True for run in runs)
    adjective, verb = ("frozen ", "with a trained head on") if is_frozen else ("", "trained on")
    if len(runs) == 1:
        what = f"{adjective}{encoders[0]}".removesuffix(" encoder") + " encoder"
    elif len(encoders) == 1:
        what = f"{len(runs)} {adjective}{encoders[0]}".removesuffix(" encoder") + " encoders"
    else:
        what = f"{len(runs)} {adjective}encoders ({join_names(encoders)})"
    objective = f" with {join_names(objectives)}" if objectives else ""
    length = f" for {pluralize(int(epochs[0]), 'epoch')}" if len(epochs) == 1 and epochs[0].isdigit() else ""
    return f"{what} {verb} {data}{objective}{length}."


def _group_metrics_with_indices(metrics: Sequence[Metric]) -> list[tuple[str, list[tuple[int, Metric]]]]:
    """Return the metrics by group, each with its index in `metrics`."""
    groups: dict[str, list[tuple[int, Metric]]] = {}
    for place, metric in enumerate(metrics):
        groups.setdefault(metric.group, []).append((place, metric))
    return list(groups.items())
