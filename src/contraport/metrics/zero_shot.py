"""Classes told without a label: by which of some texts that name them an item is nearest to."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from contraport.errors import check
from contraport.metrics.intervals import ItemValues

TEMPLATES = ("a photo of a {}.",)
"""What a class is called in a text, unless it is said."""


def prompts(classes: Sequence[str], templates: Sequence[str] = TEMPLATES) -> list[str]:
    """Return the texts that name each class, one for each template, class by class.

    >>> prompts(["bag", "coat"], ["a {}", "a photo of a {}"])
    ['a bag', 'a photo of a bag', 'a coat', 'a photo of a coat']
    """
    return [template.replace("{}", name) for name in classes for template in templates]


def class_embeddings(texts: Tensor, templates: int) -> Tensor:
    """Return a point on the unit sphere for each class, ``(classes, d)``: the mean of its texts' directions.

    Args:
        texts: embeddings of `prompts`, ``(classes * templates, d)``.
        templates: how many there are.

    Source: Radford et al. (2021), Learning transferable visual models from natural language supervision (CLIP), section
    3.1.4.
    """
    check(len(texts) % templates == 0, f"texts: expected {templates} for each class, got {len(texts)}.")
    means = F.normalize(texts, dim=1).view(-1, templates, texts.shape[1]).mean(dim=1)
    return F.normalize(means, dim=1)


def zero_shot_hits(items: Tensor, labels: Tensor, classes: Tensor) -> ItemValues:
    """Return whether each item is nearest to its own class, by the cosine, ``(n,)``; of equal ones the first counts.

    Args:
        items: embeddings, ``(n, d)``.
        labels: the class of each, ``(n,)``.
        classes: as `class_embeddings` gives them, ``(classes, d)``.

    >>> import torch
    >>> zero_shot_hits(torch.eye(2), torch.tensor([0, 0]), torch.eye(2)).tolist()
    [True, False]
    """
    nearest = (F.normalize(items, dim=1) @ F.normalize(classes, dim=1).T).argmax(dim=1)
    hits: ItemValues = (nearest.cpu() == labels.cpu()).numpy()
    return hits
