"""The table of named data, and the one door to all data: a name, a folder, a file or a dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from contraport.data.arrays import load_npz
from contraport.data.bundled import digits, fashion_mnist
from contraport.data.dataset import Dataset, Store
from contraport.data.folder import load_folder
from contraport.data.splits import check_split
from contraport.errors import UsageError, check, unknown_name


class Source(NamedTuple):
    """A row of the table of data: what it is called, what it holds, where it is looked for."""

    name: str
    description: str
    looks: str
    load: Callable[[str, Path | None], Dataset]


SOURCES = {
    source.name: source
    for source in (
        Source("digits", "1,797 handwritten digits, 8 x 8, 10 classes", "inside scikit-learn", digits),
        Source(
            "fashion-mnist",
            "70,000 images of clothes, 28 x 28, 10 classes",
            "Debian's folder (package dataset-fashion-mnist), root/FashionMNIST/raw, download",
            fashion_mnist,
        ),
    )
}


def list_sources() -> tuple[Source, ...]:
    """Return the rows of the table of named data.

    >>> [source.name for source in list_sources()]
    ['digits', 'fashion-mnist']
    """
    return tuple(SOURCES.values())


def load(
    data: str | Path | Dataset, split: str = "train", *, root: str | Path | None = None, image_size: int | None = None
) -> Dataset:
    """Return one split of some data.

    Args:
        data: a name of `list_sources`, a folder of images, the path of an ``.npz`` file, or a `Dataset`, which is
            returned whatever the split. A name wins over a folder of the same name; write ``./digits`` for the folder.
        split: "train" or "test".
        root: folder of named data, as torchvision lays it out.
        image_size: side of the square that images become, in pixels; default: their own, and for a folder of images
            the median shorter side, kept between 8 and 64.

    Raises:
        UsageError: an unknown name, a missing or unreadable file or folder, or a wrong split or size.

    >>> len(load("digits", "train")), len(load("digits", "test"))
    (1348, 449)
    """
    check_split(split)
    good = image_size is None or (isinstance(image_size, int) and image_size > 0)
    check(good, f"image_size: expected a positive whole number of pixels, got {image_size!r}.")
    if not isinstance(data, Dataset) and str(data) not in SOURCES and Path(data).is_dir():
        return load_folder(Path(data), split, image_size)
    dataset = data if isinstance(data, Dataset) else _load_whole(str(data), split, root)
    return dataset if image_size is None else _resized(dataset, image_size)


def _load_whole(data: str, split: str, root: str | Path | None) -> Dataset:
    if data in SOURCES:
        return SOURCES[data].load(split, None if root is None else Path(root))
    path = Path(data)
    if path.is_file():
        check(path.suffix == ".npz", f"data: expected an .npz file or a folder of images, got the file {data!r}.")
        return load_npz(path, split)
    if path.suffix == ".npz" or len(path.parts) > 1:
        raise UsageError(f"data: there is no file or folder {data!r}.")
    raise unknown_name("data", data, SOURCES)


@dataclass(frozen=True)
class _ResizedStore:
    """Another store's images, resized to a square when they are fetched."""

    store: Store
    size: int

    @property
    def in_memory(self) -> bool:
        return self.store.in_memory

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple((shape[0], self.size, self.size) for shape in self.store.shapes)

    def __len__(self) -> int:
        return len(self.store)

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        square = [self.size, self.size]
        return tuple(transforms.resize(view, square, antialias=True) for view in self.store.fetch(positions))


def _resized(dataset: Dataset, size: int) -> Dataset:
    check(
        all(len(shape) == 3 for shape in dataset.shapes),
        f"image_size: {dataset.name!r} has vectors, not images: {dataset.shapes}.",
    )
    if all(shape[1:] == (size, size) for shape in dataset.shapes):
        return dataset
    return Dataset(
        _ResizedStore(dataset.store, size),
        name=dataset.name,
        split=dataset.split,
        labels=dataset.labels,
        domains=dataset.domains,
        class_names=dataset.class_names,
        flips=dataset.flips,
        skipped=dataset.skipped,
    )
