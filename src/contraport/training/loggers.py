"""Where the rows of `metrics.jsonl` also go: TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from contraport.errors import check, require, unknown_name
from contraport.runs import Row, Run, write_json

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

_PROJECT = "contraport"
_VERSIONS = "versions.json"


def check_loggers(names: Iterable[str]) -> None:
    """Raise `UsageError` unless each name is one of `LOGGERS` and its package is installed."""
    check(not isinstance(names, str), f"logger: expected a list of names, got {names!r}.")
    for name in names:
        if name not in LOGGERS:
            raise unknown_name("logger", name, LOGGERS)
        require(name, "loggers", f"logger {name!r}")


def make_loggers(names: Iterable[str], run: Run, config: Mapping[str, Any], *, step: int) -> list[Logger]:
    """Return the loggers of a run, which were told its settings; a resumed run goes on with those it had.

    Args:
        names: some of `LOGGERS`.
        run: whose folder `loggers/` they write to.
        config: the settings.
        step: the steps that are done.
    """
    makers = {name: LOGGERS[name] for name in names}
    if not makers:
        return []
    run.loggers_path.mkdir(exist_ok=True)
    kept = run.loggers_path / _VERSIONS
    versions: dict[str, str] = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    loggers = {name: make(run, versions.get(name), step) for name, make in makers.items()}
    for logger in loggers.values():
        logger.log_hyperparams(dict(config))  # opens the logger, which from then on has a version
    write_json(kept, {**versions, **{name: logger.version for name, logger in loggers.items()}})
    return list(loggers.values())


def log_row(loggers: Iterable[Logger], row: Row) -> None:
    """Give the numbers of a row to the loggers."""
    numbers = {name: value for name, value in row.items() if name != "step" and value is not None}
    for logger in loggers:
        logger.log_metrics(numbers, step=row["step"])


# Lightning takes seconds to import: only those wait for it who log.
def _tensorboard(run: Run, version: str | None, step: int) -> Logger:
    from lightning.pytorch.loggers import TensorBoardLogger

    # What an interrupted session wrote after its checkpoint is taken back.
    return TensorBoardLogger(run.loggers_path, name="tensorboard", version="", purge_step=step + 1)


def _mlflow(run: Run, version: str | None, step: int) -> Logger:
    from lightning.pytorch.loggers import MLFlowLogger

    server = os.environ.get("MLFLOW_TRACKING_URI")
    folder = str(run.loggers_path / "mlflow")
    return MLFlowLogger(_PROJECT, run.name, tracking_uri=server, save_dir=folder, run_id=version)


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
