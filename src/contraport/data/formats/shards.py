"""Format of webdataset shards, tar archives with several files per sample."""

from __future__ import annotations

import io
import itertools
import json
import logging
import math
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
from torch import Tensor

from contraport._utils.text_bytes import TEXT_SHAPE, texts_to_tensor
from contraport.data.array_datasets import as_view_tensor, factorize
from contraport.data.dataset import Dataset
from contraport.data.formats import data_format
from contraport.data.formats.column_roles import DOMAIN_COLUMN_NAMES, LABEL_COLUMN_NAMES
from contraport.data.formats.image_or_text_files import list_relative_paths
from contraport.data.image_decoding import IMAGE_SUFFIXES
from contraport.data.item_metadata import ItemFilesBytesOrStore, ItemMetadata
from contraport.data.splits import TEST_SPLIT_NAMES, PositionArray
from contraport.data.stores import DecodingStore, ItemFilesOrBytes, Shape
from contraport.errors import check, check_regular_file, translate_read_errors

_IMAGE_FIELD, _ARRAY_FIELD, _TEXT_FIELD, _CLASS_FIELD, _JSON_FIELD = "image", "npy", "txt", "cls", "json"
"""Fields of samples: suffixes of archive members, and one name for all suffixes of images."""

_log = logging.getLogger(__name__)


def refers_to_tar_archives(data: str) -> bool:
    """Return whether a path, brace pattern or folder refers to tar archives.

    Archives in a folder with images or class folders do not count: they are the source from which those were unpacked.
    """
    path = Path(data)
    if not path.is_dir():
        return path.suffix == ".tar"
    parts = [path, *(path / name for name in ("train", *TEST_SPLIT_NAMES))]
    children = [child for part in parts if part.is_dir() for child in part.iterdir() if child not in parts]
    shown = [child for child in children if not child.name.startswith(".")]
    others = (child for child in shown if child.is_dir() or child.suffix.lower() in IMAGE_SUFFIXES)
    return any(child.suffix == ".tar" for child in shown) and not any(others)


@data_format("shards", suffixes=[".tar"], recognizes=refers_to_tar_archives, options=["image_size", "test_fraction"])
def load_shards(data: str, split: str, image_size: int | None = None, test_fraction: float | None = None) -> Dataset:
    """Load one split from webdataset shards.

    A sample consists of neighboring members whose paths are equal up to the first dot of the file name. The rest is the
    field: an image (``.jpg``, ``.png``, ``.webp``, ...), an array (``.npy``), a UTF-8 text (``.txt``), a class
    (``.cls``), or a JSON object (``.json``) with a label and a domain under the names of such columns of tables.
    Several images, arrays or texts, such as ``.jpg`` and ``.txt``, or ``.left.jpg`` and ``.right.jpg``, are several
    views. Other fields, empty texts, and samples that lack a view are left out and counted in the log.

    Shards whose file or folder begins with ``test`` (or ``val``) are the test split if there are others. If there are
    shards of both names, those of ``val`` are not used.

    The headers are read once; a batch then reads only its own bytes, in any order, and only the index is in memory.
    The path may be that of an archive, have braces as in ``train-{000..003}.tar``, or be that of a folder of archives.
    """
    archives, held_out = _list_archives_with_test_mask(data)
    samples: list[_Sample] = []
    ignored_counts = Counter[str]()
    for number, archive in enumerate(archives):
        samples += _iterate_samples(number, archive, ignored_counts)
    check(len(samples) > 0, f"data: {data} has no image (.jpg, .png, ...), array (.npy) or text (.txt).", "empty")
    # The views are the fields of most samples, so that a stray field is no view.
    fields = sorted(Counter(frozenset(sample.offset_and_size_by_field) for sample in samples).most_common(1)[0][0])
    rows = np.array(
        [row for row, sample in enumerate(samples) if sample.offset_and_size_by_field.keys() >= set(fields)],
        dtype=np.int64,
    )
    complete = [samples[row] for row in rows.tolist()]
    if ignored_counts:
        _log.info("%s: left out %s", data, ", ".join(f"{count} {what}" for what, count in ignored_counts.most_common()))
    if len(complete) < len(samples):
        _log.warning("%s: %d samples lack one of %s and are left out", data, len(samples) - len(complete), fields)
    labels, class_names = _encode_as_codes_and_names(complete, "label", data)
    domains, domain_names = _encode_as_codes_and_names(complete, "domain", data)
    is_test = held_out[[sample.archive_index for sample in complete]]
    items = ItemMetadata(
        data,
        len(complete),
        labels=labels,
        class_names=class_names,
        domains=domains,
        domain_names=domain_names,
        is_test=is_test if is_test.any() and not is_test.all() else None,
        test_fraction=test_fraction,
        source_rows=rows,
        keys=[f"{archives[sample.archive_index]}:{sample.key}" for sample in complete],
    )
    views = [_build_view(archives, complete, field) for field in fields]
    return items.build_split_dataset(split, views, image_size=image_size, view_names=derive_field_view_names(fields))


def derive_field_view_names(fields: Sequence[str]) -> tuple[str, ...]:
    """Return the view name of each field, such as "left" for "left.npy".

    >>> derive_field_view_names(["image", "left.npy", "txt"])
    ('image', 'left', 'text')
    """
    fields = ["text" if field == _TEXT_FIELD else field for field in fields]
    stems = [field.rpartition(".")[0] or field for field in fields]
    return tuple(stem if stems.count(stem) == 1 else f"view{number}" for number, stem in enumerate(stems))


class _Sample(NamedTuple):
    """Sample in a tar archive, with the byte ranges of its files."""

    archive_index: int
    key: str
    offset_and_size_by_field: dict[str, tuple[int, int]]  # of the members that are views
    label: str | None
    domain: str | None


@dataclass(frozen=True)
class ArchiveMembers(ItemFilesOrBytes):
    """Undecoded files of one suffix, one per sample, in tar archives.

    Each access opens an archive, so that several processes can use the same object.

    Attributes:
        archive_paths: path of each archive.
        keys: key of each sample.
        field: suffix of the members.
        archive_indices: index of the archive of each sample, ``(n,)``.
        offsets: position of each member in its archive, in bytes, ``(n,)``.
        sizes: size of each member in bytes, ``(n,)``.
    """

    archive_paths: tuple[str, ...]
    keys: tuple[str, ...]
    field: str
    archive_indices: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, position: int) -> bytes:
        size = int(self.sizes[position])
        with open(self.archive_paths[self.archive_indices[position]], "rb") as file:
            file.seek(int(self.offsets[position]))
            content = file.read(size)
        message = f"data: {self.describe_item_location(position)} is truncated; the archive was complete before."
        check(len(content) == size, message, "unreadable")
        return content

    def subset(self, positions: PositionArray) -> ArchiveMembers:
        keys = tuple(self.keys[position] for position in positions.tolist())
        places = self.archive_indices[positions], self.offsets[positions], self.sizes[positions]
        return ArchiveMembers(self.archive_paths, keys, self.field, *places)

    def describe_item_location(self, position: int) -> str:
        return f"{self.archive_paths[self.archive_indices[position]]}: {self.keys[position]}.{self.field}"


def expand_braces(pattern: str) -> list[str]:
    """Expand braces such as ``{000..003}`` (a range) or ``{a,b}`` (alternatives) in a name.

    >>> expand_braces("{train,test}-{08..10}.tar")[2:5]
    ['train-10.tar', 'test-08.tar', 'test-09.tar']
    """
    pieces = re.split(r"\{([^{}]*)\}", pattern)  # plain texts at even places, contents of braces at odd ones
    choices: list[list[str]] = []
    for place, piece in enumerate(pieces):
        match = re.fullmatch(r"(\d+)\.\.(\d+)", piece) if place % 2 else None
        first, last = (int(match[1]), int(match[2])) if match else (0, piece.count(",") if place % 2 else 0)
        check(first <= last, f"data: a range in braces must rise, got {{{piece}}}.", "braces")
        good = math.prod(map(len, choices)) * (last - first + 1) <= 1_000_000
        check(good, f"data: must have at most 1000000 archives, got {pattern}.", "too_many_archives")
        if match:
            choices.append([str(number).zfill(len(match[1])) for number in range(first, last + 1)])
        else:
            choices.append(piece.split(",") if place % 2 else [piece])
    return ["".join(parts) for parts in itertools.product(*choices)]


def _list_archives_with_test_mask(data: str) -> tuple[list[str], np.ndarray]:
    """Return the archives of both splits, and the mask of the test archives."""
    folder = Path(data)
    if folder.is_dir():
        archives = [str(folder / file) for file in list_relative_paths(folder, {".tar"})]
    else:
        archives = expand_braces(data)
        missing = [name for name in archives if not Path(name).is_file()]
        message = (
            f"data: {len(missing)} of {len(archives)} archives of {data} are missing, first {''.join(missing[:1])}."
        )
        check(not missing, message, "not_found")
    names: list[str | None] = []
    for path in map(PurePath, archives):  # a test split is named by the beginning of the file name, or by the folder
        by_file = [name for name in TEST_SPLIT_NAMES if re.match(rf"{name}(s|ing|set)?(?![a-z])", path.name)]
        by_folder = [name for name in TEST_SPLIT_NAMES if path.parent.name == name]
        names.append(next(iter([*by_file, *by_folder]), None))
    chosen = next((name for name in TEST_SPLIT_NAMES if name in names), None)
    if None in names and len(set(names)) > 2:
        others = [name for name in TEST_SPLIT_NAMES if name in names and name != chosen]
        _log.info("%s: %s is the test split; %s are not used", data, chosen, others)
        used = [number for number, name in enumerate(names) if name in (None, chosen)]
        archives, names = [archives[number] for number in used], [names[number] for number in used]
    return archives, np.array([name is not None for name in names])


def _iterate_samples(archive_index: int, archive: str, ignored_counts: Counter[str]) -> Iterator[_Sample]:
    """Yield the usable samples of an archive, and count ignored fields."""
    check_regular_file("data", archive)
    files = _iterate_tar_members(archive, ignored_counts)
    shown = (member for member in files if not PurePath(member.name).name.startswith("."))
    with open(archive, "rb") as file:
        for key, group in itertools.groupby(shown, key=lambda member: _split_into_key_and_field(member.name)[0]):
            views: dict[str, tuple[int, int]] = {}
            metadata: dict[str, str] = {}
            for member in group:
                field = _split_into_key_and_field(member.name)[1]
                kind = field.rpartition(".")[2]
                if kind == _TEXT_FIELD and member.size == 0:
                    ignored_counts[f"empty .{field}"] += 1
                elif kind in (_IMAGE_FIELD, _ARRAY_FIELD, _TEXT_FIELD):
                    message = f"data: {archive}: the sample {key!r} has two files for its {field!r}."
                    check(field not in views, message, "repeated_field")
                    views[sys.intern(field)] = member.offset_data, member.size
                elif field in (_CLASS_FIELD, _JSON_FIELD):
                    file.seek(member.offset_data)
                    metadata |= _parse_label_and_domain(field, file.read(member.size), f"{archive}: {member.name}")
                else:
                    ignored_counts[f".{field}"] += 1
            if views:
                yield _Sample(archive_index, key, views, metadata.get("label"), metadata.get("domain"))


def _split_into_key_and_field(path: str) -> tuple[str, str]:
    """Split an archive member's path into sample key and field.

    An example is "0001" and "left.npy". Every image suffix becomes "image".

    >>> _split_into_key_and_field("a.b/0001.left.JPG")
    ('a.b/0001', 'left.image')
    """
    folder, slash, name = path.rpartition("/")
    stem, _, field = name.partition(".")
    before, dot, suffix = field.lower().rpartition(".")
    return folder + slash + stem, before + dot + (_IMAGE_FIELD if f".{suffix}" in IMAGE_SUFFIXES else suffix)


def _parse_label_and_domain(suffix: str, content: bytes, file_name: str) -> dict[str, str]:
    """Return the "label" and "domain" in a `.cls` or `.json` file."""
    with translate_read_errors(f"data: {file_name}", f".{suffix}"):
        if suffix == _CLASS_FIELD:
            return {"label": content.decode().strip()}
        values = json.loads(content)
    check(isinstance(values, dict), f"data: {file_name} must be an object, got {type(values).__name__}.", "json")
    metadata = {}
    for role, names in (("label", LABEL_COLUMN_NAMES), ("domain", DOMAIN_COLUMN_NAMES)):
        matches = [value for name, value in values.items() if name.lower() in names]
        check(len(matches) < 2, f"data: {file_name} must have one {role}, got {matches}.", "json")
        if matches:
            good = isinstance(matches[0], int | str)
            check(good, f"data: {file_name}: the {role} must be an integer or text, got {matches[0]!r}.", "json")
            metadata[role] = str(matches[0])
    return metadata


def _encode_as_codes_and_names(
    samples: list[_Sample], role: str, data: str
) -> tuple[np.ndarray, tuple[str, ...]] | tuple[None, None]:
    """Encode labels or domains as integer codes, with the name of each code.

    Codes follow the numerical order if all values are integers, and otherwise the alphabetical order.
    """
    values = [getattr(sample, role) for sample in samples]
    if all(value is None for value in values):
        return None, None
    missing = next((sample.key for sample, value in zip(samples, values, strict=True) if value is None), None)
    check(missing is None, f"data: {data}: the sample {missing!r} has no {role}, others have.", f"missing_{role}")
    integers = all(re.fullmatch(r"0|-?[1-9]\d{0,17}", value) for value in values)  # without leading zeros, in 64 bits
    return factorize(f"data: {data}: {role}", [int(value) for value in values] if integers else values)


def _build_view(archives: list[str], samples: list[_Sample], field: str) -> ItemFilesBytesOrStore:
    """Build one view from a field that all samples have."""
    places = np.array(
        [(sample.archive_index, *sample.offset_and_size_by_field[field]) for sample in samples], dtype=np.int64
    )
    members = ArchiveMembers(tuple(archives), tuple(sample.key for sample in samples), field, *places.T)
    if field.endswith(_IMAGE_FIELD):
        return members
    if field.endswith(_TEXT_FIELD):
        return DecodingStore(members, TEXT_SHAPE, _decode_texts)
    shape = tuple(_decode_arrays(members, [0]).shape[1:])
    return DecodingStore(members, shape, _decode_arrays)


def _decode_texts(members: ItemFilesOrBytes, positions: Sequence[int], _shape: Shape) -> Tensor:
    """Read the texts of some samples into one tensor of UTF-8 bytes."""
    texts = []
    for position in positions:
        with translate_read_errors(f"data: {members.describe_item_location(position)}", "a text of UTF-8"):
            content = members[position]
            assert isinstance(content, bytes)
            texts.append(content.decode("utf-8-sig").strip())
    return texts_to_tensor(texts, "data")


def _decode_arrays(members: ItemFilesOrBytes, positions: Sequence[int], _shape: Shape = ()) -> Tensor:
    """Read the arrays of some samples, and stack them into one tensor."""
    arrays: list[np.ndarray] = []
    for position in positions:
        name = members.describe_item_location(position)
        with translate_read_errors(f"data: {name}", "an array"):
            content = members[position]
            assert isinstance(content, bytes)
            arrays.append(np.load(io.BytesIO(content), allow_pickle=False))
        check(isinstance(arrays[-1], np.ndarray), f"data: {name} must be an array, got an archive.", "archive")
        message = f"data: {name} must have shape {arrays[0].shape} like {members.describe_item_location(positions[0])}."
        check(arrays[-1].shape == arrays[0].shape, message, "shape")
    return as_view_tensor(f"data: {members.describe_item_location(positions[0])}", np.stack(arrays))


def _iterate_tar_members(archive: str, ignored_counts: Counter[str]) -> Iterator[tarfile.TarInfo]:
    """Yield the regular files of an uncompressed tar archive in order.

    Other members are counted in `ignored_counts`. Nothing is extracted: a path inside is only a name.

    Raises:
        UsageError: the archive is compressed, corrupt or truncated.
    """
    with translate_read_errors(f"data: {archive}", "an uncompressed tar archive"):
        with tarfile.open(archive, "r:") as tar:
            end = 0
            while (info := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # otherwise all headers stay in memory
                message = f"data: {archive} is corrupt: the member {info.name!r} has a negative size."
                check(tar.offset > end, message, "unreadable")
                end = tar.offset
                if info.isfile() and not info.issparse():
                    yield info
                elif not info.isdir():
                    ignored_counts["link, device, pipe or sparse file"] += 1
            end = tar.offset
        with open(archive, "rb") as file:  # tarfile does not check that the archive ends with a block of zeros
            file.seek(end)
            block = file.read(tarfile.BLOCKSIZE)
        check(len(block) == tarfile.BLOCKSIZE, f"data: {archive} is truncated after {end} bytes.", "unreadable")
        check(not any(block), f"data: {archive} is corrupt: no header of a member at byte {end}.", "unreadable")
