"""Whether an objective goes with the data and the way it is trained, told before the data are read."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from contraport._utils.formatting import format_options
from contraport.data import Batch, Dataset
from contraport.distributed import local_batch
from contraport.errors import UsageError, check
from contraport.objectives import Loss, Objective, Target
from contraport.objectives.plan_weights import PlanWeightsSchedule
from contraport.training.step.objective_loss import ObjectiveLoss, accepted_keywords

FEW = 4
"""With so many items an objective is called to see what it refuses."""


def check_weights(compared: nn.Module | None, dataset: Dataset, by_plan: PlanWeightsSchedule | None) -> None:
    """Raise `UsageError` where there are weights that nothing takes, or none where they are asked for."""
    weights = dataset.weights
    check(
        by_plan is None or isinstance(compared, Loss),
        f"sample_weight: an objective's plan tells them, and the objective is {compared!r}.",
    )
    check(
        by_plan is None or dataset.present is None,
        f"sample_weight: a plan tells them of items with all views, and some of {dataset.name!r} lack one.",
    )
    check(
        weights is not None or by_plan is not None or not (isinstance(compared, Loss) and compared.requires_weights),
        "constraint: its marginals are weights, and the data have none; expected --sample_weight, a column or an .npy.",
    )
    if weights is not None and (compared is None or "weights" not in accepted_keywords(compared)):
        lacks = f"the call of {type(compared).__name__} has no keyword `weights` to take them"
        raise UsageError(f"sample_weight: {'nothing is compared' if compared is None else lacks}.")


def check_objective_accepts(
    comparison: ObjectiveLoss,
    dataset: Dataset,
    dimensions: int,
    by_plan: PlanWeightsSchedule | None,
    *,
    predictor: bool,
) -> None:
    """Raise `UsageError` where the objective refuses what it would be called on."""
    objective, wanted = comparison.objective, comparison.wanted
    if not isinstance(objective, Loss):
        return  # what a module of one's own refuses is its own affair
    check(
        predictor or not objective.stop_gradient,
        "objective: it pushes nothing apart, so that without a predictor all embeddings become one; "
        f"expected {format_options(predictor=True)}, as in the recipes byol and simsiam.",
    )
    target = None if wanted is None else wanted(dataset.__getitems__([0] * FEW))
    asks, file = objective.requires_features(target), comparison.features
    check(
        file is not None or not asks,
        "teacher: the objective asks for the features of one; expected a file of them, "
        f"{format_options(teacher=...)}, got nothing.",
    )
    check(asks or file is None, "teacher: the objective asks for no features of one; expected nothing, got a file.")
    by_views = isinstance(objective, Objective) and objective.layout.traits.requires_view_features
    check(
        file is None or file.ndim == 3 or not by_views,
        "teacher: features of items say that the views of an item are equal, so that nothing is more alike and nothing "
        "is left out; expected a margin above 0 (--objective_settings.margin 0.2), or features of each view, "
        "(items, views, k).",
    )
    if target is not None:
        _check_target(objective, target)
    views, known = comparison.example(torch.randn(FEW, dimensions), _few(dataset), target)
    if by_plan is not None:
        known["weights"] = replace(by_plan.at(0), given=known["weights"])
    with torch.no_grad(), local_batch():
        copy.deepcopy(objective)(*views, **known)


def _check_target(objective: Loss, target: Target) -> None:
    if (mismatch := objective.mismatch(target)) is not None:
        name = type(objective).__name__ if objective.origin is None else objective.origin.name
        raise UsageError(f"target: {name} {mismatch}.")


def _few(dataset: Dataset) -> Batch:
    """Return a few items of which as much is known as of the data's: alike, and by number the last, the largest."""
    labels, domains = (
        None if values is None else values[:1].expand(FEW) for values in (dataset.labels, dataset.domains)
    )
    weights = dataset.weights
    if weights is not None:
        weights = torch.stack([*[weights.max()] * (FEW - 1), weights.min()])
    return Batch((), labels, domains, torch.arange(FEW) + max(len(dataset) - FEW, 0), weights=weights)
