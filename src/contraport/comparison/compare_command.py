"""The `compare` command, which trains and evaluates a grid of objectives."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from contraport._utils.files import read_json_or_none, write_json, write_text
from contraport._utils.formatting import format_flags, format_options, join_names, pluralize
from contraport._utils.locks import lock_folder
from contraport._utils.progress import make_console_without_markup
from contraport._version import __version__
from contraport.comparison.command_options import COMPARE_COMMAND_SPEC, parse_duration
from contraport.comparison.comparison_result import Comparison
from contraport.comparison.grid import Grid, TrainingCell
from contraport.comparison.grid_builder import build_grid
from contraport.comparison.jobs import (
    CellJob,
    JobResult,
    TimeBudget,
    build_cell_job,
    check_data_unchanged,
    run_jobs_yielding_results,
)
from contraport.comparison.page import render_comparison_page, save_figure_if_any_mean
from contraport.comparison.statistics_and_verdicts import (
    JobAndResultByRowColumnSeed,
    build_table_entries,
    compute_seed_means_by_epoch,
    judge_claims,
    list_differences_of_unknown_seed_variance,
)
from contraport.comparison.tuning import (
    build_search_space,
    build_trial_cells,
    find_best_trial_if_all_done,
    settings_tuned_only_elsewhere_by_row,
)
from contraport.embedding import LoaderConfig
from contraport.errors import UsageError, check_new_or_empty_folder, message_if_out_of_memory, translate_write_errors
from contraport.evaluation.loaded_run import build_initial_test_plan_objective
from contraport.evaluation.notes_and_verdict import build_no_computable_metric_error, build_skipped_metric_notes
from contraport.evaluation.split_loading import SplitLoader
from contraport.metrics import Metric, Requirement, select_metrics, select_metrics_keeping_order
from contraport.metrics.eval_context import EvalContext
from contraport.metrics.registry import BASELINE_TITLES, choose_headline_metrics
from contraport.options import to_config_value
from contraport.training.components.assembly import TrainingComponents, build_components
from contraport.training.components.data_builder import build_dataset
from contraport.training.config import Settings
from contraport.training.dry_run import format_duration, train_timed_steps
from contraport.training.settings_and_run_folder import resolve_settings
from contraport.training.train import reduce_default_batch_size

OnCellDone: TypeAlias = Callable[[TrainingCell, JobResult], None]
"""Callback that receives each finished training run with its result."""

TrialCellsByRowAndColumn = Mapping[tuple[str, str], list[TrainingCell]]
"""Hyperparameter trials by row name and column name."""


@COMPARE_COMMAND_SPEC.with_option_parameters
def compare(arguments: dict[str, Any]) -> Comparison:
    """Train and evaluate objectives on a grid of data, settings and seeds.

    Raises:
        UsageError: a wrong argument, every training run refused its settings, or a worker process was killed.
        KeyboardInterrupt: it was interrupted; the same call resumes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     comparison = compare(
    ...         data=["digits"], objectives=["info-nce", "gca-ince"], seeds=1, epochs=1, encoder="mlp", max_items=128,
    ...         train={"batch_size": 64}, metrics=["knn"], out=folder, progress=False,
    ...     )
    >>> comparison.rows, comparison.columns, comparison.num_missing
    (['info-nce', 'gca-ince'], ['digits, standard'], 0)
    """
    grid = build_grid(arguments)
    _check_output_folder(grid.output_folder)
    options = grid.compare_options
    budget = TimeBudget(None if options.budget is None else parse_duration(options.budget))
    searched = [(row, column) for row in grid.rows for column in grid.columns] if options.tune else []
    trials = {(row.name, column.name): build_trial_cells(grid, row, column) for row, column in searched}
    trial_cells = [cell for cells in trials.values() for cell in cells]
    default_cells = [*trial_cells, *grid.cells_of_all_seeds]
    for (row_name, column_name), cell in {(cell.row.name, cell.column.name): cell for cell in default_cells}.items():
        try:
            resolve_settings(cell.options)
        except UsageError as error:
            raise UsageError(f"{row_name} on {column_name}: {error}", kind="settings") from error
    if not options.metrics:
        options = replace(options, metrics=_choose_default_metric_keys(grid))
        grid = replace(grid, compare_options=options)
    metric = grid.metrics[0]
    check_data_unchanged(build_cell_job(grid, cell) for cell in default_cells)
    console = make_console_without_markup(stderr=True) if options.progress else None
    every = _list_trial_and_table_cells(grid, trials, metric)
    missing = [cell for cell in every if build_cell_job(grid, cell).reusable_result is None]
    needs_estimate = console is not None or options.budget is not None
    budget.first_job_seconds = (
        _require_metric_and_estimate_training(grid, missing[0], estimate_seconds=needs_estimate) if missing else None
    )
    if console is not None:
        _print_training_estimate(console, grid, len(trial_cells), len(missing), budget.first_job_seconds)
    if options.dry_run:
        rows, columns = [row.name for row in grid.rows], [column.name for column in grid.columns]
        data = [column.data_label for column in grid.columns]
        return Comparison(grid.title, grid.output_folder, grid.baseline, rows, columns, [], column_data=data)
    hint = f"Finished training runs are in {grid.output_folder}. Resume: the same command."
    try:
        with _provide_progress_callback(console, len(missing)) as on_done:
            trial_results = _run_cells(grid, trial_cells, budget, on_done)
            cells = _list_table_cells_ready_to_run(grid, trials, trial_results, metric)
            cell_results = _run_cells(grid, cells, budget, on_done)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"stopped. {hint}") from error
    except BrokenProcessPool as error:
        message = f"processes: one of {options.processes} was killed, perhaps for lack of memory. Use fewer. {hint}"
        raise UsageError(message, kind="killed") from error
    results: JobAndResultByRowColumnSeed = {
        (cell.row.name, cell.column.name, cell.seed): (build_cell_job(grid, cell), cell_results[cell.run_folder_name])
        for cell in cells
        if cell.run_folder_name in cell_results
    }
    has_run_any_job = len(budget.finished_job_seconds) > 0
    comparison = _build_comparison(grid, trials, trial_results, results, metric, has_run_any_job=has_run_any_job)
    _save_comparison(grid, comparison, cells, results)
    return comparison


def _check_output_folder(out: Path) -> None:
    """Raise `UsageError` if a folder has contents other than a comparison.

    A comparison without results has `cells/` alone; `results.json` is written before the other files.
    """
    saved = read_json_or_none(out / "results.json")
    is_own = isinstance(saved, dict) and "cells" in saved
    outputs = ("results.json", "commands.sh", "table.md", "table.csv", "plot.png", "page.html")
    is_begun = (out / "cells").is_dir() and not any((out / name).exists() for name in outputs)
    if not is_own and not is_begun:
        check_new_or_empty_folder("out", out)


def _run_cells(
    grid: Grid, cells: Sequence[TrainingCell], budget: TimeBudget, on_done: OnCellDone
) -> dict[str, JobResult]:
    """Train and evaluate the given runs, and return finished results by folder name.

    Raises:
        UsageError: no metric of the first evaluated cell could be computed.
    """
    jobs = [build_cell_job(grid, cell) for cell in cells]
    missing = {job.run_folder.name: cell for job, cell in zip(jobs, cells, strict=True) if job.reusable_result is None}
    results: dict[str, JobResult] = {}
    for job, result in run_jobs_yielding_results(jobs, processes=grid.compare_options.processes, budget=budget):
        results[job.run_folder.name] = result
        first = next((one for one in results.values() if "values" in one), None)
        if first is not None and not first["values"]:
            remark = f"; finished training runs in {grid.output_folder} are reused"
            raise build_no_computable_metric_error(first["not_measured"], remark)
        if job.run_folder.name in missing:
            on_done(missing[job.run_folder.name], result)
    return results


def _choose_default_metric_keys(grid: Grid) -> tuple[str, ...]:
    """Return the keys of the default metrics that can be computed for the data.

    Raises:
        UsageError: no cell can be trained, or the first trainable one allows no headline metric.
    """
    metrics, refusals = select_metrics(), list[Exception]()
    for cell in (cell for cell in grid.cells_of_all_seeds if cell.seed == 0):
        try:
            unmet = _unmet_requirement_by_metric(metrics, *_build_cell_settings_and_components(grid, cell))
        except (UsageError, MemoryError, RuntimeError) as error:
            if not isinstance(error, UsageError) and message_if_out_of_memory(error) is None:
                raise
            refusals.append(error)
            continue
        chosen = choose_headline_metrics(metric for metric in metrics if unmet[metric.key] is None)
        if not chosen:
            reasons = " ".join(build_skipped_metric_notes(metrics, unmet, {}, selected_by_name=False))
            raise UsageError(
                f"metrics: must be named for {cell.column.data}, which allows none of the defaults. "
                f"{reasons} Pass {format_options(metrics=['uniformity'])}, or others of `contraport list metrics`.",
                kind="none_computed",
            )
        return tuple(metric.key for metric in chosen)
    raise UsageError(f"no training run could start: {refusals[0]}", kind="all_refused")


def _list_trial_and_table_cells(
    grid: Grid, trials: TrialCellsByRowAndColumn, selection_metric: Metric
) -> list[TrainingCell]:
    """List the runs of the hyperparameter search, then those of the comparison table.

    Where a hyperparameter search is not finished, the cells of the table still have the default settings.
    """
    trial_cells = [cell for cells in trials.values() for cell in cells]
    reusable = {cell.run_folder_name: build_cell_job(grid, cell).reusable_result for cell in trial_cells}
    results = {name: result for name, result in reusable.items() if result is not None}
    unfinished = {place for place, cells in trials.items() if any(c.run_folder_name not in results for c in cells)}
    others = [cell for cell in grid.cells_of_all_seeds if (cell.row.name, cell.column.name) in unfinished]
    return [*trial_cells, *_list_table_cells_ready_to_run(grid, trials, results, selection_metric), *others]


def _list_table_cells_ready_to_run(
    grid: Grid, trials: TrialCellsByRowAndColumn, results: Mapping[str, JobResult], selection_metric: Metric
) -> list[TrainingCell]:
    """List the table's training runs whose hyperparameters are already determined."""
    cells = []
    for cell in grid.cells_of_all_seeds:
        own_trials = trials.get((cell.row.name, cell.column.name))
        if own_trials is None:
            cells.append(cell)
        elif (best := find_best_trial_if_all_done(own_trials, results, selection_metric)) is not None:
            options = {key: value for key, value in best.options.items() if key != "validation"}
            cells.append(TrainingCell(best.row, best.column, {**options, "seed": cell.seed}))
    return cells


def _build_cell_settings_and_components(grid: Grid, cell: TrainingCell) -> tuple[Settings, TrainingComponents]:
    """Build the training settings and components of a run."""
    settings = resolve_settings({**cell.options, **grid.machine_options})
    dataset = build_dataset(settings)
    is_explicit = "batch_size" in cell.options
    settings = reduce_default_batch_size(settings, dataset, has_explicit_batch_size=is_explicit).settings
    return settings, build_components(settings, dataset=dataset)


def _require_metric_and_estimate_training(grid: Grid, cell: TrainingCell, *, estimate_seconds: bool) -> float | None:
    """Check that at least one metric can be computed, and estimate the training time.

    The estimate, from a few steps, is None without `estimate_seconds` or if training would be refused.

    Raises:
        UsageError: no metric can be computed.
    """
    metrics, seconds = select_metrics(grid.compare_options.metrics), None
    try:
        settings, components = _build_cell_settings_and_components(grid, cell)
        unmet = _unmet_requirement_by_metric(metrics, settings, components)
        if estimate_seconds:
            steps = components.steps_per_epoch * settings.epochs
            seconds = train_timed_steps(settings, components).median_step_seconds * steps
    except (UsageError, MemoryError, RuntimeError) as error:
        if not isinstance(error, UsageError) and message_if_out_of_memory(error) is None:
            raise
        return None  # the training itself reports it
    if all(unmet.values()):
        raise build_no_computable_metric_error(build_skipped_metric_notes(metrics, unmet, {}, selected_by_name=True))
    return seconds


def _unmet_requirement_by_metric(
    metrics: Sequence[Metric], settings: Settings, components: TrainingComponents
) -> dict[str, Requirement | None]:
    """Map each metric key to its first unmet requirement, or None."""
    model, views = components.module.model, components.module.views
    train, test = (SplitLoader(settings, model).load(None, split) for split in ("train", "test"))
    objective = None
    with suppress(UsageError):  # metrics that need the objective are then unmet, as in the evaluation
        objective = build_initial_test_plan_objective(settings)
    context = EvalContext(model, train, test, views, LoaderConfig(), objective=objective)
    return {metric.key: metric.find_unmet_requirement(context) for metric in metrics}


def _print_training_estimate(
    console: Console, grid: Grid, num_trials: int, num_missing: int, seconds_per_training: float | None
) -> None:
    """Print the number of training runs and their estimated total duration."""
    sizes = ((grid.rows, "objective"), (grid.columns, "setting"), (grid.seeds, "seed"))
    product = " x ".join(pluralize(len(values), name) for values, name in sizes)
    search = f", and {num_trials} trials of the search" if grid.compare_options.tune else ""
    message = f"{product}: {len(grid.cells_of_all_seeds)} training runs{search}; {num_missing} not done yet"
    console.print(message, highlight=False, soft_wrap=True)
    if seconds_per_training is not None:
        rounds = num_missing / min(grid.compare_options.processes, num_missing)
        total = format_duration(seconds_per_training * rounds)
        each = f"{seconds_per_training:,.0f} s" if seconds_per_training >= 1 else "under 1 s"
        message = f"estimate: {each} per training run, about {total} in all, without the evaluations"
        console.print(message, highlight=False, soft_wrap=True)


@contextmanager
def _provide_progress_callback(console: Console | None, total: int) -> Iterator[OnCellDone]:
    """Context manager that yields a callback to call after each finished training run."""
    if console is None:
        yield lambda cell, result: None
        return
    if not console.is_terminal:
        started, done = time.monotonic(), 0

        def print_line(cell: TrainingCell, result: JobResult) -> None:
            nonlocal done
            done += 1
            seconds = (time.monotonic() - started) / done * (total - done)
            left = f"  about {format_duration(seconds)} left" if done < total else ""
            console.print(
                f"{done}/{total}  {_describe_first_metric_or_failure(cell, result)}{left}",
                highlight=False,
                soft_wrap=True,
            )

        yield print_line
        return
    columns = (
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[cell]}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=total, cell="")
        yield lambda cell, result: progress.update(bar, advance=1, cell=_describe_first_metric_or_failure(cell, result))


def _describe_first_metric_or_failure(cell: TrainingCell, result: JobResult) -> str:
    """Describe a finished training run by its first metric, or by its failure."""
    kind = f"seed {cell.seed}" if cell.trial_number is None else f"trial {cell.trial_number}"
    values, (metric, *_) = result.get("values", {}), select_metrics_keeping_order(result["measures"])
    if metric.key in values:
        outcome = f"{metric.title} {metric.format(values[metric.key])}"
    else:
        outcome = str(result.get("failed", " ".join(result.get("not_measured", ()))))
    return f"{cell.row.name} on {cell.column.name}, {kind}: {outcome}"


def _build_comparison(
    grid: Grid,
    trials: TrialCellsByRowAndColumn,
    trial_results: Mapping[str, JobResult],
    results: JobAndResultByRowColumnSeed,
    selection_metric: Metric,
    *,
    has_run_any_job: bool,
) -> Comparison:
    """Build the comparison from the results of training runs and hyperparameter search.

    Raises:
        UsageError: every training run refused its settings.
    """
    every_result = [*trial_results.values(), *(one for _, one in results.values())]
    refused = [one["failed"] for one in every_result if one.get("refused")]
    if refused and len(refused) == len(every_result):
        raise UsageError(f"no training run could start: {refused[0]}", kind="all_refused")
    results = {**results, **_build_results_where_all_trials_failed(grid, trials, trial_results)}
    missing = len(grid.cells_of_all_seeds) - len(results)
    return Comparison(
        title=grid.title,
        folder=grid.output_folder,
        baseline=grid.baseline,
        rows=[row.name for row in grid.rows],
        columns=[column.name for column in grid.columns],
        entries=build_table_entries(grid, results),
        claim_verdicts=judge_claims(grid, results),
        epoch_means=compute_seed_means_by_epoch(grid, results),
        reference_metrics=_reference_metrics_by_name_and_column(grid, results),
        search_spaces={
            row.name: {
                key: f"{one.low:g} to {one.high:g}" for key, one in build_search_space(row, grid.common_options).items()
            }
            for row in (grid.rows if trials else ())
        },
        search_trials=_build_trial_records(grid, trials, trial_results, selection_metric),
        notes=_compose_notes(grid, results, missing, has_run_any_job=has_run_any_job),
        num_missing=missing,
        column_data=[column.data_label for column in grid.columns],
    )


def _save_comparison(
    grid: Grid, comparison: Comparison, cells: Sequence[TrainingCell], results: JobAndResultByRowColumnSeed
) -> None:
    """Write tables, figure, HTML page, commands and `results.json` of a comparison."""
    records = [
        {"row": row, "column": column, "seed": seed, **{key: one[key] for key in one if key != "measures"}}
        for (row, column, seed), (_, one) in results.items()
    ]
    record = {**_build_command_and_machine_record(grid), **comparison.to_json_dict(), "cells": records}
    out, commands = comparison.folder, [build_cell_job(grid, cell).shell_script for cell in cells]
    # Another process may be running other cells of the same table.
    with lock_folder(out, "compare", wait=True), translate_write_errors("out", out):
        write_json(out / "results.json", record)
        write_text(out / "commands.sh", "\n".join(["#!/bin/sh", "# Each cell of the table alone.", *commands]) + "\n")
        write_text(out / "table.md", comparison.markdown())
        write_text(out / "table.csv", comparison.csv())
        save_figure_if_any_mean(comparison, out / "plot.png")
        write_text(out / "page.html", render_comparison_page(comparison, commands))


def _build_results_where_all_trials_failed(
    grid: Grid, trials: TrialCellsByRowAndColumn, results: Mapping[str, JobResult]
) -> JobAndResultByRowColumnSeed:
    """Build a failed result for each training run whose hyperparameter trials all failed."""
    failed_cells: dict[tuple[str, str, int], tuple[CellJob, JobResult]] = {}
    for cell in grid.cells_of_all_seeds:
        own_trials = trials.get((cell.row.name, cell.column.name), [])
        reasons = [results.get(trial.run_folder_name, {}).get("failed") for trial in own_trials]
        if own_trials and all(reasons):
            failed = {"failed": f"every trial of its search failed. First reason: {reasons[0]}"}
            failed_cells[cell.row.name, cell.column.name, cell.seed] = build_cell_job(grid, cell), failed
    return failed_cells


def _reference_metrics_by_name_and_column(
    grid: Grid, results: JobAndResultByRowColumnSeed
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the metrics of untrained encoders and raw inputs, by reference and column name.

    References are evaluated with the first seed only.
    """
    values: dict[str, dict[str, dict[str, float]]] = {}
    for row, differing in grid.untrained_encoder_changes_by_row.items():
        suffix = "".join(f", {key} {value}" for key, value in differing.items())
        for key, name in BASELINE_TITLES.items():
            if key == "raw" and not {"given_views", "image_size"} & differing.keys() and differing:
                continue  # the same raw inputs as the baseline's
            for column in grid.columns:
                _, result = results.get((row, column.name, 0), (None, {}))
                if key in result.get("references", {}):
                    values.setdefault(name.removeprefix("the ") + suffix, {})[column.name] = result["references"][key]
    return values


def _build_trial_records(
    grid: Grid, trials: TrialCellsByRowAndColumn, results: Mapping[str, JobResult], selection_metric: Metric
) -> list[dict[str, Any]]:
    """Return a record of each hyperparameter trial, with its settings and result."""
    records = []
    for (row, column), cells in trials.items():
        best = find_best_trial_if_all_done(cells, results, selection_metric)
        for cell in cells:
            result = results.get(cell.run_folder_name, {"failed": "not done"})
            value = result.get("values", {}).get(selection_metric.key)
            own = {**cell.options, **(cell.options.get("objective_settings") or {})} if cell.trial_number else {}
            searched = [f"{key} {own[key]}" for key in build_search_space(cell.row, grid.common_options) if key in own]
            records.append(
                {
                    "row": row,
                    "column": column,
                    "trial": cell.trial_number,
                    "settings": ", ".join(searched) or "default",
                    "value": str(result.get("failed", "")) if value is None else selection_metric.format(value),
                    "chosen": cell is best,
                }
            )
    return records


def _compose_notes(
    grid: Grid, results: JobAndResultByRowColumnSeed, missing: int, *, has_run_any_job: bool
) -> list[str]:
    """Return the notes below the tables, for example about failed training runs."""
    comparisons = (len(grid.rows) - 1) * len(grid.columns)
    seeds = Counter((row, column) for (row, column, _), (_, one) in results.items() if one.get("values"))
    most_seeds = max(seeds.values(), default=0)
    notes = list(dict.fromkeys(note for _, one in results.values() for note in one.get("not_measured", ())))
    if most_seeds == 1:
        notes.append("One seed: the intervals cover other test items, not other seeds.")
    elif comparisons > 1 and seeds:
        notes.append(
            f"The intervals of all {comparisons} differences of a table hold at once (Bonferroni), over seeds and test "
            "items. The variance between seeds is moderated by the whole table, as few seeds say little (Smyth, 2004)."
        )
    if most_seeds > 1 and (single := list_differences_of_unknown_seed_variance(grid, results)):
        notes.append(f"Only one seed for {join_names(single)}: the interval covers other test items, not other seeds.")
    if missing:
        notes.append(
            f"{missing} of {len(grid.cells_of_all_seeds)} training runs are missing or run in another process. "
            "The same command resumes."
        )
        if grid.compare_options.budget is not None and not has_run_any_job:
            notes.append(
                f"The budget of {grid.compare_options.budget} is shorter than one training run, so none was started."
            )
    reasons: dict[str, list[str]] = {}
    for (row, column, _), (_, one) in results.items():
        if "failed" in one:
            reasons.setdefault(f"{row} on {column}", []).append(one["failed"])
    notes += [
        f"{place}: {len(texts)} of {pluralize(len(grid.seeds), 'training run')} failed. "
        f"{'First reason' if len(texts) > 1 else 'Reason'}: {texts[0]}"
        for place, texts in reasons.items()
    ]
    options = grid.compare_options
    if options.tune:
        notes.append(
            f"Settings were searched with {options.tune} trials per objective and setting, with seed 0, on "
            f"{options.validation:.0%} of the training items. The final training runs use all training items. "
            "An objective without searchable settings has one trial."
        )
        notes += [
            f"{name} fixes {', '.join(fixed)}, which was searched for others: it was tuned less."
            for name, fixed in settings_tuned_only_elsewhere_by_row(grid.rows, grid.common_options).items()
        ]
    return notes


def _build_command_and_machine_record(grid: Grid) -> dict[str, Any]:
    """Build the entries of `results.json` about options, command and machine."""
    # Options of a machine or a call determine where and when it is computed, not its result.
    recorded = [name for name, one in COMPARE_COMMAND_SPEC.options_by_name.items() if one.lifetime == "run"]
    options = {name: getattr(grid.compare_options, name) for name in recorded}
    explicit = {name: value for name, value in grid.explicit_options.items() if name in recorded}
    suite, device = grid.compare_options.suite, grid.compare_options.device
    if device in ("auto", "cuda") and torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    return {
        "suite": None if suite is None else Path(str(suite)).stem,
        "command": f"contraport compare {format_flags(explicit)}",
        "asked": to_config_value(options),
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "device": "cpu" if device == "auto" else device,
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "contraport": __version__,
        },
    }
