"""All settings, and what the trainings measured of their own speed."""

from __future__ import annotations

from contraport.reporting import numbers
from contraport.reporting.page_builder import Canvas, Section


def settings(canvas: Canvas) -> Section:
    """Return every setting of every run."""
    values = {"settings": numbers.settings(canvas.runs), "speeds": numbers.speeds(canvas.runs)}
    return Section("settings", "Settings", values)
