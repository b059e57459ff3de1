"""What the sections of a page are made with: the runs, and the figures, sheets and data that they leave for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from contraport.reporting.plotly_figures import Figure
from contraport.reporting.report_run import ReportRun
from contraport.reporting.sprite_sheet import Sheet, sheet


class Section(NamedTuple):
    """A section of the page: its key, which names its template, its heading, and what the template is given."""

    key: str
    title: str
    values: Mapping[str, Any]


class Plot(NamedTuple):
    """A figure on the page: the key of its element, what it shows in words, and its kind, which gives it its shape.

    With a `ratio` it is so many times as wide as it is high.
    """

    key: str
    label: str
    kind: str
    ratio: float | None = None


@dataclass
class Canvas:
    """What all sections share.

    Attributes:
        runs: what is shown.
        plots: the figures by the keys of their elements.
        sheets: the pictures, each sheet once.
        data: what the page's own scripts need, by the name of the section.
    """

    runs: Sequence[ReportRun]
    plots: dict[str, Figure] = field(default_factory=dict)
    sheets: dict[str, Sheet] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    def draw(self, key: str, figure: Figure, label: str, kind: str = "curve", ratio: float | None = None) -> Plot:
        """Keep a figure for the page."""
        self.plots[key] = figure
        return Plot(key, label, kind, ratio)

    def pictures(self, thumbnails: np.ndarray[Any, Any] | None) -> str:
        """Keep thumbnails for the page, and return the key of their sheet; of none it is empty."""
        if thumbnails is None:
            return ""
        key, kept = sheet(thumbnails)
        self.sheets[key] = kept
        return key
