"""Runs the training loop with all callbacks, from the last checkpoint on."""

from __future__ import annotations

import copy
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, cast

import torch
from rich.console import Console

from contraport.data.streams import StreamReadError
from contraport.distributed import is_main_process, raise_on_one_rank, stop_all_on_error
from contraport.engine import exchange
from contraport.errors import UsageError
from contraport.runs import WritableRun
from contraport.seeding import fork_rng_locked_at_ends
from contraport.training.callbacks.checkpoints import (
    STOP_SIGNALS,
    CheckpointAndStopCallback,
    StopRequest,
    TrainingStopped,
    read_resume_position_or_zero,
    restore_last_checkpoint,
)
from contraport.training.callbacks.early_stopping import EarlyStopping, list_scheduled_metrics
from contraport.training.callbacks.finite_guard import PeriodicFiniteGuard, RestartFromLastCheckpoint
from contraport.training.callbacks.loggers import Logger, close_loggers
from contraport.training.callbacks.metrics_writer import MetricsWriter
from contraport.training.callbacks.profiler import ProfilerCallback
from contraport.training.callbacks.progress_display import ProgressBar, ProgressLines
from contraport.training.components.assembly import TrainingComponents
from contraport.training.components.model_builder import compile_encoders
from contraport.training.config import Settings
from contraport.training.data_parallelism import gather_sharded_state, resolve_available_device, wrap_data_parallel
from contraport.training.epoch_end_training_metrics import EpochEndMetrics
from contraport.training.loop import Callback, Loop, Position
from contraport.training.optimization import build_loop
from contraport.training.settings_and_run_folder import drop_metrics_after


def run_training_loop(
    components: TrainingComponents,
    run: WritableRun,
    settings: Settings,
    *,
    start: Position,
    loggers: Sequence[Logger],
    console: Console,
    epoch_end_metrics: EpochEndMetrics | None = None,
) -> tuple[Loop, MetricsWriter]:
    """Train from the last checkpoint to the end of the training.

    Raises:
        FloatingPointError: the loss or its gradient is not finite.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the message has the command to resume.
        UsageError: a file of the run cannot be written.
    """
    device, module = resolve_available_device(settings.device), components.module
    module.to(device)
    if settings.compile:
        compile_encoders(module.list_all_encoders())
    # FSDP replaces parameters in place. The copy, made before, receives the gathered weights at the end.
    unsharded = copy.deepcopy(module.model).cpu() if settings.strategy == "fsdp" else None
    loss_callable = wrap_data_parallel(module, device, settings.strategy)
    stop, succeeded = StopRequest(), False
    check_every = choose_finite_check_interval(device, settings)
    batch_size, log_every = settings.batch_size, settings.log_every
    batches, steps_per_epoch = components.batches, components.steps_per_epoch
    gpus = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    # Each step seeds torch's global generators; the fork returns them to the caller unchanged.
    with _advise_resume_on_interruption(run), fork_rng_locked_at_ends(gpus):
        try:
            # Repeated once if a step was found not finite too late: from the last checkpoint, as in a resumed run, with
            # a new optimizer, schedule and callbacks. The weights are restored in place, so the wrapper stays.
            while not succeeded:
                metrics_writer = MetricsWriter(
                    run,
                    module.objective,
                    batch_size=batch_size,
                    steps_per_row=log_every,
                    loggers=loggers,
                    compute_epoch_end_values=None
                    if epoch_end_metrics is None
                    else epoch_end_metrics.compute_values_due,
                )
                # The guard is first: it raises before another callback counts the step.
                callbacks = [
                    PeriodicFiniteGuard(run, seed=settings.seed, steps_between_checks=check_every),
                    *_build_callbacks(components, run, settings, metrics_writer, stop),
                    (ProgressBar if console.is_terminal else ProgressLines)(console, metrics_writer),
                ]
                loop = build_loop(settings, module, batches, device, callbacks, steps_per_epoch=steps_per_epoch)
                loop.loss_callable = loss_callable
                if start.step > 0:
                    restore_last_checkpoint(loop, run)
                stop.install_signal_handlers()
                try:
                    with exchange(cast(Literal["gather", "ring"], settings.exchange)):
                        loop.run()
                    succeeded = True
                except RestartFromLastCheckpoint:  # and check each step before it is taken
                    check_every, start = 1, read_resume_position_or_zero(run)
                    with stop_all_on_error(), run.translate_write_errors():
                        if is_main_process():
                            drop_metrics_after(run, start)
        finally:
            batches.close()  # loading processes would outlive an exception
            close_loggers(loggers, run, succeeded=succeeded)
    if unsharded is not None:
        unsharded.load_state_dict(gather_sharded_state(module.model.state_dict()))
        module.model = unsharded
    return loop, metrics_writer


def _build_callbacks(
    components: TrainingComponents, run: WritableRun, settings: Settings, writer: MetricsWriter, stop: StopRequest
) -> list[Callback]:
    """Build the callbacks that the settings choose, in the order of their calls."""
    metrics = [metric for metric, _ in list_scheduled_metrics(settings)]
    early_stopping = EarlyStopping(settings.early_stopping, writer, metrics)
    callbacks: list[Callback] = [writer, early_stopping]
    if components.audit_callback is not None:  # before the checkpoints, which hold its scores
        components.audit_callback.run_folder = run
        callbacks.append(components.audit_callback)
    if components.negative_miner is not None:  # before the checkpoints, which hold its negatives
        callbacks.append(components.negative_miner)
    minutes, epochs = settings.checkpoint_minutes, settings.keep_every
    callbacks.append(CheckpointAndStopCallback(run, minutes_between=minutes, epochs_between_kept=epochs, stop=stop))
    if settings.profile and is_main_process():
        callbacks.append(ProfilerCallback(run))
    return callbacks


def choose_finite_check_interval(device: torch.device, settings: Settings) -> int:
    """Return the number of steps between two checks for finite losses.

    It is 1 on a CPU and `log_every` on a GPU. Reading a number from a GPU waits for all queued work; on a CPU it is
    free.
    """
    return 1 if device.type == "cpu" else settings.log_every


@contextmanager
def _advise_resume_on_interruption(run: WritableRun) -> Iterator[None]:
    """Context manager that adds the resume command to the error of a stopped training.

    On exit it restores the signal handlers, which `StopRequest` replaces.
    """

    def message() -> str:
        if run.last_checkpoint.exists():
            return f"stopped; the last checkpoint is kept. Resume: {run.resume_advice}"
        return f"stopped before the first checkpoint. Start from the first step: {run.resume_advice}"

    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    except TrainingStopped:
        raise_on_one_rank(KeyboardInterrupt(message()), status=130)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(message()) from interrupt
    except StreamReadError as error:
        remedy = f"; resume with: {run.resume_advice}" if run.last_checkpoint.exists() else ""
        raise_on_one_rank(UsageError(f"{error}{remedy}"))
    finally:  # Python allows handlers in the main thread only
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
