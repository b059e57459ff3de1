"""`train`: from the settings to a run folder."""

from __future__ import annotations

import logging
from typing import Any

import torch

from contraport._version import __version__
from contraport.data import Dataset
from contraport.distributed import from_first, is_first, joined, together
from contraport.encoders import Model
from contraport.runs import Run, default_path
from contraport.runs.options import keywords_of
from contraport.runs.settings import Settings
from contraport.training.build import Built, build, check_parts
from contraport.training.given import settings_of
from contraport.training.loop.forecast import foretell
from contraport.training.loop.journal import journal
from contraport.training.loop.lock import locked
from contraport.training.loop.loggers import make_loggers
from contraport.training.loop.opening import Position, open_run, replacing_run
from contraport.training.recipes import replaced

log = logging.getLogger("contraport.training")


@keywords_of(Settings)
def train(given: dict[str, Any]) -> Run:
    """Train an encoder without labels and return its run folder.

    A step makes random views of a batch of items (`views`, `augment`), encodes and projects each (`encoder`,
    `projection`), and compares the embeddings (`objective`): those of one item are pulled together, against the rest
    of the batch and what `negatives`, `momentum`, `predictor` and `prototypes` put beside it. A `recipe` is a named
    choice of these. The folder holds `config.yaml`, `metrics.jsonl`, `checkpoints/`, `model/` and `train.log`. All that
    is random depends on `seed` alone. Ctrl-C stops a run; `resume` goes on and ends at the same weights, bit for bit on
    the CPU, as if it had never stopped.

    Raises:
        UsageError: a wrong argument; nothing was written or lost.
        FloatingPointError: the loss or its gradient was not finite; `nonfinite.json` tells where, and
            `contraport.training.replay` computes the step again.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the message says how to go on.

    >>> import tempfile
    >>> import numpy as np
    >>> from contraport.data import from_arrays
    >>> vectors = from_arrays(np.random.default_rng(0).normal(size=(64, 8)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train(data=vectors, epochs=1, batch_size=32, out=f"{folder}/run", progress=False)
    ...     [row["step"] for row in run.metrics()]
    [2]
    """
    with joined(given.get("device", "auto")):
        with together():
            settings = settings_of(given)
            check_parts(settings)
            built = build(settings)
            path = settings.out or default_path(built.dataset.name, settings.method)
            run = Run(path, settings.own_encoder)
            if not settings.resume:
                run.check_free(overwrite=settings.overwrite)
        with locked(run), replacing_run(run):
            with together():
                done = open_run(run, settings) if is_first() else Position(0, 0, 0)
            _fit(settings, built, run, from_first(done))
    return run


def _fit(settings: Settings, built: Built, run: Run, done: Position) -> None:
    # Here, not above: Lightning takes seconds to import, and a wrong argument should be told at once.
    from contraport.training.loop.fit import fit
    from contraport.training.loop.module import ContrastiveModule

    model, steps = built.pipeline.model, settings.epochs * built.epoch
    module = ContrastiveModule(built.pipeline, settings, steps=steps, warmup=int(settings.warmup * built.epoch))
    with journal(run, progress=settings.progress) as console:
        _introduce(run, settings, built.dataset, model)
        foretell(settings, built.dataset, built.pipeline.comparison, steps=steps)
        loggers = make_loggers(settings.logger, run, settings.kept(), step=done.step) if is_first() else []
        meter = fit(module, built.batches, run, settings, done=done, loggers=loggers, console=console)
        with together():
            if is_first():
                run.save_model(model, epochs=settings.epochs)
        ended = f"all {settings.epochs} epochs were done before; more epochs go on"
        log.info("%s; the model is in %s", meter.summary() if meter.steps else ended, run.model_path)


def _introduce(run: Run, settings: Settings, dataset: Dataset, model: Model) -> None:
    shapes = ", ".join(" x ".join(str(side) for side in shape) for shape in model.shapes)
    weights = sum(parameter.numel() for parameter in model.parameters())
    log.info("%s: %s on %s, %s items of %s", run.path, settings.method, dataset.name, f"{len(dataset):,}", shapes)
    if run.replaced_path.exists():
        log.info("the run that this one replaces is in %s until the first checkpoint", run.replaced_path)
    if others := replaced(settings):
        log.info("the recipe's own %s gave way to yours", ", ".join(others))
    if settings.accumulate > 1:
        log.warning(
            "accumulate: each of the %d batches of a step has its own negatives and its own plan; "
            "cache_chunk gives the gradient of one large batch.",
            settings.accumulate,
        )
    log.debug(
        "contraport %s, torch %s, %s weights, %s", __version__, torch.__version__, f"{weights:,}", settings.kept()
    )
    if dataset.skipped:
        log.debug("%d files left out: %s", len(dataset.skipped), ", ".join(dataset.skipped))
