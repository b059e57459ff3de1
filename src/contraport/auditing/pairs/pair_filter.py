"""A training that judges the pairs it is trained on as it goes, and leaves out those that seem wrong.

Networks remember wrong pairs, the more the longer they are trained on them; so the first look comes after one epoch,
before any is seen twice, and what is left out is remembered no longer. Neighbours are looked for among the pairs that
are trained on. What counts is the mean over all looks: early ones remember little, late ones know more.

How many pairs are wrong is estimated with decoys, `contraport.auditing.pairs.decoys`, that are trained on and left out
like all
others. They stand in the place of the items that they are made of for a third of the training; then these take part.

Where the items are vectors these are judged as they came too, beside what the encoders say of them: they remember
nothing, and tell of an item what the training has not yet taken up, or never will.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contraport.auditing.pairs import (
    MAX_VECTOR_WIDTH,
    NEIGHBORS,
    DecoyDataset,
    ItemPairs,
    PairedFeatures,
    above,
    estimate_fdr,
    estimate_noise_rate,
    find_better_partners,
    has_vector_views,
    load_vector_pairs,
    scores,
    select_partner_candidates,
    sum_standardized,
)
from contraport.auditing.pairs.feature_extraction import encode_pairs
from contraport.data import BatchOrder
from contraport.data.duplicate_groups import exchange_partners
from contraport.distributed import broadcast_object, is_main_process
from contraport.embedding import LoaderConfig
from contraport.seeding import generator
from contraport.training.step.training_module import TrainingModule

LOOKS = 7
"""How many looks at most follow the first, each after as many times more epochs as the one before: what is said of the
pairs changes most at the beginning, and a pair that is left out early was not yet remembered."""

MAX_DROPPED_SHARE = 2 / 3
"""A first look that tells nothing would otherwise take all pairs for wrong."""

STATISTICS = ("neighbors", "canonical")
"""By which pairs are judged: their sum, each in units of its spread, as `combined` is."""

MEMORIZATION_THRESHOLD = 0.75
"""Where decoys that were trained on score above fresh ones more often than this, scores look remembered."""


KEPT = ("epoch", "scores", "mismatched", "rate", "low", "high", "remembered")
"""What a folder keeps of a look as it is."""


class Look(NamedTuple):
    """What a look found of `n` pairs.

    Attributes:
        epoch: after which it was taken.
        number: which look it was.
        scores: of the pairs, ``(n,)``, the mean over the looks so far.
        mismatched: of the decoys, ``(d,)``, likewise.
        rate: share of wrong pairs, estimated at the last look at which decoys were trained on.
        low: lower end of its interval.
        high: upper end of its interval.
        remembered: how often a decoy that was trained on scored above one that was not, at that look.
        drawn: the positions that are trained on from now on, decoys from `n` on.
    """

    epoch: int
    number: int
    scores: Tensor
    mismatched: Tensor
    rate: float
    low: float
    high: float
    remembered: float
    drawn: Tensor


class PairFilter:
    """Judges the pairs of a training, and says which are drawn.

    Args:
        dataset: the pairs, with decoys.
        pipeline: what is trained.
        order: of the batches.
        epochs: of the whole training.
        reader: how the pairs are read for a look.

    Attributes:
        last: what the last look found, if there was one.
    """

    def __init__(
        self,
        dataset: DecoyDataset,
        pipeline: TrainingModule,
        order: BatchOrder,
        *,
        epochs: int,
        reader: LoaderConfig | None = None,
    ) -> None:
        self.last: Look | None = None
        self._dataset = dataset
        self._pipeline = pipeline
        self._order = order
        self._epochs = epochs
        self._reader = reader or LoaderConfig()
        self._looks = {round(epochs ** (step / LOOKS)) for step in range(LOOKS + 1)}
        items = torch.arange(len(dataset))
        self._genuine = items[~torch.isin(items, dataset.decoys.first)]
        self._first = torch.cat([self._genuine, len(dataset) + torch.arange(len(dataset.decoys.first))])
        self._draw(self._first)

    @property
    def _until(self) -> int:
        """The epoch after which decoys are trained on no more."""
        return max(1, self._epochs // 3)

    def after_epoch(self, epoch: int) -> bool:
        """Look at the pairs if it is time, after so many epochs, and return whether it was."""
        if epoch not in self._looks:
            return False
        self.last = broadcast_object(self._look(epoch) if is_main_process() else None)
        assert self.last is not None
        self._draw(self.last.drawn)
        return True

    def sides(self) -> PairedFeatures:
        """Return what the model says of all pairs now; neighbours are looked for among those that are trained on."""
        kept = self._drawn[self._drawn < len(self._dataset)]
        return encode_pairs(self._pipeline.model, self._dataset, self._pipeline.views, self._reader, kept=kept)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {} if self.last is None else self.last._asdict()

    def take_up(self, state: dict[str, Any]) -> None:
        """Go on from what a checkpoint holds."""
        self.last = Look(**state) if state else None
        self._draw(self._first if self.last is None else self.last.drawn)

    def found(self) -> dict[str, np.ndarray]:
        """Return what is known of the pairs after the last look, as arrays; see `contraport.runs.Run.pairs`.

        Better partners are only looked for when the training is done.
        """
        look = self.last
        assert look is not None
        found = {name: np.asarray(getattr(look, name)) for name in KEPT}
        found["fdr"] = estimate_fdr(look.scores.numpy(), look.mismatched.numpy(), look.rate)
        found["kept"] = np.isin(np.arange(len(look.scores)), look.drawn.numpy())
        if look.epoch == self._epochs:
            items, free = torch.arange(len(look.scores)), select_partner_candidates(look.scores, look.rate)
            partners, their_scores = find_better_partners(self.sides(), items, "combined", free=free)
            found |= {"partners": partners.numpy(), "partner_scores": their_scores.numpy()}
        return found

    def _draw(self, positions: Tensor) -> None:
        self._drawn = positions
        self._order.draw(positions.numpy())

    def _look(self, epoch: int) -> Look:
        last = self.last
        judged, mismatched, fresh = self._judged()
        trained, number = mismatched, 1
        if last is not None:
            number += last.number
            judged = torch.lerp(last.scores, judged, 1 / number)
            mismatched = torch.lerp(last.mismatched, mismatched, 1 / number)
        if last is None or last.epoch < self._until:
            rate, (low, high) = estimate_noise_rate(judged[self._genuine].numpy(), mismatched.numpy())
            told = above(trained.numpy(), fresh.numpy())
        else:
            rate, low, high, told = last.rate, last.low, last.high, last.remembered
        drawn = self._best(judged, mismatched, rate, add_decoys=epoch < self._until)
        return Look(epoch, number, judged, mismatched, rate, low, high, told, drawn)

    def _judged(self) -> tuple[Tensor, ...]:
        """Return the scores of the pairs, of the decoys, and of as many mismatches that were not trained on."""
        sides, decoys = self.sides(), self._dataset.decoys
        random = generator("audit.fresh_mismatches", len(decoys.first))
        partners = exchange_partners(decoys.first, self._dataset.content_ids, random, by=2)
        differ = partners != decoys.first
        fresh = ItemPairs(decoys.first[differ], partners[differ])
        together = ItemPairs(*map(torch.cat, zip(sides.given, decoys, fresh, strict=True)))
        seen = [sides]
        if has_vector_views(self._dataset, widest=MAX_VECTOR_WIDTH):
            seen.append(load_vector_pairs(self._dataset, kept=sides.kept))
        found = [scores(one, together, name) for one in seen for name in STATISTICS]
        total = sum_standardized(found, len(sides))
        return tuple(total.tensor_split([len(sides), len(sides) + len(decoys.first)]))

    def _best(self, judged: Tensor, mismatched: Tensor, rate: float, *, add_decoys: bool) -> Tensor:
        """Return the positions that are trained on where a share of the pairs is wrong, in order.

        Decoys are kept where they score as the pairs that are kept.
        """
        items = len(self._dataset)
        positions, values = torch.arange(items), judged
        if add_decoys:
            positions, values = self._genuine, judged[self._genuine]
        left_out = round(min(rate, MAX_DROPPED_SHARE) * (len(values) - 1))
        mark = values.sort().values[left_out]
        if add_decoys:
            positions = torch.cat([positions, items + torch.arange(len(mismatched))])
            values = torch.cat([values, mismatched])
        fewest = max(self._order.batch_size, NEIGHBORS + 2)
        number = max(int((values >= mark).sum()), fewest)
        return positions[values.argsort(descending=True, stable=True)[:number]].sort().values


def max_audited_batch_size(items: int) -> int:
    """Return how many items a batch has at most that leaves an audit room: what is trained on is a batch at least.

    >>> max_audited_batch_size(60), max_audited_batch_size(600)
    (17, 150)
    """
    return max(NEIGHBORS + 2, items // 4)


def memorization_warning(share: float) -> str:
    """Say that scores look remembered."""
    return (
        f"scores look remembered: pairs that are known to be wrong and were trained on score above fresh ones in "
        f"{share:.0%} of all cases, where 50% is none; fewer epochs, a higher temperature or a cross-fit help"
    )
