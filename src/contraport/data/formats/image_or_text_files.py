"""Formats of image folders, text folders and files of text lines."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path, PurePath

import numpy as np

from contraport._utils.formatting import format_options
from contraport._utils.text_bytes import check_nonblank_texts
from contraport.data.array_datasets import factorize
from contraport.data.dataset import Dataset
from contraport.data.formats import data_format
from contraport.data.image_decoding import IMAGE_SUFFIXES, ImageFilePaths
from contraport.data.item_metadata import ItemFilesBytesOrStore, ItemMetadata
from contraport.data.splits import TEST_SPLIT_NAMES
from contraport.data.stores import PackedTextStore
from contraport.errors import check, check_regular_file, translate_read_errors

TEXT_SUFFIXES = frozenset((".txt",))
"""Suffixes of text files."""

_log = logging.getLogger(__name__)


@data_format(
    "a folder of images or texts",
    recognizes=os.path.isdir,
    options=["image_size", "test_fraction", "ignore_labels"],
    fallback=True,
)
def load_image_or_text_folder(
    folder: str,
    split: str,
    image_size: int | None = None,
    test_fraction: float | None = None,
    ignore_labels: bool = False,
) -> Dataset:
    """Load one split from a folder of images or texts.

    ``folder/class/*.png`` is labeled, ``folder/*.png`` is not. ``folder/domain/class/*.png`` has domains too: it is
    read so if each of several domains has the same several classes; in other deeper folders the outermost folder is the
    class. Each layout may be below ``train/`` and ``test/`` (or ``val/``). Hidden files, and files without the suffix
    of an image, are ignored. Images that cannot be decoded are left out, logged, and listed in ``unreadable_files``.

    If at least half of the images have a text beside them, ``photo.txt`` beside ``photo.jpg``, the texts are a second
    view, which an image without a text or with an empty one lacks. A folder of ``*.txt`` without images is a dataset of
    texts. Texts are UTF-8 and held in memory.
    """
    # The items are the images of all parts, or the texts if there are no images.
    parts = [part for part in _get_train_and_test_folders(Path(folder)) if part is not None]
    listed = [list_relative_paths(part, IMAGE_SUFFIXES | TEXT_SUFFIXES) for part in parts]
    has_images = any(_get_lower_suffix(file) in IMAGE_SUFFIXES for part_files in listed for file in part_files)
    parents, files, texts, test_mask = [], [], set[str](), list[bool]()
    message = f"data: must be a file or folder of data, got the run folder {folder}; its config.yaml names its data."
    check(not Path(folder, "config.yaml").is_file() or not Path(folder, "metrics.jsonl").is_file(), message, "run")
    for number, (part, part_files) in enumerate(zip(parts, listed, strict=True)):
        matching = [file for file in part_files if not has_images or _get_lower_suffix(file) in IMAGE_SUFFIXES]
        expected = f"images ({' '.join(sorted(IMAGE_SUFFIXES))}){'' if has_images else ' or texts (.txt)'}"
        check(len(matching) > 0, f"data: {part} must have {expected}, found none.", "empty")
        parents += [PurePath(file).parts[:-1] for file in matching]
        files += [str(part / file) for file in matching]
        texts |= {str(part / file) for file in part_files if _get_lower_suffix(file) in TEXT_SUFFIXES}
        test_mask += [number == 1] * len(matching)
    is_test = np.array(test_mask) if len(parts) == 2 else None
    items = ItemMetadata(folder, len(files)) if ignore_labels else _metadata_from_folder_names(parents, folder)
    items = replace(items, is_test=is_test, keys=files, test_fraction=test_fraction)
    if not has_images:
        contents = [read_text_file(file).strip() for file in files]
        check_nonblank_texts(f"data: {folder}", contents)
        return items.build_split_dataset(split, [PackedTextStore.from_texts(contents, "data")], view_names=("text",))
    images, captions = ImageFilePaths(tuple(files)), _read_captions_unless_few(files, texts, folder)
    if captions is None:
        return items.build_split_dataset(split, [images], image_size=image_size)
    nonempty = np.array([bool(caption) for caption in captions])
    present = None if nonempty.all() else np.stack([np.ones_like(nonempty), nonempty], axis=1)
    views: list[ItemFilesBytesOrStore] = [images, PackedTextStore.from_texts(captions, "data")]
    items = replace(items, present=present)
    return items.build_split_dataset(split, views, image_size=image_size, view_names=("image", "text"))


@data_format("texts", suffixes=[".txt"])
def load_lines(path: str, split: str, test_fraction: float | None = None) -> Dataset:
    """Load one split from a UTF-8 `.txt` file, one item per nonempty line."""
    lines = [line.strip() for line in read_text_file(path).split("\n")]
    rows = [row for row, line in enumerate(lines) if line]
    check(len(rows) > 0, f"data: {path} has no line.", "empty")
    items = ItemMetadata(path, len(rows), source_rows=np.array(rows), test_fraction=test_fraction)
    return items.build_split_dataset(
        split, [PackedTextStore.from_texts([lines[row] for row in rows], f"data: {path}")], view_names=("text",)
    )


def _get_train_and_test_folders(folder: Path) -> tuple[Path, Path | None]:
    """Return the folder of training items, and that of test items or None.

    Warns of folders beside these; raises `UsageError` if train/ may be a class rather than a split.
    """
    below = sorted(child.name for child in folder.iterdir() if child.is_dir())
    by_name = {name.lower(): folder / name for name in below}  # of Test and test, the latter
    train = by_name.get("train", folder)
    test_folders = [by_name[name] for name in TEST_SPLIT_NAMES if name in by_name]
    others = [folder / name for name in below if name.lower() not in ("train", *TEST_SPLIT_NAMES)]
    if train != folder and others:
        suffixes = IMAGE_SUFFIXES if list_relative_paths(train, IMAGE_SUFFIXES) else TEXT_SUFFIXES
        full = [path.name for path in others if not path.name.startswith(".") and list_relative_paths(path, suffixes)]
        shown = ", ".join(full[:3]) + (", ..." if len(full) > 3 else "")
        message = f"data: {folder} has files in {train.name}/ and in {shown}, but no folder test/. "
        message += f"If {train.name} is a class, rename it; if it is the training split, pass {train}."
        check(not full or bool(test_folders), message, "ambiguous_folders")
        if full:
            _log.warning("%s: files in %s, beside the splits, are not used", folder, shown)
    name = test_folders and test_folders[0].name
    check(train != folder or not test_folders, f"data: {folder} has {name}/ but no train/.", "no_train_split")
    if len(test_folders) > 1:
        unused = [path.name for path in test_folders[1:]]
        _log.info("%s: %s is the test split; %s are not used", folder, test_folders[0].name, unused)
    return train, test_folders[0] if test_folders else None


def list_relative_paths(folder: Path, suffixes: Collection[str]) -> list[str]:
    """List files with given suffixes in a folder tree, as sorted relative paths.

    Links are followed, except those to a folder that contains them.
    """
    files: list[str] = []
    ancestors = {os.fspath(folder): {os.path.realpath(folder)}}  # of each folder still to be visited
    for parent, children, names in os.walk(folder, followlinks=True):
        shown = {os.path.join(parent, child): child for child in children if not child.startswith(".")}
        real = {path: os.path.realpath(path) for path in shown}
        above = ancestors.pop(parent)
        cycles = [path for path in shown if real[path] in above]
        if cycles:
            _log.info("%s: links to a folder that contains them are not followed: %s", folder, ", ".join(cycles))
        children[:] = [child for path, child in shown.items() if real[path] not in above]
        ancestors |= {path: above | {real[path]} for path in shown if real[path] not in above}
        inside = os.path.relpath(parent, folder)
        files += [
            os.path.normpath(os.path.join(inside, name))
            for name in names
            if not name.startswith(".") and _get_lower_suffix(name) in suffixes
        ]
    return sorted(files)


def read_text_file(file: str) -> str:
    """Read a regular file of UTF-8 text."""
    check_regular_file("data", file)
    with translate_read_errors(f"data: {file}", "a text of UTF-8"):
        return Path(file).read_text("utf-8-sig")


def _get_lower_suffix(file: str) -> str:
    """Return the suffix of a file in lower case, with its dot."""
    return os.path.splitext(file)[1].lower()


def _read_captions_unless_few(files: list[str], texts: set[str], folder: str) -> list[str] | None:
    """Return the caption beside each image, or None if most images lack one."""
    candidates = [f"{os.path.splitext(file)[0]}.txt" for file in files]
    number = sum(file in texts for file in candidates)
    if 2 * number < len(files):
        if number:
            message = "%s: %d of %d images have a text beside them, fewer than half: the texts are not used"
            _log.warning(message, folder, number, len(files))
        return None
    captions = [read_text_file(file).strip() if file in texts else "" for file in candidates]
    missing = sum(not caption for caption in captions)
    if missing:
        _log.warning("%s: %d of %d images have no text beside them, or an empty one", folder, missing, len(files))
    return captions


def _metadata_from_folder_names(parents: list[tuple[str, ...]], data_name: str) -> ItemMetadata:
    """Build item metadata from class folders, or domain folders that contain class folders."""
    in_folder = [len(folders) > 0 for folders in parents]
    if not any(in_folder):
        return ItemMetadata(data_name, len(parents))
    outside = f"{in_folder.count(False)} of {len(in_folder)} files"
    message = f"data: {data_name} has {outside} outside of its class folders; move them, or ignore the classes by "
    check(all(in_folder), f"{message}{format_options(ignore_labels=True)}.", "mixed_folders")
    inner: dict[str, set[str]] = {}
    for folders in parents:
        inner.setdefault(folders[0], set()).add("/".join(folders[1:]))
    first = next(iter(inner.values()))
    # Outer folders are domains if there are several, and all contain the same two or more folders.
    have_domains = len(inner) > 1 and len(first) > 1 and all(names == first for names in inner.values())
    if not have_domains or any(len(folders) != 2 for folders in parents):
        labels, class_names = factorize("labels", [folders[0] for folders in parents])
        return ItemMetadata(data_name, len(parents), labels, class_names)
    domains, domain_names = factorize("domains", [folders[0] for folders in parents])
    labels, class_names = factorize("labels", [folders[1] for folders in parents])
    _log.info("%s: read as domain/class, %d domains of %d classes", data_name, len(domain_names), len(class_names))
    return ItemMetadata(data_name, len(parents), labels, class_names, domains, domain_names)
