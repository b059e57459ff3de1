"""From the settings of a training to what embeddings are compared by: the objective, its target, its schedules."""

from __future__ import annotations

from torch import nn

from contraport.catalog import objective
from contraport.data import Dataset
from contraport.data.streams import Stream
from contraport.errors import UsageError, check
from contraport.objectives import Loss, Objective, Pairs, TemperatureSchedule
from contraport.objectives.loss_schedules import LossSchedule, parse_constraint
from contraport.schedules import is_learned_temperature, parse_temperature
from contraport.training.config import Settings


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
    start = temperature if is_learned_temperature(temperature) else parse_temperature(temperature, steps=1).start
    return objective(chosen, temperature=start, **own)


def build_schedules(
    settings: Settings, compared: nn.Module | None, *, steps: int, epoch: int
) -> tuple[LossSchedule, ...]:
    """Return what sets the objective's temperature and constraint at each step.

    Raises:
        UsageError: the objective has no single constraint.
    """
    schedules: list[LossSchedule] = []
    if isinstance(settings.temperature, str) and not is_learned_temperature(settings.temperature):
        schedules.append(TemperatureSchedule.parse(settings.temperature, steps))
    if settings.constraint is not None:
        if not isinstance(compared, Loss):
            raise UsageError(f"constraint: expected a single objective, whose constraint can change, got {compared!r}.")
        schedules.append(parse_constraint(settings.constraint, epoch))
        schedules[-1].apply(compared, 0)  # it may refuse the constraint, which is to be told before any step
    return tuple(schedules)


def target_of(settings: Settings, dataset: Dataset, compared: nn.Module, views: int) -> str | None:
    """Return the target: the one of the settings; else, where items share content, the pairs that do so too."""
    if settings.target is not None or isinstance(dataset, Stream):
        return settings.target
    pairs = (
        isinstance(compared, Objective) and compared.target == Pairs() and compared.layout.traits.views_are_positives
    )
    # Of three views or more, equal content in one, such as coarse features, says nothing of a pair of two others.
    comparable = len(dataset.shapes) == 1 or len(dataset.shapes) == views == 2
    return "shown" if pairs and comparable and dataset.content_ids is not None else None
