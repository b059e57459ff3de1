"""Pictures as addresses that hold all of their bytes."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


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
