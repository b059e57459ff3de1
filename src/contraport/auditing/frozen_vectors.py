"""Pairs of vectors that an encoder gave, judged as they are."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from contraport.auditing.crossfit import Round
from contraport.data import Dataset
from contraport.errors import check
from contraport.pairs import ItemPairs, Sides, are_vectors, as_sides, couples, estimated_noise, exchanged, scores


def frozen_rounds(dataset: Dataset, *, statistic: str, rounds: int, seed: int) -> Iterator[tuple[Round, Sides | None]]:
    """Yield what each round found; neighbours are looked for among what did not seem wrong in the round before.

    Raises:
        UsageError: the views are no vectors.
    """
    check(
        are_vectors(dataset),
        f"method: frozen judges vectors, and the views of {dataset.name!r} have the shapes {dataset.shapes}.",
    )
    items = torch.arange(len(dataset))
    partners = exchanged(couples(dataset, seed=seed))
    kept, found = items, None
    for _ in range(rounds):
        kept = kept if found is None else found.kept()
        sides = as_sides(dataset, kept=kept)
        judged, mismatched = scores(sides, None, statistic), scores(sides, ItemPairs(items, partners), statistic)
        found = Round(judged.numpy(), mismatched.numpy(), estimated_noise(judged.numpy(), mismatched.numpy()))
        yield found, sides
