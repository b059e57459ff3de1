"""`train`: from the arguments to a run folder."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from contraport._version import __version__
from contraport.data import Augment, Dataset, load, loader
from contraport.encoders import Model
from contraport.errors import UsageError, check
from contraport.objectives import objective as named_objective
from contraport.runs import Run
from contraport.training.arguments import check_arguments, config_of, name_of, resumable
from contraport.training.folder import last_checkpoint, open_run, save_model
from contraport.training.journal import journal
from contraport.training.optimization import make_optimizer, make_schedule

log = logging.getLogger("contraport.training")


@resumable
def train(
    *,
    data: str | Path | Dataset | None = None,
    objective: str | nn.Module = "nt-xent",
    objective_settings: dict[str, Any] | None = None,
    temperature: float | None = None,
    encoder: str | None = None,
    projection: int = 128,
    epochs: int = 10,
    batch_size: int = 256,
    opt: str = "adamw",
    lr: float | None = None,
    weight_decay: float = 1e-4,
    sched: str = "cosine",
    warmup_epochs: float | None = None,
    augment: str = "standard",
    image_size: int | None = None,
    root: str | Path | None = None,
    workers: int | None = None,
    device: str = "auto",
    amp: bool = False,
    seed: int = 0,
    log_every: int = 10,
    keep_every: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> Run:
    """Train an encoder without labels and return its run folder.

    Each item is augmented twice, both views are encoded and projected, and the objective pulls each pair together
    against the rest of the batch. The folder holds `config.yaml`, `metrics.jsonl`, `checkpoints/`, `model/` and
    `train.log`. All that is random depends on `seed` alone. Ctrl-C stops a run; `resume` goes on after its last whole
    epoch and ends at the same weights, bit for bit on the CPU, as if it had never stopped.

    Args:
        data: what to train on: a name (see `contraport list data`), a folder of images, an .npz file, or a Dataset.
        objective: a name (see `contraport list objectives`), or a module that is called with the two projections.
        objective_settings: further settings of a named objective, such as ``{"iterations": 5}``.
        temperature: of a named objective; default: the objective's own.
        encoder: a name (see `contraport list encoders`), any timm name, or `module:attribute` of your own; default:
            small-cnn for images, mlp for vectors.
        projection: features of the projection that the objective sees.
        epochs: passes over the data.
        batch_size: items in a step; a smaller last batch is left out.
        opt: optimiser, a name of timm's.
        lr: peak learning rate; default: 0.001 for adamw and adam, 0.06 for sgd, 0.002 for lamb, 0.3 for lars.
        weight_decay: decay of weights; biases, norms and the temperature have none.
        sched: how the learning rate falls after warm-up: cosine, linear or constant.
        warmup_epochs: epochs, or a part of one, in which the learning rate rises; default: a tenth of `epochs`.
        augment: how far the two views of an item differ: weak, standard or strong.
        image_size: side in pixels of the square that images become; default: see `contraport.data.load`.
        root: folder of named data, as torchvision lays it out.
        workers: processes that fetch data; default: none for data in memory, else one per core but one.
        device: auto, cpu, cuda or mps.
        amp: compute in bfloat16 where that is safe (the objective stays in float32).
        seed: what all that is random depends on.
        log_every: steps between two rows of `metrics.jsonl`.
        keep_every: epochs between two checkpoints that are kept beside the last; default: keep the last only.
        out: the run folder; default: runs/DATA-OBJECTIVE.
        resume: go on with the run in `out`; what is left out comes from its `config.yaml`, and `epochs` may grow.
        overwrite: replace the run in `out`.
        progress: show a progress bar and a summary on the standard error.

    Raises:
        UsageError: a wrong argument; nothing was written or lost.
        FloatingPointError: the loss or its gradient was not finite; `nonfinite.json` tells where.
        KeyboardInterrupt: Ctrl-C; the message says how to go on.

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
    check_arguments(arguments)
    if data is None:
        raise UsageError("data: expected a name, a folder of images, an .npz file or a Dataset, got nothing.")
    criterion = _objective(objective, objective_settings, temperature)
    dataset = load(data, "train", root=root, image_size=image_size)
    check(
        len(set(dataset.shapes)) == 1,
        f"data: the views of {dataset.name!r} have different shapes, {dataset.shapes}; expected one shape.",
    )
    views = Augment(dataset, strength=augment)
    model = _model(encoder, dataset, projection, seed)
    batches = loader(dataset, batch_size, shuffle=True, seed=seed, workers=workers, drop_last=True)
    run = Run(out or f"runs/{Path(dataset.name).stem}-{name_of(objective)}")
    config = config_of(arguments)
    done = open_run(run, config, resume=resume, overwrite=overwrite)

    # Here, not above: Lightning takes seconds to import, and a wrong argument should be told at once.
    from contraport.training.task import ContrastiveTask
    from contraport.training.trainer import fit

    warmup = epochs / 10 if warmup_epochs is None else warmup_epochs
    task = ContrastiveTask(
        model,
        criterion,
        views,
        seed=seed,
        make_optimizer=partial(make_optimizer, opt=opt, lr=lr, weight_decay=weight_decay),
        make_schedule=partial(
            make_schedule, sched=sched, steps=epochs * len(batches), warmup=int(warmup * len(batches))
        ),
    )
    with journal(run, progress=progress) as console:
        _introduce(run, config, dataset, model)
        meter = fit(
            task,
            batches,
            run,
            epochs=epochs,
            device=device,
            amp=amp,
            log_every=log_every,
            keep_every=keep_every,
            checkpoint=last_checkpoint(run) if done.epoch > 0 else None,
            console=console,
        )
        save_model(model, run)
        trained = meter.summary() if meter.steps else f"all {epochs} epochs were done before; more epochs go on"
        log.info("%s; the model is in %s", trained, run.model_path)
    return run


def _objective(objective: str | nn.Module, settings: dict[str, Any] | None, temperature: float | None) -> nn.Module:
    if isinstance(objective, nn.Module):
        check(temperature is None, "temperature: belongs to a named objective; set it on the module.")
        check(not settings, "objective_settings: belong to a named objective; set them on the module.")
        return objective
    chosen = dict(settings or {})
    if temperature is not None:
        check("temperature" not in chosen, "temperature: given twice, by itself and in objective_settings.")
        chosen["temperature"] = temperature
    return named_objective(objective, **chosen)


def _model(encoder: str | None, dataset: Dataset, projection: int, seed: int) -> Model:
    mean, std = dataset.statistics()
    default = "small-cnn" if dataset.is_image else "mlp"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(encoder or default, shape=dataset.shapes[0], projection=projection, mean=mean, std=std)


def _introduce(run: Run, config: dict[str, Any], dataset: Dataset, model: Model) -> None:
    shape = " x ".join(str(side) for side in dataset.shapes[0])
    weights = sum(parameter.numel() for parameter in model.parameters())
    log.info("%s: %s on %s, %s items of %s", run.path, config["objective"], dataset.name, f"{len(dataset):,}", shape)
    log.debug("contraport %s, torch %s, %s weights, %s", __version__, torch.__version__, f"{weights:,}", config)
    if dataset.skipped:
        log.debug("%d files left out: %s", len(dataset.skipped), ", ".join(dataset.skipped))
