"""Where the rows of `metrics.jsonl` also go: TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from contraport.errors import UsageError, require
from contraport.files import write_json
from contraport.runs import MetricsRow, Run

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

_PROJECT = "contraport"
_VERSIONS = "versions.json"


def check_loggers(names: Iterable[str]) -> None:
    """Raise `UsageError` unless the package of each of some loggers is installed."""
    for name in names:
        require(name, "loggers", f"logger {name!r}")


def make_loggers(names: Iterable[str], run: Run, config: Mapping[str, Any], *, step: int) -> list[Logger]:
    """Return the loggers of a run; a new one was told the settings, and a resumed run goes on with those it had.

    Args:
        names: some of `LOGGERS`.
        run: whose folder `loggers/` they write to.
        config: the settings.
        step: the steps that are done.

    Raises:
        UsageError: one cannot be opened, such as a server that does not answer.
    """
    makers = {name: LOGGERS[name] for name in names}
    if not makers:
        return []
    run.loggers_path.mkdir(exist_ok=True)
    kept = run.loggers_path / _VERSIONS
    versions: dict[str, str] = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    with _speaking(run):
        loggers = {name: make(run, versions.get(name), step) for name, make in makers.items()}
        for name in loggers.keys() - versions:  # MLflow lets no setting change, not even `epochs` on resume
            loggers[name].log_hyperparams(dict(config))  # opens the logger, which from then on has a version
    write_json(kept, {**versions, **{name: logger.version for name, logger in loggers.items()}})
    return list(loggers.values())


def log_row(loggers: Iterable[Logger], run: Run, row: MetricsRow) -> None:
    """Give the numbers of a row to the loggers.

    Raises:
        UsageError: one does not take them.
    """
    numbers = {name: value for name, value in row.items() if name != "step" and value is not None}
    with _speaking(run):
        for logger in loggers:
            logger.log_metrics(numbers, step=row["step"])


@contextmanager
def _speaking(run: Run) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each package has errors of its own
        told = str(error).strip().partition("\n")[0].rstrip(".")
        raise UsageError(f"logger: {type(error).__name__}: {told}. Mend it, and go on with: {run.resuming}") from error


# Lightning takes seconds to import: only those wait for it who log.
def _tensorboard(run: Run, version: str | None, step: int) -> Logger:
    from lightning.pytorch.loggers import TensorBoardLogger

    # What an interrupted session wrote after its checkpoint is taken back.
    return TensorBoardLogger(run.loggers_path, name="tensorboard", version="", purge_step=step + 1)


def _mlflow(run: Run, version: str | None, step: int) -> Logger:
    from lightning.pytorch.loggers import MLFlowLogger

    class Once(MLFlowLogger):
        """Takes nothing back: what an interrupted session told after its checkpoint is not told again."""

        told = -1

        def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
            if step is None or step > self.told:
                super().log_metrics(metrics, step)

    place: dict[str, Any] = {"tracking_uri": os.environ.get("MLFLOW_TRACKING_URI")}
    if place["tracking_uri"] is None:
        folder = (run.loggers_path / "mlflow").absolute()
        folder.mkdir(exist_ok=True)  # MLflow writes to no plain files any more
        place = {"tracking_uri": f"sqlite:///{folder / 'mlflow.db'}", "artifact_location": folder.as_uri()}
    logger = Once(_PROJECT, run.name, run_id=version, **place)
    if version is not None:
        history = logger.experiment.get_metric_history(version, "epoch")
        logger.told = max(
            (entry.step for entry in history or ()), default=-1
        )  # other processes than the first get none
    return logger


def _wandb(run: Run, version: str | None, step: int) -> Logger:
    from lightning.pytorch.loggers import WandbLogger

    project = os.environ.get("WANDB_PROJECT", _PROJECT)
    return WandbLogger(run.name, save_dir=run.loggers_path, version=version, project=project)


LOGGERS: dict[str, Callable[[Run, str | None, int], Logger]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}
"""How each logger is made of a run, the version it had before if any, and the steps that are done."""
