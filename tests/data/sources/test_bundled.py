import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from tests.errors import raises_usage_error
from torchvision.datasets import FashionMNIST

from contraport.data import load
from contraport.data.sources import benchmark_data


def test_digits_are_whole_and_split_by_class():
    train, test = load("digits"), load("digits", "test")
    assert train.shapes == ((1, 8, 8),)
    assert not train.allows_flips
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
    def fail(data):
        raise RuntimeError("no network")

    monkeypatch.setattr(FashionMNIST, "download", fail)
    monkeypatch.setattr(benchmark_data, "FASHION_DEBIAN_FOLDER", tmp_path / "debian")
    return tmp_path


def test_fashion_mnist_is_taken_from_debians_folder_first(offline):
    write_fashion(offline / "debian", pack=True)
    write_fashion(offline / "root" / "FashionMNIST" / "raw", pack=False, images=8)
    train, test = load("fashion-mnist", root=offline / "root"), load("fashion-mnist", "test")
    assert (len(train), len(test)) == (6, 3)
    assert train.allows_flips
    assert train.class_names[9] == "Ankle boot"
    assert train[5].labels.tolist() == [5]
    assert test[0].views[0].unique().tolist() == [3]


def test_fashion_mnist_is_taken_from_the_root_next(offline):
    write_fashion(offline / "root" / "FashionMNIST" / "raw", pack=False)
    assert len(load("fashion-mnist", root=offline / "root")) == 6


def test_fashion_mnist_is_downloaded_if_not_installed(offline, monkeypatch):
    monkeypatch.setattr(FashionMNIST, "download", lambda data: write_fashion(Path(data.raw_folder), pack=False))
    assert len(load("fashion-mnist", root=offline / "root")) == 6


def test_missing_fashion_mnist_lists_places_and_reasons(offline):
    with raises_usage_error("data.not_found", offline / "root", "no network") as caught:
        load("fashion-mnist", root=offline / "root")
    assert "\n" not in str(caught.value)


def test_rejects_a_truncated_idx_file(offline):
    write_fashion(offline / "debian", pack=True)
    file = offline / "debian" / "train-images-idx3-ubyte.gz"
    for content in (file.read_bytes()[:-9], gzip.compress(gzip.decompress(file.read_bytes())[:-1])):
        file.write_bytes(content)
        with raises_usage_error("data.not_found", offline / "debian"):
            load("fashion-mnist", root=offline / "root")
