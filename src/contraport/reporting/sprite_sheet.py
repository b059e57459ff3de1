"""Thumbnails in one image, of which the page shows one at a time."""

from __future__ import annotations

import hashlib
import math
from typing import Any, NamedTuple

import numpy as np

from contraport import pages

LARGEST_PNG = 670_000
"""A sheet that takes more letters as a PNG is a JPEG, so that the page of two runs stays small."""

JPEG_QUALITY = 80


class Sheet(NamedTuple):
    """The thumbnails of some items in one image, row by row."""

    uri: str
    columns: int
    width: int
    height: int
    items: int


def sheet(thumbnails: np.ndarray[Any, Any]) -> tuple[str, Sheet]:
    """Pack thumbnails `(m, C, H, W)` uint8 into one image; the same thumbnails have the same key."""
    items, channels, height, width = thumbnails.shape
    columns = math.ceil(math.sqrt(items))
    rows = math.ceil(items / columns)
    packed = np.zeros((rows * columns, channels, height, width), dtype=np.uint8)
    packed[:items] = thumbnails
    packed = packed.reshape(rows, columns, channels, height, width).transpose(2, 0, 3, 1, 4)
    image = pages.image(packed.reshape(channels, rows * height, columns * width))
    address = pages.uri(image, "png", optimize=True)
    if len(address) > LARGEST_PNG:
        address = pages.uri(image, "jpeg", quality=JPEG_QUALITY, optimize=True)
    return hashlib.sha256(address.encode()).hexdigest()[:12], Sheet(address, columns, width, height, items)
