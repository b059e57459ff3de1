"""Runs the training loop in a run folder, from its last checkpoint on and with all callbacks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from contraport.data import local_share
from contraport.data.streams import StreamReadError
from contraport.distributed import is_main_process, propagate_errors, raise_on_one_rank
from contraport.errors import UsageError, one_line_reason
from contraport.metrics.registry import parse_scheduled_metrics
from contraport.runs import Run
from contraport.training.callbacks import (
    AuditCallback,
    Checkpoints,
    CheckpointWriter,
    FailedStepRecorder,
    Meter,
    NonFiniteEarlierStep,
    OnlineMetrics,
    ProfilerCallback,
    progress_callback,
)
from contraport.training.callbacks.loggers import Logger, close_loggers
from contraport.training.components import Components
from contraport.training.components.model_builder import compile_encoders
from contraport.training.config import Settings
from contraport.training.distributed_setup import select_training_device, wrap_data_parallel
from contraport.training.loop import Callback, Loop, Position
from contraport.training.optimization import build_lr_schedule, build_optimizer
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
    device, module = select_training_device(settings.device), components.module
    module.to(device)
    if settings.compile:
        for model in module.encoding_models():
            compile_encoders(model)
    # FSDP replaces parameters in place. The copy, made before, receives the gathered weights at the end.
    unsharded = copy.deepcopy(module.model).cpu() if settings.strategy == "fsdp" else None
    forward = wrap_data_parallel(module, device, settings.strategy)
    scheduled = parse_scheduled_metrics(settings.online_metrics)
    file, stop, succeeded = CheckpointWriter(run), StopRequest(), False
    read_every = finite_check_interval(device, settings)
    # Each step seeds torch's global generators; the fork returns them to the caller unchanged.
    with _interruptible(run), torch.random.fork_rng(devices=_current_gpu()):
        try:
            # Repeated once if a step was found not finite too late: from the last checkpoint, as in a resumed run, with
            # a new optimizer, schedule and callbacks. The weights are restored in place, so the wrapper stays.
            while not succeeded:
                batch_size, every = settings.batch_size, settings.log_every
                meter = Meter(run, module.objective, batch_size=batch_size, every=every, loggers=loggers)
                # First: raises before another callback counts the step.
                callbacks: list[Callback] = [FailedStepRecorder(run, file, seed=settings.seed, every=read_every)]
                if online_eval is not None:  # before the meter, which writes its values
                    callbacks.append(OnlineMetrics(scheduled, online_eval, meter))
                callbacks.append(meter)
                if components.pair_filter is not None:  # before the checkpoints, which hold its scores
                    callbacks.append(AuditCallback(components.pair_filter, run))
                minutes, keep_every = settings.checkpoint_minutes, settings.keep_every
                callbacks.append(Checkpoints(run, file, minutes=minutes, keep_every=keep_every, stop=stop))
                if settings.profile and is_main_process():
                    callbacks.append(ProfilerCallback(run))
                callbacks.append(progress_callback(console, meter))
                loop = _build_loop(components, settings, device, callbacks)
                loop.loss_module = forward
                if start.step > 0:
                    _restore(loop, run)
                try:
                    loop.run()
                    succeeded = True
                except NonFiniteEarlierStep:  # restart from the last checkpoint, and check each step before it is taken
                    read_every, start = 1, _go_back(run)
        except StreamReadError as error:
            remedy = f"; resume with: {run.resume_command}" if run.last_checkpoint.exists() else ""
            raise_on_one_rank(UsageError(f"{error}{remedy}"))
        finally:
            components.batches.close()  # loading processes would outlive an exception
            close_loggers(loggers, run, succeeded=succeeded)
    if unsharded is not None:
        unsharded.load_state_dict(gather_state(module.model.state_dict()))
        module.model = unsharded
    return meter


def _build_loop(
    components: Components, settings: Settings, device: torch.device, callbacks: Sequence[Callback]
) -> Loop:
    """Build the training loop with a new optimizer and learning rate schedule."""
    optimizer = build_optimizer(settings, components.module, components.module.model.encoders)
    schedule = build_lr_schedule(
        optimizer,
        lr_scheduler=settings.lr_scheduler,
        steps=settings.epochs * components.steps_per_epoch,
        warmup=int(settings.num_warmup_epochs * components.steps_per_epoch),
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
    """Return the number of steps between two checks that the loss is finite: 1 on a CPU, `log_every` on a GPU.

    Reading a number from a GPU waits for all queued work; on a CPU it is free.
    """
    return 1 if device.type == "cpu" else settings.log_every


def _restore(loop: Loop, run: Run) -> None:
    """Restore the last checkpoint of a run into a training loop.

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
    """Delete the metrics of steps after the last checkpoint, and return the position of the checkpoint."""
    state = read_checkpoint(run.last_checkpoint)
    position = Position(state["epoch"], state["batch"], state["step"])
    with propagate_errors():
        if is_main_process():
            with run.translate_write_errors():
                drop_metrics_after(run, position)
    return position


def _current_gpu() -> list[int]:
    return [torch.cuda.current_device()] if torch.cuda.is_available() else []


@contextmanager
def _interruptible(run: Run) -> Iterator[None]:
    """Context manager: convert a stop to a `KeyboardInterrupt` whose message has the command that resumes the run."""
    message = f"stopped; the last checkpoint is kept. Resume: {run.resume_command}"
    try:
        with restored_signals():
            yield
    except TrainingStopped:
        raise_on_one_rank(KeyboardInterrupt(message), status=130)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(message) from interrupt
