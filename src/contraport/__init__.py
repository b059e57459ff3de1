"""Contrastive learning as transport: say which plan you want between two sets of embeddings.

The losses need torch and numpy only. The verbs (`train`, `evaluate`, `embed`, `report`, `demo`) are the command line's
commands as functions with the same keywords; they are imported when first used and need the extras.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from contraport import engine, objectives
from contraport._version import __version__
from contraport.engine import Gibbs, StudentT
from contraport.errors import UsageError
from contraport.objectives import (
    KL,
    Balanced,
    Columns,
    Cross,
    Joint,
    Matrix,
    Objective,
    Pairs,
    Rows,
    Unbalanced,
    gca_ince,
    gca_uot,
    info_nce,
    list_objectives,
    nt_xent,
    objective,
)

if TYPE_CHECKING:
    from contraport.cli.demo import demo
    from contraport.evaluation import embed, evaluate
    from contraport.report import report
    from contraport.training import train

_VERBS = {
    "train": "contraport.training",
    "evaluate": "contraport.evaluation",
    "embed": "contraport.evaluation",
    "report": "contraport.report",
    "demo": "contraport.cli.demo",
}

__all__ = [
    "KL",
    "Balanced",
    "Columns",
    "Cross",
    "Gibbs",
    "Joint",
    "Matrix",
    "Objective",
    "Pairs",
    "Rows",
    "StudentT",
    "Unbalanced",
    "UsageError",
    "__version__",
    "demo",
    "embed",
    "engine",
    "evaluate",
    "gca_ince",
    "gca_uot",
    "info_nce",
    "list_objectives",
    "nt_xent",
    "objective",
    "objectives",
    "report",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _VERBS:
        return getattr(import_module(_VERBS[name]), name)
    raise AttributeError(f"module 'contraport' has no attribute {name!r}")
