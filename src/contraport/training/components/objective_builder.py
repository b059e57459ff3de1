"""Builds the objective, its schedules and its target."""

from __future__ import annotations

from torch import nn

from contraport.catalog import objective as named_objective
from contraport.data import Dataset
from contraport.data.streams import Stream
from contraport.errors import UsageError, check
from contraport.objectives import Loss, Objective, Pairs, TemperatureSchedule
from contraport.objectives.loss_schedules import LossSchedule, parse_constraint
from contraport.schedules import is_learned_temperature, parse_temperature
from contraport.training.config import Settings


def build_objective(settings: Settings) -> nn.Module | None:
    """Return the objective, or None for predictive learning.

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
    if temperature is None:
        return named_objective(chosen, **own)
    check("temperature" not in own, "temperature: given twice, also in objective_settings.", "duplicate")
    start = temperature if is_learned_temperature(temperature) else parse_temperature(temperature, steps=1).start
    return named_objective(chosen, temperature=start, **own)


def build_schedules(
    settings: Settings, objective: nn.Module | None, *, steps: int, steps_per_epoch: int
) -> tuple[LossSchedule, ...]:
    """Return the schedules of the objective's temperature and constraint.

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


def resolve_target(settings: Settings, dataset: Dataset, objective: nn.Module, views: int) -> str | None:
    """Return the target: that of the settings; else "shown" if items share content and the objective pairs views."""
    if settings.target is not None or isinstance(dataset, Stream):
        return settings.target
    if not (isinstance(objective, Objective) and objective.target == Pairs()):
        return None
    # With three or more views, equal content in one (such as coarse features) does not relate a pair of two others.
    is_comparable = len(dataset.shapes) == 1 or len(dataset.shapes) == views == 2
    pairs_views = objective.layout.traits.views_are_positives
    return "shown" if pairs_views and is_comparable and dataset.content_ids is not None else None
