"""The objectives: which pairs, how alike, which plans are allowed, which one is wanted, how far apart the two are."""

from contraport.objectives.catalog import (
    CATALOG,
    Recipe,
    gca_ince,
    gca_uot,
    info_nce,
    list_objectives,
    nt_xent,
    objective,
)
from contraport.objectives.coupling import Coupling
from contraport.objectives.divergences import KL
from contraport.objectives.layouts import Block, Cross, Joint
from contraport.objectives.objective import Objective
from contraport.objectives.plans import Balanced, Columns, Plan, Rows, Unbalanced
from contraport.objectives.targets import Matrix, Pairs

__all__ = [
    "CATALOG",
    "KL",
    "Balanced",
    "Block",
    "Columns",
    "Coupling",
    "Cross",
    "Joint",
    "Matrix",
    "Objective",
    "Pairs",
    "Plan",
    "Recipe",
    "Rows",
    "Unbalanced",
    "gca_ince",
    "gca_uot",
    "info_nce",
    "list_objectives",
    "nt_xent",
    "objective",
]
