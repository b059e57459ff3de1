"""Builds and checks the objective and the training module of a run."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from contraport._utils.formatting import format_keyword_or_flag, format_options
from contraport._utils.spec_parser import parse_setting_value
from contraport._utils.text_bytes import TEXT_SHAPE
from contraport.catalog import objective as named_objective
from contraport.catalog.objectives import OBJECTIVE_FROM_PARTS
from contraport.data import Batch, Dataset, Views
from contraport.data.formats.tables import check_several_views, find_suggested_views
from contraport.data.streams import Stream
from contraport.distributed import use_local_batch
from contraport.embedding import LoaderConfig
from contraport.encoders import InitialWeights, Model
from contraport.errors import UsageError, check, rename_argument
from contraport.objectives import Cross, Loss, Objective, Pairs, TemperatureSchedule, WeightsFromPlan, matryoshka
from contraport.objectives.component_specs import replace_components
from contraport.objectives.loss_schedules import (
    CONSTRAINTS,
    LossSchedule,
    parse_constraint_schedule,
    parse_sample_weight_schedule,
)
from contraport.schedules import is_learned_temperature, parse_momentum_schedule, parse_temperature_schedule
from contraport.training.components.data_builder import build_views, count_draws_to_cache
from contraport.training.components.model_builder import (
    build_model,
    check_encoder_accepts_views,
    resolve_option_per_tower,
    seeded_weight_initialization,
)
from contraport.training.components.teacher_features import get_teacher_features, normalize_and_resize_by_svd
from contraport.training.config import Settings
from contraport.training.config.objective_options import PROTOTYPES_FROM_TEACHER, parse_matryoshka_weights
from contraport.training.data_parallelism import resolve_available_device
from contraport.training.step.embedding_memory import EmbeddingMemory, MovingAverageBank, Queue
from contraport.training.step.momentum_and_predictor import MomentumEncoder, Predictor
from contraport.training.step.step_losses import (
    AllViewsOrPairwiseLoss,
    CrossViewInputReconstructionLoss,
    FixedTeacherQueueDistillationLoss,
    ObjectiveStepLoss,
    PrototypeLoss,
    QueryKeyLoss,
    StepLoss,
    get_forward_parameter_names,
)
from contraport.training.step.target_parser import build_target_function
from contraport.training.step.training_module import (
    EncoderFreezer,
    MinedBatchLayout,
    TrainingModule,
    count_views_used_as_keys,
)

_log = logging.getLogger(__name__)

TRIAL_BATCH_SIZE = 4
"""Number of items in the trial call that checks an objective before the training."""


_REPLACED_PART_OPTION_NAMES = "layout", "kernel", "divergence"
"""Names of the options that replace a part of the objective; a constraint or target is applied apart from them."""


def build_objective(settings: Settings) -> nn.Module | None:
    """Build the objective from the settings; return None if the option `predict` is set."""
    if settings.predict is not None:
        return None
    objective, temperature = settings.objective, settings.temperature
    objective_settings = dict(settings.objective_settings or {})
    if objective is None:
        raise UsageError("objective: required unless predict is given, not given.", kind="missing")
    dims = None if settings.matryoshka is None else parse_matryoshka_weights(settings.matryoshka)
    if isinstance(objective, nn.Module):
        for name in ("temperature", "objective_settings", *_REPLACED_PART_OPTION_NAMES):
            check(not getattr(settings, name), f"{name}: only for named objectives; set it on the module.", "module")
        if dims is None:
            return objective
        message = f"matryoshka: requires an objective of contraport, got a {type(objective).__name__}."
        check(isinstance(objective, Loss), message, "module")
        return matryoshka(cast(Loss, objective), list(dims), list(dims.values()))
    if objective == "cmc-nce" and settings.negatives == "in-batch":
        message = "objective: cmc-nce contrasts with the rest of the batch only; %s adds negatives from a memory bank"
        _log.warning(message, format_options(negatives="bank"))
    is_custom = str(objective) == OBJECTIVE_FROM_PARTS
    changed = [name for name in (*_REPLACED_PART_OPTION_NAMES, "constraint", "target") if getattr(settings, name)]
    message = "objective: custom requires a layout, kernel, constraint, target or divergence, got none; see info-nce."
    check(not is_custom or bool(changed), message, "no_parts")
    objective = _build_named_objective(objective, temperature, objective_settings)
    parts = {name: getattr(settings, name) for name in _REPLACED_PART_OPTION_NAMES}
    if any(parts.values()):
        text = settings.constraint or ""  # may also name a schedule of constraints, which replaces it later
        constraint = text if text.partition(":")[0] in CONSTRAINTS else None
        objective = replace_components(objective, **parts, constraint=constraint)
    return objective if dims is None else matryoshka(objective, list(dims), list(dims.values()))


def _build_named_objective(name: str, temperature: float | str | None, objective_settings: dict[str, Any]) -> Loss:
    """Build an objective of the catalog with its settings, at the initial temperature."""
    own: dict[str, Any] = {}
    if temperature is not None:
        check("temperature" not in objective_settings, "temperature: given twice, also as a setting.", "duplicate")
        is_schedule = not is_learned_temperature(temperature)
        own["temperature"] = parse_temperature_schedule(temperature, steps=1).start if is_schedule else temperature
    # A pair of numbers from the command line, such as (.1,.2), is a text.
    objective_settings = {key: parse_setting_value(value) for key, value in objective_settings.items()}
    try:
        return named_objective(name, **own, **objective_settings)
    except UsageError as error:  # it names the objective or the setting, but not the option
        kind, message = error.code.rpartition(".")[2], f"objective_settings: {error}"
        if error.argument in objective_settings:
            option = format_options(objective_settings={error.argument: objective_settings[error.argument]})
            message = f"{error} Passed as {option}."
        elif not any(repr(key) in str(error) for key in objective_settings):
            raise
        raise UsageError(message, kind=kind) from error


def build_loss_schedules(
    settings: Settings, objective: nn.Module | None, *, steps: int, steps_per_epoch: int
) -> tuple[LossSchedule, ...]:
    """Build the schedules of an objective's temperature and constraint over the steps."""
    schedules: list[LossSchedule] = []
    if isinstance(settings.temperature, str) and not is_learned_temperature(settings.temperature):
        schedules.append(TemperatureSchedule.parse(settings.temperature, steps))
    if settings.constraint is not None:
        if not isinstance(objective, Loss):
            raise UsageError(f"constraint: requires a single objective, got {objective!r}.", kind="no_constraint")
        schedules.append(parse_constraint_schedule(settings.constraint, steps_per_epoch))
        schedules[-1].apply(objective, 0)  # raises before the first step if the objective does not support it
    return tuple(schedules)


def resolve_target_text(settings: Settings, dataset: Dataset, objective: nn.Module, views: int) -> str | None:
    """Return the option `target`, or a default that depends on whether items repeat."""
    if settings.target is not None or isinstance(dataset, Stream):
        return settings.target
    if not (isinstance(objective, Objective) and objective.target == Pairs()):
        return None
    # With three or more views, equal content in one (such as coarse features) does not relate a pair of two others.
    is_comparable = len(dataset.shapes) == 1 or len(dataset.shapes) == views == 2
    pairs_views = objective.layout.traits.views_are_positives
    return "shown" if pairs_views and is_comparable and dataset.view_content_ids_if_repeated is not None else None


def check_sample_weights_fit_objective(
    objective: nn.Module | None, dataset: Dataset, weights_from_plan_schedule: Callable[[int], WeightsFromPlan] | None
) -> None:
    """Raise `UsageError` if sample weights are unsupported, or required but missing."""
    if weights_from_plan_schedule is not None:
        message = f"sample_weight: plan requires a contraport objective, got {objective!r}."
        check(isinstance(objective, Loss), message, "no_plan")
        message = "sample_weight: plan requires all views of each item; " + (
            f"some items of {dataset.name!r} lack a view." if dataset.present is not None else "audit drops views."
        )
        check(not dataset.has_missing_or_distrusted_views, message, "missing_views")
    elif dataset.weights is None:
        message = (
            "constraint: marginals=weights requires sample weights; add "
            f"{format_keyword_or_flag('sample_weight')} with a column or an .npy file."
        )
        check(not (isinstance(objective, Loss) and objective.requires_weights), message, "no_weights")
    if dataset.weights is not None and (objective is None or "weights" not in get_forward_parameter_names(objective)):
        loss = "predict" if objective is None else f"{type(objective).__name__}, whose call has no keyword `weights`"
        raise UsageError(f"sample_weight: not supported by {loss}.", kind="unsupported")


def check_trial_call(
    loss: ObjectiveStepLoss,
    dataset: Dataset,
    dimensions: int,
    weights_from_plan_schedule: Callable[[int], WeightsFromPlan] | None,
    *,
    predictor: bool,
) -> None:
    """Raise `UsageError` if a trial call of the objective fails."""
    objective = loss.objective
    if not isinstance(objective, Loss):
        return  # a custom module has no declarations to check
    message = (
        f"objective: requires a predictor, since it has no negatives and would collapse. Add "
        f"{format_options(predictor=True)}, or use the recipe byol or simsiam."
    )
    check(predictor or not objective.stop_gradient, message, "collapses")
    target_of_batch = loss.target_of_batch
    target = None if target_of_batch is None else target_of_batch(dataset.__getitems__([0] * TRIAL_BATCH_SIZE))
    requires_teacher = objective.requires_features_argument(target)
    remedy = f"Pass {format_keyword_or_flag('teacher')} with a folder or a file."
    message = f"teacher: required by the objective, not given. {remedy}"
    check(loss.teacher_features is not None or not requires_teacher, message, "missing")
    if loss.teacher_features is not None:
        check(requires_teacher, "teacher: not used by the objective; leave it out.", "unused")
        by_view = isinstance(objective, Objective) and objective.layout.traits.requires_view_features
        message = (
            "teacher: features per item have similarity 1 between the views of an item, so no negative is dropped. "
            f"Use {format_options(objective_settings={'margin': 0.2})}, or give features per view, (items, views, k)."
        )
        check(loss.teacher_features.ndim == 3 or not by_view, message, "per_item")
    if target is not None and (mismatch := objective.target_refusal_message(target)) is not None:
        name = type(objective).__name__ if objective.catalog_origin is None else objective.catalog_origin.name
        raise UsageError(f"target: {name} {mismatch}.", kind="mismatch")
    # The batch has no views, one label for all items, and the largest ids of the data.
    labels, domains = (
        None if values is None else values[:1].expand(TRIAL_BATCH_SIZE) for values in (dataset.labels, dataset.domains)
    )
    weights = dataset.weights
    if weights is not None:
        weights = torch.stack([*[weights.max()] * (TRIAL_BATCH_SIZE - 1), weights.min()])
    ids = torch.arange(TRIAL_BATCH_SIZE) + max(len(dataset) - TRIAL_BATCH_SIZE, 0)
    batch = Batch((), labels, domains, ids, weights=weights)
    views, kwargs = loss.build_trial_arguments(torch.randn(TRIAL_BATCH_SIZE, dimensions), batch, target)
    if weights_from_plan_schedule is not None:
        kwargs["weights"] = replace(weights_from_plan_schedule(0), batch_item_weights=kwargs["weights"])
    # `weights` is the keyword of objectives; the user of a training run knows it as the option `sample_weight`
    with torch.no_grad(), use_local_batch(), rename_argument("sample_weight", "weights"):
        copy.deepcopy(objective)(
            *views, **objective.without_unread_labels(kwargs)
        )  # a copy, since a call may change buffers


def build_training_module(
    settings: Settings,
    dataset: Dataset,
    objective: nn.Module | None,
    *,
    steps_per_epoch: int,
    initial_weights: InitialWeights | None = None,
    architecture_folder: Path | None = None,
    mined_layout: MinedBatchLayout | None = None,
) -> TrainingModule:
    """Build the training module, with random weights that depend on the seed.

    Torch's global random state does not change.

    >>> from contraport.data import load, build_loader
    >>> from contraport.training.components.step_builder import build_objective
    >>> digits, settings = load("digits"), Settings(encoder="mlp")
    >>> module = build_training_module(settings, digits, build_objective(settings), steps_per_epoch=42)
    >>> loss = module(next(iter(build_loader(digits, 32))), step=0)
    >>> loss.shape, module.after_step(0)
    (torch.Size([]), None)
    """
    views, steps = build_views(settings, dataset), settings.epochs * steps_per_epoch
    momentum = None if settings.momentum is None else parse_momentum_schedule(settings.momentum, steps)
    schedules = build_loss_schedules(settings, objective, steps=steps, steps_per_epoch=steps_per_epoch)
    weights_from_plan_schedule = None
    if settings.sample_weight_source == "plan":
        weights_from_plan_schedule = parse_sample_weight_schedule(str(settings.sample_weight), steps)
    check_sample_weights_fit_objective(objective, dataset, weights_from_plan_schedule)
    is_one_view = settings.shared_encoder is False and len(dataset.shapes) == 1
    if is_one_view and find_suggested_views(settings.data, settings.columns) is not None:
        purpose = "shared_encoder: false" if settings.recipe is None else f"the recipe {settings.recipe!r}"
        check_several_views(dataset, purpose, data=settings.data, declared_roles=settings.columns)
    with seeded_weight_initialization(settings.seed):
        model = build_model(settings, views, initial_weights, architecture_folder)
        check_encoder_accepts_views(model, views)
        check(len(views.shapes) >= 2, f"views: must be at least 2, got {len(views.shapes)}.", "too_few")
        loss = _build_step_loss(settings, dataset, model, views, objective, weights_from_plan_schedule)
        momentum_encoder = None if momentum is None else MomentumEncoder(model, momentum)
        sizes = [model.tower(view).projection_width for view in range(len(model.towers))]
        predictor = Predictor(sizes) if settings.predictor else None
    return TrainingModule(
        model,
        views,
        loss,
        seed=settings.seed,
        momentum_encoder=momentum_encoder,
        predictor=predictor,
        schedules=schedules,
        weights_from_plan_schedule=weights_from_plan_schedule,
        cache_chunk=settings.cache_chunk,
        encoder_freezer=_build_encoder_freezer(settings, model, momentum_encoder, steps_per_epoch),
        mined_layout=mined_layout,
    )


def _build_encoder_freezer(
    settings: Settings, model: Model, momentum_encoder: MomentumEncoder | None, steps_per_epoch: int
) -> EncoderFreezer | None:
    """Build the `EncoderFreezer`, or return None if no option needs it."""
    if not (settings.freezes_some_encoder_throughout or settings.freeze_epochs or settings.lora):
        return None
    steps = settings.freeze_epochs * steps_per_epoch or None
    frozen = resolve_option_per_tower(
        "freeze", settings.freezes_all_encoders_throughout or steps is not None or settings.freeze, model
    )
    adapted = resolve_option_per_tower("lora", settings.lora, model)

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
    weights_from_plan_schedule: Callable[[int], WeightsFromPlan] | None,
) -> StepLoss:
    """Build the loss of a training step from an objective or a baseline method."""
    loss: StepLoss
    if settings.predict is not None:
        check(TEXT_SHAPE not in views.shapes, "predict: requires numeric views, got texts.", "texts")
        loss = CrossViewInputReconstructionLoss(model, views.shapes, settings.predict)
    else:
        assert objective is not None
        loss = _build_objective_loss(settings, dataset, model, views, objective, weights_from_plan_schedule)
    if dataset.has_missing_or_distrusted_views and (reason := loss.missing_views_unsupported_reason()) is not None:
        message = f"audit: not supported for more than two views, of which it drops some: {reason}."
        check(dataset.present is not None, message, "missing_views")
        assert dataset.present is not None
        incomplete = int((~dataset.present.all(1)).sum())
        raise UsageError(f"data: {incomplete} of {len(dataset)} items lack a view; {reason}.", kind="missing_views")
    return loss


def _build_objective_loss(
    settings: Settings,
    dataset: Dataset,
    model: Model,
    views: Views,
    objective: nn.Module,
    weights_from_plan_schedule: Callable[[int], WeightsFromPlan] | None,
) -> ObjectiveStepLoss:
    """Build the part of the training step that calls an objective."""
    sizes, number = [model.tower(view).projection_width for view in range(len(model.towers))], len(views.shapes)
    message = f"projection: required, since the encoders have feature sizes {sizes}; got 0."
    check(len(set(sizes)) == 1, message, "sizes_differ")
    if isinstance(objective, Loss) and objective.accepts_vector_sets:
        _check_late_interaction_settings(settings)
    largest = max(settings.matryoshka_dims, default=sizes[0])
    message = f"matryoshka: the largest must be {sizes[0]}, the size of the compared embeddings, got {largest}."
    check(largest == sizes[0], message, "range")
    memory = _build_embedding_memory(settings, dataset, count_views_used_as_keys(model, views.shapes), sizes[0])
    target, teacher = resolve_target_text(settings, dataset, objective, number), None
    if settings.teacher is not None:
        device, trust = resolve_available_device(settings.device), settings.trust_remote_code
        loader_config = LoaderConfig(device=device, num_workers=settings.num_workers)
        teacher = get_teacher_features(
            "teacher", settings.teacher, dataset, loader_config, views=number, trust_remote_code=trust
        )
    loss: ObjectiveStepLoss
    if settings.prototypes == PROTOTYPES_FROM_TEACHER:
        assert teacher is not None
        queue_size = settings.queue_size or max(1, min(8_192, len(dataset) // 2))
        loss = FixedTeacherQueueDistillationLoss(
            objective, normalize_and_resize_by_svd(teacher, sizes[0]), queue_size, views=number
        )
    elif settings.prototypes is not None:
        loss = PrototypeLoss(objective, int(settings.prototypes), sizes[0], views=number)
    else:
        target_of_batch = None if target is None else build_target_function(target, dataset)
        kwargs: dict[str, Any] = {"views": number, "target_of_batch": target_of_batch, "teacher_features": teacher}
        if settings.log_q:
            kwargs["column_weights"] = _inverse_second_item_frequency_per_pair(dataset, objective)
        has_mined = settings.mined_negatives_spec is not None
        if memory is not None or has_mined or settings.momentum is not None or settings.predictor:
            loss = QueryKeyLoss(objective, memory, has_mined_negatives=has_mined, **kwargs)
        else:
            loss = AllViewsOrPairwiseLoss(objective, **kwargs)
    try:
        check_trial_call(loss, dataset, sizes[0], weights_from_plan_schedule, predictor=settings.predictor)
    except UsageError as error:
        if error.code == "labels.missing" and settings.ignore_labels:
            remedy = f"leave out {format_options(ignore_labels=True)}"
            message = f"ignore_labels: {settings.recipe_or_objective_name} requires labels; {remedy}."
            raise UsageError(message, kind="labels_required") from error
        if error.code.endswith(".missing") or settings.prototypes is not None or target == settings.target:
            raise
        if not dataset.items_are_entity_pairs:
            error.add_note(f"Items of {dataset.name!r} share content; {format_options(target='pairs')} ignores this.")
        raise
    return loss


def _check_late_interaction_settings(settings: Settings) -> None:
    """Raise `UsageError` for options that late interaction does not support."""
    unsupported = {
        "negatives": settings.negatives != "in-batch",
        "momentum": settings.momentum is not None,
        "predictor": settings.predictor,
        "prototypes": settings.prototypes is not None,
        "freeze": count_draws_to_cache(settings) > 0,
    }
    for name, used in unsupported.items():
        remedy = f" Add {format_options(frozen_draws=0)}." if name == "freeze" else ""
        message = f"{name}: not supported by a kernel of sets of vectors, as it needs one vector per item.{remedy}"
        check(not used, message, "sets")


def _inverse_second_item_frequency_per_pair(dataset: Dataset, objective: nn.Module) -> Tensor:
    """Return the inverse frequency of pairs' second items, ``(n,)``, for logQ correction.

    Raises:
        UsageError: the data or the objective do not support the option `log_q`.
    """
    if dataset.entity_ids is None:
        message = f"log_q: requires pairs between two sets, see contraport.data.from_coupling; got {dataset.name!r}."
        raise UsageError(message, kind="no_coupling")
    one_direction = isinstance(objective, Objective) and objective.layout == Cross(symmetric=False)
    flags = format_options(objective="info-nce", objective_settings={"symmetric": False})
    check(one_direction, f"log_q: requires an objective in one direction; use {flags}.", "two_directions")
    columns = dataset.entity_ids[:, 1]
    return 1 / columns.bincount()[columns].float()


def _build_embedding_memory(
    settings: Settings, dataset: Dataset, views: int, dimensions: int
) -> EmbeddingMemory | None:
    """Build a queue or memory bank if the option `negatives` names one."""
    items = len(dataset)
    if settings.negatives == "queue":
        default_size = 65_536 if isinstance(dataset, Stream) else min(65_536, items)
        return Queue(settings.queue_size or default_size, views, dimensions)
    if settings.negatives == "bank":
        return MovingAverageBank(items, views, dimensions, settings.bank_negatives or min(4_096, items))
    return None
