"""Training with an online audit of three or more views: excluded views, exact resuming, workers and processes."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from contraport.auditing.pairs.synthetic_mismatches import add_decoys
from contraport.auditing.pairs.view_audit_callback import ScoresByViewPair, ViewAuditCallback
from contraport.data import BatchOrder, from_arrays
from contraport.runs import Run
from contraport.training import train
from tests.errors import raises_usage_error
from tests.processes import Report, run_in_processes

from .conftest import StubObjective
from .test_train import are_equal_states, get_model_state

ITEMS, WRONG, VIEWS = 240, 48, 3


class StubObjectiveOfPresentItems(StubObjective):
    """Stub objective for each pair of views, computed on the items that have both."""

    def forward(self, z0: Tensor, z1: Tensor, present: Tensor) -> Tensor:  # type: ignore[override]
        has_both = present.all(dim=1)
        return super().forward(z0[has_both], z1[has_both])


def build_mismatched_views() -> dict[str, np.ndarray]:
    """Build three views of one hidden vector per item; the first 48 items have another item's view "b"."""
    random = np.random.default_rng(0)
    hidden = random.normal(size=(ITEMS, 6))
    views = {name: hidden @ random.normal(size=(6, 10)) + 0.2 * random.normal(size=(ITEMS, 10)) for name in "abc"}
    views["b"][:WRONG] = np.roll(views["b"][:WRONG], 5, axis=0)
    return {name: view.astype(np.float32) for name, view in views.items()}


def build_options(out: Path) -> dict[str, Any]:
    data = from_arrays(build_mismatched_views(), name="views")
    return {"data": data, "audit": True, "batch_size": 40, "epochs": 5, "out": out, "progress": False}


@pytest.fixture(scope="module")
def uninterrupted_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(
        **build_options(tmp_path_factory.mktemp("whole") / "run"),
        checkpoint_minutes=0,
        objective=StubObjectiveOfPresentItems(),
    )


def test_mismatched_view_is_identified_and_excluded(uninterrupted_run: Run) -> None:
    result = uninterrupted_run.view_scores()
    is_wrong = np.zeros((ITEMS, VIEWS), dtype=bool)
    is_wrong[:WRONG, 1] = True
    assert result["view_names"].tolist() == ["a", "b", "c"]
    assert result["rows"].tolist() == list(range(ITEMS))
    assert roc_auc_score(is_wrong.ravel(), -result["view_scores"].ravel()) > 0.95
    assert (result["view_scores"][:WRONG].argmin(axis=1) == 1).mean() > 0.9
    assert result["view_rates"][1] == pytest.approx(WRONG / ITEMS, abs=0.08)
    trusted_views = result["kept_views"]
    assert trusted_views[:WRONG, 1].mean() < 0.3 < 0.9 < trusted_views[:WRONG, [0, 2]].mean()
    assert trusted_views[WRONG:].mean() > 0.9


@pytest.mark.parametrize("at", [70, pytest.param(25, marks=pytest.mark.slow)])
def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, uninterrupted_run: Run, at: int) -> None:
    audit_options = build_options(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        train(**audit_options, checkpoint_minutes=0, objective=StubObjectiveOfPresentItems(at, KeyboardInterrupt()))
    resumed = train(
        out=audit_options["out"],
        resume=True,
        data=audit_options["data"],
        objective=StubObjectiveOfPresentItems(),
        progress=False,
    )
    assert are_equal_states(get_model_state(resumed), get_model_state(uninterrupted_run))
    for name, values in uninterrupted_run.view_scores().items():
        assert np.array_equal(resumed.view_scores()[name], values), name


def test_workers_do_not_change_the_training(tmp_path: Path) -> None:
    audit_options = build_options(tmp_path / "alone") | {"epochs": 2, "objective": "info-nce"}
    without_workers = train(**audit_options)
    with_worker = train(**audit_options | {"num_workers": 1, "out": tmp_path / "workers"})
    assert are_equal_states(get_model_state(without_workers), get_model_state(with_worker))


class ViewAuditCallbackWithStubScores(ViewAuditCallback):
    """Audit with prepared scores of the pairs of views."""

    prepared_scores: ScoresByViewPair

    def _score_view_pairs_of_items_and_decoys(self) -> ScoresByViewPair:
        return self.prepared_scores


def test_decoys_replace_one_view() -> None:
    """With separated scores the mismatched views of items and decoys are suspected and marked as missing in batches."""
    dataset = add_decoys(from_arrays(build_mismatched_views()), seed=0)
    decoys, replaced = dataset.decoy_pairs, dataset.replaced_view_indices
    assert len(replaced) == 48
    assert replaced.bincount().tolist() == [16] * VIEWS
    batch = dataset.__getitems__([3, *range(ITEMS, ITEMS + 48)])
    for view, values in enumerate(from_arrays(build_mismatched_views()).store.fetch_views(torch.arange(ITEMS))):
        rows = torch.where(replaced == view, decoys.second, decoys.first)
        assert torch.equal(batch.views[view][1:], values[rows])

    pairs = list(combinations(range(VIEWS), 2))
    is_wrong = torch.zeros(ITEMS + 48, VIEWS, dtype=torch.bool)
    is_wrong[:WRONG, 1] = True
    is_wrong[torch.arange(ITEMS, ITEMS + 48), replaced] = True
    is_mismatch = torch.stack([is_wrong[:, list(pair)].any(dim=1) for pair in pairs], dim=1)
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(is_mismatch.shape, generator=random).double() - 5 * is_mismatch
    fresh = scores[ITEMS:].masked_fill(~is_mismatch[ITEMS:], torch.nan)
    order = BatchOrder(ITEMS, batch_size=40, shuffle=True, seed=0, drop_last=True)
    pipeline: Any = None
    audit = ViewAuditCallbackWithStubScores(dataset, pipeline, order, epochs=12)
    audit.prepared_scores = ScoresByViewPair(scores, fresh)
    assert audit.score_and_select_if_due(1)
    assert audit.last_state is not None
    trusted = audit.last_state.trusted_views
    assert float(trusted[:WRONG, 1].double().mean()) < 0.25  # rough, since a pair of views has only 32 decoys
    assert float(trusted[:ITEMS][~is_wrong[:ITEMS]].double().mean()) > 0.97
    assert float(trusted[ITEMS:][replaced == 1, 1].double().mean()) < 0.2  # decoys are excluded like mismatched items
    assert audit.last_state.memorization_auc == pytest.approx(0.5)
    assert set(audit.last_state.training_positions.tolist()) == set(range(ITEMS + 48)) - set(decoys.first.tolist())
    present = dataset.__getitems__([0, ITEMS]).present
    assert present is not None
    assert torch.equal(present, trusted[[0, ITEMS]])
    assert audit.score_and_select_if_due(round(12 ** (3 / 4)))
    assert audit.last_state.training_positions.tolist() == list(range(ITEMS))  # without decoys
    audit.restore({})
    assert bool(dataset.trusted_view_mask.all())  # type: ignore[union-attr]


def test_enough_items_remain_if_all_views_look_mismatched() -> None:
    dataset = add_decoys(from_arrays(build_mismatched_views()), seed=0)
    order = BatchOrder(ITEMS, batch_size=100, shuffle=True, seed=0, drop_last=True)
    pipeline: Any = None
    audit = ViewAuditCallback(dataset, pipeline, order, epochs=12)
    assert audit.checkpoint_key == "ViewAuditCallback"  # stored in checkpoints: a renamed class keeps it
    scores = -1 - torch.rand(ITEMS + 48, VIEWS, generator=torch.Generator().manual_seed(0)).double()
    positions, trusted = audit._select_training_positions_and_trusted_views(scores, trains_on_decoys=False)
    assert len(positions) >= 100
    assert int(trusted[positions].sum(dim=1).min()) >= 2
    assert float(trusted[:ITEMS].double().mean()) > 1 / 3


def train_in_group(rank: int, report: Report, build_options: dict[str, Any]) -> None:
    train(**build_options)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "views.npz", **build_mismatched_views())
    arguments: dict[str, Any] = {
        "batch_size": 40,
        "epochs": 3,
        "optimizer": "sgd",
        "encoder": "mlp",
        "objective": "info-nce",
    }
    arguments |= {"data": tmp_path / "views.npz", "audit": True, "device": "cpu", "progress": False}
    run_in_processes(train_in_group, 2, arguments | {"out": tmp_path / "two"})
    one, two = train(**arguments, out=tmp_path / "one"), Run(tmp_path / "two")
    assert np.array_equal(one.view_scores()["kept_views"], two.view_scores()["kept_views"])
    for one_weights, two_weights in zip(get_model_state(one).values(), get_model_state(two).values(), strict=True):
        torch.testing.assert_close(one_weights, two_weights, rtol=1e-3, atol=1e-4)


def test_rejects_data_and_options_without_an_audit_before_writing(tmp_path: Path) -> None:
    audit_options = build_options(tmp_path / "run")
    incomplete = build_mismatched_views()
    incomplete["c"][3] = np.nan
    with raises_usage_error("data.missing_views"):
        train(**audit_options | {"data": from_arrays(incomplete)})
    with raises_usage_error("audit.missing_views"):
        train(**audit_options | {"predict": "l2"})
    assert not audit_options["out"].exists()
    without_audit = train(**audit_options | {"audit": False, "epochs": 1})
    with raises_usage_error("run.missing_file", "view_scores.npz", "audit=True"):
        without_audit.view_scores()
