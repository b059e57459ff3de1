"""The sections of the page, in its order: each makes of the runs what its template shows, or nothing."""

from __future__ import annotations

from collections.abc import Callable

from contraport.reporting.page_builder import Canvas, Section
from contraport.reporting.sections.confusion import confusion
from contraport.reporting.sections.embeddings import embeddings
from contraport.reporting.sections.epochs import epochs
from contraport.reporting.sections.geometry import geometry
from contraport.reporting.sections.neighbors import neighbors
from contraport.reporting.sections.pairs import pairs
from contraport.reporting.sections.plans import plans
from contraport.reporting.sections.results import results
from contraport.reporting.sections.robustness import robustness
from contraport.reporting.sections.settings import settings
from contraport.reporting.sections.training import training
from contraport.reporting.sections.verdict import told

SECTIONS: tuple[Callable[[Canvas], Section | None], ...] = (
    told,
    results,
    training,
    epochs,
    embeddings,
    neighbors,
    confusion,
    plans,
    geometry,
    robustness,
    pairs,
    settings,
)

__all__ = ["SECTIONS"]
