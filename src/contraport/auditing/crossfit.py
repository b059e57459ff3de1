"""Pairs judged by encoders that have not seen them, which so remember nothing of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contraport.data import BatchOrder, Dataset, loader
from contraport.embedding import Reader
from contraport.errors import check
from contraport.pairs import NEIGHBORS, ItemPairs, NoiseRate, Sides, couples, exchanged, noise, scores
from contraport.training.build import build_objective, build_pipeline
from contraport.training.loop.optimization import make_optimizer, make_schedule
from contraport.training.step.passes import passes
from contraport.training.step.sides import read_sides
from contraport.verbs.train import Settings


class Round(NamedTuple):
    """What a round found: scores of the pairs and of mismatches, ``(n,)`` each, and the noise rate that they tell."""

    scores: NDArray[np.float32]
    mismatched: NDArray[np.float32]
    noise: NoiseRate

    def kept(self) -> Tensor:
        """Return the pairs that do not seem wrong, in order."""
        number = round(self.noise.rate * len(self.scores))
        return torch.from_numpy(np.sort(np.argsort(self.scores, kind="stable")[number:]))


def crossfit(
    dataset: Dataset, settings: Settings, *, statistic: str, folds: int, repeats: int, rounds: int
) -> Iterator[tuple[Round, Sides]]:
    """Yield what each round found, with what the last encoder says of all pairs.

    A round deals the pairs into parts, trains an encoder on the other parts for each of them, less what seemed wrong in
    the round before, and judges the part by it. Of each two pairs that exchange partners to be mismatches both are in
    the same part, in every repeat, so that mismatches are judged as pairs are.

    Raises:
        UsageError: parts that leave less than a batch to train on.
    """
    items = len(dataset)
    random = np.random.default_rng(settings.seed)
    groups = couples(items, seed=settings.seed)
    partners = exchanged(groups)
    kept = torch.arange(items)
    for _ in range(rounds):
        judged, mismatched = torch.zeros(items), torch.zeros(items)
        for _ in range(repeats):
            for part in _parts(groups, folds, random):
                trained_on = kept[~torch.isin(kept, part)]
                sides = _sides(dataset, settings, trained_on)
                judged[part] += scores(sides, ItemPairs(part, part), statistic) / repeats
                mismatched[part] += scores(sides, ItemPairs(part, partners[part]), statistic) / repeats
        found = Round(judged.numpy(), mismatched.numpy(), noise(judged.numpy(), mismatched.numpy()))
        yield found, sides
        kept = found.kept()


def _parts(groups: tuple[Tensor, ...], folds: int, random: np.random.Generator) -> list[Tensor]:
    """Return the items of each part; those that exchange partners are together."""
    dealt = random.permutation(len(groups))
    return [torch.cat([groups[group] for group in dealt[fold::folds]]) for fold in range(folds)]


def _sides(dataset: Dataset, settings: Settings, trained_on: Tensor) -> Sides:
    """Return what an encoder that is trained on some pairs says of all."""
    fewest = max(settings.batch_size, NEIGHBORS + 2)
    check(
        len(trained_on) >= fewest,
        f"folds: {settings.batch_size} items in a batch need {fewest} to train on, and {len(trained_on)} are left; "
        "expected more folds or a smaller batch_size.",
    )
    batches = loader(
        dataset, settings.batch_size, shuffle=True, seed=settings.seed, workers=settings.workers, drop_last=True
    )
    order = cast(BatchOrder, batches.batch_sampler)
    order.draw(trained_on.numpy())
    pipeline = build_pipeline(settings, dataset, build_objective(settings), epoch=len(batches))
    pipeline.to(settings.device)
    optimizer = make_optimizer(pipeline, opt=settings.opt, lr=settings.lr, weight_decay=settings.weight_decay)
    steps, warmup = settings.epochs * len(batches), int(settings.warmup * len(batches))
    schedule = make_schedule(optimizer, sched=settings.sched, steps=steps, warmup=warmup)
    losses = passes(pipeline, batches, optimizer, schedule, step=0, device=settings.device)
    for epoch in range(settings.epochs):
        order.set_epoch(epoch)
        next(losses)
    return read_sides(pipeline.model, dataset, pipeline.views, Reader(workers=settings.workers), kept=trained_on)
