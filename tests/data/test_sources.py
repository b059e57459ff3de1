import gzip
import struct

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from contraport.data import bundled, from_arrays, list_sources, load
from contraport.errors import UsageError


def test_digits_are_whole_and_split_by_class():
    train, test = load("digits"), load("digits", "test")
    assert train.shapes == ((1, 8, 8),)
    assert not train.flips
    assert (len(train), len(test)) == (1348, 449)
    assert train.class_names == tuple("0123456789")
    assert test.labels.bincount().min() >= 43
    pixels = torch.cat([train.store.views[0], test.store.views[0]])
    assert pixels.dtype == torch.uint8
    assert pixels.max() == 255
    assert pixels.double().sum() == np.rint(load_digits().images * 255 / 16).sum()


def write_idx(path, array, *, pack):
    content = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(path.name + ".gz" * pack).write_bytes(gzip.compress(content) if pack else content)


def write_fashion(folder, *, pack, images=6):
    for prefix, count in (("train", images), ("t10k", images // 2)):
        pixels = np.full((count, 28, 28), count, np.uint8)
        write_idx(folder / f"{prefix}-images-idx3-ubyte", pixels, pack=pack)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", np.arange(count, dtype=np.uint8), pack=pack)


@pytest.fixture
def offline(monkeypatch, tmp_path):
    def fail(root):
        raise RuntimeError("no network")

    monkeypatch.setattr(bundled, "_download_fashion", fail)
    monkeypatch.setattr(bundled, "FASHION_FOLDER", tmp_path / "debian")
    return tmp_path


def test_fashion_mnist_is_taken_from_debians_folder_first(offline):
    write_fashion(offline / "debian", pack=True)
    write_fashion(offline / "root" / "FashionMNIST" / "raw", pack=False, images=8)
    train, test = load("fashion-mnist", root=offline / "root"), load("fashion-mnist", "test")
    assert (len(train), len(test)) == (6, 3)
    assert train.flips
    assert train.class_names[9] == "Ankle boot"
    assert train[5].labels.tolist() == [5]
    assert test[0].views[0].unique().tolist() == [3]


def test_fashion_mnist_is_taken_from_the_root_next(offline):
    write_fashion(offline / "root" / "FashionMNIST" / "raw", pack=False)
    assert len(load("fashion-mnist", root=offline / "root")) == 6


def test_fashion_mnist_is_downloaded_at_last(offline, monkeypatch):
    monkeypatch.setattr(
        bundled, "_download_fashion", lambda root: write_fashion(root / "FashionMNIST" / "raw", pack=True)
    )
    assert len(load("fashion-mnist", root=offline / "root")) == 6


def test_fashion_mnist_says_where_it_looked_and_why_each_failed(offline):
    write_fashion(offline / "debian", pack=False)
    (offline / "debian" / "train-images-idx3-ubyte").write_bytes(b"short")
    with pytest.raises(UsageError) as caught:
        load("fashion-mnist", root=offline / "root")
    for part in ("debian", "root/FashionMNIST/raw (no file train-images", "download to", "no network"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cut_idx_file_is_no_data(offline):
    write_fashion(offline / "debian", pack=False)
    file = offline / "debian" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UsageError, match="not a whole IDX file"):
        load("fashion-mnist", root=offline / "root")


def test_every_source_says_where_it_looks():
    assert all(source.description and source.looks for source in list_sources())


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
    with pytest.raises(UsageError, match="image_size"):
        load(from_arrays(np.ones((4, 2))), image_size=8)


def test_only_the_images_among_the_views_are_resized():
    dataset = load(from_arrays([np.ones((4, 2)), np.zeros((4, 8, 8), np.uint8)]), image_size=4)
    assert dataset.shapes == ((2,), (1, 4, 4))
    assert [view.shape for view in dataset[0].views] == [(1, 2), (1, 1, 4, 4)]
