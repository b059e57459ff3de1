"""Zero-shot classification by the nearest text embedding of a class."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from contraport.errors import check, check_integer
from contraport.metrics.intervals import ItemValueArray
from contraport.metrics.retrieval_ranks import check_equal_widths, check_labels, unit_vectors

CLASS_PROMPT_TEMPLATES = ("a photo of a {}.",)
"""Default texts that name a class."""


def build_class_prompts(classes: Sequence[str], templates: Sequence[str] = CLASS_PROMPT_TEMPLATES) -> list[str]:
    """Build the prompts of each class from the templates, ordered by class.

    >>> build_class_prompts(["bag", "coat"], ["a {}", "a photo of a {}"])
    ['a bag', 'a photo of a bag', 'a coat', 'a photo of a coat']
    """
    return [template.replace("{}", name) for name in classes for template in templates]


def compute_unit_class_embeddings(texts: Tensor, num_templates: int) -> Tensor:
    """Return each class's mean text embedding on the unit sphere, ``(classes, d)``.

    Args:
        texts: embeddings of `build_class_prompts`, ``(classes * templates, d)``.
        num_templates: number of templates.

    Source: Radford et al. (2021), Learning transferable visual models from natural language supervision (CLIP), section
    3.1.4.
    """
    check_integer("num_templates", num_templates)
    points = unit_vectors("texts", texts)
    check(len(texts) % num_templates == 0, f"texts: need {num_templates} per class, got {len(texts)} in all.", "shape")
    return F.normalize(points.view(-1, num_templates, texts.shape[1]).mean(dim=1), dim=1)


def zero_shot_correctness(items: Tensor, labels: Tensor, classes: Tensor) -> ItemValueArray:
    """Return whether each item is nearest to its own class, ``(n,)``.

    Nearness is the cosine, and ties go to the first class.

    Args:
        items: embeddings, ``(n, d)``.
        labels: class of each item, ``(n,)``.
        classes: embeddings of the classes, from `compute_unit_class_embeddings`, ``(classes, d)``.

    >>> import torch
    >>> zero_shot_correctness(torch.eye(2), torch.tensor([0, 0]), torch.eye(2)).tolist()
    [True, False]
    """
    points, centers = unit_vectors("items", items), unit_vectors("classes", classes)
    check_labels("labels", labels, len(items))
    check_equal_widths("classes", classes, "items", items)
    nearest = (points @ centers.T).argmax(dim=1)
    hits: ItemValueArray = (nearest.cpu() == labels.cpu()).numpy()
    return hits
