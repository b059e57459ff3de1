import pickle

import numpy as np
import pytest
import torch
import torchvision.datasets as tv
from scipy.io import savemat
from tests.errors import raises_usage_error

from contraport.data import load


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    def fail(self):
        raise RuntimeError("no network")

    for reader in (tv.CIFAR10, tv.CIFAR100, tv.SVHN, tv.STL10):
        monkeypatch.setattr(reader, "download", fail)


@pytest.fixture
def any_checksum(monkeypatch):
    for reader in (tv.CIFAR10, tv.SVHN, tv.STL10):
        monkeypatch.setattr(reader, "_check_integrity", lambda self: True)
    monkeypatch.setattr(tv.cifar, "check_integrity", lambda path, md5=None: True)


def pixels(count, side):
    return np.random.default_rng(0).integers(0, 256, (count, 3, side, side), dtype=np.uint8)


def pickled(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(content))


@pytest.mark.parametrize(("name", "reader"), [("cifar10", tv.CIFAR10), ("cifar100", tv.CIFAR100)])
def test_cifar(tmp_path, any_checksum, name, reader):
    images, classes = pixels(4, 32), [f"class {number}" for number in range(10)]
    labels = "labels" if name == "cifar10" else "fine_labels"
    for file, _ in reader.train_list + reader.test_list:
        content = {"data": images.reshape(4, -1), labels: [3, 1, 9, 0]}
        pickled(tmp_path / reader.base_folder / file, content)
    pickled(tmp_path / reader.base_folder / reader.meta["filename"], {reader.meta["key"]: classes})
    train, test = load(name, root=tmp_path), load(name, "test", root=tmp_path)
    assert (len(train), len(test)) == (4 * len(reader.train_list), 4)
    assert np.array_equal(test.store.views[0].numpy(), images)
    assert test.labels.tolist() == [3, 1, 9, 0]
    assert train.class_names == tuple(classes)
    assert train.allows_flips


def test_svhn(tmp_path, any_checksum):
    images = pixels(3, 32)
    for split in ("train", "test"):
        labels = np.array([[10], [1], [9]], np.uint8)
        savemat(tmp_path / f"{split}_32x32.mat", {"X": images.transpose(2, 3, 1, 0), "y": labels})
    test = load("svhn", "test", root=tmp_path)
    assert np.array_equal(test.store.views[0].numpy(), images)
    assert test.labels.tolist() == [0, 1, 9]
    assert not test.allows_flips


@pytest.fixture
def stl10(tmp_path, any_checksum):
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    for name, count in (("train", 2), ("test", 3), ("unlabeled", 5)):
        pixels(count, 96).transpose(0, 1, 3, 2).tofile(folder / f"{name}_X.bin")
        np.arange(1, count + 1, dtype=np.uint8).tofile(folder / f"{name}_y.bin")
    (folder / "class_names.txt").write_text("\n".join(f"class {number}" for number in range(10)))
    return tmp_path


def test_stl10(stl10):
    train, test = load("stl10", root=stl10), load("stl10", "test", root=stl10)
    assert (len(train), len(test)) == (2, 3)
    assert np.array_equal(test.store.views[0].numpy(), pixels(3, 96))
    assert test.labels.tolist() == [0, 1, 2]
    assert len(train.class_names) == 10


def test_the_unlabelled_images_of_stl10_have_the_same_test_split(stl10):
    train, test = (load("stl10-unlabeled", split, root=stl10) for split in ("train", "test"))
    assert train.labels is None
    assert torch.equal(train.__getitems__([4, 0]).views[0], torch.from_numpy(pixels(5, 96)[[4, 0]]))
    assert torch.equal(test.store.views[0], load("stl10", "test", root=stl10).store.views[0])


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn", "stl10", "stl10-unlabeled"])
def test_missing_data_lists_the_searched_places(tmp_path, name):
    with raises_usage_error("data.not_found", tmp_path, "no network") as caught:
        load(name, root=tmp_path)
    assert "\n" not in str(caught.value)
