"""Training loop over epochs and batches, with callbacks at named points.

It is the only training loop: `train`, its dry run, the estimators, the cross-fit of an audit and fine-tuning use it.
The loop itself writes no files; callbacks do (`contraport.training.callbacks`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.autograd.profiler import record_function
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from contraport.data import Batch, BatchOrder, LocalBatchOffset
from contraport.data.data_loader import ClosableDataLoader, StreamLoader
from contraport.seeding import GENERATOR_LOCK
from contraport.training.data_parallelism import clip_gradients

PROFILED_SECTION_NAMES = ("wait for data", "views and loss", "backward", "optimizer")
"""Names of the sections of a step in the traces of `torch.profiler`."""

_DATA_SECTION, _FORWARD_SECTION, _BACKWARD_SECTION, _OPTIMIZER_SECTION = PROFILED_SECTION_NAMES


class Position(NamedTuple):
    """Training position: completed epochs, batches of the epoch, total optimizer steps."""

    completed_epochs: int = 0
    completed_batches: int = 0
    step: int = 0


class Trainable(Protocol):
    """Interface of a module that computes the loss of a batch."""

    def __call__(self, batch: Batch, step: int, micro_batch: int = 0, offset: LocalBatchOffset | None = None) -> Tensor:
        """Return the loss of a batch.

        Its randomness must depend on the seed, the step and the micro-batch only.
        """

    def after_step(self, step: int) -> None:
        """Update state, such as momentum weights, after an optimizer step."""

    # As in `torch.nn.Module`.
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> object: ...


class Loop:
    """Training loop with its state, which callbacks read as attributes.

    Args:
        batches: batches of an epoch.
        schedule: learning rate schedule, advanced after each step.
        start: progress of an earlier session; default: none.
        grad_accum_steps: number of batches whose gradients are accumulated for one step.
        gradient_clip: maximum gradient norm; default: no clipping.
        amp: automatic mixed precision in bfloat16.
        offset: part of a batch that this process holds; default: all of it.
        callbacks: callbacks, called in this order.

    Attributes:
        loss_callable: callable that returns the loss: the module, or `DistributedDataParallel` around it.
        completed_epochs: number of complete epochs of the training run.
        completed_batches: number of complete batches of the current epoch.
        step: number of optimizer steps done since the start of the training run.
        completed_micro_batches: number of complete micro-batches of the current step, with gradient accumulation; 0
            between steps.
        is_last_batch: whether the current batch is the last of its epoch.
        should_stop: whether the training ends with the current epoch; callbacks set it.
        grad_norm: gradient norm of the last step before clipping, a tensor without dimensions.
        data_wait_seconds: total seconds that the loop waited for batches.
    """

    def __init__(
        self,
        module: Trainable,
        batches: ClosableDataLoader | StreamLoader,
        optimizer: Optimizer,
        schedule: LRScheduler,
        *,
        epochs: int,
        start: Position | None = None,
        device: torch.device | str = "cpu",
        grad_accum_steps: int = 1,
        gradient_clip: float | None = None,
        amp: bool = False,
        offset: LocalBatchOffset | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.module = module
        self.loss_callable: Any = module
        self.batches = batches
        self.optimizer = optimizer
        self.schedule = schedule
        self.epochs = epochs
        self.device = torch.device(device)
        self.grad_accum_steps = grad_accum_steps
        self.gradient_clip = gradient_clip
        self.amp = amp
        self.offset = offset
        self.callbacks = tuple(callbacks)
        self.is_last_batch = False
        self.should_stop = False
        self.grad_norm = torch.zeros(())
        self.data_wait_seconds = 0.0
        self.set_completed_counts(start or Position())

    @property
    def total_steps(self) -> int:
        """Number of optimizer steps of the whole training."""
        return self.epochs * -(-len(self.batches) // self.grad_accum_steps)

    def set_completed_counts(self, position: Position) -> None:
        """Set the counts of completed epochs, batches and steps, as from a checkpoint."""
        self.completed_epochs, self.completed_batches, self.step = position
        self.completed_micro_batches = 0

    def run(self) -> None:
        """Train all epochs, unless a callback requests a stop after one of them."""
        order = cast(BatchOrder, self.batches.batch_sampler)
        try:
            for callback in self.callbacks:
                callback.on_start(self)
            # The order of the items is a function of seed and epoch, so a resumed run skips the batches that it has
            # trained on without loading them, and continues bit for bit.
            order.begin_at(epoch=self.completed_epochs, batch=self.completed_batches)
            while self.completed_epochs < self.epochs and not self.should_stop:
                order.set_epoch(self.completed_epochs)
                for batch in self._iterate_timed_batches():
                    self._train_on_batch(batch.to(self.device))
                # Counted before the callbacks: a checkpoint of after_epoch must resume in the next epoch.
                self.completed_epochs, self.completed_batches = self.completed_epochs + 1, 0
                for callback in self.callbacks:
                    callback.after_epoch(self)
            for callback in self.callbacks:
                callback.on_end(self)
        except BaseException as error:  # also KeyboardInterrupt: a progress bar must restore the cursor
            for callback in self.callbacks:
                callback.on_exception(self, error)
            raise

    def _train_on_batch(self, batch: Batch) -> None:
        """Accumulate a batch's gradient, and take an optimizer step if one is due."""
        self.is_last_batch = self.completed_batches + 1 == len(self.batches)
        completes_step = self.completed_micro_batches + 1 == self.grad_accum_steps or self.is_last_batch
        # Processes exchange gradients only for the last micro-batch of a step.
        exchanges_gradients = completes_step or not hasattr(self.loss_callable, "no_sync")
        with nullcontext() if exchanges_gradients else self.loss_callable.no_sync():
            # Autocast covers the forward pass only: backward runs in the dtypes that it chose.
            with (
                GENERATOR_LOCK,  # the module seeds torch's global generators
                record_function(_FORWARD_SECTION),
                torch.autocast(self.device.type, torch.bfloat16, enabled=self.amp),
            ):
                loss: Tensor = self.loss_callable(batch, self.step, self.completed_micro_batches, self.offset)
            with record_function(_BACKWARD_SECTION):
                # Scaled before the sum, so that the step is the mean over its batches.
                (loss / self.grad_accum_steps).backward()
        # Detached: a callback that keeps the loss must not keep the graph and its activations.
        for callback in self.callbacks:
            callback.after_backward(self, batch, loss.detach())
        self.completed_micro_batches += 1
        if completes_step:
            self._take_optimizer_step()
        self.completed_batches += 1
        for callback in self.callbacks:
            callback.after_batch(self)

    def _take_optimizer_step(self) -> None:
        """Clip the gradients and update the weights and the learning rate."""
        # Frozen parameters, and those of unused branches, have no gradient.
        parameters = [weights for weights in self.module.parameters() if weights.grad is not None]
        self.grad_norm = clip_gradients(parameters, self.gradient_clip)
        # The finite guard raises here, while the weights are still those that gave the loss.
        for callback in self.callbacks:
            callback.before_optimizer_step(self)
        with record_function(_OPTIMIZER_SECTION):
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            # Last: the momentum encoder follows the new weights, and the memory receives keys of the step that is done.
            self.module.after_step(self.step)
        self.step, self.completed_micro_batches = self.step + 1, 0

    def _iterate_timed_batches(self) -> Iterator[Batch]:
        """Yield an epoch's batches, and add the waiting time to `data_wait_seconds`."""
        batches = None
        while True:
            start = time.perf_counter()
            # Loaders and transforms draw from torch's global generators, as another thread's training may.
            with GENERATOR_LOCK, record_function(_DATA_SECTION):
                batches = iter(self.batches) if batches is None else batches
                batch = next(batches, None)
            self.data_wait_seconds += time.perf_counter() - start
            if batch is None:
                return
            yield batch


class Callback:
    """Base class of callbacks, with one method per event of the training loop."""

    def on_start(self, loop: Loop) -> None:
        """Called before the first batch, after the checkpoint of a resumed run is loaded."""

    def after_backward(self, loop: Loop, batch: Batch, loss: Tensor) -> None:
        """Called after the backward pass of a batch, with the detached loss."""

    def before_optimizer_step(self, loop: Loop) -> None:
        """Called before the optimizer step, when the gradients are final."""

    def after_batch(self, loop: Loop) -> None:
        """Called at the end of each batch, after any optimizer step."""

    def after_epoch(self, loop: Loop) -> None:
        """Called after each epoch, when `loop.completed_epochs` already includes it."""

    def before_save(self, loop: Loop) -> None:
        """Called before a checkpoint is written. An error here prevents the writing."""

    def on_end(self, loop: Loop) -> None:
        """Called at the end of the training, after its last epoch."""

    def on_exception(self, loop: Loop, error: BaseException) -> None:
        """Called when an exception ends the training."""

    def state(self) -> dict[str, Any] | None:
        """Return the callback's state for a checkpoint, or None (default)."""
        return None

    @property
    def checkpoint_key(self) -> str:
        """Key of the callback's state in a checkpoint."""
        return type(self).__name__

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the callback's state from a checkpoint."""
