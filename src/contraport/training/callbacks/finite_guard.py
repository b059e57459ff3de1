"""Guard against losses and gradients that are NaN or infinite."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import NoReturn

from torch import Tensor

from contraport import distributed
from contraport._utils.files import checksum_path, write_json, write_npz
from contraport.data import Batch
from contraport.distributed import is_main_process, raise_on_one_rank
from contraport.errors import UsageError, hint_on_error
from contraport.runs import WritableRun
from contraport.training.callbacks.checkpoints import write_checkpoint
from contraport.training.callbacks.metrics_writer import to_floats
from contraport.training.loop import Callback, Loop

_log = logging.getLogger(__name__)


class RestartFromLastCheckpoint(Exception):  # noqa: N818 - control flow
    """Raised when a non-finite loss or gradient has already changed the weights."""


class FiniteGuard(Callback):
    """Callback that stops before an optimizer step with non-finite loss or gradient.

    It also warns once if the gradient of a step that it reads is exactly zero, as with embeddings that are all zero,
    whose loss is finite.
    """

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._has_warned = False

    def after_backward(self, loop: Loop, batch: Batch, loss: Tensor) -> None:
        """Keep the loss for the check before the optimizer step."""
        self._losses.append(loss)

    def before_optimizer_step(self, loop: Loop) -> None:
        tensors, self._losses = [*self._losses, loop.grad_norm], []
        *losses, norm = to_floats(tensors)
        if not all(map(math.isfinite, (*losses, norm))):
            self._handle_nonfinite_step(loop, losses, norm)
        if norm == 0 and not self._has_warned:
            self._has_warned = True
            message = "step %d: the gradient is zero, so the weights do not change; the embeddings may all be zero"
            _log.warning(message, loop.step + 1)

    def _handle_nonfinite_step(self, loop: Loop, losses: Sequence[float], norm: float) -> NoReturn:
        """Raise `UsageError` for a loss or gradient norm that is not finite."""
        raise UsageError(
            f"lr: the loss must be finite, got loss {losses[-1]:g} and gradient norm {norm:g} after {loop.step} steps. "
            "Lower lr or raise temperature.",
            kind="nonfinite_loss",
        )


class PeriodicFiniteGuard(FiniteGuard):
    """Callback that checks for non-finite losses, and writes a failed step to files.

    `contraport.training.load_failed_step` loads it. `nonfinite.json` holds step, seed and loss,
    `checkpoints/nonfinite.ckpt` the weights before the step, `checkpoints/nonfinite.npz` the raw items of all
    processes.

    Reading a number from a GPU makes the host wait for all queued work. On a GPU the numbers of many steps are
    therefore read at once, and before each checkpoint. If one of them is not finite, the training restarts from the
    last checkpoint (`RestartFromLastCheckpoint`) and checks each step before it is taken.

    Args:
        steps_between_checks: number of steps between two readings.
    """

    def __init__(self, run: WritableRun, *, seed: int, steps_between_checks: int = 1) -> None:
        super().__init__()
        self.steps_between_checks = steps_between_checks
        self._run = run
        self._seed = seed
        self._batches: list[Batch] = []
        self._unread: list[list[Tensor]] = []  # losses and gradient norm of each step since the last reading
        self._has_checkpoint = False

    def on_start(self, loop: Loop) -> None:
        """Delete the files of an earlier failed step."""
        self._has_checkpoint = loop.step > 0
        if is_main_process():
            checkpoint = self._run.nonfinite_checkpoint
            files = (self._run.nonfinite_path, checkpoint, checksum_path(checkpoint), self._run.nonfinite_items)
            for file in files:
                file.unlink(missing_ok=True)

    def after_backward(self, loop: Loop, batch: Batch, loss: Tensor) -> None:
        """Store the loss for the next check, and the batch if every step is checked."""
        super().after_backward(loop, batch, loss)
        if self._checks_before_every_update:
            self._batches.append(batch)

    def before_optimizer_step(self, loop: Loop) -> None:
        """Collect losses and gradient norm, and check them every few steps."""
        if self._checks_before_every_update:
            super().before_optimizer_step(loop)
            self._batches = []
            return
        self._unread.append([*self._losses, loop.grad_norm])
        self._losses = []
        if len(self._unread) >= self.steps_between_checks:
            self._check_recorded_values()

    def before_save(self, loop: Loop) -> None:
        self._check_recorded_values()
        self._has_checkpoint = True

    @property
    def _checks_before_every_update(self) -> bool:
        """True if loss and gradient norm are checked before each update."""
        return self.steps_between_checks == 1 or not self._has_checkpoint

    def _check_recorded_values(self) -> None:
        """Raise `RestartFromLastCheckpoint` if a recorded loss or gradient is not finite."""
        tensors, self._unread = [tensor for step in self._unread for tensor in step], []
        if tensors and not all(map(math.isfinite, to_floats(tensors))):
            raise RestartFromLastCheckpoint

    def _handle_nonfinite_step(self, loop: Loop, losses: Sequence[float], norm: float) -> NoReturn:
        """Write the failed step to files of the run folder, then raise `FloatingPointError`."""
        part = next((part for part, loss in enumerate(losses) if not math.isfinite(loss)), len(losses) - 1)
        step, epoch = loop.step + 1, loop.completed_epochs + 1
        batch = self._batches[part]
        named: dict[str, Tensor | None] = {f"view{number}": view for number, view in enumerate(batch.views)}
        named |= {"labels": batch.labels, "domains": batch.domains, "ids": batch.ids}
        named |= {"present": batch.present, "weights": batch.weights}
        tensors = {name: distributed.gather(value) for name, value in named.items() if value is not None}
        # All processes take part in the write, as it gathers sharded weights.
        write_checkpoint(self._run, loop, self._run.nonfinite_checkpoint)
        if is_main_process():
            with self._run.translate_write_errors():
                write_npz(self._run.nonfinite_items, {name: value.cpu().numpy() for name, value in tensors.items()})
                write_json(
                    self._run.nonfinite_path,
                    {
                        "step": step,
                        "part": part,
                        "epoch": epoch,
                        "seed": self._seed,
                        "loss": str(losses[part]),
                        "gradient_norm": str(norm),
                        "ids": tensors["ids"].tolist(),
                    },
                )
        message = (
            f"loss {losses[part]:g}, gradient norm {norm:g} at step {step} (epoch {epoch}, seed {self._seed}); see "
            f"{self._run.nonfinite_path}. contraport.training.load_failed_step recomputes the loss. "
            "Lower lr or raise temperature."
        )
        with hint_on_error("contraport docs troubleshooting the-loss-is-not-finite"):
            raise_on_one_rank(FloatingPointError(message), status=1)
