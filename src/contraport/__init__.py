"""Contrastive learning as transport: say which plan you want between two sets of embeddings.

The losses need torch and numpy only. The verbs (`train`, `evaluate`, `embed`, `neighbors`, ...) are the
command line's commands as functions with the same keywords; they and the estimators (`ContrastiveEncoder`, `SNE`,
`TSNE`, `InverseOT`) need the extras. Everything is imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from contraport._version import __version__
from contraport.errors import UsageError, needing

if TYPE_CHECKING:
    from contraport import engine, integrations, objectives, plots
    from contraport.auditing.audit import audit
    from contraport.catalog.objectives import (
        align_uniform,
        alpha_cl,
        barlow_twins,
        byol,
        cmc,
        cmc_nce,
        dcl,
        dclw,
        debiased,
        dhel,
        direct_clr,
        gca_ince,
        gca_rince,
        gca_uot,
        gte,
        guided,
        hard_negative,
        info_nce,
        iot,
        iot_quadratic,
        iot_uniform,
        kcl,
        list_objectives,
        mv_dhel,
        nt_xent,
        objective,
        pairwise,
        quadratic,
        rince,
        sigmoid,
        sog_clr,
        spectral,
        sup_con,
        t_simclr,
        vic_reg,
        x_clr,
    )
    from contraport.cli.demo import demo
    from contraport.cli.doctor import doctor
    from contraport.comparing.compare import compare
    from contraport.engine import Bilinear, Gibbs, RationalQuadratic, StudentT
    from contraport.estimators import SNE, TSNE, ContrastiveEncoder, InverseOT
    from contraport.evaluation.embed import embed
    from contraport.evaluation.evaluate import evaluate
    from contraport.exporting import export
    from contraport.objectives import (
        KL,
        Affinity,
        Agreement,
        Alike,
        Balanced,
        ByPlan,
        ClosedFormQuadratic,
        Columns,
        Coordinates,
        CoreView,
        Cost,
        Cross,
        Debiased,
        Domains,
        Energy,
        Exact,
        FenchelYoung,
        Free,
        FullGraph,
        Guided,
        Hellinger,
        JensenShannon,
        Joint,
        Labels,
        Leading,
        Listed,
        Logistic,
        LogMean,
        LogSum,
        LowVariance,
        MarginalPenalty,
        Matrix,
        MeanKernel,
        MeanSquare,
        MovingLogSum,
        Neighbors,
        NoiseContrast,
        Objective,
        Pairs,
        PlanUniformity,
        Relax,
        ReverseKL,
        Rince,
        Rows,
        Shown,
        Simplex,
        Soft,
        SquaredL2,
        Temperature,
        Tighten,
        Total,
        TotalVariation,
        Transport,
        Tsallis,
        Unbalanced,
        Within,
        assignments,
        sinkhorn_divergence,
        transport,
    )
    from contraport.reporting import report
    from contraport.searching.cluster import cluster
    from contraport.searching.duplicates import duplicates
    from contraport.searching.neighbors import neighbors
    from contraport.searching.search import search
    from contraport.training.train import train

_LAZY = {
    "SNE": ("contraport.estimators", "train"),
    "TSNE": ("contraport.estimators", "train"),
    "ContrastiveEncoder": ("contraport.estimators", "train"),
    "InverseOT": ("contraport.estimators", "train"),
    "train": ("contraport.training", "train"),
    "audit": ("contraport.auditing", "train"),
    "evaluate": ("contraport.evaluation", "train"),
    "compare": ("contraport.comparing", "train,report"),
    "embed": ("contraport.evaluation", "train"),
    "export": ("contraport.exporting", "train,export"),
    "report": ("contraport.reporting", "report"),
    "demo": ("contraport.cli.demo", "train,report"),
    "doctor": ("contraport.cli.doctor", ""),
    "neighbors": ("contraport.searching", "train"),
    "search": ("contraport.searching", "train"),
    "duplicates": ("contraport.searching", "train"),
    "cluster": ("contraport.searching", "train"),
}
"""Where the names are that are imported when first used, and which extra brings what they need."""

__all__ = [
    "KL",
    "SNE",
    "TSNE",
    "Affinity",
    "Agreement",
    "Alike",
    "Balanced",
    "Bilinear",
    "ByPlan",
    "ClosedFormQuadratic",
    "Columns",
    "ContrastiveEncoder",
    "Coordinates",
    "CoreView",
    "Cost",
    "Cross",
    "Debiased",
    "Domains",
    "Energy",
    "Exact",
    "FenchelYoung",
    "Free",
    "FullGraph",
    "Gibbs",
    "Guided",
    "Hellinger",
    "InverseOT",
    "JensenShannon",
    "Joint",
    "Labels",
    "Leading",
    "Listed",
    "LogMean",
    "LogSum",
    "Logistic",
    "LowVariance",
    "MarginalPenalty",
    "Matrix",
    "MeanKernel",
    "MeanSquare",
    "MovingLogSum",
    "Neighbors",
    "NoiseContrast",
    "Objective",
    "Pairs",
    "PlanUniformity",
    "RationalQuadratic",
    "Relax",
    "ReverseKL",
    "Rince",
    "Rows",
    "Shown",
    "Simplex",
    "Soft",
    "SquaredL2",
    "StudentT",
    "Temperature",
    "Tighten",
    "Total",
    "TotalVariation",
    "Transport",
    "Tsallis",
    "Unbalanced",
    "UsageError",
    "Within",
    "__version__",
    "align_uniform",
    "alpha_cl",
    "assignments",
    "audit",
    "barlow_twins",
    "byol",
    "cluster",
    "cmc",
    "cmc_nce",
    "compare",
    "dcl",
    "dclw",
    "debiased",
    "demo",
    "dhel",
    "direct_clr",
    "doctor",
    "duplicates",
    "embed",
    "engine",
    "evaluate",
    "export",
    "gca_ince",
    "gca_rince",
    "gca_uot",
    "gte",
    "guided",
    "hard_negative",
    "info_nce",
    "integrations",
    "iot",
    "iot_quadratic",
    "iot_uniform",
    "kcl",
    "list_objectives",
    "mv_dhel",
    "neighbors",
    "nt_xent",
    "objective",
    "objectives",
    "pairwise",
    "plots",
    "quadratic",
    "report",
    "rince",
    "search",
    "sigmoid",
    "sinkhorn_divergence",
    "sog_clr",
    "spectral",
    "sup_con",
    "t_simclr",
    "train",
    "transport",
    "vic_reg",
    "x_clr",
]


def __getattr__(name: str) -> Any:
    # Nothing is imported before it is asked for: `contraport --help` need not wait for torch.
    if name in _LAZY:
        module, extra = _LAZY[name]
        with needing(extra, f"contraport.{name}"):
            return getattr(import_module(module), name)
    if name in ("engine", "integrations", "objectives", "plots"):
        return import_module(f"contraport.{name}")
    rooms = ("contraport.catalog.objectives", "contraport.objectives", "contraport.engine")
    for room in rooms if name in __all__ else ():
        if hasattr(import_module(room), name):
            globals()[name] = getattr(import_module(room), name)
            return globals()[name]
    raise AttributeError(f"module 'contraport' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
