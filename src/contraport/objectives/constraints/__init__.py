"""Which plans are allowed?"""

from contraport.objectives.constraints.constraint import Asked, Constraint, Free, Marginals, Simplex
from contraport.objectives.constraints.exact import Exact
from contraport.objectives.constraints.scaling import Balanced, Columns, Rows, Unbalanced
from contraport.objectives.constraints.tsallis import Tsallis, TsallisPlan

__all__ = [
    "Asked",
    "Balanced",
    "Columns",
    "Constraint",
    "Exact",
    "Free",
    "Marginals",
    "Rows",
    "Simplex",
    "Tsallis",
    "TsallisPlan",
    "Unbalanced",
]
