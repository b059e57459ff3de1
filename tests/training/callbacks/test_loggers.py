"""Loggers receive each row of metrics.jsonl once."""

from __future__ import annotations

import json
import sys
import types
from typing import Any, NamedTuple

import pytest
from tests.errors import raises_usage_error

from contraport.runs import Run, as_run_folder
from contraport.training import train
from contraport.training.callbacks import loggers

from ..conftest import StubObjective
from ..test_resume import train_until_interrupt


class StubMlflowClient:
    """Stub of the MLflow client and server."""

    uris: list[str | None]
    runs: dict[str, StubMlflowClient]

    def __init__(self, uri: str | None) -> None:
        self.settings: dict[str, str] = {}
        self.rows: list[dict[str, Any]] = []
        self.ends: list[str] = []
        self.name = ""
        self.uris.append(uri)

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str, artifact_location: str | None) -> str:
        return name

    def create_run(self, experiment: str, run_name: str) -> types.SimpleNamespace:
        run_id = f"id-{len(self.runs)}"
        self.name = f"{experiment}/{run_name}"
        self.runs[run_id] = self
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id))

    def get_metric_history(self, run_id: str, key: str) -> list[types.SimpleNamespace]:
        return [types.SimpleNamespace(step=row["step"]) for row in self.runs[run_id].rows if key in row]

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        run = self.runs[run_id]
        assert len(params) <= 100
        run.settings |= {param.key: param.value for param in params}
        if metrics:
            assert len({metric.step for metric in metrics}) == 1
            run.rows.append({"step": metrics[0].step, **{metric.key: metric.value for metric in metrics}})

    def set_terminated(self, run_id: str, status: str) -> None:
        self.runs[run_id].ends.append(status)


class Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


class Param(NamedTuple):
    key: str
    value: str


class StubWandbRun:
    """Stub of a run of Weights & Biases."""

    instances: list[StubWandbRun]

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.id = options["id"] or f"id-{len(self.instances)}"
        self.settings: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self.ends: list[int] = []
        self.config = types.SimpleNamespace(update=lambda values, **how: self.settings.update(values))
        self.instances.append(self)

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.rows.append({"step": step, **numbers})

    def finish(self, exit_code: int) -> None:
        self.ends.append(exit_code)


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> type[StubMlflowClient]:
    monkeypatch.setattr(StubMlflowClient, "uris", [], raising=False)
    monkeypatch.setattr(StubMlflowClient, "runs", {}, raising=False)
    parts = {"": {}, ".tracking": {"MlflowClient": StubMlflowClient}, ".entities": {"Metric": Metric, "Param": Param}}
    for name, values in parts.items():
        module = types.ModuleType(f"mlflow{name}")
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, f"mlflow{name}", module)
    return StubMlflowClient


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> type[StubWandbRun]:
    monkeypatch.setattr(StubWandbRun, "instances", [], raising=False)
    module = types.ModuleType("wandb")
    vars(module).update(init=StubWandbRun, run=None)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return StubWandbRun


def list_rows(run: Run) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if value is not None} for row in run.metrics_rows()]


def test_rows_and_settings_are_logged(
    settings: dict[str, Any], mlflow: type[StubMlflowClient], wandb: type[StubWandbRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example")
    run = train(**settings, logger=["mlflow", "wandb"], log_every=1)
    assert mlflow.uris == ["http://tracking.example"]
    (client,), (board,) = mlflow.runs.values(), wandb.instances
    assert client.name == "contraport/run"
    assert (board.options["name"], board.options["dir"]) == ("run", str(as_run_folder(run).loggers_path))
    assert len(list_rows(run)) == 4
    assert client.rows == board.rows == list_rows(run)
    assert board.settings == run.config()
    assert client.settings == {name: str(value) for name, value in run.config().items()}
    assert (client.ends, board.ends) == (["FINISHED"], [0])


def test_resumed_run_continues_the_same_logger_session(
    settings: dict[str, Any], mlflow: type[StubMlflowClient], wandb: type[StubWandbRun]
) -> None:
    run = train_until_interrupt(settings, at=4, logger=["mlflow", "wandb"], log_every=1)
    (client,), (first,) = mlflow.runs.values(), wandb.instances
    assert (client.ends, first.ends) == (["FAILED"], [1])
    train(out=run.path, resume=True, data=settings["data"], objective=StubObjective(), progress=False)
    assert list(mlflow.runs.values()) == [client]
    _, second = wandb.instances
    assert second.options["id"] == first.id
    assert first.settings
    assert second.settings == {}  # settings are logged once
    steps = [row["step"] for row in client.rows]
    assert steps == [
        row["step"] for row in run.metrics_rows()
    ]  # rows are not repeated, since MLflow cannot delete them
    assert [row["step"] for row in second.rows] == steps[-len(second.rows) :]  # W&B ignores repeated steps itself
    train(**settings, overwrite=True, logger=["wandb"])
    assert wandb.instances[-1].options["id"] is None  # a replaced run gets a new session


def test_session_of_the_caller_stays_open(settings: dict[str, Any], wandb: type[StubWandbRun]) -> None:
    sys.modules["wandb"].run = object()  # type: ignore[attr-defined]
    train(**settings, logger=["wandb"])
    assert wandb.instances[0].ends == []


def test_tensorboard_has_each_row_once(settings: dict[str, Any]) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = train_until_interrupt({**settings, "epochs": 3}, at=6, log_every=1, logger=["tensorboard"])
    train(out=run.path, resume=True, data=settings["data"], objective=StubObjective(), progress=False)
    events = accumulator.EventAccumulator(str(as_run_folder(run).loggers_path / "tensorboard")).Reload()
    values = [(event.step, event.value) for event in events.Scalars("loss")]
    assert values == [(row["step"], pytest.approx(row["loss"])) for row in run.metrics_rows()]  # step 5 occurs once
    assert "data_wait" in events.Tags()["scalars"]


def test_mlflow_run_has_each_row_once(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = train(**settings, log_every=1, logger=["mlflow"])
    train(out=run.path, resume=True, data=settings["data"], epochs=3, progress=False)
    client = tracking.MlflowClient(f"sqlite:///{as_run_folder(run).loggers_path / 'mlflow' / 'mlflow.db'}")
    (logged,) = client.search_runs([client.get_experiment_by_name("contraport").experiment_id])
    history = [(entry.step, entry.value) for entry in client.get_metric_history(logged.info.run_id, "loss")]
    assert history == [(row["step"], pytest.approx(row["loss"])) for row in run.metrics_rows()]
    assert (logged.info.run_name, logged.info.status) == ("run", "FINISHED")
    assert logged.data.params["epochs"] == str(settings["epochs"])


@pytest.mark.parametrize("fails_in", ["__init__", "log", "finish"])
def test_failing_logger_is_reported_in_one_line(
    settings: dict[str, Any], wandb: type[StubWandbRun], monkeypatch: pytest.MonkeyPatch, fails_in: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no such server.\nLook at the manual.")

    monkeypatch.setattr(wandb, fails_in, fail)
    with raises_usage_error("logger.failed", "ConnectionError: no such server", "/run', data="):
        train(**settings, logger=["wandb"])


def test_failing_logger_does_not_hide_an_error(
    settings: dict[str, Any], wandb: type[StubWandbRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no such server.")

    monkeypatch.setattr(wandb, "finish", fail)
    train_until_interrupt(settings, at=4, logger=["wandb"])


@pytest.mark.parametrize(
    ("logger", "code", "value"),
    [
        (["tensorbord"], "logger.unknown", "did you mean 'tensorboard'"),
        ("tensorboard", "logger.invalid", "'tensorboard'"),
        (["wandb"], "logger.missing_package", "pip install 'contraport[loggers]'"),
    ],
)
def test_rejects_unknown_loggers_before_training(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, logger: Any, code: str, value: str
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with raises_usage_error(code, value):
        train(**settings, logger=logger)
    assert not settings["out"].exists()


def test_no_folder_without_loggers(settings: dict[str, Any]) -> None:
    assert not as_run_folder(train(**settings)).loggers_path.exists()


def test_logger_versions_are_saved(settings: dict[str, Any], wandb: type[StubWandbRun]) -> None:
    run = train(**settings, logger=["wandb"])
    assert json.loads((as_run_folder(run).loggers_path / "versions.json").read_text()) == {"wandb": "id-0"}
    assert set(loggers.LOGGER_CLASS_BY_NAME) == {"tensorboard", "mlflow", "wandb"}
    assert Run(run.path).config()["logger"] == ["wandb"]
