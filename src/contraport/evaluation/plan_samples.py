"""What the page draws of a run's objective: its plan and its target on a few test items, at the end and on the way."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from contraport.data import Dataset, Views
from contraport.data.thumbnails import thumbnails
from contraport.embedding import LoaderConfig, frozen, seeded
from contraport.encoders import Model
from contraport.evaluation.page_samples import THUMBNAIL_SIDE, Arrays, by_class, fixed_subsample
from contraport.objectives import Loss

PLAN_ITEMS = 32


def plans(model: Model, objective: Loss, dataset: Dataset, views: Views, reader: LoaderConfig) -> Arrays:
    """Return the objective's plan and target on two random views of the same few test items, ordered by label.

    Of images there are also thumbnails of the views, and of views that the data give their names.
    """
    chosen = by_class(dataset, fixed_subsample(len(dataset), PLAN_ITEMS))
    batch = dataset.__getitems__(chosen.tolist())
    model.to(reader.device)
    with seeded(0, reader.device), frozen(model):
        made = views(reader.moved(batch))
        z0, z1 = (z.float() for z in model.project(model.encode(made))[:2])
        plan = objective.plan(z0, z1, labels=batch.labels, domains=batch.domains)
        target = objective.target_plan(z0, z1, labels=batch.labels, domains=batch.domains)
    arrays: Arrays = {"plan": plan.cpu().numpy(), "target": target.cpu().numpy(), "plan_items": np.array(len(chosen))}
    if batch.labels is not None:
        arrays["plan_labels"] = batch.labels.numpy()
    if len(dataset.view_names) == len(made):
        arrays["plan_view_names"] = np.array(dataset.view_names[:2], dtype=np.str_)
    if all(len(shape) == 3 for shape in views.shapes[:2]):
        for side, view in enumerate(made[:2]):
            arrays[f"plan_view_{side + 1}"] = thumbnails(view.cpu(), THUMBNAIL_SIDE)
    return arrays


def stack_plans(by_epoch: Iterable[tuple[int, Arrays]]) -> Arrays:
    """Return the plans and targets of several epochs as one array each, with the epochs."""
    found = list(by_epoch)
    return {
        "plan_epochs": np.array([epoch for epoch, _ in found]),
        "plans": np.stack([arrays["plan"] for _, arrays in found]),
        "targets": np.stack([arrays["target"] for _, arrays in found]),
    }
