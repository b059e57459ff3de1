"""Audit of three or more views during training, which drops mismatched views of items.

Each pair of views is scored as in an audit of two (`contraport.auditing.pairs.mismatch_dropping_callback`), and the
scores of all pairs give those of the views (`contraport.auditing.pairs.right_view_log_odds`). A suspected view is
missing until the next scoring: training uses the item with its other views. An item with fewer than two trusted
views is left out.

A decoy is an item with one wrong view, a known mismatch in all pairs with this view. For a third of the training the
decoys replace the items that they are made of.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contraport.auditing.pairs.mismatch_dropping_callback import MAX_DROPPED_SHARE, MismatchDroppingCallback
from contraport.auditing.pairs.noise_rate import area_under_roc_curve, estimate_noise_rate
from contraport.auditing.pairs.pair_scoring import score_pairs
from contraport.auditing.pairs.paired_features import (
    MAX_WIDTH_TO_SCORE_INPUT_VECTORS,
    NUM_NEIGHBORS,
    PairedFeatures,
    PairIndices,
    encode_and_project_views,
    has_only_vector_views,
)
from contraport.auditing.pairs.right_view_log_odds import (
    estimate_view_noise_rates,
    mismatch_log_likelihood_ratios,
    right_view_log_odds,
)
from contraport.runs import WritableRun


class ViewAuditState(NamedTuple):
    """Online audit's state for `n` items and `d` deliberate mismatches in `k` views.

    Attributes:
        trained_epochs: number of epochs trained before the scoring.
        mean_scores: score of each pair of views, averaged over all scorings, ``(n + d, pairs)``.
        pair_rates: estimated share of mismatches of each pair of views, from the last scoring with decoys in training.
        view_rates: estimated share of items whose view is wrong, for each view, ``(k,)``.
        view_scores: log odds that each view belongs to its item, ``(n + d, k)``.
        memorization_auc: AUC of decoys that were trained on against fresh decoys; 0.5 without memorization.
        training_positions: positions of the items to train on next; positions from `n` on are decoys.
        trusted_views: mask of the views to train on next, ``(n + d, k)``.
    """

    trained_epochs: int
    num_scorings: int
    mean_scores: Tensor
    pair_rates: Tensor
    view_rates: Tensor
    view_scores: Tensor
    memorization_auc: float
    training_positions: Tensor
    trusted_views: Tensor


class ScoresByViewPair(NamedTuple):
    """Scores of each pair of views, for `n` items and `d` deliberate mismatches.

    Attributes:
        items_then_decoys: scores of the items, then of the decoys, ``(n + d, pairs)``.
        fresh_decoys: scores of decoys that were not trained on, ``(d, pairs)``. NaN stands for pairs without the
            replaced view, and for decoys for which no other partner was found.
    """

    items_then_decoys: Tensor
    fresh_decoys: Tensor


class ViewAuditCallback(MismatchDroppingCallback[ViewAuditState]):
    """Training callback that scores each view of each item, and drops suspected views."""

    @property
    def _view_pairs(self) -> list[tuple[int, int]]:
        """All pairs (i, j) of view indices, i < j."""
        return list(combinations(range(len(self._dataset.shapes)), 2))

    def state(self) -> dict[str, Any]:
        return {} if self.last_state is None else self.last_state._asdict()

    def restore(self, state: dict[str, Any]) -> None:
        self.last_state = ViewAuditState(**state) if state else None
        self._apply_selection()

    def save_scores(self, run: WritableRun) -> None:
        state, items = self.last_state, len(self._dataset)
        assert state is not None
        is_used = torch.isin(torch.arange(items), state.training_positions)
        arrays = {
            "view_names": np.array(self._dataset.view_names, dtype=np.str_),
            "epoch": np.asarray(state.trained_epochs),
            "view_scores": state.view_scores[:items].numpy(),
            "kept_views": (state.trusted_views[:items] & is_used[:, None]).numpy(),
            "view_rates": state.view_rates.numpy(),
            "pair_scores": state.mean_scores[:items].numpy(),
            "pair_rates": state.pair_rates.numpy(),
            "remembered": np.asarray(state.memorization_auc),
            **self._all_source_rows_and_keys,
        }
        run.save_arrays(run.view_scores_path, arrays)  # `contraport.runs.Run.view_scores` reads them

    def describe_noise_and_kept_data(self) -> str:
        state, names = self.last_state, self._dataset.view_names
        assert state is not None
        rates = (f"{name} {rate:.1%}" for name, rate in zip(names, state.view_rates.tolist(), strict=True))
        used = state.trusted_views[state.training_positions]
        return f"wrong views: {', '.join(rates)}; {int(used.sum())} views of {len(used)} items kept"

    def _apply_selection(self) -> None:
        """Restrict training to the items and views that the latest scores select."""
        super()._apply_selection()
        trusted = self._dataset.trusted_view_mask
        assert trusted is not None
        # In place: the processes of a loader hold the same memory.
        trusted.copy_(torch.ones_like(trusted) if self.last_state is None else self.last_state.trusted_views)

    def _compute_audit_state(self, epoch: int) -> ViewAuditState:
        last, items = self.last_state, len(self._dataset)
        scores, fresh_scores = self._score_view_pairs_of_items_and_decoys()
        trained_scores, number = scores[items:], 1
        if last is not None:
            number += last.num_scorings
            scores = torch.lerp(last.mean_scores, scores, 1 / number)
        # Sources of decoys are not trained on at first, so their scores do not count.
        replaced, samples = self._dataset.replaced_view_indices, []
        for column, pair in enumerate(self._view_pairs):
            is_known = torch.isin(replaced, torch.tensor(pair))
            samples.append(
                (scores[self._items_without_decoy, column].numpy(), scores[items:][is_known, column].numpy())
            )
        if last is None or last.trained_epochs < self._decoy_epochs:
            rates = torch.tensor([estimate_noise_rate(*sample).rate for sample in samples])
            areas = [
                area_under_roc_curve(trained[~fresh.isnan()].numpy(), fresh[~fresh.isnan()].numpy())
                for trained, fresh in zip(trained_scores.T, fresh_scores.T, strict=True)
            ]
            memorized = float(np.mean(areas))
        else:
            rates, memorized = last.pair_rates, last.memorization_auc
        ratios = [
            mismatch_log_likelihood_ratios(scores[:, column].numpy(), *sample, float(rates[column]))
            for column, sample in enumerate(samples)
        ]
        names = self._dataset.view_names
        rate_by_names = {
            (names[first], names[second]): rate
            for (first, second), rate in zip(self._view_pairs, rates.tolist(), strict=True)
        }
        view_rates = estimate_view_noise_rates(names, rate_by_names)
        view_scores = torch.from_numpy(right_view_log_odds(np.stack(ratios, axis=1), self._view_pairs, view_rates))
        positions, trusted = self._select_training_positions_and_trusted_views(
            view_scores, trains_on_decoys=epoch < self._decoy_epochs
        )
        return ViewAuditState(
            epoch, number, scores, rates, torch.from_numpy(view_rates), view_scores, memorized, positions, trusted
        )

    def _score_view_pairs_of_items_and_decoys(self) -> ScoresByViewPair:
        """Score all items and deliberate mismatches by each pair of their views."""
        dataset, decoys, items = self._dataset, self._dataset.decoy_pairs, len(self._dataset)
        features, _ = encode_and_project_views(self._pipeline.model, dataset, self._pipeline.views, self._loader_config)
        sources = [features]
        if has_only_vector_views(dataset, max_width=MAX_WIDTH_TO_SCORE_INPUT_VECTORS):
            sources.append(dataset.store.fetch_views(torch.arange(items)))
        partners = self._draw_fresh_wrong_partners_of_decoys("audit.fresh_view_mismatches")
        is_replaced = torch.arange(len(dataset.shapes)) == dataset.replaced_view_indices[:, None]
        members = torch.cat([  # the item that each view comes from
            torch.arange(items)[:, None].expand(-1, len(dataset.shapes)),
            torch.where(is_replaced, decoys.second[:, None], decoys.first[:, None]),
            torch.where(is_replaced, partners[:, None], decoys.first[:, None]),
        ])  # fmt: skip
        trained = self._positions[self._positions < items]
        assert dataset.trusted_view_mask is not None
        columns = []
        for first, second in self._view_pairs:
            pool = trained[dataset.trusted_view_mask[trained][:, [first, second]].all(dim=1)]
            if len(pool) < NUM_NEIGHBORS + 2:  # of few items, most lack one of the two views
                pool = trained
            pairs = PairIndices(members[:, first], members[:, second])
            paired = (PairedFeatures((views[first], views[second]), None, pool) for views in sources)
            columns.append(torch.stack([score_pairs(one, pairs, "combined") for one in paired]).sum(dim=0))
        scores, fresh_scores = torch.stack(columns, dim=1).split([items + len(partners), len(partners)])
        has_view = torch.tensor([[view in pair for pair in self._view_pairs] for view in range(len(dataset.shapes))])
        is_known = has_view[dataset.replaced_view_indices] & (partners != decoys.first)[:, None]
        return ScoresByViewPair(scores, fresh_scores.where(is_known, torch.nan))

    def _select_training_positions_and_trusted_views(
        self, view_scores: Tensor, *, trains_on_decoys: bool
    ) -> tuple[Tensor, Tensor]:
        """Return sorted positions to train on, and a mask of trusted views.

        A trusted view is more probably right than wrong. Of each view at most two thirds of the items are distrusted:
        uninformative scores would otherwise leave none. If too few items have two trusted views for a batch, others are
        trained on with their two best.
        """
        items = len(self._dataset)
        lowest = view_scores[:items].sort(dim=0).values[round(MAX_DROPPED_SHARE * (items - 1))]
        trusted = view_scores >= lowest.clamp(max=0)
        best = view_scores.topk(2, dim=1)
        positions = self._initial_positions if trains_on_decoys else torch.arange(items)
        is_usable = trusted[positions].sum(dim=1) >= 2
        order = best.values[positions, 1].masked_fill(is_usable, torch.inf).argsort(descending=True, stable=True)
        number = max(int(is_usable.sum()), self._order.batch_size, NUM_NEIGHBORS + 2)
        return positions[order[:number]].sort().values, trusted.scatter(1, best.indices, value=True)
