"""Subclass of matplotlib's `Figure` that notebooks display without pyplot."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """Matplotlib figure that notebooks display as a PNG image and that opens no window."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
