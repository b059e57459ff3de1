"""From the settings of a training to what embeddings are compared by: the objective, its target, its schedules."""

from __future__ import annotations

from torch import nn

from contraport.catalog import objective
from contraport.course import is_learned, parse_temperature
from contraport.data import Dataset
from contraport.errors import UsageError, check
from contraport.objectives import Loss, Objective, Pairs, Target, Temperature
from contraport.objectives.schedules import Schedule, parse_constraint
from contraport.objectives.weighting import PlanWeights
from contraport.training.step.comparison import taken_by
from contraport.verbs.train import Settings


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


def target_of(settings: Settings, dataset: Dataset, compared: nn.Module, views: int) -> str | None:
    """Return which plan is wanted: the one asked for; of pairs of which some show the same, those that do so too."""
    pairs = isinstance(compared, Objective) and compared.target == Pairs() and compared.layout.traits.matches_views
    known = dataset.shown is not None and len(dataset.shapes) == views
    return "shown" if settings.target is None and pairs and known else settings.target


def check_weights(compared: nn.Module | None, dataset: Dataset, by_plan: PlanWeights | None) -> None:
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


def check_target(objective: Loss, target: Target) -> None:
    """Raise `UsageError` where what is wanted is fixed by what the objective means."""
    name = type(objective).__name__ if objective.origin is None else objective.origin.name
    if not isinstance(objective, Objective):
        raise UsageError(f"target: {name} is a sum of objectives, each of which wants its own; expected nothing.")
    check(
        target.from_views or objective.layout.traits.compares_positives,
        f"target: {name} keeps an item's views out of what they are compared with, so that it is these that are "
        f"wanted; expected pairs, or nothing, got {target!r}.",
    )
