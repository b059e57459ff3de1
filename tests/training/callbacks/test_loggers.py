"""What goes to metrics.jsonl goes to the loggers, once."""

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

from ..conftest import Pull
from ..test_resume import interrupted


class Client:
    """A stand-in for MLflow's client, and for its server."""

    uris: list[str | None]
    runs: dict[str, Client]

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
        made = f"id-{len(self.runs)}"
        self.name = f"{experiment}/{run_name}"
        self.runs[made] = self
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=made))

    def get_metric_history(self, version: str, key: str) -> list[types.SimpleNamespace]:
        return [types.SimpleNamespace(step=row["step"]) for row in self.runs[version].rows if key in row]

    def log_batch(self, version: str, metrics: Any = (), params: Any = ()) -> None:
        run = self.runs[version]
        assert len(params) <= 100
        run.settings |= {param.key: param.value for param in params}
        if metrics:
            assert len({metric.step for metric in metrics}) == 1
            run.rows.append({"step": metrics[0].step, **{metric.key: metric.value for metric in metrics}})

    def set_terminated(self, version: str, status: str) -> None:
        self.runs[version].ends.append(status)


class Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


class Param(NamedTuple):
    key: str
    value: str


class Board:
    """A stand-in for a run of Weights & Biases."""

    made: list[Board]

    def __init__(self, **options: Any) -> None:
        self.given = options
        self.id = options["id"] or f"id-{len(self.made)}"
        self.settings: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self.ends: list[int] = []
        self.config = types.SimpleNamespace(update=lambda values, **how: self.settings.update(values))
        self.made.append(self)

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.rows.append({"step": step, **numbers})

    def finish(self, exit_code: int) -> None:
        self.ends.append(exit_code)


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    monkeypatch.setattr(Client, "uris", [], raising=False)
    monkeypatch.setattr(Client, "runs", {}, raising=False)
    parts = {"": {}, ".tracking": {"MlflowClient": Client}, ".entities": {"Metric": Metric, "Param": Param}}
    for name, values in parts.items():
        module = types.ModuleType(f"mlflow{name}")
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, f"mlflow{name}", module)
    return Client


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> type[Board]:
    monkeypatch.setattr(Board, "made", [], raising=False)
    module = types.ModuleType("wandb")
    vars(module).update(init=Board, run=None)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return Board


def rows_of(run: Run) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if value is not None} for row in run.metrics_rows()]


def test_each_row_and_the_settings_reach_the_loggers(
    settings: dict[str, Any], mlflow: type[Client], wandb: type[Board], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example")
    run = train(**settings, logger=["mlflow", "wandb"], log_every=1)
    assert mlflow.uris == ["http://tracking.example"]
    (client,), (board,) = mlflow.runs.values(), wandb.made
    assert client.name == "contraport/run"
    assert (board.given["name"], board.given["dir"]) == ("run", str(as_run_folder(run).loggers_path))
    assert len(rows_of(run)) == 4
    assert client.rows == board.rows == rows_of(run)
    assert board.settings == run.config()
    assert client.settings == {name: str(value) for name, value in run.config().items()}
    assert (client.ends, board.ends) == (["FINISHED"], [0])


def test_resumed_run_continues_the_same_logger_session(
    settings: dict[str, Any], mlflow: type[Client], wandb: type[Board]
) -> None:
    run = interrupted(settings, at=4, logger=["mlflow", "wandb"], log_every=1)
    (client,), (first,) = mlflow.runs.values(), wandb.made
    assert (client.ends, first.ends) == (["FAILED"], [1])
    train(out=run.path, resume=True, data=settings["data"], objective=Pull(), progress=False)
    assert list(mlflow.runs.values()) == [client]
    _, second = wandb.made
    assert second.given["id"] == first.id
    assert first.settings
    assert second.settings == {}, "MLflow refuses settings that changed"
    steps = [row["step"] for row in client.rows]
    assert steps == [row["step"] for row in run.metrics_rows()], "MLflow takes nothing back"
    assert [row["step"] for row in second.rows] == steps[-len(second.rows) :], "W&B leaves out by itself"
    train(**settings, overwrite=True, logger=["wandb"])
    assert wandb.made[-1].given["id"] is None, "a run that replaces another is a new one"


def test_a_session_of_the_caller_stays_open(settings: dict[str, Any], wandb: type[Board]) -> None:
    sys.modules["wandb"].run = object()  # type: ignore[attr-defined]
    train(**settings, logger=["wandb"])
    assert wandb.made[0].ends == []


def test_tensorboard(settings: dict[str, Any]) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = interrupted({**settings, "epochs": 3}, at=6, log_every=1, logger=["tensorboard"])
    train(out=run.path, resume=True, data=settings["data"], objective=Pull(), progress=False)
    events = accumulator.EventAccumulator(str(as_run_folder(run).loggers_path / "tensorboard")).Reload()
    written = [(event.step, event.value) for event in events.Scalars("loss")]
    assert written == [(row["step"], pytest.approx(row["loss"])) for row in run.metrics_rows()], "step 5 is there once"
    assert "data_wait" in events.Tags()["scalars"]


def test_mlflow(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
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
    settings: dict[str, Any], wandb: type[Board], monkeypatch: pytest.MonkeyPatch, fails_in: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no such server.\nLook at the manual.")

    monkeypatch.setattr(wandb, fails_in, fail)
    with raises_usage_error("logger.failed", "ConnectionError: no such server", "/run', data="):
        train(**settings, logger=["wandb"])


def test_failing_logger_does_not_hide_an_error(
    settings: dict[str, Any], wandb: type[Board], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no such server.")

    monkeypatch.setattr(wandb, "finish", fail)
    interrupted(settings, at=4, logger=["wandb"])


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


def test_without_loggers_there_is_no_folder(settings: dict[str, Any]) -> None:
    assert not as_run_folder(train(**settings)).loggers_path.exists()


def test_logger_versions_are_saved(settings: dict[str, Any], wandb: type[Board]) -> None:
    run = train(**settings, logger=["wandb"])
    assert json.loads((as_run_folder(run).loggers_path / "versions.json").read_text()) == {"wandb": "id-0"}
    assert set(loggers.LOGGER_CLASS_BY_NAME) == {"tensorboard", "mlflow", "wandb"}
    assert Run(run.path).config()["logger"] == ["wandb"]
