"""From the settings of a training to what is measured while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import torch

from contraport.data import Dataset
from contraport.data.arrays import take
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
"""Makes what is measured during a training, on a device."""


MONITOR_ITEMS = 2_000
"""At most so many training items are measured on while an encoder is trained."""


def build_online_eval(settings: Settings, built: Components, dataset: Dataset) -> EvalContextFactory | None:
    """Return what makes the subject of the measures that `online_metrics` names, or None where it names none.

    At most `MONITOR_ITEMS` training items are drawn, always the same, and kept in memory: half of them are what a probe
    learns from, the other half what it is judged on. No test item is seen.

    Args:
        settings: of the training.
        built: what it is made of.
        dataset: the training items as they are, where pairs are mismatched on purpose the right ones.

    Raises:
        UsageError: a measure cannot be taken of these items.
    """
    watches = parse_scheduled_metrics(settings.online_metrics)
    if not watches:
        return None
    # Here, not above: most trainings need no scikit-learn, which takes a while to import.
    from contraport.metrics.eval_context import EvalContext
    from contraport.metrics.probes import check_neighbors

    model, objective = built.pipeline.model, built.pipeline.objective
    whole = dataset.complete()  # of what lacks a view there is no representation
    drawn = torch.randperm(len(whole), generator=torch_generator("training.monitor"))[:MONITOR_ITEMS].numpy()
    check(len(drawn) > 3, f"online_metrics: expected four training items or more, got {len(drawn)}.")
    learnt, judged = take(whole, drawn[::2], "train"), take(whole, drawn[1::2], "test")

    def subject(device: torch.device) -> EvalContext:
        loss = objective if isinstance(objective, Loss) else None
        reader = LoaderConfig(device=device, num_workers=0)
        return EvalContext(model, learnt, judged, build_views(settings, learnt), reader, objective=loss)

    first = subject(torch.device("cpu"))
    for measure, _ in watches:
        need = measure.unmet(first)
        check(need is None, f"online_metrics: {measure.title} cannot be measured: {need and need.reason}.")
        if measure.key == "knn":
            check_neighbors(first.neighbors, len(learnt))
    return subject
