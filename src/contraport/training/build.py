"""From the arguments of a training and its data to what is trained: the objective, the model, the pipeline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from contraport.data import Dataset, Views, load
from contraport.encoders import Model
from contraport.errors import UsageError, check
from contraport.objectives import Objective, Temperature, objective
from contraport.objectives.schedules import Schedule, parse_constraint
from contraport.training.step.assembly import assemble
from contraport.training.step.momentum import Momentum
from contraport.training.step.pipeline import Pipeline


def load_data(arguments: Mapping[str, Any]) -> Dataset:
    """Return the training split that the arguments of `contraport.train` say.

    Raises:
        UsageError: there is no such data, or it cannot be read as the arguments say.
    """
    names = ("root", "image_size", "columns", "test_fraction")
    return load(arguments["data"], "train", **{name: arguments[name] for name in names})


def steps_of_epoch(items: int, *, batch_size: int, accumulate: int) -> int:
    """Return how many steps an epoch has: of its whole batches each step takes some."""
    return math.ceil(items // batch_size / accumulate)


def make_objective(arguments: Mapping[str, Any]) -> nn.Module | None:
    """Return the objective that the arguments of `contraport.train` say, or None where nothing is compared.

    Raises:
        UsageError: there is no such objective, or it does not take its settings.
    """
    if arguments["predict"] is not None:
        return None
    chosen, temperature = arguments["objective"], arguments["temperature"]
    settings = dict(arguments["objective_settings"] or {})
    if chosen is None:
        raise UsageError("objective: expected a name or a module, as nothing is to be predicted either; got nothing.")
    if isinstance(chosen, nn.Module):
        check(temperature is None, "temperature: belongs to a named objective; set it on the module.")
        check(not settings, "objective_settings: belong to a named objective; set them on the module.")
        return chosen
    if temperature is None:
        return objective(chosen, **settings)
    check("temperature" not in settings, "temperature: given twice, by itself and in objective_settings.")
    return objective(chosen, temperature=Temperature.parse(temperature, steps=1).start, **settings)


def make_pipeline(
    dataset: Dataset, criterion: nn.Module | None, arguments: Mapping[str, Any], *, epoch: int
) -> Pipeline:
    """Return the pipeline that the arguments of `contraport.train` say, its weights drawn by their seed.

    Torch's random state stays as it is.

    Args:
        dataset: what is trained on.
        criterion: what `make_objective` gave.
        arguments: all those of `contraport.train`, by name.
        epoch: the number of steps of one.

    Raises:
        UsageError: arguments that do not fit the data or one another.
    """
    views = Views(dataset, augment=arguments["augment"], views=arguments["views"])
    steps, momentum = arguments["epochs"] * epoch, arguments["momentum"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(arguments["seed"])
        return assemble(
            _model(views, arguments),
            views,
            criterion,
            dataset,
            seed=arguments["seed"],
            momentum=None if momentum is None else Momentum.parse(momentum, steps),
            schedules=_schedules(
                criterion, arguments["temperature"], arguments["constraint"], steps=steps, epoch=epoch
            ),
            **{name: arguments[name] for name in _TAKEN_AS_THEY_ARE},
        )


_TAKEN_AS_THEY_ARE = (
    "negatives", "queue_size", "bank_negatives", "predictor", "prototypes", "predict", "cache_chunk",
)  # fmt: skip


def _schedules(
    criterion: nn.Module | None, temperature: float | str | None, constraint: str | None, *, steps: int, epoch: int
) -> tuple[Schedule, ...]:
    schedules: list[Schedule] = []
    if isinstance(temperature, str):
        schedules.append(Temperature.parse(temperature, steps))
    if constraint is not None:
        check(
            isinstance(criterion, Objective),
            f"constraint: expected a single objective, whose plan can change, got {criterion!r}.",
        )
        schedules.append(parse_constraint(constraint, epoch))
    return tuple(schedules)


def _model(views: Views, arguments: Mapping[str, Any]) -> Model:
    shared = arguments["shared_encoder"]
    changes_of_one = len(views.plain_shapes) == 1
    check(shared is not False or not changes_of_one, "shared_encoder: expected true for random changes of one view.")
    one = changes_of_one if shared is None else shared
    statistics = views.statistics()[: 1 if one else None]
    mean, std = ([values[which] for values in statistics] for which in (0, 1))
    return Model(
        arguments["encoder"], views.plain_shapes, arguments["projection"], mean, std, arguments["representation"],
        shared=one,
    )  # fmt: skip
