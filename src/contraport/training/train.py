"""`train`: from the arguments to a run folder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from contraport._version import __version__
from contraport.data import Dataset, loader
from contraport.distributed import from_first, is_first, joined, together
from contraport.encoders import Model
from contraport.errors import UsageError
from contraport.runs import Run
from contraport.training.arguments import check_arguments, config_of, name_of, resumable
from contraport.training.build import load_data, make_objective, make_pipeline, steps_of_epoch
from contraport.training.loop.folder import Position, default_path, open_run, save_model
from contraport.training.loop.forecast import foretell
from contraport.training.loop.journal import journal
from contraport.training.loop.lock import locked
from contraport.training.loop.loggers import make_loggers
from contraport.training.loop.optimization import make_optimizer, make_schedule
from contraport.training.recipes import replaced, with_recipes
from contraport.training.step.gradient_cache import check_chunks

log = logging.getLogger("contraport.training")


@joined
@resumable
@with_recipes
def train(
    *,
    data: str | Path | torch.utils.data.Dataset[Any] | None = None,
    recipe: str | None = None,
    objective: str | nn.Module | None = "nt-xent",
    objective_settings: dict[str, Any] | None = None,
    temperature: float | str | None = None,
    constraint: str | None = None,
    negatives: str = "in-batch",
    queue_size: int | None = None,
    bank_negatives: int | None = None,
    momentum: float | str | None = None,
    predictor: bool = False,
    prototypes: int | None = None,
    predict: str | None = None,
    views: int | str | None = None,
    augment: str | None = None,
    encoder: list[str | nn.Module] | str | nn.Module | None = None,
    shared_encoder: bool | None = None,
    projection: int = 128,
    representation: str = "concatenate",
    epochs: int = 10,
    batch_size: int = 256,
    cache_chunk: int | None = None,
    accumulate: int = 1,
    opt: str = "adamw",
    lr: float | None = None,
    weight_decay: float = 1e-4,
    sched: str = "cosine",
    warmup_epochs: float | None = None,
    image_size: int | None = None,
    columns: dict[str, Any] | None = None,
    test_fraction: float | None = None,
    root: str | Path | None = None,
    workers: int | None = None,
    device: str = "auto",
    amp: bool = False,
    seed: int = 0,
    log_every: int = 10,
    logger: Sequence[str] = (),
    save_every: float = 10.0,
    keep_every: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    trust: bool = False,
    progress: bool = True,
) -> Run:
    """Train an encoder without labels and return its run folder.

    A step makes random views of a batch of items (`views`, `augment`), encodes and projects each (`encoder`,
    `projection`), and compares the embeddings (`objective`): those of one item are pulled together, against the rest
    of the batch and what `negatives`, `momentum`, `predictor` and `prototypes` put beside it. A `recipe` is a named
    choice of these. The folder holds `config.yaml`, `metrics.jsonl`, `checkpoints/`, `model/` and `train.log`. All that
    is random depends on `seed` alone. Ctrl-C stops a run; `resume` goes on and ends at the same weights, bit for bit on
    the CPU, as if it had never stopped.

    Args:
        data: what to train on: a name (see `contraport list data`); a folder of images, of tar shards or of a Hugging
            Face dataset; an .npz, .npy, .csv, .parquet or .tar file, or a pattern of tars; or any map-style Dataset.
        recipe: a named way to train (see `contraport list recipes`): settings that hold unless given here.
        objective: a name (see `contraport list objectives`), or a module that is called with the projections of two
            views. Of more than two views an objective for two takes the mean over all pairs, unless it takes them all,
            as cmc does.
        objective_settings: further settings of a named objective, such as ``{"iterations": 5}``.
        temperature: of a named objective, or its course over the training: start:end or start:end:shape, the shape
            cosine (default) or linear, such as 0.5:0.1:cosine; default: the objective's own.
        constraint: a course of the allowed plans: tighten:every=N, from rows only to balanced by 1, 2, 4 and 8
            iterations, each for N epochs; or relax:every=N, the reverse; default: the objective's own plan.
        negatives: what a query is compared with besides the batch: nothing (in-batch), the embeddings of earlier
            batches (queue), or some of a bank that keeps one for every item, the positive too (bank). Each view is then
            compared with each other in turn, and the mean is taken.
        queue_size: how many embeddings of each view the queue keeps; default: as many as there are items, at most
            65536.
        bank_negatives: how many are drawn from the bank at each step; default: as many as there are items, at most
            4096.
        momentum: how much of itself a second, slow network keeps at each step; it gives the embeddings that the others
            are compared with. A number below 1, such as 0.99, or a course, such as 0.99:1:cosine; the fewer steps, the
            smaller; default: no second network.
        predictor: put a head on the projections that predicts the other view's embedding, which is then held fixed.
        prototypes: compare with so many learned vectors instead: predict to which of them another view is assigned.
        predict: l1 or l2: compare nothing, and decode each view from each other with this error.
        views: how many random views of an item to make; or colour (lightness and colours of an RGB image); or
            multi-crop, which is 2+6: two large and six small crops; default: two, or all that the data give.
        augment: how views are changed at random: none, weak, standard, strong, noise or mixup; default: standard, or
            none where the data give several views.
        encoder: a name (see `contraport list encoders`), any timm name, `module:attribute` of your own, or a module of
            which a copy is trained; or a list of one per view; default: small-cnn for images, mlp for vectors,
            small-tcn for time series.
        shared_encoder: one encoder for all views rather than one each; default: where views are random changes of one.
        projection: features of the projection that the objective sees; 0: no projection, it sees the encoder's, as is
            so with `predict`.
        representation: what the trained model gives of several views: concatenate, or one of them by its number.
        epochs: passes over the data.
        batch_size: items in a batch, of all processes together; a smaller last batch is left out.
        cache_chunk: encode a batch in chunks of at most so many items, of all processes together, each computed twice:
            the gradient of the whole batch with the memory of a chunk. Batch norm sees one chunk at a time, the same
            chunks however many processes there are; default: all at once.
        accumulate: batches whose gradients are added up for one step. Unlike cache_chunk it adds no negatives.
        opt: optimiser, a name of timm's, such as adamw, sgd (with Nesterov's momentum) or lars.
        lr: peak learning rate; default: 0.001 for adamw and adam, 0.06 for sgd, 0.002 for lamb, 0.3 for lars; all suit
            256 items in a step. For more, multiply by items / 256 for sgd and lars, by its square root for the others.
        weight_decay: decay of weights; biases, norms and the temperature have none.
        sched: how the learning rate falls after warm-up: cosine, linear or constant.
        warmup_epochs: epochs, or a part of one, in which the learning rate rises; default: a tenth of `epochs`.
        image_size: side in pixels of the square that images become; default: see `contraport.data.load`.
        columns: of a table, the parts that its columns play: ``{"views": ["audio_*", "image"], "labels": "kind"}``,
            also "domains" and "split"; default: by their names and types.
        test_fraction: share of each class that is held out, to be measured on by `contraport evaluate`, where the data
            have no test split of their own; default: 0.2.
        root: folder of named data, as torchvision lays it out.
        workers: processes that fetch data; default: none for data in memory, else one per core but one.
        device: auto, cpu, cuda or mps.
        amp: compute in bfloat16 where that is safe (the objective stays in float32).
        seed: what all that is random depends on.
        log_every: steps between two rows of `metrics.jsonl`.
        logger: where the rows go too: tensorboard, mlflow, wandb, or several of them.
        save_every: minutes between two checkpoints within an epoch; 0 saves after every step.
        keep_every: epochs between two checkpoints that are kept beside the last; default: keep the last only.
        out: the run folder; default: runs/DATA-RECIPE or runs/DATA-OBJECTIVE.
        resume: go on with the run in `out`; what is left out comes from its `config.yaml`, and `epochs` may grow.
        overwrite: replace the run in `out`.
        trust: on resume, import and run the encoder that the run names as ``module:attribute``.
        progress: show a progress bar and a summary on the standard error.

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
    arguments = dict(locals())
    with together():
        check_arguments(arguments)
        if data is None:
            raise UsageError("data: expected a name, a folder, a file or a Dataset, got nothing.")
        criterion = make_objective(arguments)
        dataset = load_data(arguments)
        batches = loader(dataset, batch_size, shuffle=True, seed=seed, workers=workers, drop_last=True, shared=True)
        if cache_chunk is not None:
            check_chunks(batch_size, cache_chunk)
        epoch = steps_of_epoch(len(dataset), batch_size=batch_size, accumulate=accumulate)
        pipeline = make_pipeline(dataset, criterion, arguments, epoch=epoch)
        own = any(isinstance(one, nn.Module) for one in (encoder if isinstance(encoder, list) else [encoder]))
        path = out or default_path(dataset.name, recipe or name_of(objective or f"predict-{predict}"))
        run = Run(path, encoder if own else None)
        config = config_of(arguments)
        if not resume:
            run.check_free(overwrite=overwrite)
    with locked(run):
        with together():
            done = open_run(run, config, resume=resume, overwrite=overwrite) if is_first() else Position(0, 0, 0)
        done = from_first(done)

        # Here, not above: Lightning takes seconds to import, and a wrong argument should be told at once.
        from contraport.training.loop.fit import fit
        from contraport.training.loop.module import ContrastiveTask

        warmup = epochs / 10 if warmup_epochs is None else warmup_epochs
        task = ContrastiveTask(
            pipeline,
            batch_size=batch_size,
            make_optimizer=partial(make_optimizer, opt=opt, lr=lr, weight_decay=weight_decay),
            make_schedule=partial(make_schedule, sched=sched, steps=epochs * epoch, warmup=int(warmup * epoch)),
        )
        with journal(run, progress=progress) as console:
            _introduce(run, config, dataset, pipeline.model)
            foretell(dataset, arguments, pipeline.comparison, steps=epochs * epoch)
            meter = fit(
                task,
                batches,
                run,
                epochs=epochs,
                batch_size=batch_size,
                accumulate=accumulate,
                device=device,
                amp=amp,
                log_every=log_every,
                save_every=save_every,
                keep_every=keep_every,
                done=done,
                loggers=make_loggers(logger, run, config, step=done.step) if is_first() else [],
                console=console,
            )
            with together():
                if is_first():
                    save_model(pipeline.model, run, epochs=epochs)
            trained = meter.summary() if meter.steps else f"all {epochs} epochs were done before; more epochs go on"
            log.info("%s; the model is in %s", trained, run.model_path)
    return run


def _introduce(run: Run, config: dict[str, Any], dataset: Dataset, model: Model) -> None:
    shapes = ", ".join(" x ".join(str(side) for side in shape) for shape in model.shapes)
    weights = sum(parameter.numel() for parameter in model.parameters())
    what = config["recipe"] or config["objective"] or f"predict {config['predict']}"
    log.info("%s: %s on %s, %s items of %s", run.path, what, dataset.name, f"{len(dataset):,}", shapes)
    if others := replaced(config):
        log.info("the recipe's own %s gave way to yours", ", ".join(others))
    if config["accumulate"] > 1:
        log.warning(
            "accumulate: each of the %d batches of a step has its own negatives and its own plan; "
            "cache_chunk gives the gradient of one large batch.",
            config["accumulate"],
        )
    log.debug("contraport %s, torch %s, %s weights, %s", __version__, torch.__version__, f"{weights:,}", config)
    if dataset.skipped:
        log.debug("%d files left out: %s", len(dataset.skipped), ", ".join(dataset.skipped))
