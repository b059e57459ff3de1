"""Audits of planted mismatches with each method, and their output files."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tests.errors import raises_usage_error

import contraport
from contraport._utils import files, locks, vector_search
from contraport._utils.files import read_json_or_none
from contraport._utils.locks import lock_folder
from contraport.auditing import Audit, rounds_excluding_suspects
from contraport.auditing.pairs import canonical_maps, paired_features
from contraport.auditing.pairs.pair_scoring import score_pairs
from contraport.auditing.pairs.paired_features import PairedFeatures, PairIndices, load_vector_pairs
from contraport.auditing.pairs.synthetic_mismatches import draw_groups_of_exchanging_sets, exchange_partners_across_sets
from contraport.auditing.result import build_online_audit
from contraport.auditing.rounds_excluding_suspects import score_frozen_rounds
from contraport.cli.commands import to_json_value
from contraport.cli.result_printers import print_audit
from contraport.data import from_arrays, from_stream, load, stores
from contraport.runs import Run
from contraport.training.config import Settings

ITEMS, WRONG = 400, 80
QUICK: dict[str, Any] = {"epochs": 6, "batch_size": 64, "progress": False}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def views() -> tuple[np.ndarray, np.ndarray]:
    """Two views of one hidden vector per item; the first 80 items have exchanged partners."""
    random = np.random.default_rng(0)
    hidden = random.normal(size=(ITEMS, 4))
    first, second = hidden @ random.normal(size=(4, 6)), hidden @ random.normal(size=(4, 9))
    second[:WRONG] = np.roll(second[:WRONG], 5, axis=0)
    return first, second


@pytest.fixture(scope="module")
def frozen(views: tuple[np.ndarray, np.ndarray]) -> Audit:
    return contraport.audit(data=views, method="frozen")


def assert_mismatches_found(result: Audit) -> None:
    right = np.arange(ITEMS) >= WRONG
    assert roc_auc_score(right, result.scores) > 0.9
    assert result.noise_rate == pytest.approx(WRONG / ITEMS, abs=0.08)
    assert result.noise_interval[0] <= result.noise_rate <= result.noise_interval[1]
    assert (~right[result.flagged(count=40)]).mean() > 0.9
    proposed = result.partners >= 0
    assert proposed[:WRONG].mean() > 0.3
    assert (result.partner_scores[proposed] > result.scores[proposed]).mean() > 0.8


@pytest.mark.parametrize(
    "options",
    [
        {"method": "frozen"},
        {"method": "online", **QUICK},
        {"method": "crossfit", "folds": 3, "rounds": 1, **QUICK},
        {"method": "crossfit", "folds": 2, "repeats": 2, "rounds": 2, "statistic": "combined", **QUICK},
    ],
    ids=lambda options: options["method"],
)
def test_finds_planted_mismatches(views: tuple[np.ndarray, np.ndarray], options: dict[str, Any]) -> None:
    result = contraport.audit(data=views, **options)
    assert (result.method, len(result.scores)) == (options["method"], ITEMS)
    assert_mismatches_found(result)


def test_second_round_uses_trusted_neighbors_only(views: tuple[np.ndarray, np.ndarray]) -> None:
    dataset = from_arrays(views)
    first, second = score_frozen_rounds(dataset, statistic="likeness", rounds=2, seed=3)
    partners = exchange_partners_across_sets(draw_groups_of_exchanging_sets(dataset, seed=3))
    items = torch.arange(ITEMS)
    pairs = load_vector_pairs(dataset)
    assert np.array_equal(first.scores, score_pairs(pairs, None, "likeness"))
    assert np.array_equal(first.known_mismatch_scores, score_pairs(pairs, PairIndices(items, partners), "likeness"))
    left_out = round(first.noise_rate.rate * ITEMS)
    assert left_out > 40
    trusted = np.sort(np.argsort(first.scores, kind="stable")[left_out:])
    assert second.last_computed_features is not None
    assert second.last_computed_features.neighbor_pool_items.tolist() == trusted.tolist()
    raw = dataset.store.fetch_views(items)
    with_trusted_pool = PairedFeatures((raw[0], raw[1]), None, torch.from_numpy(trusted))
    assert np.array_equal(second.scores, score_pairs(with_trusted_pool, None, "likeness"))
    assert not np.array_equal(second.scores, first.scores)


@pytest.mark.parametrize(
    ("statistic", "width"), [("combined", 8), ("combined", 24), ("cosine", 8), ("likeness", 8), ("csls", 8)]
)
def test_mapped_rows_are_read_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statistic: str, width: int
) -> None:
    items, largest = 1_500, 0
    for module, name, value in (
        (canonical_maps, "MAX_FITTED_WIDTH", 16),
        (canonical_maps, "MAX_VALUES_AT_A_TIME", 300 * width),
        (paired_features, "MAX_EXACT_NEIGHBOR_ITEMS", 100),
        (paired_features, "MAX_SIMILARITY_MATRIX_ITEMS", 100),
        (paired_features, "MAX_REFERENCE_ITEMS", 200),
        (paired_features, "MAX_VALUES_PER_BLOCK", 300 * width),
        (vector_search, "MAX_TILE_PRODUCTS", 300 * width),
        (vector_search, "MAX_TILE_KEYS", 200),
        (vector_search, "MIN_COMPARED_ROWS_PER_QUERY", 200),
        (vector_search, "MAX_CELL_ROWS", 300),
    ):
        monkeypatch.setattr(module, name, value)
    random = np.random.default_rng(0)
    first = random.normal(size=(items, width)).astype(np.float32)
    second = first + random.normal(size=(items, width)).astype(np.float32)
    second[:300] = second[random.permutation(300)]
    np.savez(tmp_path / "pairs.npz", view0=first, view1=second)
    monkeypatch.setattr(files, "MIN_MAPPED_BYTES", 1)
    monkeypatch.setattr(stores, "MAPPED_BLOCK_BYTES", 4 * 300 * width)
    options: dict[str, Any] = {"data": tmp_path / "pairs.npz", "method": "frozen", "statistic": statistic}
    in_memory = contraport.audit(**options, progress=False)
    monkeypatch.setattr(paired_features, "MAX_NORMALIZED_COPY_VALUES", 0)
    take_rows = stores.MemmapRowStore._take_rows

    def take_and_record(self: stores.MemmapRowStore, positions: torch.Tensor) -> np.ndarray:
        nonlocal largest
        largest = max(largest, len(positions))
        return take_rows(self, positions)

    monkeypatch.setattr(stores.MemmapRowStore, "_take_rows", take_and_record)
    result = contraport.audit(**options, progress=False)
    np.testing.assert_allclose(result.scores, in_memory.scores, rtol=0, atol=1e-5)
    assert np.mean(result.partners == in_memory.partners) > 0.99
    assert largest == items if statistic == "csls" else largest <= items / 3  # csls compares each item with all others


def test_proposed_partners_are_suspected_mismatches(frozen: Audit) -> None:
    number = np.ceil(max(frozen.noise_rate, 0.1) * ITEMS).astype(int)
    free = np.argsort(frozen.scores, kind="stable")[:number]
    proposed = frozen.partners[frozen.partners >= 0]
    assert len(proposed) > 40
    assert np.isin(proposed, free).all()


def test_flags_almost_nothing_in_clean_data() -> None:
    hidden = np.random.default_rng(1).normal(size=(ITEMS, 3))
    result = contraport.audit(data=(hidden, hidden @ np.random.default_rng(2).normal(size=(3, 5))), method="frozen")
    assert result.noise_rate < 0.02
    assert len(result.flagged()) <= 0.02 * ITEMS


@pytest.mark.parametrize("folder_exists", [True, False])
def test_stopped_audit_names_the_call_to_resume(
    views: tuple[np.ndarray, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder_exists: bool
) -> None:
    def stop(options: dict[str, Any], *, parent_command: str) -> None:
        if folder_exists:
            options["out"].mkdir()
        raise KeyboardInterrupt("contraport.train(resume=True)")

    monkeypatch.setattr(import_module("contraport.auditing.audit"), "train_from_options", stop)
    with pytest.raises(KeyboardInterrupt) as caught:
        contraport.audit(data=views, out=tmp_path / "audit", **QUICK)
    assert ("resume=True" in str(caught.value)) == folder_exists
    assert (tmp_path / "audit").exists() == folder_exists


def test_output_has_a_row_for_each_pair_and_is_not_overwritten(
    views: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    out = tmp_path / "audit"
    result = contraport.audit(data=views, out=out, **QUICK)
    rows = list(csv.DictReader((out / "pairs.csv").open()))
    assert [int(row["id"]) for row in rows] == list(range(ITEMS))
    assert [row["flagged"] == "true" for row in rows] == np.isin(np.arange(ITEMS), result.flagged()).tolist()
    np.testing.assert_allclose([float(row["score"]) for row in rows], result.scores, rtol=1e-5)
    report = json.loads((out / "audit.json").read_text())
    assert (report["pairs"], report["method"], report["noise_rate"]) == (ITEMS, "online", result.noise_rate)
    log = (out / "training" / "train.log").read_text()
    assert "few steps" not in log
    assert "contraport evaluate" not in log
    before = (out / "pairs.csv").read_bytes()
    with raises_usage_error("out.exists", out, "resume=True"):
        contraport.audit(data=views, out=out, **QUICK)
    repeated = contraport.audit(data=views, out=out, resume=True, **QUICK)
    assert (repeated.scores == result.scores).all()
    assert (out / "pairs.csv").read_bytes() == before


def test_scores_all_rows_of_a_file_in_order(
    views: tuple[np.ndarray, np.ndarray], frozen: Audit, tmp_path: Path
) -> None:
    first, second = views
    np.savez(tmp_path / "pairs.npz", view0=first, view1=second)
    result = contraport.audit(data=tmp_path / "pairs.npz", method="frozen")
    assert (result.scores == frozen.scores).all()


CROSSFIT: dict[str, Any] = {"method": "crossfit", "folds": 2, "repeats": 2, "rounds": 2, **QUICK, "epochs": 2}


def test_resumed_cross_fit_equals_an_uninterrupted_one(
    views: tuple[np.ndarray, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninterrupted = contraport.audit(data=views, out=tmp_path / "whole", **CROSSFIT)
    trained, train_fold = [], rounds_excluding_suspects._train_and_encode_all_pairs

    def train_or_interrupt(*args: Any) -> Any:
        trained.append(len(trained))
        if len(trained) == 6:
            raise KeyboardInterrupt
        return train_fold(*args)

    monkeypatch.setattr(rounds_excluding_suspects, "_train_and_encode_all_pairs", train_or_interrupt)
    with pytest.raises(KeyboardInterrupt):
        contraport.audit(data=views, out=tmp_path / "part", **CROSSFIT)
    resumed = contraport.audit(data=views, out=tmp_path / "part", resume=True, **CROSSFIT)
    assert len(trained) == 6 + 3  # 5 of 8 folds were saved
    assert (resumed.scores == uninterrupted.scores).all()
    assert (resumed.partners == uninterrupted.partners).all()
    with raises_usage_error("folds.changed", 2, 3):
        contraport.audit(data=views, out=tmp_path / "part", resume=True, **CROSSFIT | {"folds": 3})
    other_views = views[0][::-1].copy(), views[1]
    with raises_usage_error("data.changed", tmp_path / "part"):
        contraport.audit(data=other_views, out=tmp_path / "part", resume=True, **CROSSFIT)
    (tmp_path / "part" / "judgements.npz").write_bytes(b"junk")
    with raises_usage_error("resume.corrupt", "judgements.npz"):
        contraport.audit(data=views, out=tmp_path / "part", resume=True, **CROSSFIT)


def test_cross_fit_trains_on_trusted_pairs_and_scores_the_held_out_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores are stubs, where the first twenty pairs score as mismatches."""
    items, random, trained = 100, np.random.default_rng(0), list[tuple[int, set[int]]]()
    pair_scores = random.normal(np.where(np.arange(items) < 20, 0, 6), 1)
    scored_parts, ordered_view_pairs = [], list[set[frozenset[int]]]()

    def train_encoder(dataset: Any, settings: Settings, trained_on: torch.Tensor) -> int:
        trained.append((settings.seed, set(trained_on.tolist())))
        return len(trained)

    def score(encoder_number: int, pairs: PairIndices, statistic: str) -> torch.Tensor:
        first, second = pairs
        if torch.equal(first, second):
            scored_parts.append(set(first.tolist()))
            return torch.from_numpy(pair_scores[first] + 0.1 * encoder_number).float()
        ordered_view_pairs.append({frozenset(pair) for pair in zip(first.tolist(), second.tolist(), strict=True)})
        return torch.from_numpy(random.normal(size=len(first))).float()

    monkeypatch.setattr(rounds_excluding_suspects, "_train_and_encode_all_pairs", train_encoder)
    monkeypatch.setattr(rounds_excluding_suspects, "score_pairs", score)
    fold_scores = rounds_excluding_suspects.CrossFitPairAndMismatchScores(
        None, num_rounds=2, num_repeats=2, num_pairs=items
    )
    dataset = from_arrays((np.eye(items), np.eye(items)))
    rounds = list(
        rounds_excluding_suspects.train_crossfit_rounds(
            dataset, Settings(data="x", seed=5), fold_scores, statistic="cosine", folds=2
        )
    )
    seeds = [seed for seed, _ in trained]
    assert seeds[::2] == seeds[1::2]  # the folds of a repeat share a seed
    assert len(set(seeds)) == 4
    assert len({frozenset(part) for part in scored_parts}) == 8  # each repeat draws other folds
    trusted = set(rounds[0].get_trusted_pair_indices(dataset.view_names).tolist())
    assert trusted < set(range(items))
    for place, ((_, known), part) in enumerate(zip(trained, scored_parts, strict=True)):
        assert known == (set(range(items)) if place < 4 else trusted) - part
    for part, exchanged in zip(scored_parts, ordered_view_pairs, strict=True):
        assert set().union(*exchanged) == part  # exchanged partners are in the same fold
    assert rounds[1].scores == pytest.approx(pair_scores + 0.1 * mean_encoder_number(scored_parts, items), abs=1e-5)
    wrong = np.argsort(rounds[0].scores, kind="stable")[: items - len(trusted)]
    assert (
        sorted(trusted)
        == rounds[0].get_trusted_pair_indices(dataset.view_names).tolist()
        == sorted({*range(items)} - {*wrong.tolist()})
    )
    half = rounds_excluding_suspects.CrossFitPairAndMismatchScores(None, num_rounds=1, num_repeats=1, num_pairs=4)
    half.save_fold_scores((0, 0), torch.tensor([0, 1]), torch.ones(2), torch.ones(2))
    assert half.are_all_pairs_scored((0, 0), torch.tensor([0, 1]))
    assert not half.are_all_pairs_scored((0, 0), torch.tensor([1, 2]))


def mean_encoder_number(scored_parts: list[set[int]], items: int) -> np.ndarray:
    """Return the mean number of the encoders that scored each item."""
    encoder_numbers = [
        [number for number, part in enumerate(scored_parts, start=1) if item in part] for item in range(items)
    ]
    return np.mean(encoder_numbers, axis=1)


@pytest.mark.parametrize("chosen", [(0, 2), ("ear", "eye"), ("ear", 2), ["0", "2"]])
def test_selects_views_by_name_or_number(
    views: tuple[np.ndarray, np.ndarray], frozen: Audit, chosen: tuple[int | str, ...]
) -> None:
    three = {"ear": views[0], "hand": np.zeros((ITEMS, 2)) + np.arange(ITEMS)[:, None], "eye": views[1]}
    assert (contraport.audit(data=three, given_views=chosen, method="frozen").scores == frozen.scores).all()


def test_a_dict_is_read_as_an_npz_of_the_same_arrays(views: tuple[np.ndarray, np.ndarray], frozen: Audit) -> None:
    test = {"view0_test": views[0], "view1_test": views[1], "labels_test": np.arange(ITEMS) % 4}
    labeled = {"view0": views[0], "view1": views[1], "labels": np.arange(ITEMS) % 4, "weights": np.ones(ITEMS)}
    for data in (labeled, labeled | test | {"weights_test": np.ones(ITEMS)}, {0: views[0], 1: views[1]}):
        result = contraport.audit(data=data, method="frozen", progress=False)
        assert isinstance(result, Audit)
        assert (result.scores == frozen.scores).all()
    with raises_usage_error("data.shape", "weights", (ITEMS, 1)):
        contraport.audit(data=labeled | {"weights": np.ones((ITEMS, 1))}, method="frozen")


def test_views_of_a_table_are_named_by_its_columns(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("ear_a,ear_b,u,v\n" + "1,2,3,4\n" * 60)
    columns = {"views": [["ear_a", "ear_b"], ["u", "v"]]}
    assert load(tmp_path / "t.csv", columns=columns).view_names == ("ear", "view1")
    np.savez(tmp_path / "t.npz", view0=np.ones((60, 2)), view1=np.ones((60, 2)))
    assert load(tmp_path / "t.npz").view_names == ("view0", "view1")


def test_flags_by_rate_count_or_fdr(frozen: Audit) -> None:
    assert len(frozen.flagged()) == round(ITEMS * frozen.noise_rate)
    assert len(frozen.flagged(rate=0.1)) == len(frozen.flagged(rate=np.float32(0.1))) == 40
    assert frozen.flagged(count=np.int64(3)).tolist() == np.argsort(frozen.scores, kind="stable")[:3].tolist()
    few, many = frozen.flagged(fdr=0.02), frozen.flagged(fdr=0.3)
    assert len(few) < len(many)
    assert set(few) <= set(many)
    for limits, code, values in (
        ({"rate": 2.0}, "rate.invalid", [2.0]),
        ({"count": -1}, "count.invalid", [400, -1]),
        ({"rate": 0.1, "fdr": 0.1}, "flagged.conflict", ["rate", "fdr"]),
    ):
        with raises_usage_error(code, *values):
            frozen.flagged(**limits)  # type: ignore[arg-type]


def test_flagging_by_fdr_bounds_the_share_of_right_pairs() -> None:
    """One mismatch is expected, so a half of the two lowest pairs and two thirds of the three lowest are right."""
    scores, none = np.array([3.0, 0.0, 2.0, 1.0]), np.full(4, -1)
    result = Audit("toy", "frozen", "cosine", scores, np.array([0.0, 0.5]), 0.25, (0.1, 0.4), none, scores)
    assert result.pair_fdrs == pytest.approx([3 / 4, 1 / 2, 2 / 3, 1 / 2])
    assert result.flagged(fdr=0.5).tolist() == [1, 3]
    assert result.flagged(fdr=0.49).tolist() == []
    assert result.flagged(fdr=0.7).tolist() == [1, 3, 2]


def test_deprecated_attributes_still_work_with_a_warning() -> None:
    scores, none = np.arange(4.0), np.full(4, -1)
    result = Audit("toy", "frozen", "cosine", scores, scores, 0.25, (0.1, 0.4), none, scores)
    for old, new in (("data", "data_name"), ("rows", "source_rows"), ("mismatch_scores", "known_mismatch_scores")):
        with pytest.warns(FutureWarning, match=new):
            assert getattr(result, old) is getattr(result, new)
    with pytest.warns(FutureWarning, match="pair_fdrs"):
        assert np.array_equal(result.fdr, result.pair_fdrs)
    with pytest.raises(AttributeError):
        result.no_such_attribute  # noqa: B018


@pytest.mark.parametrize(("memorization", "notes"), [(0.5, 0), (0.9, 1)])
def test_audit_result_of_a_training_contains_its_arrays(memorization: float, notes: int) -> None:
    arrays = {"scores": np.arange(4.0), "mismatched": np.arange(2.0) - 1, "partners": np.array([1, -1, -1, -1])}
    arrays |= {"partner_scores": np.arange(4.0) + 1, "rate": np.array(0.2), "low": np.array(0.1)}
    result = build_online_audit("x", arrays | {"high": np.array(0.3), "remembered": np.array(memorization)})
    for name in ("scores", "partners", "partner_scores"):
        assert np.array_equal(getattr(result, name), arrays[name])
    assert np.array_equal(result.known_mismatch_scores, arrays["mismatched"])
    assert (result.noise_rate, result.noise_interval) == (0.2, (0.1, 0.3))
    assert len(result.notes) == notes
    assert all("90%" in note for note in result.notes)


@pytest.mark.parametrize("seed", range(4))  # for some seeds all pairs seem mismatched, which leaves no trusted pairs
def test_note_on_uninformative_scores(seed: int) -> None:
    random = np.random.default_rng(seed)
    other = random.normal(size=(200, 5))
    result = contraport.audit(data=(random.normal(size=(200, 4)), other), method="frozen", rounds=1)
    assert len(result.notes) == 1
    assert re.search(r"\d+%", result.notes[0])
    assert result.json_summary()["notes"] == list(result.notes)


@pytest.mark.parametrize(("noise", "is_reliable"), [(0.3, True), (2.0, False)])
def test_noise_rate_is_reported_only_if_the_views_share_enough(noise: float, is_reliable: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    hidden = random.normal(size=(500, 8))
    first, second = (hidden + noise * random.normal(size=hidden.shape) for _ in range(2))
    second[:100] = np.roll(second[:100], 1, axis=0)
    result = contraport.audit(data=(first, second), method="frozen", out=tmp_path / "audit", progress=False)
    assert result.is_rate_reliable == is_reliable
    saved, page = read_json_or_none(tmp_path / "audit" / "audit.json"), (tmp_path / "audit" / "audit.html").read_text()
    if is_reliable:
        assert saved["noise_rate"] == pytest.approx(0.2, abs=0.05)
        assert result.notes == ()
        assert "could not be estimated" not in page
        assert "look wrong" in repr(result)
    else:
        assert saved["noise_rate"] is saved["noise_interval"] is None
        assert len(saved["notes"]) == 1
        assert "could not be estimated" in page
        assert "look wrong" not in page
        assert "unknown" in repr(result)


def test_noise_rate_is_reported_for_views_that_share_only_a_class() -> None:
    random = np.random.default_rng(0)
    classes = random.integers(0, 10, 600)
    first = random.normal(size=(10, 12))[classes] + 0.4 * random.normal(size=(600, 12))
    shown = classes.copy()
    shown[:120] = np.roll(shown[:120], 1)
    result = contraport.audit(data=(first, np.eye(10)[shown]), method="frozen")
    assert result.is_rate_reliable
    assert result.noise_rate == pytest.approx((shown != classes).mean(), abs=0.05)


@pytest.mark.parametrize("seed", [1, 6, 8])
def test_interval_contains_the_share_if_one_view_has_few_contents(seed: int) -> None:
    """Known mismatches of whole contents are of few pairs of contents, and gave too low a share for these seeds."""
    random, classes = np.random.default_rng(seed), 8
    prototypes, contents = random.normal(size=(classes, 12)), random.normal(size=(classes, 9))
    first = random.integers(0, classes, ITEMS)
    second = first.copy()
    second[:WRONG] = np.roll(second[:WRONG], 1)
    data = (prototypes[first] + 0.4 * random.normal(size=(ITEMS, 12)), contents[second])
    result = contraport.audit(data=data, method="frozen", seed=seed)
    low, high = result.noise_interval
    assert result.is_rate_reliable
    assert low <= (first != second).mean() <= high


@pytest.mark.parametrize(("contents", "code"), [(49, "method.too_few_contents"), (50, "folds.too_many")])
def test_crossfit_requires_as_many_contents_as_pairs(contents: int, code: str) -> None:
    """Pairs of one content are held out together, so no encoder has seen the content of the pairs that it scores."""
    random = np.random.default_rng(0)
    data = random.normal(size=(ITEMS, 6)), random.normal(size=(contents, 4))[np.arange(ITEMS) % contents]
    with raises_usage_error(code, contents, ITEMS):
        contraport.audit(data=data, method="crossfit", folds=26, epochs=1, progress=False)


def test_rejects_data_without_wrong_combinations() -> None:
    random = np.random.default_rng(0)
    first, second = np.indices((10, 10)).reshape(2, -1)
    data = (random.normal(size=(10, 4))[first], random.normal(size=(10, 4))[second])
    with raises_usage_error("data.too_few_mismatches", 50, 0):
        contraport.audit(data=data, method="frozen")


def test_note_on_a_wide_interval() -> None:
    """An interval from 20 % to 80 % gets a note, one from 40 % to 60 % does not."""
    scores, none = np.arange(4.0), np.full(4, -1)
    args = ("toy", "frozen", "cosine", scores, np.array([0.0, 0.5]), 0.5)
    (note,) = Audit(*args, (0.2, 0.8), none, scores).notes
    assert re.findall(r"\d+%", note) == ["20%", "80%"]
    assert Audit(*args, (0.4, 0.6), none, scores).notes == ()


def test_rejects_a_table_of_one_view_and_suggests_two(tmp_path: Path) -> None:
    path = tmp_path / "sensors.csv"
    path.write_text("ear_0,ear_1,eye_0,eye_1\n" + "1,2,3,4\n" * 60)
    with raises_usage_error("data.views", "sensors.csv", 4, "['ear_*', 'eye_*']") as caught:
        contraport.audit(data=path)
    assert caught.value.suggested_options == {"columns": {"views": ["ear_*", "eye_*"]}}


UNAVAILABLE = "mps" if torch.cuda.is_available() else "cuda"
TWO_EQUAL_VIEWS = {"ear": np.ones((60, 2)), "eye": np.ones((60, 2))}


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        ({"data": None}, "data.missing", []),
        ({"data": (np.ones((49, 2)), np.ones((49, 2)))}, "data.too_few_pairs", [50, 49]),
        ({"data": np.ones((60, 2))}, "data.views", ["arrays", 1]),
        ({"data": "digits"}, "data.views", ["digits", 1]),
        ({"data": (np.ones((60, 2)),) * 3, "given_views": (0, 3)}, "given_views.unknown", [3]),
        ({"data": TWO_EQUAL_VIEWS, "given_views": ("ear", "ey")}, "given_views.unknown", ["'eye'"]),
        ({"data": TWO_EQUAL_VIEWS, "given_views": ("ear", 0)}, "given_views.same", ["ear", 0]),
        ({"given_views": (1, 1)}, "given_views.invalid", [(1, 1)]),
        ({"method": "offline"}, "method.unknown", ["'online'"]),
        (
            {"method": "frozen", "data": (np.ones((60, 2)), np.arange(180.0).reshape(60, 3))},
            "data.constant_view",
            ["view0"],
        ),
        (
            {"method": "frozen", "data": tuple(np.random.default_rng(1).normal(size=(2, 60, 3)))},
            "data.too_few_trusted",
            [60],
        ),
        ({"statistic": "cosine"}, "statistic.conflict", ["'cosine'", "combined"]),
        ({"resume": True}, "out.missing", []),
        ({"folds": 4}, "folds.no_effect", ["online", 4]),
        ({"method": "frozen", "encoder": "mlp"}, "encoder.no_effect", ["frozen", "'mlp'"]),
        ({"method": "crossfit", "device": UNAVAILABLE}, "device.unavailable", [UNAVAILABLE]),
        ({"method": "crossfit", "folds": 201, "epochs": 1}, "folds.too_many", [200, 201]),
        ({"repair": True}, "repair.missing_out", []),
        ({"out": __file__}, "out.exists", [__file__]),
        ({"out": "nowhere", "resume": True}, "out.not_found", ["nowhere"]),
    ],
)
def test_rejects_invalid_options_in_one_line(
    views: tuple[np.ndarray, np.ndarray], options: dict[str, Any], code: str, values: list[object]
) -> None:
    with raises_usage_error(code, *values) as caught:
        contraport.audit(**{"data": views, "progress": False, **options})
    assert "\n" not in str(caught.value)


def test_rejects_views_with_nan() -> None:
    with raises_usage_error("*not_finite", "data[0]", "NaN", "1 of 60 rows"):
        contraport.audit(data=(np.diag([np.nan] + [1.0] * 59), np.ones((60, 2))), progress=False)


def test_rejects_images_as_frozen_vectors() -> None:
    images = np.random.default_rng(0).random((60, 3, 8, 8)).astype(np.float32)
    with raises_usage_error("method.not_vectors", (3, 8, 8)):
        contraport.audit(data=(images, images[:, :, ::-1].copy()), method="frozen")


def test_rejects_the_arrays_of_an_unfinished_training() -> None:
    with raises_usage_error("run.invalid"):
        build_online_audit("x", {"scores": np.ones(3)})


def test_pairs_keep_their_rows_and_names(
    views: tuple[np.ndarray, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = np.concatenate(views, axis=1).tolist()
    lines = ["id,split," + ",".join([f"view0.{i}" for i in range(6)] + [f"view1.{i}" for i in range(9)])]
    for row, cells in enumerate(numbers):
        text = ",".join(map(str, cells))
        lines += [f'"{row:04d}, a",test,{text}'] * (row % 50 == 0) + [f'"{row:04d}, b",train,{text}']
    data = tmp_path / "data.csv"
    data.write_text("\n".join(lines))
    result = contraport.audit(data=data, method="frozen", out=tmp_path / "audit")
    rows = list(csv.DictReader((tmp_path / "audit" / "pairs.csv").open()))
    names = [line.split('"')[1] for line in lines[1:]]
    assert [row["key"] for row in rows] == [names[int(row["row"])] for row in rows]
    assert [row["key"] for row in rows] == [f"{row:04d}, b" for row in range(ITEMS)]
    assert '"row": ' in (tmp_path / "audit" / "audit.html").read_text()
    print_audit(result)
    worst = f"{int(result.flagged(count=1)[0]):04d}, b"
    assert worst in capsys.readouterr().out
    assert f">{worst}<" in result._repr_html_()
    assert result._repr_html_().count("<tr>") == 1 + 10 + len(result.notes)


@pytest.mark.parametrize("views", [(), (1, 0)])
def test_rejects_streams(views: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    pairs = [(random.normal(size=4).astype(np.float32), random.normal(size=3).astype(np.float32)) for _ in range(60)]
    stream = from_stream(pairs, name="pairs")
    with raises_usage_error("data.*", "stream"):
        contraport.audit(data=stream, method="frozen", given_views=views)


def test_names_are_escaped_for_spreadsheets_and_the_console(
    views: tuple[np.ndarray, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["=1+1", "+x", "-x", "@x", "-2", "[/x]1", "[red]y"]
    result = replace(
        contraport.audit(data=views, method="frozen"), keys=[f"{names[row % len(names)]}" for row in range(ITEMS)]
    )
    result.save(tmp_path)
    rows = list(csv.DictReader((tmp_path / "pairs.csv").open(newline="")))
    written = ["'=1+1", "'+x", "'-x", "'@x", "-2", "[/x]1", "[red]y"]
    assert [row["key"] for row in rows] == [written[row % len(names)] for row in range(ITEMS)]
    assert [float(row["score"]) for row in rows] == pytest.approx(result.scores.tolist(), rel=1e-4)
    assert min(float(row["score"]) for row in rows) < 0
    print_audit(result)
    shown = capsys.readouterr().out
    assert all(result.keys[pair] in shown for pair in result.flagged(count=10))
    assert shown.startswith(result.headline)


def test_json_has_the_summary_and_what_is_flagged(frozen: Audit) -> None:
    printed = to_json_value(frozen)
    assert printed["flagged_pairs"] == frozen.flagged().tolist()
    assert np.allclose(printed["fdr"], frozen.pair_fdrs)
    assert {name: printed[name] for name in frozen.json_summary()} == frozen.json_summary()
    assert (printed["is_rate_reliable"], printed["flagged"]) == (True, len(frozen.flagged()))
    assert printed["scores"] == frozen.scores.tolist()
    assert (printed["data_name"], printed["statistic_name"]) == (frozen.data_name, frozen.statistic_name)


def test_advice_depends_on_the_noise_rate(views: tuple[np.ndarray, np.ndarray]) -> None:
    result = contraport.audit(data=views, method="frozen")
    assert result.is_rate_reliable
    assert f"{len(result.flagged()):,}" in result.advice
    assert "drop=True" in result.advice
    cleaned = replace(result, clean_files=(Path("a.csv"), Path("b.csv"))).advice
    assert "a.csv or b.csv" in cleaned
    assert "drop" not in cleaned
    assert "drop" not in replace(result, noise_rate=0.0, noise_interval=(0.0, 0.01)).advice
    unknown = replace(result, scores=result.known_mismatch_scores[np.arange(ITEMS) % len(result.known_mismatch_scores)])
    assert not unknown.is_rate_reliable
    assert "drop" not in unknown.advice


@pytest.mark.parametrize(
    ("method", "resume"),
    [("crossfit", False), ("crossfit", True), ("frozen", False), ("online", False), ("online", True)],
)
def test_locks_the_output_folder(
    views: tuple[np.ndarray, np.ndarray], tmp_path: Path, method: str, resume: bool
) -> None:
    out = tmp_path / "audit"
    with lock_folder(out, "audit"):
        if resume:
            (out / "audit_options.json").write_text('{"options": {}}')
        before = sorted(out.rglob("*"))
        with raises_usage_error("out.in_use", "contraport audit", os.getpid()):
            contraport.audit(data=views, method=method, out=out, resume=resume, progress=False)
        assert sorted(out.rglob("*")) == before
    assert out.exists() == resume  # no empty folder is left


def test_stale_lock_does_not_count_as_content(views: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    out = tmp_path / "audit"
    out.mkdir()
    (out / "lock.json").write_text(json.dumps({**locks._build_process_record(), "pid": 2**22 + 1}))
    (out / f".pairs-{'0' * 32}.csv").write_text("a write that was killed")
    contraport.audit(data=views, method="frozen", out=out)
    assert sorted(path.name for path in out.iterdir()) == [
        "audit.html",
        "audit.json",
        "audit_options.json",
        "pairs.csv",
    ]


@pytest.mark.parametrize("method", ["online", "crossfit", "frozen"])
def test_resume_uses_the_recorded_options(
    views: tuple[np.ndarray, np.ndarray], tmp_path: Path, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    np.savez(tmp_path / "pairs.npz", view0=views[0], view1=views[1])
    training = {**QUICK, "epochs": 2}
    options = {"online": training, "crossfit": {"folds": 2, "rounds": 1, **training}, "frozen": {}}[method] | {
        "seed": 3
    }
    out = tmp_path / "audit"
    contraport.audit(data=tmp_path / "pairs.npz", method=method, out=out, **options)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    recorded = json.loads(before.pop("audit_options.json"))
    with caplog.at_level("INFO", "contraport.training"):
        result = contraport.audit(out=out, resume=True, drop=True, progress=False)
    assert ("finished training run of 2 epochs is used" in caplog.text) == (method == "online")
    assert "already has" not in caplog.text
    assert result.clean_files == (out / "dropped.npz",)
    recorded["options"]["drop"] = True
    assert json.loads((out / "audit_options.json").read_text()) == recorded
    assert before.keys() >= {"pairs.csv", "audit.html"}
    for name, content in before.items():
        assert name == "judgements.npz" or (out / name).read_bytes() == content  # zip archives contain time stamps
    for change in ({"epochs": 3}, {"method": "crossfit" if method == "online" else "online"}, {"seed": 0}):
        with raises_usage_error(f"{next(iter(change))}.changed", out):
            contraport.audit(out=out, resume=True, progress=False, **change)
    np.savez(tmp_path / "pairs.npz", view0=views[0][::-1], view1=views[1])
    with raises_usage_error("data.changed", out):
        contraport.audit(out=out, resume=True, progress=False)
    assert all(name == "judgements.npz" or (out / name).read_bytes() == before[name] for name in before)


def test_resume_writes_the_requested_clean_data(
    views: tuple[np.ndarray, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "pairs.npz", view0=views[0], view1=views[1])
    requested: dict[str, Any] = {"method": "frozen", "drop": True, "weigh": True, "progress": False}
    with monkeypatch.context() as patch:
        # The function and its module have the same name.
        patch.setattr(
            import_module("contraport.auditing.audit"), "write_clean_data", Mock(side_effect=KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            contraport.audit(data=tmp_path / "pairs.npz", out=tmp_path / "audit", **requested)
    resumed = contraport.audit(out=tmp_path / "audit", resume=True, progress=False)
    assert [file.name for file in resumed.clean_files] == ["dropped.npz", "weighed.npz"]
    fewer = contraport.audit(out=tmp_path / "audit", resume=True, weigh=False, progress=False)
    assert [file.name for file in fewer.clean_files] == ["dropped.npz"]


def test_resume_requires_objects_again(views: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    contraport.audit(data=views, method="frozen", out=tmp_path / "audit")
    with raises_usage_error("data.object_required", "audit_options.json"):
        contraport.audit(out=tmp_path / "audit", resume=True)


def test_resume_runs_no_untrusted_code(tmp_path: Path) -> None:
    record = {"options": {"data": "digits", "encoder": ["their_nets:Net"]}}
    (tmp_path / "audit_options.json").write_text(json.dumps(record))
    with raises_usage_error("encoder.untrusted", "their_nets:Net", "encoder"):
        contraport.audit(out=tmp_path, resume=True)


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("name", ["audit.json", "audit_options.json"])
def test_resume_rejects_a_folder_of_another_program(tmp_path: Path, name: str, number: int) -> None:
    views = np.random.default_rng(0).normal(size=(number, 60, 3))
    for file in (name, "pairs.csv", "views.csv"):
        (tmp_path / file).write_text("[1]")
    with raises_usage_error("out.not_found", tmp_path):
        contraport.audit(data=tuple(views), out=tmp_path, resume=True, **QUICK)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        (name, "pairs.csv", "views.csv"), "[1]"
    )


def test_error_of_a_corrupt_checkpoint_names_options_of_audit(
    views: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    options = {"data": views, "out": tmp_path / "audit", **QUICK, "epochs": 2}
    result, training = contraport.audit(**options), tmp_path / "audit" / "training"
    (training / "checkpoints" / "last.ckpt").write_bytes(b"junk")
    with raises_usage_error("run.corrupt", f"delete {training}", "resume=True") as caught:
        contraport.audit(**options, resume=True)
    assert "overwrite" not in str(caught.value)
    shutil.rmtree(training)
    assert (contraport.audit(**options, resume=True).scores == result.scores).all()


@pytest.mark.parametrize("method", ["online", "crossfit"])
def test_encoders_by_view(views: tuple[np.ndarray, np.ndarray], method: str) -> None:
    three = {"ear": views[0], "eye": views[1], "hand": views[0] @ np.eye(6, 4)}
    options = {"data": three, "method": method, **QUICK, "epochs": 1}
    options |= {"folds": 2, "rounds": 1} if method == "crossfit" else {}
    result = contraport.audit(encoder={"hand": torch.nn.Linear(4, 256), "eye": "mlp"}, **options)
    default = contraport.audit(**options)
    is_equal = {
        pair: np.array_equal(result.pair_audits[pair].scores, audit.scores)
        for pair, audit in default.pair_audits.items()
    }
    assert is_equal == {("ear", "eye"): True, ("ear", "hand"): False, ("eye", "hand"): False}
    with raises_usage_error("encoder.unknown", "'hnd'", "'hand'"):
        contraport.audit(encoder={"hnd": "mlp"}, **options)
    with raises_usage_error("encoder.shape", 3, 2):
        contraport.audit(encoder=["mlp", "mlp"], **options)


@pytest.mark.parametrize(("objective", "temperature"), [("info-nce", 0.2), ("gca-uot", None), ("barlow-twins", None)])
def test_trains_with_any_objective_and_logs_no_flags(
    views: tuple[np.ndarray, np.ndarray], tmp_path: Path, objective: str, temperature: float | None
) -> None:
    few = views[0][:60], views[1][:60]
    contraport.audit(data=few, objective=objective, epochs=1, out=tmp_path, progress=False)
    assert Run(tmp_path / "training").config()["temperature"] == temperature
    assert "--" not in (tmp_path / "training" / "train.log").read_text()
