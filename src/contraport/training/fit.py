"""The loop of a run: restored from its last checkpoint, with all callbacks that a run folder has."""

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
from contraport.training.parallel import parallel, resolve_device
from contraport.training.restore import checkpoint_remedy, drop_metrics_after, read_checkpoint, restore
from contraport.training.sharding import whole
from contraport.training.signals import Stopped, StopRequest, restored_signals

if TYPE_CHECKING:
    from contraport.metrics.eval_context import EvalContext


def fit(
    built: Components,
    run: Run,
    settings: Settings,
    *,
    done: Position,
    loggers: Sequence[Logger],
    console: Console,
    monitored: Callable[[torch.device], EvalContext] | None = None,
) -> Meter:
    """Train until all epochs are done, from the last checkpoint if some steps are, and return the meter.

    Args:
        built: the parts of the training.
        run: the folder.
        settings: of the training.
        done: the progress so far.
        loggers: to which the rows of metrics go too.
        console: on which the progress is shown.
        monitored: makes what `online_metrics` measures, on a device.

    Raises:
        FloatingPointError: the loss or its gradient is not finite.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the message says how to go on.
        UsageError: a file of the run cannot be written.
    """
    device, pipeline = resolve_device(settings.device), built.pipeline
    pipeline.to(device)
    if settings.compile:
        for model in pipeline.encoding():
            compile_encoders(model)
    unsharded = copy.deepcopy(pipeline.model).cpu() if settings.strategy == "fsdp" else None
    forward = parallel(pipeline, device, settings.strategy)
    file, stop, succeeded = CheckpointFile(run), StopRequest(), False
    read_every = finite_check_interval(device, settings)
    with _interruptible(run), torch.random.fork_rng(devices=_current_gpu()):
        try:
            while not succeeded:
                meter = Meter(
                    run,
                    pipeline.objective,
                    batch_size=settings.batch_size,
                    every=settings.log_every,
                    loggers=loggers,
                )
                callbacks = [
                    RunFiniteGuard(run, file, seed=settings.seed, every=read_every),
                    *(
                        []
                        if monitored is None
                        else [OnlineMetrics(parse_scheduled_metrics(settings.online_metrics), monitored, meter)]
                    ),
                    meter,
                    *([] if built.auditor is None else [AuditCallback(built.auditor, run)]),
                    Checkpoints(
                        run, file, minutes=settings.checkpoint_minutes, keep_every=settings.keep_every, stop=stop
                    ),
                    *([Profile(run)] if settings.profile and is_main_process() else []),
                    progress_callback(console, meter),
                ]
                loop = _build_loop(built, settings, device, callbacks)
                loop.forward = forward
                if done.step > 0:
                    _restore(loop, run)
                try:
                    loop.run()
                    succeeded = True
                except (
                    NonFiniteEarlierStep
                ):  # back to the last checkpoint; from there each step is checked before it is taken
                    read_every, done = 1, _go_back(run)
        except StreamError as error:
            remedy = f"; go on with: {run.resuming}" if run.last_checkpoint.exists() else ""
            raise_on_one_rank(UsageError(f"{error}{remedy}"))
        finally:
            built.batches.close()
            close_loggers(loggers, run, succeeded=succeeded)
    if unsharded is not None:
        unsharded.load_state_dict(whole(pipeline.model.state_dict()))
        pipeline.model = unsharded
    return meter


def _build_loop(built: Components, settings: Settings, device: torch.device, callbacks: Sequence[Callback]) -> Loop:
    """Return the loop of a training at its beginning, with a new optimizer."""
    optimizer = build_optimizer(settings, built.pipeline, built.pipeline.model.encoders)
    schedule = build_lr_schedule(
        optimizer,
        lr_scheduler=settings.lr_scheduler,
        steps=settings.epochs * built.epoch,
        warmup=int(settings.warmup * built.epoch),
    )
    return Loop(
        built.pipeline,
        built.batches,
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
    """Return how often the finite guard reads its numbers; a CPU has them at once, so reading them costs nothing."""
    return 1 if device.type == "cpu" else settings.log_every


def _restore(loop: Loop, run: Run) -> None:
    """Put the training where the last checkpoint was written.

    Raises:
        UsageError: the checkpoint is of another training.
    """
    try:
        restore(loop, read_checkpoint(run.last_checkpoint))
    except Exception as error:  # a checkpoint of another training fits in no one way
        message = (
            f"resume: {run.last_checkpoint} does not fit its run: {one_line_reason(error)}{checkpoint_remedy(run)}"
        )
        raise_on_one_rank(UsageError(message))


def _go_back(run: Run) -> Position:
    """Remove the rows of steps after the last checkpoint, and return its position."""
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
    """Say, once, how to resume after a stop."""
    message = f"stopped; what the last checkpoint holds is kept. Go on with: {run.resuming}"
    try:
        with restored_signals():
            yield
    except Stopped:
        raise_on_one_rank(KeyboardInterrupt(message), status=130)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(message) from interrupt
