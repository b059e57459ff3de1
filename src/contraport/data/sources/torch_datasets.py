"""Any `torch.utils.data.Dataset` of torch's own kind as a dataset of views."""

from __future__ import annotations

import logging
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, Subset

from contraport._utils.text_tensors import concatenate_batches, item_shape
from contraport.data.arrays import factorize_tensor
from contraport.data.dataset import Dataset
from contraport.data.sources.item_parser import item_label, item_view_names, parse_item
from contraport.errors import UsageError, check

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TorchStore:
    """The views of another dataset's items, taken from it when they are fetched."""

    dataset: TorchDataset[Any]
    shapes: tuple[tuple[int, ...], ...]
    image_size: int | None
    in_memory: bool = False
    digests: None = None  # the other dataset may change items at random when they are fetched

    def __len__(self) -> int:
        return len(cast(Sized, self.dataset))

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the views at some positions, stacked."""
        items = [self._views(position) for position in positions.tolist()]
        return tuple(concatenate_batches(views) for views in zip(*items, strict=True))

    def _views(self, position: int) -> tuple[Tensor, ...]:
        where = f"data: item {position}"
        views = parse_item(self.dataset[position], where, self.image_size).views
        found = tuple(map(item_shape, views))
        check(
            found == self.shapes,
            f"{where}: expected views of shapes {self.shapes} as those of item 0, got {found}; "
            "image_size makes images equal.",
        )
        return views


def from_torch(
    dataset: TorchDataset[Any],
    *,
    labels: ArrayLike | Tensor | None = None,
    domains: ArrayLike | Tensor | None = None,
    name: str | None = None,
    split: str = "train",
    flips: bool = False,
    image_size: int | None = None,
) -> Dataset:
    """Return a dataset of views from a map-style torch dataset, such as one of torchvision.

    An item is a tensor, an array or a PIL image, which is one view; a tuple or list of these, which are several, and
    where the last of them is a single integer or a text, it is the label (nested tuples count as flat); or a dict. Of a
    dict the values that are images (encoded ones too), arrays, tensors or texts, by a name that says so such as
    ``caption`` or ``txt``, are the views, in its order and by its names, and an integer or text by a name that columns
    of labels have, or ``cls``, is the label. Each view has the shape that `from_arrays` wants of a row, so that floats
    of three axes are images in [0, 1]; PIL images become RGB, ``(3, H, W)``, or grey, ``(1, H, W)``.

    Where items have labels, these are the dataset's ``targets`` or ``labels`` if it has such and no
    ``target_transform``; else each item is asked for once. Its ``classes`` name them, and -1 throughout means that
    nothing is labelled, both as in torchvision.

    Args:
        dataset: a dataset with ``__len__`` and ``__getitem__``.
        labels: the class of each item, instead of the items' own.
        domains: the domain of each item.
        name: what messages call the data; default: the name of its class.
        split: which split this is.
        flips: whether a horizontal flip keeps the meaning of an image.
        image_size: side of the square that images become, in pixels; default: their own size.

    Raises:
        UsageError: an iterable dataset, or items of another kind or of unequal shapes.

    >>> pairs = torch.utils.data.TensorDataset(torch.zeros(4, 3), torch.ones(4, 5), torch.tensor([1, 0, 0, 1]))
    >>> from_torch(pairs).shapes, from_torch(pairs).labels.tolist()
    (((3,), (5,)), [1, 0, 0, 1])
    """
    name = type(dataset).__name__ if name is None else name
    good = not isinstance(dataset, IterableDataset) and hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    check(good, f"data: {name}: expected a map-style torch dataset, with __len__ and __getitem__.")
    length = len(cast(Sized, dataset))
    check(length > 0, f"data: {name} has no item.")
    item = dataset[0]
    first = parse_item(item, "data: item 0", image_size)
    if labels is None and first.label is not None:
        labels = _labels(dataset, length, name)
    label_codes, class_names = _named(dataset, labels)
    if len(class_names or ()) == length > 2 and isinstance(first.label, str):
        _log.warning(
            "%s: the text that labels each item is its class, and no two are the same; captions are a view of dicts, "
            "tables and data frames, by names such as caption",
            name,
        )
    domain_codes, domain_names = factorize_tensor("domains", domains)
    return Dataset(
        TorchStore(dataset, tuple(map(item_shape, first.views)), image_size),
        name=name,
        split=split,
        labels=label_codes,
        domains=domain_codes,
        class_names=class_names,
        domain_names=domain_names,
        flips=flips,
        view_names=item_view_names(item),
    )


def _named(
    dataset: TorchDataset[Any], labels: ArrayLike | Tensor | None
) -> tuple[Tensor | None, tuple[str, ...] | None]:
    """Return labels as numbers and their names, the dataset's own where it has a name for each."""
    codes, names = factorize_tensor("labels", labels)
    if codes is None or names is None or names == ("-1",):
        return None, None
    classes = getattr(dataset, "classes", None)
    values = [int(name) if name.isdecimal() else -1 for name in names]
    if isinstance(classes, list | tuple) and all(0 <= value < len(classes) for value in values):
        return torch.tensor(values)[codes], tuple(str(name) for name in classes)
    return codes, names


def _labels(dataset: TorchDataset[Any], length: int, name: str) -> np.ndarray:
    known = _known_labels(dataset)
    if known is not None and len(known) == length and str(known[0]) == str(item_label(dataset[0])):
        return known
    _log.info("%s: reading each item once for its label; labels= saves that", name)
    labels = [item_label(dataset[position]) for position in range(length)]
    lacking = next((position for position, label in enumerate(labels) if label is None), None)
    if lacking is not None:
        raise UsageError(f"data: item {lacking} of {name} has no label, others have.")
    return np.asarray(labels)


def _known_labels(dataset: TorchDataset[Any]) -> np.ndarray | None:
    """Return the labels that a dataset, or the one that it is a part of, keeps beside its items."""
    if isinstance(dataset, Subset):
        whole = _known_labels(dataset.dataset)
        return None if whole is None else whole[np.asarray(dataset.indices)]
    if getattr(dataset, "target_transform", None) is not None:
        return None
    for attribute in ("targets", "labels"):
        values = getattr(dataset, attribute, None)
        if isinstance(values, list | tuple | np.ndarray | Tensor):
            labels = np.asarray(values)
            return labels if labels.ndim == 1 and labels.dtype.kind in "iuU" else None
    return None
