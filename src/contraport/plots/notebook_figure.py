"""A figure that a notebook shows, whether or not it has loaded pyplot."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A matplotlib figure that belongs to no window and is a PNG where a notebook asks for one."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
