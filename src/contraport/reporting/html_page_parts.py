"""Shared parts of HTML pages: page template, encoding of images, and item previews."""

from __future__ import annotations

import base64
import datetime
import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jinja2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from contraport._version import __version__
from contraport.reporting.plotly_figures import PlotlyFigure
from contraport.reporting.reported_run import ReportedRun


def render_page(template: str, package: str, **values: Any) -> str:
    """Render an HTML page from a Jinja template that extends ``frame.html.j2``.

    Values are escaped unless they are `markupsafe.Markup`. An undefined value is an error, but for the `heading`, the
    sentence that heads the page; without it the title of the page is its heading.
    """
    # StrictUndefined: a misspelled name in a template fails instead of leaving a gap on the page.
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader("contraport.reporting")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    values = {"heading": None} | values | {"version": __version__, "date": datetime.date.today().isoformat()}
    return str(environment.get_template(template).render(values))


def chw_pixels_to_pil(pixels: NDArray[np.uint8]) -> Image.Image:
    """Convert uint8 pixels ``(C, H, W)`` to an RGB or gray PIL image.

    Three channels are color. Gray is the mean over the channels.

    >>> chw_pixels_to_pil(np.zeros((3, 2, 4), np.uint8)).size, chw_pixels_to_pil(np.zeros((5, 2, 4), np.uint8)).mode
    ((4, 2), 'L')
    """
    if len(pixels) == 3:
        return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    return Image.fromarray(pixels.mean(axis=0).round().astype(np.uint8))


def encode_data_uri(image: Image.Image, kind: str, **settings: Any) -> str:
    """Encode an image as a data URI of ``png``, ``jpeg`` or ``webp``.

    >>> encode_data_uri(Image.new("L", (1, 1)), "png")[:22]
    'data:image/png;base64,'
    """
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def build_preview_records(previews: NDArray[Any]) -> list[dict[str, Any]]:
    """Build a JSON record of each preview for ``preview.js``.

    Its key ``is`` is text, image, vector or series. `contraport.data.item_previews` makes the previews.
    """
    if previews.dtype.kind == "U":
        return [{"is": "text", "text": str(text)} for text in previews]
    if previews.ndim == 4:
        kind = "png" if max(previews.shape[2:]) <= 48 else "webp"  # small images without loss
        return [{"is": "image", "uri": encode_data_uri(chw_pixels_to_pil(one), kind, quality=80)} for one in previews]
    return [{"is": "vector" if previews.ndim == 2 else "series", "values": values.tolist()} for values in previews]


class Section(NamedTuple):
    """Section of the report page, whose `key` names its template and HTML element."""

    key: str
    title: str
    template_variables: Mapping[str, Any]


class PlotElement(NamedTuple):
    """HTML element of an interactive figure, with a `label` for screen readers."""

    element_id: str
    label: str
    css_class: str
    aspect_ratio: float | None = None


class SpriteSheet(NamedTuple):
    """Image that tiles the thumbnails of several items, `columns` per row."""

    uri: str
    columns: int
    thumbnail_width: int
    thumbnail_height: int


@dataclass
class PageAssets:
    """Figures, images and data of a report page, collected from its sections.

    Attributes:
        plots: plotly figures, by the id of their HTML element.
        sheets: sprite sheets of thumbnails, by a hash of the image, so that runs on the same data share one.
        script_data: data that the page's JavaScript reads, by section.
    """

    runs: Sequence[ReportedRun]
    plots: dict[str, PlotlyFigure] = field(default_factory=dict)
    sheets: dict[str, SpriteSheet] = field(default_factory=dict)
    script_data: dict[str, Any] = field(default_factory=dict)

    def add_plot(
        self, key: str, figure: PlotlyFigure, label: str, css_class: str = "curve", aspect_ratio: float | None = None
    ) -> PlotElement:
        """Add a figure to the page and return its HTML element."""
        self.plots[key] = figure
        return PlotElement(key, label, css_class, aspect_ratio)

    def add_thumbnails(self, thumbnails: np.ndarray[Any, Any] | None) -> str:
        """Pack uint8 thumbnails ``(n, C, H, W)`` into a sprite sheet and return its key.

        Without thumbnails the key is empty.
        """
        if thumbnails is None:
            return ""
        items, channels, height, width = thumbnails.shape
        columns = math.ceil(math.sqrt(items))
        rows = math.ceil(items / columns)
        packed = np.zeros((rows * columns, channels, height, width), dtype=np.uint8)
        packed[:items] = thumbnails
        packed = packed.reshape(rows, columns, channels, height, width).transpose(2, 0, 3, 1, 4)
        image = chw_pixels_to_pil(packed.reshape(channels, rows * height, columns * width))
        uri = encode_data_uri(image, "png", optimize=True)
        if len(uri) > 670_000:  # a page of two runs stays below 2 MB
            uri = encode_data_uri(image, "jpeg", quality=80, optimize=True)
        key = hashlib.sha256(uri.encode()).hexdigest()[:12]
        self.sheets[key] = SpriteSheet(uri, columns, width, height)
        return key

    def add_previews(self, previews: np.ndarray[Any, Any]) -> range:
        """Add item previews to the page's data and return their indices."""
        stored = self.script_data.setdefault("previews", [])
        first = len(stored)
        stored += build_preview_records(previews)
        return range(first, len(stored))
