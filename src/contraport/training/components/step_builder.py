"""From the settings of a training to its step: networks, comparison, memories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from contraport._utils.formatting import format_options
from contraport._utils.text_tensors import is_text_shape
from contraport.data import Dataset, Views
from contraport.data.streams import Stream
from contraport.encoders import InitialWeights, Model
from contraport.errors import MissingInputError, UsageError, check
from contraport.objectives.plan_weights import PlanWeightsSchedule, parse_plan_weights
from contraport.schedules import parse_momentum
from contraport.training.components.compatibility import check_objective_accepts, check_weights
from contraport.training.components.data_builder import build_views
from contraport.training.components.model_builder import (
    build_model,
    check_encodes,
    option_per_tower,
    projection_sizes,
    seeded_weights,
)
from contraport.training.components.objective_builder import build_schedules, target_of
from contraport.training.config import Settings
from contraport.training.step.encoder_freezer import EncoderFreezer
from contraport.training.step.memory import Bank, Memory, Queue
from contraport.training.step.momentum import MomentumEncoder, Predictor
from contraport.training.step.objective_loss import ObjectiveLoss, QueryKeyLoss, Together
from contraport.training.step.prototype_loss import PrototypeLoss
from contraport.training.step.reconstruction_loss import ReconstructionLoss
from contraport.training.step.step_loss import StepLoss
from contraport.training.step.target_spec import build_target
from contraport.training.step.teacher import read_teacher_features
from contraport.training.step.training_module import TrainingModule, num_key_views

LARGEST_QUEUE = 65_536


LARGEST_DRAW = 4_096


def build_pipeline(
    settings: Settings,
    dataset: Dataset,
    compared: nn.Module | None,
    *,
    epoch: int,
    begun: InitialWeights | None = None,
    kept: Path | None = None,
) -> TrainingModule:
    """Return the pipeline that the settings say, its weights drawn by their seed; torch's random state stays as it is.

    Args:
        settings: of the training.
        dataset: what is trained on.
        compared: the objective, as `build_objective` gives it.
        epoch: how many steps one has.
        begun: the weights that the encoders begin with; default: they are drawn.
        kept: as `build_model` takes it.

    Raises:
        UsageError: settings that do not fit the data or one another.

    >>> from contraport.data import load, loader
    >>> from contraport.training.components import build_objective
    >>> digits, settings = load("digits"), Settings(encoder="mlp")
    >>> pipeline = build_pipeline(settings, digits, build_objective(settings), epoch=42)
    >>> loss = pipeline(next(iter(loader(digits, 32))), step=0)
    >>> loss.shape, pipeline.after_step(0)
    (torch.Size([]), None)
    """
    views, steps = build_views(settings, dataset), settings.epochs * epoch
    momentum = None if settings.momentum is None else parse_momentum(settings.momentum, steps)
    schedules = build_schedules(settings, compared, steps=steps, epoch=epoch)
    weights = parse_plan_weights(str(settings.sample_weight), steps) if settings.has_plan_weights else None
    check_weights(compared, dataset, weights)
    with seeded_weights(settings):
        model = build_model(settings, views, begun, kept)
        check_encodes(model, views)
        check(len(views.shapes) >= 2, f"views: expected at least 2, to compare them, got {len(views.shapes)}.")
        comparison = _comparison(settings, dataset, model, views, compared, weights)
        _check_gaps(comparison, dataset)
        momentum_encoder = None if momentum is None else MomentumEncoder(model, momentum)
        predictor = Predictor(projection_sizes(model)) if settings.predictor else None
    return TrainingModule(
        model,
        views,
        comparison,
        seed=settings.seed,
        momentum_encoder=momentum_encoder,
        predictor=predictor,
        schedules=schedules,
        weights=weights,
        cache_chunk=settings.cache_chunk,
        freezing=_freezing(settings, model, momentum_encoder, epoch),
    )


def _freezing(
    settings: Settings, model: Model, momentum_encoder: MomentumEncoder | None, epoch: int
) -> EncoderFreezer | None:
    if not (settings.freezes or settings.freeze_epochs or settings.lora):
        return None
    steps = settings.freeze_epochs * epoch or None
    held = option_per_tower("freeze", settings.freezes_all or steps is not None or settings.freeze, model)
    adapted = option_per_tower("lora", settings.lora, model)

    def of(one: Model | None, which: Sequence[Any]) -> list[nn.Module]:
        return [] if one is None else [encoder for encoder, has in zip(one.encoders, which, strict=True) if has]

    follows = None if momentum_encoder is None else momentum_encoder.model
    return EncoderFreezer(of(model, held), steps, of(follows, held), [*of(model, adapted), *of(follows, adapted)])


def _comparison(
    settings: Settings,
    dataset: Dataset,
    model: Model,
    views: Views,
    compared: nn.Module | None,
    weights: PlanWeightsSchedule | None,
) -> StepLoss:
    if settings.predict is not None:
        check(not any(map(is_text_shape, views.shapes)), "predict: decodes numbers, and a view of the items is a text.")
        return ReconstructionLoss(model, views.shapes, settings.predict)
    assert compared is not None
    sizes, made = projection_sizes(model), len(views.shapes)
    check(len(set(sizes)) == 1, f"projection: expected a size, as the encoders differ in theirs, {sizes}; got 0.")
    memory = _memory(settings, dataset, num_key_views(model, views.shapes), sizes[0])
    target = target_of(settings, dataset, compared, made)
    in_turn = memory is not None or settings.momentum is not None or settings.predictor
    comparison: ObjectiveLoss
    if settings.prototypes is not None:
        comparison = PrototypeLoss(compared, settings.prototypes, sizes[0], views=made)
    else:
        file = settings.teacher
        known = {
            "views": made,
            "wanted": None if target is None else build_target(target, dataset),
            "features": None if file is None else read_teacher_features("teacher", str(file), len(dataset), views=made),
        }
        comparison = QueryKeyLoss(compared, memory, **known) if in_turn else Together(compared, **known)
    try:
        check_objective_accepts(comparison, dataset, sizes[0], weights, predictor=settings.predictor)
    except MissingInputError as error:
        if error.fact != "labels" or not settings.ignore_labels:
            raise
        ignoring = format_options(ignore_labels=True)
        told = f"ignore_labels: {settings.method} needs a label of each item, got {ignoring}; leave it out."
        raise UsageError(told) from error
    except UsageError as error:
        if settings.prototypes is not None or target == settings.target:
            raise
        hint = (
            f"Some items of {dataset.name!r} show the same; {format_options(target='pairs')} keeps to each item's own."
        )
        raise UsageError(f"{error} {hint}") from error
    return comparison


def _check_gaps(comparison: StepLoss, dataset: Dataset) -> None:
    """Raise `UsageError` where items lack a view and the comparison has no use for such."""
    if dataset.present is not None and (reason := comparison.missing_views_blocker()) is not None:
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
