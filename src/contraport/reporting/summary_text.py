"""Texts about all runs of the report: the title of the page and notes on missing parts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from contraport._utils.formatting import join_names, pluralize
from contraport.reporting.report_run import ReportRun, short_data_name

NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")


def build_report_title(runs: Sequence[ReportRun]) -> str:
    """Write the title of the report: which encoders were trained, on which data, with which objective."""

    def values(key: str) -> list[str]:
        return list(dict.fromkeys(str(run.config[key]).strip("<>") for run in runs if key in run.config))

    encoders = list(dict.fromkeys(run.encoder for run in runs))
    data = list(dict.fromkeys(short_data_name(run.config.get("data")) for run in runs))
    objectives, epochs = values("objective"), values("epochs")
    all_frozen = all(run.config.get("freeze") is True for run in runs)
    frozen, head = ("frozen ", " with a trained head") if all_frozen else ("", "")
    if len(runs) == 1:
        what = f"{_article(frozen or encoders[0])} {frozen}{encoders[0]} encoder{head}"
    else:
        count = NUMBERS[len(runs)] if len(runs) < len(NUMBERS) else str(len(runs))
        kinds = f"{frozen}encoders ({join_names(encoders)})" if len(encoders) > 1 else f"{frozen}{encoders[0]} encoders"
        what = f"{count} {kinds}{head and ', each'}{head}"
    objective = f" with {join_names(objectives)}" if objectives else ""
    length = f" for {pluralize(int(epochs[0]), 'epoch')}" if len(epochs) == 1 and epochs[0].isdigit() else ""
    return f"{what}{' on' if all_frozen else ' trained on'} {join_names(data)}{objective}{length}."


def list_run_problems(runs: Sequence[ReportRun]) -> list[str]:
    """Write notes on runs without metrics or evaluation, on diverged losses, and the notes of the evaluations."""
    notes = [f"{run.name} has no curves: no metrics are logged yet." for run in runs if not run.metrics_rows]
    notes += [f"{run.name} is not evaluated: contraport evaluate {run.path}" for run in runs if run.evaluation is None]
    for run in runs:
        diverged = (row["step"] for row in run.metrics_rows if not math.isfinite(row.get("loss") or 0.0))
        if (step := next(diverged, None)) is not None:
            notes.append(f"{run.name}: the loss is not finite at step {step:,}.")
    evaluated = {run.name: run.evaluation.get("notes", []) for run in runs if run.evaluation is not None}
    for note in dict.fromkeys(note for of_run in evaluated.values() for note in of_run):
        names = [name for name, of_run in evaluated.items() if note in of_run]
        notes.append(note if len(names) == len(runs) else f"{join_names(names)}: {note}")
    return notes


def _article(name: str) -> str:
    """Return "A" or "An" as a name requires; a name without vowels is read letter by letter.

    >>> _article("small-cnn"), _article("mlp"), _article("efficientnet_b0")
    ('A', 'An', 'An')
    """
    spelled = not set("aeiouy") & set(name.lower())
    return "An" if name[:1].lower() in ("aefhilmnorsx" if spelled else "aeiou") else "A"
