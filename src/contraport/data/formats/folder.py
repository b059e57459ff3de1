"""A folder of images: classes and domains from its subfolders, pixels decoded when they are asked for."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path, PurePath

import numpy as np

from contraport.data.arrays import codes_of
from contraport.data.dataset import Dataset
from contraport.data.decoding import SUFFIXES, FileImages
from contraport.data.formats.format import data_format
from contraport.data.items import Items
from contraport.data.splits import TEST_NAMES
from contraport.errors import check

_log = logging.getLogger(__name__)


@data_format(
    "a folder of images", recognises=os.path.isdir, takes=["image_size", "test_fraction", "ignore_labels"], rest=True
)
def load_folder(
    folder: str,
    split: str,
    image_size: int | None = None,
    test_fraction: float | None = None,
    ignore_labels: bool = False,
) -> Dataset:
    """Return one split of a folder of images.

    ``folder/class/*.png`` is labelled, ``folder/*.png`` is not. ``folder/domain/class/*.png`` has domains too: it is
    read so where every one of several domains has the same several classes; deeper folders otherwise belong to the
    class of the outermost. Each may lie below ``train/`` and ``test/`` (or ``val/``); without these some of each
    class are held out. Hidden files, and files that are no images by their suffix, are not looked at. Images that
    cannot be read are left out, logged, and listed in ``skipped``.

    Args:
        folder: the folder.
        split: "train" or "test".
        image_size: side of the square that images become, in pixels; default: the median shorter side of the training
            images, kept between 8 and 64.
        test_fraction: share of each class to hold out where the data have no test split of their own; default: a fifth.
        ignore_labels: whether folders say nothing, neither classes nor domains.

    Raises:
        UsageError: no image in the folder, none of them readable, or a layout that can be read in two ways.
    """
    train_folder, test_folder = folders_of_splits(Path(folder))
    train = _images(train_folder)
    test = [] if test_folder is None else _images(test_folder)
    around = [PurePath(file).parts[:-1] for file in train + test]
    files = [str(train_folder / file) for file in train] + [f"{test_folder}/{file}" for file in test]
    is_test = None if test_folder is None else np.arange(len(files)) >= len(train)
    meant = Items(folder, len(around)) if ignore_labels else _meaning(around, folder)
    items = replace(meant, is_test=is_test, keys=files, test_fraction=test_fraction)
    return items.dataset(split, [FileImages(tuple(files))], image_size=image_size)


def folders_of_splits(folder: Path) -> tuple[Path, Path | None]:
    """Return where the training items lie and where the test items, if they are apart.

    Raises:
        UsageError: a folder of test items alone.
    """
    train = folder / "train" if (folder / "train").is_dir() else folder
    found = [folder / name for name in TEST_NAMES if (folder / name).is_dir()]
    check(
        train != folder or not found,
        f"data: expected a folder train/ beside {folder}/{found and found[0].name}, found none.",
    )
    if len(found) > 1:
        _log.info("%s: %s is the test split; %s are left out", folder, found[0].name, [path.name for path in found[1:]])
    return train, found[0] if found else None


def files_below(folder: Path, suffixes: Collection[str]) -> list[str]:
    """Return the files below a folder with certain suffixes, as sorted paths within it; the hidden are left out."""
    files: list[str] = []
    for parent, children, names in os.walk(folder):
        children[:] = [child for child in children if not child.startswith(".")]
        inside = os.path.relpath(parent, folder)
        files += [
            os.path.normpath(os.path.join(inside, name))
            for name in names
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in suffixes
        ]
    return sorted(files)


def _images(folder: Path) -> list[str]:
    files = files_below(folder, SUFFIXES)
    check(len(files) > 0, f"data: expected images ({' '.join(sorted(SUFFIXES))}) in {folder}, found none.")
    return files


def _meaning(around: list[tuple[str, ...]], root: str) -> Items:
    """Return what the names of the folders around each image say about it."""
    named = [len(folders) > 0 for folders in around]
    if not any(named):
        return Items(root, len(around))
    check(
        all(named),
        f"data: {root} has images both in class folders and outside of them, {named.count(False)} of {len(named)} "
        "outside; move these, or pass ignore_labels=True (--ignore_labels) to take all images without classes.",
    )
    if not _have_domains(around):
        labels, class_names = codes_of("labels", [folders[0] for folders in around])
        return Items(root, len(around), labels, class_names)
    domains, domain_names = codes_of("domains", [folders[0] for folders in around])
    labels, class_names = codes_of("labels", [folders[1] for folders in around])
    _log.info("%s: read as domain/class, %d domains of %d classes", root, len(domain_names), len(class_names))
    return Items(root, len(around), labels, class_names, domains, domain_names)


def _have_domains(around: list[tuple[str, ...]]) -> bool:
    """Return whether there are several outer folders, each with the same several inner folders."""
    inner: dict[str, set[str]] = {}
    for folders in around:
        if len(folders) != 2:
            return False
        inner.setdefault(folders[0], set()).add(folders[1])
    first = next(iter(inner.values()))
    return len(inner) > 1 and len(first) > 1 and all(names == first for names in inner.values())
