"""Experiment loggers for TensorBoard, MLflow and Weights & Biases."""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from contraport._utils.files import write_json
from contraport.errors import UsageError
from contraport.runs import MetricsRow, WritableRun

_TRACKER_PROJECT_NAME = "contraport"
"""Project (Weights & Biases) or experiment (MLflow) that runs are logged to."""


class Logger(ABC):
    """Base class of experiment loggers.

    Attributes:
        session_id: identifier of the run at the tracker; a resumed run continues under the same identifier.
        last_step: step of the last row at the tracker; -1 if it has no rows. Earlier rows are not sent again.
    """

    session_id: str = ""
    last_step = -1

    @abstractmethod
    def __init__(self, run: WritableRun, session_id: str | None, step: int) -> None:
        """Open a tracker session, or continue one after `step` steps."""

    @abstractmethod
    def log_settings(self, settings: Mapping[str, Any]) -> None:
        """Send the settings of a new run to the tracker."""

    @abstractmethod
    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Send a row of metrics to the tracker."""

    @abstractmethod
    def close(self, *, succeeded: bool) -> None:
        """Send pending metrics and end the tracker session."""


class TensorBoard(Logger):
    """Logger that writes TensorBoard event files to `loggers/tensorboard`.

    On resume, rows of steps after the checkpoint are purged.
    """

    def __init__(self, run: WritableRun, session_id: str | None, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import

        self._writer = SummaryWriter(str(run.loggers_path / "tensorboard"), purge_step=step + 1)

    def log_settings(self, settings: Mapping[str, Any]) -> None:
        self._writer.add_text("settings", "\n".join(f"    {name}: {value}" for name, value in settings.items()))

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self, *, succeeded: bool) -> None:
        self._writer.close()


class MLflow(Logger):
    """Logger that sends metrics to an MLflow run.

    The server is that of MLFLOW_TRACKING_URI, by default a database in `loggers/mlflow`. MLflow cannot delete metrics.
    """

    def __init__(self, run: WritableRun, session_id: str | None, step: int) -> None:
        from mlflow.tracking import MlflowClient

        server, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
        if server is None:
            folder = (run.loggers_path / "mlflow").absolute()
            folder.mkdir(exist_ok=True)  # recent MLflow versions require a database
            server, artifacts = f"sqlite:///{folder / 'mlflow.db'}", folder.as_uri()
        self._client = MlflowClient(server)
        if session_id is not None:
            self.session_id = session_id
            history = self._client.get_metric_history(session_id, "epoch")
            self.last_step = max((entry.step for entry in history), default=-1)
            return
        project = self._client.get_experiment_by_name(_TRACKER_PROJECT_NAME)
        is_usable = project is not None and project.lifecycle_stage != "deleted"
        number = (
            project.experiment_id
            if is_usable
            else self._client.create_experiment(_TRACKER_PROJECT_NAME, artifact_location=artifacts)
        )
        self.session_id = self._client.create_run(number, run_name=run.name).info.run_id

    def log_settings(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        # Every MLflow server accepts values of 250 characters, and 100 parameters per request.
        entries = [Param(name, str(value)[:250]) for name, value in _iterate_slash_joined_settings(settings)]
        for first in range(0, len(entries), 100):
            self._client.log_batch(self.session_id, params=entries[first : first + 100])

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(
            self.session_id, metrics=[Metric(name, value, now, step) for name, value in values.items()]
        )

    def close(self, *, succeeded: bool) -> None:
        self._client.set_terminated(self.session_id, "FINISHED" if succeeded else "FAILED")


class WeightsAndBiases(Logger):
    """Logger that sends metrics to a Weights & Biases run."""

    def __init__(self, run: WritableRun, session_id: str | None, step: int) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", _TRACKER_PROJECT_NAME)
        self._is_ours = wandb.run is None  # a run that the caller opened receives the rows and stays open
        self._run = wandb.init(name=run.name, project=project, dir=str(run.loggers_path), id=session_id, resume="allow")
        self.session_id = self._run.id

    def log_settings(self, settings: Mapping[str, Any]) -> None:
        self._run.config.update(dict(settings), allow_val_change=True)

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self, *, succeeded: bool) -> None:
        if self._is_ours:
            self._run.finish(exit_code=0 if succeeded else 1)


LOGGER_CLASS_BY_NAME: dict[str, type[Logger]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


def open_loggers(names: Iterable[str], run: WritableRun, config: Mapping[str, Any], *, step: int) -> list[Logger]:
    """Open the loggers of a run, or continue those of a resumed run.

    Local files go to the folder `loggers/` of the run. New sessions record the settings `config`.
    """
    classes = {name: LOGGER_CLASS_BY_NAME[name] for name in names}
    if not classes:
        return []
    run.loggers_path.mkdir(exist_ok=True)
    file = run.loggers_path / "versions.json"  # session ids by logger
    session_ids: dict[str, str] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    with _translate_logger_errors(run):
        loggers = {name: logger_class(run, session_ids.get(name), step) for name, logger_class in classes.items()}
        for name in loggers.keys() - session_ids:  # MLflow parameters are immutable, even `epochs` on resume
            loggers[name].log_settings(config)
    write_json(file, {**session_ids, **{name: logger.session_id for name, logger in loggers.items()}})
    return list(loggers.values())


def send_row_unless_logged(loggers: Iterable[Logger], run: WritableRun, row: MetricsRow) -> None:
    """Send a row of metrics to each logger that lacks it."""
    values = {name: value for name, value in row.items() if name != "step" and value is not None}
    with _translate_logger_errors(run):
        for logger in loggers:
            if row["step"] > logger.last_step:
                logger.log_metrics(values, row["step"])
                logger.last_step = row["step"]


def close_loggers(loggers: Iterable[Logger], run: WritableRun, *, succeeded: bool) -> None:
    """Close the loggers, ignoring their errors if the training failed."""
    for logger in loggers:
        if succeeded:
            with _translate_logger_errors(run):
                logger.close(succeeded=True)
        else:
            with suppress(Exception):
                logger.close(succeeded=False)


@contextmanager
def _translate_logger_errors(run: WritableRun) -> Iterator[None]:
    """Context manager that turns any exception into a `UsageError`."""
    try:
        yield
    except Exception as error:  # each package has its own exceptions
        message = str(error).strip().partition("\n")[0].rstrip(".")
        message = f"logger: {type(error).__name__}: {message}. Fix the cause, then resume: {run.resume_advice}"
        raise UsageError(message, kind="failed") from error


def _iterate_slash_joined_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings under names joined by slashes, as in ``columns/labels``."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _iterate_slash_joined_settings(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value
