"""What `--target` says is what the objective is told of each batch."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from contraport import Domains, Gibbs, Labels, Neighbors, Pairs, SoftNeighbors, nt_xent
from contraport.data import Dataset, from_arrays
from contraport.errors import UsageError
from contraport.objectives import SimilarityMatrix
from contraport.training.step.target_spec import build_target, constant_target

ITEMS = 12
BATCH = [7, 0, 3, 11, 4]


@pytest.fixture
def data() -> Dataset:
    random = np.random.default_rng(0)
    return from_arrays(random.normal(size=(ITEMS, 4)), labels=np.arange(ITEMS) % 3, domains=np.arange(ITEMS) % 2)


def plan_of(target: Any, dataset: Dataset, at: list[int] = BATCH) -> torch.Tensor:
    """What the target wants of a batch, in the joint layout."""
    batch = dataset.__getitems__(at)
    z0, z1 = torch.randn(2, len(at), 3)
    return nt_xent().target_plan(z0, z1, labels=batch.labels, domains=batch.domains, target=target)


def wanted(text: str, dataset: Dataset, at: list[int] = BATCH) -> torch.Tensor:
    return plan_of(build_target(text, dataset)(dataset.__getitems__(at)), dataset, at)


def saved(path: Path, values: Any) -> str:
    np.save(path, values)
    return str(path)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("pairs", Pairs()),
        ("labels", Labels()),
        ("domains", Domains()),
        ("domains:alpha=0.1,beta=0", Domains(alpha=0.1)),
        ("domains:beta=2", Domains(beta=2)),
    ],
)
def test_rules_hold_for_any_items(text: str, rule: Any, data: Dataset) -> None:
    assert build_target(text, data)(data[0]) == constant_target(text) == rule


def test_what_is_of_the_training_items_is_no_constant() -> None:
    assert constant_target("soft:missing.npy") is constant_target("neighbors") is None


def test_features_of_a_file_are_those_of_the_items(data: Dataset, tmp_path: Path) -> None:
    features = np.random.default_rng(1).normal(size=(ITEMS, 3)).astype(np.float32)
    file, own = saved(tmp_path / "f.npy", features), torch.from_numpy(features)[BATCH]
    assert torch.equal(wanted(f"soft:{file}", data), plan_of(SoftNeighbors(own), data))
    cold = plan_of(SoftNeighbors(own, Gibbs("cosine", 0.5)), data)
    assert torch.equal(wanted(f"soft:{file},temperature=0.5", data), cold)
    assert torch.equal(wanted(f"neighbors:k=2,features={file}", data), plan_of(Neighbors(own, 2), data))
    assert torch.equal(wanted(f"neighbors:features={file}", data), plan_of(Neighbors(own, 5), data))


def test_one_feature_is_enough_and_none_is_not(data: Dataset, tmp_path: Path) -> None:
    one = np.arange(ITEMS, dtype=np.float32)[:, None]
    found = wanted(f"neighbors:k=2,features={saved(tmp_path / 'one.npy', one)}", data)
    assert torch.equal(found, plan_of(Neighbors(torch.from_numpy(one)[BATCH], 2), data))
    with pytest.raises(UsageError, match=r"none.npy: expected numbers \(items, k\)"):
        wanted(f"soft:{saved(tmp_path / 'none.npy', one[:, :0])}", data)


def test_features_that_embed_wrote_are_those_of_its_training_items(data: Dataset, tmp_path: Path) -> None:
    features = np.random.default_rng(1).normal(size=(ITEMS + 5, 3)).astype(np.float32)
    splits = np.array(["test"] * 5 + ["train"] * ITEMS)
    np.savez(tmp_path / "f.npz", features=features, splits=splits)
    found = wanted(f"soft:{tmp_path}/f.npz", data)
    assert torch.equal(found, plan_of(SoftNeighbors(torch.from_numpy(features[5:])[BATCH]), data))


def test_neighbours_without_a_file_are_by_the_first_view_as_it_is_given() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (ITEMS, 1, 3, 3), dtype=np.uint8)
    dataset = from_arrays((pixels, np.zeros((ITEMS, 2))))
    near = torch.from_numpy(pixels).flatten(1)[BATCH].float() / 255
    assert torch.equal(wanted("neighbors:k=2", dataset), plan_of(Neighbors(near, 2), dataset))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_matrix_is_between_the_items(kind: str, data: Dataset, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    matrix = random.random((ITEMS, ITEMS)) * (random.random((ITEMS, ITEMS)) < 0.5)
    file = tmp_path / ("m.npy" if kind == "dense" else "m.npz")
    if kind == "dense":
        np.save(file, matrix)
    else:
        sparse.save_npz(file, sparse.csr_array(matrix))
    found = wanted(f"matrix:{file}", data)
    own = np.tile(matrix[np.ix_(BATCH, BATCH)], (2, 2))
    np.fill_diagonal(own, 0)
    total = own.sum(1, keepdims=True)
    assert np.allclose(found.numpy(), own / np.where(total > 0, total, 1) / (2 * len(BATCH)), atol=1e-7)


def test_what_a_training_keeps_can_be_pickled(data: Dataset, tmp_path: Path) -> None:
    file = saved(tmp_path / "f.npy", np.eye(ITEMS))
    for text in ("labels", f"soft:{file}", "neighbors", f"matrix:{file}"):
        again = pickle.loads(pickle.dumps(build_target(text, data)))
        assert torch.equal(plan_of(again(data.__getitems__(BATCH)), data), wanted(text, data))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label", "target: unknown name 'label'; did you mean 'labels'"),
        ("", "target: unknown name ''"),
        ("labels:2", "target: expected labels, which has no settings, got 'labels:2'"),
        ("domains:gamma=1", "target: setting of domains: unknown name 'gamma'"),
        ("domains:alpha=-1", "target: alpha: expected a finite number, 0 or more, got -1"),
        ("domains:alpha=much", "target: alpha: expected a finite number"),
        ("domains:beta=nan", "target: beta: expected a finite number"),
        ("neighbors:k=0", "target: k: expected a whole number from 1 on, got 0"),
        ("neighbors:k=2.5", "target: k: expected a whole number"),
        ("neighbors:5", "target: expected neighbors:setting=value"),
        ("soft", "target: expected soft:FILE, got 'soft'"),
        ("soft:temperature=1", "target: expected soft:FILE"),
        ("soft:FOLDER/none.npy", r"target: file: .*none.npy cannot be read as a file: .*No such file"),
        ("soft:FOLDER", "target: file: .* is a folder, no file"),
        ("soft:/dev/zero", "target: file: /dev/zero is no regular file"),
        (
            "soft:FOLDER/few.npy",
            r"few.npy: expected numbers \(items, k\), a row for each of the 12 training",
        ),
        ("soft:FOLDER/flat.npy", r"flat.npy: expected numbers \(items, k\)"),
        ("soft:FOLDER/nan.npy", "nan.npy: expected finite numbers, see row 3"),
        ("soft:FOLDER/text.npy", r"text.npy: expected numbers .* got <U1"),
        ("soft:FOLDER/junk.npy", "target: .*junk.npy cannot be read as an .npy array"),
        ("soft:FOLDER/objects.npy", "target: .*objects.npy cannot be read .* pickled objects, which are never read"),
        ("soft:FOLDER/few.npy,temperature=0", "target: temperature: expected a positive finite number, got 0"),
        ("soft:FOLDER/matrix.npz", "expected the features and splits of contraport embed, got"),
        ("neighbors:features=FOLDER/few.npy", "expected numbers"),
        ("matrix:FOLDER/few.npy", r"few.npy: expected numbers between the 12 training items, \(12, 12\), got float64"),
        ("matrix:FOLDER/negative.npy", "negative.npy: expected nonnegative finite numbers, got -1 to"),
        ("matrix:FOLDER/nothing.npy", "nothing.npy: expected numbers that are not all zero"),
        ("matrix:FOLDER/infinite.npz", "infinite.npz: expected nonnegative finite numbers"),
        ("matrix:FOLDER/junk.npy", "junk.npy cannot be read as an .npy array, or a sparse .npz of scipy"),
        ("matrix:FOLDER/junk.npz", "junk.npz cannot be read"),
        ("matrix:FOLDER/corrupt.npz", "corrupt.npz cannot be read"),
        ("matrix:FOLDER/blocks.npz", "blocks.npz cannot be read .* expected the form csr, csc or coo, got bsr"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(text: str, message: str, data: Dataset, tmp_path: Path) -> None:
    np.save(tmp_path / "few.npy", np.zeros((ITEMS - 1, 3)))
    np.save(tmp_path / "flat.npy", np.zeros(ITEMS))
    np.save(tmp_path / "nan.npy", np.where(np.arange(ITEMS)[:, None] == 3, np.nan, np.ones((ITEMS, 2))))
    np.save(tmp_path / "text.npy", np.full((ITEMS, 2), "a"))
    np.save(tmp_path / "objects.npy", np.full((ITEMS, 2), None), allow_pickle=True)
    np.save(tmp_path / "negative.npy", -np.eye(ITEMS))
    np.save(tmp_path / "nothing.npy", np.zeros((ITEMS, ITEMS)))
    for name in ("junk.npy", "junk.npz"):
        (tmp_path / name).write_bytes(b"junk")
    sparse.save_npz(tmp_path / "matrix.npz", sparse.csr_array(np.eye(ITEMS)))
    sparse.save_npz(tmp_path / "infinite.npz", sparse.csr_array(np.diag(np.full(ITEMS, np.inf))))
    corrupt = {"format": b"csr", "shape": [ITEMS, ITEMS], "data": np.ones(4), "indices": np.full(4, 99)}
    np.savez(tmp_path / "corrupt.npz", indptr=np.r_[0, np.full(ITEMS, 4)], **corrupt)
    sparse.save_npz(tmp_path / "blocks.npz", sparse.bsr_array(np.eye(ITEMS)))
    with pytest.raises(UsageError, match=message) as told:
        build_target(text.replace("FOLDER", str(tmp_path)), data)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("text", ["labels", "domains"])
def test_data_without_what_is_asked_for_are_refused(text: str) -> None:
    plain = from_arrays(np.zeros((ITEMS, 2)), name="plain")
    with pytest.raises(UsageError, match=f"target: {text} expects data with {text}; 'plain' has none"):
        build_target(text, plain)


def test_a_large_matrix_is_not_read_before_it_is_used(data: Dataset, tmp_path: Path) -> None:
    rule = build_target(f"matrix:{saved(tmp_path / 'm.npy', np.eye(ITEMS))}", data)(data[0])
    assert isinstance(rule, SimilarityMatrix)
    assert rule.matrix.dtype == torch.float64, "as it is in the file, of which it is a map"
