"""What tells some items from others, so that what goes on does so with those that it began with."""

from __future__ import annotations

import hashlib

import torch

from contraport.data.dataset import Dataset
from contraport.data.streams import Stream

SAMPLED = 256


def mark_of(dataset: Dataset) -> str | None:
    """Return a digest of items that are the same on every machine; None of a stream.

    It is of their number, shapes, classes, domains and weights, and, where they lie in memory, of at most 256 of them,
    spread evenly. What is decoded from files may differ by a bit elsewhere, and what a program fetches at each call.

    >>> from contraport.data import load
    >>> digits = load("digits")
    >>> mark_of(digits) == mark_of(load("digits")), mark_of(digits) == mark_of(load("digits", "test"))
    (True, False)
    """
    if isinstance(dataset, Stream):
        return None
    digest = hashlib.sha256(repr((len(dataset), dataset.shapes)).encode())
    for values in (dataset.labels, dataset.domains, dataset.weights):
        digest.update(b"none" if values is None else values.contiguous().numpy().tobytes())
    if dataset.in_memory:
        spread = torch.linspace(0, len(dataset) - 1, min(SAMPLED, len(dataset)), dtype=torch.float64).round().long()
        for view in dataset.store.fetch(spread):
            digest.update(view.contiguous().numpy().tobytes())
    return digest.hexdigest()
