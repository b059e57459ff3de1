"""From the settings of a training to its parts: data set, batches, objective, networks, pipeline, steps of an epoch.

Here alone they are made, for `contraport.train`, its replay, the evaluation of its run and the estimators.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from contraport import distributed
from contraport.catalog import objective
from contraport.catalog.versions import parse_corruption, parse_domains, parse_mismatch
from contraport.course import is_learned, parse_momentum, parse_temperature
from contraport.data import BatchOrder, Dataset, Views, load, loader
from contraport.data.arrays import take, weights_of
from contraport.data.formats.array_files import read_npy
from contraport.data.loading import Loader, StreamLoader
from contraport.data.splits import Positions, split_positions
from contraport.data.streams import Stream
from contraport.data.versions import corrupted, in_domains, mismatched_partners, with_partners
from contraport.data.views.own import Changed, own_change
from contraport.distributed import local
from contraport.embedding import Reader
from contraport.encoders import Initial, Model, initial, pretrained
from contraport.encoders.model import CONFIG_FILE, Encoders
from contraport.errors import UsageError, check, check_file, reason
from contraport.measures.monitoring import parse_watches
from contraport.objectives import Loss, Objective, Pairs, Target, Temperature
from contraport.objectives.schedules import Schedule, parse_constraint
from contraport.objectives.weighting import PlanWeights, parse_weights
from contraport.options import is_object
from contraport.pairs import Decoyed, with_decoys
from contraport.runs import Run
from contraport.texts import blank, is_text
from contraport.training.loop.loggers import check_loggers
from contraport.training.loop.optimization import check_layers, check_optimizer
from contraport.training.step.auditor import Auditor
from contraport.training.step.comparison import (
    Clustered,
    Compared,
    Comparison,
    InTurn,
    Reconstructed,
    Together,
    taken_by,
    takes_several,
)
from contraport.training.step.freezing import Freezing
from contraport.training.step.gradient_cache import check_chunks
from contraport.training.step.memory import Bank, Memory, Queue
from contraport.training.step.momentum import MomentumTarget, Predictor
from contraport.training.step.pipeline import Pipeline, keyed
from contraport.training.step.wanted import parse_target, read_target
from contraport.verbs.train import Settings

if TYPE_CHECKING:
    from contraport.measures.subject import Subject

Monitored: TypeAlias = "Callable[[torch.device], Subject]"
"""Makes what is measured during a training, on a device."""

LARGEST_QUEUE = 65_536
LARGEST_DRAW = 4_096

DRAWS = 4
"""How many random views of each kind and item are kept, unless it is said."""

MONITORED = 2_000
"""At most so many training items are measured on while an encoder is trained."""


class Built(NamedTuple):
    """What a training is made of.

    Attributes:
        dataset: what is trained on.
        batches: gives its items.
        pipeline: makes the loss of a batch.
        epoch: how many steps one has.
        auditor: judges the pairs between epochs, where that is asked for.
        notes: what there is to say of it before it begins.
        partners: which item each is paired with, where pairs were mismatched.
    """

    dataset: Dataset
    batches: Loader | StreamLoader
    pipeline: Pipeline
    epoch: int
    auditor: Auditor | None = None
    notes: tuple[str, ...] = ()
    partners: Tensor | None = None


def build(settings: Settings, begun: Initial | None = None, dataset: Dataset | None = None) -> Built:
    """Return what the settings say; torch's random state stays as it is.

    Args:
        settings: of the training.
        begun: the weights that the encoders begin with, as `build_initial` gives them.
        dataset: what is trained on; default: it is built too.

    Raises:
        UsageError: settings that do not fit the data or one another.
    """
    compared = build_objective(settings)
    dataset = build_dataset(settings) if dataset is None else dataset
    if isinstance(dataset, Stream):
        _check_stream(settings, dataset, compared)
    dataset, partners = _mismatched(settings, dataset)
    if settings.audit:
        dataset = with_decoys(dataset, seed=settings.seed)
    if settings.cache_chunk is not None:
        check_chunks(settings.batch_size, settings.cache_chunk)
    few = f"batch_size: expected at most the {len(dataset)} items of {dataset.name!r}, got {settings.batch_size}."
    check(isinstance(dataset, Stream) or settings.batch_size <= len(dataset), few)
    own = own_change(settings.augment)
    check(
        own is None or draws_kept(settings) == 0,
        f"augment: features are kept by the name of a change, and {own and own.name} is none; expected frozen_draws=0.",
    )
    epoch = settings.steps or math.ceil(len(dataset) // settings.batch_size / settings.accumulate)
    pipeline, auditor = build_pipeline(settings, dataset, compared, epoch=epoch, begun=begun), None
    batches = build_batches(settings, dataset, pipeline.views, workers=settings.workers)
    if isinstance(dataset, Decoyed):
        order = cast(BatchOrder, batches.batch_sampler)
        auditor = Auditor(dataset, pipeline, order, epochs=settings.epochs, reader=Reader(workers=settings.workers))
    return Built(dataset, batches, pipeline, epoch, auditor, partners=partners)


def in_epochs(settings: Settings, dataset: Dataset, *, chosen: bool) -> Settings:
    """Return the settings with as many epochs as give the steps; of a stream, steps are those of an epoch.

    Args:
        settings: of the training.
        dataset: what is trained on.
        chosen: whether the epochs were given.

    Raises:
        UsageError: a stream without steps, or both steps and epochs of what is no stream.
    """
    if isinstance(dataset, Stream):
        check(settings.steps is not None, "steps: nobody knows how many items a stream has; expected --steps.")
        return settings if chosen or settings.resume else replace(settings, epochs=1)
    if settings.steps is None:
        return settings
    check(not chosen, f"steps: epochs say how long to train, too; expected one of the two, got {settings.steps}.")
    epoch = max(1, math.ceil(len(dataset) // settings.batch_size / settings.accumulate))
    return replace(settings, epochs=math.ceil(settings.steps / epoch), steps=None)


def _check_stream(settings: Settings, stream: Stream, compared: nn.Module | None) -> None:
    """Raise `UsageError` for what needs to know all items, which nobody does of a stream."""
    needs = {
        "negatives": settings.negatives == "bank",
        "target": settings.target is not None and not settings.target.startswith(("pairs", "labels")),
        "weights": settings.weights is not None,
        "audit": settings.audit,
        "mismatch": settings.mismatch is not None,
        "frozen_draws": draws_kept(settings) > 0,
        "objective": isinstance(compared, Loss) and compared.by_item,
    }
    wrong = next((name for name, asked in needs.items() if asked), None)
    hint = "; expected 0, so that each step encodes its own" if wrong == "frozen_draws" else ""
    check(wrong is None, f"{wrong}: needs to know each item, and {stream.name} is a stream{hint}.")
    check(
        not settings.workers, f"workers: {stream.name} is a stream, which is read as it comes; got {settings.workers}."
    )


@torch.random.fork_rng(devices=[])  # a model that is read has drawn weights first
def build_initial(settings: Settings, run: Run | None = None) -> Initial | None:
    """Return the weights that the encoders of a training begin with, or None where they are drawn.

    Torch's random state stays as it is.

    Args:
        settings: of the training.
        run: the one that goes on, if one does; its folder keeps what it began with.

    Raises:
        UsageError: they cannot be had, or are of other encoders than the settings say.
    """
    if not settings.pretrained and settings.init is None:
        return None
    if run is not None and (run.initial_path / CONFIG_FILE).exists():
        return initial(run.initial_path, settings.encoder, trust=settings.trust)
    if settings.init is None:
        return pretrained(settings.encoder)
    return initial(settings.init, settings.encoder, trust=settings.trust)


def fitted(settings: Settings, begun: Initial | None) -> Settings:
    """Return the settings with the encoders and the size of images of the weights to begin with, unless they say them.

    >>> begun = Initial("runs/a", ["resnet18"], [{}], image_size=64)
    >>> fitted(Settings(image_size=32), begun).encoder, fitted(Settings(), begun).image_size
    (['resnet18'], 64)
    """
    if begun is None:
        return settings
    encoder = begun.encoder if settings.encoder is None else settings.encoder
    return replace(settings, encoder=encoder, image_size=settings.image_size or begun.image_size)


def check_parts(settings: Settings) -> None:
    """Check what only the parts of a training can judge, and this machine, before any data are read.

    Raises:
        UsageError: one of them refuses its setting.
    """
    if settings.constraint is not None:
        parse_constraint(settings.constraint, 1)
    if settings.target is not None:
        read_target(settings.target)
    build_objective(settings)
    if settings.weighs_by_plan:
        parse_weights(str(settings.weights), 1)
    if settings.weighs_by_file:
        check_file("weights", str(settings.weights))
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    check(there.get(settings.device, True), f"device: this machine has no {settings.device!r}.")
    check_optimizer(settings.opt, settings.lr)
    check_loggers(settings.logger)
    draws_kept(settings)


def draws_kept(settings: Settings) -> int:
    """Return how many random views of each kind and item are kept, 0 where none is.

    Raises:
        UsageError: several processes are to keep some.
    """
    if not settings.freeze:
        return 0
    alone = distributed.world().size == 1
    check(
        alone or not settings.frozen_draws,
        f"frozen_draws: one process keeps features, and there are {distributed.world().size}; expected 0, got "
        f"{settings.frozen_draws}.",
    )
    if settings.frozen_draws is None:
        return DRAWS if alone else 0
    return settings.frozen_draws


def build_dataset(settings: Settings, split: str = "train") -> Dataset:
    """Return a split of the data that the settings say.

    Raises:
        UsageError: there are no such data, or they cannot be read as the settings say.
    """
    if settings.data is None:
        raise UsageError("data: expected a name, a folder, a file or a Dataset, got nothing.")
    columns, weights = settings.columns, settings.weights
    if settings.weighs_by_column:
        check("weights" not in (columns or {}), "weights: given twice, by itself and in columns.")
        columns = {**(columns or {}), "weights": str(weights)}
    dataset = load(
        settings.data,
        "train" if settings.validation is not None else split,
        root=settings.root,
        image_size=settings.image_size,
        columns=columns,
        test_fraction=settings.test_fraction,
        ignore_labels=settings.ignore_labels,
    )
    if settings.weighs_by_file and dataset.split == "train":
        given = weights_of(f"weights: {weights}", read_npy("weights", str(weights)))
        if len(given) > len(dataset) and len(given) > int(dataset.rows.max()):
            given = given[dataset.rows]  # there is one for each row of the source, those of other splits too
        dataset = dataset.with_weights(given)
    if settings.validation is not None:
        dataset = dataset.only(torch.from_numpy(_held_out(dataset, settings.validation, split)), split)
    if settings.items is not None and settings.items < len(dataset):
        dataset = dataset.only(torch.from_numpy(_held_out(dataset, settings.items / len(dataset), "test")))
    return _version(settings, dataset)


def _held_out(dataset: Dataset, share: float, split: str) -> Positions:
    """Return the positions of one split of some data of which a share of each class is held out."""
    classes = np.zeros(len(dataset), dtype=np.int64) if dataset.labels is None else dataset.labels.numpy()
    return split_positions(classes, split, fraction=share)


def _version(settings: Settings, dataset: Dataset) -> Dataset:
    """Return the items as the settings say that they are to be seen."""
    asked = {"given_views": settings.given_views, "domains": settings.domains, "corrupt": settings.corrupt}
    if isinstance(dataset, Stream) and (wrong := [name for name, value in asked.items() if value]):
        raise UsageError(
            f"{wrong[0]}: {dataset.name} is a stream, whose items are taken as they come; expected nothing."
        )
    if settings.given_views:
        dataset = dataset.of_views(settings.given_views)
    if settings.domains is not None:
        dataset = in_domains(dataset, parse_domains(settings.domains))
    return dataset if settings.corrupt is None else corrupted(dataset, parse_corruption(settings.corrupt))


def _mismatched(settings: Settings, dataset: Dataset) -> tuple[Dataset, Tensor | None]:
    """Return the training pairs of which some are wrong, and who is paired with whom, where that is asked for."""
    mismatch = None if settings.mismatch is None else parse_mismatch(settings.mismatch)
    if mismatch is None or mismatch.share == 0:
        return dataset, None
    frozen = settings.freeze and len(dataset.shapes) == 1
    check(not frozen, "mismatch: freeze keeps features of each item by itself; expected no mismatch of random views.")
    partners = mismatched_partners(dataset, mismatch, seed=settings.seed)
    return with_partners(dataset, partners), partners


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
    start = temperature if is_learned(temperature) else parse_temperature(temperature, steps=1).start
    return objective(chosen, temperature=start, **own)


def build_views(settings: Settings, dataset: Dataset) -> Views:
    """Return what makes the random views of some data.

    Raises:
        UsageError: the data have no such views.
    """
    if isinstance(settings.augment, str) and is_object(settings.augment):  # a folder tells of it, and does not hold it
        views = Views(dataset, augment="none", views=settings.views)
        views.forgotten = settings.augment
        return views
    return Views(dataset, augment=settings.augment, views=settings.views)


def build_batches(settings: Settings, dataset: Dataset, views: Views, *, workers: int | None) -> Loader | StreamLoader:
    """Return the batches of a training; where views are made item by item, batches bring them."""
    if views.on_items and not isinstance(dataset, Stream):
        assert views.own is not None
        dataset = Changed(dataset, views.own, number=views.number, seed=settings.seed)
    return loader(
        dataset,
        settings.batch_size,
        shuffle=True,
        seed=settings.seed,
        workers=workers,
        drop_last=True,
        shared=True,
        batches=None if settings.steps is None else settings.steps * settings.accumulate,
    )


def build_pipeline(
    settings: Settings, dataset: Dataset, compared: nn.Module | None, *, epoch: int, begun: Initial | None = None
) -> Pipeline:
    """Return the pipeline that the settings say, its weights drawn by their seed; torch's random state stays as it is.

    Args:
        settings: of the training.
        dataset: what is trained on.
        compared: the objective, as `build_objective` gives it.
        epoch: how many steps one has.
        begun: the weights that the encoders begin with; default: they are drawn.

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
    momentum = None if settings.momentum is None else parse_momentum(settings.momentum, steps)
    schedules = build_schedules(settings, compared, steps=steps, epoch=epoch)
    weights = parse_weights(str(settings.weights), steps) if settings.weighs_by_plan else None
    _check_weights(compared, dataset, weights)
    with _seeded(settings):
        model = _model(settings, views, begun)
        _check_encodes(model, views)
        check(len(views.shapes) >= 2, f"views: expected at least 2, to compare them, got {len(views.shapes)}.")
        comparison = _comparison(settings, dataset, model, views, compared, weights)
        _check_gaps(comparison, dataset)
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
        weights=weights,
        cache_chunk=settings.cache_chunk,
        freezing=_freezing(settings, model, target, epoch),
    )


def _freezing(settings: Settings, model: Model, target: MomentumTarget | None, epoch: int) -> Freezing | None:
    if not (settings.freeze or settings.freeze_epochs):
        return None
    steps = None if settings.freeze else settings.freeze_epochs * epoch
    return Freezing(model.encoders, steps, () if target is None else target.model.encoders)


def build_monitored(settings: Settings, built: Built) -> Monitored | None:
    """Return what makes the subject of the measures that `monitor` names, or None where it names none.

    At most `MONITORED` training items are drawn, always the same, and kept in memory: half of them are what a probe
    learns from, the other half what it is judged on. No test item is seen.

    Raises:
        UsageError: a measure cannot be taken of these items.
    """
    watches = parse_watches(settings.monitor)
    if not watches:
        return None
    # Here, not above: most trainings need no scikit-learn, which takes a while to import.
    from contraport.measures.probes import check_neighbors
    from contraport.measures.subject import Subject

    model, objective = built.pipeline.model, built.pipeline.objective
    whole = built.dataset.complete()  # of what lacks a view there is no representation
    drawn = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))[:MONITORED].numpy()
    check(len(drawn) > 3, f"monitor: expected four training items or more, got {len(drawn)}.")
    learnt, judged = take(whole, drawn[::2], "train"), take(whole, drawn[1::2], "test")

    def subject(device: torch.device) -> Subject:
        loss = objective if isinstance(objective, Loss) else None
        reader = Reader(device=device, workers=0)
        return Subject(model, learnt, judged, build_views(settings, learnt), reader, objective=loss)

    first = subject(torch.device("cpu"))
    for measure, _ in watches:
        need = measure.lacks(first)
        check(need is None, f"monitor: {measure.title} cannot be measured: {need and need.otherwise}.")
        if measure.key == "knn":
            check_neighbors(first.neighbors, len(learnt))
    return subject


def build_untrained(settings: Settings, model: Model, encoder: Encoders = None) -> Model:
    """Return a model whose weights are drawn as those of a training that begins with none.

    Args:
        settings: of the training.
        model: what it ended with.
        encoder: the module that was given as encoder, or one per view, if some was.
    """
    given = {"encoder": model.built_from if encoder is None else encoder}
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
    if isinstance(settings.temperature, str) and not is_learned(settings.temperature):
        schedules.append(Temperature.parse(settings.temperature, steps))
    if settings.constraint is not None:
        if not isinstance(compared, Loss):
            raise UsageError(f"constraint: expected a single objective, whose constraint can change, got {compared!r}.")
        schedules.append(parse_constraint(settings.constraint, epoch))
        schedules[-1].apply(compared, 0)  # it may refuse the constraint, which is to be told before any step
    return tuple(schedules)


def _model(settings: Settings, views: Views, begun: Initial | None) -> Model:
    shared = settings.shared_encoder
    changes_of_one = len(views.plain_shapes) == 1
    check(
        shared is not False or not changes_of_one,
        "shared_encoder: false needs items of several views, such as an image and a caption, each with an encoder of "
        f"its own; these are of one, {views.plain_names[0]!r}. Random changes of one view share an encoder.",
    )
    one = changes_of_one if shared is None else shared
    statistics = views.statistics()[: 1 if one else None]
    if begun is not None:
        statistics = begun.statistics(statistics, views.plain_names, views.plain_shapes)
    mean, std = ([values[which] for values in statistics] for which in (0, 1))
    model = Model(
        settings.encoder,
        views.plain_shapes,
        settings.projected,
        mean,
        std,
        settings.represented,
        shared=one,
        projection_layers=settings.projection_layers or 2,
        low_resolution=begun is None or begun.low_resolution,
        view_names=views.plain_names,
    )
    if begun is not None:
        begun.give(model)
    if settings.layer_decay is not None:
        for encoder in model.encoders:
            check_layers(encoder)
    return model


def _check_encodes(model: Model, views: Views) -> None:
    """Raise `UsageError` where views are of other shapes than the items, and the encoder does not take these."""
    plain = views.plain_shapes[0]
    for shape in dict.fromkeys(views.shapes) if len(model.towers) == 1 else ():
        if shape == plain:
            continue
        was_training = model.training
        try:
            with torch.no_grad():
                model.eval().encode([blank(1, shape)])
        except Exception as error:  # each network refuses in its own way
            told = f"the items are of shape {plain}, and some views of {shape}: {reason(error)}"
            raise UsageError(f"encoder: expected one that takes any size, as {told}") from error
        finally:
            model.train(was_training)


def _sizes(model: Model) -> list[int]:
    return [model.tower(view).num_projections for view in range(len(model.towers))]


def _comparison(
    settings: Settings,
    dataset: Dataset,
    model: Model,
    views: Views,
    compared: nn.Module | None,
    weights: PlanWeights | None,
) -> Comparison:
    if settings.predict is not None:
        check(not any(map(is_text, views.shapes)), "predict: decodes numbers, and a view of the items is a text.")
        return Reconstructed(model, views.shapes, settings.predict)
    assert compared is not None
    sizes, made = _sizes(model), len(views.shapes)
    check(len(set(sizes)) == 1, f"projection: expected a size, as the encoders differ in theirs, {sizes}; got 0.")
    memory = _memory(settings, dataset, keyed(model, views.shapes), sizes[0])
    target = _target(settings, dataset, compared, made)
    in_turn = memory is not None or settings.momentum is not None or settings.predictor
    comparison: Comparison
    if settings.prototypes is not None:
        comparison = Clustered(compared, settings.prototypes, sizes[0], views=made)
    else:
        wanted = None if target is None else parse_target(target, dataset)
        if in_turn:
            comparison = InTurn(compared, memory, views=made, wanted=wanted)
        else:
            comparison = Together(compared, views=made, wanted=wanted)
    try:
        _check_fits(comparison, dataset, made, sizes[0], weights, predictor=settings.predictor)
    except UsageError as error:
        if settings.prototypes is not None or target == settings.target:
            raise
        hint = f"Some items of {dataset.name!r} show the same; target pairs (--target pairs) keeps to each item's own."
        raise UsageError(f"{error} {hint}") from error
    return comparison


def _target(settings: Settings, dataset: Dataset, compared: nn.Module, views: int) -> str | None:
    """Return which plan is wanted: the one asked for; of pairs of which some show the same, those that do so too."""
    pairs = isinstance(compared, Objective) and compared.target == Pairs() and compared.layout.matches_views
    known = dataset.shown is not None and len(dataset.shapes) == views
    return "shown" if settings.target is None and pairs and known else settings.target


def _check_gaps(comparison: Comparison, dataset: Dataset) -> None:
    """Raise `UsageError` where items lack a view and the comparison has no use for such."""
    if dataset.present is not None and (reason := comparison.refuses_gaps()) is not None:
        lacking = int((~dataset.present.all(1)).sum())
        raise UsageError(f"data: {lacking} of {len(dataset)} items lack a view, and {reason}; expected all views.")


def _memory(settings: Settings, dataset: Dataset, views: int, dimensions: int) -> Memory | None:
    items = len(dataset)
    if settings.negatives == "queue":
        most = LARGEST_QUEUE if isinstance(dataset, Stream) else min(LARGEST_QUEUE, items)
        return Queue(settings.queue_size or most, views, dimensions)
    if settings.negatives == "bank":
        return Bank(items, views, dimensions, settings.bank_negatives or min(LARGEST_DRAW, items))
    return None


def _check_fits(
    comparison: Comparison,
    dataset: Dataset,
    views: int,
    dimensions: int,
    by_plan: PlanWeights | None,
    *,
    predictor: bool,
) -> None:
    """Raise `UsageError` where the objective refuses what it would be called on, before any data is read."""
    objective, weights = comparison.objective, dataset.weights
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
    call: dict[str, Any] = {name: None if values is None else values[:1].expand(4) for name, values in known.items()}
    if objective.by_item:
        call["ids"] = torch.arange(4) + max(len(dataset) - 4, 0)  # the last ones, which may be more than it keeps
    if weights is not None:
        call["weights"] = torch.stack([weights.max(), weights.max(), weights.max(), weights.min()])
    if by_plan is not None:
        call["weights"] = replace(by_plan.at(0), given=call.get("weights"))
    embeddings = [z] * views if isinstance(comparison, Together) and takes_several(objective) else [z, z]
    if isinstance(comparison, Clustered):
        embeddings, call["target"] = [z, comparison.prototypes.detach()], torch.ones(4, len(comparison.prototypes))
    if isinstance(comparison, InTurn) and comparison.memory is not None:
        call |= {"ids": torch.arange(4), "negatives": z, "negative_ids": torch.arange(4) + 1}
    if isinstance(comparison, Compared) and comparison.wanted is not None:
        call["target"] = comparison.wanted(dataset.__getitems__([0] * 4))
        _check_target(objective, call["target"])
    with torch.no_grad(), local():
        copy.deepcopy(objective)(*embeddings, **call)


def _check_weights(compared: nn.Module | None, dataset: Dataset, by_plan: PlanWeights | None) -> None:
    """Raise `UsageError` where there are weights that nothing takes, or none where they are asked for."""
    weights = dataset.weights
    weighted = isinstance(compared, Objective) and compared.constraint.weighted
    check(
        by_plan is None or isinstance(compared, Loss),
        f"weights: an objective's plan tells them, and the objective is {compared!r}.",
    )
    check(
        by_plan is None or dataset.present is None,
        f"weights: a plan tells them of items with all views, and some of {dataset.name!r} lack one.",
    )
    check(
        weights is not None or by_plan is not None or not weighted,
        "constraint: its marginals are weights, and the data have none; expected --weights, a column or an .npy.",
    )
    if weights is not None and (compared is None or "weights" not in taken_by(compared)):
        lacks = f"the call of {type(compared).__name__} has no keyword `weights` to take them"
        raise UsageError(f"weights: {'nothing is compared' if compared is None else lacks}.")


def _check_target(objective: Loss, target: Target) -> None:
    """Raise `UsageError` where what is wanted is fixed by what the objective means."""
    name = type(objective).__name__ if objective.origin is None else objective.origin.name
    if not isinstance(objective, Objective):
        raise UsageError(f"target: {name} is a sum of objectives, each of which wants its own; expected nothing.")
    check(
        target.from_views or objective.layout.compares_positives,
        f"target: {name} keeps an item's views out of what they are compared with, so that it is these that are "
        f"wanted; expected pairs, or nothing, got {target!r}.",
    )
