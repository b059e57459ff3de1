"""What a teacher knows of the training items: features that are in a file before any of them is embedded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from contraport.data import Batch
from contraport.data.formats.array_files import read_npy, read_npz
from contraport.errors import UsageError, check


def read_teacher_features(argument: str, file: str, items: int, *, views: int | None = None) -> Tensor:
    """Return the features of all training items, (items, k), or of each of their views, (items, views, k).

    Args:
        argument: what the file was given as, which errors begin with.
        file: ``(items, k)`` numbers in an ``.npy``, or an ``.npz`` of `contraport.embed`, of which it is those of the
            training items.
        items: how many training items there are.
        views: how many views they have, where an ``.npy`` may have features of each.

    Raises:
        UsageError: it cannot be read, is not of these items, or has numbers that are not finite.
    """
    array = _embedded(argument, file) if Path(file).suffix == ".npz" else read_npy(argument, file)
    of_views = views is not None and array.ndim == 3 and array.shape[1] == views
    good = (array.ndim == 2 or of_views) and len(array) == items and array.shape[-1] > 0 and array.dtype.kind in "iufb"
    or_views = "" if views is None else f" or (items, {views} views, k)"
    check(
        good,
        f"{argument}: {file}: expected numbers (items, k){or_views}, a row for each of the {items} training items, got "
        f"{array.dtype} of shape {array.shape}.",
    )
    features = torch.from_numpy(array.astype(np.float32))
    finite = features.isfinite().flatten(1).all(1)
    check(bool(finite.all()), f"{argument}: {file}: expected finite numbers, see row {int(finite.long().argmin())}.")
    return features


def of_batch(features: Tensor, batch: Batch) -> Tensor:
    """Return what is known of the items of a batch, of all items as `(items, k)`, where the batch is."""
    return features[batch.ids.to(features.device)].to(batch.ids.device)


def _embedded(argument: str, file: str) -> np.ndarray:
    """Return the features of the training items that `contraport.embed` wrote."""
    arrays = read_npz(argument, file)
    features, splits = arrays.get("features"), arrays.get("splits")
    if features is None or splits is None or features.ndim == 0 or splits.shape != features.shape[:1]:
        raise UsageError(
            f"{argument}: {file}: expected the features and splits of contraport embed, got {sorted(arrays)}."
        )
    chosen: np.ndarray = features[splits == "train"]
    return chosen
