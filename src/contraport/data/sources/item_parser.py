"""Parser of the items of torch datasets and streams, into views, label and key."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from contraport._utils.text_bytes import texts_to_tensor
from contraport.data.arrays import as_view_tensor
from contraport.data.formats.column_roles import LABEL_NAMES, is_text_column_name
from contraport.data.formats.shards import name_field_views
from contraport.data.image_decoding import SUFFIXES, crop_to_square, to_rgb
from contraport.errors import UsageError, check, one_line_reason

_KEY = "__key__"
_LABELS = (*LABEL_NAMES, "cls")


class ParsedItem(NamedTuple):
    """Parsed item of a torch dataset or stream.

    Attributes:
        views: views of the item as batches of one, ``(1, *shape)`` each.
        label: class of the item by number or name, or None.
        key: name of the item in its source, or None.
    """

    views: tuple[Tensor, ...]
    label: int | str | None
    key: str | None


def parse_torch_item(item: Any, where: str, image_size: int | None = None) -> ParsedItem:
    """Parse an item of a torch dataset or stream into its views, label and key.

    Args:
        item: an image, an array or a tensor, which is one view; a tuple or list of these, which are several views,
            optionally with a label last; or a dict: its images (encoded ones too), arrays, tensors, and texts under a
            name such as ``caption`` or ``txt`` are the views, an integer or text under a name of label columns or
            ``cls`` is the label, and ``__key__`` the key.
        where: name of the item in messages.
        image_size: side of the square images, in pixels.

    Raises:
        UsageError: the item has no view, or a part that cannot be a view.
    """
    if not isinstance(item, Mapping):
        label = _last_label(item)
        parts = _flatten(item)[: -1 if label is not None else None]
        check(len(parts) > 0, f"{where}: must have a view, got {item!r}.", "no_view")
        views = [_as_view(part, f"{where}, view {number}", image_size) for number, part in enumerate(parts)]
        return ParsedItem(tuple(_resize(view, image_size) for view in views), label, None)
    fields = _view_fields(item)
    message = f"{where}: must have an image, an array, a tensor or a text, got the keys {sorted(map(str, item))}."
    check(len(fields) > 0, message, "no_view")
    views = [_parse_field(name, value, f"{where}: {name}", image_size) for name, value in fields.items()]
    key = str(item[_KEY]) if _KEY in item else None
    return ParsedItem(tuple(_resize(view, image_size) for view in views), item_label(item), key)


def item_label(item: Any) -> int | str | None:
    """Return the class label in an item of a torch dataset, or None if it has none."""
    if not isinstance(item, Mapping):
        return _last_label(item)
    value = next((item[name] for name in item if str(name).lower() in _LABELS), None)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else _as_integer(value)


def has_images(item: Any) -> bool:
    """Return whether an item contains a PIL image or an encoded image."""
    if isinstance(item, Mapping):
        return any(_is_image(name, value) for name, value in item.items())
    return any(isinstance(part, Image.Image) for part in _flatten(item))


def item_view_names(item: Any) -> tuple[str, ...]:
    """Return the names of the views of an item that is a dict of several views; empty otherwise."""
    fields = _view_fields(item) if isinstance(item, Mapping) else {}
    if len(fields) < 2:
        return ()
    parts = [(name.rpartition("."), f".{_suffix(name)}" in SUFFIXES) for name in fields]
    return name_field_views([f"{stem}{dot}{'image' if image else end}" for (stem, dot, end), image in parts])


def _flatten(item: Any) -> list[Any]:
    """Flatten nested tuples and lists into one list."""
    return [part for nested in item for part in _flatten(nested)] if isinstance(item, tuple | list) else [item]


def _last_label(item: Any) -> int | str | None:
    last = _flatten(item)[-1:] if isinstance(item, tuple | list) else []
    return None if not last else last[0] if isinstance(last[0], str) else _as_integer(last[0])


def _as_integer(value: Any) -> int | None:
    is_scalar = isinstance(value, Tensor | np.ndarray | np.generic) and value.ndim == 0
    number = value.item() if is_scalar else value
    return number if isinstance(number, int) else None


def _view_fields(item: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the fields of a dict item that are views, without labels and keys."""
    return {
        str(name): value
        for name, value in item.items()
        if _is_image(name, value)
        or _is_text(name, value)
        or (isinstance(value, np.ndarray | Tensor) and value.ndim > 0)
        or (isinstance(value, list) and value and all(isinstance(number, int | float) for number in value))
    }


def _parse_field(name: str, value: Any, where: str, image_size: int | None) -> Tensor:
    if not _is_text(name, value):
        return _as_view(_decode(value, where), where, image_size)
    try:
        text = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: must be UTF-8 text: {error}", kind="not_unicode") from error
    check(bool(text.strip()), f"{where}: must be a text, got an empty one.", "empty_text")
    return texts_to_tensor([text], where)


def _is_image(name: object, value: Any) -> bool:
    return (
        isinstance(value, Image.Image)
        or (isinstance(value, bytes) and f".{_suffix(name)}" in SUFFIXES)
        or (isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes))
    )


def _is_text(name: object, value: Any) -> bool:
    by_suffix = isinstance(value, str | bytes) and _suffix(name) == "txt"
    return by_suffix or (isinstance(value, str) and is_text_column_name(str(name)))


def _suffix(name: object) -> str:
    return str(name).rpartition(".")[2].lower()


def _decode(part: Any, where: str) -> Any:
    """Convert an encoded image to a PIL image and a list to an array; return other values unchanged."""
    content = part["bytes"] if isinstance(part, Mapping) else part
    if isinstance(content, list):
        return np.asarray(content, np.float32)
    if not isinstance(content, bytes):
        return content
    try:
        with Image.open(io.BytesIO(content)) as image:
            return to_rgb(ImageOps.exif_transpose(image))
    except Exception as error:  # decoders raise anything on hostile bytes
        raise UsageError(f"{where}: an image cannot be decoded: {one_line_reason(error)}", kind="unreadable") from error


def _as_view(value: Any, where: str, image_size: int | None) -> Tensor:
    """Return one view of an item as a batch of one."""
    if isinstance(value, Image.Image):
        if image_size is not None:
            return crop_to_square(value, image_size)[None]
        return as_view_tensor(where, np.asarray(value if value.mode in ("L", "RGB") else to_rgb(value))[None])
    message = f"{where}: must be a tensor, an array or a PIL image, got {type(value).__name__}; a label (integer or "
    message += "text) is the last part of a tuple, and a text is a view of a dict under a name such as caption."
    check(isinstance(value, Tensor | np.ndarray) and value.ndim > 0, message, "not_a_view")
    return as_view_tensor(where, value[None])


def _resize(view: Tensor, size: int | None) -> Tensor:
    if size is None or view.ndim != 4 or view.shape[2:] == (size, size):
        return view
    resized: Tensor = transforms.resize(view, [size, size], antialias=True)
    return resized
