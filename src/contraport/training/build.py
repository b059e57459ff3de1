"""From the settings of a training to its parts: data set, batches, objective, networks, pipeline, steps of an epoch.

Here alone they are made, for `contraport.train`, its replay, the evaluation of its run and the estimators.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader

from contraport.data import Batch, Dataset, Views, load, loader
from contraport.distributed import local
from contraport.encoders import Model
from contraport.encoders.model import Encoders
from contraport.errors import UsageError, check
from contraport.objectives import Loss, Objective, Temperature, objective
from contraport.objectives.schedules import Schedule, parse_constraint
from contraport.runs.settings import Settings
from contraport.training.loop.loggers import check_loggers
from contraport.training.loop.optimization import check_optimizer
from contraport.training.step.comparison import Clustered, Comparison, InTurn, Reconstructed, Together, takes_several
from contraport.training.step.gradient_cache import check_chunks
from contraport.training.step.memory import Bank, Memory, Queue
from contraport.training.step.momentum import Momentum, MomentumTarget, Predictor
from contraport.training.step.pipeline import Pipeline, keyed

LARGEST_QUEUE = 65_536
LARGEST_DRAW = 4_096


class Built(NamedTuple):
    """What a training is made of.

    Attributes:
        dataset: what is trained on.
        batches: gives its items.
        pipeline: makes the loss of a batch.
        epoch: how many steps one has.
    """

    dataset: Dataset
    batches: DataLoader[Batch]
    pipeline: Pipeline
    epoch: int


def build(settings: Settings) -> Built:
    """Return what the settings say; torch's random state stays as it is.

    Raises:
        UsageError: settings that do not fit the data or one another.
    """
    compared = build_objective(settings)
    dataset = build_dataset(settings)
    batches = loader(
        dataset,
        settings.batch_size,
        shuffle=True,
        seed=settings.seed,
        workers=settings.workers,
        drop_last=True,
        shared=True,
    )
    if settings.cache_chunk is not None:
        check_chunks(settings.batch_size, settings.cache_chunk)
    epoch = math.ceil(len(dataset) // settings.batch_size / settings.accumulate)
    return Built(dataset, batches, build_pipeline(settings, dataset, compared, epoch=epoch), epoch)


def check_parts(settings: Settings) -> None:
    """Check what only the parts of a training can judge, and this machine, before any data are read.

    Raises:
        UsageError: one of them refuses its setting.
    """
    if settings.temperature is not None:
        Temperature.parse(settings.temperature, 1)
    if settings.momentum is not None:
        Momentum.parse(settings.momentum, 1)
    if settings.constraint is not None:
        parse_constraint(settings.constraint, 1)
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    check(there.get(settings.device, True), f"device: this machine has no {settings.device!r}.")
    check_optimizer(settings.opt, settings.lr)
    check_loggers(settings.logger)


def build_dataset(settings: Settings, split: str = "train") -> Dataset:
    """Return a split of the data that the settings say.

    Raises:
        UsageError: there are no such data, or they cannot be read as the settings say.
    """
    if settings.data is None:
        raise UsageError("data: expected a name, a folder, a file or a Dataset, got nothing.")
    return load(
        settings.data,
        split,
        root=settings.root,
        image_size=settings.image_size,
        columns=settings.columns,
        test_fraction=settings.test_fraction,
    )


def build_objective(settings: Settings) -> nn.Module | None:
    """Return the objective that the settings say, or None where nothing is compared.

    Raises:
        UsageError: there is no such objective, or it does not take its settings.
    """
    if settings.predict is not None:
        return None
    chosen, temperature = settings.objective, settings.temperature
    own = dict(settings.objective_settings or {})
    if chosen is None:
        raise UsageError("objective: expected a name or a module, as nothing is to be predicted either; got nothing.")
    if isinstance(chosen, nn.Module):
        check(temperature is None, "temperature: belongs to a named objective; set it on the module.")
        check(not own, "objective_settings: belong to a named objective; set them on the module.")
        return chosen
    if temperature is None:
        return objective(chosen, **own)
    check("temperature" not in own, "temperature: given twice, by itself and in objective_settings.")
    return objective(chosen, temperature=Temperature.parse(temperature, steps=1).start, **own)


def build_views(settings: Settings, dataset: Dataset) -> Views:
    """Return what makes the random views of some data.

    Raises:
        UsageError: the data have no such views.
    """
    return Views(dataset, augment=settings.augment, views=settings.views)


def build_pipeline(settings: Settings, dataset: Dataset, compared: nn.Module | None, *, epoch: int) -> Pipeline:
    """Return the pipeline that the settings say, its weights drawn by their seed; torch's random state stays as it is.

    Args:
        settings: of the training.
        dataset: what is trained on.
        compared: the objective, as `build_objective` gives it.
        epoch: how many steps one has.

    Raises:
        UsageError: settings that do not fit the data or one another.

    >>> from contraport.data import load, loader
    >>> digits, settings = load("digits"), Settings(encoder="mlp")
    >>> pipeline = build_pipeline(settings, digits, build_objective(settings), epoch=42)
    >>> loss = pipeline(next(iter(loader(digits, 32))), step=0)
    >>> loss.shape, pipeline.after_step(0)
    (torch.Size([]), None)
    """
    views, steps = build_views(settings, dataset), settings.epochs * epoch
    momentum = None if settings.momentum is None else Momentum.parse(settings.momentum, steps)
    schedules = build_schedules(settings, compared, steps=steps, epoch=epoch)
    with _seeded(settings):
        model = _model(settings, views)
        check(len(views.shapes) >= 2, f"views: expected at least 2, to compare them, got {len(views.shapes)}.")
        comparison = _comparison(settings, dataset, model, views, compared)
        target = None if momentum is None else MomentumTarget(model, momentum)
        predictor = Predictor(_sizes(model)) if settings.predictor else None
    return Pipeline(
        model,
        views,
        comparison,
        seed=settings.seed,
        target=target,
        predictor=predictor,
        schedules=schedules,
        cache_chunk=settings.cache_chunk,
    )


def build_untrained(settings: Settings, model: Model, encoder: Encoders = None) -> Model:
    """Return the model as the training began with it.

    Args:
        settings: of the training.
        model: what it ended with.
        encoder: the module that was given as encoder, or one per view, if some was.
    """
    given = {} if encoder is None else {"encoder": encoder}
    with _seeded(settings):
        return Model(**model.config | given)


@contextmanager
def _seeded(settings: Settings) -> Iterator[None]:
    """Draw weights by the seed of the training, on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        yield


def build_schedules(settings: Settings, compared: nn.Module | None, *, steps: int, epoch: int) -> tuple[Schedule, ...]:
    """Return what sets the objective's temperature and constraint at each step.

    Raises:
        UsageError: the objective has no single constraint.
    """
    schedules: list[Schedule] = []
    if isinstance(settings.temperature, str):
        schedules.append(Temperature.parse(settings.temperature, steps))
    if settings.constraint is not None:
        if not isinstance(compared, Loss):
            raise UsageError(f"constraint: expected a single objective, whose constraint can change, got {compared!r}.")
        schedules.append(parse_constraint(settings.constraint, epoch))
        schedules[-1].apply(compared, 0)  # it may refuse the constraint, which is to be told before any step
    return tuple(schedules)


def _model(settings: Settings, views: Views) -> Model:
    shared = settings.shared_encoder
    changes_of_one = len(views.plain_shapes) == 1
    check(shared is not False or not changes_of_one, "shared_encoder: expected true for random changes of one view.")
    one = changes_of_one if shared is None else shared
    statistics = views.statistics()[: 1 if one else None]
    mean, std = ([values[which] for values in statistics] for which in (0, 1))
    return Model(
        settings.encoder, views.plain_shapes, settings.projection, mean, std, settings.representation, shared=one
    )


def _sizes(model: Model) -> list[int]:
    return [model.tower(view).num_projections for view in range(len(model.towers))]


def _comparison(
    settings: Settings, dataset: Dataset, model: Model, views: Views, compared: nn.Module | None
) -> Comparison:
    if settings.predict is not None:
        return Reconstructed(model, views.shapes, settings.predict)
    assert compared is not None
    sizes, made = _sizes(model), len(views.shapes)
    check(len(set(sizes)) == 1, f"projection: expected a size, as the encoders differ in theirs, {sizes}; got 0.")
    memory = _memory(settings, dataset, keyed(model, views.shapes), sizes[0])
    in_turn = memory is not None or settings.momentum is not None or settings.predictor
    comparison: Comparison
    if settings.prototypes is not None:
        comparison = Clustered(compared, settings.prototypes, sizes[0], views=made)
    else:
        comparison = InTurn(compared, memory, views=made) if in_turn else Together(compared, views=made)
    _check_fits(comparison, dataset, made, sizes[0], settings.predictor)
    return comparison


def _memory(settings: Settings, dataset: Dataset, views: int, dimensions: int) -> Memory | None:
    items = len(dataset)
    if settings.negatives == "queue":
        return Queue(settings.queue_size or min(LARGEST_QUEUE, items), views, dimensions)
    if settings.negatives == "bank":
        return Bank(items, views, dimensions, settings.bank_negatives or min(LARGEST_DRAW, items))
    return None


def _check_fits(comparison: Comparison, dataset: Dataset, views: int, dimensions: int, predictor: bool) -> None:
    """Raise `UsageError` where the objective refuses what it would be called on, before any data is read."""
    objective = comparison.objective
    if not isinstance(objective, Loss):
        return
    fixed = isinstance(objective, Objective) and objective.layout.attracts_to_fixed
    check(
        predictor or not fixed,
        "objective: it pushes nothing apart, so that without a predictor all embeddings become one; "
        "expected predictor=True, as in the recipes byol and simsiam.",
    )
    z = torch.randn(4, dimensions)
    known = {"labels": dataset.labels, "domains": dataset.domains}
    call = {name: None if values is None else values[:1].expand(4) for name, values in known.items()}
    embeddings = [z] * views if isinstance(comparison, Together) and takes_several(objective) else [z, z]
    if isinstance(comparison, Clustered):
        embeddings, call["target"] = [z, comparison.prototypes.detach()], torch.ones(4, len(comparison.prototypes))
    if isinstance(comparison, InTurn) and comparison.memory is not None:
        call |= {"ids": torch.arange(4), "negatives": z, "negative_ids": torch.arange(4) + 1}
    with torch.no_grad(), local():
        copy.deepcopy(objective)(*embeddings, **call)
