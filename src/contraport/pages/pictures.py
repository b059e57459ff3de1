"""Pictures as addresses that hold all of their bytes."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SMALL = 48
"""Pictures of up to so many pixels a side lose nothing."""

Drawing = dict[str, Any]
"""A view as the page draws it: its kind, and what that kind needs."""


def image(pixels: NDArray[np.uint8]) -> Image.Image:
    """Return pixels ``(C, H, W)`` as an image: three channels are colours, of any other number it is the mean.

    >>> image(np.zeros((3, 2, 4), np.uint8)).size, image(np.zeros((5, 2, 4), np.uint8)).mode
    ((4, 2), 'L')
    """
    if len(pixels) == 3:
        return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    return Image.fromarray(pixels.mean(axis=0).round().astype(np.uint8))


def uri(picture: Image.Image, kind: str, **settings: Any) -> str:
    """Return an image as a data URI of a kind: ``png``, ``jpeg`` or ``webp``.

    >>> uri(Image.new("L", (1, 1)), "png")[:22]
    'data:image/png;base64,'
    """
    buffer = io.BytesIO()
    picture.save(buffer, kind, **settings)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def drawings(sketches: NDArray[Any]) -> list[Drawing]:
    """Return how a page draws each item of a view, from its sketch; see `contraport.data.thumbnails`."""
    if sketches.dtype.kind == "U":
        return [{"is": "text", "text": str(text)} for text in sketches]
    if sketches.ndim == 4:
        return [{"is": "image", "uri": _picture(pixels)} for pixels in sketches]
    return [{"is": "vector" if sketches.ndim == 2 else "series", "values": values.tolist()} for values in sketches]


def _picture(pixels: NDArray[np.uint8]) -> str:
    picture = image(pixels)
    return uri(picture, "png" if max(picture.size) <= SMALL else "webp", quality=80)
