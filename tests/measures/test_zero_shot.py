"""Classes by the texts that name them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from contraport.errors import UsageError
from contraport.metrics.zero_shot import class_embeddings, prompts, zero_shot_hits


def test_a_class_is_the_mean_of_its_texts_directions() -> None:
    texts = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    long = texts * torch.tensor([1.0, 100, 1, 1, 1, 1])[:, None]
    expected = [F.normalize(texts[2 * c : 2 * c + 2], dim=1).sum(0) for c in range(3)]
    for given in (texts, long):
        torch.testing.assert_close(class_embeddings(given, 2), F.normalize(torch.stack(expected), dim=1))
    with pytest.raises(UsageError, match="texts: expected 4 for each class, got 6"):
        class_embeddings(texts, 4)


def test_the_nearest_class_counts() -> None:
    generator = torch.Generator().manual_seed(1)
    items, classes = torch.randn(50, 5, generator=generator), torch.randn(4, 5, generator=generator)
    labels = torch.arange(50) % 4
    best = F.cosine_similarity(items[:, None], classes, dim=2).argmax(1)
    assert zero_shot_hits(items, labels, classes).tolist() == (best == labels).tolist()


def test_braces_within_a_name_stay() -> None:
    assert prompts(["{}x"], ["a {}."]) == ["a {}x."]
