"""What goes to metrics.jsonl goes to the loggers, once."""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import pytest

from contraport.errors import UsageError
from contraport.runs import Run
from contraport.training import train
from contraport.training.loop import loggers

from ..conftest import Pull
from ..test_resume import interrupted


class Remembering:
    """A stand-in for one of Lightning's loggers."""

    made: list[Remembering]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs
        self.version = kwargs.get("version") or kwargs.get("run_id") or f"id-{len(self.made)}"
        self.settings: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self.ends: list[str] = []
        self.made.append(self)

    def history(self, version: str, key: str) -> list[types.SimpleNamespace]:
        before = next(logger for logger in self.made if logger.version == version)
        return [types.SimpleNamespace(step=row["step"]) for row in before.rows if key in row]

    def log_hyperparams(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def log_metrics(self, numbers: dict[str, float], step: int) -> None:
        self.rows.append({"step": step, **numbers})

    def __getattr__(self, name: str) -> Any:
        if name == "finalize":
            return self.ends.append
        if name == "experiment":
            return types.SimpleNamespace(get_metric_history=self.history)
        if name in ("save_dir", "name"):
            return None
        return lambda *args, **kwargs: None


@pytest.fixture
def remembering(monkeypatch: pytest.MonkeyPatch) -> type[Remembering]:
    for module, name in (("mlflow", "MLFlowLogger"), ("wandb", "WandbLogger")):
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
        monkeypatch.setattr(f"lightning.pytorch.loggers.{name}", Remembering)
    monkeypatch.setattr(Remembering, "made", [], raising=False)
    return Remembering


def test_each_row_and_the_settings_reach_the_loggers(
    settings: dict[str, Any], remembering: type[Remembering], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example")
    run = train(**settings, logger=["mlflow", "wandb"], log_every=1)
    mlflow, wandb = remembering.made
    assert mlflow.kwargs["tracking_uri"] == "http://tracking.example"
    assert wandb.args == ("run",)
    assert wandb.kwargs["save_dir"] == run.loggers_path
    known = [{name: value for name, value in row.items() if value is not None} for row in run.metrics()]
    assert len(known) == 4
    for logger in (mlflow, wandb):
        assert logger.rows == known
        assert logger.settings == run.config()
        assert logger.ends == ["success"]


def test_a_resumed_run_goes_on_in_the_same_place(settings: dict[str, Any], remembering: type[Remembering]) -> None:
    run = interrupted(settings, at=4, logger=["mlflow", "wandb"], log_every=1)
    assert [logger.ends for logger in remembering.made] == [["failed"], ["failed"]]
    train(out=run.path, resume=True, data=settings["data"], objective=Pull(), progress=False)
    first, second = remembering.made[:2], remembering.made[2:]
    assert second[0].kwargs["run_id"] == first[0].version == "id-0"
    assert second[1].kwargs["version"] == first[1].version == "id-1"
    assert first[0].settings == first[1].settings != {}
    assert second[0].settings == second[1].settings == {}, "MLflow refuses settings that changed"
    rows = [{name: value for name, value in row.items() if value is not None} for row in run.metrics()]
    told = [row["step"] for mlflow in (first[0], second[0]) for row in mlflow.rows]
    assert told == [row["step"] for row in rows], "MLflow takes nothing back"
    assert [row["step"] for row in second[1].rows] == told[-len(second[1].rows) :], "W&B leaves out by itself"
    train(**settings, overwrite=True, logger=["wandb"])
    assert remembering.made[-1].kwargs["version"] is None, "a run that replaces another is a new one"


def test_tensorboard(settings: dict[str, Any]) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = interrupted({**settings, "epochs": 3}, at=6, log_every=1, logger=["tensorboard"])
    train(out=run.path, resume=True, data=settings["data"], objective=Pull(), progress=False)
    events = accumulator.EventAccumulator(str(run.loggers_path / "tensorboard")).Reload()
    written = [(event.step, event.value) for event in events.Scalars("loss")]
    assert written == [(row["step"], pytest.approx(row["loss"])) for row in run.metrics()], "step 5 is there once"
    assert "data_wait" in events.Tags()["scalars"]


def test_mlflow(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = train(**settings, log_every=1, logger=["mlflow"])
    train(out=run.path, resume=True, data=settings["data"], epochs=3, progress=False)
    client = tracking.MlflowClient(f"sqlite:///{run.loggers_path / 'mlflow' / 'mlflow.db'}")
    (logged,) = client.search_runs([client.get_experiment_by_name("contraport").experiment_id])
    history = [(entry.step, entry.value) for entry in client.get_metric_history(logged.info.run_id, "loss")]
    assert history == [(row["step"], pytest.approx(row["loss"])) for row in run.metrics()]
    assert (logged.info.run_name, logged.info.status) == ("run", "FINISHED")
    assert logged.data.params["epochs"] == str(settings["epochs"])


@pytest.mark.parametrize("fails_in", ["log_hyperparams", "log_metrics"])
def test_a_logger_that_fails_is_told_in_one_line(
    settings: dict[str, Any], remembering: type[Remembering], monkeypatch: pytest.MonkeyPatch, fails_in: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no such server.\nLook at the manual.")

    monkeypatch.setattr(remembering, fails_in, fail)
    with pytest.raises(
        UsageError, match=r"^logger: ConnectionError: no such server\. Mend it, and go on with: .*/run', data=.*"
    ):
        train(**settings, logger=["wandb"])


@pytest.mark.parametrize(
    ("logger", "message"),
    [
        (["tensorbord"], "logger: unknown name 'tensorbord'; did you mean 'tensorboard'"),
        ("tensorboard", "logger: expected a list of names, got 'tensorboard'"),
        (["wandb"], r"logger 'wandb' needs the package 'wandb': pip install 'contraport\[loggers\]'"),
    ],
)
def test_wrong_loggers_are_told_at_once(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, logger: Any, message: str
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=message):
        train(**settings, logger=logger)
    assert not settings["out"].exists()


def test_without_loggers_there_is_no_folder(settings: dict[str, Any]) -> None:
    assert not train(**settings).loggers_path.exists()


def test_every_logger_has_a_version_that_is_kept(settings: dict[str, Any], remembering: type[Remembering]) -> None:
    run = train(**settings, logger=["wandb"])
    assert json.loads((run.loggers_path / "versions.json").read_text()) == {"wandb": "id-0"}
    assert set(loggers.LOGGERS) == {"tensorboard", "mlflow", "wandb"}
    assert Run(run.path).config()["logger"] == ["wandb"]
