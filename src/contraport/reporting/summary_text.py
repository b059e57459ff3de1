"""What the page says of all runs together: what was trained on what, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from contraport._utils.formatting import join_names, pluralize
from contraport.reporting.report_run import ReportRun, data_name

NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")


def describe(runs: Sequence[ReportRun]) -> str:
    """Say in one sentence what was trained on what."""

    def values(key: str) -> list[str]:
        return list(dict.fromkeys(str(run.config[key]).strip("<>") for run in runs if key in run.config))

    encoders = list(dict.fromkeys(run.encoder for run in runs))
    data = list(dict.fromkeys(data_name(run.config.get("data")) for run in runs))
    objectives, epochs = values("objective"), values("epochs")
    held = all(run.config.get("freeze") is True for run in runs)  # what was trained is behind them
    frozen, head = ("frozen ", " with a head") if held else ("", "")
    if len(runs) == 1:
        what = f"{_article(frozen or encoders[0])} {frozen}{encoders[0]} encoder{head}"
    else:
        count = NUMBERS[len(runs)] if len(runs) < len(NUMBERS) else str(len(runs))
        which = f"{frozen}encoders ({join_names(encoders)})" if len(encoders) > 1 else f"{frozen}{encoders[0]} encoders"
        what = f"{count} {which}{head and ', each'}{head}"
    how = f" with {join_names(objectives)}" if objectives else ""
    length = f" for {pluralize(int(epochs[0]), 'epoch')}" if len(epochs) == 1 and epochs[0].isdigit() else ""
    return f"{what} trained on {join_names(data)}{how}{length}."


def list_missing_parts(runs: Sequence[ReportRun]) -> list[str]:
    """Say what the runs lack."""
    told = [f"{run.name} has no curves: its training has logged nothing yet." for run in runs if not run.metrics]
    told += [f"{run.name} is not evaluated: contraport evaluate {run.path}" for run in runs if run.evaluation is None]
    told += [
        f"{run.name}: its loss is not finite at step {step:,}." for run in runs if (step := _diverged(run)) is not None
    ]
    evaluated = {run.name: run.evaluation.get("notes", []) for run in runs if run.evaluation is not None}
    for note in dict.fromkeys(note for of_run in evaluated.values() for note in of_run):
        names = [name for name, of_run in evaluated.items() if note in of_run]
        told.append(note if len(names) == len(runs) else f"{join_names(names)}: {note}")
    return told


def _diverged(run: ReportRun) -> int | None:
    """Return the first step whose loss is no number, if there is one."""
    return next((row["step"] for row in run.metrics if not math.isfinite(row.get("loss") or 0.0)), None)


def _article(name: str) -> str:
    """Return the article of a name; one without vowels is spelt.

    >>> _article("small-cnn"), _article("mlp"), _article("efficientnet_b0")
    ('A', 'An', 'An')
    """
    spelt = not set("aeiouy") & set(name.lower())
    return "An" if name[:1].lower() in ("aefhilmnorsx" if spelt else "aeiou") else "A"
