"""One item of somebody's own data, as a torch dataset or a stream gives it: its views, its label, its key."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from contraport._utils.text_tensors import texts_to_tensor
from contraport.data.arrays import as_view_tensor
from contraport.data.decoding import SUFFIXES, square_pixels, to_rgb
from contraport.data.formats.column_roles import LABEL_NAMES, is_text_name
from contraport.data.formats.shards import name_field_views
from contraport.errors import UsageError, check, one_line_reason

_KEY = "__key__"
_LABELS = (*LABEL_NAMES, "cls")


class ParsedItem(NamedTuple):
    """What an item is read as.

    Attributes:
        views: ``(1, *shape)`` each.
        label: its class by number or by name, or None.
        key: what its source calls it, or None.
    """

    views: tuple[Tensor, ...]
    label: int | str | None
    key: str | None


def parse_item(item: Any, where: str, image_size: int | None = None) -> ParsedItem:
    """Return what an item is read as.

    Args:
        item: an image, an array or a tensor, which is one view; a tuple or list of these, which are several, and of a
            label last; or a dict: of it, the values that are images (encoded ones too), arrays, tensors or texts, by a
            name that says so such as ``caption`` or ``txt``, are the views, in its order; an integer or text by a name
            that columns of labels have, or ``cls``, is the label, and ``__key__`` the key.
        where: what messages call the item.
        image_size: side of the square that images become, in pixels.

    Raises:
        UsageError: no view, or what is none among them.
    """
    if not isinstance(item, Mapping):
        label = _last(item)
        parts = _flat(item)[: -1 if label is not None else None]
        check(len(parts) > 0, f"{where}: expected a view, got {item!r}.")
        views = (_view_of(part, f"{where}, view {number}", image_size) for number, part in enumerate(parts))
        return ParsedItem(tuple(_sized(view, image_size) for view in views), label, None)
    fields = _fields_of(item)
    check(
        len(fields) > 0,
        f"{where}: expected an image, an array, a tensor or a text, got the keys {sorted(map(str, item))}.",
    )
    views = (_field(name, value, f"{where}: {name}", image_size) for name, value in fields.items())
    key = str(item[_KEY]) if _KEY in item else None
    return ParsedItem(tuple(_sized(view, image_size) for view in views), item_label(item), key)


def item_label(item: Any) -> int | str | None:
    """Return the label of an item, or None."""
    if not isinstance(item, Mapping):
        return _last(item)
    named = next((item[name] for name in item if str(name).lower() in _LABELS), None)
    if isinstance(named, bytes):
        return named.decode(errors="replace")
    return named if isinstance(named, str) else _whole(named)


def has_images(item: Any) -> bool:
    """Return whether an item has an image that was one before it was an array."""
    if isinstance(item, Mapping):
        return any(_is_picture(name, value) for name, value in item.items())
    return any(isinstance(part, Image.Image) for part in _flat(item))


def item_view_names(item: Any) -> list[str] | None:
    """Return what the views of an item are called, as those of shards are; None where it has no names for several."""
    fields = _fields_of(item) if isinstance(item, Mapping) else {}
    if len(fields) < 2:
        return None
    begun = [(name.rpartition("."), f".{_suffix(name)}" in SUFFIXES) for name in fields]
    return name_field_views(["".join((*stem, "image" if picture else suffix)) for (*stem, suffix), picture in begun])


def _flat(item: Any) -> list[Any]:
    """Return the parts of an item, nested tuples made flat."""
    return [part for nested in item for part in _flat(nested)] if isinstance(item, tuple | list) else [item]


def _last(item: Any) -> int | str | None:
    """Return the label at the end of a tuple, or None."""
    last = _flat(item)[-1:] if isinstance(item, tuple | list) else []
    return None if not last else last[0] if isinstance(last[0], str) else _whole(last[0])


def _whole(value: Any) -> int | None:
    """Return a whole number, or None where it is none."""
    is_array = isinstance(value, Tensor | np.ndarray | np.generic) and value.ndim == 0
    number = value.item() if is_array else value
    return number if isinstance(number, int) else None


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


def _field(name: str, value: Any, where: str, image_size: int | None) -> Tensor:
    """Return one field of an item as a batch of one."""
    if not _is_text(name, value):
        return _view_of(_opened(value, where), where, image_size)
    try:
        text = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: expected a text in UTF-8: {error}") from error
    check(bool(text.strip()), f"{where}: expected a text, got an empty one.")
    return texts_to_tensor([text], where)


def _is_picture(name: object, value: Any) -> bool:
    return (
        isinstance(value, Image.Image)
        or (isinstance(value, bytes) and f".{_suffix(name)}" in SUFFIXES)
        or (isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes))
    )


def _is_text(name: object, value: Any) -> bool:
    by_suffix = isinstance(value, str | bytes) and _suffix(name) == "txt"
    return by_suffix or (isinstance(value, str) and is_text_name(str(name)))


def _suffix(name: object) -> str:
    return str(name).rpartition(".")[2].lower()


def _opened(part: Any, where: str) -> Any:
    """Return an encoded image opened, a list as an array, and all else as it is."""
    content = part["bytes"] if isinstance(part, Mapping) else part
    if isinstance(content, list):
        return np.asarray(content, np.float32)
    if not isinstance(content, bytes):
        return content
    try:
        with Image.open(io.BytesIO(content)) as image:
            return to_rgb(ImageOps.exif_transpose(image))
    except Exception as error:  # on hostile bytes the decoders raise whatever they like
        raise UsageError(f"{where}: an image cannot be decoded: {one_line_reason(error)}") from error


def _view_of(value: Any, where: str, image_size: int | None) -> Tensor:
    """Return one view of an item as a batch of one."""
    if isinstance(value, Image.Image):
        if image_size is not None:
            return square_pixels(value, image_size)[None]
        pixels = np.asarray(value if value.mode in ("L", "RGB") else to_rgb(value))
        return as_view_tensor(where, pixels[None])
    check(
        isinstance(value, Tensor | np.ndarray) and value.ndim > 0,
        f"{where}: expected a tensor, an array or a PIL image, got {type(value).__name__}; a label is the last of a "
        "tuple, an integer or a text, and texts are views of dicts, by names such as caption.",
    )
    return as_view_tensor(where, value[None])


def _sized(view: Tensor, side: int | None) -> Tensor:
    if side is None or view.ndim != 4 or view.shape[2:] == (side, side):
        return view
    resized: Tensor = transforms.resize(view, [side, side], antialias=True)
    return resized
