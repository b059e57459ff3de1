import errno
import os
import sys

import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error

from contraport.data import from_arrays, load


@pytest.mark.parametrize(
    ("data", "code_and_values"),
    [
        ("digit", ("data.unknown", "digits")),
        ("fashion_mnist", ("data.unknown", "fashion-mnist")),
        ("no/such/folder", ("data.not_found", "no/such/folder")),
        ("missing.npz", ("data.not_found", "missing.npz")),
        ("missing.parquet", ("data.not_found", "missing.parquet")),
    ],
)
def test_rejects_unknown_data(data, code_and_values):
    with raises_usage_error(*code_and_values):
        load(data)


def test_rejects_a_file_of_another_kind(tmp_path):
    (tmp_path / "data.xls").write_text("1,2")
    with raises_usage_error("data.unknown_format"):
        load(tmp_path / "data.xls")


def test_names_a_file_without_read_permission(tmp_path, monkeypatch):
    """By a patched error, as root may read any file."""
    monkeypatch.setattr(sys.modules[load.__module__], "find_format", deny)
    with raises_usage_error("data.unreadable", tmp_path, "Permission denied"):
        load(tmp_path)


def deny(data):
    raise PermissionError(errno.EACCES, "Permission denied")


def test_rejects_an_unknown_split():
    with raises_usage_error("split.invalid", "train", "test", "valid"):
        load("digits", "valid")


def test_a_dataset_is_returned_as_it_is():
    dataset = from_arrays(np.ones((4, 2)))
    assert load(dataset, "test") is dataset


def test_images_of_any_source_can_be_resized():
    small, large = load("digits"), load("digits", image_size=16)
    assert large.shapes == ((1, 16, 16),)
    batch = large.__getitems__([0, 5])
    assert batch.views[0].shape == (2, 1, 16, 16)
    assert batch.views[0].dtype == torch.uint8
    assert torch.equal(large.labels, small.labels)
    assert load("digits", image_size=8).store is not large.store


@pytest.mark.parametrize("size", [0, -3])
def test_rejects_a_size_out_of_range(size):
    with raises_usage_error("image_size.invalid"):
        load("digits", image_size=size)


def test_vectors_have_no_size():
    with raises_usage_error("data.not_images", "2"):
        load(from_arrays(np.ones((4, 2))), image_size=8)
    with raises_usage_error("data.not_images", "1"):
        load(from_arrays((np.ones((4, 1)), ["a", "b", "c", "d"])), image_size=8)


def test_only_the_images_among_the_views_are_resized():
    dataset = load(from_arrays((np.ones((4, 2)), np.zeros((4, 8, 8), np.uint8))), image_size=4)
    assert dataset.shapes == ((2,), (1, 4, 4))
    assert [view.shape for view in dataset[0].views] == [(1, 2), (1, 1, 4, 4)]


@pytest.mark.parametrize("suffix", ["", ".npz", ".npy", ".csv", ".parquet", ".tar"])
def test_rejects_a_pipe(tmp_path, suffix):
    os.mkfifo(tmp_path / f"data{suffix}")
    with raises_usage_error("data.not_regular"):
        load(tmp_path / f"data{suffix}")


def test_rejects_a_pipe_among_named_data(tmp_path):
    os.mkfifo(tmp_path / "BasicMotions_TRAIN.ts")
    with raises_usage_error("data.not_a_file", "BasicMotions_TRAIN.ts"):
        load("basic-motions", root=tmp_path)
