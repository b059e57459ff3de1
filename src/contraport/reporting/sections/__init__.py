"""Sections of the report in order: each function builds a `Section`, or None if the runs have no data for it."""

from __future__ import annotations

from collections.abc import Callable

from contraport.reporting.page_builder import PageBuilder, Section
from contraport.reporting.sections.confusion_matrix import build_confusion
from contraport.reporting.sections.embedding_map import build_embedding_map
from contraport.reporting.sections.epoch_curves import build_epoch_curves
from contraport.reporting.sections.feature_geometry import build_geometry
from contraport.reporting.sections.neighbor_strips import build_neighbors
from contraport.reporting.sections.pair_audit import build_pair_audit
from contraport.reporting.sections.plan_heatmaps import build_plans
from contraport.reporting.sections.results_table import build_results, build_settings
from contraport.reporting.sections.robustness_curves import build_robustness
from contraport.reporting.sections.training_curves import build_training_curves
from contraport.reporting.verdict import build_verdict

SECTIONS: tuple[Callable[[PageBuilder], Section | None], ...] = (
    build_verdict,
    build_results,
    build_training_curves,
    build_epoch_curves,
    build_embedding_map,
    build_neighbors,
    build_confusion,
    build_plans,
    build_geometry,
    build_robustness,
    build_pair_audit,
    build_settings,
)

__all__ = ["SECTIONS"]
