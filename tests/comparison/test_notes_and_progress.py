"""Notes, trials and progress of a comparison."""

from __future__ import annotations

import importlib
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.comparison.test_compare import SMALL, count_trainings
from tests.errors import raises_usage_error

from contraport import compare
from contraport._utils.files import write_npz
from contraport.comparison import jobs as running
from contraport.comparison.compare_command import (
    _build_results_where_all_trials_failed,
    _build_trial_records,
    _compose_notes,
    _describe_first_metric_or_failure,
    _provide_progress_callback,
    _require_metric_and_estimate_training,
    _run_cells,
)
from contraport.comparison.grid import Grid
from contraport.comparison.grid_builder import build_grid
from contraport.comparison.jobs import CellJob, JobResult, TimeBudget, build_cell_job
from contraport.comparison.tuning import build_trial_cells
from contraport.errors import UsageError
from contraport.metrics import select_metrics
from contraport.runs import WritableRun

MODULE = importlib.import_module("contraport.comparison.compare_command")
KNN = select_metrics(["knn"])[0]
THREE = SMALL | {"objectives": ["info-nce", "gca-ince", "rince"], "metrics": ["knn"]}


def return_result_and_save_items(job: CellJob) -> JobResult:
    """Return the result of a job, and save metric values of test items in its run folder."""
    run = WritableRun.create(job.run_folder, {"data": "digits"}, overwrite=True)
    write_npz(run.items_path, {"knn": np.arange(20) % 4 > 0})
    return {"measures": ["knn"], "values": {"knn": 0.75}, "took": 1.0}


def results_of(grid: Grid, **by_row: JobResult) -> dict[Any, Any]:
    """Return the jobs and results of the named rows, the same for each seed."""
    rows = {name.replace("_", "-"): result for name, result in by_row.items()}
    return {
        (cell.row.name, cell.column.name, cell.seed): (build_cell_job(grid, cell), rows[cell.row.name])
        for cell in grid.cells_of_all_seeds
        if cell.row.name in rows
    }


def test_note_on_intervals_counts_comparisons(tmp_path: Path) -> None:
    def notes(options: dict[str, Any], *rows: str) -> str:
        grid = build_grid(options | {"out": tmp_path})
        results = results_of(grid, **{row: {"values": {"knn": 0.75}} for row in rows})
        for job, _ in results.values():
            return_result_and_save_items(job)
        return " ".join(_compose_notes(grid, results, 0, has_run_any_job=True))

    assert "all 2 differences of a table" in notes(THREE, "info_nce", "gca_ince", "rince")
    assert "differences of a table" not in notes(SMALL, "info_nce", "gca_ince")
    one_seed = notes(THREE | {"seeds": 1}, "info_nce", "gca_ince", "rince")
    assert one_seed == "One seed: the intervals cover other test items, not other seeds."
    assert notes(THREE) == "", "expected no notes without results"


def test_failures_are_noted_with_the_first_reason(tmp_path: Path) -> None:
    grid = build_grid(SMALL | {"out": tmp_path})
    results = results_of(grid, info_nce={"values": {"knn": 0.9}}, gca_ince={"failed": "the loss is nan"})
    where = ("info-nce", "digits, standard", 1)
    results[where] = results[where][0], {"failed": "the disk is full"}
    assert _compose_notes(grid, results, 0, has_run_any_job=True) == [
        "One seed: the intervals cover other test items, not other seeds.",
        "gca-ince on digits, standard: 2 of 2 training runs failed. First reason: the loss is nan",
        "info-nce on digits, standard: 1 of 2 training runs failed. Reason: the disk is full",
    ]


@pytest.mark.parametrize(("has_run_any_job", "number"), [(False, 2), (True, 1)])
def test_small_budget_is_noted(tmp_path: Path, has_run_any_job: bool, number: int) -> None:
    notes = _compose_notes(
        build_grid(SMALL | {"out": tmp_path, "budget": "1h"}), {}, 4, has_run_any_job=has_run_any_job
    )
    assert notes[0].startswith("4 of 4 training runs")
    assert notes[1:] == ["The budget of 1h is shorter than one training run, so none was started."][: number - 1]


def test_sufficient_budget_is_not_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimeBudget, "allows_next_job", lambda clock: not clock.finished_job_seconds)
    monkeypatch.setattr(running, "run_job_unless_running", return_result_and_save_items)
    result = compare(**SMALL | {"metrics": ["knn"]}, budget="1h", out=tmp_path)
    assert result.num_missing == 3
    assert not any("none was started" in note for note in result.notes)
    assert result.search_spaces == {}
    commands = (tmp_path / "commands.sh").read_text().splitlines()
    assert len(commands) == 2 + 2 * 4, "expected commands of missing cells too"
    report = json.loads((tmp_path / "results.json").read_text())
    assert report["command"].startswith("contraport compare --data digits --objectives info-nce gca-ince ")
    assert not re.search(r"--(out|device|budget|progress)", report["command"])
    assert not {"out", "device", "budget", "progress"} & report["asked"].keys()
    assert "measures" not in report["cells"][0]


def test_trial_records(tmp_path: Path) -> None:
    grid = build_grid(SMALL | {"tune": 4, "metrics": ["knn"], "out": tmp_path})
    row, column = grid.rows[0], grid.columns[0]
    trial_cells = build_trial_cells(grid, row, column)
    trials = {(row.name, column.name): trial_cells}
    results: dict[str, JobResult] = {
        trial_cells[0].run_folder_name: {"measures": ["knn"], "values": {"knn": 0.5}},
        trial_cells[1].run_folder_name: {"measures": ["knn"], "failed": "the loss is nan"},
        trial_cells[2].run_folder_name: {"measures": ["knn"], "values": {"knn": 0.9}},
    }
    records = _build_trial_records(grid, trials, results, KNN)
    assert [one["value"] for one in records] == ["50.0%", "the loss is nan", "90.0%", "not done"]
    assert [one["settings"].split(" ")[0] for one in records] == ["default", *["temperature"] * 3]
    assert not any(one["chosen"] for one in records)
    results[trial_cells[3].run_folder_name] = {"measures": ["knn"], "values": {"knn": 0.7}}
    assert [one["chosen"] for one in _build_trial_records(grid, trials, results, KNN)] == [False, False, True, False]
    assert _build_results_where_all_trials_failed(grid, trials, results) == {}
    description = _describe_first_metric_or_failure(trial_cells[2], results[trial_cells[2].run_folder_name])
    assert description == "info-nce on digits, standard, trial 2: kNN 90.0%"
    two_metrics = {"measures": ["uniformity", "knn"], "values": {"uniformity": -2.0, "knn": 0.9}}
    assert _describe_first_metric_or_failure(grid.cells_of_all_seeds[0], two_metrics).startswith(
        "info-nce on digits, standard, seed 0: Uniformity -2.000"
    )


def test_fixed_settings_are_noted(tmp_path: Path) -> None:
    rows = ["rince", "rince:q=0.1"]
    grid = build_grid(SMALL | {"tune": 4, "objectives": rows, "metrics": ["knn"], "validation": 0.3, "out": tmp_path})
    notes = _compose_notes(grid, {}, 0, has_run_any_job=True)
    assert "4 trials per objective and setting, with seed 0, on 30% of the training items" in notes[0]
    assert notes[1:] == ["rince:q=0.1 fixes q, which was searched for others: it was tuned less."]


@pytest.mark.parametrize("failed", [(), ({"failed": "the loss is nan"},)])
def test_first_evaluated_cell_must_have_a_metric(
    failed: tuple[JobResult, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = build_grid(SMALL | {"out": tmp_path})

    def run_with(result: JobResult) -> dict[str, JobResult]:
        results = (*failed, result)
        monkeypatch.setattr(MODULE, "run_jobs_yielding_results", lambda jobs, **_: zip(jobs, results, strict=False))
        return _run_cells(grid, grid.cells_of_all_seeds[:2], TimeBudget(None), lambda cell, result: None)

    assert len(run_with({"values": {"knn": 0.5}})) == len(failed) + 1
    with raises_usage_error("metrics.none_computed", "Not measured, as it is dark"):
        run_with({"values": {}, "not_measured": ["Not measured, as it is dark: kNN."]})


def test_every_row_is_checked_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = count_trainings(monkeypatch)
    rows = ["info-nce", {"late": {"objective": "info-nce", "warmup_epochs": 5}}]
    with raises_usage_error("settings", "late on digits, standard: warmup_epochs"):
        compare(**SMALL | {"objectives": rows}, out=tmp_path)
    assert started == []


@pytest.mark.parametrize(
    ("processes", "expected"), [(1, "about 40 minutes"), (2, "about 20 minutes"), (9, "about 10 min")]
)
def test_plan_estimates_the_total_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], processes: int, expected: str
) -> None:
    monkeypatch.setattr(MODULE, "_require_metric_and_estimate_training", lambda grid, cell, estimate_seconds: 600.0)
    compare(**SMALL | {"progress": True}, processes=processes, dry_run=True, out=tmp_path)
    assert f"600 s per training run, {expected}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_estimate_counts_toward_a_budget_without_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = count_trainings(monkeypatch)
    monkeypatch.setattr(MODULE, "_require_metric_and_estimate_training", lambda grid, cell, estimate_seconds: 600.0)
    result = compare(**SMALL, budget="5m", out=tmp_path)
    assert (started, result.num_missing) == ([], 4)
    assert "The budget of 5m is shorter than one training run, so none was started." in result.notes


def test_dry_run_without_progress_trains_nothing(tmp_path: Path) -> None:
    compare(**SMALL, dry_run=True, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_progress_lines_estimate_the_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times, written = iter([0.0, 600.0, 1200.0]), io.StringIO()
    monkeypatch.setattr(MODULE, "time", SimpleNamespace(monotonic=lambda: next(times)))
    grid = build_grid(SMALL)
    with _provide_progress_callback(Console(file=written), 2) as report_progress:
        for cell in grid.cells_of_all_seeds[:2]:
            report_progress(cell, {"measures": ["knn"], "failed": "the loss is nan"})
    assert written.getvalue().splitlines() == [
        "1/2  info-nce on digits, standard, seed 0: the loss is nan  about 10 minutes left",
        "2/2  gca-ince on digits, standard, seed 0: the loss is nan",
    ]


def test_no_estimate_for_rejected_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid, arguments, error = (
        build_grid(SMALL | {"root": "my data"}),
        [],
        [UsageError("no"), MemoryError(), RuntimeError("a bug")],
    )

    def raise_next_error(settings: Any, **options: Any) -> None:
        arguments.append((settings.root, settings.device))
        raise error.pop(0)

    monkeypatch.setattr(MODULE, "build_components", raise_next_error)
    assert _require_metric_and_estimate_training(grid, grid.cells_of_all_seeds[0], estimate_seconds=True) is None
    assert _require_metric_and_estimate_training(grid, grid.cells_of_all_seeds[0], estimate_seconds=True) is None
    with pytest.raises(RuntimeError, match="a bug"):
        _require_metric_and_estimate_training(grid, grid.cells_of_all_seeds[0], estimate_seconds=True)
    assert arguments == [("my data", "cpu")] * 3
