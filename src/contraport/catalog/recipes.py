"""Table of training recipes, which are named sets of `contraport.train` options.

Settings that depend on the length of the training or the number of GPUs (epochs, batch size, optimizer) are not part of
a recipe. The citation gives a paper's own settings if they are for much longer training runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from contraport._utils.formatting import format_options
from contraport.catalog.objectives import OBJECTIVES, get_objective_entry
from contraport.errors import UsageError, check_name


class Recipe(NamedTuple):
    """Named set of `contraport.train` options.

    Attributes:
        settings: Keyword arguments of `contraport.train` that the recipe sets.
    """

    settings: Mapping[str, Any]
    summary: str
    citation: str


def _build_objective_recipe(name: str, **settings: Any) -> Recipe:
    """Build a recipe from an objective and its settings."""
    row = OBJECTIVES[name]
    return Recipe({"objective": name, **settings}, row.summary, row.citation)


RECIPES: dict[str, Recipe] = {
    "simclr": _build_objective_recipe("nt-xent"),
    "moco": Recipe(
        {
            "objective": "info-nce",
            "objective_settings": {"symmetric": False},
            "temperature": 0.2,
            "negatives": "queue",
            "momentum": 0.99,
        },
        "InfoNCE with keys of a momentum encoder; negatives are the batch and a queue of earlier keys.",
        "He, Fan, Wu, Xie and Girshick (2020), Momentum contrast; temperature and projector of its version 2 (Chen et "
        "al., 2020). Theirs takes the queue alone; for 200 epochs of ImageNet queue_size 65536, momentum 0.999.",
    ),
    "moco-v3": Recipe(
        {
            "objective": "info-nce",
            "objective_settings": {"symmetric": False},
            "temperature": 0.2,
            "momentum": "0.99:1:cosine",
            "predictor": True,
        },
        "InfoNCE between predictions and keys of a momentum encoder; no queue, for large batches.",
        "Chen, Xie and He (2021), An empirical study of training self-supervised vision transformers.",
    ),
    "byol": Recipe(
        {"objective": "byol", "momentum": "0.9:1:cosine", "predictor": True},
        "Predict the embedding that a momentum encoder computes of the other view; no negatives.",
        f"{OBJECTIVES['byol'].citation} Theirs for 1000 epochs of ImageNet: momentum 0.996:1:cosine.",
    ),
    "simsiam": Recipe(
        {"objective": "byol", "predictor": True},
        "Predict the other view's embedding without its gradient; no negatives, no momentum encoder.",
        "Chen and He (2021), Exploring simple siamese representation learning, eq. 2-4.",
    ),
    "swav": Recipe(
        {"objective": "info-nce", "temperature": 0.1, "prototypes": 256},
        "Predict the other view's assignment to prototypes of equal size; for images add --views 2+6.",
        "Caron et al. (2020), Unsupervised learning of visual features by contrasting cluster assignments, eq. 2-5. "
        "Theirs for ImageNet: prototypes 3000.",
    ),
    "distillation": Recipe(
        {
            "objective": "info-nce",
            "objective_settings": {"symmetric": False},
            "temperature": 0.07,
            "prototypes": "teacher",
            "projection_layers": 1,
        },
        "Predict a teacher's similarities to a queue of its features, without labels; needs --teacher.",
        "The method distillationv1 of LightlyTrain, after Beyer et al. (2022), Knowledge distillation: a good teacher "
        "is patient and consistent. LightlyTrain also applies mixup, to the images of the teacher too.",
    ),
    "cmc": _build_objective_recipe("cmc"),
    "cmc-nce": Recipe(
        {"objective": "cmc-nce", "negatives": "bank"},
        "Classify pairs as matched or not by NCE, with a memory bank of each view as the source of negatives.",
        OBJECTIVES["cmc-nce"].citation,
    ),
    "clip": Recipe(
        {"objective": "info-nce", "temperature": "learn:0.07", "shared_encoder": False, "projection_layers": 1},
        "Two views, such as image and caption, each with its own encoder; InfoNCE in both directions.",
        "Radford et al. (2021), Learning transferable visual models from natural language supervision, figure 3.",
    ),
    "siglip": Recipe(
        {"objective": "sigmoid", "shared_encoder": False, "projection_layers": 1},
        "Two views, such as image and caption, each with its own encoder; binary cross-entropy of each pair.",
        OBJECTIVES["sigmoid"].citation,
    ),
    "simcse": Recipe(
        {"objective": "info-nce", "objective_settings": {"symmetric": False}, "temperature": 0.05, "augment": "none"},
        "InfoNCE on two passes of a text with different dropout masks, or on pairs of texts.",
        "Gao, Yao and Chen (2021), SimCSE: Simple contrastive learning of sentence embeddings, eq. 4 and 5.",
    ),
    "late-interaction": Recipe(
        {"objective": "info-nce", "kernel": "late-interaction", "temperature": 0.05, "projection_layers": 1},
        "InfoNCE of items compared by all their vectors, tokens of texts or patches of images, by MaxSim.",
        "Khattab and Zaharia (2020), ColBERT: Efficient and effective passage search via contextualized late "
        "interaction over BERT; the mean of the maxima in place of their sum, hence the temperature.",
    ),
    "sup-con": _build_objective_recipe("sup-con"),
    "rince": _build_objective_recipe("rince"),
    "gca-ince": _build_objective_recipe("gca-ince"),
    "gca-rince": _build_objective_recipe("gca-rince"),
    "gca-uot": _build_objective_recipe("gca-uot"),
    "gca-uot-published": Recipe(
        {
            "objective": "gca-uot",
            "objective_settings": {"iterations": 10, "relaxation": 0.2, "conditional": True, "rince_weight": 0.2},
            "temperature": 0.5,
        },
        "GCA-UOT as its authors trained it: KL within the rows of an unbalanced plan, plus 0.2 times RINCE.",
        f"{OBJECTIVES['gca-uot'].citation} Settings of its code, for 500 epochs of batches of 512.",
    ),
    "iot": _build_objective_recipe("iot"),
    "iot-uniform": _build_objective_recipe("iot-uniform"),
    "iot-tighten": Recipe(
        {"objective": "nt-xent", "constraint": "tighten:every=2"},
        "Inverse optimal transport under a constraint that tightens: rows alone, then 1, 2, 4 and 8 iterations.",
        f"{OBJECTIVES['iot'].citation} The interval, every=2 epochs, is for training runs of ten or more.",
    ),
    "iot-relax": Recipe(
        {"objective": "nt-xent", "constraint": "relax:every=2"},
        "Inverse optimal transport under a constraint that relaxes: 8, 4, 2 and 1 iterations, then rows alone.",
        f"{OBJECTIVES['iot'].citation} The interval, every=2 epochs, is for training runs of ten or more.",
    ),
    "alpha-cl": _build_objective_recipe("alpha-cl"),
    "direct-clr": _build_objective_recipe("direct-clr", projection=0),
    "t-simclr": _build_objective_recipe("t-simclr"),
    "align-uniform": _build_objective_recipe("align-uniform"),
    "predictive": Recipe(
        {"predict": "l2"},
        "Decode each view from the features of the other views; no contrastive loss. The baseline of CMC.",
        "Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.1.",
    ),
}
"""All recipes, by name."""


def apply_recipe(options: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the settings of the option `recipe` into the other training options.

    Explicit options override the recipe. With another objective or other negatives, the recipe's settings of its own
    objective or negatives do not apply.

    Raises:
        UsageError: unknown recipe or objective.

    >>> apply_recipe({"recipe": "byol", "momentum": 0.9})
    {'objective': 'byol', 'momentum': 0.9, 'predictor': True, 'recipe': 'byol'}
    >>> apply_recipe({"recipe": "moco", "objective": "gca-uot"})
    {'objective': 'gca-uot', 'negatives': 'queue', 'momentum': 0.99, 'recipe': 'moco'}
    """
    settings = get_recipe_settings(options.get("recipe"))
    dependent = {"objective": ("objective_settings", "temperature"), "negatives": ("queue_size", "bank_negatives")}
    for owner, owned in dependent.items():
        if options.get(owner, settings.get(owner)) != settings.get(owner):
            settings = {name: value for name, value in settings.items() if name not in owned}
    resolved = {**settings, **options}
    if settings.get("objective_settings") and options.get("objective_settings"):
        resolved["objective_settings"] = {**settings["objective_settings"], **options["objective_settings"]}
    if resolved.get("predict") is not None:
        resolved = {"objective": None, "projection": 0, **resolved}
    if isinstance(resolved.get("objective"), str):
        get_objective_entry(resolved["objective"])
    return resolved


def get_recipe_settings(recipe: str | None) -> dict[str, Any]:
    """Return the settings of a recipe, or an empty dict without one.

    Raises:
        UsageError: unknown recipe.
    """
    if recipe is None:
        return {}
    if recipe not in RECIPES and recipe in OBJECTIVES:
        message = f"recipe: {recipe!r} is an objective; pass {format_options(objective=recipe)}."
        raise UsageError(message, kind="is_objective")
    check_name("recipe", recipe, RECIPES, list_command="contraport list recipes")
    return dict(RECIPES[recipe].settings)
