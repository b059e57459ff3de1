"""The numbers, a measure a row and a run a column; how runs differ, measure by measure; the settings that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from contraport.metrics import Metric, metrics_of_rows
from contraport.metrics.intervals import Difference
from contraport.reporting.numbers import MISSING, Number, format_interval, measured, settings, table
from contraport.reporting.page_builder import Canvas, Plot, Section
from contraport.reporting.plotly_figures import GRID, MUTED, escaped, figure, titled
from contraport.reporting.report_run import ReportRun
from contraport.reporting.sections.robustness import ROBUSTNESS
from contraport.reporting.summary_text import list_missing_parts

ROW_HEIGHT = 24


def results(canvas: Canvas) -> Section:
    """Return what was measured, and what is missing."""
    runs = canvas.runs
    measures = [measure for measure in measured(runs) if measure.group != ROBUSTNESS]
    differing = [(key, values) for key, values, differs in settings(runs) if differs]
    return Section(
        "results",
        "Results",
        {
            "groups": table(runs, measures),
            "measures": measures,
            "notes": list_missing_parts(runs),
            "differing": differing,
            "differences": _differences(canvas, measures),
            "directions": _directions(runs),
        },
    )


def _differences(canvas: Canvas, measures: Sequence[Metric]) -> list[tuple[ReportRun, Plot]]:
    """Draw of the runs on each data by how many points each is ahead of the first, with the intervals."""
    shares = [m for m in measures if m.in_percent and m.better != "neither"]
    drawn = []
    for data in dict.fromkeys(run.data for run in canvas.runs):
        first, *others = [run for run in canvas.runs if run.data == data]
        found = [
            (measure, run, gain)
            for measure in shares
            for run in others
            if (gain := run.difference(first, measure.key)) is not None
        ]
        if not found:
            continue
        titles = list(dict.fromkeys(escaped(measure.title) for measure, *_ in found))
        traces = []
        for place, run in enumerate(others):
            own = [(measure, gain) for measure, of, gain in found if of is run]
            shift = 0.36 * (place - (len(others) - 1) / 2) / max(1, len(others) - 1)
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": [100 * gain.value for _, gain in own],
                    "y": [titles.index(escaped(measure.title)) + shift for measure, _ in own],
                    "error_x": {
                        "type": "data",
                        "symmetric": False,
                        "array": [100 * (gain.high - gain.value) for _, gain in own],
                        "arrayminus": [100 * (gain.value - gain.low) for _, gain in own],
                        "color": run.color,
                        "thickness": 2,
                        "width": 4,
                    },
                    "marker": {"color": run.color, "size": 9, "symbol": SYMBOLS[place % len(SYMBOLS)]},
                    "name": escaped(run.name),
                    "meta": run.position,
                    "customdata": [_written(gain) for _, gain in own],
                    "hovertemplate": "%{customdata}<extra>%{fullData.name}</extra>",
                }
            )
        height = 64 + ROW_HEIGHT * len(titles) * max(1, len(others))
        ticks = {"tickvals": list(range(len(titles))), "ticktext": titles, "range": [len(titles) - 0.5, -0.5]}
        x = titled(f"points more than {escaped(first.name)}", zeroline=True, zerolinecolor=MUTED, zerolinewidth=1.5)
        drawing = figure(traces, height=height, x=x, y={**ticks, "showgrid": False, "linecolor": GRID})
        said = "; ".join(f"{measure.title}, {run.name}: {_written(gain)}" for measure, run, gain in found)
        label = f"Differences from {first.name} on {data}: {said}."
        drawn.append((first, canvas.draw(f"differences-{first.position}", drawing, label, "forest")))
    return drawn


def _directions(runs: Sequence[ReportRun]) -> tuple[list[Metric], list[tuple[ReportRun, dict[str, list[Number]]]]]:
    """Return the measures of what was found from one given view to another, and of each run its cells by direction."""
    found = [(run, known) for run in runs if (known := (run.evaluation or {}).get("directions"))]
    measures = metrics_of_rows(values for _, known in found for values in known.values())
    return measures, [
        (run, {way: [_cell(measure, values) for measure in measures] for way, values in known.items()})
        for run, known in found
    ]


def _cell(measure: Metric, values: Mapping[str, Mapping[str, float]]) -> Number:
    found = values.get(measure.key)
    if found is None:
        return Number(MISSING, False)
    return Number(measure.format(found["value"]), False, format_interval(measure, found["low"], found["high"]))


def _written(gain: Difference) -> str:
    return f"{100 * gain.value:z.1f} points ({100 * gain.low:z.1f} to {100 * gain.high:z.1f})".replace("-", "−")


SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
