"""Builds the training module: networks, loss of a step, memory of negatives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from contraport._utils.formatting import format_options
from contraport._utils.text_bytes import is_text_shape
from contraport.data import Dataset, Views
from contraport.data.streams import Stream
from contraport.encoders import InitialWeights, Model
from contraport.errors import UsageError, check
from contraport.objectives.loss_schedules import PlanWeightsSchedule, parse_plan_weights_schedule
from contraport.schedules import parse_momentum_schedule
from contraport.training.components.data_builder import build_views
from contraport.training.components.model_builder import (
    build_model,
    check_encoder_accepts_views,
    list_projection_sizes,
    option_per_tower,
    seeded_weight_initialization,
)
from contraport.training.components.objective_builder import (
    build_loss_schedules,
    check_objective_accepts,
    check_sample_weights,
    resolve_target_option,
)
from contraport.training.config import Settings
from contraport.training.step.embedding_memory import EmbeddingMemory, ItemBank, Queue
from contraport.training.step.step_losses import (
    AllViewsLoss,
    ObjectiveLoss,
    PrototypeLoss,
    QueryKeyLoss,
    ReconstructionLoss,
    StepLoss,
)
from contraport.training.step.step_networks import EncoderFreezer, MomentumEncoder, Predictor
from contraport.training.step.target_spec import build_target_function, read_teacher_features
from contraport.training.step.training_module import TrainingModule, num_key_views

LARGEST_QUEUE = 65_536
"""Default size of the queue for large data."""

LARGEST_DRAW = 4_096
"""Default number of negatives from a bank for large data."""


def build_training_module(
    settings: Settings,
    dataset: Dataset,
    objective: nn.Module | None,
    *,
    steps_per_epoch: int,
    initial_weights: InitialWeights | None = None,
    architecture: Path | None = None,
) -> TrainingModule:
    """Build the training module; random weights depend on the seed.

    Torch's global random state does not change.

    Args:
        settings: settings of the training.
        dataset: the training items.
        objective: the objective, see `build_objective`.
        steps_per_epoch: number of optimizer steps per epoch.
        initial_weights: initial weights of the encoders; default: random.
        architecture: see `build_model`.

    Raises:
        UsageError: settings that do not fit the data or one another.

    >>> from contraport.data import load, build_loader
    >>> from contraport.training.components import build_objective
    >>> digits, settings = load("digits"), Settings(encoder="mlp")
    >>> module = build_training_module(settings, digits, build_objective(settings), steps_per_epoch=42)
    >>> loss = module(next(iter(build_loader(digits, 32))), step=0)
    >>> loss.shape, module.after_step(0)
    (torch.Size([]), None)
    """
    views, steps = build_views(settings, dataset), settings.epochs * steps_per_epoch
    momentum = None if settings.momentum is None else parse_momentum_schedule(settings.momentum, steps)
    schedules = build_loss_schedules(settings, objective, steps=steps, steps_per_epoch=steps_per_epoch)
    plan_weights = (
        parse_plan_weights_schedule(str(settings.sample_weight), steps) if settings.has_batch_plan_weights else None
    )
    check_sample_weights(objective, dataset, plan_weights)
    with seeded_weight_initialization(settings):
        model = build_model(settings, views, initial_weights, architecture)
        check_encoder_accepts_views(model, views)
        check(len(views.shapes) >= 2, f"views: must be at least 2, got {len(views.shapes)}.", "too_few")
        loss = _build_step_loss(settings, dataset, model, views, objective, plan_weights)
        momentum_encoder = None if momentum is None else MomentumEncoder(model, momentum)
        predictor = Predictor(list_projection_sizes(model)) if settings.predictor else None
    return TrainingModule(
        model,
        views,
        loss,
        seed=settings.seed,
        momentum_encoder=momentum_encoder,
        predictor=predictor,
        schedules=schedules,
        weights=plan_weights,
        cache_chunk=settings.cache_chunk,
        encoder_freezer=_build_freezer(settings, model, momentum_encoder, steps_per_epoch),
    )


def _build_freezer(
    settings: Settings, model: Model, momentum_encoder: MomentumEncoder | None, steps_per_epoch: int
) -> EncoderFreezer | None:
    if not (settings.freezes_some_encoder or settings.freeze_epochs or settings.lora):
        return None
    steps = settings.freeze_epochs * steps_per_epoch or None
    frozen = option_per_tower("freeze", settings.freezes_all_encoders or steps is not None or settings.freeze, model)
    adapted = option_per_tower("lora", settings.lora, model)

    def select(source: Model | None, selected: Sequence[Any]) -> list[nn.Module]:
        if source is None:
            return []
        return [encoder for encoder, is_selected in zip(source.encoders, selected, strict=True) if is_selected]

    follower = None if momentum_encoder is None else momentum_encoder.model
    with_lora = [*select(model, adapted), *select(follower, adapted)]
    return EncoderFreezer(select(model, frozen), steps, select(follower, frozen), with_lora)


def _build_step_loss(
    settings: Settings,
    dataset: Dataset,
    model: Model,
    views: Views,
    objective: nn.Module | None,
    plan_weights: PlanWeightsSchedule | None,
) -> StepLoss:
    loss: StepLoss
    if settings.predict is not None:
        check(not any(map(is_text_shape, views.shapes)), "predict: requires numeric views, got texts.", "texts")
        loss = ReconstructionLoss(model, views.shapes, settings.predict)
    else:
        assert objective is not None
        loss = _build_objective_loss(settings, dataset, model, views, objective, plan_weights)
    if dataset.present is not None and (reason := loss.missing_views_blocker()) is not None:
        lacking = int((~dataset.present.all(1)).sum())
        raise UsageError(f"data: {lacking} of {len(dataset)} items lack a view; {reason}.", kind="missing_views")
    return loss


def _build_objective_loss(
    settings: Settings,
    dataset: Dataset,
    model: Model,
    views: Views,
    objective: nn.Module,
    plan_weights: PlanWeightsSchedule | None,
) -> ObjectiveLoss:
    sizes, number = list_projection_sizes(model), len(views.shapes)
    message = f"projection: required, since the encoders have feature sizes {sizes}; got 0."
    check(len(set(sizes)) == 1, message, "sizes_differ")
    memory = _build_memory(settings, dataset, num_key_views(model, views.shapes), sizes[0])
    target = resolve_target_option(settings, dataset, objective, number)
    loss: ObjectiveLoss
    if settings.prototypes is not None:
        loss = PrototypeLoss(objective, settings.prototypes, sizes[0], views=number)
    else:
        target_of_batch = None if target is None else build_target_function(target, dataset)
        teacher = None
        if settings.teacher is not None:
            teacher = read_teacher_features("teacher", str(settings.teacher), len(dataset), views=number)
        if memory is not None or settings.momentum is not None or settings.predictor:
            loss = QueryKeyLoss(objective, memory, views=number, target=target_of_batch, teacher=teacher)
        else:
            loss = AllViewsLoss(objective, views=number, target=target_of_batch, teacher=teacher)
    try:
        check_objective_accepts(loss, dataset, sizes[0], plan_weights, predictor=settings.predictor)
    except UsageError as error:
        if error.code == "labels.missing" and settings.ignore_labels:
            remedy = f"leave out {format_options(ignore_labels=True)}"
            message = f"ignore_labels: {settings.method} requires labels; {remedy}."
            raise UsageError(message, kind="labels_required") from error
        if error.code.endswith(".missing") or settings.prototypes is not None or target == settings.target:
            raise
        if dataset.entity_ids is None:
            error.add_note(f"Items of {dataset.name!r} share content; {format_options(target='pairs')} ignores this.")
        raise
    return loss


def _build_memory(settings: Settings, dataset: Dataset, views: int, dimensions: int) -> EmbeddingMemory | None:
    items = len(dataset)
    if settings.negatives == "queue":
        most = LARGEST_QUEUE if isinstance(dataset, Stream) else min(LARGEST_QUEUE, items)
        return Queue(settings.queue_size or most, views, dimensions)
    if settings.negatives == "bank":
        return ItemBank(items, views, dimensions, settings.bank_negatives or min(LARGEST_DRAW, items))
    return None
