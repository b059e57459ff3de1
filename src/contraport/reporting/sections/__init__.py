"""Functions that build the sections of the report, in the order of the page.

Each function returns a `Section`, or None if the runs have no data for it.
"""

from __future__ import annotations

from collections.abc import Callable

from contraport.reporting.page_builder import PageBuilder, Section
from contraport.reporting.sections.confusion_matrix import build_confusion_section
from contraport.reporting.sections.embedding_map import build_embedding_map_section
from contraport.reporting.sections.epoch_curves import build_epoch_curves_section
from contraport.reporting.sections.feature_geometry import build_geometry_section
from contraport.reporting.sections.neighbor_strips import build_neighbors_section
from contraport.reporting.sections.pair_audit import build_pair_audit_section
from contraport.reporting.sections.plan_heatmaps import build_plans_section
from contraport.reporting.sections.results_table import build_results_section, build_settings_section
from contraport.reporting.sections.robustness_curves import build_robustness_section
from contraport.reporting.sections.training_curves import build_training_curves_section
from contraport.reporting.verdict import build_verdict_section

SECTIONS: tuple[Callable[[PageBuilder], Section | None], ...] = (
    build_verdict_section,
    build_results_section,
    build_training_curves_section,
    build_epoch_curves_section,
    build_embedding_map_section,
    build_neighbors_section,
    build_confusion_section,
    build_plans_section,
    build_geometry_section,
    build_robustness_section,
    build_pair_audit_section,
    build_settings_section,
)

__all__ = ["SECTIONS"]
