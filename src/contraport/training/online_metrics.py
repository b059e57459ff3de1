"""Online metrics of a training run: computed after some epochs on a subset of the training items."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch

from contraport.data import Dataset
from contraport.data.arrays import copy_subset_to_memory
from contraport.distributed import is_main_process, stop_all_on_error
from contraport.embedding import LoaderConfig
from contraport.errors import check
from contraport.metrics.registry import ScheduledMetric
from contraport.objectives import Loss
from contraport.seeding import torch_generator
from contraport.training.callbacks.early_stopping import list_scheduled_metrics
from contraport.training.callbacks.meter import Meter
from contraport.training.components.assembly import TrainingComponents
from contraport.training.components.data_builder import build_views
from contraport.training.config import Settings
from contraport.training.loop import Callback, Loop

if TYPE_CHECKING:
    from contraport.metrics.eval_context import EvalContext

EvalContextFactory: TypeAlias = "Callable[[torch.device], EvalContext]"
"""Function that builds the evaluation context of the online metrics for a device."""


class OnlineMetrics(Callback):
    """Callback that computes metrics after some epochs and adds them to the epoch's last row of `metrics.jsonl`.

    It precedes the meter in the list of callbacks, so that the row is not yet written. Weights, buffers and random
    state do not change.
    """

    def __init__(self, scheduled: Sequence[ScheduledMetric], build_context: EvalContextFactory, meter: Meter) -> None:
        self._scheduled, self._build_context, self._meter = scheduled, build_context, meter

    def after_batch(self, loop: Loop) -> None:
        """After the last batch of an epoch, compute the metrics that are due in it."""
        due = [metric for metric, every in self._scheduled if (loop.completed_epochs + 1) % every == 0]
        if not (loop.is_last_batch and due):
            return
        with stop_all_on_error():
            if is_main_process():
                start = time.perf_counter()
                context = self._build_context(loop.device)
                results = {metric.key: metric(context) for metric in due}
                values = {key: result if isinstance(result, float) else result.value for key, result in results.items()}
                self._meter.add_online_values(values, seconds=time.perf_counter() - start)


def build_eval_context_factory(
    settings: Settings, components: TrainingComponents, dataset_before_mismatch: Dataset
) -> EvalContextFactory:
    """Build the function that creates the evaluation context of the online metrics.

    The items are a fixed random subset of at most 2,000 training items: one half to fit probes, the other to score
    them. No test item is used.

    `dataset_before_mismatch` has the training items as they are before pairs are mismatched on purpose.
    """
    # Imported here: scikit-learn is slow to import, and training runs without online metrics do not use it.
    from contraport.metrics.eval_context import EvalContext
    from contraport.metrics.probes import check_enough_neighbors

    model, objective = components.module.model, components.module.objective
    whole = dataset_before_mismatch.drop_incomplete()  # items that lack a view have no representation
    drawn = torch.randperm(len(whole), generator=torch_generator("training.monitor"))[:2_000].numpy()
    check(len(drawn) > 3, f"online_metrics: requires at least 4 training items, got {len(drawn)}.", "few_items")
    train_items, test_items = (
        copy_subset_to_memory(whole, drawn[::2], "train"),
        copy_subset_to_memory(whole, drawn[1::2], "test"),
    )

    def build_context(device: torch.device) -> EvalContext:
        loss = objective if isinstance(objective, Loss) else None
        loader_config = LoaderConfig(device=device, num_workers=0)
        return EvalContext(
            model, train_items, test_items, build_views(settings, train_items), loader_config, objective=loss
        )

    context = build_context(torch.device("cpu"))
    for metric, _ in list_scheduled_metrics(settings):
        need = metric.first_unmet_requirement(context)
        check(
            need is None, f"online_metrics: {metric.title} cannot be computed: {need and need.reason}.", "unavailable"
        )
        if metric.key == "knn":
            check_enough_neighbors(context.neighbors, len(train_items))
    return build_context
