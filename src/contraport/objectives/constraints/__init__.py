"""Which plans are allowed?"""

from contraport.objectives.constraints.constraint import Constraint
from contraport.objectives.constraints.exact import Exact
from contraport.objectives.constraints.quadratic import Quadratic, QuadraticPlan
from contraport.objectives.constraints.scaling import Balanced, Columns, Rows, Unbalanced
from contraport.objectives.constraints.simplex import Free, Simplex

__all__ = [
    "Balanced",
    "Columns",
    "Constraint",
    "Exact",
    "Free",
    "Quadratic",
    "QuadraticPlan",
    "Rows",
    "Simplex",
    "Unbalanced",
]
