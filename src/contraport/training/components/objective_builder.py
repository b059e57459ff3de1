"""Builds the objective, its schedules and its target, and checks that they fit the data."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace

import torch
from torch import Tensor, nn

from contraport._utils.formatting import format_options
from contraport.catalog import objective as named_objective
from contraport.data import Batch, Dataset
from contraport.data.streams import Stream
from contraport.distributed import local_batch
from contraport.errors import UsageError, check
from contraport.objectives import Loss, Objective, Pairs, Target, TemperatureSchedule
from contraport.objectives.loss_schedules import LossSchedule, PlanWeightsSchedule, parse_constraint
from contraport.schedules import is_learned_temperature, parse_temperature_schedule
from contraport.training.config import Settings
from contraport.training.step.step_losses import ObjectiveLoss, accepted_keywords

_log = logging.getLogger(__name__)

PROBE_ITEMS = 4
"""Number of items of the probe call of an objective."""


def build_objective(settings: Settings) -> nn.Module | None:
    """Build the objective from the settings; None for predictive learning.

    Raises:
        UsageError: the objective is unknown, or does not accept its parameters.
    """
    if settings.predict is not None:
        return None
    chosen, temperature = settings.objective, settings.temperature
    own = dict(settings.objective_settings or {})
    if chosen is None:
        raise UsageError("objective: required unless predict is given, got none.", kind="missing")
    if isinstance(chosen, nn.Module):
        for name, value in (("temperature", temperature), ("objective_settings", own)):
            check(not value, f"{name}: only for named objectives; set it on the module.", "module")
        return chosen
    if chosen == "cmc-nce" and settings.negatives == "in-batch":
        message = "objective: cmc-nce contrasts with the rest of the batch only; %s adds negatives from a memory bank"
        _log.warning(message, format_options(negatives="bank"))
    if temperature is None:
        return named_objective(chosen, **own)
    check("temperature" not in own, "temperature: given twice, also in objective_settings.", "duplicate")
    start = (
        temperature if is_learned_temperature(temperature) else parse_temperature_schedule(temperature, steps=1).start
    )
    return named_objective(chosen, temperature=start, **own)


def build_loss_schedules(
    settings: Settings, objective: nn.Module | None, *, steps: int, steps_per_epoch: int
) -> tuple[LossSchedule, ...]:
    """Build the schedules of the temperature and the constraint of the objective.

    Raises:
        UsageError: the objective has no single constraint.
    """
    schedules: list[LossSchedule] = []
    if isinstance(settings.temperature, str) and not is_learned_temperature(settings.temperature):
        schedules.append(TemperatureSchedule.parse(settings.temperature, steps))
    if settings.constraint is not None:
        if not isinstance(objective, Loss):
            raise UsageError(f"constraint: requires a single objective, got {objective!r}.", kind="no_constraint")
        schedules.append(parse_constraint(settings.constraint, steps_per_epoch))
        schedules[-1].apply(objective, 0)  # raises before the first step if the objective does not support it
    return tuple(schedules)


def resolve_target_option(settings: Settings, dataset: Dataset, objective: nn.Module, views: int) -> str | None:
    """Return the target of the settings; the default is "shown" if items share content and views are positives."""
    if settings.target is not None or isinstance(dataset, Stream):
        return settings.target
    if not (isinstance(objective, Objective) and objective.target == Pairs()):
        return None
    # With three or more views, equal content in one (such as coarse features) does not relate a pair of two others.
    is_comparable = len(dataset.shapes) == 1 or len(dataset.shapes) == views == 2
    pairs_views = objective.layout.traits.views_are_positives
    return "shown" if pairs_views and is_comparable and dataset.content_ids is not None else None


def check_sample_weights(
    objective: nn.Module | None, dataset: Dataset, plan_weights: PlanWeightsSchedule | None
) -> None:
    """Raise `UsageError` if sample weights are given but not supported, or required but missing."""
    if plan_weights is not None:
        message = f"sample_weight: plan requires a contraport objective, got {objective!r}."
        check(isinstance(objective, Loss), message, "no_plan")
        message = f"sample_weight: plan requires all views of each item; some items of {dataset.name!r} lack a view."
        check(dataset.present is None, message, "missing_views")
    elif dataset.weights is None:
        message = (
            "constraint: marginals=weights requires sample weights; add --sample_weight with a column or an .npy file."
        )
        check(not (isinstance(objective, Loss) and objective.requires_weights), message, "no_weights")
    if dataset.weights is not None and (objective is None or "weights" not in accepted_keywords(objective)):
        loss = "predict" if objective is None else f"{type(objective).__name__}, whose call has no keyword `weights`"
        raise UsageError(f"sample_weight: not supported by {loss}.", kind="unsupported")


def check_objective_accepts(
    loss: ObjectiveLoss,
    dataset: Dataset,
    dimensions: int,
    plan_weights: PlanWeightsSchedule | None,
    *,
    predictor: bool,
) -> None:
    """Raise `UsageError` if a call of the objective on a few items fails: inputs are missing or do not fit."""
    objective = loss.objective
    if not isinstance(objective, Loss):
        return  # a custom module has no declarations to check
    message = (
        f"objective: requires a predictor, since it has no negatives and would collapse. Add "
        f"{format_options(predictor=True)}, or use the recipe byol or simsiam."
    )
    check(predictor or not objective.stop_gradient, message, "collapses")
    target = None if loss.target is None else loss.target(dataset.__getitems__([0] * PROBE_ITEMS))
    _check_teacher(objective, loss.teacher, target)
    if target is not None and (mismatch := objective.target_conflict(target)) is not None:
        name = type(objective).__name__ if objective.catalog_origin is None else objective.catalog_origin.name
        raise UsageError(f"target: {name} {mismatch}.", kind="mismatch")
    views, kwargs = loss.build_trial_call(torch.randn(PROBE_ITEMS, dimensions), _probe_batch(dataset), target)
    if plan_weights is not None:
        kwargs["weights"] = replace(plan_weights.weights_at(0), item_weights=kwargs["weights"])
    try:
        with torch.no_grad(), local_batch():
            copy.deepcopy(objective)(*views, **kwargs)  # a copy, since a call may change buffers
    except UsageError as error:
        if error.argument != "weights":
            raise
        # `weights` is the keyword of objectives; the user of a training knows it as the option `sample_weight`
        message = f"sample_weight{str(error).removeprefix('weights')}"
        raise UsageError(message, kind=error.code.removeprefix("weights.")) from error


def _check_teacher(objective: Loss, teacher: Tensor | None, target: Target | None) -> None:
    """Raise `UsageError` if teacher features are missing, unused, or per item where they must be per view."""
    is_required = objective.requires_features(target)
    if teacher is None:
        message = "teacher: required by the objective, got none. Pass a file of features, --teacher FILE."
        check(not is_required, message, "missing")
        return
    check(is_required, "teacher: not used by the objective; leave it out.", "unused")
    by_view = isinstance(objective, Objective) and objective.layout.traits.requires_view_features
    message = (
        "teacher: features per item have similarity 1 between the views of an item, so that no negative is dropped. "
        "Set a margin (--objective_settings.margin 0.2), or give features per view, (items, views, k)."
    )
    check(teacher.ndim == 3 or not by_view, message, "per_item")


def _probe_batch(dataset: Dataset) -> Batch:
    """Return a small batch for a trial call: without views, with equal labels and the largest ids of the data."""
    labels, domains = (
        None if values is None else values[:1].expand(PROBE_ITEMS) for values in (dataset.labels, dataset.domains)
    )
    weights = dataset.weights
    if weights is not None:
        weights = torch.stack([*[weights.max()] * (PROBE_ITEMS - 1), weights.min()])
    return Batch((), labels, domains, torch.arange(PROBE_ITEMS) + max(len(dataset) - PROBE_ITEMS, 0), weights=weights)
