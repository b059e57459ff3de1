"""A folder of images, or of texts, or of both side by side: classes and domains from its subfolders."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path, PurePath

import numpy as np

from contraport._utils.formatting import format_options
from contraport._utils.text_tensors import check_nonempty_texts
from contraport.data.arrays import factorize
from contraport.data.dataset import Dataset
from contraport.data.decoding import SUFFIXES, ImageFiles
from contraport.data.formats.format import data_format
from contraport.data.source_items import Items, View
from contraport.data.splits import TEST_NAMES, Marks
from contraport.data.text_store import Texts
from contraport.errors import check, check_regular_file, unreadable_error

TEXTS = frozenset((".txt",))
_SPLITS = frozenset(("train", *TEST_NAMES))

_log = logging.getLogger(__name__)


@data_format(
    "a folder of images or texts",
    recognizes=os.path.isdir,
    takes=["image_size", "test_fraction", "ignore_labels"],
    rest=True,
)
def load_folder(
    folder: str,
    split: str,
    image_size: int | None = None,
    test_fraction: float | None = None,
    ignore_labels: bool = False,
) -> Dataset:
    """Return one split of a folder of images, or of texts.

    ``folder/class/*.png`` is labelled, ``folder/*.png`` is not. ``folder/domain/class/*.png`` has domains too: it is
    read so where every one of several domains has the same several classes; deeper folders otherwise belong to the
    class of the outermost. Each may lie below ``train/`` and ``test/`` (or ``val/``); without these some of each
    class are held out. Hidden files, and files that are no images by their suffix, are not looked at. Images that
    cannot be read are left out, logged, and listed in ``skipped``.

    Where half of the images or more have a text beside them, ``photo.txt`` beside ``photo.jpg``, the texts are a second
    view, which an image without one, or with an empty one, lacks. A folder of ``*.txt`` without an image is one of
    texts. They are UTF-8, and held in memory.

    Args:
        folder: the folder.
        split: "train" or "test".
        image_size: side of the square that images become, in pixels; default: the median shorter side of the training
            images, kept between 8 and 64.
        test_fraction: share of each class to hold out where the data have no test split of their own; default: a fifth.
        ignore_labels: whether folders say nothing, neither classes nor domains.

    Raises:
        UsageError: neither images nor texts in the folder, no image readable, a text that is none, or a layout that
            can be read in two ways.
    """
    around, files, others, is_test = _found(Path(folder))
    meant = Items(folder, len(around)) if ignore_labels else _meaning(around, folder)
    items = replace(meant, is_test=is_test, keys=files, test_fraction=test_fraction)
    if _suffix(files[0]) in TEXTS:
        texts = [read_text(file) for file in files]
        check_nonempty_texts(f"data: {folder}", texts)
        return items.dataset(split, [Texts(texts)], image_size=None, view_names=["text"])
    captions = _captions(files, others, folder)
    if captions is None:
        return items.dataset(split, [ImageFiles(tuple(files))], image_size=image_size)
    there = np.array([bool(caption) for caption in captions])
    present = None if there.all() else np.stack([np.ones_like(there), there], axis=1)
    views: list[View] = [ImageFiles(tuple(files)), Texts(captions)]
    return replace(items, present=present).dataset(split, views, image_size=image_size, view_names=["image", "text"])


def split_folders(folder: Path) -> tuple[Path, Path | None]:
    """Return where the training items lie and where the test items, if they are apart.

    Raises:
        UsageError: a folder of test items alone, or one of training items beside others that may be classes.
    """
    below = sorted(child.name for child in folder.iterdir() if child.is_dir())
    by_name = {name.lower(): folder / name for name in below}  # of Test and test the latter
    train = by_name.get("train", folder)
    found = [by_name[name] for name in TEST_NAMES if name in by_name]
    if train != folder:
        _check_others(folder, train, found, [folder / name for name in below if name.lower() not in _SPLITS])
    check(
        train != folder or not found,
        f"data: expected a folder train/ beside {folder}/{found and found[0].name}, found none.",
    )
    if len(found) > 1:
        _log.info("%s: %s is the test split; %s are left out", folder, found[0].name, [path.name for path in found[1:]])
    return train, found[0] if found else None


def _check_others(folder: Path, train: Path, held_out: list[Path], others: list[Path]) -> None:
    """Say which folders beside those of splits are left out, or raise where they, and train with them, may be classes.

    Raises:
        UsageError: there are such folders, and none of the test split.
    """
    alike = SUFFIXES if list_files(train, SUFFIXES) else TEXTS
    full = [path.name for path in others if not path.name.startswith(".") and list_files(path, alike)]
    told = ", ".join(full[:3]) + (", ..." if len(full) > 3 else "")
    check(
        not full or len(held_out) > 0,
        f"data: {folder} has files in {train.name}/ and in {told}, and no folder test/; if {train.name} is a class "
        f"give it another name, and if it is the training split pass {train}.",
    )
    if full:
        _log.warning("%s: beside the splits there are files in %s, which are left out", folder, told)


def list_files(folder: Path, suffixes: Collection[str]) -> list[str]:
    """Return the files below a folder with certain suffixes, as sorted paths within it; the hidden are left out.

    Links are followed, but for those that lead back to a folder that they are in.
    """
    files: list[str] = []
    ways = {os.fspath(folder): {os.path.realpath(folder)}}  # of each folder to come what it is in
    for parent, children, names in os.walk(folder, followlinks=True):
        shown = {os.path.join(parent, child): child for child in children if not child.startswith(".")}
        real = {path: os.path.realpath(path) for path in shown}
        way = ways.pop(parent)
        round_about = [path for path in shown if real[path] in way]
        if round_about:
            _log.info("%s: links that lead back are left out: %s", folder, ", ".join(round_about))
        children[:] = [child for path, child in shown.items() if real[path] not in way]
        ways |= {path: way | {real[path]} for path in shown if real[path] not in way}
        inside = os.path.relpath(parent, folder)
        files += [
            os.path.normpath(os.path.join(inside, name))
            for name in names
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in suffixes
        ]
    return sorted(files)


def read_text(file: str) -> str:
    """Return the text in a file, without white space around it.

    Raises:
        UsageError: the file is not UTF-8, or no regular file.
    """
    return read_text_file(file).strip()


def read_text_file(file: str) -> str:
    """Return all of the text in a file.

    Raises:
        UsageError: the file is not UTF-8, or no regular file.
    """
    check_regular_file("data", file)
    try:
        return Path(file).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable_error(f"data: {file}", "a text of UTF-8", error) from error


def _found(folder: Path) -> tuple[list[tuple[str, ...]], list[str], set[str], Marks | None]:
    """Return the folders around each image, the images, the texts, and which images are the test split's.

    Where there is no image it is the texts.
    """
    parts = split_folders(folder)
    found = [[] if part is None else list_files(part, SUFFIXES | TEXTS) for part in parts]
    suffixes = SUFFIXES if any(_suffix(file) in SUFFIXES for files in found for file in files) else TEXTS
    around, chosen, others, is_test = [], [], set[str](), list[bool]()
    for number, (part, files) in enumerate(zip(parts, found, strict=True)):
        if part is None:
            continue
        own = [file for file in files if _suffix(file) in suffixes]
        known = f"images ({' '.join(sorted(SUFFIXES))})"
        what = known if suffixes is SUFFIXES else f"{known} or texts (.txt)"
        check(len(own) > 0, f"data: expected {what} in {part}, found none.")
        around += [PurePath(file).parts[:-1] for file in own]
        chosen += [str(part / file) for file in own]
        others |= {str(part / file) for file in files if _suffix(file) in TEXTS}
        is_test += [number == 1] * len(own)
    return around, chosen, others, np.array(is_test) if parts[1] is not None else None


def _suffix(file: str) -> str:
    return os.path.splitext(file)[1].lower()


def _captions(files: list[str], texts: set[str], folder: str) -> list[str] | None:
    """Return the text beside each image, empty where there is none; None where too few have one to be a view."""
    beside = [f"{os.path.splitext(file)[0]}.txt" for file in files]
    found = [file in texts for file in beside]
    if 2 * sum(found) < len(files):
        if any(found):
            told = "%s: %d of %d images have a text beside them, fewer than half: the texts are left out"
            _log.warning(told, folder, sum(found), len(files))
        return None
    captions = [read_text(file) if is_there else "" for file, is_there in zip(beside, found, strict=True)]
    lacking = sum(not caption for caption in captions)
    if lacking:
        _log.warning("%s: %d of %d images have no text beside them, or an empty one", folder, lacking, len(files))
    return captions


def _meaning(around: list[tuple[str, ...]], root: str) -> Items:
    """Return what the names of the folders around each image say about it."""
    named = [len(folders) > 0 for folders in around]
    if not any(named):
        return Items(root, len(around))
    check(
        all(named),
        f"data: {root} has files both in class folders and outside of them, {named.count(False)} of {len(named)} "
        f"outside; move these, or pass {format_options(ignore_labels=True)} to take all without classes.",
    )
    if not _have_domains(around):
        labels, class_names = factorize("labels", [folders[0] for folders in around])
        return Items(root, len(around), labels, class_names)
    domains, domain_names = factorize("domains", [folders[0] for folders in around])
    labels, class_names = factorize("labels", [folders[1] for folders in around])
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
