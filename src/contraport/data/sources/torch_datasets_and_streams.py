"""Datasets and streams from torch datasets and other iterables."""

from __future__ import annotations

import io
import itertools
import logging
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, Subset

from contraport._utils.text_bytes import concatenate_batches, item_shape, texts_to_tensor
from contraport.data.array_datasets import as_view_tensor, factorize_to_tensor
from contraport.data.dataset import Dataset
from contraport.data.formats.column_roles import LABEL_COLUMN_NAMES, is_text_column_name
from contraport.data.formats.shards import derive_field_view_names
from contraport.data.image_decoding import IMAGE_SUFFIXES, to_square_tensor, to_upright_rgb
from contraport.data.stores import ArrayStore, Shape, Store
from contraport.data.streams import ParsedItem, Stream, check_item_view_shapes, iterate_source
from contraport.errors import UsageError, check, one_line_reason

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TorchStore(Store):
    """Store of the items of a torch dataset, parsed at each fetch.

    It has no digests, as the torch dataset may change items at random at each fetch.
    """

    dataset: TorchDataset[Any]
    item_shapes: tuple[Shape, ...]
    image_size: int | None
    view_content_digests = None

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return self.item_shapes

    def __len__(self) -> int:
        return len(cast(Sized, self.dataset))

    def fetch_views(self, positions: Tensor) -> tuple[Tensor, ...]:
        items = []
        for position in positions.tolist():
            error_prefix = f"data: item {position}"
            items.append(
                parse_torch_item(self.dataset[position], error_prefix, self.image_size).views_as_batches_of_one
            )
            check_item_view_shapes(error_prefix, items[-1], self.shapes)
        return tuple(concatenate_batches(views) for views in zip(*items, strict=True))


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
    """Wrap a map-style torch dataset, such as one of torchvision.

    `parse_torch_item` describes what an item may be. Each view must have the shape of a row of `from_arrays`; floats
    with three axes are images. PIL images become RGB, ``(3, H, W)``, or gray, ``(1, H, W)``.

    Labels come from ``targets`` or ``labels`` of the dataset if it has such and no ``target_transform``; otherwise each
    item is read once. ``classes`` of the dataset name them, and -1 throughout means unlabeled, as in torchvision.

    Args:
        dataset: a dataset with ``__len__`` and ``__getitem__``.
        labels: class of each item, in place of the items' own.
        domains: domain of each item.
        name: name of the data in messages; default: the name of its class.
        split: the split that the items are.
        flips: whether a horizontal flip preserves the meaning of an image.
        image_size: side of the square images, in pixels; default: their own size.

    Raises:
        UsageError: an iterable dataset, or items of another kind or of unequal shapes.

    >>> pairs = torch.utils.data.TensorDataset(torch.zeros(4, 3), torch.ones(4, 5), torch.tensor([1, 0, 0, 1]))
    >>> from_torch(pairs).shapes, from_torch(pairs).labels.tolist()
    (((3,), (5,)), [1, 0, 0, 1])
    """
    name = type(dataset).__name__ if name is None else name
    good = not isinstance(dataset, IterableDataset) and hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    check(good, f"data: {name} must be a map-style torch dataset, with __len__ and __getitem__.", "not_map_style")
    length = len(cast(Sized, dataset))
    check(length > 0, f"data: {name} has no item.", "empty")
    item = dataset[0]
    first = parse_torch_item(item, "data: item 0", image_size)
    if labels is None and first.label is not None:
        labels = _find_or_read_labels(dataset, length, name)
    codes, class_names = _encode_labels_and_class_names(getattr(dataset, "classes", None), labels)
    if len(class_names or ()) == length > 2 and isinstance(first.label, str):
        message = "%s: the text in each item is its class, and no two are equal; captions are views of dicts, tables "
        _log.warning(message + "and data frames, under a name such as caption", name)
    domain_codes, domain_names = factorize_to_tensor("domains", domains)
    return Dataset(
        TorchStore(dataset, tuple(map(item_shape, first.views_as_batches_of_one)), image_size),
        name=name,
        split=split,
        labels=codes,
        domains=domain_codes,
        class_names=class_names,
        domain_names=domain_names,
        allows_flips=flips,
        view_names=first.view_names,
    )


def _encode_labels_and_class_names(
    classes: object, labels: ArrayLike | Tensor | None
) -> tuple[Tensor | None, tuple[str, ...] | None]:
    """Return integer labels and their class names, both None if there are no labels."""
    codes, names = factorize_to_tensor("labels", labels)
    if codes is None or names is None or names == ("-1",):
        return None, None
    values = [int(name) if name.isdecimal() else -1 for name in names]
    if isinstance(classes, list | tuple) and all(0 <= value < len(classes) for value in values):
        return torch.tensor(values)[codes], tuple(map(str, classes))
    return codes, names


def _find_or_read_labels(dataset: TorchDataset[Any], length: int, name: str) -> np.ndarray:
    """Return the stored labels of a dataset, or read them item by item."""
    stored = _find_stored_labels(dataset)
    if stored is not None and len(stored) == length and str(stored[0]) == str(find_item_label(dataset[0])):
        return stored
    _log.info("%s: reading each item once for its label; labels= avoids that", name)
    labels = [find_item_label(dataset[position]) for position in range(length)]
    missing = next((position for position, label in enumerate(labels) if label is None), None)
    check(missing is None, f"data: item {missing} of {name} has no label, others have.", "missing_label")
    return np.asarray(labels)


def _find_stored_labels(dataset: TorchDataset[Any]) -> np.ndarray | None:
    """Return the integer labels that a torch dataset stores, or None."""
    if isinstance(dataset, Subset):
        whole = _find_stored_labels(dataset.dataset)
        return None if whole is None else whole[np.asarray(dataset.indices)]
    if getattr(dataset, "target_transform", None) is not None:
        return None
    for attribute in ("targets", "labels"):
        values = getattr(dataset, attribute, None)
        if isinstance(values, list | tuple | np.ndarray | Tensor):
            labels = np.asarray(values)
            return labels if labels.ndim == 1 and labels.dtype.kind in "iuU" else None
    return None


def is_stream(data: Any) -> bool:
    """Return whether an object is an iterable without a length."""
    if isinstance(data, TorchDataset):
        return isinstance(data, IterableDataset)
    return hasattr(data, "__iter__") and not hasattr(data, "__len__")


def from_stream(
    source: Iterable[Any],
    *,
    name: str | None = None,
    image_size: int | None = None,
    flips: bool = False,
    labels: bool = True,
) -> Stream:
    """Build a stream from an iterable of items.

    An item is as in `from_torch`. ``__key__`` of a dict, as webdataset has it, is the item's key. Labels that are not
    integers are dropped, as the set of classes is unknown in advance.

    Args:
        source: an iterable that can be iterated repeatedly, as a resumed run needs.
        name: name of the data in messages; default: the name of its class.
        image_size: side of the square images, in pixels; default: their own size.
        flips: whether a horizontal flip preserves the meaning of an image.
        labels: whether to keep labels.

    Raises:
        UsageError: the source can be iterated only once, is empty, or an item has no view.

    >>> class Numbers(torch.utils.data.IterableDataset):
    ...     def __iter__(self):
    ...         return ((torch.full((3,), float(number)), number % 2) for number in range(5))
    >>> stream = from_stream(Numbers())
    >>> stream.shapes, [batch.labels.tolist() for batch in stream.batches(2)]
    (((3,),), [[0, 1], [0, 1], [0]])
    """
    name = type(source).__name__ if name is None else name
    message = f"data: {name} can be iterated only once; pass an iterable whose __iter__ starts anew each time."
    check(not hasattr(source, "__next__"), message, "single_use")
    raw = list(itertools.islice(iterate_source(source, name), 1_000))  # enough for shapes and statistics
    check(len(raw) > 0, f"data: {name} yielded no item.", "empty")

    def read(item: Any, position: int) -> ParsedItem:
        parsed = parse_torch_item(item, f"data: {name}: item {position}", image_size)
        label = parsed.label
        if isinstance(label, str):
            label = int(label) if label.strip().isdecimal() else None
        return parsed._replace(label=label if labels else None)

    items = [read(item, position) for position, item in enumerate(raw)]
    shapes = tuple(map(item_shape, items[0].views_as_batches_of_one))
    for position, item in enumerate(items):
        check_item_view_shapes(f"data: {name}: item {position}", item.views_as_batches_of_one, shapes)
    integers = [item.label for item in items if isinstance(item.label, int)]
    labelled = len(integers) == len(items) and min(integers) >= 0
    parts = raw[0].items() if isinstance(raw[0], Mapping) else enumerate(_flatten_tuples_and_lists(raw[0]))
    has_images = any(_is_pil_or_encoded_image(str(name), value) for name, value in parts)
    head = Dataset(
        ArrayStore(
            tuple(
                concatenate_batches(parts)
                for parts in zip(*(item.views_as_batches_of_one for item in items), strict=True)
            )
        ),
        name=name,
        split="train",
        labels=torch.tensor(integers) if labelled else None,
        class_names=tuple(map(str, range(max(integers) + 1))) if labelled else None,
        allows_flips=flips or has_images,
        view_names=items[0].view_names,
    )
    return Stream(source, read, head)


def parse_torch_item(item: Any, error_prefix: str, image_size: int | None = None) -> ParsedItem:
    """Parse a torch dataset's or stream's item into views, label and key.

    Args:
        item: a PIL image, an array or a tensor, which is one view; a tuple or list of these, which are several views,
            optionally with an integer or a text last, the label (nested tuples are flattened); or a dict: its images
            (encoded ones too), arrays, tensors, and texts under a name such as ``caption`` or ``txt`` are the views,
            an integer or text under a name of label columns or ``cls`` is the label, and ``__key__`` the key.
        error_prefix: beginning of error messages, which names the item.
        image_size: side of the square images, in pixels.

    Raises:
        UsageError: the item has no view, or a part that cannot be a view.
    """
    label, key, by_name = find_item_label(item), None, dict[str, Tensor]()
    if isinstance(item, Mapping):
        for name, value in item.items():
            view = _parse_field_as_batch_of_one(str(name), value, f"{error_prefix}: {name}", image_size)
            if view is not None:
                by_name[str(name)] = view
        message = (
            f"{error_prefix}: must have an image, an array, a tensor or a text, got the keys {sorted(map(str, item))}."
        )
        check(len(by_name) > 0, message, "no_view")
        views = list(by_name.values())
        key = str(item["__key__"]) if "__key__" in item else None
    else:
        parts = _flatten_tuples_and_lists(item)[: -1 if label is not None else None]
        check(len(parts) > 0, f"{error_prefix}: must have a view, got {item!r}.", "no_view")
        views = [
            _as_batch_of_one(part, f"{error_prefix}, view {number}", image_size) for number, part in enumerate(parts)
        ]
    if image_size is not None:
        views = [resize_if_images(view, image_size) for view in views]
    fields: list[str] = []
    for name in by_name if len(by_name) > 1 else ():  # a single view needs no name
        stem, dot, end = name.rpartition(".")
        fields.append(f"{stem}{dot}{'image' if f'.{end.lower()}' in IMAGE_SUFFIXES else end}")
    return ParsedItem(tuple(views), label, key, derive_field_view_names(fields))


def find_item_label(item: Any) -> int | str | None:
    """Return the class label in a torch dataset's item, or None."""
    if isinstance(item, Mapping):
        value = next((item[name] for name in item if str(name).lower() in (*LABEL_COLUMN_NAMES, "cls")), None)
    else:
        value = next(iter(_flatten_tuples_and_lists(item)[-1:]), None) if isinstance(item, tuple | list) else None
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Tensor | np.ndarray | np.generic) and value.ndim == 0:
        value = value.item()
    return value if isinstance(value, int | str) else None


def _flatten_tuples_and_lists(item: Any) -> list[Any]:
    """Flatten nested tuples and lists into one list."""
    if isinstance(item, tuple | list):
        return [part for nested in item for part in _flatten_tuples_and_lists(nested)]
    return [item]


def _parse_field_as_batch_of_one(name: str, value: Any, error_prefix: str, image_size: int | None) -> Tensor | None:
    """Return an item's field as a batch of one, None for non-view fields."""
    has_text_suffix = isinstance(value, str | bytes) and name.rpartition(".")[2].lower() == "txt"
    if has_text_suffix or (isinstance(value, str) and is_text_column_name(name)):
        try:
            text = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            raise UsageError(f"{error_prefix}: must be UTF-8 text: {error}", kind="not_unicode") from error
        check(bool(text.strip()), f"{error_prefix}: must be a text, got an empty one.", "empty_text")
        return texts_to_tensor([text], error_prefix)
    if _is_pil_or_encoded_image(name, value) and not isinstance(value, Image.Image):
        try:
            with Image.open(io.BytesIO(value["bytes"] if isinstance(value, Mapping) else value)) as image:
                value = to_upright_rgb(image)
        except Exception as error:  # decoders raise anything on hostile bytes
            message = f"{error_prefix}: an image cannot be decoded: {one_line_reason(error)}"
            raise UsageError(message, kind="unreadable") from error
    elif isinstance(value, list) and value and all(isinstance(number, int | float) for number in value):
        value = np.asarray(value, np.float32)
    is_view = isinstance(value, Image.Image) or (isinstance(value, np.ndarray | Tensor) and value.ndim > 0)
    return _as_batch_of_one(value, error_prefix, image_size) if is_view else None


def _is_pil_or_encoded_image(field_name: str, value: Any) -> bool:
    """Return whether a field holds a PIL image or an encoded one."""
    return (
        isinstance(value, Image.Image)
        or (isinstance(value, bytes) and f".{field_name.rpartition('.')[2].lower()}" in IMAGE_SUFFIXES)
        or (isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes))
    )


def _as_batch_of_one(value: Any, error_prefix: str, image_size: int | None) -> Tensor:
    """Return one view of an item as a batch of one."""
    if isinstance(value, Image.Image):
        if image_size is not None:
            return to_square_tensor(value, image_size)[None]
        image = ImageOps.exif_transpose(value) if value.mode in ("L", "RGB") else to_upright_rgb(value)
        return as_view_tensor(error_prefix, np.asarray(image)[None])
    message = (
        f"{error_prefix}: must be a tensor, an array or a PIL image, got {type(value).__name__}; a label (integer or "
    )
    message += "text) is the last part of a tuple, and a text is a view of a dict under a name such as caption."
    check(isinstance(value, Tensor | np.ndarray) and value.ndim > 0, message, "not_a_view")
    return as_view_tensor(error_prefix, value[None])


def resize_if_images(view: Tensor, size: int) -> Tensor:
    """Resize images to squares, and return other views unchanged."""
    if view.ndim != 4 or view.shape[2:] == (size, size):
        return view
    from torchvision.transforms.v2 import functional as transforms

    resized: Tensor = transforms.resize(view, [size, size], antialias=True)
    return resized
