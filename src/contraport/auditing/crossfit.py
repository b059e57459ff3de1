"""Pairs judged by encoders that have not seen them, which so remember nothing of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contraport._utils.files import write_arrays
from contraport.auditing.pairs import (
    NEIGHBORS,
    ItemPairs,
    NoiseRate,
    PairedFeatures,
    couples,
    estimate_noise_rate,
    exchanged,
    scores,
)
from contraport.auditing.pairs.feature_extraction import encode_pairs
from contraport.auditing.pairs.mismatches import Couple
from contraport.data import BatchOrder, Dataset, loader
from contraport.embedding import LoaderConfig
from contraport.errors import check, report_write_errors, unreadable_error
from contraport.seeding import generator, torch_seed
from contraport.training.callbacks import FiniteGuard
from contraport.training.components import build_objective, build_pipeline
from contraport.training.config import Settings
from contraport.training.loop import Loop
from contraport.training.optimization import build_lr_schedule, create_optimizer


class Round(NamedTuple):
    """What a round found: scores of the pairs and of mismatches, ``(n,)`` each, and the noise rate that they tell."""

    scores: NDArray[np.float32]
    mismatched: NDArray[np.float32]
    noise: NoiseRate

    def kept(self) -> Tensor:
        """Return the pairs that do not seem wrong, in order.

        Raises:
            UsageError: they are too few to judge others by.
        """
        number = round(self.noise.rate * len(self.scores))
        check(
            len(self.scores) - number >= NEIGHBORS + 2,
            f"data: {number} of {len(self.scores)} pairs seem wrong, which leaves too few to judge by; expected two "
            "views that tell something of one another.",
        )
        return torch.from_numpy(np.sort(np.argsort(self.scores, kind="stable")[number:]))


class CrossFitScores:
    """What each part of a cross-fit was judged by, in a file where there is one, so that it goes on after a stop.

    Args:
        path: the file; None keeps nothing.
        asked: what the audit was asked, as plain values.
        shape: rounds, repeats and pairs.
        mark: of the pairs, as `contraport.data.split_record.fingerprint` gives it.

    Attributes:
        scores: float32 ``(rounds, repeats, 2, n)``, of the pairs and of mismatches; NaN where none is known yet.

    Raises:
        UsageError: the file is of another audit, or corrupt.
    """

    def __init__(
        self, path: Path | None, asked: Mapping[str, Any], shape: tuple[int, int, int], mark: str | None
    ) -> None:
        rounds, repeats, pairs = shape
        self._path, self._asked, self._mark = path, json.dumps(asked, sort_keys=True, default=str), str(mark)
        self.scores = np.full((rounds, repeats, 2, pairs), np.nan, dtype=np.float32)
        if path is not None and path.exists():
            self._take_up(path)

    def have(self, place: tuple[int, int], part: Tensor) -> bool:
        """Return whether a part was judged in a round and repeat."""
        return bool(np.isfinite(self.scores[place][:, part.numpy()]).all())

    def keep(self, place: tuple[int, int], part: Tensor, judged: Tensor, mismatched: Tensor) -> None:
        """Keep how a part was judged, on the disk too."""
        self.scores[place][:, part.numpy()] = torch.stack([judged, mismatched]).numpy()
        if self._path is not None:
            told = {"asked": np.array(self._asked), "mark": np.array(self._mark)}
            with report_write_errors("out", self._path):
                write_arrays(self._path, {"scores": self.scores, **told})

    def until(self, number: int) -> Round:
        """Return what the rounds up to one say together."""
        judged, mismatched = self.scores[: number + 1].mean(axis=(0, 1))
        return Round(judged, mismatched, estimate_noise_rate(judged, mismatched))

    def _take_up(self, path: Path) -> None:
        try:
            with np.load(path, allow_pickle=False) as file:
                asked, found = json.loads(str(file["asked"])), file["scores"]
                mark = str(file["mark"])
        except Exception as error:  # on hostile bytes the parsers raise whatever they like
            raise unreadable_error(f"resume: {path}", "the judgements of a cross-fit", error) from error
        ours = json.loads(self._asked)
        others = [name for name in ours if asked.get(name) != ours[name]]
        told = "".join(f" {name}={asked.get(name)!r} and not {ours[name]!r};" for name in others)
        check(not others, f"resume: the audit in {path.parent} was asked{told} expected the same, or a new folder.")
        good = found.shape == self.scores.shape and found.dtype == np.float32
        check(good, f"resume: {path} is of other data: {found.shape}, expected {self.scores.shape}.")
        check(mark == self._mark, f"resume: {path} is of other pairs than those that came; expected the same.")
        self.scores = found


def crossfit(
    dataset: Dataset, settings: Settings, judgements: CrossFitScores, *, statistic: str, folds: int
) -> Iterator[tuple[Round, PairedFeatures | None]]:
    """Yield what the rounds so far found, with what the last encoder says of all pairs.

    A round deals the pairs into parts, trains an encoder on the other parts for each of them, less what seemed wrong in
    the rounds before, and judges the part by it. Of each two pairs that exchange partners to be mismatches both are in
    the same part, in every repeat, so that mismatches are judged as pairs are. What counts is the mean over all rounds
    and repeats, each of which draws its weights anew.

    Raises:
        UsageError: parts that leave less than a batch to train on.
    """
    items, (rounds, repeats) = len(dataset), judgements.scores.shape[:2]
    groups = couples(dataset, seed=settings.seed)
    partners = exchanged(groups)
    kept, sides, found = torch.arange(items), None, None
    for number in range(rounds):
        kept = kept if found is None else found.kept()
        for repeat in range(repeats):
            place, own = (number, repeat), number * repeats + repeat
            told = settings.derive(seed=torch_seed("audit.crossfit", settings.seed, own))
            for fold, part in enumerate(_parts(groups, folds, seed=(settings.seed, own))):
                is_last = own == rounds * repeats - 1 and fold == folds - 1  # whose encoder proposes partners
                if judgements.have(place, part) and not is_last:
                    continue
                sides = _sides(dataset, told, kept[~torch.isin(kept, part)])
                judged = scores(sides, ItemPairs(part, part), statistic)
                judgements.keep(place, part, judged, scores(sides, ItemPairs(part, partners[part]), statistic))
        found = judgements.until(number)
        yield found, sides


def _parts(groups: tuple[Couple, ...], folds: int, *, seed: tuple[int, int]) -> list[Tensor]:
    """Return the items of each part; those that share content or exchange partners are together."""
    dealt = generator("audit.folds", *seed).permutation(len(groups))
    return [torch.cat([items for couple in dealt[fold::folds] for items in groups[couple]]) for fold in range(folds)]


def _sides(dataset: Dataset, settings: Settings, trained_on: Tensor) -> PairedFeatures:
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
    optimizer = create_optimizer(pipeline, opt=settings.opt, lr=settings.lr, weight_decay=settings.weight_decay)
    steps, warmup = settings.epochs * len(batches), int(settings.warmup * len(batches))
    schedule = build_lr_schedule(optimizer, sched=settings.sched, steps=steps, warmup=warmup)
    loop = Loop(
        pipeline,
        batches,
        optimizer,
        schedule,
        epochs=settings.epochs,
        device=settings.device,
        callbacks=[FiniteGuard()],
    )
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        loop.run()
    return encode_pairs(
        pipeline.model, dataset, pipeline.views, LoaderConfig(workers=settings.workers), kept=trained_on
    )
