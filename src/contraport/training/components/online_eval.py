"""Builds the evaluation data of the online metrics, a subset of the training items."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import torch

from contraport.data import Dataset
from contraport.data.arrays import copy_subset
from contraport.embedding import LoaderConfig
from contraport.errors import check
from contraport.metrics.registry import parse_scheduled_metrics
from contraport.objectives import Loss
from contraport.seeding import torch_generator
from contraport.training.components.assembly import Components
from contraport.training.components.data_builder import build_views
from contraport.training.config import Settings

if TYPE_CHECKING:
    from contraport.metrics.eval_context import EvalContext


EvalContextFactory: TypeAlias = "Callable[[torch.device], EvalContext]"
"""Creates the evaluation data of the online metrics on a device."""


MONITOR_ITEMS = 2_000
"""Maximum number of training items for online metrics."""


def build_online_eval_data(settings: Settings, components: Components, dataset: Dataset) -> EvalContextFactory | None:
    """Build a function that maps a device to the evaluation data of the online metrics; None without `online_metrics`.

    The data are a fixed random subset of the training items, at most `MONITOR_ITEMS`: one half to fit probes, the other
    to score them. No test item is used.

    Args:
        settings: settings of the training.
        components: components of the training.
        dataset: the training items, before pairs are mismatched on purpose.

    Raises:
        UsageError: a metric cannot be computed on these items.
    """
    watches = parse_scheduled_metrics(settings.online_metrics)
    if not watches:
        return None
    # Imported here: scikit-learn is slow to import, and trainings without online metrics do not use it.
    from contraport.metrics.eval_context import EvalContext
    from contraport.metrics.probes import check_enough_neighbors

    model, objective = components.module.model, components.module.objective
    whole = dataset.drop_incomplete()  # items that lack a view have no representation
    drawn = torch.randperm(len(whole), generator=torch_generator("training.monitor"))[:MONITOR_ITEMS].numpy()
    check(len(drawn) > 3, f"online_metrics: requires at least 4 training items, got {len(drawn)}.", "few_items")
    learnt, judged = copy_subset(whole, drawn[::2], "train"), copy_subset(whole, drawn[1::2], "test")

    def subject(device: torch.device) -> EvalContext:
        loss = objective if isinstance(objective, Loss) else None
        reader = LoaderConfig(device=device, num_workers=0)
        return EvalContext(model, learnt, judged, build_views(settings, learnt), reader, objective=loss)

    first = subject(torch.device("cpu"))
    for measure, _ in watches:
        need = measure.first_unmet_requirement(first)
        check(
            need is None, f"online_metrics: {measure.title} cannot be computed: {need and need.reason}.", "unavailable"
        )
        if measure.key == "knn":
            check_enough_neighbors(first.neighbors, len(learnt))
    return subject
