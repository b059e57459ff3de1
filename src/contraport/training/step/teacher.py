"""What a teacher knows of the training items: features that are in a file before any of them is embedded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from contraport.data import Batch
from contraport.data.formats.array_files import read_npy, read_npz
from contraport.errors import UsageError, check


def read_features(argument: str, file: str, items: int) -> Tensor:
    """Return the features of all training items, (items, k).

    Args:
        argument: what the file was given as, which errors begin with.
        file: ``(items, k)`` numbers in an ``.npy``, or an ``.npz`` of `contraport.embed`, of which it is those of the
            training items.
        items: how many training items there are.

    Raises:
        UsageError: it cannot be read, is not of these items, or has numbers that are not finite.
    """
    array = _embedded(argument, file) if Path(file).suffix == ".npz" else read_npy(argument, file)
    good = array.ndim == 2 and len(array) == items and array.shape[1] > 0 and array.dtype.kind in "iufb"
    check(
        good,
        f"{argument}: {file}: expected numbers (items, k), a row for each of the {items} training items, got "
        f"{array.dtype} of shape {array.shape}.",
    )
    features = torch.from_numpy(array.astype(np.float32))
    finite = features.isfinite().all(1)
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
