"""Thumbnails in one image, of which the page shows one at a time."""

from __future__ import annotations

import base64
import hashlib
import io
import math
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

LARGEST_PNG = 500_000
"""A sheet that has more bytes as a PNG is a JPEG, so that the page of two runs stays small."""

JPEG_QUALITY = 80


class Sheet(NamedTuple):
    """The thumbnails of some items in one image, row by row."""

    uri: str
    columns: int
    width: int
    height: int
    items: int


def sheet(thumbnails: np.ndarray[Any, Any]) -> tuple[str, Sheet]:
    """Pack thumbnails `(m, C, H, W)` uint8 into one image; the same thumbnails have the same key.

    Three channels are colours; of any other number the mean is shown.
    """
    items, channels, height, width = thumbnails.shape
    pixels = thumbnails if channels == 3 else thumbnails.mean(axis=1, keepdims=True).round().astype(np.uint8)
    columns = math.ceil(math.sqrt(items))
    rows = math.ceil(items / columns)
    packed = np.zeros((rows * columns, *pixels.shape[1:]), dtype=np.uint8)
    packed[:items] = pixels
    packed = packed.reshape(rows, columns, -1, height, width).transpose(0, 3, 1, 4, 2)
    image = Image.fromarray(packed.reshape(rows * height, columns * width, -1).squeeze())
    kind, data = "png", _encoded(image, "PNG", optimize=True)
    if len(data) > LARGEST_PNG:
        kind, data = "jpeg", _encoded(image, "JPEG", quality=JPEG_QUALITY, optimize=True)
    uri = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return hashlib.sha256(data).hexdigest()[:12], Sheet(uri, columns, width, height, items)


def _encoded(image: Image.Image, kind: str, **settings: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()
