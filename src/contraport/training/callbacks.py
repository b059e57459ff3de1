"""What happens around the steps: time is measured, rows and checkpoints are written, a broken loss stops the run."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from contraport.data import Batch
from contraport.runs import Row, Run, write_json
from contraport.training.folder import last_checkpoint
from contraport.training.task import ContrastiveTask

log = logging.getLogger("contraport.training")


class TimedLoader:
    """A loader that measures how long its reader stands waiting for batches.

    Attributes:
        waited: seconds, in all.
    """

    def __init__(self, loader: DataLoader[Batch]) -> None:
        self.loader = loader
        self.waited = 0.0

    @property
    def sampler(self) -> Iterable[int]:
        """The order of the items, which Lightning tells the epoch."""
        return self.loader.sampler

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        start = time.perf_counter()
        for batch in self.loader:
            self.waited += time.perf_counter() - start
            yield batch
            start = time.perf_counter()


class Meter(Callback):
    """Writes a row to `metrics.jsonl` every few steps and at the end of each epoch: means since the last row.

    Attributes:
        row: the last row, empty before the first.
        steps: steps of this session.
        seconds: seconds of this session.
        items: items that went through the encoder in this session, each with all its views.
    """

    def __init__(self, run: Run, loader: TimedLoader, *, every: int) -> None:
        self.row: Row = {}
        self.steps = 0
        self.seconds = 0.0
        self.items = 0
        self._run = run
        self._loader = loader
        self._every = every
        self._earlier = 0.0
        self._losses: list[float] = []

    def state_dict(self) -> dict[str, float]:
        """Return the seconds of all sessions so far."""
        return {"seconds": self._earlier + self.seconds}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        """Go on counting the seconds of earlier sessions."""
        self._earlier = state_dict["seconds"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._start = time.perf_counter()
        self._last = (0, 0.0, self._loader.waited)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Note the learning rate and the temperature that this step used."""
        assert isinstance(pl_module, ContrastiveTask)
        self._used = {"lr": optimizer.param_groups[0]["lr"], "temperature": pl_module.temperature}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the step; write a row when it is time."""
        self._losses.append(float(outputs["loss"]))
        self.steps += 1
        self.items += len(batch.ids)
        self.seconds = time.perf_counter() - self._start
        if len(self._losses) == self._every or trainer.is_last_batch:
            self._write_row(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the log how the epoch ended."""
        log.debug("epoch %d of %s: %s", trainer.current_epoch + 1, trainer.max_epochs, self.row)

    def summary(self) -> str:
        """Return the session in one line."""
        return (
            f"{self.steps:,} steps in {self.seconds:.1f} s: {self.items / self.seconds:,.0f} images/s, "
            f"{self._loader.waited / self.seconds:.1%} of the time waiting for data; last loss {self.row['loss']:.4f}"
        )

    def _write_row(self, trainer: Trainer) -> None:
        items, seconds, waited = self._last
        self._last = (self.items, self.seconds, self._loader.waited)
        elapsed = self.seconds - seconds
        self.row = {
            "step": trainer.global_step,
            "epoch": trainer.current_epoch + 1,
            "seconds": round(self._earlier + self.seconds, 3),
            "loss": math.fsum(self._losses) / len(self._losses),
            **self._used,
            "images_per_second": round((self.items - items) / elapsed, 1),
            "data_wait": round((self._loader.waited - waited) / elapsed, 4),
        }
        self._run.append_metrics(self.row)
        self._losses.clear()


class FiniteGuard(Callback):
    """Stops the run before a step whose loss or gradient is not finite, and keeps what replays it."""

    def __init__(self, run: Run, *, seed: int) -> None:
        self._run = run
        self._path = run.path / "nonfinite.json"
        self._seed = seed

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget an earlier failure."""
        self._path.unlink(missing_ok=True)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Note which items the step sees."""
        self._ids: Tensor = batch.ids

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Note the loss."""
        self._loss = loss.detach()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Let the step pass if its loss and its gradient are finite.

        Raises:
            FloatingPointError: they are not; the weights are those before the step.
        """
        gradients = [parameter.grad for parameter in pl_module.parameters() if parameter.grad is not None]
        loss, norm = torch.stack((self._loss.float(), get_total_norm(gradients).float())).tolist()
        if math.isfinite(loss) and math.isfinite(norm):
            return
        step, epoch = trainer.global_step + 1, trainer.current_epoch + 1
        values = {"step": step, "epoch": epoch, "seed": self._seed, "loss": str(loss), "gradient_norm": str(norm)}
        write_json(self._path, {**values, "ids": self._ids.tolist()})
        raise FloatingPointError(
            f"the loss is {loss:g} and its gradient's norm {norm:g} at step {step} (epoch {epoch}, seed {self._seed}); "
            f"the weights of the last whole epoch are kept, and {self._path} names the batch. "
            "A lower lr or a higher temperature may help."
        )


class Checkpoints(Callback):
    """Writes `checkpoints/last.ckpt` at the end of each epoch, and one to keep every few epochs."""

    def __init__(self, run: Run, *, keep_every: int | None) -> None:
        self._last = last_checkpoint(run)
        self._keep_every = keep_every

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save weights, optimiser, schedule and progress."""
        trainer.save_checkpoint(self._last)
        epoch = trainer.current_epoch + 1
        if self._keep_every is not None and epoch % self._keep_every == 0:
            trainer.save_checkpoint(self._last.with_name(f"epoch-{epoch:04d}.ckpt"))


class ProgressBar(Callback):
    """Shows the epoch, the loss and the speed on a console."""

    def __init__(self, console: Console, meter: Meter) -> None:
        self._meter = meter
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[measured]}"),
            TimeRemainingColumn(compact=True),
            console=console,
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the bar."""
        total = int(trainer.estimated_stepping_batches)
        self._bar = self._progress.add_task("", total=total, completed=trainer.global_step, epoch="", measured="")
        self._progress.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar on."""
        self._progress.update(
            self._bar,
            completed=trainer.global_step,
            epoch=f"{trainer.current_epoch + 1}/{trainer.max_epochs}",
            measured=self._measured(),
        )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the console back."""
        self._progress.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the console back, with its cursor, after Ctrl-C or an error too."""
        self._progress.stop()

    def _measured(self) -> str:
        row = self._meter.row
        if not row:
            return ""
        temperature = "" if row["temperature"] is None else f"temperature {row['temperature']:.3g}  "
        speed = f"{row['images_per_second']:,.0f} images/s  wait {row['data_wait']:.0%}"
        return f"loss {row['loss']:.3f}  {temperature}{speed}"
