"""Pairs of vectors that an encoder gave, judged as they are."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from contraport.auditing.crossfit import Round
from contraport.data import Dataset
from contraport.errors import check
from contraport.pairs import ItemPairs, Sides, couples, exchanged, noise, scores


def frozen_rounds(dataset: Dataset, *, statistic: str, rounds: int, seed: int) -> Iterator[tuple[Round, Sides | None]]:
    """Yield what each round found; neighbours are looked for among what did not seem wrong in the round before.

    Raises:
        UsageError: the views are no vectors.
    """
    check(
        all(len(shape) == 1 for shape in dataset.shapes),
        f"method: frozen judges vectors, and the views of {dataset.name!r} have the shapes {dataset.shapes}.",
    )
    items = torch.arange(len(dataset))
    first, second = dataset.store.fetch(items)
    partners = exchanged(couples(len(items), seed=seed))
    embeddings = (first, second) if first.shape == second.shape else None
    kept = items
    for _ in range(rounds):
        sides = Sides((first, second), embeddings, kept)
        judged, mismatched = scores(sides, None, statistic), scores(sides, ItemPairs(items, partners), statistic)
        found = Round(judged.numpy(), mismatched.numpy(), noise(judged.numpy(), mismatched.numpy()))
        yield found, sides
        kept = found.kept()
