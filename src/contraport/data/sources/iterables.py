"""Any iterable of items as a stream: torch's `IterableDataset`, a webdataset pipeline, Hugging Face's streams."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from contraport.data.arrays import ArrayStore
from contraport.data.dataset import Dataset
from contraport.data.decoding import SUFFIXES, as_rgb
from contraport.data.formats.roles import LABEL_NAMES, names_a_text
from contraport.data.formats.shards import names_of_fields
from contraport.data.sources.torch_datasets import label_of, view_of, views_of
from contraport.data.streams import HEAD, Stream, StreamBroke, StreamItem
from contraport.errors import UsageError, check, reason
from contraport.texts import concatenated, encoded, shape_of

_KEY = "__key__"
_LABELS = (*LABEL_NAMES, "cls")


def from_stream(
    source: Iterable[Any],
    *,
    name: str | None = None,
    image_size: int | None = None,
    flips: bool = False,
    labels: bool = True,
) -> Stream:
    """Return a stream of the items that an iterable gives.

    An item is what `from_torch` takes, a view or a tuple of views and a label last; or a dict, as streams of Hugging
    Face and pipelines of webdataset give: of it, the values that are images (encoded ones too), arrays, tensors or
    texts, by a name that says so such as ``caption`` or ``txt``, are the views, in its order and by its names; a whole
    number by a name that columns of labels have, or ``cls``, is the label, and ``__key__`` the key. Labels that are no
    whole numbers are left out.

    Args:
        source: can be iterated over again and again, as a run that goes on does.
        name: what messages call it; default: the name of its class.
        image_size: side of the square that images become, in pixels; default: their own size.
        flips: whether a horizontal flip keeps the meaning of an image.
        labels: whether labels are kept.

    Raises:
        UsageError: it can be iterated over once only, gives nothing, or an item is no view.

    >>> class Numbers(torch.utils.data.IterableDataset):
    ...     def __iter__(self):
    ...         return ((torch.full((3,), float(number)), number % 2) for number in range(5))
    >>> stream = from_stream(Numbers())
    >>> stream.shapes, [batch.labels.tolist() for batch in stream.batches(2)]
    (((3,),), [[0, 1], [0, 1], [0]])
    """
    name = type(source).__name__ if name is None else name
    check(
        not hasattr(source, "__next__"),
        f"data: {name} can be iterated over once only, and a run that goes on begins anew; expected an iterable such "
        "as an IterableDataset, whose __iter__ begins each time.",
    )
    read = _Reading(name, image_size, labels)
    try:
        given = list(itertools.islice(source, HEAD))
    except UsageError:
        raise
    except Exception as error:  # a stranger's code
        raise StreamBroke(f"data: {name} broke at its beginning: {reason(error)}") from error
    check(len(given) > 0, f"data: {name} gives no item.")
    items = [read(item, position) for position, item in enumerate(given)]
    shapes = [tuple(map(shape_of, item.views)) for item in items]
    odd = next((position for position, shape in enumerate(shapes) if shape != shapes[0]), None)
    check(
        odd is None,
        f"data: {name}: item {odd}: expected views of shapes {shapes[0]} as those of item 0, got {shapes[odd or 0]}; "
        "image_size makes images equal.",
    )
    views = tuple(concatenated(parts) for parts in zip(*(item.views for item in items), strict=True))
    known = [item.label for item in items if item.label is not None]
    labelled = len(known) == len(items) and min(known) >= 0
    head = Dataset(
        ArrayStore(views),
        name=name,
        split="train",
        labels=torch.tensor(known) if labelled else None,
        class_names=tuple(map(str, range(max(known) + 1))) if labelled else None,
        flips=flips or _has_pictures(given[0]),
        view_names=_names_of(given[0]) if len(views) > 1 else None,
    )
    return Stream(source, read, head)


@dataclass(frozen=True)
class _Reading:
    """Makes an item of what a source gives."""

    name: str
    image_size: int | None
    labels: bool

    def __call__(self, item: Any, position: int) -> StreamItem:
        where = f"data: {self.name}: item {position}"
        if not isinstance(item, Mapping):
            own = label_of(item)
            views = self._sized(views_of(item, position, self.image_size))
            return StreamItem(views, own if isinstance(own, int) and self.labels else None, None)
        fields = _fields_of(item)
        check(
            len(fields) > 0,
            f"{where}: expected an image, an array, a tensor or a text, got the keys {sorted(map(str, item))}.",
        )
        views = self._sized(tuple(self._view(name, value, where) for name, value in fields.items()))
        label: Any = next((item[name] for name in item if str(name).lower() in _LABELS), None)
        label = int(label) if _is_whole(label) and self.labels else None
        return StreamItem(views, label, str(item[_KEY]) if _KEY in item else None)

    def _view(self, name: str, value: Any, where: str) -> Tensor:
        where = f"{where}: {name}"
        if not _is_text(name, value):
            return view_of(_opened(value, where), where, self.image_size)
        try:
            text = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            raise UsageError(f"{where}: expected a text in UTF-8: {error}") from error
        check(bool(text.strip()), f"{where}: expected a text, got an empty one.")
        return encoded([text], where)

    def _sized(self, views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        side = self.image_size
        if side is None:
            return views
        return tuple(
            transforms.resize(view, [side, side], antialias=True)
            if view.ndim == 4 and view.shape[2:] != (side, side)
            else view
            for view in views
        )


def _is_whole(value: Any) -> bool:
    if isinstance(value, bytes | str):
        return value.strip().isdigit()
    return isinstance(value, int | np.integer) or (
        isinstance(value, Tensor) and value.ndim == 0 and not value.is_floating_point()
    )


def _fields_of(item: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the fields of an item that are views, by their names."""
    return {
        str(name): value
        for name, value in item.items()
        if _is_picture(name, value)
        or _is_text(name, value)
        or (isinstance(value, np.ndarray | Tensor) and value.ndim > 0)
        or (isinstance(value, list) and value and all(isinstance(number, int | float) for number in value))
    }


def _is_picture(name: object, value: Any) -> bool:
    return (
        isinstance(value, Image.Image)
        or (isinstance(value, bytes) and f".{_suffix(name)}" in SUFFIXES)
        or (isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes))
    )


def _is_text(name: object, value: Any) -> bool:
    by_suffix = isinstance(value, str | bytes) and _suffix(name) == "txt"
    return by_suffix or (isinstance(value, str) and names_a_text(str(name)))


def _suffix(name: object) -> str:
    return str(name).rpartition(".")[2].lower()


def _has_pictures(item: Any) -> bool:
    if isinstance(item, Mapping):
        return any(_is_picture(name, value) for name, value in item.items())
    return any(isinstance(part, Image.Image) for part in (item if isinstance(item, tuple | list) else [item]))


def _names_of(item: Any) -> list[str] | None:
    """Return what the views of an item are called, as those of shards are; None where it has no names."""
    if not isinstance(item, Mapping):
        return None
    begun = [(str(name).rpartition("."), f".{_suffix(name)}" in SUFFIXES) for name in _fields_of(item)]
    return names_of_fields(["".join((*stem, "image" if picture else suffix)) for (*stem, suffix), picture in begun])


def _opened(part: Any, where: str) -> Any:
    """Return an encoded image opened, a list as an array, and all else as it is."""
    content = part["bytes"] if isinstance(part, Mapping) else part
    if isinstance(content, list):
        return np.asarray(content, np.float32)
    if not isinstance(content, bytes):
        return content
    try:
        with Image.open(io.BytesIO(content)) as image:
            return as_rgb(ImageOps.exif_transpose(image))
    except Exception as error:  # on hostile bytes the decoders raise whatever they like
        raise UsageError(f"{where}: an image cannot be decoded: {reason(error)}") from error
