"""Named benchmark data: the digits of scikit-learn and Fashion-MNIST."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch

from contraport.data.arrays import ArrayStore, from_arrays, take
from contraport.data.dataset import Dataset
from contraport.data.sources.vision import download_folder
from contraport.data.splits import split_positions
from contraport.errors import UsageError, check_regular_file

DIGITS_HELD_OUT = 0.25
FASHION_FOLDER = Path("/usr/share/datasets/fashion-mnist")
FASHION_CLASSES = (
    "T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def digits(split: str, root: Path | None) -> Dataset:
    """Return the 1,797 handwritten digits, 8 x 8 pixels, that scikit-learn carries; a quarter is held out."""
    from sklearn.datasets import load_digits

    images, labels = load_digits().images, load_digits().target
    pixels = np.rint(images * (255 / 16)).astype(np.uint8)
    positions = split_positions(labels, split, fraction=DIGITS_HELD_OUT)
    return take(from_arrays(pixels, labels, name="digits"), positions, split)


def fashion_mnist(split: str, root: Path | None) -> Dataset:
    """Return Fashion-MNIST, 70,000 images of clothes, 28 x 28 pixels.

    Looked for in Debian's folder, in `root` as torchvision lays it out, and then downloaded by torchvision to `root`.

    Raises:
        UsageError: it was found nowhere; the message says where and why.
    """
    torchvision_root = download_folder(root)
    folders = [FASHION_FOLDER, torchvision_root / "FashionMNIST" / "raw"]
    failures = []
    for folder in folders:
        try:
            return _read_fashion(folder, split)
        except (OSError, EOFError, ValueError) as error:
            failures.append(f"{folder} ({error})")
    try:
        _download_fashion(torchvision_root)
        return _read_fashion(folders[1], split)
    except (OSError, EOFError, ValueError, RuntimeError) as error:
        failures.append(f"download to {torchvision_root} ({error})")
    raise UsageError(f"data: fashion-mnist was not found; looked in {'; '.join(failures)}.")


def _download_fashion(root: Path) -> None:
    from torchvision.datasets import FashionMNIST

    FashionMNIST(str(root), download=True)


def _read_fashion(folder: Path, split: str) -> Dataset:
    prefix = "train" if split == "train" else "t10k"
    images = _read_idx(folder / f"{prefix}-images-idx3-ubyte", dimensions=3)
    labels = _read_idx(folder / f"{prefix}-labels-idx1-ubyte", dimensions=1)
    if len(images) != len(labels) or labels.max() >= len(FASHION_CLASSES):
        raise ValueError(f"{len(images)} images and {len(labels)} labels do not fit together")
    return Dataset(
        ArrayStore((torch.from_numpy(images)[:, None],)),
        name="fashion-mnist",
        split=split,
        labels=torch.from_numpy(labels).long(),
        class_names=FASHION_CLASSES,
        flips=True,
    )


def _read_idx(path: Path, *, dimensions: int) -> np.ndarray:
    """Return the bytes of an IDX file, plain or gzipped: a magic number, the sizes in big endian, then the values."""
    packed = path.with_name(path.name + ".gz")
    if not path.exists() and not packed.exists():
        raise FileNotFoundError(f"no file {path.name} or {packed.name}")
    check_regular_file("data", path if path.exists() else packed)
    content = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
    header = np.frombuffer(content, ">u4", count=1 + dimensions)
    sizes = header[1:].astype(int)
    if header[0] != 0x0800 + dimensions or len(content) != header.nbytes + sizes.prod() or sizes.prod() == 0:
        raise ValueError(f"{path.name} is not a whole IDX file of {dimensions} dimensions")
    return np.frombuffer(content, np.uint8, offset=header.nbytes).reshape(sizes).copy()
