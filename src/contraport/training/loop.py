"""The training loop: for each batch the loss, its gradient, clipping and a step; callbacks at named points.

Every training runs it: the command `train`, its dry run, the estimators, the cross-fit of an audit and fine-tuning.
It writes nothing and knows of no run folder; callbacks do (`contraport.training.callbacks`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.autograd.profiler import record_function
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from contraport.data import Batch, BatchOrder, Share
from contraport.data.data_loader import Loader, StreamLoader
from contraport.training.sharding import clip_gradients

DATA, FORWARD, BACKWARD, STEP = SECTIONS = ("wait for data", "views and loss", "backward", "optimizer")
"""Sections of a step, as `torch.profiler` names them."""


class Position(NamedTuple):
    """Progress of a training: whole epochs, batches of the next one, and optimizer steps in all, that are done."""

    epoch: int = 0
    batch: int = 0
    step: int = 0


class Trainable(Protocol):
    """A module that makes the loss of a batch, such as `contraport.training.step.training_module.TrainingModule`."""

    def __call__(self, batch: Batch, step: int, part: int = 0, share: Share | None = None) -> Tensor:
        """Return the loss; everything random in it is a function of the seed, the step and the part."""

    def after_step(self, step: int) -> None:
        """Update what follows the optimizer's step, such as a momentum encoder."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return all that learns or remembers."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> object:
        """Restore all that learns or remembers."""


class Loop:
    """A training in progress. Callbacks read its attributes.

    Args:
        trained: makes the loss of a batch.
        batches: the batches of an epoch.
        optimizer: of the trained parameters.
        schedule: sets the learning rate of each step.
        epochs: at the end of which the training is done.
        start: the progress so far.
        device: where to compute; the parameters are there.
        grad_accum_steps: batches whose gradients are added up for one step.
        gradient_clip: largest norm of a step's gradient; default: gradients are not clipped.
        amp: compute the loss in bfloat16 where that is safe.
        share: the items of a batch that this process holds; default: all of them.
        callbacks: called in this order.

    Attributes:
        forward: what is called for the loss: the trained module, or `DistributedDataParallel` around it.
        epoch: whole epochs that are done.
        batch: batches of the current epoch that are done.
        step: optimizer steps that are done.
        part: batches of the current step that are done; 0 between two steps.
        is_last_batch: whether the current batch is the last of its epoch.
        norm: norm of the step's gradient before clipping, a tensor without dimensions.
        waited: seconds that the loop waited for batches.
    """

    def __init__(
        self,
        trained: Trainable,
        batches: Loader | StreamLoader,
        optimizer: Optimizer,
        schedule: LRScheduler,
        *,
        epochs: int,
        start: Position | None = None,
        device: torch.device | str = "cpu",
        grad_accum_steps: int = 1,
        gradient_clip: float | None = None,
        amp: bool = False,
        share: Share | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.trained = trained
        self.forward: Any = trained
        self.batches = batches
        self.optimizer = optimizer
        self.schedule = schedule
        self.epochs = epochs
        self.device = torch.device(device)
        self.grad_accum_steps = grad_accum_steps
        self.gradient_clip = gradient_clip
        self.amp = amp
        self.share = share
        self.callbacks = tuple(callbacks)
        self.part = 0
        self.is_last_batch = False
        self.norm = torch.zeros(())
        self.waited = 0.0
        self.place(start or Position())

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole training."""
        return self.epochs * -(-len(self.batches) // self.grad_accum_steps)

    def place(self, position: Position) -> None:
        """Set the progress so far."""
        self.epoch, self.batch, self.step = position
        self.part = 0

    def run(self) -> None:
        """Train until all epochs are done."""
        order = cast(BatchOrder, self.batches.batch_sampler)
        try:
            for callback in self.callbacks:
                callback.on_start(self)
            order.begin_at(epoch=self.epoch, batch=self.batch)
            while self.epoch < self.epochs:
                order.set_epoch(self.epoch)
                for batch in self._timed():
                    self._train_on(batch.to(self.device))
                self.epoch, self.batch = self.epoch + 1, 0
                for callback in self.callbacks:
                    callback.after_epoch(self)
            for callback in self.callbacks:
                callback.on_end(self)
        except BaseException as error:
            for callback in self.callbacks:
                callback.on_exception(self, error)
            raise

    def _train_on(self, batch: Batch) -> None:
        self.is_last_batch = self.batch + 1 == len(self.batches)
        completes_step = self.part + 1 == self.grad_accum_steps or self.is_last_batch
        with self._gradients_exchanged(completes_step):
            with record_function(FORWARD), torch.autocast(self.device.type, torch.bfloat16, enabled=self.amp):
                loss: Tensor = self.forward(batch, self.step, self.part, self.share)
            with record_function(BACKWARD):
                (loss / self.grad_accum_steps).backward()
        for callback in self.callbacks:
            callback.after_backward(self, batch, loss.detach())
        self.part += 1
        if completes_step:
            self._take_step()
        self.batch += 1
        for callback in self.callbacks:
            callback.after_batch(self)

    def _take_step(self) -> None:
        parameters = [weights for weights in self.trained.parameters() if weights.grad is not None]
        self.norm = clip_gradients(parameters, self.gradient_clip)
        for callback in self.callbacks:
            callback.before_step(self)
        with record_function(STEP):
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            self.trained.after_step(self.step)
        self.step, self.part = self.step + 1, 0

    def _gradients_exchanged(self, completes_step: bool) -> AbstractContextManager[Any]:
        """Exchange gradients between processes only with the last batch of a step."""
        if completes_step or not hasattr(self.forward, "no_sync"):
            return nullcontext()
        context: AbstractContextManager[Any] = self.forward.no_sync()
        return context

    def _timed(self) -> Iterator[Batch]:
        """Yield the batches of an epoch; measure how long the loop waits for them."""
        batches = iter(self.batches)
        while True:
            start = time.perf_counter()
            with record_function(DATA):
                batch = next(batches, None)
            self.waited += time.perf_counter() - start
            if batch is None:
                return
            yield batch


class Callback:
    """What happens around the steps; the loop calls each method at the point that it names."""

    def on_start(self, loop: Loop) -> None:
        """Before the first batch; the progress of an earlier session is restored."""

    def after_backward(self, loop: Loop, batch: Batch, loss: Tensor) -> None:
        """When the gradient of a batch is added up; `loss` has no graph."""

    def before_step(self, loop: Loop) -> None:
        """Before the optimizer's step; the gradients are those that it takes."""

    def after_batch(self, loop: Loop) -> None:
        """After a batch, and after the optimizer's step where the batch completes one: then `loop.part` is 0."""

    def after_epoch(self, loop: Loop) -> None:
        """After an epoch; `loop.epoch` counts it."""

    def before_save(self, loop: Loop) -> None:
        """Before a checkpoint is written of the state after the last step."""

    def on_end(self, loop: Loop) -> None:
        """After the last epoch."""

    def on_exception(self, loop: Loop, error: BaseException) -> None:
        """When the training ends early, for whatever reason."""

    def state(self) -> dict[str, Any] | None:
        """Return what a checkpoint holds of the callback; default: nothing."""
        return None

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what a checkpoint holds of the callback."""
