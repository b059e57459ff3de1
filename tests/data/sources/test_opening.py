import os

import numpy as np
import pytest
import torch

from contraport.data import from_arrays, load
from contraport.errors import UsageError


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("digit", "did you mean 'digits'"),
        ("fashion_mnist", "did you mean 'fashion-mnist'"),
        ("no/such/folder", "no file or folder 'no/such/folder'"),
        ("missing.npz", "no file or folder 'missing.npz'"),
        ("missing.parquet", "no file or folder 'missing.parquet'"),
    ],
)
def test_unknown_data_are_told(data, message):
    with pytest.raises(UsageError, match=message):
        load(data)


def test_a_file_of_another_kind_is_told(tmp_path):
    (tmp_path / "data.xls").write_text("1,2")
    with pytest.raises(UsageError, match=r"expected a folder of images or a file \.npz, \.npy, .*data\.xls"):
        load(tmp_path / "data.xls")


def test_an_unknown_split_is_told():
    with pytest.raises(UsageError, match="split: expected 'train' or 'test', got 'valid'"):
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
def test_a_size_out_of_range_is_told(size):
    with pytest.raises(UsageError, match="image_size"):
        load("digits", image_size=size)


def test_vectors_have_no_size():
    with pytest.raises(UsageError, match=r"^data: .*\(image_size\).*: an item of it is 2 numbers\."):
        load(from_arrays(np.ones((4, 2))), image_size=8)
    with pytest.raises(UsageError, match=r"^data: .*: an item of it is 1 number and text\."):
        load(from_arrays((np.ones((4, 1)), ["a", "b", "c", "d"])), image_size=8)


def test_only_the_images_among_the_views_are_resized():
    dataset = load(from_arrays((np.ones((4, 2)), np.zeros((4, 8, 8), np.uint8))), image_size=4)
    assert dataset.shapes == ((2,), (1, 4, 4))
    assert [view.shape for view in dataset[0].views] == [(1, 2), (1, 1, 4, 4)]


@pytest.mark.parametrize("suffix", ["", ".npz", ".npy", ".csv", ".parquet", ".tar"])
def test_a_pipe_is_told_and_not_waited_for(tmp_path, suffix):
    os.mkfifo(tmp_path / f"data{suffix}")
    with pytest.raises(UsageError, match="data: expected a folder or a regular file"):
        load(tmp_path / f"data{suffix}")


def test_a_pipe_among_named_data_is_told_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "BasicMotions_TRAIN.ts")
    with pytest.raises(UsageError, match=r"BasicMotions_TRAIN\.ts is no regular file"):
        load("basic-motions", root=tmp_path)
