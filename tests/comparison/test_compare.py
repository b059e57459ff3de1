"""`compare`: small grids, interruptions, searches, budgets, verdicts and summary sentences."""

from __future__ import annotations

import csv
import html
import json
import os
import re
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ttest_ind
from tests import TIMEOUT
from tests.errors import raises_usage_error

from contraport import compare
from contraport._utils.locks import lock_folder
from contraport.cli import main
from contraport.comparison import jobs as running
from contraport.comparison.compare_command import _build_command_and_machine_record, _list_table_cells_ready_to_run
from contraport.comparison.comparison_result import Comparison
from contraport.comparison.comparison_tables import format_mean_and_half_width, format_means_table
from contraport.comparison.grid import TrainingCell
from contraport.comparison.grid_builder import build_grid
from contraport.comparison.jobs import (
    CellJob,
    TimeBudget,
    build_cell_job,
    run_job_unless_running,
    run_jobs_yielding_results,
)
from contraport.comparison.seed_intervals import MAX_PREDICTED_SEEDS, estimate_paired_difference
from contraport.comparison.statistics_and_verdicts import (
    HELD,
    NOT_HELD,
    PARTLY,
    UNDECIDED,
    ClaimVerdict,
    TableEntry,
    classify_claim_outcome,
)
from contraport.comparison.summary_sentences import explain_verdict
from contraport.comparison.tuning import (
    SEARCH_RANGE_BY_SETTING,
    LogSearchRange,
    build_search_space,
    build_trial_cells,
    find_best_trial_if_all_done,
    settings_tuned_only_elsewhere_by_row,
)
from contraport.errors import FolderInUseError
from contraport.metrics import select_metrics as measures
from contraport.metrics.intervals import Difference, Interval
from contraport.runs import Run, WritableRun, as_run_folder

SMALL: dict[str, Any] = {
    "data": ["digits"],
    "objectives": ["info-nce", "gca-ince"],
    "settings": ["standard"],
    "seeds": 2,
    "epochs": 1,
    "encoder": "mlp",
    "max_items": 128,
    "train": {"batch_size": 64, "lr": 0.02},
    "metrics": ["knn", "uniformity"],
    "device": "cpu",
    "progress": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished comparison."""
    out = tmp_path_factory.mktemp("compare")
    compare(**SMALL, out=out)
    return out


def count_trainings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list that receives the folder of each training when it starts."""
    started: list[Path] = []
    own = running.train

    def train(**options: Any) -> Run:
        started.append(options["out"])
        return own(**options)

    monkeypatch.setattr(running, "train", train)
    return started


def test_table_contains_the_results_of_the_runs(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text())
    assert len(results["cells"]) == 4
    for build_entry in results["cells"]:
        assert build_entry["values"]["knn"] > 0.5
    of_row = [build_entry["values"]["knn"] for build_entry in results["cells"] if build_entry["row"] == "gca-ince"]
    entry = next(one for one in results["entries"] if (one["row"], one["measure"]) == ("gca-ince", "knn"))
    assert entry["mean"] == pytest.approx(sum(of_row) / 2)
    base = [build_entry["values"]["knn"] for build_entry in results["cells"] if build_entry["row"] == "info-nce"]
    assert entry["difference"][0] == pytest.approx((sum(of_row) - sum(base)) / 2)
    low, high = entry["difference"][1:]
    assert low < entry["difference"][0] < high
    assert results["machine"]["device"] == "cpu"
    rows = list(csv.DictReader((folder / "table.csv").open()))
    assert len(rows) == len(results["entries"]) == 4
    assert "| info-nce |" in (folder / "table.md").read_text()
    assert "digits, standard:" in (folder / "table.md").read_text()
    # The page splits the summary: its heading is the sentence on the first metric, with a tag around each word.
    page = " ".join(html.unescape(re.sub("<[^>]*>", "", (folder / "page.html").read_text())).split())
    heading, separator, rest = results["sentences"][0].partition(" Of 2 metrics")
    assert heading in page
    assert separator.strip() + rest in page
    assert results["sentences"][0] in (folder / "table.md").read_text()
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_finished_cells_are_reused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = count_trainings(monkeypatch)
    again = compare(**SMALL, out=folder)
    assert started == []
    assert again.num_missing == 0
    compare(**SMALL | {"seeds": 3, "objectives": ["info-nce"]}, out=folder)
    assert len(started) == 1


def test_intermediate_models_give_tables_by_epoch(tmp_path: Path) -> None:
    options = SMALL | {"epochs": 3, "train": {"batch_size": 64, "keep_every": 1}, "seeds": 2, "metrics": ["knn"]}
    result = compare(**options, out=tmp_path)
    assert [(one.row_name, one.epoch) for one in result.epoch_means] == [
        (row, epoch) for row in ("info-nce", "gca-ince") for epoch in (1, 2, 3)
    ]
    entry = result.find_entry("gca-ince", "digits, standard", "knn")
    assert entry is not None
    assert result.epoch_means[-1].mean == pytest.approx(entry.mean)
    assert {*result.reference_metrics} == {"untrained encoder", "raw inputs"}
    assert "by epoch, digits, standard" in result.markdown()
    assert "| objective | 1 | 2 | 3 |" in result.markdown()
    assert "By epoch, digits, standard" in (tmp_path / "page.html").read_text()
    assert "--checkpoints all" in (tmp_path / "commands.sh").read_text()
    cells = json.loads((tmp_path / "results.json").read_text())["cells"]
    assert [{*one["references"]} for one in cells] == [{"raw", "untrained"}, set(), set(), set()]
    trained = Run(next((tmp_path / "cells").glob("*info-nce--seed-0-????????"))).metrics_rows()
    assert cells[0]["seconds"]["training"] == pytest.approx(trained[-1]["seconds"], abs=0.006)
    with_first = json.loads((tmp_path / "results.json").read_text())["waypoints"][0]
    assert with_first["epoch"] == 1
    assert with_first["interval"] == pytest.approx(list(result.epoch_means[0].interval))


def test_commands_reproduce_a_cell(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, train_line, evaluate_line, *_ = (folder / "commands.sh").read_text().splitlines()
    build_entry = next((folder / "cells").glob("*seed-0*.json"))
    train_words = train_line.split()[1:]
    train_words[train_words.index("--out") + 1] = str(tmp_path / "run")
    assert main([*train_words, "--device", "cpu", "--progress", "false"]) == 0
    evaluate_words = [word if "cells" not in word else str(tmp_path / "run") for word in evaluate_line.split()[1:]]
    assert main([*evaluate_words, "--progress", "false"]) == 0
    first = json.loads((folder / "results.json").read_text())["cells"][0]
    assert Run(tmp_path / "run").evaluation()["rows"]["trained"] == pytest.approx(first["values"])
    assert build_entry.exists()


def test_references_use_the_representation_of_their_row(tmp_path: Path) -> None:
    options = SMALL | {"objectives": ["info-nce"], "over": ["representation=concatenate,projection"], "seeds": 1}
    grid = build_grid(options | {"out": tmp_path})
    rows = ["info-nce, representation concatenate", "info-nce, representation projection"]
    assert [*grid.untrained_encoder_changes_by_row] == rows
    result = compare(**options, out=tmp_path)
    names = ["untrained encoder", "raw inputs", "untrained encoder, representation projection"]
    assert [*result.reference_metrics] == names
    own, other = (result.reference_metrics[name]["digits, standard"] for name in (names[0], names[2]))
    cells = [build_entry for build_entry in grid.cells_of_all_seeds if build_entry.row.name == rows[1]]
    evaluated = Run(build_cell_job(grid, cells[0]).run_folder).evaluation()["rows"]
    assert other == evaluated["untrained"]
    assert other != own


def test_rows_with_the_same_encoder_share_references(tmp_path: Path) -> None:
    rows = ["info-nce", "simsiam", "gca-uot:relaxation=0.2", "info-nce:encoder=small-cnn", "nt-xent:encoder=small-cnn"]
    grid = build_grid(SMALL | {"objectives": rows, "baseline": "gca-uot:relaxation=0.2", "out": tmp_path})
    assert grid.untrained_encoder_changes_by_row == {
        "gca-uot:relaxation=0.2": {},
        "info-nce:encoder=small-cnn": {"encoder": "small-cnn"},
    }
    suite = build_grid({"suite": "multiview", "out": tmp_path})
    assert [*suite.untrained_encoder_changes_by_row] == ["2 views"], "expected one reference row for all rows"


def test_job_results_and_commands(tmp_path: Path) -> None:
    grid = build_grid(SMALL | {"out": tmp_path, "root": "my data", "train": {"batch_size": 64, "keep_every": 1}})
    jobs = [build_cell_job(grid, build_entry) for build_entry in grid.cells_of_all_seeds]
    assert [job.evaluates_references for job in jobs] == [True, False, False, False]
    train_line, evaluate_line = jobs[0].shell_script.splitlines()
    assert "--root 'my data'" in train_line
    assert evaluate_line.partition(" --")[2] == "metrics knn uniformity --checkpoints all --alone true"
    options = {"measures": ["knn", "uniformity"]}
    for result, finished in (
        (options | {"failed": "the loss is nan"}, [True, True]),
        (options | {"values": {}, "references": {}}, [False, True]),
        (options | {"values": {}, "references": {"raw": {}}}, [True, True]),
        ({"measures": ["knn"], "failed": "the loss is nan"}, [False, False]),
        ([], [False, False]),
    ):
        for job, is_finished in zip(jobs, finished, strict=False):
            job.result_path.parent.mkdir(parents=True, exist_ok=True)
            job.result_path.write_text(json.dumps(result))
            assert (job.reusable_result == result) == is_finished, result
    jobs[0].result_path.unlink()
    WritableRun.create(
        jobs[0].run_folder, {"data": "digits"}
    )  # as after a training that ended before its first checkpoint
    assert run_job_unless_running(jobs[0])["values"]["knn"] > 0.5


def test_interrupted_training_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = build_grid({**SMALL, "epochs": 3, "out": tmp_path})
    complete_job, job = (build_cell_job(grid, build_entry) for build_entry in grid.cells_of_all_seeds[:2])
    complete_result = run_job_unless_running(complete_job)
    own = running.train

    def train_and_interrupt(**options: Any) -> Run:
        own(**{**options, "epochs": 1})
        raise KeyboardInterrupt

    stopped_job = CellJob(
        complete_job.run_folder.with_name("stopped"),
        complete_job.options,
        complete_job.machine_options,
        complete_job.metric_names,
    )
    monkeypatch.setattr(running, "train", train_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_job_unless_running(stopped_job)
    with pytest.raises(KeyboardInterrupt, match=str(tmp_path)):
        compare(**{**SMALL, "epochs": 3, "seeds": 1, "objectives": ["rince"]}, out=tmp_path)
    assert stopped_job.reusable_result is None
    assert as_run_folder(stopped_job.run_folder).last_checkpoint.exists()
    started: list[bool] = []

    def record_resume(**options: Any) -> Run:
        started.append(options.get("resume", False))
        return own(**options)

    monkeypatch.setattr(running, "train", record_resume)
    result = run_job_unless_running(stopped_job)
    assert started == [True]
    assert result["values"].keys() == complete_result["values"].keys()
    assert job.reusable_result is None


def test_killed_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_broken_pool(*_: Any) -> None:
        raise BrokenProcessPool("A process in the process pool was terminated abruptly.")

    monkeypatch.setattr(running, "_run_parallel_unless_running", raise_broken_pool)
    with raises_usage_error("processes.killed", 2, tmp_path):
        compare(**SMALL, processes=2, out=tmp_path)


def test_another_baseline_gets_references_too(tmp_path: Path) -> None:
    options = SMALL | {"seeds": 1, "metrics": ["knn"]}
    first = compare(**options | {"baseline": "gca-ince"}, out=tmp_path).reference_metrics
    second = compare(**options, out=tmp_path).reference_metrics
    assert {*second} == {*first} == {"untrained encoder", "raw inputs"}
    assert second["raw inputs"] == first["raw inputs"]


def test_short_runs_have_no_intermediate_models(tmp_path: Path) -> None:
    options = SMALL | {"train": {"batch_size": 64, "keep_every": 2}, "seeds": 1, "metrics": ["knn"]}
    result = compare(**options | {"objectives": ["info-nce"]}, out=tmp_path)
    assert (result.num_missing, result.epoch_means) == (0, [])
    longer = build_grid(options | {"epochs": 2, "out": tmp_path}).cells_of_all_seeds[0]
    assert build_cell_job(build_grid(options | {"out": tmp_path}), longer).checkpoints_to_evaluate == "all"


def test_processes_are_assigned_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def assigned_gpus(visible: str | None, processes: int, devices: int) -> list[str | None]:
        number, result = get_context("spawn").Value("i", 0), list[str | None]()
        for _ in range(processes):
            if visible is None:
                monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            else:
                monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
            running._init_worker_process(number, devices, torch.get_num_threads())
            result.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return result

    assert assigned_gpus(None, 3, 2) == ["0", "1", "0"]
    assert assigned_gpus("2,GPU-7", 3, 2) == ["2", "GPU-7", "2"]
    assert assigned_gpus("3", 2, 1) == ["3", "3"]


def test_budget_limits_the_trainings(tmp_path: Path) -> None:
    result = compare(**SMALL, budget="0s", out=tmp_path)
    assert result.num_missing == 4
    assert any(note.startswith("4 of 4 training runs") for note in result.notes)
    clock = TimeBudget(100.0)
    assert clock.allows_next_job()
    clock.first_job_seconds = 150.0
    assert not clock.allows_next_job()
    clock.finished_job_seconds += [10.0]
    assert clock.allows_next_job()
    clock.finished_job_seconds.clear()
    clock.finished_job_seconds += [150.0, 90.0]
    assert not clock.allows_next_job()
    clock.finished_job_seconds.append(30.0)
    assert clock.allows_next_job(), "expected a decision by the mean duration"
    assert TimeBudget(None).allows_next_job()


def test_budget_uses_the_durations_of_finished_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid, clock = build_grid(SMALL | {"out": tmp_path}), TimeBudget(None)
    jobs = [build_cell_job(grid, build_entry) for build_entry in grid.cells_of_all_seeds]
    jobs[1].result_path.parent.mkdir(parents=True)
    jobs[1].result_path.write_text(json.dumps({"measures": list(jobs[1].metric_names), "took": 100.0}))
    monkeypatch.setattr(running, "run_job_unless_running", lambda job: {"took": float(jobs.index(job))})
    finished_jobs = [job for job, _ in run_jobs_yielding_results(jobs, processes=1, budget=clock)]
    assert finished_jobs == [jobs[1], jobs[0], jobs[2], jobs[3]]
    assert clock.finished_job_seconds == [0.0, 2.0, 3.0], "expected no duration of the finished job"


def test_search_has_the_same_number_of_trials_and_no_test_items(tmp_path: Path) -> None:
    result = compare(**SMALL | {"objectives": ["info-nce", "rince"], "seeds": 1}, tune=3, out=tmp_path)
    assert len(result.search_trials) == 6
    assert result.search_spaces["rince"] == {"temperature": "0.05 to 1", "q": "0.05 to 0.95"}
    assert "- info-nce: temperature from 0.05 to 1" in (tmp_path / "table.md").read_text()
    assert "rince: temperature from 0.05 to 1, q from 0.05 to 0.95" in (tmp_path / "page.html").read_text()
    assert sum(one["chosen"] for one in result.search_trials) == 2
    trials = [json.loads(path.read_text()) for path in (tmp_path / "cells").glob("*trial*.json")]
    assert all(one["options"]["validation"] == 0.25 for one in trials)
    final = [json.loads(path.read_text())["options"] for path in (tmp_path / "cells").glob("*seed-*.json")]
    assert len(final) == 2
    assert all("validation" not in options for options in final)


def test_only_selected_settings_remain_after_a_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = SMALL | {"metrics": ["knn"], "tune": 2, "seeds": 1, "out": tmp_path, "progress": True}
    grid = build_grid(options)
    first, second = build_trial_cells(grid, grid.rows[0], grid.columns[0])

    def num_remaining_after(build_entry: TrainingCell, **result: Any) -> str:
        job = build_cell_job(grid, build_entry)
        job.result_path.parent.mkdir(parents=True, exist_ok=True)
        job.result_path.write_text(json.dumps({"measures": ["knn"], **result}))
        compare(**options, dry_run=True)
        return capsys.readouterr().err.partition("; ")[2].partition("\n")[0].removesuffix(" not done yet")

    assert num_remaining_after(first, values={"knn": 0.5}) == "5"
    assert num_remaining_after(second, values={"knn": 0.9}) == "4"
    selected = {name: value for name, value in second.options.items() if name != "validation"}
    final = TrainingCell(second.row, second.column, selected | {"seed": 0})
    assert num_remaining_after(final, values={"knn": 0.9}, references={"raw": {}}) == "3"
    num_remaining_after(first, failed="the loss is nan")
    assert num_remaining_after(second, failed="the loss is nan") == "3", (
        "expected no training without selected settings"
    )


def test_rejects_a_search_by_a_metric_without_direction() -> None:
    with raises_usage_error("tune.no_direction", "effective_rank"):
        build_grid({**SMALL, "tune": 4, "metrics": ["effective_rank", "knn"]})


def test_best_trial_is_selected_once_all_are_done() -> None:
    grid = build_grid({**SMALL, "tune": 4})
    row, column = grid.rows[1], grid.columns[0]
    trials = build_trial_cells(grid, row, column)
    result = {
        trial.run_folder_name: {"values": {"knn": value}}
        for trial, value in zip(trials, (0.5, 0.9, 0.7, 0.9), strict=True)
    }
    knn = measures(["knn"])[0]
    assert find_best_trial_if_all_done(trials, result, knn) is trials[1]
    assert (
        find_best_trial_if_all_done(trials, {trials[0].run_folder_name: result[trials[0].run_folder_name]}, knn) is None
    )
    result[trials[1].run_folder_name] = {"failed": "it diverged"}
    assert find_best_trial_if_all_done(trials, result, knn) is trials[3]
    ranks = {
        trial.run_folder_name: {"values": {"median_rank": value}}
        for trial, value in zip(trials, (5, 2, 9, 2), strict=True)
    }
    assert find_best_trial_if_all_done(trials, ranks, measures(["median_rank"])[0]) is trials[1], (
        "expected the lowest rank"
    )
    longer = build_trial_cells(build_grid({**SMALL, "tune": 8}), row, column)
    assert [trial.options for trial in longer[:4]] == [trial.options for trial in trials]


def test_all_seeds_use_the_selected_settings() -> None:
    grid = build_grid({**SMALL, "tune": 3, "seeds": 2, "metrics": ["knn"]})
    trials = {(row.name, grid.columns[0].name): build_trial_cells(grid, row, grid.columns[0]) for row in grid.rows}
    first, second = trials.values()
    result = {
        trial.run_folder_name: {"values": {"knn": trial is first[1] or trial is second[2]}}
        for trial in (*first, *second)
    }
    cells = _list_table_cells_ready_to_run(grid, trials, result, measures(["knn"])[0])
    assert [(build_entry.row.name, build_entry.seed) for build_entry in cells] == [
        ("info-nce", 0),
        ("gca-ince", 0),
        ("info-nce", 1),
        ("gca-ince", 1),
    ]
    temperatures = [trial.options["temperature"] for trial in (first[1], second[2])]
    assert [build_entry.options["temperature"] for build_entry in cells] == temperatures * 2


def test_trials_keep_common_settings() -> None:
    grid = build_grid({**SMALL, "objectives": ["rince"], "tune": 4, "train": {"temperature": 0.3}})
    trials = build_trial_cells(grid, grid.rows[0], grid.columns[0])
    assert {trial.options["temperature"] for trial in trials} == {0.3}
    assert len({trial.options.get("objective_settings", {}).get("q") for trial in trials}) == 4


def test_parts_that_are_off_are_not_searched() -> None:
    names = ["iot", "iot-uniform", "gca-uot", "pairwise"]
    iot, uniform, unbalanced, pairwise = build_grid({**SMALL, "objectives": names}).rows
    assert set(build_search_space(iot, {})) == {"temperature", "iterations"}
    assert set(build_search_space(uniform, {})) == {"temperature", "iterations", "uniformity"}
    assert set(build_search_space(unbalanced, {})) == {"temperature", "iterations", "relaxation"}
    assert "temperature" in build_search_space(pairwise, {}), "expected the default temperature of the preset"


def test_fixed_settings_are_not_searched() -> None:
    rows = build_grid({**SMALL, "objectives": ["rince", "rince:q=0.1,temperature=0.2", "byol", "t-simclr"]}).rows
    assert set(build_search_space(rows[0], {})) == {"temperature", "q"}
    assert build_search_space(rows[1], {}) == {}
    assert build_search_space(rows[2], {}) == {}
    assert build_search_space(rows[3], {})["temperature"] == LogSearchRange(1.0, 32.0)
    assert SEARCH_RANGE_BY_SETTING["iterations"].value_at(0.0) == 1
    assert settings_tuned_only_elsewhere_by_row(rows, {}) == {"rince:q=0.1,temperature=0.2": ["q", "temperature"]}
    assert settings_tuned_only_elsewhere_by_row(rows[1:2], {}) == {}
    assert set(build_search_space(rows[0], {"temperature": 0.3})) == {"q"}
    assert set(build_search_space(rows[0], {"objective_settings": {"q": 0.3}})) == {"temperature"}
    assert settings_tuned_only_elsewhere_by_row(rows, {"temperature": 0.3}) == {"rince:q=0.1,temperature=0.2": ["q"]}


def test_wrong_settings_are_rejected_before_training(tmp_path: Path) -> None:
    with raises_usage_error("settings", "info-nce on digits, standard: warmup_epochs"):
        compare(**SMALL | {"train": {"warmup_epochs": 5}}, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with raises_usage_error("all_refused", "batch_size: "):
        compare(**SMALL | {"train": {"batch_size": 5000}}, out=tmp_path)


def test_batch_size_is_reduced_for_few_items(tmp_path: Path) -> None:
    """Metrics are checked with the settings of the training: the default batch size would exceed the items."""
    few = {name: value for name, value in SMALL.items() if name not in ("train", "metrics")}
    few |= {"objectives": ["info-nce"], "seeds": 1}
    assert compare(**few, out=tmp_path / "few").num_missing == 0
    (run,) = (path for path in (tmp_path / "few" / "cells").iterdir() if path.is_dir())
    assert Run(run).settings().batch_size == 32


def test_unreadable_data_leave_no_files_and_can_be_fixed(tmp_path: Path) -> None:
    data, out = tmp_path / "views.npz", tmp_path / "out"
    data.write_bytes(b"no such file")
    options = {**SMALL, "data": [data], "objectives": ["info-nce"], "seeds": 1}
    with raises_usage_error("all_refused", "data: ", "views.npz"):
        compare(**options, out=out)
    assert not out.exists()
    random = np.random.default_rng(0)
    np.savez(data, x=random.normal(size=(200, 8)).astype(np.float32), labels=np.arange(200) % 2)
    assert compare(**options | {"settings": ["noise:0.2"]}, out=out).num_missing == 0


def test_rejects_changed_data(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(120, 4))
    own = {"data": [str(tmp_path / "rows.npz")], "objectives": ["info-nce"], "out": tmp_path / "out", "epochs": 1}
    own |= {"encoder": "mlp", "train": {"batch_size": 16}, "metrics": ["effective_rank"], "progress": False}
    np.savez(tmp_path / "rows.npz", x=rows)
    compare(**own, seeds=1)
    rows[:50] += 1
    np.savez(tmp_path / "rows.npz", x=rows)
    with raises_usage_error("data.changed"):
        compare(**own, seeds=2)
    rows[:50] -= 1
    np.savez(tmp_path / "rows.npz", x=rows)
    assert compare(**own, seeds=2).num_missing == 0


def test_rejected_settings_are_noted_beside_other_rows(tmp_path: Path) -> None:
    rows = ["info-nce", {"too wide": {"recipe": "direct-clr", "objective_settings": {"dimensions": 100000}}}]
    result = compare(**SMALL | {"objectives": rows, "seeds": 1}, out=tmp_path)
    entry = result.find_entry("too wide", "digits, standard", "knn")
    assert entry is not None
    assert entry.mean is None
    assert entry.first_failure_reason
    assert any(entry.first_failure_reason in note for note in result.notes)


def test_headings_name_shared_data_once() -> None:
    def headings(*columns: str) -> list[str]:
        return Comparison("a title", Path(), "base", [], list(columns), []).table_header_row

    assert headings("digits, a, clean", "digits, b") == ["on digits", "a, clean", "b"]
    assert headings("digits, a", "photos, a") == ["objective", "digits, a", "photos, a"]
    assert headings("digits, a") == ["objective", "digits, a"]


def test_headings_keep_commas_of_names() -> None:
    def headings(*columns: tuple[str, str]) -> list[str]:
        names, data = [", ".join(column) for column in columns], [column[0] for column in columns]
        return Comparison("a title", Path(), "base", [], names, [], column_data=data).table_header_row

    assert headings(("a, b.csv", "clean"), ("a, b.csv", "noisy, much")) == ["on a, b.csv", "clean", "noisy, much"]
    assert headings(("a, b.csv", "clean"), ("a, c.csv", "clean")) == ["objective", "a, b.csv, clean", "a, c.csv, clean"]


def test_name_of_data_with_a_comma_is_in_the_table_header(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "left, right.npz", view0=rng.normal(size=(40, 4)), view1=rng.normal(size=(40, 4)))
    changes = {"data": [str(tmp_path / "left, right.npz")], "settings": ["plain", "weak"], "seeds": 1, "dry_run": True}
    result = compare(**SMALL | changes, out=tmp_path / "out")
    assert result.table_header_row == ["on left, right.npz", "plain", "weak"]
    assert result.to_json_dict()["column_data"] == ["left, right.npz"] * 2


def test_classifies_outcomes_of_claims() -> None:
    better, worse = Difference(0.03, 0.01, 0.05), Difference(-0.03, -0.05, -0.01)
    none, unknown = Difference(0.0, -0.004, 0.004), Difference(0.01, -0.05, 0.07)
    assert classify_claim_outcome([better, none, unknown]) == HELD
    assert classify_claim_outcome([worse, none, unknown]) == NOT_HELD
    assert classify_claim_outcome([none, none]) == NOT_HELD
    assert classify_claim_outcome([none, unknown]) == UNDECIDED
    assert classify_claim_outcome([better, worse, none, unknown]) == PARTLY
    assert classify_claim_outcome([]) == UNDECIDED
    assert classify_claim_outcome([], requires_all=True) == UNDECIDED
    assert classify_claim_outcome([none, none], negligible_gain=0.0) == UNDECIDED
    assert classify_claim_outcome([worse, none], negligible_gain=0.0) == NOT_HELD
    assert classify_claim_outcome([better, better], requires_all=True) == HELD
    assert classify_claim_outcome([better, unknown], requires_all=True) == UNDECIDED
    little = Difference(0.005, 0.002, 0.008)  # significantly better, but by less than a point
    assert classify_claim_outcome([little]) == classify_claim_outcome([better, little], requires_all=True) == HELD
    assert classify_claim_outcome([little, unknown], requires_all=True) == UNDECIDED
    assert classify_claim_outcome([little, none], requires_all=True) == NOT_HELD
    assert (
        classify_claim_outcome([better, none], requires_all=True)
        == classify_claim_outcome([better, worse], requires_all=True)
        == NOT_HELD
    )


def test_verdict_names_the_number_of_deciding_seeds() -> None:
    unsure = Difference(0.02, -0.01, 0.05)
    sure, other = Difference(0.02, 0.01, 0.03), Difference(0.03, 0.01, 0.05)
    sentence = explain_verdict(
        ClaimVerdict("a claim", HELD, "knn", {"a on b": sure, "a on c": other, "a on d": unsure})
    )
    assert sentence.startswith("Of 3 comparisons, 2 significantly better (a on b; a on c) and 0 significantly worse. ")
    sentence = explain_verdict(ClaimVerdict("a claim", HELD, "knn", {"a on c": other, "a on d": unsure}))
    assert sentence.startswith(
        "Of 2 comparisons, 1 significantly better and 0 significantly worse. Largest difference, a on c: "
    )
    assert explain_verdict(ClaimVerdict("a claim", UNDECIDED, "knn", {"a on b": unsure}, 7)) == (
        "a on b: +2.0 points (−1.0 to +5.0). If the differences stayed the same, about 7 seeds would decide it."
    )
    undecidable = ClaimVerdict("a claim", UNDECIDED, "knn", {"a on b": unsure}, MAX_PREDICTED_SEEDS)
    assert "it needs more test items" in explain_verdict(undecidable)
    verdicts = [undecidable, undecidable._replace(num_seeds_to_decide=7)]
    comparison = Comparison("", Path(), "a", [], [], [], claim_verdicts=verdicts)
    assert [one["seeds"] for one in comparison.to_json_dict()["verdicts"]] == [None, 7]
    assert "seeds" not in explain_verdict(ClaimVerdict("a claim", UNDECIDED, "knn", {"a on b": unsure}))
    assert "seeds" not in explain_verdict(
        ClaimVerdict("a claim", HELD, "knn", {"a on b": Difference(0.03, 0.01, 0.05)})
    )


def test_claims_use_saved_items(folder: Path, tmp_path: Path) -> None:
    """The interval of the verdict equals that of the saved test items by SciPy."""
    claim = {"says": "balanced is better", "better": ["gca-ince"], "than": "info-nce", "measure": "knn"}
    options = {key: value for key, value in SMALL.items() if key != "progress"}
    (tmp_path / "own.yaml").write_text(json.dumps({**options, "claims": [claim]}))
    result = compare(suite=tmp_path / "own.yaml", out=folder, progress=False)
    (verdict,) = result.claim_verdicts
    ((name, gain),) = verdict.gains.items()
    assert name == "gca-ince on digits, standard"
    results = json.loads((folder / "results.json").read_text())
    cells = results["cells"]
    assert results["suite"] == "own"
    runs = {build_entry["row"]: [] for build_entry in cells}
    for path in sorted((folder / "cells").glob("*seed-[01]-????????")):
        runs["gca-ince" if "gca-ince" in path.name else "info-nce"].append(
            as_run_folder(path).test_item_metric_values()["knn"].astype(float)
        )
    differences = np.stack(runs["gca-ince"]) - np.stack(runs["info-nce"])
    welch = ttest_ind(differences.mean(axis=1), differences.mean(axis=0), equal_var=False).confidence_interval(0.95)
    assert gain.value == pytest.approx(differences.mean())
    assert gain.high - gain.low == pytest.approx(welch.high - welch.low)


@pytest.mark.parametrize(
    ("gains", "sentence"),
    [
        ([0.0], "on: row 1 does not differ significantly from base on kNN, 90.0 ± 1.0% for base."),
        ([0.0, 0.0], "on: row 1 and row 2 do not differ significantly from base on kNN, 90.0 ± 1.0% for base."),
        (
            [0.01, 0.015, -0.05],
            "on: row 2 and row 1 do not differ significantly from base on kNN, 90.0 ± 1.0% for base and 91.5 ± 1.0% "
            "for row 2; row 3 is significantly worse.",
        ),
        (
            [0.05, 0.0, -0.05],
            "on: row 1 has the best kNN, 95.0 ± 1.0%; row 1 is significantly better than base; row 3 is significantly "
            "worse; row 2 does not differ significantly from base.",
        ),
        (
            [0.05, 0.0, 0.0],
            "on: row 1 has the best kNN, 95.0 ± 1.0%; row 1 is significantly better than base; row 2 and row 3 do "
            "not differ significantly from base.",
        ),
    ],
)
def test_column_sentence(gains: list[float], sentence: str, tmp_path: Path) -> None:
    rows = ["base", *(f"row {number + 1}" for number in range(len(gains)))]
    entries = [
        TableEntry(
            row_name=row,
            column_name="on",
            metric_key="knn",
            num_seeds=3,
            mean=0.9 + gain,
            interval=Interval(0.89 + gain, 0.91 + gain),
            difference=None if row == "base" else Difference(gain, gain - 0.02, gain + 0.02),
            mean_training_seconds=1.0,
            first_failure_reason=None,
        )
        for row, gain in zip(rows, [0.0, *gains], strict=True)
    ]
    assert Comparison("", tmp_path, "base", rows, ["on"], entries).column_summaries == [sentence]


def build_entry(
    row: str, mean: float | None, difference: Difference | None = None, *, measure: str, failed: str = ""
) -> TableEntry:
    """Return an entry of a table with one column, with an interval of 0.01 around its mean."""
    interval = None if mean is None else Interval(mean - 0.01, mean + 0.01)
    return TableEntry(row, "on", measure, 0 if mean is None else 3, mean, interval, difference, 1.0, failed or None)


@pytest.mark.parametrize(
    ("seconds", "gain", "is_named"),
    [
        (((29.0, 31.0), (11.0, 13.0), (35.0, 45.0)), 0.0, True),
        (((29.0, 31.0), (2.3, 37.3), (35.0, 45.0)), 0.0, False),  # one training of the fastest row was slow
        (((13.0, 47.0), (11.0, 13.0), (35.0, 45.0)), 0.0, False),  # one training of another row was as fast
        (((30.0,), (12.0,), (40.0,)), 0.0, False),  # a single training of each row
        (((29.0, 31.0), (11.0, 13.0), (40.0,)), 0.0, False),
        (((9.0, 11.0), (11.5, 12.5), (14.8, 15.0)), 0.0, False),  # within the variation of training times
        (((29.0, 31.0), (11.0, 13.0), ()), 0.0, False),
        (((29.0, 31.0), (11.0, 13.0), (35.0, 45.0)), 0.05, False),  # the significantly better row is named instead
        (((), (), ()), 0.0, False),
    ],
)
def test_sentence_names_the_fastest_of_equal_rows_only_if_clear(
    seconds: tuple[tuple[float, ...], ...], gain: float, is_named: bool
) -> None:
    gains = {"base": None, "row 1": gain, "row 2": 0.0}
    cells = [
        build_entry(row, 0.9, None if one is None else Difference(one, one - 0.02, one + 0.02), measure="knn")._replace(
            mean_training_seconds=float(np.mean(times)) if times else None, seconds_by_training=times
        )
        for (row, one), times in zip(gains.items(), seconds, strict=True)
    ]
    sentence = summarize(*cells)
    assert ("fastest" in sentence) == is_named
    assert sentence.endswith("; row 1 is the fastest of these, 12 s per training run, row 2 40 s.") == is_named


def test_sentence_of_rows_that_tie_without_intervals() -> None:
    tied = [build_entry(row, 0.9, measure="knn") for row in ("base", "other")]
    assert summarize(*tied).startswith("on: base and other have the same kNN, 90.0 ± 1.0%; no interval for other")
    worse = build_entry("worse", 0.8, Difference(-0.1, -0.2, -0.01), measure="knn")
    assert summarize(*tied, worse).startswith("on: base and other have the same best kNN, 90.0 ± 1.0%; ")


def test_sentence_names_the_seeds_that_would_decide() -> None:
    base, wide = build_entry("base", 0.9, measure="knn"), Difference(0.01, -0.1, 0.12)
    rows = {
        name: build_entry(name, 0.91, wide, measure="knn")._replace(num_seeds_to_decide=seeds)
        for name, seeds in (("a", 14), ("b", 6), ("c", 14), ("d", MAX_PREDICTED_SEEDS), ("e", None))
    }
    both = summarize(base, *rows.values())
    assert both.endswith(
        " If the differences stayed the same, a decision would need about 6 seeds for b and 14 for a and c. "
        "For d, more seeds would not decide it, but more test items may."
    )
    assert "would" not in summarize(base, rows["e"])
    assert "about 14 seeds for a" in summarize(base, rows["a"])


def test_no_row_is_marked_as_best_if_all_tie() -> None:
    tied, (knn,) = [build_entry(row, 0.9, measure="knn") for row in ("base", "other")], measures(["knn"])
    assert Comparison("", Path(), "base", ["base", "other"], ["on"], tied).rows_with_best_mean("on", knn) == set()
    three = [*tied, build_entry("worse", 0.8, measure="knn")]
    result = Comparison("", Path(), "base", ["base", "other", "worse"], ["on"], three)
    assert result.rows_with_best_mean("on", knn) == {"base", "other"}


def summarize(*cells: TableEntry) -> str:
    (sentence,) = Comparison("", Path(), "base", [one.row_name for one in cells], ["on"], list(cells)).column_summaries
    return sentence


@pytest.mark.parametrize("measure", ["knn", "alignment"])
def test_table_marks_significant_differences(measure: str) -> None:
    cells = [
        build_entry("base", 0.5, measure=measure),
        build_entry("more", 0.6, Difference(0.1, 0.05, 0.15), measure=measure),
        build_entry("less", 0.4, Difference(-0.1, -0.15, -0.05), measure=measure),
        build_entry("neither", 0.51, Difference(0.01, -0.04, 0.06), measure=measure),
        build_entry("hot", None, measure=measure, failed="the loss is nan"),
    ]
    result = Comparison("", Path(), "base", [one.row_name for one in cells], ["on"], cells)
    marks = {
        line.split(" | ")[0].strip("| "): line[-3]
        for line in format_means_table(result, measures([measure])[0]).splitlines()
    }
    assert (marks["more"], marks["less"]) == ("▲", "▼")
    assert not {marks[row] for row in ("base", "neither", "hot")} & {"▲", "▼"}


def test_sentence_for_a_metric_without_direction() -> None:
    sentence = summarize(
        build_entry("base", 80.04, measure="effective_rank"),
        build_entry("more", 90.0, Difference(10.0, 9.0, 11.0), measure="effective_rank"),
        build_entry("less", 70.0, Difference(-10.0, -11.0, -9.0), measure="effective_rank"),
    )
    assert sentence == (
        "on: more has the highest effective rank, 90.0 ± 0.0; more is significantly above base; "
        "less is significantly below."
    )


def test_sentence_for_a_metric_that_should_be_low() -> None:
    sentence = summarize(
        build_entry("base", 0.8, measure="alignment"),
        build_entry("near", 0.7, Difference(-0.1, -0.11, -0.09), measure="alignment"),
        build_entry("far", 0.9, Difference(0.1, 0.09, 0.11), measure="alignment"),
    )
    assert sentence == (
        "on: near has the best alignment, 0.700 ± 0.010; near is significantly better than base; "
        "far is significantly worse."
    )


def test_sentence_names_failures_and_missing_intervals() -> None:
    assert summarize(build_entry("base", 0.9, measure="knn")) == "on: base has 90.0 ± 1.0% on kNN."
    sentence = summarize(
        build_entry("base", 0.9, measure="knn"),
        build_entry("other", 0.91, measure="knn"),
        build_entry("hot", None, measure="knn", failed="the loss is nan"),
        build_entry("hotter", None, measure="knn", failed="the loss is nan"),
    )
    assert sentence == (
        "on: other has the best kNN, 91.0 ± 1.0%; no interval for other, as its variance is unknown; hot and hotter "
        "failed."
    )
    failed = build_entry("base", None, measure="knn", failed="the loss is nan")
    assert summarize(failed) == "on: nothing was measured; base failed."


def test_sentence_counts_the_metrics_that_differ() -> None:
    up, down, unsure = Difference(0.1, 0.05, 0.15), Difference(-0.1, -0.15, -0.05), Difference(0.0, -0.1, 0.1)
    differences_by_metric = {
        "knn": (up, down),
        "alignment": (up, unsure),
        "effective_rank": (down, unsure),
        "nmi": (up, unsure),
    }
    cells = [
        build_entry(row, 0.9, difference, measure=measure)
        for measure, differences in differences_by_metric.items()
        for row, difference in zip(("base", "a", "b", "c"), (None, *differences, unsure), strict=True)
    ]
    (sentence,) = Comparison("", Path(), "base", ["base", "a", "b", "c"], ["on"], cells).column_summaries
    assert sentence.endswith(
        " Of 4 metrics, each tested by itself against base, a is significantly better in 2 (kNN and NMI), worse in 1 "
        "(alignment) and different in 1 (effective rank); b is significantly worse in 1 (kNN); c in none."
    )
    (sentence,) = Comparison("", Path(), "base", ["base", "c"], ["on"], cells).column_summaries
    assert sentence.endswith(" Of 4 metrics, each tested by itself against base, none differs significantly.")


@pytest.mark.parametrize(
    ("values", "items", "reason"),
    [
        ([0.9, 0.9], None, "exactly the same with each of the 2 seeds"),
        ([0.9, 0.9], [[1.0, 0.0], [1.0, 0.0]], "exactly the same with each of the 2 seeds"),
        ([0.9], None, "there is one seed"),
        ([0.9], [[1.0, 0.0]], "the same on each test item"),
    ],
)
def test_sentence_explains_a_missing_interval(
    values: list[float], items: list[list[float]] | None, reason: str
) -> None:
    array, of_items = np.array(values), None if items is None else np.array(items)
    difference = estimate_paired_difference(array, array, of_items, of_items)
    assert difference.with_interval() is None
    assert reason in str(difference.missing_interval_reason)
    cells = [
        one._replace(num_seeds=len(values), interval=None, missing_difference_reason=difference.missing_interval_reason)
        for measure in ("knn", "nmi")
        for one in (build_entry("base", 0.9, measure=measure), build_entry("other", 0.9, measure=measure))
    ]
    cells[0] = cells[0]._replace(missing_difference_reason=None)
    (sentence,) = Comparison("", Path(), "base", ["base", "other"], ["on"], cells).column_summaries
    seeds = "there is one seed" if len(values) == 1 else f"the {len(values)} seeds agree exactly"
    assert (
        f"base and other have the same kNN, 90.0% without an interval, as {seeds}; no interval for other, as "
        in sentence
    )
    assert f"no interval in NMI for other, as {difference.missing_interval_reason}." in sentence


def test_differences_with_an_interval_need_no_reason() -> None:
    difference = estimate_paired_difference(np.array([0.9, 0.8]), np.array([0.7, 0.7]))
    assert difference.with_interval() is not None
    assert difference.missing_interval_reason is None


def test_sentence_names_references_as_good_as_the_best() -> None:
    cells = [
        build_entry("base", 0.9, measure="knn"),
        build_entry("other", 0.8, Difference(-0.1, -0.2, -0.01), measure="knn"),
    ]
    reference_metrics = {"untrained encoder": {"on": {"knn": 0.85}}, "raw inputs": {"on": {"knn": 0.953}}}
    (sentence,) = Comparison(
        "", Path(), "base", ["base", "other"], ["on"], cells, reference_metrics=reference_metrics
    ).column_summaries
    assert sentence.endswith(
        "; other is significantly worse. No row is better than raw inputs (95.3%), without training."
    )
    reference_metrics["untrained encoder"]["on"]["knn"] = 0.9
    (sentence,) = Comparison(
        "", Path(), "base", ["base", "other"], ["on"], cells, reference_metrics=reference_metrics
    ).column_summaries
    assert sentence.endswith(
        ". No row is better than untrained encoder (90.0%) and raw inputs (95.3%), without training."
    )
    lower = [build_entry("base", 0.5, measure="alignment")]
    reference_metrics = {"raw inputs": {"on": {"alignment": 0.3}}, "untrained encoder": {"on": {"alignment": 0.7}}}
    (sentence,) = Comparison(
        "", Path(), "base", ["base"], ["on"], lower, reference_metrics=reference_metrics
    ).column_summaries
    assert sentence.endswith(". No row is better than raw inputs (0.300), without training.")


@pytest.mark.parametrize(
    ("measure", "mean", "difference", "expected", "head"),
    [
        ("knn", "95.0 ± 1.0", "+1.0 points (−0.5 to +2.5)", "| base | 95.0 ± 1.0 |", "kNN, % (higher is better): "),
        (
            "nmi",
            "0.950 ± 0.010",
            "+0.010 (−0.005 to +0.025)",
            "| *raw inputs* | 0.612 |",
            "NMI, share of information (",
        ),
        (
            "median_rank",
            "0.9 ± 0.0",
            "0.0 (0.0 to 0.0)",
            "| base | 0.9 ± 0.0 |",
            "Median rank, position among the candidates (lower is ",
        ),
    ],
)
def test_values_use_the_unit_and_digits_of_their_metric(
    measure: str, mean: str, difference: str, expected: str, head: str
) -> None:
    (metric,) = measures([measure])
    base = build_entry("base", 0.95 if measure != "median_rank" else 0.94, measure=measure)
    result = Comparison(
        "", Path(), "base", ["base"], ["on"], [base], reference_metrics={"raw inputs": {"on": {measure: 0.612}}}
    )
    assert format_mean_and_half_width(metric, base) == mean
    assert metric.format_difference((0.01, -0.005, 0.025), signed=True) == difference
    assert expected in result.markdown()
    assert head in result.markdown()


def test_no_interval_for_one_seed_without_items(tmp_path: Path) -> None:
    options = SMALL | {
        "seeds": 1,
        "metrics": ["median_rank"],
        "train": {"batch_size": 64, "keep_every": 1},
        "epochs": 2,
    }
    result = compare(**options, out=tmp_path)
    assert "±" not in result.markdown().partition("difference")[0].replace("mean over seeds ± half", "")
    assert "no interval for gca-ince, as there is one seed" in result.column_summaries[0]
    page = (tmp_path / "page.html").read_text()
    assert page.count('<span class="told">') == 2, "expected rows without an interval"


def test_skipped_metrics_are_noted_per_cell_and_in_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "plain.npz", x=np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32))
    options = SMALL | {"data": [tmp_path / "plain.npz"], "seeds": 1, "train": None, "max_items": None}
    options |= {"metrics": ["knn", "uniformity"]}
    result = compare(**options | {"progress": True}, out=tmp_path / "out")
    assert result.notes[0] == "Not measured, as there are no labels: kNN."
    assert "info-nce on plain.npz, standard, seed 0: Not measured" in capsys.readouterr().err


def test_single_seed_differences_are_noted(tmp_path: Path) -> None:
    compare(**SMALL | {"objectives": ["info-nce"]}, out=tmp_path)
    cells = [
        one
        for one in build_grid(SMALL | {"out": tmp_path}).cells_of_all_seeds
        if (one.row.name, one.seed) == ("gca-ince", 0)
    ]
    run_job_unless_running(build_cell_job(build_grid(SMALL | {"out": tmp_path}), cells[0]))
    result = compare(**SMALL, budget="0s", out=tmp_path)
    assert result.num_missing == 1
    assert any(one.startswith("Only one seed for gca-ince on digits") for one in result.notes)
    assert "The budget of 0s is shorter than one training run, so none was started." in result.notes


@pytest.mark.parametrize("locked_by", ["train", "compare"])
def test_cells_of_another_process_are_skipped(tmp_path: Path, locked_by: str) -> None:
    grid = build_grid({**SMALL, "out": tmp_path})
    locked_job = build_cell_job(grid, grid.cells_of_all_seeds[1])
    where = (
        (locked_job.run_folder, "lock.json")
        if locked_by == "train"
        else (locked_job.run_folder.parent, f"{locked_job.run_folder.name}.lock.json")
    )
    with lock_folder(where[0], locked_by, name=where[1]):
        result = compare(**SMALL, out=tmp_path)
    assert result.num_missing == 1
    entry = result.find_entry("gca-ince", "digits, standard", "knn")
    assert entry is not None
    assert (entry.first_failure_reason, entry.num_seeds) == (None, 1)
    assert any(note.startswith("1 of 4 training runs") for note in result.notes)


def test_cell_is_locked_until_it_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training has released its own lock of the run before the evaluation."""
    grid = build_grid({**SMALL, "out": tmp_path})
    job, concurrent_results = build_cell_job(grid, grid.cells_of_all_seeds[0]), []
    own = running.evaluate

    def evaluate_with_concurrent_job(*args: Any, **options: Any) -> Any:
        concurrent_results.append(run_job_unless_running(job))  # as another process would
        return own(*args, **options)

    monkeypatch.setattr(running, "evaluate", evaluate_with_concurrent_job)
    assert run_job_unless_running(job) is not None
    assert concurrent_results == [None]
    assert run_job_unless_running(job) == job.reusable_result


def test_folder_is_locked_while_tables_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["contraport.comparison.compare_command"]
    own, figures = module.save_figure_if_any_mean, []

    def save_figure_if_any_mean(*args: Any) -> None:
        with pytest.raises(FolderInUseError) as caught, lock_folder(tmp_path, "compare"):
            pytest.fail("two processes at once")
        assert str(tmp_path) in str(caught.value)
        figures.append(own(*args))

    monkeypatch.setattr(module, "save_figure_if_any_mean", save_figure_if_any_mean)
    compare(**SMALL | {"seeds": 1}, out=tmp_path)
    assert figures == [None]
    assert not (tmp_path / "lock.json").exists()


def test_results_of_another_process_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, calls = running.run_job_unless_running, list[Path]()

    def run_unless_first_call(job: CellJob) -> Any:
        calls.append(job.run_folder)
        return None if len(calls) == 1 else own(job)

    monkeypatch.setattr(running, "run_job_unless_running", run_unless_first_call)
    assert compare(**SMALL | {"seeds": 1}, out=tmp_path).num_missing == 0
    assert calls[0] == calls[-1]
    assert len(calls) == 3


def test_out_of_memory_fails_one_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = running.train

    def train(**options: Any) -> Run:
        if options.get("recipe") == "gca-ince":
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 TiB.")
        return own(**options)

    monkeypatch.setattr(running, "train", train)
    result = compare(**SMALL | {"seeds": 1}, out=tmp_path)
    entry = result.find_entry("gca-ince", "digits, standard", "knn")
    assert entry is not None
    assert "CUDA out of memory" in str(entry.first_failure_reason)
    assert not [*(tmp_path / "cells").glob("*gca-ince*.json")], "expected no saved result, so that a next call retries"
    assert "; gca-ince failed" in result.column_summaries[0]


def test_cell_fails_if_all_trials_fail(tmp_path: Path) -> None:
    rows = ["info-nce", {"hot": {"objective": "info-nce", "lr": 1e30}}]
    result = compare(**SMALL | {"objectives": rows, "metrics": ["knn"]}, tune=1, out=tmp_path)
    entry = result.find_entry("hot", "digits, standard", "knn")
    assert entry is not None
    assert "every trial of its search failed" in str(entry.first_failure_reason)
    assert result.num_missing == 0
    (sentence,) = [note for note in result.notes if note.startswith("hot on digits, standard: ")]
    assert sentence.startswith("hot on digits, standard: 2 of 2 training runs failed. First reason: every trial")


def test_rejects_rows_with_other_test_items() -> None:
    with raises_usage_error("objectives.test_items", "own", "test_items=100"):
        build_grid({**SMALL, "objectives": ["info-nce", {"own": {"objective": "info-nce", "test_items": 100}}]})
    with raises_usage_error("objectives.test_items", "info-nce, max_items 64", "max_items=64"):
        build_grid({**SMALL, "over": ["max_items=64,128"]})
    train = {"batch_size": 64, "test_items": 100}
    assert len(build_grid({**SMALL, "over": ["max_items=64,128"], "train": train}).rows) == 4


def test_dry_run_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["compare", "--data", "digits", "--objectives", "info-nce,gca-ince", "--seeds", "2", "--epochs", "1"]
    more = [
        "--encoder",
        "mlp",
        "--max_items",
        "128",
        "--train.batch_size",
        "64",
        "--out",
        str(tmp_path / "none"),
        "--dry_run",
    ]
    assert main([*line, *more]) == 0
    assert "4 training runs; 4 not done yet" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_several_processes_give_the_results_of_one(folder: Path, tmp_path: Path) -> None:
    compare(**SMALL, out=folder)  # restores the tables after other tests
    options = {key: value for key, value in SMALL.items() if key != "progress"}
    (tmp_path / "own.yaml").write_text(json.dumps(options))
    line = [sys.executable, "-m", "contraport", "compare", "--suite", str(tmp_path / "own.yaml"), "--processes", "2"]
    subprocess.run([*line, "--out", str(tmp_path / "out")], check=True, capture_output=True, timeout=TIMEOUT)
    one, two = (json.loads((where / "results.json").read_text())["cells"] for where in (folder, tmp_path / "out"))
    assert [build_entry["values"] for build_entry in one] == [
        pytest.approx(build_entry["values"]) for build_entry in two
    ]


def test_returned_comparison_matches_the_files(folder: Path) -> None:
    result = compare(**SMALL, out=folder)
    assert isinstance(result, Comparison)
    assert result.markdown() == (folder / "table.md").read_text()
    assert [measure.key for measure in result.metrics] == ["knn", "uniformity"]


def test_stops_before_training_if_the_first_cell_has_no_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = count_trainings(monkeypatch)
    random = np.random.default_rng(0)
    x = random.normal(size=(64, 6)).astype(np.float32)
    np.savez(tmp_path / "pairs.npz", view0=x, view1=x[:, :3])
    options = {"data": [str(tmp_path / "pairs.npz")], "objectives": ["info-nce", "nt-xent"], "seeds": 1, "epochs": 1}
    options |= {"train": {"batch_size": 32}, "out": tmp_path / "cmp", "progress": False}
    with raises_usage_error("metrics.none_computed", "there are no labels"):
        compare(**options, metrics=["knn"])
    assert started == []
    result = compare(**options)
    assert result.num_missing == 0
    assert [metric.key for metric in result.metrics] == ["recall@1", "recall@5"]
    assert result.find_entry("nt-xent", result.columns[0], "recall@1").mean is not None


@pytest.mark.parametrize(
    ("options", "gpu", "expected"),
    [
        ("auto", False, "cpu"),
        ("auto", True, "a GPU"),
        ("cuda", True, "a GPU"),
        ("cuda", False, "cuda"),  # all results were computed on another machine
        ("cpu", True, "cpu"),
        ("mps", False, "mps"),
    ],
)
def test_results_name_their_device(monkeypatch: pytest.MonkeyPatch, options: str, gpu: bool, expected: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    assert _build_command_and_machine_record(build_grid(SMALL | {"device": options}))["machine"]["device"] == expected


@pytest.mark.parametrize("name", ["table.csv", "results.json"])
def test_rejects_a_folder_with_other_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "cells").mkdir()
    (tmp_path / name).write_text("[1]")
    with raises_usage_error("out.exists", tmp_path):
        compare(**SMALL, out=tmp_path)
    assert (tmp_path / name).read_text() == "[1]"
    assert not any((tmp_path / "cells").iterdir())
