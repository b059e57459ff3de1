"""Audits of three or more views, which identify the mismatched view of an item."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from tests.errors import raises_usage_error

import contraport
from contraport.auditing import ViewAudit
from contraport.auditing.pairs.right_view_log_odds import estimate_view_noise_rates
from contraport.cli.commands import to_json_value
from contraport.data import from_arrays, load

ITEMS, WRONG = 300, 60


@pytest.fixture(scope="module")
def views() -> dict[str, np.ndarray]:
    """Four views of one hidden vector; the first 60 items have another item's view "b"."""
    random = np.random.default_rng(0)
    hidden = random.normal(size=(ITEMS, 8))
    arrays = {name: hidden @ random.normal(size=(8, 12)) + 0.3 * random.normal(size=(ITEMS, 12)) for name in "abcd"}
    arrays["b"][:WRONG] = np.roll(arrays["b"][:WRONG], 1, axis=0)
    return arrays


@pytest.fixture(scope="module")
def view_audit(views: dict[str, np.ndarray]) -> ViewAudit:
    result = contraport.audit(data=views, method="frozen")
    assert isinstance(result, ViewAudit)
    return result


def test_identifies_the_mismatched_view(view_audit: ViewAudit) -> None:
    is_wrong = np.zeros((ITEMS, 4), dtype=bool)
    is_wrong[:WRONG, 1] = True
    assert view_audit.view_names == ("a", "b", "c", "d")
    assert roc_auc_score(is_wrong.ravel(), -view_audit.scores.ravel()) > 0.97
    assert (view_audit.scores[:WRONG].argmin(axis=1) == 1).mean() > 0.9


def test_estimates_the_noise_rate_of_each_view(view_audit: ViewAudit) -> None:
    assert view_audit.noise_rates[1] == pytest.approx(0.2, abs=0.06)
    assert view_audit.noise_rates[[0, 2, 3]].max() < 0.05


def test_flags_items_with_their_views(view_audit: ViewAudit) -> None:
    flagged = view_audit.flagged(count=np.int64(WRONG))
    assert ((flagged[:, 0] < WRONG) & (flagged[:, 1] == 1)).mean() > 0.9
    assert view_audit.to_columns()["flagged"][flagged[0, 0]] == "b"


def test_json_names_flagged_views_and_pairs(view_audit: ViewAudit) -> None:
    printed = to_json_value(view_audit)
    flagged = [{"item": item, "view": "abcd"[view]} for item, view in view_audit.flagged().tolist()]
    assert (printed["flagged"], printed["flagged_views"]) == (len(flagged), flagged)
    assert printed["pairs"] == view_audit.json_summary()["pairs"]
    assert list(printed["pair_audits"]) == list(printed["pairs"])
    assert printed["pair_audits"]["a and c"]["flagged_pairs"] == view_audit.pair_audits["a", "c"].flagged().tolist()
    assert printed["noise_rates"] == view_audit.noise_rates.tolist()


def test_two_selected_views_are_audited_as_a_pair(views: dict[str, np.ndarray], view_audit: ViewAudit) -> None:
    pair = contraport.audit(data=views, given_views=("a", "c"), method="frozen")
    assert np.array_equal(pair.scores, view_audit.pair_audits["a", "c"].scores)


def test_writes_a_table_and_the_data_without_flagged_views(views: dict[str, np.ndarray], tmp_path: Path) -> None:
    out = tmp_path / "audit"
    result = contraport.audit(data=views, method="frozen", out=out, drop=True)
    rows = list(csv.DictReader((out / "views.csv").open()))
    assert len(rows) == ITEMS
    assert float(rows[5]["score_b"]) == pytest.approx(result.scores[5, 1], rel=1e-4)
    assert json.loads((out / "audit.json").read_text())["noise_rates"]["b"] == result.noise_rates[1]
    assert (out / "a-c" / "audit.html").exists()
    assert str(out / "dropped.npz") in result.advice
    data = load(out / "dropped.npz", test_fraction=0)
    assert data.present is not None
    missing = (~data.present).nonzero().tolist()
    assert sorted(missing) == sorted(result.flagged().tolist())


def test_npz_without_flagged_views_keeps_its_other_arrays(views: dict[str, np.ndarray], tmp_path: Path) -> None:
    train = views | {"d": np.round(1_000 * views["d"]).astype(np.int32), "weights": np.arange(1.0, ITEMS + 1)}
    test = {f"{name}_test": array[:7] for name, array in train.items()}
    np.savez(tmp_path / "views.npz", **train, **test)
    out = tmp_path / "audit"
    result = contraport.audit(data=tmp_path / "views.npz", method="frozen", out=out, drop=True)
    flagged = np.zeros((ITEMS, 4), dtype=bool)
    flagged[tuple(result.flagged().T)] = True
    with np.load(out / "dropped.npz") as dropped:
        assert {*dropped} == {*train, *test}
        for name, array in (test | {"weights": train["weights"]}).items():
            np.testing.assert_array_equal(dropped[name], array)
        for view, name in enumerate("abcd"):
            np.testing.assert_array_equal(np.isnan(dropped[name]).all(axis=1), flagged[:, view])
            np.testing.assert_array_equal(dropped[name][~flagged[:, view]], train[name][~flagged[:, view]])
    assert len(load(out / "dropped.npz", "test")) == 7


def test_data_without_flagged_views_keep_weights_and_names(view_audit: ViewAudit, tmp_path: Path) -> None:
    numbers = np.arange(ITEMS, dtype=np.float32)
    kinds = np.where(numbers < 100, "cat", "dog")
    views = {name: np.zeros((ITEMS, 2)) for name in "abcd"}
    dataset = from_arrays(views, kinds, kinds, weights=numbers + 1, numbers=numbers)
    data = load(view_audit.write_npz_without_flagged_views(dataset, tmp_path), test_fraction=0)
    assert (data.class_names, data.domain_names) == (("cat", "dog"), ("cat", "dog"))
    assert data.weights is not None
    assert data.weights.tolist() == (numbers + 1).tolist()
    assert data.regression_targets is not None
    assert data.regression_targets.tolist() == numbers.tolist()


@pytest.mark.parametrize("count", [-1, 4 * ITEMS + 1, 1.5, "3"])
def test_rejects_an_invalid_count_of_flagged_views(view_audit: ViewAudit, count: Any) -> None:
    with raises_usage_error("count.invalid", str(4 * ITEMS)):
        view_audit.flagged(count=count)


def test_view_noise_rates_reproduce_those_of_pairs() -> None:
    rates = {"a": 0.1, "b": 0.0, "c": 0.3, "d": 0.05}
    pairs = {(v, w): 1 - (1 - rates[v]) * (1 - rates[w]) for v in rates for w in rates if v < w}
    np.testing.assert_allclose(estimate_view_noise_rates(list(rates), pairs), list(rates.values()), atol=1e-9)


@pytest.fixture(scope="module")
def partly_unknown(views: dict[str, np.ndarray]) -> ViewAudit:
    """Audit of four views where "d" shares nothing with the others, and only one round is scored."""
    random = np.random.default_rng(3)
    result = contraport.audit(data=views | {"d": random.normal(size=(ITEMS, 4))}, method="frozen", rounds=1)
    assert isinstance(result, ViewAudit)
    return result


def test_gives_no_share_of_a_view_without_a_reliable_pair(partly_unknown: ViewAudit, tmp_path: Path) -> None:
    assert partly_unknown.views_of_unknown_rate == ("d",)
    assert np.isnan(partly_unknown.noise_rates[3])
    assert partly_unknown.noise_rates[1] == pytest.approx(0.2, abs=0.06)
    assert partly_unknown.noise_rates[[0, 2]].max() < 0.05
    assert 3 not in partly_unknown.flagged()[:, 1]
    assert len(partly_unknown.flagged(count=4 * ITEMS)) == 4 * ITEMS
    assert "nan" not in f"{partly_unknown!r}{partly_unknown.worst_table_title}"
    partly_unknown.save(tmp_path)
    assert json.loads((tmp_path / "audit.json").read_text())["noise_rates"]["d"] is None


def test_gives_no_share_of_a_view_whose_pairs_nearly_all_look_wrong(
    views: dict[str, np.ndarray], view_audit: ViewAudit
) -> None:
    """Such pairs share too little more often than they are wrong."""
    audits = {
        pair: replace(one, noise_rate=1.0, noise_interval=(0.99, 1.0)) if "d" in pair else one
        for pair, one in view_audit.pair_audits.items()
    }
    assert ViewAudit.from_pair_audits(from_arrays(views), audits).views_of_unknown_rate == ("d",)


def test_flags_no_view_if_one_of_three_shares_nothing(views: dict[str, np.ndarray], partly_unknown: ViewAudit) -> None:
    """The share of the only reliable pair does not determine which of its two views is wrong."""
    names = ("a", "b", "d")
    audits = {pair: one for pair, one in partly_unknown.pair_audits.items() if {*pair} <= {*names}}
    result = ViewAudit.from_pair_audits(from_arrays({name: views[name] for name in names}), audits)
    assert result.views_of_unknown_rate == names
    assert len(result.flagged()) == 0
    assert len(result.notes) == sum(len(one.notes) for one in audits.values()) + 1


def test_refusal_of_uninformative_views_names_them(views: dict[str, np.ndarray]) -> None:
    noise = np.random.default_rng(3).normal(size=(ITEMS, 4))
    with raises_usage_error("data.too_few_trusted", "a and d", "given_views"):
        contraport.audit(data=views | {"d": noise}, method="frozen")


def test_advice_recommends_to_drop_flagged_views(view_audit: ViewAudit) -> None:
    assert f"{len(view_audit.flagged()):,} flagged views" in view_audit.advice
    assert "drop=True" in view_audit.advice
    assert "drop" not in replace(view_audit, scores=np.ones((ITEMS, 4))).advice


def test_rejects_repair_of_several_views(views: dict[str, np.ndarray], tmp_path: Path) -> None:
    with raises_usage_error("repair.views"):
        contraport.audit(data=views, method="frozen", out=tmp_path / "audit", repair=True)


def test_rejects_drop_of_images_before_the_audit(views: dict[str, np.ndarray], tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, size=(ITEMS, 8, 8), dtype=np.uint8)
    with raises_usage_error("drop.not_numeric", "image"):
        contraport.audit(data={**views, "photo": images}, out=tmp_path / "out", drop=True, epochs=1)
    assert list(tmp_path.iterdir()) == []


def test_resumes_only_with_the_same_views(views: dict[str, np.ndarray], tmp_path: Path) -> None:
    out, options = tmp_path / "audit", {"epochs": 1, "progress": False}
    contraport.audit(data=views, given_views=("a", "b", "c"), out=out, **options)
    with raises_usage_error("given_views.changed", ["a", "b", "c"], ["a", "b", "d"]):
        contraport.audit(data=views, given_views=("a", "b", "d"), out=out, resume=True, **options)
    assert contraport.audit(data=views, out=out, resume=True, **options).view_names == ("a", "b", "c")


def test_leaves_out_items_that_lack_a_view(views: dict[str, np.ndarray]) -> None:
    incomplete = {name: values.copy() for name, values in views.items()}
    incomplete["d"][3] = np.nan
    result = contraport.audit(data=incomplete, method="frozen")
    rest = contraport.audit(
        data={name: np.delete(values, 3, axis=0) for name, values in views.items()}, method="frozen"
    )
    assert result.source_rows.tolist() == np.delete(np.arange(ITEMS), 3).tolist()
    assert (result.scores == rest.scores).all()
    assert len(contraport.audit(data=incomplete, given_views=("a", "b"), method="frozen").scores) == ITEMS


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"data": {"d": np.ones((ITEMS, 3))}}, "data.constant_view"),
        ({"encoder": "nn"}, "encoder.unknown"),
        ({"data": {"d": np.random.default_rng(3).normal(size=(ITEMS, 4))}, "method": "frozen"}, "data.too_few_trusted"),
    ],
)
def test_rejected_audit_leaves_no_folder(
    views: dict[str, np.ndarray], tmp_path: Path, change: dict[str, Any], code: str
) -> None:
    with raises_usage_error(code):
        contraport.audit(**change | {"data": views | change.get("data", {})}, out=tmp_path / "new" / "audit")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "folders"),
    [
        (("right ear", "../eye", "/hand"), {"right-ear-eye", "right-ear-hand", "eye-hand"}),
        (("a", "A", "b"), {"0-1", "0-2", "1-2"}),
        (("a" * 200, "b", "c"), {"0-1", "0-2", "1-2"}),
    ],
)
def test_folders_of_pairs_are_valid_and_different(
    views: dict[str, np.ndarray], tmp_path: Path, names: tuple[str, ...], folders: set[str]
) -> None:
    data = dict(zip(names, views.values(), strict=False))
    view_audit = contraport.audit(data=data, method="frozen", out=tmp_path / "audit")
    assert view_audit.view_names == names
    assert {path.parent.name for path in tmp_path.rglob("pairs.csv")} == folders
    assert list(tmp_path.iterdir()) == [tmp_path / "audit"]
