"""Target specifications: the target that the objective receives for a batch."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from tests.errors import raises_usage_error

from contraport import Domains, Gibbs, Labels, Neighbors, Pairs, SoftNeighbors, nt_xent
from contraport.data import Dataset, from_arrays
from contraport.feature_files import Features, write_features
from contraport.objectives import SimilarityMatrix
from contraport.training.step.target_parser import build_target_function, find_batch_independent_target

ITEMS = 12
BATCH = [7, 0, 3, 11, 4]


@pytest.fixture
def data() -> Dataset:
    random = np.random.default_rng(0)
    return from_arrays(random.normal(size=(ITEMS, 4)), labels=np.arange(ITEMS) % 3, domains=np.arange(ITEMS) % 2)


def compute_target_plan(target: Any, dataset: Dataset, at: list[int] = BATCH) -> torch.Tensor:
    """Compute the target plan of a batch in the joint layout."""
    batch = dataset.__getitems__(at)
    z0, z1 = torch.randn(2, len(at), 3)
    options = {"labels": batch.labels, "domains": batch.domains, "target": target}
    return nt_xent().target_plan(z0, z1, **nt_xent().without_unread_labels(options))


def compute_plan_of_spec(text: str, dataset: Dataset, at: list[int] = BATCH) -> torch.Tensor:
    return compute_target_plan(build_target_function(text, dataset)(dataset.__getitems__(at)), dataset, at)


def save_array(path: Path, values: Any) -> str:
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
def test_targets_by_rule_apply_to_any_items(text: str, rule: Any, data: Dataset) -> None:
    assert build_target_function(text, data)(data[0]) == find_batch_independent_target(text) == rule


def test_targets_of_training_items_depend_on_positions() -> None:
    assert find_batch_independent_target("soft:missing.npy") is find_batch_independent_target("neighbors") is None


def test_features_of_a_file_are_indexed_by_items(data: Dataset, tmp_path: Path) -> None:
    features = np.random.default_rng(1).normal(size=(ITEMS, 3)).astype(np.float32)
    file, rows_of_batch = save_array(tmp_path / "f.npy", features), torch.from_numpy(features)[BATCH]
    assert torch.equal(
        compute_plan_of_spec(f"soft:{file}", data), compute_target_plan(SoftNeighbors(rows_of_batch), data)
    )
    with_temperature = compute_target_plan(SoftNeighbors(rows_of_batch, Gibbs("cosine", 0.5)), data)
    assert torch.equal(compute_plan_of_spec(f"soft:{file},temperature=0.5", data), with_temperature)
    assert torch.equal(
        compute_plan_of_spec(f"neighbors:k=2,features={file}", data),
        compute_target_plan(Neighbors(rows_of_batch, 2), data),
    )
    assert torch.equal(
        compute_plan_of_spec(f"neighbors:features={file}", data), compute_target_plan(Neighbors(rows_of_batch, 5), data)
    )


def test_features_require_at_least_one_column(data: Dataset, tmp_path: Path) -> None:
    one = np.arange(ITEMS, dtype=np.float32)[:, None]
    result = compute_plan_of_spec(f"neighbors:k=2,features={save_array(tmp_path / 'one.npy', one)}", data)
    assert torch.equal(result, compute_target_plan(Neighbors(torch.from_numpy(one)[BATCH], 2), data))
    with raises_usage_error("target.shape", "none.npy"):
        compute_plan_of_spec(f"soft:{save_array(tmp_path / 'none.npy', one[:, :0])}", data)


def write_shuffled_features(path: Path, splits: list[str], rows: list[int]) -> np.ndarray:
    """Write features in the order of `rows`, and return those of the rows 0, 1, ..., for items of the split "train"."""
    features = np.random.default_rng(1).normal(size=(len(rows), 3)).astype(np.float32)
    write_features(path, Features(features, np.array(rows), np.array(splits)))
    train = [place for place, split in enumerate(splits) if split == "train"]
    return features[sorted(train, key=rows.__getitem__)]


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
def test_embedded_features_are_matched_by_row(data: Dataset, suffix: str, tmp_path: Path) -> None:
    shuffled = np.random.default_rng(2).permutation(ITEMS).tolist()
    file = tmp_path / f"f{suffix}"  # another split may have the same rows
    features = write_shuffled_features(file, ["test"] * 5 + ["train"] * ITEMS, [*range(5), *shuffled])
    result = compute_plan_of_spec(f"soft:{file}", data)
    assert torch.equal(result, compute_target_plan(SoftNeighbors(torch.from_numpy(features)[BATCH]), data))


def test_embedded_items_of_a_random_split_are_matched_to_all_items(data: Dataset, tmp_path: Path) -> None:
    rows = [3, 4, 6, 7, 8, 9, 10, 11, 0, 1, 2, 5]
    features = np.random.default_rng(1).normal(size=(ITEMS, 3)).astype(np.float32)
    write_features(tmp_path / "f.npz", Features(features[rows], np.array(rows), np.array(["train"] * 8 + ["test"] * 4)))
    with raises_usage_error("target.other_data", "f.npz", ITEMS, 8):
        compute_plan_of_spec(f"soft:{tmp_path}/f.npz", data)
    data.num_random_test_items = 0
    result = compute_plan_of_spec(f"soft:{tmp_path}/f.npz", data)
    assert torch.equal(result, compute_target_plan(SoftNeighbors(torch.from_numpy(features)[BATCH]), data))


def test_rejects_embedded_features_of_other_items(data: Dataset, tmp_path: Path) -> None:
    write_shuffled_features(tmp_path / "f.npz", ["train"] * ITEMS, [*range(ITEMS - 2), 20, 21])
    with raises_usage_error("target.other_data", "f.npz", ITEMS, ITEMS - 2):
        compute_plan_of_spec(f"soft:{tmp_path}/f.npz", data)


def test_neighbors_default_to_the_raw_first_view() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (ITEMS, 1, 3, 3), dtype=np.uint8)
    dataset = from_arrays((pixels, np.zeros((ITEMS, 2))))
    near = torch.from_numpy(pixels).flatten(1)[BATCH].float() / 255
    assert torch.equal(compute_plan_of_spec("neighbors:k=2", dataset), compute_target_plan(Neighbors(near, 2), dataset))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_target_matrix_is_indexed_by_items(kind: str, data: Dataset, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    matrix = random.random((ITEMS, ITEMS)) * (random.random((ITEMS, ITEMS)) < 0.5)
    file = tmp_path / ("m.npy" if kind == "dense" else "m.npz")
    if kind == "dense":
        np.save(file, matrix)
    else:
        sparse.save_npz(file, sparse.csr_array(matrix))
    result = compute_plan_of_spec(f"matrix:{file}", data)
    rows_of_batch = np.tile(matrix[np.ix_(BATCH, BATCH)], (2, 2))
    np.fill_diagonal(rows_of_batch, 0)
    total = rows_of_batch.sum(1, keepdims=True)
    assert np.allclose(result.numpy(), rows_of_batch / np.where(total > 0, total, 1) / (2 * len(BATCH)), atol=1e-7)


def test_targets_can_be_pickled(data: Dataset, tmp_path: Path) -> None:
    file = save_array(tmp_path / "f.npy", np.eye(ITEMS))
    for text in ("labels", f"soft:{file}", "neighbors", f"matrix:{file}"):
        restored = pickle.loads(pickle.dumps(build_target_function(text, data)))
        assert torch.equal(
            compute_target_plan(restored(data.__getitems__(BATCH)), data), compute_plan_of_spec(text, data)
        )


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("label", "target.unknown", ("label", "labels")),
        ("", "target.unknown", ()),
        ("labels:2", "target.*", ("labels:2",)),
        ("domains:gamma=1", "target.*", ("gamma",)),
        ("domains:alpha=-1", "target.invalid", ("alpha", -1)),
        ("domains:alpha=much", "target.invalid", ("alpha", "much")),
        ("domains:beta=nan", "target.invalid", ("beta", "nan")),
        ("neighbors:k=0", "target.invalid", ("k", 0)),
        ("neighbors:k=2.5", "target.invalid", ("k", 2.5)),
        ("neighbors:5", "target.*", ("neighbors",)),
        ("soft", "target.file_missing", ("soft:FILE",)),
        ("soft:temperature=1", "target.file_missing", ("soft:FILE",)),
        ("soft:FOLDER/none.npy", "target.*", ("none.npy", "there is no file")),
        ("soft:FOLDER", "target.*", ("FOLDER",)),
        ("soft:/dev/zero", "target.*", ("/dev/zero",)),
        ("soft:FOLDER/few.npy", "target.shape", ("few.npy", ITEMS, ITEMS - 1)),
        ("soft:FOLDER/flat.npy", "target.shape", ("flat.npy",)),
        ("soft:FOLDER/nan.npy", "target.not_finite", ("nan.npy", "row 3")),
        ("soft:FOLDER/text.npy", "target.shape", ("text.npy", "<U1")),
        ("soft:FOLDER/junk.npy", "target.unreadable", ("junk.npy",)),
        ("soft:FOLDER/objects.npy", "target.unreadable", ("objects.npy", "pickled")),
        ("soft:FOLDER/few.npy,temperature=0", "target.invalid", ("temperature", 0)),
        ("soft:FOLDER/matrix.npz", "target.no_features", ("matrix.npz",)),
        ("neighbors:features=FOLDER/few.npy", "target.shape", ("few.npy",)),
        ("matrix:FOLDER/few.npy", "target.shape", ("few.npy", "float64")),
        ("matrix:FOLDER/negative.npy", "target.negative", ("negative.npy", -1)),
        ("matrix:FOLDER/nothing.npy", "target.all_zero", ("nothing.npy",)),
        ("matrix:FOLDER/infinite.npz", "target.negative", ("infinite.npz",)),
        ("matrix:FOLDER/junk.npy", "target.unreadable", ("junk.npy",)),
        ("matrix:FOLDER/junk.npz", "target.unreadable", ("junk.npz",)),
        ("matrix:FOLDER/corrupt.npz", "target.unreadable", ("corrupt.npz",)),
        ("matrix:FOLDER/blocks.npz", "target.unreadable", ("blocks.npz", "bsr")),
    ],
)
def test_rejects_invalid_targets_and_files(
    text: str, code: str, values: tuple[object, ...], data: Dataset, tmp_path: Path
) -> None:
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
    values = [str(value).replace("FOLDER", str(tmp_path)) for value in values]
    with raises_usage_error(code, *values) as caught:
        build_target_function(text.replace("FOLDER", str(tmp_path)), data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["labels", "domains"])
def test_rejects_data_without_labels_or_domains(text: str) -> None:
    unlabeled = from_arrays(np.zeros((ITEMS, 2)), name="plain")
    with raises_usage_error("target.missing_data", text, "plain"):
        build_target_function(text, unlabeled)


def test_matrix_is_memory_mapped(data: Dataset, tmp_path: Path) -> None:
    rule = build_target_function(f"matrix:{save_array(tmp_path / 'm.npy', np.eye(ITEMS))}", data)(data[0])
    assert isinstance(rule, SimilarityMatrix)
    assert rule.matrix.dtype == torch.float64  # memory-mapped with the type of the file
