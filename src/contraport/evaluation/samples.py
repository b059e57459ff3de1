"""What the page draws of a run: test items in the plane with their thumbnails, and the objective's plan on a few."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits
from torch import Tensor

from contraport.data import Dataset, Views
from contraport.embedding import Reader, frozen, seeded
from contraport.encoders import Model
from contraport.measures.geometry import spectrum
from contraport.measures.retrieval import nearest
from contraport.objectives import Loss

POINTS = 1_000
"""At most this many test items become points, a fixed random choice."""

NEIGHBORS = 12
THUMBNAIL_SIDE = 32
PLAN_ITEMS = 32
PERPLEXITY = 30.0

Arrays = dict[str, np.ndarray[Any, Any]]


def points(dataset: Dataset, features: Tensor) -> Arrays:
    """Return test items in the plane, by the name of the method, with their labels, class names, thumbnails and nearest
    others, and the singular values of all.
    """
    chosen = fixed_choice(len(dataset), POINTS)
    method, plane = project_to_plane(features[chosen])
    arrays: Arrays = {"points": plane, "projection": np.array(method), "ids": chosen.numpy()}
    arrays["spectrum"] = spectrum(features).numpy()
    arrays["neighbors"] = nearest(features[chosen], min(NEIGHBORS, len(chosen) - 1)).numpy()
    if dataset.labels is not None:
        arrays["labels"] = dataset.labels[chosen].numpy()
    if dataset.class_names is not None:
        arrays["class_names"] = np.array(dataset.class_names, dtype=np.str_)
    if dataset.is_image:
        arrays["thumbnails"] = thumbnails(dataset.__getitems__(chosen.tolist()).views[0])
    return arrays


def plans(model: Model, objective: Loss, dataset: Dataset, views: Views, reader: Reader) -> Arrays:
    """Return the objective's plan and target on two random views of the same few test items, ordered by label."""
    chosen = fixed_choice(len(dataset), PLAN_ITEMS)
    if dataset.labels is not None:
        chosen = chosen[dataset.labels[chosen].argsort(stable=True)]
    batch = dataset.__getitems__(chosen.tolist())
    with seeded(0, reader.device), frozen(model):
        z0, z1 = (z.float() for z in model.project(model.encode(views(reader.moved(batch))))[:2])
        plan = objective.plan(z0, z1, labels=batch.labels, domains=batch.domains)
        target = objective.target_plan(z0, z1, labels=batch.labels, domains=batch.domains)
    arrays: Arrays = {"plan": plan.cpu().numpy(), "target": target.cpu().numpy(), "plan_items": np.array(len(chosen))}
    if batch.labels is not None:
        arrays["plan_labels"] = batch.labels.numpy()
    return arrays


def fixed_choice(items: int, most: int) -> Tensor:
    """Return the positions of all items, or of a random choice of `most` that is always the same, in order."""
    return torch.randperm(items, generator=torch.Generator().manual_seed(0))[:most].sort().values


def project_to_plane(features: Tensor) -> tuple[str, np.ndarray[Any, Any]]:
    """Return the name of a method and the points `(m, 2)` it gives: t-SNE, or PCA of few items or features."""
    rows = features.numpy()
    varies = bool(rows.std(axis=0).any())
    # As for the linear probe, one thread: on a busy machine two are slower by far.
    with threadpool_limits(1):
        if varies and len(rows) > 3 * PERPLEXITY and rows.shape[1] > 1:
            return "t-SNE", TSNE(perplexity=PERPLEXITY, init="pca", max_iter=500, random_state=0).fit_transform(rows)
        dimensions = min(2, *rows.shape)
        plane = PCA(dimensions, svd_solver="full").fit_transform(rows) if varies else np.zeros((len(rows), dimensions))
    return "PCA", np.pad(plane, ((0, 0), (0, 2 - dimensions))).astype(np.float32)


def thumbnails(images: Tensor, side: int = THUMBNAIL_SIDE) -> np.ndarray[Any, Any]:
    """Return images `(m, C, H, W)` as uint8, shrunk so that no side is longer than `side`.

    Floats within [0, 1] are shown as they are, others by the range that each channel has among these images.

    >>> thumbnails(torch.tensor([-1000.0, 3000.0]).expand(1, 1, 2, 2)).tolist()
    [[[[0, 255], [0, 255]]]]
    """
    if images.is_floating_point():
        low, high = (images.transpose(0, 1).flatten(1).aminmax(dim=1)[end].view(-1, 1, 1) for end in (0, 1))
        if bool((low < 0).any() or (high > 1).any()):
            images = (images - low) / torch.where(high > low, high - low, 1.0)
        images = (images * 255).round().byte()
    height, width = images.shape[2:]
    scale = side / max(height, width)
    if scale >= 1:
        return images.numpy()
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    return F.interpolate(images.float(), size=size, mode="area").round().byte().numpy()
