"""Zero-shot classification: each item gets the class whose text is nearest."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from contraport.errors import check
from contraport.metrics.intervals import ItemValues

TEMPLATES = ("a photo of a {}.",)
"""Default texts that name a class."""


def class_prompts(classes: Sequence[str], templates: Sequence[str] = TEMPLATES) -> list[str]:
    """Return the texts that name each class, one per template, class by class.

    >>> class_prompts(["bag", "coat"], ["a {}", "a photo of a {}"])
    ['a bag', 'a photo of a bag', 'a coat', 'a photo of a coat']
    """
    return [template.replace("{}", name) for name in classes for template in templates]


def class_embeddings(texts: Tensor, templates: int) -> Tensor:
    """Return the embedding of each class on the unit sphere, ``(classes, d)``: the mean direction of its texts.

    Args:
        texts: embeddings of `class_prompts`, ``(classes * templates, d)``.
        templates: number of templates.

    Source: Radford et al. (2021), Learning transferable visual models from natural language supervision (CLIP), section
    3.1.4.
    """
    check(len(texts) % templates == 0, f"texts: need {templates} per class, got {len(texts)} in all.", "shape")
    means = F.normalize(texts, dim=1).view(-1, templates, texts.shape[1]).mean(dim=1)
    return F.normalize(means, dim=1)


def zero_shot_correctness(items: Tensor, labels: Tensor, classes: Tensor) -> ItemValues:
    """Return whether each item is nearest to its own class by cosine, ``(n,)``; ties go to the first class.

    Args:
        items: embeddings, ``(n, d)``.
        labels: class of each item, ``(n,)``.
        classes: embeddings of the classes, from `class_embeddings`, ``(classes, d)``.

    >>> import torch
    >>> zero_shot_correctness(torch.eye(2), torch.tensor([0, 0]), torch.eye(2)).tolist()
    [True, False]
    """
    nearest = (F.normalize(items, dim=1) @ F.normalize(classes, dim=1).T).argmax(dim=1)
    hits: ItemValues = (nearest.cpu() == labels.cpu()).numpy()
    return hits
