"""One HTML page that shows runs beside one another and opens without a network."""

from __future__ import annotations

import base64
import datetime
import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from contraport._version import __version__
from contraport.errors import check, check_new_file
from contraport.files import write_text
from contraport.measures import measures_of
from contraport.plots.colors import MASS_ON_DARK, MASS_ON_LIGHT, class_colors
from contraport.plots.curves import POINTS_PER_LINE
from contraport.plots.masses import DECADES
from contraport.reporting import figures
from contraport.reporting.numbers import listed, measured, settings, speeds, table
from contraport.reporting.shown import Shown, data_name, shown
from contraport.reporting.verdict import verdict
from contraport.verbs.report import VERB, ReportOptions

NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")

CLASSES_IN_LEGEND = 24
"""With more classes than this the colours have no legend, only the hover text."""


class Panel(NamedTuple):
    """A plot, or the reason why there is none."""

    run: Shown
    plot: str
    text: str
    plan: figures.PlanFigures | None = None


@VERB.keywords
def report(given: dict[str, Any]) -> Path:
    """Write one self-contained HTML page about one run or more, and return its path.

    Raises:
        UsageError: there is no run, a run is corrupt, `out` does not end in .html, its folder is missing, or it exists
            and `overwrite` is false.
    """
    asked = ReportOptions(**given)
    path = Path(asked.out)
    check(path.suffix.lower() in (".html", ".htm"), f"out: expected a name that ends in .html, got {path.name!r}.")
    check_new_file("out", path, overwrite=asked.overwrite)
    write_text(path, render(shown(asked.runs)))
    return path


def render(runs: Sequence[Shown]) -> str:
    """Return the page as HTML."""
    plots: dict[str, go.Figure] = {}
    sprites: dict[str, figures.Sprite] = {}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("contraport.reporting"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    html = environment.get_template("page.html.j2").render(
        runs=runs,
        sentence=describe(runs),
        verdict=verdict(runs),
        groups=table(runs),
        measures=measured(runs),
        curves=_curves(runs, plots),
        scatters=_scatters(runs, plots, sprites),
        plans=_plans(runs, plots),
        scale=figures.plan_scale(runs),
        legends=_legends(runs),
        settings=settings(runs),
        speeds=speeds(runs),
        notes=notes(runs),
        sprites={key: sheet._asdict() for key, sheet in sprites.items()},
        plots={key: Markup(figures.to_json(figure)) for key, figure in plots.items()},
        points_per_line=POINTS_PER_LINE,
        mass={"light": MASS_ON_LIGHT, "dark": MASS_ON_DARK},
        decades=DECADES,
        version=__version__,
        date=datetime.date.today().isoformat(),
        plotly=_packed(get_plotlyjs()),
    )
    return str(html)


def _packed(text: str) -> str:
    """Return a text compressed, in letters."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def describe(runs: Sequence[Shown]) -> str:
    """Say in one sentence what was trained on what."""

    def values(key: str) -> list[str]:
        return list(dict.fromkeys(str(run.config[key]).strip("<>") for run in runs if key in run.config))

    encoders = list(dict.fromkeys(run.encoder for run in runs))
    data = list(dict.fromkeys(data_name(run.config.get("data")) for run in runs))
    objectives, epochs = values("objective"), values("epochs")
    if len(runs) == 1:
        what = f"{'An' if encoders[0][0].lower() in 'aeiou' else 'A'} {encoders[0]} encoder"
    else:
        count = NUMBERS[len(runs)] if len(runs) < len(NUMBERS) else str(len(runs))
        what = f"{count} encoders ({listed(encoders)})" if len(encoders) > 1 else f"{count} {encoders[0]} encoders"
    how = f" with {listed(objectives)}" if objectives else ""
    length = f" for {epochs[0]} epoch{'s' if epochs[0] != '1' else ''}" if len(epochs) == 1 else ""
    return f"{what} trained on {listed(data)}{how}{length}."


def notes(runs: Sequence[Shown]) -> list[str]:
    """Say what the runs lack."""
    told = []
    for run in runs:
        if not run.metrics:
            told.append(f"{run.name} has no curves: its training has logged nothing yet.")
        if run.evaluation is None:
            told.append(f"{run.name} is not evaluated: contraport evaluate {run.path}")
        else:
            told += [f"{run.name}: {note}" for note in run.evaluation.get("notes", [])]
    return told


def _curves(runs: Sequence[Shown], plots: dict[str, go.Figure]) -> list[tuple[str, str, str]]:
    shown = []
    monitored = measures_of(row for run in runs for row in run.metrics)
    for key, title, scheduled_only in (
        ("loss", "Loss", False),
        *((measure.key, measure.title, False) for measure in monitored),
        ("lr", "Learning rate", False),
        ("temperature", "Temperature", True),
    ):
        values = [{row[key] for row in run.metrics if row.get(key) is not None} for run in runs]
        if not any(len(of_run) > scheduled_only for of_run in values):
            continue
        plots[f"curve-{key}"] = figures.curve(runs, key)
        ends = [f"{run.name}: {_last(run, key):.3g}" for run, of_run in zip(runs, values, strict=True) if of_run]
        shown.append((f"curve-{key}", title, f"{title} over the training steps; last values: {'; '.join(ends)}."))
    return shown


def _scatters(
    runs: Sequence[Shown], plots: dict[str, go.Figure], sprites: dict[str, figures.Sprite]
) -> list[tuple[Panel, str, str]]:
    shown = []
    for run in runs:
        if run.samples is None or "points" not in run.samples:
            continue
        plot = f"scatter-{run.position}"
        plots[plot] = figures.scatter(run)
        sheet = ""
        if "thumbnails" in run.samples:
            sheet, sprite = figures.sprite(run.samples["thumbnails"])
            sprites[sheet] = sprite
        points = len(run.samples["points"])
        method = str(run.samples.get("projection", "a projection"))
        colored = "coloured by class" if run.class_names else "without labels"
        text = f"{run.name}: {points:,} test items of {run.data} in the plane ({method}), {colored}."
        shown.append((Panel(run, plot, text), sheet, method))
    return shown


def _plans(runs: Sequence[Shown], plots: dict[str, go.Figure]) -> list[Panel]:
    shown = []
    scale = figures.plan_scale(runs)
    for run in runs:
        if run.samples is None or "plan" not in run.samples:
            continue
        assert scale is not None
        pair = figures.plan_figures(run, scale)
        plots[f"plan-{run.position}"], plots[f"target-{run.position}"] = pair.plan, pair.target
        text = f"plan of {run.name}: {_kept(pair.plan_mass)}{pair.on_target:.0%} of its mass where the target has mass"
        shown.append(Panel(run, f"plan-{run.position}", text, pair))
    return shown


def _kept(mass: float) -> str:
    """Return what the mass of a plan says of the pairs."""
    if abs(mass - 1) < _ROUNDING:
        return ""
    return f"mass {mass:.3f}, so that {1 - mass:.0%} was let go; " if mass < 1 else f"mass {mass:.3g}, more than 1; "


_ROUNDING = 1e-3


def _legends(runs: Iterable[Shown]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the classes and colours of each data set that has few enough to name."""
    names = {run.data: run.class_names for run in runs if run.class_names}
    return [
        (data, list(zip(classes, class_colors(len(classes)), strict=True)))
        for data, classes in names.items()
        if len(classes) <= CLASSES_IN_LEGEND
    ]


def _last(run: Shown, key: str) -> float:
    return float(next(row[key] for row in reversed(run.metrics) if row.get(key) is not None))
