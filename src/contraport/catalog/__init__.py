"""All that has a name: objectives, training recipes, data and encoders, a table each, as `contraport list` shows them.

Nothing heavy is imported to read the tables, and so they lie below what they name: an objective is written with the
public names of `contraport`, which are imported when it is made; a loader or a network is named by where it is,
``module:attribute``, and imported when it is asked for.
"""

from contraport.catalog.datasets import SOURCES, Source, list_datasets
from contraport.catalog.encoders import ENCODERS, Encoder, list_encoders
from contraport.catalog.objectives import OBJECTIVES, Method, list_objectives, objective, recipe
from contraport.catalog.recipes import RECIPES, Recipe, resolve

__all__ = [
    "ENCODERS",
    "OBJECTIVES",
    "RECIPES",
    "SOURCES",
    "Encoder",
    "Method",
    "Recipe",
    "Source",
    "list_datasets",
    "list_encoders",
    "list_objectives",
    "objective",
    "recipe",
    "resolve",
]
