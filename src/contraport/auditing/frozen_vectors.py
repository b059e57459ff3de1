"""Pairs of vectors that an encoder gave, judged as they are."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from contraport.auditing.crossfit import Round
from contraport.auditing.pairs import (
    ItemPairs,
    PairedFeatures,
    couples,
    estimate_noise_rate,
    exchanged,
    has_vector_views,
    load_vector_pairs,
    scores,
)
from contraport.data import Dataset
from contraport.errors import check


def score_frozen_vectors(
    dataset: Dataset, *, statistic: str, rounds: int, seed: int
) -> Iterator[tuple[Round, PairedFeatures | None]]:
    """Yield what each round found; neighbours are looked for among what did not seem wrong in the round before.

    Raises:
        UsageError: the views are no vectors.
    """
    check(
        has_vector_views(dataset),
        f"method: frozen judges vectors, and the views of {dataset.name!r} have the shapes {dataset.shapes}.",
    )
    items = torch.arange(len(dataset))
    partners = exchanged(couples(dataset, seed=seed))
    kept, found = items, None
    for _ in range(rounds):
        kept = kept if found is None else found.kept()
        sides = load_vector_pairs(dataset, kept=kept)
        judged, mismatched = scores(sides, None, statistic), scores(sides, ItemPairs(items, partners), statistic)
        found = Round(judged.numpy(), mismatched.numpy(), estimate_noise_rate(judged.numpy(), mismatched.numpy()))
        yield found, sides
