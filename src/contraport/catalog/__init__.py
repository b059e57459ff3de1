"""Catalog of objectives, recipes, data sets and encoders, shown by `contraport list`.

Reading the catalog imports nothing heavy. An objective is written with the public names of `contraport`, which are
imported when it is built. A reader or a network is given by its location, ``module:attribute``, and imported when it is
used.
"""

from contraport.catalog.datasets import DATASETS, DatasetEntry, list_datasets
from contraport.catalog.encoders import ENCODERS, EncoderEntry, list_encoders
from contraport.catalog.objectives import OBJECTIVES, ObjectiveEntry, list_objectives, objective, register_objective
from contraport.catalog.recipes import RECIPES, Recipe, apply_recipe

__all__ = [
    "DATASETS", "ENCODERS", "OBJECTIVES", "RECIPES", "DatasetEntry", "EncoderEntry", "ObjectiveEntry", "Recipe",
    "apply_recipe", "list_datasets", "list_encoders", "list_objectives", "objective", "register_objective",
]  # fmt: skip
