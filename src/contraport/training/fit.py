"""Runs the training loop of a run folder: resumes from its last checkpoint, with all callbacks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from contraport.data import local_share
from contraport.data.streams import StreamError
from contraport.distributed import is_main_process, propagate_errors, raise_on_one_rank
from contraport.errors import UsageError, one_line_reason
from contraport.metrics.registry import parse_scheduled_metrics
from contraport.runs import Run
from contraport.training.callbacks import (
    AuditCallback,
    CheckpointFile,
    Checkpoints,
    Meter,
    NonFiniteEarlierStep,
    OnlineMetrics,
    Profile,
    RunFiniteGuard,
    progress_callback,
)
from contraport.training.callbacks.loggers import Logger, close_loggers
from contraport.training.components import Components
from contraport.training.components.model_builder import compile_encoders
from contraport.training.config import Settings
from contraport.training.loop import Callback, Loop, Position
from contraport.training.optimization import build_lr_schedule, build_optimizer
from contraport.training.parallel import resolve_device, wrap_for_processes
from contraport.training.restore import checkpoint_remedy, drop_metrics_after, read_checkpoint, restore
from contraport.training.sharding import gather_state
from contraport.training.signals import StopRequest, TrainingStopped, restored_signals

if TYPE_CHECKING:
    from contraport.metrics.eval_context import EvalContext


def fit(
    components: Components,
    run: Run,
    settings: Settings,
    *,
    start: Position,
    loggers: Sequence[Logger],
    console: Console,
    online_eval: Callable[[torch.device], EvalContext] | None = None,
) -> Meter:
    """Train until all epochs are complete, starting from the last checkpoint, and return the meter.

    Args:
        components: the components of the training.
        run: the run folder.
        settings: settings of the training.
        start: progress of earlier sessions.
        loggers: receive the rows of metrics too.
        console: shows the progress.
        online_eval: creates the evaluation data of the online metrics on a device.

    Raises:
        FloatingPointError: the loss or its gradient is not finite.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the message has the command to resume.
        UsageError: a file of the run cannot be written.
    """
    device, module = resolve_device(settings.device), components.module
    module.to(device)
    if settings.compile:
        for model in module.encoding_models():
            compile_encoders(model)
    unsharded = copy.deepcopy(module.model).cpu() if settings.strategy == "fsdp" else None
    forward = wrap_for_processes(module, device, settings.strategy)
    scheduled = parse_scheduled_metrics(settings.online_metrics)
    file, stop, succeeded = CheckpointFile(run), StopRequest(), False
    read_every = finite_check_interval(device, settings)
    with _interruptible(run), torch.random.fork_rng(devices=_current_gpu()):
        try:
            while not succeeded:
                batch_size, every = settings.batch_size, settings.log_every
                meter = Meter(run, module.objective, batch_size=batch_size, every=every, loggers=loggers)
                callbacks: list[Callback] = [RunFiniteGuard(run, file, seed=settings.seed, every=read_every)]
                if online_eval is not None:  # before the meter, which writes its values
                    callbacks.append(OnlineMetrics(scheduled, online_eval, meter))
                callbacks.append(meter)
                if components.pair_filter is not None:  # before the checkpoints, which hold its scores
                    callbacks.append(AuditCallback(components.pair_filter, run))
                minutes, keep_every = settings.checkpoint_minutes, settings.keep_every
                callbacks.append(Checkpoints(run, file, minutes=minutes, keep_every=keep_every, stop=stop))
                if settings.profile and is_main_process():
                    callbacks.append(Profile(run))
                callbacks.append(progress_callback(console, meter))
                loop = _build_loop(components, settings, device, callbacks)
                loop.forward = forward
                if start.step > 0:
                    _restore(loop, run)
                try:
                    loop.run()
                    succeeded = True
                except NonFiniteEarlierStep:  # restart from the last checkpoint, and check each step before it is taken
                    read_every, start = 1, _go_back(run)
        except StreamError as error:
            remedy = f"; resume with: {run.resume_command}" if run.last_checkpoint.exists() else ""
            raise_on_one_rank(UsageError(f"{error}{remedy}"))
        finally:
            components.batches.close()
            close_loggers(loggers, run, succeeded=succeeded)
    if unsharded is not None:
        unsharded.load_state_dict(gather_state(module.model.state_dict()))
        module.model = unsharded
    return meter


def _build_loop(
    components: Components, settings: Settings, device: torch.device, callbacks: Sequence[Callback]
) -> Loop:
    """Return the loop before its first step, with a new optimizer."""
    optimizer = build_optimizer(settings, components.module, components.module.model.encoders)
    schedule = build_lr_schedule(
        optimizer,
        lr_scheduler=settings.lr_scheduler,
        steps=settings.epochs * components.steps_per_epoch,
        warmup=int(settings.warmup * components.steps_per_epoch),
    )
    return Loop(
        components.module,
        components.batches,
        optimizer,
        schedule,
        epochs=settings.epochs,
        device=device,
        grad_accum_steps=settings.grad_accum_steps,
        gradient_clip=settings.gradient_clip,
        amp=settings.amp,
        share=local_share(settings.batch_size),
        callbacks=callbacks,
    )


def finite_check_interval(device: torch.device, settings: Settings) -> int:
    """Return the number of steps between two finite checks: 1 on a CPU, where reading a number does not wait."""
    return 1 if device.type == "cpu" else settings.log_every


def _restore(loop: Loop, run: Run) -> None:
    """Restore the last checkpoint.

    Raises:
        UsageError: the checkpoint belongs to another training.
    """
    try:
        restore(loop, read_checkpoint(run.last_checkpoint))
    except Exception as error:  # a checkpoint of another training raises arbitrary exceptions
        message = (
            f"resume: {run.last_checkpoint} does not fit the run: {one_line_reason(error)}{checkpoint_remedy(run)}"
        )
        raise_on_one_rank(UsageError(message, kind="checkpoint"))


def _go_back(run: Run) -> Position:
    """Delete the metrics of steps after the last checkpoint, and return its position."""
    state = read_checkpoint(run.last_checkpoint)
    position = Position(state["epoch"], state["batch"], state["step"])
    with propagate_errors():
        if is_main_process():
            with run.writing():
                drop_metrics_after(run, position)
    return position


def _current_gpu() -> list[int]:
    return [torch.cuda.current_device()] if torch.cuda.is_available() else []


@contextmanager
def _interruptible(run: Run) -> Iterator[None]:
    """Turn a stop into a `KeyboardInterrupt` of the first process, with the command to resume."""
    message = f"stopped; the last checkpoint is kept. Resume: {run.resume_command}"
    try:
        with restored_signals():
            yield
    except TrainingStopped:
        raise_on_one_rank(KeyboardInterrupt(message), status=130)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(message) from interrupt
