"""What the page draws of a run: test items in the plane with their thumbnails, who is near whom, what the probe takes
for what.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits
from torch import Tensor

from contraport._utils.text_tensors import is_text_shape, tensor_to_texts
from contraport.auditing.pairs import PairedFeatures, score_pairs
from contraport.auditing.pairs.paired_features import MIN_PAIRS
from contraport.data import Dataset
from contraport.data.thumbnails import thumbnails
from contraport.embedding import embed_views
from contraport.encoders import Model
from contraport.errors import UsageError
from contraport.metrics.embedding_geometry import spectrum
from contraport.metrics.eval_context import EvalContext
from contraport.metrics.probes import confusion_matrix
from contraport.metrics.retrieval import nearest_neighbors
from contraport.objectives import Loss
from contraport.seeding import torch_generator

POINTS = 1_000
"""At most this many test items become points, a fixed random choice."""

NEIGHBORS = 12
COSINES = 160
"""Of so many test items all cosines are kept."""

THUMBNAIL_SIDE = 32
LETTERS = 160
"""Of a text so many letters are kept."""

PERPLEXITY = 30.0

Arrays = dict[str, np.ndarray[Any, Any]]


def collect_samples(subject: EvalContext, *, probed: bool) -> Arrays:
    """Return what is drawn of an encoder and its test items; where these were `probed`, also the probe's confusion."""
    test, chosen = subject.test, fixed_subsample(len(subject.test), POINTS)
    arrays = points(test, subject.test_x, chosen) | cosines(test, subject.test_x)
    arrays |= _losses(subject, chosen) | _suspicion(subject, chosen)
    if probed:
        arrays["confusion"] = confusion_matrix(subject.probe, subject.test_x, subject.test_y)
    return arrays


def points(dataset: Dataset, features: Tensor, chosen: Tensor) -> Arrays:
    """Return chosen items in the plane, by the name of the method, with their labels, class names, domains, thumbnails,
    texts and nearest others, and the singular values of all.
    """
    method, plane = project_to_2d(features[chosen])
    arrays: Arrays = {"points": plane, "projection": np.array(method), "ids": chosen.numpy()}
    arrays["spectrum"] = spectrum(features).numpy()
    arrays["neighbors"] = nearest_neighbors(features[chosen], min(NEIGHBORS, len(chosen) - 1)).numpy()
    if dataset.labels is not None:
        arrays["labels"] = dataset.labels[chosen].numpy()
    if dataset.class_names is not None:
        arrays["class_names"] = np.array(dataset.class_names, dtype=np.str_)
    if dataset.domains is not None and dataset.domain_names is not None:
        arrays["domains"] = dataset.domains[chosen].numpy()
        arrays["domain_names"] = np.array(dataset.domain_names, dtype=np.str_)
    views = dataset.__getitems__(chosen.tolist()).views
    if dataset.is_image:
        arrays["thumbnails"] = thumbnails(views[0], THUMBNAIL_SIDE)
    text = next((view for view, shape in zip(views, dataset.shapes, strict=True) if is_text_shape(shape)), None)
    if text is not None:
        arrays["texts"] = np.array([words[:LETTERS] for words in tensor_to_texts(text)], dtype=np.str_)
    return arrays


def cosines(dataset: Dataset, features: Tensor) -> Arrays:
    """Return the cosines of all pairs of some items, class by class where there are labels, and their labels."""
    chosen = by_class(dataset, fixed_subsample(len(dataset), COSINES))
    z = F.normalize(features[chosen], dim=1)
    arrays: Arrays = {"cosines": (z @ z.T).numpy()}
    if dataset.labels is not None:
        arrays["cosine_labels"] = dataset.labels[chosen].numpy()
    return arrays


def _losses(subject: EvalContext, chosen: Tensor) -> Arrays:
    """Return what the objective says of each of some items, all in one batch; nothing where no value is an item's."""
    objective, model = subject.objective, subject.encoder
    if not isinstance(objective, Loss) or not isinstance(model, Model) or not objective.compares_items:
        return {}
    some = subject.test.only(chosen)
    try:
        views = embed_views(model, some, subject.views, subject.reader, subject.name, project=True)
        with torch.no_grad():
            of_rows = objective(*views, labels=some.labels, domains=some.domains, reduction="none")
    except UsageError:  # it asks for what test items lack, or has no value of a row
        return {}
    return {"losses": of_rows.float().reshape(-1, len(chosen)).mean(dim=0).cpu().numpy()}


def _suspicion(subject: EvalContext, chosen: Tensor) -> Arrays:
    """Return how far apart the two given views of each of some items are, by rank, from 0 to 1.

    It is the share of items that are at least as near to one view as the partners of the other's neighbours are: over a
    third where the views have nothing in common.
    """
    if len(subject.test.shapes) != 2 or len(chosen) < MIN_PAIRS or not subject.comparable:
        return {}
    both = subject.random_view_features if subject.has_shared_encoder else subject.projections
    agreement = score_pairs(PairedFeatures((both[0][chosen], both[1][chosen])))
    return {"suspicion": (-agreement).exp().cpu().numpy()}


def by_class(dataset: Dataset, chosen: Tensor) -> Tensor:
    """Return chosen positions in the order of their labels, where there are labels."""
    return chosen if dataset.labels is None else chosen[dataset.labels[chosen].argsort(stable=True)]


def fixed_subsample(items: int, most: int) -> Tensor:
    """Return the positions of all items, or of a random choice of `most` that is always the same, in order."""
    return torch.randperm(items, generator=torch_generator("evaluation.samples", items))[:most].sort().values


def project_to_2d(features: Tensor) -> tuple[str, np.ndarray[Any, Any]]:
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
