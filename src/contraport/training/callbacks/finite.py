"""Finite guard: stops a training whose loss or gradient is not finite, and keeps what replays the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from contraport import distributed
from contraport._utils.files import checksum_path, write_arrays, write_json
from contraport.data import Batch
from contraport.distributed import is_main_process, raise_on_one_rank
from contraport.errors import UsageError, hint_on_error
from contraport.runs import Run
from contraport.training.callbacks.checkpoints import CheckpointFile
from contraport.training.loop import Callback, Loop


class NonFiniteEarlierStep(Exception):  # noqa: N818 - the training goes back and meets it again
    """A step that was taken already was not finite."""


class _Step(NamedTuple):
    """The losses of the batches of a step, and the norm of its gradient."""

    losses: tuple[Tensor, ...]
    norm: Tensor

    def numbers(self) -> Tensor:
        return torch.stack([value.float() for value in (*self.losses, self.norm)])


class FiniteGuard(Callback):
    """Stops the training before a step whose loss or gradient is not finite."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []

    def after_backward(self, loop: Loop, batch: Batch, loss: Tensor) -> None:
        """Note the loss; a step has several where gradients are accumulated."""
        self._losses.append(loss)

    def before_step(self, loop: Loop) -> None:
        """Check the step.

        Raises:
            UsageError: it is not finite; the weights are those before it.
        """
        losses, self._losses = self._losses, []
        numbers = _Step(tuple(losses), loop.norm).numbers().tolist()
        if not all(map(math.isfinite, numbers)):
            self.report(loop, numbers[:-1], numbers[-1])

    def report(self, loop: Loop, losses: Sequence[float], norm: float) -> None:
        """Raise an error for a step that is not finite."""
        *_, loss = losses
        raise UsageError(
            f"lr: the loss must be finite, got a loss of {loss:g} and a gradient of norm {norm:g} after {loop.step} "
            "steps; lower lr or raise temperature."
        )


class RunFiniteGuard(FiniteGuard):
    """Stops a run before a step that is not finite, and keeps what replays it.

    `nonfinite.json` has step, seed and loss; `checkpoints/nonfinite.ckpt` the weights before the step and
    `checkpoints/nonfinite.npz` the raw items, of all processes.

    To read a number from a GPU the host waits until all queued work is done. So on a GPU the numbers of many steps are
    read at once, and before each checkpoint. When one of them is not finite the training goes back to the last
    checkpoint (`NonFiniteEarlierStep`), and from there each step is checked before it is taken.

    Args:
        run: the folder.
        file: writes checkpoints.
        seed: of the run.
        every: steps between two readings.
    """

    def __init__(self, run: Run, file: CheckpointFile, *, seed: int, every: int = 1) -> None:
        super().__init__()
        self.every = every
        self._run = run
        self._file = file
        self._seed = seed
        self._batches: list[Batch] = []
        self._unread: list[_Step] = []
        self._has_checkpoint = False

    def on_start(self, loop: Loop) -> None:
        """Remove what an earlier failure left."""
        self._has_checkpoint = loop.step > 0
        if is_main_process():
            kept = self._run.nonfinite_checkpoint
            for file in (self._run.nonfinite_path, kept, checksum_path(kept), self._run.nonfinite_items):
                file.unlink(missing_ok=True)

    def after_backward(self, loop: Loop, batch: Batch, loss: Tensor) -> None:
        """Note the loss and the items."""
        super().after_backward(loop, batch, loss)
        if self._reads_each_step:
            self._batches.append(batch)

    def before_step(self, loop: Loop) -> None:
        """Check the step; where numbers are read late, earlier steps when it is time.

        Raises:
            FloatingPointError: the step is not finite; the weights are those before it.
            NonFiniteEarlierStep: an earlier step was not.
        """
        if self._reads_each_step:
            super().before_step(loop)
            self._batches = []
            return
        self._unread.append(_Step(tuple(self._losses), loop.norm))
        self._losses = []
        if len(self._unread) >= self.every:
            self._read()

    def before_save(self, loop: Loop) -> None:
        """Read all numbers, so that each checkpoint is of finite steps alone."""
        self._read()
        self._has_checkpoint = True

    @property
    def _reads_each_step(self) -> bool:
        """Whether each step is checked before it is taken; before the first checkpoint there is none to go back to."""
        return self.every == 1 or not self._has_checkpoint

    def _read(self) -> None:
        steps, self._unread = self._unread, []
        if steps and not bool(torch.cat([step.numbers() for step in steps]).isfinite().all()):
            raise NonFiniteEarlierStep

    def report(self, loop: Loop, losses: Sequence[float], norm: float) -> None:
        """Write what replays the step, and raise `FloatingPointError` in the first process."""
        part = next((part for part, loss in enumerate(losses) if not math.isfinite(loss)), len(losses) - 1)
        step, epoch = loop.step + 1, loop.epoch + 1
        batch = _gathered(self._batches[part])
        self._file.write(loop, self._run.nonfinite_checkpoint)
        if is_main_process():
            with self._run.writing():
                write_arrays(self._run.nonfinite_items, {name: value.cpu().numpy() for name, value in batch.items()})
                write_json(
                    self._run.nonfinite_path,
                    {
                        "step": step,
                        "part": part,
                        "epoch": epoch,
                        "seed": self._seed,
                        "loss": str(losses[part]),
                        "gradient_norm": str(norm),
                        "ids": batch["ids"].tolist(),
                    },
                )
        message = (
            f"the loss is {losses[part]:g} and its gradient's norm {norm:g} at step {step} (epoch {epoch}, seed "
            f"{self._seed}); see {self._run.nonfinite_path}; contraport.training.replay computes the step again. "
            "A lower lr or a higher temperature may help."
        )
        with hint_on_error("contraport docs troubleshooting the-loss-is-not-finite"):
            raise_on_one_rank(FloatingPointError(message), status=1)


def _gathered(batch: Batch) -> dict[str, Tensor]:
    named: dict[str, Tensor | None] = {f"view{number}": view for number, view in enumerate(batch.views)}
    named |= {"labels": batch.labels, "domains": batch.domains, "ids": batch.ids}
    named |= {"present": batch.present, "weights": batch.weights}
    return {name: distributed.gather(value) for name, value in named.items() if value is not None}
