"""The models that a training kept on its way, which `keep_every` asks for."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from contraport._utils.formatting import format_options
from contraport.encoders import Model
from contraport.encoders.lora import merged
from contraport.errors import check
from contraport.runs import Run, read
from contraport.training.components.model_builder import adapted
from contraport.training.restore import read_checkpoint

_NAME = re.compile(r"epoch-(\d+)\.ckpt")
_MODEL = "model."


def epoch_checkpoint_files(run: Run, *, before: int | None) -> dict[int, Path]:
    """Return the checkpoints that were kept by their epochs, the earliest first.

    Args:
        run: the folder.
        before: only those of earlier epochs than this; default: all.
    """
    files = {int(found[1]): file for file in run.checkpoints.glob("*.ckpt") if (found := _NAME.fullmatch(file.name))}
    return {epoch: files[epoch] for epoch in sorted(files) if before is None or epoch < before}


def check_kept(runs: Sequence[Run]) -> None:
    """Raise `UsageError` where none of some runs kept a model on its way."""
    names = ", ".join(str(run.path) for run in runs)
    kept = any(epoch_checkpoint_files(run, before=None) for run in runs)
    check(kept, f"checkpoints: {names} kept none on the way; train with {format_options(keep_every=...)}.")


def load_epoch_models(run: Run, model: Model, files: Mapping[int, Path]) -> Iterator[tuple[int, Model]]:
    """Yield the epoch and the model of each checkpoint.

    Args:
        run: the folder.
        model: the trained one; the others are copies of it with their own weights.
        files: the checkpoints by their epochs (`epoch_checkpoint_files`).

    Raises:
        UsageError: one is corrupt.
    """
    settings = run.settings()

    def reader(path: Path) -> Model:
        weights = read_checkpoint(path)["pipeline"]
        then = adapted(copy.deepcopy(model), settings)
        own = {name.removeprefix(_MODEL): weight for name, weight in weights.items() if name.startswith(_MODEL)}
        then.load_state_dict(own)
        return merged(then).eval()

    for epoch, file in files.items():
        kept: Model = read(file, reader)
        yield epoch, kept
