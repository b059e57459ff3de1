"""All that has a name: objectives, training recipes, data and encoders, a table each, as `contraport list` shows them.

Nothing heavy is imported to read the tables, and so they lie below what they name: an objective is written with the
public names of `contraport`, which are imported when it is made; a loader or a network is named by where it is,
``module:attribute``, and imported when it is asked for.
"""

from contraport.catalog.datasets import DATASETS, DatasetEntry, list_datasets
from contraport.catalog.encoders import ENCODERS, EncoderEntry, list_encoders
from contraport.catalog.objectives import OBJECTIVES, ObjectiveEntry, list_objectives, objective, register_objective
from contraport.catalog.recipes import RECIPES, Recipe, resolve_recipe

__all__ = [
    "DATASETS",
    "ENCODERS",
    "OBJECTIVES",
    "RECIPES",
    "DatasetEntry",
    "EncoderEntry",
    "ObjectiveEntry",
    "Recipe",
    "list_datasets",
    "list_encoders",
    "list_objectives",
    "objective",
    "register_objective",
    "resolve_recipe",
]
