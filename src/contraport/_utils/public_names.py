"""Public names of contraport, listed in `__init__.pyi` and imported on first use.

One list serves editors, type checkers and Python, and `import contraport` does not import torch.
"""

from __future__ import annotations

import ast
import difflib
import warnings
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from contraport.errors import require_extra

EXTRA_BY_PACKAGE = {
    "auditing": "train",
    "cli": "train,report",
    "comparison": "train,report",
    "estimators": "train",
    "evaluation": "train",
    "reporting": "report",
    "similarity_search": "train",
    "training": "train",
}
"""Extra that installs the dependencies of a package of contraport; the others need torch and numpy only."""

DEPRECATED = {
    "Affinity": "KernelAttraction",
    "Agreement": "LogKernelAttraction",
    "Alike": "SimilarityMatrix",
    "Bilinear": "BilinearCost",
    "ByPlan": "PlanWeights",
    "CoreView": "CoreViewPairs",
    "Cost": "TargetCost",
    "Debiased": "DebiasedContrastive",
    "Energy": "ContrastiveEnergy",
    "FullGraph": "AllViewPairs",
    "Guided": "GuidedNegatives",
    "KernelAlignment": "KernelAttraction",
    "Leading": "LeadingCoordinates",
    "Listed": "PairList",
    "LogKernelAlignment": "LogKernelAttraction",
    "LogMean": "LogMeanKernel",
    "LogSum": "LogSumKernel",
    "LowVariance": "VarianceHinge",
    "MeanSquare": "MeanSquaredCost",
    "MovingLogSum": "MovingAverageLogSum",
    "NoiseContrast": "NoiseContrastiveEstimation",
    "Relax": "Loosen",
    "Shown": "DuplicateGroups",
    "Soft": "SoftNeighbors",
    "Temperature": "TemperatureSchedule",
    "Total": "SumLoss",
    "Within": "WithinView",
    "comparing": "comparison",
    "measures": "metrics",
    "searching": "similarity_search",
}
"""Current name of each deprecated public name or package; the old name still works, with a warning."""


@cache
def module_by_name() -> dict[str, str]:
    """Return the defining module of each public name; ``"contraport"`` for public modules.

    >>> module_by_name()["nt_xent"], module_by_name()["plots"]
    ('contraport.catalog.objectives', 'contraport')
    """
    listed = ast.parse(files("contraport").joinpath("__init__.pyi").read_text("utf-8")).body
    imports = [line for line in listed if isinstance(line, ast.ImportFrom)]
    return {alias.name: line.module for line in imports for alias in line.names if line.module is not None}


def public_names() -> list[str]:
    """Return all public names, sorted."""
    return sorted(module_by_name())


def load_public_name(name: str) -> Any:
    """Import the object behind a public name, or a subpackage such as `contraport.data`.

    Raises:
        AttributeError: there is no such name; the message offers the nearest one.
        UsageError: a package that it needs is not installed.
    """
    if name in DEPRECATED:
        message = f"contraport.{name} is deprecated; use contraport.{DEPRECATED[name]}."
        warnings.warn(message, FutureWarning, stacklevel=3)
        return load_public_name(DEPRECATED[name])
    module = module_by_name().get(name)
    if module is None and not name.startswith("_") and find_spec(f"contraport.{name}") is not None:
        module = "contraport"
    if module is None:
        nearest = difflib.get_close_matches(name, public_names(), n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise AttributeError(f"module 'contraport' has no attribute {name!r}{hint}")
    if module == "contraport":
        return import_module(f"contraport.{name}")
    with require_extra(EXTRA_BY_PACKAGE.get(module.split(".")[1], ""), f"contraport.{name}"):
        return getattr(import_module(module), name)
