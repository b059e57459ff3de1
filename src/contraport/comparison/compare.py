"""`compare`: from what is asked to the trainings, the tables and the page."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from contraport._utils.files import write_json, write_text
from contraport._utils.formatting import format_flags, join_names, pluralize
from contraport._utils.locks import lock_folder
from contraport._utils.progress import make_console
from contraport._version import __version__
from contraport.comparison.comparison_tables import Comparison
from contraport.comparison.config import COMPARE, parse_duration
from contraport.comparison.grid import Cell, Given, Grid, Row
from contraport.comparison.grid_builder import build_grid
from contraport.comparison.jobs import CellJob, Found, TimeBudget, build_cell_job, check_data, run_cell_jobs
from contraport.comparison.page import draw, render
from contraport.comparison.seed_results import (
    Results,
    build_entries,
    epoch_means,
    judge_claims,
    metrics_in_order,
    single_seed_differences,
)
from contraport.comparison.tuning import as_text, build_trials, search_space, select_best_trial, settled, unequal
from contraport.errors import UsageError, check, out_of_memory_message, report_write_errors
from contraport.metrics import Metric
from contraport.metrics.registry import BASELINES
from contraport.options import to_config_value
from contraport.training.components import build_components
from contraport.training.dry_run import dry_run
from contraport.training.resolve import resolve_settings

Moved: TypeAlias = Callable[[Cell, Found], None]
"""Is told of each cell that is done."""


@COMPARE.with_signature
def compare(given: dict[str, Any]) -> Comparison:
    """Compare objectives on a grid of settings and seeds, and return what was found.

    Raises:
        UsageError: a wrong argument, every training refused its settings, or one of several processes was killed.
        KeyboardInterrupt: it was stopped; the same call goes on.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = compare(
    ...         data=["digits"], objectives=["info-nce", "gca-ince"], seeds=1, epochs=1, encoder="mlp", max_items=128,
    ...         train={"batch_size": 64}, metrics=["knn"], out=folder, progress=False,
    ...     )
    >>> found.rows, found.columns, found.lacking
    (['info-nce', 'gca-ince'], ['digits, standard'], 0)
    """
    grid = build_grid(given)
    asked = grid.asked
    measure = metrics_in_order(asked.metrics)[0]
    clock = TimeBudget(None if asked.budget is None else parse_duration(asked.budget))
    searched = [(row, column) for row in grid.rows for column in grid.columns] if asked.tune else []
    trials = {(row.name, column.name): build_trials(grid, row, column) for row, column in searched}
    plan = [*(cell for of in trials.values() for cell in of), *grid.cells]
    _check_each(plan)
    check_data(build_cell_job(grid, cell) for cell in plan)
    with _shown(asked.progress) as console:
        lacking = [cell for cell in _known_of(grid, trials, measure) if build_cell_job(grid, cell).found is None]
        known = console is not None or asked.budget is not None
        clock.expected = _expected(grid, lacking[0]) if known and lacking else None
        _foretell(console, grid, plan, len(lacking), clock.expected)
        if asked.dry_run:
            return Comparison(grid.title, grid.out, grid.baseline, _names(grid.rows), _names(grid.columns), [])
        try:
            with _bar(console, len(lacking)) as moved:
                found = _carry_out(grid, [cell for of in trials.values() for cell in of], clock, moved)
                cells = _settled(grid, trials, found, measure)
                results = _carry_out(grid, cells, clock, moved)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(f"stopped; what is done is in {grid.out}, and the same command goes on.") from error
        except BrokenProcessPool as error:
            raise UsageError(
                f"processes: one of {asked.processes} was ended from outside, as where memory runs out; expected "
                f"fewer. What is done is in {grid.out}, and the same command goes on."
            ) from error
    return _written(grid, trials, found, cells, results, measure, begun=len(clock.took) > 0)


def _carry_out(grid: Grid, cells: Sequence[Cell], clock: TimeBudget, moved: Moved) -> dict[str, Found]:
    """Train and judge cells, and return what was found, by the name of the folder."""
    jobs = [build_cell_job(grid, cell) for cell in cells]
    lacking = {job.path.name: cell for job, cell in zip(jobs, cells, strict=True) if job.found is None}
    found: dict[str, Found] = {}
    for job, result in run_cell_jobs(jobs, processes=grid.asked.processes, clock=clock):
        found[job.path.name] = result
        _check_measured(grid, found)
        if job.path.name in lacking:
            moved(lacking[job.path.name], result)
    return found


def _check_measured(grid: Grid, found: Mapping[str, Found]) -> None:
    """Raise `UsageError` where the first that was judged has none of the measures: the rest would be in vain."""
    told = next((one for one in found.values() if "values" in one), None)
    if told is not None and not told["values"]:
        raise UsageError(
            f"metrics: nothing could be measured. {' '.join(told['not_measured'])} Expected others, such as "
            f"--metrics recall@1. What was trained is kept in {grid.out}, and the same command with these goes on."
        )


def _known_of(grid: Grid, trials: Mapping[tuple[str, str], list[Cell]], measure: Metric) -> list[Cell]:
    """Return all trainings as far as they are known: with the settings that were chosen where a search has ended."""
    tried = [cell for of in trials.values() for cell in of]
    found = {cell.folder: told for cell in tried if (told := build_cell_job(grid, cell).found) is not None}
    searching = {place for place, of in trials.items() if any(cell.folder not in found for cell in of)}
    others = [cell for cell in grid.cells if (cell.row.name, cell.column.name) in searching]
    return [*tried, *_settled(grid, trials, found, measure), *others]


def _settled(
    grid: Grid, trials: Mapping[tuple[str, str], list[Cell]], found: Mapping[str, Found], measure: Metric
) -> list[Cell]:
    """Return the cells of the table with the settings that were chosen; those whose search has not ended lack."""
    cells = []
    for cell in grid.cells:
        of = trials.get((cell.row.name, cell.column.name))
        if of is None:
            cells.append(cell)
        elif (best := select_best_trial(of, found, measure)) is not None:
            cells.append(settled(best, cell.seed))
    return cells


def _check_each(plan: Iterable[Cell]) -> None:
    """Raise `UsageError` for settings that are wrong in themselves, before anything is trained."""
    seen = set()
    for cell in plan:
        place = (cell.row.name, cell.column.name)
        if place not in seen:
            seen.add(place)
            try:
                resolve_settings(cell.options)
            except UsageError as error:
                raise UsageError(f"{cell.row.name} on {cell.column.name}: {error}") from error


@contextmanager
def _shown(progress: bool) -> Iterator[Console | None]:
    yield make_console(stderr=True) if progress else None


def _expected(grid: Grid, cell: Cell) -> float | None:
    """Return how many seconds a training takes, as a few steps of it tell, or none where it refuses its settings."""
    try:
        settings = resolve_settings({**cell.options, **grid.machine})
        components = build_components(settings)
        return dry_run(settings, components).seconds * components.steps_per_epoch * settings.epochs
    except (UsageError, MemoryError, RuntimeError) as error:
        if not isinstance(error, UsageError) and out_of_memory_message(error) is None:
            raise
        return None  # which is told by the training itself


def _foretell(console: Console | None, grid: Grid, plan: Sequence[Cell], lacking: int, seconds: float | None) -> None:
    """Say how many trainings there are and, where it is known of the first that lacks, how long they take."""
    if console is None:
        return
    sizes = ((grid.rows, "objective"), (grid.columns, "setting"), (grid.seeds, "seed"))
    where = " x ".join(pluralize(len(those), one) for those, one in sizes)
    searching = f", and {len(plan) - len(grid.cells)} of the search" if grid.asked.tune else ""
    told = f"{where}: {len(grid.cells)} trainings{searching}; {lacking} are to be done"
    console.print(told, highlight=False, soft_wrap=True)
    if seconds is not None:
        whole = seconds * lacking / min(grid.asked.processes, lacking)
        told = f"as a few steps of the first tell, {seconds:.0f} s each, {roughly(whole)} in all; judging comes on top"
        console.print(told, highlight=False, soft_wrap=True)


def roughly(seconds: float) -> str:
    """Return in words how long something takes.

    >>> roughly(20), roughly(70), roughly(1800), roughly(9000)
    ('under a minute', 'about 1 minute', 'about 30 minutes', 'about 2.5 hours')
    """
    minutes = round(seconds / 60)
    if minutes < 1:
        return "under a minute"
    if minutes < 120:
        return f"about {pluralize(minutes, 'minute')}"
    return f"about {seconds / 3600:.1f} hours"


@contextmanager
def _bar(console: Console | None, total: int) -> Iterator[Moved]:
    """Give what is to be called with each cell that is done: a bar of all with the time left, or elsewhere a line."""
    started, done = time.monotonic(), [0]
    if console is None:
        yield lambda cell, found: None
        return
    if not console.is_terminal:

        def line(cell: Cell, found: Found) -> None:
            done[0] += 1
            left = (time.monotonic() - started) / done[0] * (total - done[0])
            told = _told(cell, found)
            console.print(f"{done[0]}/{total}  {told}  {roughly(left)} left", highlight=False, soft_wrap=True)

        yield line
        return
    columns = (
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[cell]}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=total, cell="")

        def move(cell: Cell, found: Found) -> None:
            progress.update(bar, advance=1, cell=_told(cell, found))

        yield move


def _told(cell: Cell, found: Found) -> str:
    kind = f"seed {cell.seed}" if cell.trial is None else f"trial {cell.trial}"
    values = found.get("values", {})
    told = str(found.get("failed", " ".join(found.get("not_measured", ()))))
    for one in metrics_in_order(found["measures"])[:1]:
        told = f"{one.title} {one.format(values[one.key])}" if one.key in values else told
    return f"{cell.row.name} on {cell.column.name}, {kind}: {told}"


def _names(of: Iterable[Any]) -> list[str]:
    return [one.name for one in of]


def _written(
    grid: Grid,
    trials: Mapping[tuple[str, str], list[Cell]],
    tried: Mapping[str, Found],
    cells: Sequence[Cell],
    found: Mapping[str, Found],
    measure: Metric,
    *,
    begun: bool,
) -> Comparison:
    """Write the tables, the page and the numbers of what was found, and return it."""
    jobs = [(cell, build_cell_job(grid, cell)) for cell in cells]
    results = {
        (cell.row.name, cell.column.name, cell.seed): (job, found[job.path.name])
        for cell, job in jobs
        if job.path.name in found
    }
    ended = {**tried, **found}
    refused = [one["failed"] for one in ended.values() if one.get("refused")]
    check(
        not (refused and len(refused) == len(ended)), f"every training refused its settings: {next(iter(refused), '')}"
    )
    results |= _without_settings(grid, trials, tried)
    lacking = len(grid.cells) - len(results)
    comparison = Comparison(
        title=grid.title,
        folder=grid.out,
        baseline=grid.baseline,
        rows=_names(grid.rows),
        columns=_names(grid.columns),
        entries=build_entries(grid, results),
        verdicts=judge_claims(grid, results),
        waypoints=epoch_means(grid, results),
        references=_references(grid, results),
        spaces={row.name: _spans(row, grid.common) for row in grid.rows} if trials else {},
        trials=_trials(grid, trials, tried, measure),
        notes=_notes(grid, results, lacking, begun=begun),
        lacking=lacking,
    )
    out, commands = grid.out, [job.command for _, job in jobs]
    numbers = {**_circumstances(grid), **comparison.to_json_value(), "cells": _cells(jobs, found)}
    with (
        lock_folder(out, "compare", wait=True),
        report_write_errors("out", out),
    ):  # another process may be at other cells of the table
        write_text(
            out / "commands.sh", "\n".join(["#!/bin/sh", "# Each cell of the table by itself.", *commands]) + "\n"
        )
        write_text(out / "table.md", comparison.markdown())
        write_text(out / "table.csv", comparison.csv())
        write_json(out / "results.json", numbers)
        draw(comparison, out / "plot.png")
        write_text(out / "page.html", render(comparison, commands))
    return comparison


def _without_settings(grid: Grid, trials: Mapping[tuple[str, str], list[Cell]], tried: Mapping[str, Found]) -> Results:
    """Return as failed the cells of the table whose every trial failed, so that there is nothing to train them with."""
    told: dict[tuple[str, str, int], tuple[CellJob, Found]] = {}
    for cell in grid.cells:
        of = trials.get((cell.row.name, cell.column.name), [])
        failed = [tried.get(trial.folder, {}).get("failed") for trial in of]
        if of and all(failed):
            why = f"every trial of its search failed, the first so: {failed[0]}"
            told[cell.row.name, cell.column.name, cell.seed] = build_cell_job(grid, cell), {"failed": why}
    return told


def _references(grid: Grid, results: Results) -> dict[str, dict[str, dict[str, float]]]:
    """Return what encoders before training and the raw inputs reach, beside rows with seed 0 (`Grid.references`)."""
    told: dict[str, dict[str, dict[str, float]]] = {}
    for row, differing in grid.references.items():
        whose = "".join(f", {key} {value}" for key, value in differing.items())
        for key, name in BASELINES.items():
            if key == "raw" and not {"given_views", "image_size"} & differing.keys() and differing:
                continue  # those of the baseline
            for column in grid.columns:
                _, found = results.get((row, column.name, 0), (None, {}))
                if key in found.get("references", {}):
                    told.setdefault(name.removeprefix("the ") + whose, {})[column.name] = found["references"][key]
    return told


def _trials(
    grid: Grid, trials: Mapping[tuple[str, str], list[Cell]], tried: Mapping[str, Found], measure: Metric
) -> list[dict[str, Any]]:
    """Return what the search tried, and what came of it."""
    told = []
    for (row, column), of in trials.items():
        best = select_best_trial(of, tried, measure)
        for cell in of:
            told.append(
                {
                    "row": row,
                    "column": column,
                    "trial": cell.trial,
                    "settings": "its own" if cell.trial == 0 else as_text(cell, grid.common),
                    "value": _reached(tried.get(cell.folder), measure),
                    "chosen": cell is best,
                }
            )
    return told


def _spans(row: Row, common: Given) -> dict[str, str]:
    return {key: f"{space.low:g} to {space.high:g}" for key, space in search_space(row, common).items()}


def _reached(found: Found | None, measure: Metric) -> str:
    if found is None:
        return "not done"
    value = found.get("values", {}).get(measure.key)
    return str(found.get("failed", "")) if value is None else measure.format(value)


def _notes(grid: Grid, results: Results, lacking: int, *, begun: bool) -> list[str]:
    comparisons = (len(grid.rows) - 1) * len(grid.columns)
    seeds = Counter((row, column) for (row, column, _), (_, found) in results.items() if found.get("values"))
    notes: list[str] = list(
        dict.fromkeys(told for _, found in results.values() for told in found.get("not_measured", ()))
    )
    if max(seeds.values(), default=0) == 1:
        notes.append("One seed: the intervals are over test items alone, and say nothing of other seeds.")
    elif comparisons > 1 and seeds:
        notes.append(
            f"The intervals of differences hold for all {comparisons} of a table at once (Bonferroni), over seeds and "
            "test items; how far seeds spread is moderated by the whole table, as so few tell little (Smyth, 2004)."
        )
    if max(seeds.values(), default=0) > 1 and (alone := single_seed_differences(grid, results)):
        notes.append(
            f"On one seed alone, as others lack, is the difference of {join_names(alone)}: its interval is over test "
            "items, and says nothing of other seeds."
        )
    if lacking:
        notes.append(
            f"{lacking} of {len(grid.cells)} trainings are still to be done, or another process is at them; the same "
            "command goes on."
        )
        if grid.asked.budget is not None and not begun:
            notes.append(f"A budget of {grid.asked.budget} is less than one training takes: none was begun.")
    notes += _failures(grid, results)
    if grid.asked.tune:
        notes.append(
            f"Own settings were searched by {grid.asked.tune} trials each, with seed 0, on "
            f"{grid.asked.validation:.0%} of the training items, which were then trained on too; an objective without "
            "any has its one."
        )
        notes += [
            f"{name} fixes {', '.join(fixed)}, which was searched of others: it was not tuned as hard."
            for name, fixed in unequal(grid.rows, grid.common).items()
        ]
    return notes


def _failures(grid: Grid, results: Results) -> list[str]:
    """Say of each cell of the table with how many of its seeds the training failed, and why the first did."""
    why: dict[tuple[str, str], list[str]] = {}
    for (row, column, _), (_, found) in results.items():
        if "failed" in found:
            why.setdefault((row, column), []).append(found["failed"])
    return [
        f"{row} on {column}: {len(told)} of {pluralize(len(grid.seeds), 'training')} failed"
        f"{', the first so' if len(told) > 1 else ''}: {told[0]}"
        for (row, column), told in why.items()
    ]


_OF_THE_PLACE = ("out", "root", "num_workers", "decoded", "progress", "dry_run", "budget", "processes", "device")
"""What is asked of a comparison that says where it is computed, and nothing of what it is."""


def _circumstances(grid: Grid) -> dict[str, Any]:
    given = {name: getattr(grid.asked, name) for name in COMPARE.options if name not in _OF_THE_PLACE}
    suite = grid.asked.suite
    chosen = {name: value for name, value in grid.given.items() if name not in _OF_THE_PLACE}
    return {
        "suite": None if suite is None else Path(str(suite)).stem,
        "command": f"contraport compare {format_flags(chosen)}",
        "asked": to_config_value(given),
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "device": _called(grid.asked.device),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "contraport": __version__,
        },
    }


def _called(device: str) -> str:
    """Return what a device is called: a GPU by its model, others by their kind."""
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    return torch.cuda.get_device_name() if chosen == "cuda" and torch.cuda.is_available() else chosen


def _cells(jobs: Sequence[tuple[Cell, CellJob]], found: Mapping[str, Found]) -> list[dict[str, Any]]:
    return [
        {
            "row": cell.row.name,
            "column": cell.column.name,
            "seed": cell.seed,
            **{key: value for key, value in found[job.path.name].items() if key != "measures"},
        }
        for cell, job in jobs
        if job.path.name in found
    ]
