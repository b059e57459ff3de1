"""Common parts of all HTML pages: the page template, images as data URIs, and sketches of data items."""

from __future__ import annotations

import base64
import datetime
import io
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from contraport._version import __version__

MAX_LOSSLESS_SIDE = 48
"""Images up to this side in pixels are stored without loss."""

SketchData = dict[str, Any]
"""JSON data from which ``sketch.js`` draws one view of an item; ``is`` names the kind of view."""


def render_page(template: str, package: str, **values: Any) -> str:
    """Render an HTML page from a package's Jinja template that extends ``frame.html.j2``.

    Values are escaped unless they are `markupsafe.Markup`. An undefined value is an error.
    """
    # StrictUndefined: a misspelled name in a template fails instead of leaving a gap on the page.
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader("contraport.reporting")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    values |= {"version": __version__, "date": datetime.date.today().isoformat()}
    return str(environment.get_template(template).render(values))


def pixels_to_pil(pixels: NDArray[np.uint8]) -> Image.Image:
    """Convert uint8 pixels ``(C, H, W)`` to a PIL image, in color for three channels and in gray otherwise.

    Gray is the mean over the channels.

    >>> pixels_to_pil(np.zeros((3, 2, 4), np.uint8)).size, pixels_to_pil(np.zeros((5, 2, 4), np.uint8)).mode
    ((4, 2), 'L')
    """
    if len(pixels) == 3:
        return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    return Image.fromarray(pixels.mean(axis=0).round().astype(np.uint8))


def encode_data_uri(image: Image.Image, kind: str, **settings: Any) -> str:
    """Encode an image as a data URI in the format ``png``, ``jpeg`` or ``webp``.

    >>> encode_data_uri(Image.new("L", (1, 1)), "png")[:22]
    'data:image/png;base64,'
    """
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def convert_sketches_to_json(sketches: NDArray[Any]) -> list[SketchData]:
    """Convert the stored sketches of items to the JSON data from which the page draws these items.

    `contraport.data.thumbnails` makes the sketches.
    """
    if sketches.dtype.kind == "U":
        return [{"is": "text", "text": str(text)} for text in sketches]
    if sketches.ndim == 4:
        lossless = max(sketches.shape[2:]) <= MAX_LOSSLESS_SIDE
        kind = "png" if lossless else "webp"
        return [{"is": "image", "uri": encode_data_uri(pixels_to_pil(one), kind, quality=80)} for one in sketches]
    return [{"is": "vector" if sketches.ndim == 2 else "series", "values": values.tolist()} for values in sketches]
