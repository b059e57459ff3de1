"""Builds the objective of a run as it was after some epochs of its training, from its folder."""

from __future__ import annotations

import copy

from contraport.errors import UsageError
from contraport.objectives import Loss, Objective
from contraport.options import is_object_placeholder
from contraport.runs import Run
from contraport.training.components import build_objective, build_schedules
from contraport.training.config import Settings
from contraport.training.step.target_spec import constant_target


def build_run_objective(settings: Settings) -> Loss | str:
    """Build the objective of a run as it began, or say why its plan cannot be drawn."""
    if settings.objective is None:
        return "The views were decoded and nothing was compared, so there is no plan."
    if is_object_placeholder(settings.objective):
        return "The objective was given as an object, so its plan cannot be drawn from the folder."
    if settings.prototypes is not None:
        return "Items were compared with prototypes, which the folder does not hold, so their plan cannot be drawn."
    wanted = None if settings.target is None else constant_target(settings.target)
    if settings.target is not None and wanted is None:
        return "What was wanted is known of the training items alone, so no plan of test items is drawn beside it."
    try:
        compared = build_objective(settings)
    except UsageError as error:  # of another version, whose encoder can still be judged
        return f"The objective cannot be built again, so its plan cannot be drawn: {error}"
    assert isinstance(compared, Loss)
    if not compared.compares_items:
        return "The objective compares coordinates, so there is no plan of items."
    if wanted is not None:
        assert isinstance(compared, Objective)
        compared.target = wanted
    return compared


def objective_at_epoch(compared: Loss, run: Run, settings: Settings, epochs: int | None) -> Loss | str:
    """Return a copy of the objective as it was after some epochs, or say why its plan cannot be drawn.

    Args:
        compared: the objective as the run began with it (`build_run_objective`).
        run: the run.
        settings: of its training.
        epochs: how many; None: all.
    """
    compared, done = copy.deepcopy(compared), settings.epochs if epochs is None else epochs
    # As if an epoch had two steps, at the second of the last one: there a temperature has come to its end.
    for schedule in build_schedules(settings, compared, steps=1, epoch=2):
        schedule.apply(compared, 2 * max(done, 1) - 1)
    if isinstance(compared, Objective) and compared.constraint.requires_weights:
        return "The plan's marginals were the weights of the training items, so no plan of test items is drawn."
    rows = [row for row in run.metrics() if row.get("epoch", 0) <= done]
    if rows and rows[-1].get("temperature") is not None:  # where it was learned, that is where it ended
        compared.temperature = rows[-1]["temperature"]
    return compared
