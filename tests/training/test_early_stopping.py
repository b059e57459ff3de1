from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import contraport
from contraport.data import from_arrays
from contraport.metrics import select_metrics
from contraport.runs import Run, as_run_folder
from contraport.training.callbacks.early_stopping import EarlyStopping
from tests.errors import raises_usage_error
from tests.processes import run_in_processes


class StubMetricsWriter:
    def __init__(self) -> None:
        self.last_row: dict[str, float] = {}


class StubLoop:
    def __init__(self, epochs: int) -> None:
        self.epochs, self.completed_epochs, self.should_stop = epochs, 0, False


def find_stop_epoch(spec: str | None, values: list[float], *, restart_after: int | None = None) -> int | None:
    """Return the epoch after which a training stops, given the monitored value of each epoch."""
    metrics_writer, loop = StubMetricsWriter(), StubLoop(len(values))
    callback = EarlyStopping(spec, metrics_writer)  # type: ignore[arg-type]
    for epoch, value in enumerate(values, start=1):
        callback.after_backward(loop, None, torch.tensor(value))  # type: ignore[arg-type]
        metrics_writer.last_row = {"recall@1": value}
        loop.completed_epochs = epoch
        callback.after_epoch(loop)  # type: ignore[arg-type]
        if loop.should_stop:
            return epoch
        if epoch == restart_after:
            state, callback = callback.state(), EarlyStopping(spec, metrics_writer)  # type: ignore[arg-type]
            callback.restore(state)
    return None


def find_expected_stop_epoch(values: list[float], sign: int, patience: int, min_delta: float) -> int | None:
    """Return the first epoch with `patience` epochs since the last improvement, from the list of all values."""
    best, last = None, 0
    for epoch, value in enumerate(values, start=1):
        if best is None or sign * value > sign * best + min_delta:
            best, last = value, epoch
        if epoch - last == patience:
            return epoch
    return None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("name", "sign"), [("loss", -1), ("recall@1", 1)])
@pytest.mark.parametrize("min_delta", [0, 0.2])
def test_stops_after_patience_epochs_without_improvement(seed: int, name: str, sign: int, min_delta: float) -> None:
    values = np.random.default_rng(seed).random(40).astype(np.float32).tolist()
    spec = f"{name}:patience=6,min_delta={min_delta}"
    expected = find_expected_stop_epoch(values, sign, 6, min_delta)
    assert find_stop_epoch(spec, values) == expected
    for restart_after in (1, 3, 5):
        assert find_stop_epoch(spec, values, restart_after=restart_after) == expected


def test_default_patience_is_a_fifth_of_the_epochs_but_at_least_10() -> None:
    assert find_stop_epoch("loss", [1.0] * 20) == 11
    assert find_stop_epoch("loss", [1.0] * 100) == 21


def test_nan_is_no_improvement() -> None:
    assert find_stop_epoch("recall@1:patience=3", [0.1, float("nan"), float("nan"), float("nan"), 0.5]) == 4


def test_flat_loss_without_early_stopping_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert find_stop_epoch(None, [3.0, 2.0, *[2.0] * 40]) is None
    (record,) = caplog.records
    assert record.args == (2, "10 epochs", "early_stopping")
    caplog.clear()
    assert find_stop_epoch(None, [3.0 * 0.99**epoch for epoch in range(60)]) is None
    assert not caplog.records


@pytest.mark.parametrize("restart_after", [None, 7, 20])
def test_flat_online_metric_is_logged_once_for_each_best_value(
    caplog: pytest.LogCaptureFixture, restart_after: int | None
) -> None:
    caplog.set_level(logging.INFO)
    metrics, metrics_writer, loop = (
        select_metrics(["recall@1", "median_rank", "uniformity"]),
        StubMetricsWriter(),
        StubLoop(60),
    )
    callback = EarlyStopping("loss:patience=60", metrics_writer, metrics)  # type: ignore[arg-type]
    values = [0.2, *[0.2001] * 29, *[0.4] * 30]
    for epoch, value in enumerate(values, start=1):
        callback.after_backward(loop, None, torch.tensor(1.0))  # type: ignore[arg-type]
        ranks = {"median_rank": 100.0, "uniformity": 1.0}
        metrics_writer.last_row = {"recall@1": value} | ranks if epoch % 2 else {}  # computed in every second epoch
        loop.completed_epochs = epoch
        callback.after_epoch(loop)  # type: ignore[arg-type]
        if epoch == restart_after:
            state, callback = callback.state(), EarlyStopping("loss:patience=60", metrics_writer, metrics)  # type: ignore[arg-type]
            callback.restore(state)
    logged = [record.args for record in caplog.records]
    assert logged == [
        ("recall@1", 1, "20.0%", "12 epochs", "early_stopping='recall@1'"),
        ("recall@1", 31, "40.0%", "12 epochs", "early_stopping='recall@1'"),
    ]


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("nothing", "unknown"),
        ("retrieval", "metric"),
        ("hubness:patience=1.5", "patience"),
        ("loss:patience=0", "patience"),
        ("loss:min_delta=-1", "min_delta"),
        ("loss:min_delta=nan", "min_delta"),
        ("loss:epochs=3", "unknown"),
        ("loss:3", "bad_setting"),
    ],
)
def test_rejects_invalid_specs(spec: str, kind: str) -> None:
    with raises_usage_error(code=f"early_stopping.{kind}"):
        contraport.train(data="digits", early_stopping=spec, dry_run=True)


def test_rejects_early_stopping_of_an_audit() -> None:
    with raises_usage_error(code="audit.early_stopping"):
        contraport.train(data="digits", early_stopping="loss", audit=True, dry_run=True)


def train(out: Path, **options: Any) -> Run:
    images = np.random.default_rng(0).integers(0, 90, size=(80, 8, 8), dtype=np.uint8)
    settings: dict[str, Any] = {"data": from_arrays(images), "encoder": "mlp", "batch_size": 40, "progress": False}
    return contraport.train(**settings | {"out": out, "lr": 1e-9, **options})


def test_run_that_stopped_early_is_complete_and_can_be_continued(tmp_path: Path) -> None:
    spec = "recall@1:patience=2,min_delta=0.9"  # the learning rate is so small that nothing improves
    run = train(tmp_path, epochs=9, early_stopping=spec)
    assert [row["epoch"] for row in run.metrics_rows() if "recall@1" in row] == [1, 2, 3]
    assert as_run_folder(run).saved_model_epoch() == 3
    assert as_run_folder(run).outdated_model_warning() is None
    weights = as_run_folder(run).last_checkpoint.read_bytes()
    resumed = train(tmp_path, resume=True)
    assert as_run_folder(resumed).saved_model_epoch() == 3
    assert as_run_folder(run).last_checkpoint.read_bytes() == weights
    extended = train(tmp_path, resume=True, early_stopping="recall@1:patience=4,min_delta=0.9")
    assert as_run_folder(extended).saved_model_epoch() == 5
    assert (
        as_run_folder(train(tmp_path, resume=True, early_stopping="loss:patience=7,min_delta=9")).saved_model_epoch()
        == 9
    )


def test_flat_online_metric_of_a_training_is_logged(tmp_path: Path) -> None:
    run = train(tmp_path, epochs=13, online_metrics=["recall@1"])  # the learning rate is so small that nothing improves
    log = (run.path / "train.log").read_text()
    assert [line.rpartition("recall@1: ")[2].split(" (")[0] for line in log.splitlines() if "recall@1: " in line] == [
        "has not improved since epoch 1"
    ]
    resumed = train(tmp_path, epochs=14, resume=True)
    assert (resumed.path / "train.log").read_text().count("recall@1: has") == 1


def test_weights_at_the_stop_equal_those_of_a_full_training(tmp_path: Path) -> None:
    stopped = train(tmp_path / "stopped", epochs=9, lr=0.1, early_stopping="loss:patience=2,min_delta=9")
    uninterrupted = train(tmp_path / "whole", epochs=9, lr=0.1, keep_every=3)
    one, other = (
        torch.load(path, weights_only=True)["pipeline"]
        for path in (
            as_run_folder(stopped).last_checkpoint,
            as_run_folder(uninterrupted).last_checkpoint.with_name("epoch-0003.ckpt"),
        )
    )
    assert all(torch.equal(one[name], other[name]) for name in other)


def report_stop_epoch(rank: int, report: Any) -> None:
    metrics_writer, loop = StubMetricsWriter(), StubLoop(9)
    callback = EarlyStopping("recall@1:patience=2", metrics_writer)  # type: ignore[arg-type]
    while not loop.should_stop:
        callback.after_backward(loop, None, torch.tensor(float(rank)))  # type: ignore[arg-type]
        metrics_writer.last_row = {"recall@1": 0.5} if rank == 0 else {}  # only the first process computes it
        loop.completed_epochs += 1
        callback.after_epoch(loop)  # type: ignore[arg-type]
    report(loop.completed_epochs)


def test_all_processes_stop_together() -> None:
    assert run_in_processes(report_stop_epoch, 2) == [3, 3]


@pytest.mark.parametrize(("spec", "warns"), [("loss", True), ("loss:patience=3", False)])
def test_warns_of_a_patience_that_cannot_end_the_training(
    spec: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    EarlyStopping(spec, StubMetricsWriter()).on_start(StubLoop(8))  # type: ignore[arg-type]
    assert ("cannot end a training run of 8 epochs early" in caplog.text) == warns
