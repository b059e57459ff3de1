"""Metrics at the ends of epochs, on a subset of the training items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from contraport.data import Dataset
from contraport.data.array_datasets import copy_subset_to_memory
from contraport.distributed import is_main_process, stop_all_on_error
from contraport.embedding import LoaderConfig
from contraport.errors import check
from contraport.objectives import Loss
from contraport.seeding import torch_generator
from contraport.training.callbacks.early_stopping import list_scheduled_metrics
from contraport.training.components.assembly import TrainingComponents
from contraport.training.components.data_builder import build_views
from contraport.training.config import Settings

if TYPE_CHECKING:
    from contraport.metrics.eval_context import EvalContext


class EpochEndMetrics:
    """Metrics of the current model on training items, computed after an epoch.

    The items are a fixed random subset of at most 2,000 training items: one half to fit probes, the other to score
    them. No test item is used. Weights, buffers and random state do not change.

    Args:
        train_items_before_mismatch: the training items as they are before pairs are mismatched on purpose.

    Raises:
        UsageError: too few items, or a metric that cannot be computed.
    """

    def __init__(
        self, settings: Settings, components: TrainingComponents, train_items_before_mismatch: Dataset
    ) -> None:
        # Imported here: scikit-learn is slow to import, and training runs without online metrics do not use it.
        from contraport.metrics.probes import check_neighbor_count

        self._settings, self._module = settings, components.module
        self._scheduled = list_scheduled_metrics(settings)
        whole = train_items_before_mismatch.drop_incomplete()  # items that lack a view have no representation
        drawn = torch.randperm(len(whole), generator=torch_generator("training.monitor"))[:2_000].numpy()
        check(len(drawn) > 3, f"online_metrics: requires at least 4 training items, got {len(drawn)}.", "few_items")
        self._fitted_items = copy_subset_to_memory(whole, drawn[::2], "train")
        self._scored_items = copy_subset_to_memory(whole, drawn[1::2], "test")
        context = self.build_training_subset_context(torch.device("cpu"))
        for metric, _ in self._scheduled:
            need = metric.find_unmet_requirement(context)
            message = f"online_metrics: {metric.title} cannot be computed: {need and need.reason}."
            check(need is None, message, "unavailable")
            if metric.key == "knn":
                check_neighbor_count(context.neighbors, len(self._fitted_items))

    def build_training_subset_context(self, device: torch.device) -> EvalContext:
        """Build the evaluation context of the current model on a training subset."""
        from contraport.metrics.eval_context import EvalContext

        model, objective = self._module.model, self._module.objective
        return EvalContext(
            model,
            self._fitted_items,
            self._scored_items,
            build_views(self._settings, self._fitted_items),
            LoaderConfig(device=device, num_workers=0),
            objective=objective if isinstance(objective, Loss) else None,
        )

    def compute_values_due(self, epoch: int, device: torch.device) -> dict[str, float]:
        """Compute the metrics due after an epoch, by key.

        Only the first process computes them. The others return an empty dictionary.
        """
        due = [metric for metric, every in self._scheduled if epoch % every == 0]
        if not due:
            return {}
        with stop_all_on_error():
            if not is_main_process():
                return {}
            context = self.build_training_subset_context(device)
            results = {metric.key: metric(context) for metric in due}
            return {key: result if isinstance(result, float) else result.value for key, result in results.items()}
