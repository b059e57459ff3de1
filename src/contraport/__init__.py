"""Contrastive learning as transport: say which plan you want between two sets of embeddings.

The losses need torch and numpy only. The verbs (`train`, `evaluate`, `embed`, `export`, `report`, `demo`) are the
command line's commands as functions with the same keywords; they and the estimators (`ContrastiveEncoder`, `SNE`,
`TSNE`, `InverseOT`) need the extras. Everything is imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from contraport._version import __version__
from contraport.errors import UsageError, needing

if TYPE_CHECKING:
    from contraport import engine, objectives
    from contraport.cli.demo import demo
    from contraport.engine import Bilinear, Gibbs, RationalQuadratic, StudentT
    from contraport.estimators import SNE, TSNE, ContrastiveEncoder, InverseOT
    from contraport.evaluation import embed, evaluate
    from contraport.exporting import export
    from contraport.objectives import (
        KL,
        Balanced,
        ClosedFormQuadratic,
        Columns,
        CoreView,
        Cost,
        Cross,
        Domains,
        Energy,
        Exact,
        FenchelYoung,
        Free,
        FullGraph,
        Joint,
        Labels,
        Leading,
        Logistic,
        LogMean,
        MarginalPenalty,
        Matrix,
        Neighbors,
        NoiseContrast,
        Objective,
        Pairs,
        PlanUniformity,
        Quadratic,
        Relax,
        ReverseKL,
        Rince,
        Rows,
        Simplex,
        Soft,
        SquaredL2,
        Temperature,
        Tighten,
        Total,
        Unbalanced,
        Within,
        align_uniform,
        alpha_cl,
        assignments,
        byol,
        cmc,
        cmc_nce,
        direct_clr,
        gca_ince,
        gca_rince,
        gca_uot,
        info_nce,
        iot,
        iot_quadratic,
        iot_uniform,
        list_objectives,
        nt_xent,
        objective,
        pairwise,
        quadratic,
        rince,
        sigmoid,
        sup_con,
        t_simclr,
    )
    from contraport.reporting import report
    from contraport.training.train import train

_LAZY = {
    "SNE": ("contraport.estimators", "train"),
    "TSNE": ("contraport.estimators", "train"),
    "ContrastiveEncoder": ("contraport.estimators", "train"),
    "InverseOT": ("contraport.estimators", "train"),
    "train": ("contraport.training", "train"),
    "evaluate": ("contraport.evaluation", "train"),
    "embed": ("contraport.evaluation", "train"),
    "export": ("contraport.exporting", "train,export"),
    "report": ("contraport.reporting", "report"),
    "demo": ("contraport.cli.demo", "train,report"),
}
"""Where the names are that are imported when first used, and which extra brings what they need."""

__all__ = [
    "KL",
    "SNE",
    "TSNE",
    "Balanced",
    "Bilinear",
    "ClosedFormQuadratic",
    "Columns",
    "ContrastiveEncoder",
    "CoreView",
    "Cost",
    "Cross",
    "Domains",
    "Energy",
    "Exact",
    "FenchelYoung",
    "Free",
    "FullGraph",
    "Gibbs",
    "InverseOT",
    "Joint",
    "Labels",
    "Leading",
    "LogMean",
    "Logistic",
    "MarginalPenalty",
    "Matrix",
    "Neighbors",
    "NoiseContrast",
    "Objective",
    "Pairs",
    "PlanUniformity",
    "Quadratic",
    "RationalQuadratic",
    "Relax",
    "ReverseKL",
    "Rince",
    "Rows",
    "Simplex",
    "Soft",
    "SquaredL2",
    "StudentT",
    "Temperature",
    "Tighten",
    "Total",
    "Unbalanced",
    "UsageError",
    "Within",
    "__version__",
    "align_uniform",
    "alpha_cl",
    "assignments",
    "byol",
    "cmc",
    "cmc_nce",
    "demo",
    "direct_clr",
    "embed",
    "engine",
    "evaluate",
    "export",
    "gca_ince",
    "gca_rince",
    "gca_uot",
    "info_nce",
    "iot",
    "iot_quadratic",
    "iot_uniform",
    "list_objectives",
    "nt_xent",
    "objective",
    "objectives",
    "pairwise",
    "quadratic",
    "report",
    "rince",
    "sigmoid",
    "sup_con",
    "t_simclr",
    "train",
]


def __getattr__(name: str) -> Any:
    # Nothing is imported before it is asked for: `contraport --help` need not wait for torch.
    if name in _LAZY:
        module, extra = _LAZY[name]
        with needing(extra, f"contraport.{name}"):
            return getattr(import_module(module), name)
    if name in ("engine", "objectives"):
        return import_module(f"contraport.{name}")
    for room in ("contraport.objectives", "contraport.engine") if name in __all__ else ():
        if hasattr(import_module(room), name):
            globals()[name] = getattr(import_module(room), name)
            return globals()[name]
    raise AttributeError(f"module 'contraport' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
