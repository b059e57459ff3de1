"""Named data that torchvision reads and downloads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contraport.data.arrays import ArrayStore
from contraport.data.dataset import Dataset
from contraport.errors import UsageError

DOWNLOAD_FOLDER = Path("~/.cache/contraport")
SVHN_CLASSES = tuple("0123456789")


def download_folder(root: Path | None) -> Path:
    """Return the folder in which torchvision looks and to which it downloads."""
    return (root or DOWNLOAD_FOLDER).expanduser()


def cifar10(split: str, root: Path | None) -> Dataset:
    """Return CIFAR-10, 60,000 photographs, 32 x 32 pixels, in 10 classes.

    Raises:
        UsageError: it was not found in `root` and cannot be downloaded; so for all data here.
    """
    from torchvision.datasets import CIFAR10

    found = _find("cifar10", CIFAR10, download_folder(root), train=split == "train")
    return _dataset("cifar10", split, np.moveaxis(found.data, 3, 1), found.targets, tuple(found.classes))


def cifar100(split: str, root: Path | None) -> Dataset:
    """Return CIFAR-100, 60,000 photographs, 32 x 32 pixels, in 100 classes."""
    from torchvision.datasets import CIFAR100

    found = _find("cifar100", CIFAR100, download_folder(root), train=split == "train")
    return _dataset("cifar100", split, np.moveaxis(found.data, 3, 1), found.targets, tuple(found.classes))


def svhn(split: str, root: Path | None) -> Dataset:
    """Return SVHN, 99,289 cut-out digits of house numbers, 32 x 32 pixels; a mirrored digit is another one."""
    from torchvision.datasets import SVHN

    found = _find("svhn", SVHN, download_folder(root), split=split)
    return _dataset("svhn", split, found.data, found.labels, SVHN_CLASSES, flips=False)


def stl10(split: str, root: Path | None) -> Dataset:
    """Return the labelled part of STL-10: 5,000 and 8,000 photographs, 96 x 96 pixels, in 10 classes."""
    from torchvision.datasets import STL10

    found = _find("stl10", STL10, download_folder(root), split=split)
    return _dataset("stl10", split, found.data, found.labels, tuple(found.classes))


def stl10_unlabeled(split: str, root: Path | None) -> Dataset:
    """Return the 100,000 unlabelled photographs of STL-10 to train on; the test split is that of ``stl10``.

    They stay in their file, which is mapped to memory.
    """
    from torchvision.datasets import STL10

    if split == "test":
        return stl10(split, root)
    folder = download_folder(root)
    _find("stl10", STL10, folder, split="test")  # all files are there and whole
    file = folder / STL10.base_folder / STL10.train_list[2][0]
    images = np.memmap(file, np.uint8, mode="c").reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)
    return Dataset(ArrayStore((torch.from_numpy(images),)), name="stl10-unlabeled", split=split, flips=True)


def _find(name: str, reader: Callable[..., Any], root: Path, **which: Any) -> Any:
    """Return torchvision's dataset from a folder, after a download if it is not there."""
    failures = []
    for download in (False, True):
        try:
            return reader(str(root), download=download, **which)
        except Exception as error:  # torchvision raises what its downloads, archives and pickles raise
            reason = " ".join(str(error).split())
            failures.append(f"{f'download to {root}' if download else root} ({reason})")
    raise UsageError(f"data: {name} was not found; looked in {'; '.join(failures)}. root= names its folder.")


def _dataset(
    name: str, split: str, images: np.ndarray, labels: Any, class_names: tuple[str, ...], *, flips: bool = True
) -> Dataset:
    return Dataset(
        ArrayStore((torch.from_numpy(np.ascontiguousarray(images)),)),
        name=name,
        split=split,
        labels=torch.as_tensor(np.asarray(labels, dtype=np.int64)),
        class_names=class_names,
        flips=flips,
    )
