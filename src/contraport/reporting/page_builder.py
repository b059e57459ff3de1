"""Builder of the report: collects figures, thumbnails and script data from the sections."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from contraport.reporting.html_page import data_uri, describe_sketches, pixels_to_image
from contraport.reporting.plotly_figures import Figure
from contraport.reporting.report_run import ReportRun

MAX_PNG_CHARS = 670_000
"""A sprite sheet with a longer PNG data URI is stored as JPEG, so that a page of two runs stays below 2 MB."""

JPEG_QUALITY = 80


class Section(NamedTuple):
    """Section of the page: its key, which names the template, its heading, and the values of the template."""

    key: str
    title: str
    values: Mapping[str, Any]


class PlotElement(NamedTuple):
    """Figure on the page: key of its element, description for screen readers, CSS class, and width over height."""

    key: str
    label: str
    kind: str
    ratio: float | None = None


class SpriteSheet(NamedTuple):
    """Thumbnails of some items in one image, row by row."""

    uri: str
    columns: int
    width: int
    height: int
    items: int


@dataclass
class PageBuilder:
    """Collects the figures, thumbnails and script data that the sections add to the page.

    Attributes:
        runs: the runs on the page.
        plots: figures by the key of their element.
        sheets: sprite sheets by the hash of their content, so that runs on the same data share one.
        data: data of the page's scripts by section.
    """

    runs: Sequence[ReportRun]
    plots: dict[str, Figure] = field(default_factory=dict)
    sheets: dict[str, SpriteSheet] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    def add_plot(
        self, key: str, figure: Figure, label: str, kind: str = "curve", ratio: float | None = None
    ) -> PlotElement:
        """Add a figure and return its element."""
        self.plots[key] = figure
        return PlotElement(key, label, kind, ratio)

    def add_thumbnails(self, thumbnails: np.ndarray[Any, Any] | None) -> str:
        """Add thumbnails ``(n, C, H, W)`` and return the key of their sheet, an empty string for None."""
        if thumbnails is None:
            return ""
        sheet = pack_thumbnails(thumbnails)
        key = hashlib.sha256(sheet.uri.encode()).hexdigest()[:12]
        self.sheets[key] = sheet
        return key

    def add_sketches(self, sketches: np.ndarray[Any, Any]) -> range:
        """Add the sketches of a view and return their places among all sketches of the page."""
        stored = self.data.setdefault("sketches", [])
        first = len(stored)
        stored += describe_sketches(sketches)
        return range(first, len(stored))


def pack_thumbnails(thumbnails: np.ndarray[Any, Any]) -> SpriteSheet:
    """Pack thumbnails ``(n, C, H, W)`` uint8 into one image."""
    items, channels, height, width = thumbnails.shape
    columns = math.ceil(math.sqrt(items))
    rows = math.ceil(items / columns)
    packed = np.zeros((rows * columns, channels, height, width), dtype=np.uint8)
    packed[:items] = thumbnails
    packed = packed.reshape(rows, columns, channels, height, width).transpose(2, 0, 3, 1, 4)
    image = pixels_to_image(packed.reshape(channels, rows * height, columns * width))
    uri = data_uri(image, "png", optimize=True)
    if len(uri) > MAX_PNG_CHARS:
        uri = data_uri(image, "jpeg", quality=JPEG_QUALITY, optimize=True)
    return SpriteSheet(uri, columns, width, height, items)
