"""Splits of data: stratified by class and domain, by test fraction, or given by the data."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from tests.errors import raises_usage_error

from contraport.data import from_arrays, load, load_split_or_all_items
from contraport.data.splits import draw_stratified_split, get_test_and_unused_masks, select_split_positions

CLASSES = np.repeat([0, 1, 2], [50, 31, 7])


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.2, 0.25, 1 / 3, 0.5, 0.9])
def test_held_out_share_of_each_class_is_exact_to_one_item(fraction: float) -> None:
    train, test = (draw_stratified_split(CLASSES, split, test_fraction=fraction) for split in ("train", "test"))
    assert sorted([*train, *test]) == list(range(len(CLASSES)))
    expected = fraction * np.bincount(CLASSES)
    assert (np.abs(np.bincount(CLASSES[test], minlength=3) - expected) <= 1).all()


def test_split_is_stratified_by_class_and_domain() -> None:
    labels, domains = np.repeat([0, 1, 0, 1], [20, 30, 40, 10]), np.repeat([0, 0, 1, 1], [20, 30, 40, 10])
    test = select_split_positions("test", 100, is_test=None, labels=labels, domains=domains, test_fraction=0.1)
    result = np.zeros((2, 2), dtype=int)
    np.add.at(result, (labels[test], domains[test]), 1)
    assert result.tolist() == [[2, 4], [3, 1]]
    train = select_split_positions("train", 100, is_test=None, labels=labels, domains=domains, test_fraction=0.1)
    assert sorted([*train, *test]) == list(range(100))


def test_validation_split_is_neither_train_nor_test() -> None:
    test, unused = get_test_and_unused_masks(np.array(["Train", "val", "test", "train", "VAL"]), "split")
    assert test is not None
    assert test.tolist() == [False, False, True, False, False]
    assert unused.tolist() == [False, True, False, False, True]
    test, unused = get_test_and_unused_masks(np.array(["train", "val"]), "split")
    assert test is not None
    assert (test.tolist(), unused.tolist()) == ([False, True], [False, False])


def test_log_has_the_number_of_rows_in_no_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "table.csv"
    rows = [f"{row},{row % 7},{split}" for row, split in enumerate(["train"] * 6 + ["test"] * 3 + ["val"] * 2)]
    path.write_text("\n".join(["a,b,split", *rows]))
    with caplog.at_level(logging.INFO):
        lengths = [len(load(path, split)) for split in ("train", "test")]
    assert lengths == [6, 3]
    unused = [record.args for record in caplog.records if "not used" in record.msg]
    assert unused == [(f"{path}: column 'split'", "2 rows", ["val"], "test")]


@pytest.fixture(params=[".npy", ".npz", ".csv"])
def unsplit_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    rows = np.random.default_rng(0).normal(size=(40, 3))
    path = tmp_path / f"data{request.param}"
    if path.suffix == ".npy":
        np.save(path, rows)
    elif path.suffix == ".npz":
        np.savez(path, x=rows)
    else:
        np.savetxt(path, rows, delimiter=",", header="a,b,c", comments="")
    return path


@pytest.mark.parametrize(("fraction", "held_out"), [(None, 8), (0.1, 4), (0.5, 20)])
def test_test_fraction_applies_to_unsplit_data(unsplit_file: Path, fraction: float | None, held_out: int) -> None:
    train, test = (load(unsplit_file, split, test_fraction=fraction) for split in ("train", "test"))
    assert (len(train), len(test)) == (40 - held_out, held_out)
    assert train.num_random_test_items == test.num_random_test_items == held_out
    assert train.with_store(train.store).num_random_test_items == held_out


def test_existing_split_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.ones((6, 2)), x_test=np.ones((3, 2)))
    assert load(path).num_random_test_items is None
    dataset = from_arrays(np.ones((6, 2)))
    for data in (path, "digits", dataset):
        with raises_usage_error("test_fraction.conflict", 0.1):
            load(data, test_fraction=0.1)


@pytest.mark.parametrize("fraction", [1, -0.5, 20, float("nan"), "half"])
def test_rejects_test_fractions_outside_0_to_1(unsplit_file: Path, fraction: object) -> None:
    with raises_usage_error("test_fraction.invalid", fraction):
        load(unsplit_file, test_fraction=fraction)  # type: ignore[arg-type]


def test_test_fraction_0_holds_out_no_items(unsplit_file: Path) -> None:
    assert len(load(unsplit_file, test_fraction=0)) == len(load(unsplit_file)) + len(load(unsplit_file, "test"))
    with raises_usage_error("data.no_test_split", "0"):
        load(unsplit_file, "test", test_fraction=0)


def test_unsplit_data_are_used_completely(unsplit_file: Path, tmp_path: Path) -> None:
    assert len(load_split_or_all_items(unsplit_file)) == len(load(unsplit_file)) + len(load(unsplit_file, "test"))
    assert load_split_or_all_items(unsplit_file).num_random_test_items == 0
    part = load(unsplit_file)
    assert load_split_or_all_items(part) is part
    own = tmp_path / "own.npz"
    np.savez(own, x=np.ones((6, 2)), x_test=np.ones((3, 2)))
    assert [len(load_split_or_all_items(own, split)) for split in ("train", "test")] == [6, 3]
