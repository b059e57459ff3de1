"""Lightning's trainer, tamed: it writes where we say, says nothing of its own, and lets signals through."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy
from rich.console import Console

from contraport.data import BatchOrder
from contraport.data.loading import Loader, StreamLoader
from contraport.data.streams import StreamBroke
from contraport.distributed import machines, raise_once
from contraport.errors import UsageError, reason
from contraport.measures.monitoring import parse_watches
from contraport.runs import Run
from contraport.training.loop.batch_norm import share_batch_norm
from contraport.training.loop.checkpoints import CheckpointFile, Checkpoints
from contraport.training.loop.finite import FiniteGuard
from contraport.training.loop.looking import Looking
from contraport.training.loop.marked import Marked
from contraport.training.loop.meter import Meter, TimedLoader
from contraport.training.loop.module import ContrastiveModule
from contraport.training.loop.monitor import Monitor
from contraport.training.loop.opening import Position, without_checkpoint
from contraport.training.loop.progress import progress_on
from contraport.training.loop.signals import Stopped, StopRequest, signals_kept
from contraport.training.step.auditor import Auditor
from contraport.training.step.pipeline import Pipeline
from contraport.verbs.train import Settings

if TYPE_CHECKING:
    from contraport.measures.subject import Subject

_KNOWN_WHOLE = ("contraport", "torch")
_ACCELERATORS = {"cuda": "gpu"}  # what Lightning calls otherwise than we do


def fit(
    module: ContrastiveModule,
    batches: Loader | StreamLoader,
    run: Run,
    settings: Settings,
    *,
    done: Position,
    loggers: Sequence[Logger],
    console: Console,
    monitored: Callable[[torch.device], Subject] | None = None,
    auditor: Auditor | None = None,
    mark: str | None = None,
) -> Meter:
    """Train until all epochs are done, from the last checkpoint where some steps are, and return what was measured.

    `monitored` is what `monitor` measures, on a device; `mark` tells the items from others.

    Raises:
        FloatingPointError: the loss or its gradient is not finite.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the message says how to go on.
        UsageError: a file of the run cannot be written.
    """
    cast(BatchOrder, batches.batch_sampler).begin_at(epoch=done.epoch, batch=done.batch)
    loader = TimedLoader(batches)
    meter = Meter(run, loader, batch_size=settings.batch_size, every=settings.log_every)
    file, stop = CheckpointFile(run), StopRequest()
    callbacks = [
        FiniteGuard(run, file, seed=settings.seed),
        Marked(mark),
        *([] if monitored is None else [Monitor(parse_watches(settings.monitor), monitored, meter)]),
        meter,
        *([] if auditor is None else [Looking(auditor, run)]),
        Checkpoints(run, file, minutes=settings.save_every, keep_every=settings.keep_every, stop=stop),
        progress_on(console, meter),
    ]
    with _quiet(), _interruptible(run), torch.random.fork_rng(devices=_current_gpu()):
        trainer = Trainer(
            max_epochs=settings.epochs,
            accumulate_grad_batches=settings.accumulate,
            accelerator=_ACCELERATORS.get(settings.device, settings.device),
            **_processes(file, module),
            precision="bf16-mixed" if settings.amp else "32-true",
            callbacks=callbacks,
            default_root_dir=run.path,
            logger=loggers,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        if trainer.world_size > 1:
            share_batch_norm(module, trainer.strategy.root_device)
        try:
            trainer.fit(module, loader, ckpt_path=run.last_checkpoint if done.step else None, weights_only=True)
        except StreamBroke as error:
            gone = f"; go on with: {run.resuming}" if run.last_checkpoint.exists() else ""
            raise_once(UsageError(f"{error}{gone}"))
        except Exception as error:  # a checkpoint of another training fits in no one way
            if done.step == 0 or meter.started or isinstance(error, UsageError):
                raise
            told = f"resume: {run.last_checkpoint} does not fit its run: {reason(error)}{without_checkpoint(run)}"
            raise_once(UsageError(told))
        finally:
            batches.close()
    return meter


def _processes(file: CheckpointFile, module: ContrastiveModule) -> Mapping[str, Any]:
    here, nodes = machines()
    if here * nodes == 1:
        # Named, so that within a Slurm job Lightning does not take the job's tasks for processes of this training.
        return {"devices": 1, "plugins": [file, LightningEnvironment()]}
    # All processes make the same buffers (statistics, queue, bank). Our parts have no parameter without a gradient.
    strategy = DDPStrategy(broadcast_buffers=False, find_unused_parameters=_may_lack_gradients(module.pipeline))
    return {
        "devices": here,
        "num_nodes": nodes,
        "strategy": strategy,
        "use_distributed_sampler": False,  # the loader knows of the processes
        "plugins": [file, TorchElasticEnvironment()],
    }


def _may_lack_gradients(pipeline: Pipeline) -> bool:
    """Return whether a step may leave out weights that learn: those held at first, or of others' parts than torch's."""
    for_some_steps = pipeline.freezing is not None and pipeline.freezing.steps is not None
    return for_some_steps or any(
        type(module).__module__.partition(".")[0] not in _KNOWN_WHOLE
        and any(weights.requires_grad for weights in module.parameters())
        for module in pipeline.modules()
    )


def _current_gpu() -> list[int]:
    return [torch.cuda.current_device()] if torch.cuda.is_available() else []


@contextmanager
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\.")
            warnings.filterwarnings("ignore", module=r"torch\.utils\._pytree")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _interruptible(run: Run) -> Iterator[None]:
    """Tell, once, how to go on after a stop; and undo what Lightning makes of Ctrl-C, after which it exits."""
    message = f"stopped; what the last checkpoint holds is kept. Go on with: {run.resuming}"
    try:
        with signals_kept():
            yield
    except Stopped:
        raise_once(KeyboardInterrupt(message), status=130)
    except SystemExit as stop:
        if not isinstance(stop.__context__, KeyboardInterrupt):
            raise
        raise KeyboardInterrupt(message) from stop
