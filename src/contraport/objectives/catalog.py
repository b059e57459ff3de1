"""The catalog: every named method, a recipe over the five questions with its citation and its default settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from contraport.engine import Gibbs
from contraport.errors import UsageError, unknown_name
from contraport.objectives.divergences import KL
from contraport.objectives.layouts import Cross, Joint
from contraport.objectives.objective import Objective
from contraport.objectives.plans import Balanced, Rows, Unbalanced
from contraport.objectives.targets import Pairs, Target


@dataclass(frozen=True)
class Recipe:
    """A row of the catalog.

    Attributes:
        name: the hyphenated name.
        make: the function that builds the objective from its settings.
        citation: where the method comes from.
    """

    name: str
    make: Callable[..., Objective]
    citation: str

    @property
    def summary(self) -> str:
        """The first sentence of the recipe's docstring."""
        return inspect.getdoc(self.make).split("\n")[0]  # type: ignore[union-attr]


CATALOG: dict[str, Recipe] = {}

_GCA = (
    "Chen, Lin, Liu, Xiao and Dyer (2024), "
    "Your contrastive learning problem is secretly a distribution alignment problem."
)


def recipe(citation: str) -> Callable[[Callable[..., Objective]], Callable[..., Objective]]:
    """Enter a function into the catalog, under its own name with hyphens."""

    def enter(make: Callable[..., Objective]) -> Callable[..., Objective]:
        name = make.__name__.replace("_", "-")
        CATALOG[name] = Recipe(name, make, citation)
        return make

    return enter


def objective(name: str, **settings: Any) -> Objective:
    """Build an objective by its name in the catalog.

    Args:
        name: as `list_objectives` gives it; underscores will do for hyphens.
        settings: the recipe's own keywords.

    Raises:
        UsageError: the name or a setting is unknown (the nearest is offered), or a value does not fit.

    >>> objective("gca-ince", iterations=3)
    Objective(layout=Joint(), kernel=Gibbs('cosine', 0.5), plan=Balanced(iterations=3), target=Pairs(), divergence=KL())
    """
    key = str(name).replace("_", "-")
    if key not in CATALOG:
        raise unknown_name("objective", name, CATALOG)
    make = CATALOG[key].make
    parameters = inspect.signature(make).parameters
    for setting in settings:
        if setting not in parameters:
            raise unknown_name(f"setting of {key}", setting, parameters)
    try:
        return make(**settings)
    except TypeError as error:
        raise UsageError(f"objective {key}: {error}") from error


def list_objectives() -> list[str]:
    """Return the names in the catalog.

    >>> "nt-xent" in list_objectives()
    True
    """
    return sorted(CATALOG)


@recipe("van den Oord, Li and Vinyals (2018), Representation learning with contrastive predictive coding, eq. 4.")
def info_nce(temperature: float = 0.1, symmetric: bool = True, target: Target | None = None) -> Objective:
    """Pick the matching item of the other view among the batch.

    Args:
        temperature: in units of the cosine distance.
        symmetric: average both directions.
        target: the plan that is wanted; None is `Pairs`.

    >>> import torch
    >>> info_nce(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(0.3133)
    """
    return Objective(Cross(symmetric), Gibbs("cosine", temperature), Rows(), target or Pairs(), KL())


@recipe("Chen, Kornblith, Norouzi and Hinton (2020), A simple framework for contrastive learning (SimCLR), eq. 1.")
def nt_xent(temperature: float = 0.5) -> Objective:
    """Pick the other view of the same item among all embeddings of both views.

    Args:
        temperature: in units of the cosine distance.

    >>> import torch
    >>> nt_xent(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(0.5514)
    """
    return Objective(Joint(), Gibbs("cosine", temperature), Rows(), Pairs(), KL())


@recipe(_GCA)
def gca_ince(temperature: float = 0.5, iterations: int = 5) -> Objective:
    """Match every item to its other view by a plan in which rows and columns both carry equal mass.

    Args:
        temperature: in units of the cosine distance.
        iterations: of Sinkhorn's algorithm.

    >>> import torch
    >>> gca_ince(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(0.5514)
    """
    return Objective(Joint(), Gibbs("cosine", temperature), Balanced(iterations), Pairs(), KL())


@recipe(_GCA)
def gca_uot(temperature: float = 0.5, iterations: int = 5, relaxation: float | tuple[float, float] = 1.0) -> Objective:
    """Match every item to its other view by a plan whose rows and columns may let mass go, as dirty pairs need.

    Args:
        temperature: in units of the cosine distance.
        iterations: of the damped Sinkhorn algorithm.
        relaxation: the price of missing a marginal, in units of the cosine distance; large is strict.

    >>> import torch
    >>> gca_uot(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(0.8127)
    """
    return Objective(Joint(), Gibbs("cosine", temperature), Unbalanced(relaxation, iterations), Pairs(), KL())
