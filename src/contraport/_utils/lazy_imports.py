"""Imports of modules, public names and other objects on first use.

The public names are listed in `__init__.pyi` and imported on first use. One list serves editors, type checkers and
Python, and `import contraport` does not import torch.
"""

from __future__ import annotations

import ast
import sys
import warnings
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from contraport.errors import suggest_names, translate_import_errors

EXTRA_BY_SUBPACKAGE = {
    "auditing": "train",
    "cli": "train,report",
    "comparison": "train,report",
    "estimators": "train",
    "evaluation": "train",
    "reporting": "report",
    "similarity_search": "train",
    "training": "train",
}
"""Extra to install for each package of contraport that needs more than torch and numpy."""

CURRENT_NAME_BY_DEPRECATED = {
    "Affinity": "KernelAttraction",
    "Agreement": "LogKernelAttraction",
    "Alike": "SimilarityMatrix",
    "Bilinear": "BilinearCost",
    "ByPlan": "WeightsFromPlan",
    "Coordinates": "CoordinatePairs",
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
    "PhaseShift": "RotatedFirstView",
    "PlanWeights": "WeightsFromPlan",
    "Relax": "Loosen",
    "Shown": "DuplicateGroups",
    "Soft": "SoftNeighbors",
    "Temperature": "TemperatureSchedule",
    "Total": "SumLoss",
    "Within": "WithinView",
    "assignments": "soft_assignments",
    "comparing": "comparison",
    "measures": "metrics",
    "searching": "similarity_search",
}
"""Current name of each deprecated public name or package; the old name still works, with a warning."""


def import_object(import_path: str) -> Any:
    """Import the object at a path ``"module:attribute"``.

    >>> import_object("math:pi")
    3.141592653589793
    """
    module, _, attribute = import_path.partition(":")
    return getattr(import_module(module), attribute)


class LazyModule:
    """Stand-in for a module that is imported when an attribute is first read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


class _LazyPackage(ModuleType):
    """Package whose public names are imported on first use.

    Importing the `command_options` module of such a package therefore imports none of them.
    """

    _module_by_name: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self._module_by_name:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(self._module_by_name[name]), name)
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing a submodule binds it to the package: the module `training.train` must not hide the function `train`.
        if not (name in self._module_by_name and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._module_by_name})


def make_package_lazy(package: str, **module_by_name: str) -> None:
    """Make a package import its public names on first use.

    Args:
        package: name of the package.
        module_by_name: by public name, the module within the package that defines it.
    """
    module = sys.modules[package]
    module.__dict__["_module_by_name"] = {name: f"{package}.{one}" for name, one in module_by_name.items()}
    module.__class__ = _LazyPackage


@cache
def map_public_names_to_modules() -> dict[str, str]:
    """Map each public name to the module that defines it.

    >>> map_public_names_to_modules()["nt_xent"], map_public_names_to_modules()["plots"]
    ('contraport.catalog.objectives', 'contraport')
    """
    listed = ast.parse(files("contraport").joinpath("__init__.pyi").read_text("utf-8")).body
    imports = [line for line in listed if isinstance(line, ast.ImportFrom)]
    return {alias.name: line.module for line in imports for alias in line.names if line.module is not None}


def load_public_name(name: str) -> Any:
    """Import the object behind a public name, or a subpackage such as `contraport.data`.

    Raises:
        AttributeError: there is no such name; the message offers the nearest one.
        UsageError: a package that it needs is not installed.
    """
    if name in CURRENT_NAME_BY_DEPRECATED:
        message = f"contraport.{name} is deprecated; use contraport.{CURRENT_NAME_BY_DEPRECATED[name]}."
        warnings.warn(message, FutureWarning, stacklevel=3)
        return load_public_name(CURRENT_NAME_BY_DEPRECATED[name])
    module = map_public_names_to_modules().get(name)
    if module is None and not name.startswith("_") and find_spec(f"contraport.{name}") is not None:
        module = "contraport"
    if module is None:
        nearest = suggest_names(name, sorted(map_public_names_to_modules()), cutoff=0.7)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise AttributeError(f"module 'contraport' has no attribute {name!r}{hint}")
    if module == "contraport":
        return import_module(f"contraport.{name}")
    with translate_import_errors(EXTRA_BY_SUBPACKAGE.get(module.split(".")[1], ""), f"contraport.{name}"):
        return getattr(import_module(module), name)
