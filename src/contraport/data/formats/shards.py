"""Webdataset shards: tar archives in which files of one name and different suffixes are one sample."""

from __future__ import annotations

import io
import itertools
import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
from torch import Tensor

from contraport._utils.text_tensors import TEXT_SHAPE, texts_to_tensor
from contraport.data.arrays import as_view_tensor, factorize
from contraport.data.dataset import Dataset
from contraport.data.decoding import SUFFIXES
from contraport.data.digests import digest_encoded
from contraport.data.formats.column_roles import DOMAIN_NAMES, LABEL_NAMES
from contraport.data.formats.format import data_format
from contraport.data.formats.image_folder import list_files
from contraport.data.formats.tar_index import Members, members
from contraport.data.source_items import Items, View
from contraport.data.splits import TEST_NAMES
from contraport.errors import check, check_regular_file, unreadable_error

_IMAGE, _ARRAY, _TEXT, _CLASS, _JSON = "image", "npy", "txt", "cls", "json"
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_ARCHIVES = 1_000_000
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")

_log = logging.getLogger(__name__)


def is_shards(data: str) -> bool:
    """Return whether this names shards: an archive, several by braces, or a folder of archives.

    Archives beside images or beside folders of classes are what these were unpacked from, and no shards.
    """
    path = Path(data)
    if not path.is_dir():
        return path.suffix == ".tar"
    parts = [path, *(path / name for name in ("train", *TEST_NAMES))]
    children = [child for part in parts if part.is_dir() for child in part.iterdir() if child not in parts]
    shown = [child for child in children if not child.name.startswith(".")]
    others = (child for child in shown if child.is_dir() or child.suffix.lower() in SUFFIXES)
    return any(child.suffix == ".tar" for child in shown) and not any(others)


@data_format("shards", suffixes=[".tar"], recognizes=is_shards, takes=["image_size", "test_fraction"])
def load_shards(data: str, split: str, image_size: int | None = None, test_fraction: float | None = None) -> Dataset:
    """Return one split of webdataset shards.

    A sample is made of the neighbouring members whose paths are equal up to the first dot of the file's name. What
    follows names the field: an image (``.jpg``, ``.png``, ``.webp``, ...), an array (``.npy``), a text of UTF-8
    (``.txt``), a class (``.cls``), or a JSON object (``.json``) with a label and a domain by the names that columns of
    tables have. Several images, arrays or texts, such as ``.jpg`` and ``.txt``, or ``.left.jpg`` and ``.right.jpg``,
    are several views. Other fields are left out and counted in the log, and so are empty texts, and samples without one
    of the views.

    Shards whose file or folder begins with ``test`` (or ``val``) are the test split where there are others too; else
    some of each class are held out. Where there are shards of both names beside others, those of ``val`` are left out.
    The headers are read once; then a batch reads no more than its own bytes, in any order, and memory holds the index
    alone.

    Args:
        data: the path of an archive, a path with braces as in ``train-{000..003}.tar``, or a folder of archives.
        split: "train" or "test".
        image_size: side of the square that images become, in pixels; default: the median shorter side of the training
            images, kept between 8 and 64.
        test_fraction: share of each class to hold out where the data have no test split of their own; default: a fifth.

    Raises:
        UsageError: a missing, compressed, corrupt or cut archive, or samples that do not fit together.
    """
    archives, named = _dealt(_archives(data), data)
    samples: list[_Sample] = []
    ignored = Counter[str]()
    for number, archive in enumerate(archives):
        samples += _samples(number, archive, ignored)
    check(len(samples) > 0, f"data: {data} holds no image (.jpg, .png, ...), no array (.npy) and no text (.txt).")
    fields = _views(samples)
    rows = np.array([row for row, sample in enumerate(samples) if fields <= sample.views.keys()], dtype=np.int64)
    whole = [samples[row] for row in rows.tolist()]
    _tell_left_out(data, ignored, len(samples) - len(whole), fields)
    labels, class_names = _codes(whole, "label", data)
    domains, domain_names = _codes(whole, "domain", data)
    held_out = named[[sample.archive for sample in whole]]
    is_test = held_out if held_out.any() and not held_out.all() else None
    keys = [f"{archives[sample.archive]}:{sample.key}" for sample in whole]
    known = (labels, class_names, domains, domain_names)
    items = Items(data, len(whole), *known, is_test, rows=rows, keys=keys, test_fraction=test_fraction)
    views = [_view(archives, whole, field) for field in sorted(fields)]
    names = name_field_views(sorted(fields))
    return items.dataset(split, views, image_size=image_size, view_names=names)


def name_field_views(fields: Sequence[str]) -> list[str]:
    """Return what views are called that are fields: by what stands before the suffix, else by the suffix.

    >>> name_field_views(["image", "left.npy", "txt"])
    ['image', 'left', 'text']
    """
    fields = ["text" if field == _TEXT else field for field in fields]
    begun = [field.rpartition(".")[0] or field for field in fields]
    return [name if begun.count(name) == 1 else f"view{number}" for number, name in enumerate(begun)]


class _Place(NamedTuple):
    offset: int
    size: int


class _Sample(NamedTuple):
    archive: int
    key: str
    views: dict[str, _Place]
    label: str | None
    domain: str | None


@dataclass(frozen=True)
class ArrayMembers:
    """Arrays in archives as one view, parsed and checked when they are fetched."""

    members: Members
    shapes: tuple[tuple[int, ...], ...]
    in_memory: bool = False

    @cached_property
    def digests(self) -> Tensor:
        """Digests of the arrays, int64 ``(n, 1)``; all of them are read once."""
        return digest_encoded(self.members, range(len(self.members)))[:, None]

    def __len__(self) -> int:
        return len(self.members)

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the views at some positions, stacked."""
        return (_stacked(self.members, positions.tolist()),)


@dataclass(frozen=True)
class TextMembers:
    """Texts in archives as one view, read and checked when they are fetched."""

    members: Members
    in_memory: bool = False

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of one item of each view."""
        return (TEXT_SHAPE,)

    @cached_property
    def digests(self) -> Tensor:
        """Digests of the texts, int64 ``(n, 1)``; all of them are read once."""
        return digest_encoded(self.members, range(len(self.members)))[:, None]

    def __len__(self) -> int:
        return len(self.members)

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the texts at some positions, as long as the longest of them."""
        return (texts_to_tensor([self._text(position) for position in positions.tolist()], "data"),)

    def _text(self, position: int) -> str:
        try:
            return self.members[position].decode("utf-8-sig").strip()
        except UnicodeDecodeError as error:
            raise unreadable_error(f"data: {self.members.name(position)}", "a text of UTF-8", error) from error


def _archives(data: str) -> list[str]:
    path = Path(data)
    if path.is_dir():
        return [str(path / file) for file in list_files(path, {".tar"})]
    names = list(expanded(data))
    missing = [name for name in names if not Path(name).is_file()]
    check(not missing, f"data: {len(missing)} of {len(names)} archives of {data} are missing, first {missing[:1]}.")
    return names


def expanded(pattern: str) -> Iterator[str]:
    """Yield the names that braces stand for: ``{000..003}`` a range, ``{a,b}`` alternatives.

    >>> list(expanded("{train,test}-{08..10}.tar"))[2:5]
    ['train-10.tar', 'test-08.tar', 'test-09.tar']
    """
    pieces = _BRACES.split(pattern)  # texts at even places, contents of braces at odd ones
    choices = [_choices(piece) if place % 2 else [piece] for place, piece in enumerate(pieces)]
    return ("".join(parts) for parts in itertools.product(*choices))


def _choices(content: str) -> list[str]:
    match = _RANGE.fullmatch(content)
    if match is None:
        return content.split(",")
    first, last = int(match[1]), int(match[2])
    check(first <= last, f"data: expected a rising range in braces, got {{{content}}}.")
    check(last - first < _MOST_ARCHIVES, f"data: expected at most {_MOST_ARCHIVES} archives, got {{{content}}}.")
    return [str(number).zfill(len(match[1])) for number in range(first, last + 1)]


def _dealt(archives: list[str], data: str) -> tuple[list[str], np.ndarray]:
    """Return the archives of both splits, and which are named as the test split's, Booleans ``(archives,)``."""
    names = [_held_out_name(archive) for archive in archives]
    chosen = next((name for name in TEST_NAMES if name in names), None)
    if None in names and len(set(names)) > 2:
        others = [name for name in TEST_NAMES if name in names and name != chosen]
        _log.info("%s: %s is the test split; %s are left out", data, chosen, others)
        kept = [number for number, name in enumerate(names) if name in (None, chosen)]
        archives, names = [archives[number] for number in kept], [names[number] for number in kept]
    return archives, np.array([name is not None for name in names])


def _held_out_name(archive: str) -> str | None:
    """Return the name of a split that is held out by which an archive is called, or None."""
    path = PurePath(archive)
    begins = next((name for name in TEST_NAMES if re.match(rf"{name}(s|ing|set)?(?![a-z])", path.name)), None)
    return begins or next((name for name in TEST_NAMES if path.parent.name == name), None)


def _samples(number: int, archive: str, ignored: Counter[str]) -> Iterator[_Sample]:
    """Yield the samples of one archive that have a view, and count the fields that are no one's concern."""
    check_regular_file("data", archive)
    shown = (member for member in members(archive, ignored) if not PurePath(member.path).name.startswith("."))
    with open(archive, "rb") as file:
        for key, group in itertools.groupby(shown, key=lambda member: _key_and_field(member.path)[0]):
            views: dict[str, _Place] = {}
            about: dict[str, str] = {}
            for member in group:
                field = _key_and_field(member.path)[1]
                if field.rsplit(".", 1)[-1] == _TEXT and member.size == 0:
                    ignored[f"empty .{field}"] += 1
                elif field.rsplit(".", 1)[-1] in (_IMAGE, _ARRAY, _TEXT):
                    check(field not in views, f"data: {archive}: the sample {key!r} has two files for its {field!r}.")
                    views[sys.intern(field)] = _Place(member.offset, member.size)
                elif field in (_CLASS, _JSON):
                    file.seek(member.offset)
                    about |= _parsed(field, file.read(member.size), f"{archive}: {member.path}")
                else:
                    ignored[f".{field}"] += 1
            if views:
                yield _Sample(number, key, views, about.get("label"), about.get("domain"))


def _key_and_field(path: str) -> tuple[str, str]:
    """Return the sample of a member and its field, in which all formats of images are one.

    >>> _key_and_field("a.b/0001.left.JPG")
    ('a.b/0001', 'left.image')
    """
    folder, slash, name = path.rpartition("/")
    stem, _, field = name.partition(".")
    before, dot, suffix = field.lower().rpartition(".")
    return folder + slash + stem, before + dot + (_IMAGE if f".{suffix}" in SUFFIXES else suffix)


def _parsed(field: str, content: bytes, where: str) -> dict[str, str]:
    """Return the label and the domain that a `.cls` or `.json` file tells."""
    try:
        if field == _CLASS:
            return {"label": content.decode().strip()}
        told = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise unreadable_error(f"data: {where}", f".{field}", error) from error
    check(isinstance(told, dict), f"data: {where}: expected an object, got {type(told).__name__}.")
    found = {}
    for role, names in (("label", LABEL_NAMES), ("domain", DOMAIN_NAMES)):
        values = [value for name, value in told.items() if name.lower() in names]
        check(len(values) < 2, f"data: {where}: expected one {role}, got {values}.")
        if values:
            check(isinstance(values[0], int | str), f"data: {where}: expected an integer or text, got {values[0]!r}.")
            found[role] = str(values[0])
    return found


def _views(samples: list[_Sample]) -> set[str]:
    """Return the fields that make the views: those of the most samples, so that a stray field is no view."""
    counts = Counter(frozenset(sample.views) for sample in samples)
    return set(counts.most_common(1)[0][0])


def _tell_left_out(data: str, ignored: Counter[str], incomplete: int, fields: set[str]) -> None:
    if ignored:
        _log.info("%s: left out %s", data, ", ".join(f"{count} {what}" for what, count in ignored.most_common()))
    if incomplete:
        _log.warning("%s: %d samples lack one of %s and are left out", data, incomplete, sorted(fields))


def _codes(samples: list[_Sample], role: str, data: str) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """Return labels or domains as numbers, in the order of their values where all of them are whole numbers."""
    values = [getattr(sample, role) for sample in samples]
    lacking = next((sample for sample, value in zip(samples, values, strict=True) if value is None), None)
    if all(value is None for value in values):
        return None, None
    check(lacking is None, f"data: {data}: the sample {lacking and lacking.key!r} has no {role}, others have.")
    whole = all(_WHOLE.fullmatch(value) for value in values)
    return factorize(f"data: {data}: {role}", [int(value) for value in values] if whole else values)


def _view(archives: list[str], samples: list[_Sample], field: str) -> View:
    places = np.array([(sample.archive, *sample.views[field]) for sample in samples], dtype=np.int64)
    keys = tuple(sample.key for sample in samples)
    found = Members(tuple(archives), keys, field, places[:, 0], places[:, 1], places[:, 2])
    if field.endswith(_IMAGE):
        return found
    if field.endswith(_TEXT):
        return lambda positions: TextMembers(found.take(positions))
    shape = tuple(_stacked(found, [0]).shape[1:])
    return lambda positions: ArrayMembers(found.take(positions), (shape,))


def _stacked(arrays: Members, positions: list[int]) -> Tensor:
    """Return arrays as one view."""
    read = [_array(arrays, position) for position in positions]
    odd = next(
        (position for position, array in zip(positions, read, strict=True) if array.shape != read[0].shape), None
    )
    check(
        odd is None,
        f"data: {arrays.name(odd or 0)}: expected an array of shape {read[0].shape} as {arrays.name(positions[0])}.",
    )
    return as_view_tensor(f"data: {arrays.name(positions[0])}", np.stack(read))


def _array(arrays: Members, position: int) -> np.ndarray:
    try:
        array: np.ndarray = np.load(io.BytesIO(arrays[position]), allow_pickle=False)
    except Exception as error:  # on hostile bytes the parser raises whatever it likes
        raise unreadable_error(f"data: {arrays.name(position)}", "an array", error) from error
    check(isinstance(array, np.ndarray), f"data: {arrays.name(position)}: expected an array, got an archive.")
    return array
