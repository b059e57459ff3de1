"""What can be said of the runs, in words."""

from __future__ import annotations

from contraport.reporting.page_builder import Canvas, Section
from contraport.reporting.verdict import verdict


def told(canvas: Canvas) -> Section | None:
    """Return the verdict; nothing where nothing can be said."""
    said = verdict(canvas.runs)
    return Section("verdict", "Verdict", {"said": said}) if said else None
