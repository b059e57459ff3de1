"""Where a training begins: in a new run folder, or in one that is taken back to its last checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from contraport.distributed import is_first
from contraport.errors import check, explained
from contraport.files import check_checksum, halves, write_text
from contraport.runs import Run, read
from contraport.verbs.train import Settings
from contraport.wording import written_as

MARK = "items"
"""Under which a checkpoint has the mark of the items that it is of."""


class Position(NamedTuple):
    """How far a training is: whole epochs, batches of the next one, and steps in all, that are done."""

    epoch: int
    batch: int
    step: int


@explained("contraport docs troubleshooting resume-is-refused")
def open_run(run: Run, settings: Settings, mark: str | None = None) -> Position:
    """Make the run's folder; or, to resume, take it back to its last checkpoint.

    Args:
        run: the folder.
        settings: of the training.
        mark: of its items; None: they are not compared with those that it began with.

    Raises:
        UsageError: the folder is in the way or cannot be written to, or the checkpoint is corrupt or of other items;
            nothing was changed.
    """
    if not settings.resume:
        with run.writing():
            _remove_halves(run)
            Run.create(run.path, settings.kept(), overwrite=settings.overwrite)
        return Position(epoch=0, batch=0, step=0)
    with run.writing():
        run.replaced.settle()
    position, known = _position(run)
    check(
        mark is None or known is None or mark == known,
        f"data: the run in {run.path} began with other items than those that came; on resume they are to be the same.",
    )
    check(
        position.epoch <= settings.epochs,
        f"epochs: {run.last_checkpoint} has done {position.epoch}, more than the {settings.epochs} asked for.",
    )
    with run.writing():
        _remove_halves(run)
        if run.metrics_path.exists():
            run.write_metrics(row for row in run.metrics() if row["step"] <= position.step)
        if position.epoch < settings.epochs:
            for outdated in (run.evaluation_path, run.samples_path, run.items_path):
                outdated.unlink(missing_ok=True)
        write_text(run.config_path, yaml.safe_dump(settings.kept(), sort_keys=False, allow_unicode=True))
    return position


@contextmanager
def replacing_run(run: Run) -> Iterator[None]:
    """Put the run that this one replaces back where this one fails before it has a checkpoint.

    Where it was stopped, or its loss was not finite, both are kept: what tells why is in the new one, which can go on.
    """
    try:
        yield
    except FloatingPointError:
        raise
    except Exception:
        if is_first():
            with run.writing():
                run.replaced.put_back()
        raise


def _remove_halves(run: Run) -> None:
    """Remove what a killed process was about to put in its place."""
    for folder in (run.path, run.checkpoints, run.model_path):
        for half in halves(folder):
            half.unlink()
    for half in run.path.glob(".model-*"):
        shutil.rmtree(half)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return what a checkpoint holds, on the CPU; nothing is unpickled.

    Raises:
        Exception: it is not what was written.
    """
    check_checksum(path)
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def without_checkpoint(run: Run) -> str:
    """Return what can be done where the last checkpoint is of no use."""
    last, earlier = run.last_checkpoint.name, sorted(file.name for file in run.checkpoints.glob("epoch-*.ckpt"))
    other = f"copy {earlier[-1]} over {last}, and its checksum over that of {last}, or " if earlier else ""
    return f"; {other}train anew with {written_as(overwrite=True)}."


def _position(run: Run) -> tuple[Position, str | None]:
    """Return how far the last checkpoint is, and the mark of its items where it has one."""
    if not run.last_checkpoint.exists():
        return Position(epoch=0, batch=0, step=0), None

    def reader(path: Path) -> tuple[Position, str | None]:
        state = read_checkpoint(path)
        loop = state["loops"]["fit_loop"]
        epochs, batches = (loop[of]["current"] for of in ("epoch_progress", "epoch_loop.batch_progress"))
        within = epochs["ready"] > epochs["processed"]
        position = Position(epochs["processed"], batches["processed"] if within else 0, state["global_step"])
        if not len(state["optimizer_states"]) == len(state["lr_schedulers"]) == 1:
            raise ValueError("expected one optimiser and one schedule")
        if not all(isinstance(number, int) and number >= 0 for number in position):
            raise ValueError(f"expected whole numbers of epochs, batches and steps, got {tuple(position)}")
        return position, state.get("callbacks", {}).get(MARK, {}).get(MARK)

    found: tuple[Position, str | None] = read(run.last_checkpoint, reader, without_checkpoint(run))
    return found
