"""Suites of data sets that are not bundled (PACS, ImageNet-100, CIFAR), on small files in the same layout."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets as tv
from PIL import Image

from contraport import compare

SMALL: dict[str, Any] = {
    "seeds": 1, "epochs": 1, "encoder": "small-cnn", "tune": 0, "device": "cpu", "progress": False,
    "train": {"batch_size": 8, "image_size": 16},
}  # fmt: skip
random = np.random.default_rng(0)


def write_photos(folder: Path, number: int) -> None:
    folder.mkdir(parents=True)
    for one in range(number):
        Image.fromarray(random.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(folder / f"{one}.jpg")


def test_pacs(tmp_path: Path) -> None:
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        for kind in ("dog", "elephant"):
            write_photos(tmp_path / "pacs" / domain / kind, 5)
    rows = [{"beta 0.5": {"objective": "nt-xent", "target": "domains:alpha=0,beta=0.5"}}]
    result = compare(suite="pacs", data=[tmp_path / "pacs"], objectives=rows, **SMALL, out=tmp_path / "out")
    assert {entry.metric_key for entry in result.entries} == {"linear_probe", "domain_probe", "unseen_domain"}
    assert all(entry.mean is not None for entry in result.entries)


def test_imagenet_100(tmp_path: Path) -> None:
    for split, number in (("train", 8), ("val", 3)):
        for kind in ("n01440764", "n01443537"):
            write_photos(tmp_path / "imagenet-100" / split / kind, number)
    rows = ["info-nce"]
    result = compare(suite="imagenet100", data=[tmp_path / "imagenet-100"], objectives=rows, metrics=["linear_probe"],
                    **SMALL, out=tmp_path / "out")  # fmt: skip
    assert [entry.num_seeds for entry in result.entries] == [1] * 2


def test_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tv.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(tv.cifar, "check_integrity", lambda path, md5=None: True)
    folder = tmp_path / tv.CIFAR10.base_folder
    folder.mkdir()
    for file, _ in tv.CIFAR10.train_list + tv.CIFAR10.test_list:
        images = random.integers(0, 256, (6, 3072), dtype=np.uint8)
        (folder / file).write_bytes(pickle.dumps({"data": images, "labels": [0, 1, 2, 0, 1, 2]}))
    names = {tv.CIFAR10.meta["key"]: [f"class {number}" for number in range(10)]}
    (folder / tv.CIFAR10.meta["filename"]).write_bytes(pickle.dumps(names))
    result = compare(suite="cifar", data=["cifar10"], objectives=["info-nce"], metrics=["linear_probe"],
                    settings=["corrupt+strong", "mismatched:0.4"], root=tmp_path,
                    **SMALL, out=tmp_path / "out")  # fmt: skip
    assert len(result.columns) == 2
    assert all(entry.mean is not None for entry in result.entries)
