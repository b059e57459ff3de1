"""Reading and writing of feature files with metadata of their items.

- `.npz`: the arrays `features` `(n, F)` float32, `rows` `(n,)`, `splits` `(n,)`, `run`, `data`, and where available
  `view`, `dims`, `keys` `(n,)`, `descriptions` `(n,)` and `labels` `(n,)` with `class_names`.
- `.parquet`: the columns `f0`, `f1` and so on, `row`, `split`, and where available `key`, `description`, `label` and
  `class_name`.
- `.npy`: the features alone, so that they can be memory-mapped; the other columns are in `NAME.items.parquet` beside.
"""

from __future__ import annotations

import glob
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from contraport._utils.files import atomic_write, read_npy_array, read_npz_arrays
from contraport._utils.formatting import join_names
from contraport.errors import check, check_regular_file, translate_read_errors, translate_write_errors, type_and_shape

if TYPE_CHECKING:
    import pyarrow as pa

_METADATA_PREFIX = "contraport."  # prefix of this package's keys in the metadata of Parquet files

_STORED_NAME_BY_SINGLE_TEXT_FIELD = {"run": "run", "view": "view", "dims": "dims", "data_name": "data"}
"""Name in feature files of each field of `Features` that is one text."""

_STORED_NAME_BY_ITEM_FIELD = {
    "source_rows": "rows",
    **{name: name for name in ("splits", "keys", "descriptions", "labels")},
}
"""Name in `.npz` files of each field of `Features` with a value per item; Parquet columns have the singular form."""

_ROW_GROUP_BYTES = 2**26
"""Maximum number of bytes of features in a row group of a Parquet file, which is held in memory at a time."""

_ITEM_COLUMNS = "row", "split", "key", "description", "label", "class_name"
"""Names of the columns of Parquet files other than features."""


@dataclass(frozen=True)
class Features:
    """Features of `n` items, with each item's source row, split, key and label.

    Attributes:
        features: feature matrix, ``(n, F)`` float32.
        source_rows: row number of each item in its source, counting rows that were left out, ``(n,)``.
        splits: split of each item, ``(n,)``.
        keys: name of each item in its source, such as a file path, ``(n,)``; None if items are identified by row only.
        labels: class of each item, ``(n,)``, or None.
        class_names: names of the classes in the order of their numbers, or None.
        run: folder of the run that embedded the items, or None if unknown.
        view: name of the embedded view, if only one of several was embedded; None for features of whole items.
        dims: number of leading coordinates kept of the representation (Matryoshka), as a string; None if all.
        data_name: name of the data, for training data as in the run's settings; None if unknown.
        descriptions: beginning of the text of each item that has a key besides, ``(n,)``; None without both.

    Raises:
        UsageError: the arrays have unequal lengths, or the features are not rows of floats.
    """

    features: np.ndarray
    source_rows: np.ndarray
    splits: np.ndarray
    keys: np.ndarray | None = None
    labels: np.ndarray | None = None
    class_names: np.ndarray | None = None
    run: str | None = None
    view: str | None = None
    dims: str | None = None
    data_name: str | None = None
    descriptions: np.ndarray | None = None

    def __post_init__(self) -> None:
        good = self.features.ndim == 2 and self.features.dtype.kind == "f"
        check(good, f"features: must be floats (n, F), got {self.features.dtype} of shape {self.features.shape}.")
        check(self.features.size > 0, f"features: must not be empty, got shape {self.features.shape}.", "empty")
        for name in _STORED_NAME_BY_ITEM_FIELD:
            values, shape = getattr(self, name), (len(self.features),)
            fits = values is None or values.shape == shape
            check(fits, f"features: {name} must have shape {shape}, got {np.shape(values)}.", "shape")
        if self.labels is not None:
            message = f"features: labels must be integers, with their names in class_names, got {self.labels.dtype}."
            check(self.labels.dtype.kind in "iu", message, "labels")
            low, high = int(self.labels.min()), int(self.labels.max())
            names = None if self.class_names is None else len(self.class_names)
            expected = "0 or more" if names is None else f"from 0 to {names - 1}, as class_names has the names"
            fits = low >= 0 and (names is None or high < names)
            check(fits, f"features: labels must be {expected}, got {low if low < 0 else high}.", "labels")
        message = f"features: dims must be a number of coordinates, got {self.dims!r}."
        check(self.dims is None or self.dims.isdecimal(), message, "dims")

    def __len__(self) -> int:
        return len(self.features)

    def take(self, positions: np.ndarray | slice) -> Features:
        """Return the `Features` of the items at the given positions."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in ("features", *_STORED_NAME_BY_ITEM_FIELD)}
        return replace(self, **{name: array[positions] for name, array in arrays.items() if array is not None})

    def item_name(self, position: int) -> str:
        """Return an item's key, or its split and row if items lack keys.

        >>> Features(np.ones((2, 3)), np.array([4, 7]), np.array(["test", "test"])).item_name(1)
        'test row 7'
        """
        if self.keys is not None:
            return str(self.keys[position])
        return f"{self.splits[position]} row {self.source_rows[position]}"

    def item_description(self, position: int) -> str | None:
        """Return the beginning of an item's text, or None if not stored."""
        return None if self.descriptions is None else str(self.descriptions[position])

    def item_name_and_description(self, position: int) -> str:
        """Return an item's name and description in one line."""
        return ": ".join(filter(None, [self.item_name(position), self.item_description(position)]))

    def class_name_at(self, position: int) -> str | None:
        """Return the name or number of an item's class, or None without labels."""
        if self.labels is None:
            return None
        label = int(self.labels[position])
        return str(label if self.class_names is None else self.class_names[label])


def as_features(values: Any) -> Features:
    """Convert an array ``(n, F)`` or feature file to `Features`.

    Floats that torch lacks, of more than 64 bits, become float32.

    >>> as_features(np.ones((2, 3))).source_rows.tolist()
    [0, 1]
    """
    if isinstance(values, Features):
        return values
    if isinstance(values, str | Path):
        return read_features(values)
    from contraport.data.array_datasets import as_array  # imported here because it needs torch

    array = as_array("features", values)
    good = array.dtype.kind in "fiu" and array.ndim == 2
    check(good, f"features: must be numbers of shape (n, F) or a file, got {type_and_shape(array)}.")
    is_float = array.dtype.kind == "f" and array.dtype.itemsize <= 8
    return _features_from_array(array if is_float else array.astype(np.float32))


def write_features(path: Path, features: Features) -> None:
    """Write features to an `.npz`, `.npy` or `.parquet` file, atomically."""
    _READER_AND_WRITER_BY_SUFFIX[path.suffix][1](path, features)


def write_feature_shards(file: Path, features: Features, items_per_shard: int) -> list[Path]:
    """Write features to numbered files named after `file`, and return their paths in order.

    >>> shard_path(Path("photos.npz"), 0, 2).name
    'photos.00000-of-00002.npz'
    """
    total = -(-len(features) // items_per_shard)
    paths = [shard_path(file, number, total) for number in range(total)]
    for number, shard in enumerate(paths):
        write_features(shard, features.take(slice(number * items_per_shard, (number + 1) * items_per_shard)))
    return paths


def shard_path(file: Path, index: int, num_shards: int) -> Path:
    """Return the path of a shard of a feature file, such as ``photos.00000-of-00002.npz``."""
    return file.with_name(f"{file.stem}.{index:05d}-of-{num_shards:05d}{file.suffix}")


def list_conflicting_files(path: Path, num_new_shards: int | None = None) -> list[Path]:
    """List existing files that `read_features` would confuse with new shards.

    If `num_new_shards` is known, shards of a file with the same number of shards do not conflict.
    """
    older = [shard for shard in _list_shard_files(path) if _parse_shard_total(shard) != num_new_shards]
    return [path, *older] if path.exists() else older


def remove_features_and_items_table(feature_file: Path) -> None:
    """Remove a feature file and, for an `.npy` file, its table of items."""
    feature_file.unlink(missing_ok=True)
    if feature_file.suffix == ".npy":
        items_table_path(feature_file).unlink(missing_ok=True)


class TemporaryFeatureBuffer:
    """Buffer of features in a temporary file, and of item metadata in memory."""

    def __init__(self, temporary_path: Path, file: BinaryIO) -> None:
        self._path = temporary_path
        self._file = file
        self._width = 0
        self._rows: list[np.ndarray] = []
        self._splits: list[np.ndarray] = []
        self._labels: list[np.ndarray | None] = []
        self._keys: list[Sequence[str] | None] = []
        self._descriptions: list[Sequence[str] | None] = []

    def add(
        self,
        features: np.ndarray,
        *,
        rows: np.ndarray,
        split: str,
        keys: Sequence[str] | None,
        labels: Any | None,
        descriptions: Sequence[str] | None = None,
    ) -> None:
        """Append a batch of features, ``(b, F)`` float32, with item metadata."""
        features.tofile(self._file)
        self._width = features.shape[1]
        self._rows.append(rows)
        self._splits.append(np.full(len(features), split))
        self._labels.append(None if labels is None else np.asarray(labels))
        self._keys.append(keys)
        self._descriptions.append(descriptions)

    def to_features(self, class_names: Sequence[str] | None, run: str) -> Features:
        """Return all added features, memory-mapped from the temporary file."""
        self._file.flush()
        rows = np.concatenate(self._rows)
        keys, descriptions = (
            None if None in batches else np.array([text for batch in batches for text in batch or ()], dtype=np.str_)
            for batches in (self._keys, self._descriptions)
        )
        batches = [labels for labels in self._labels if labels is not None]
        labels = np.concatenate(batches) if len(batches) == len(self._labels) else None
        return Features(
            np.memmap(self._path, np.float32, "r", shape=(len(rows), self._width)),
            rows,
            np.concatenate(self._splits),
            keys,
            labels,
            None if labels is None or class_names is None else np.array(class_names, dtype=np.str_),
            run,
            descriptions=descriptions,
        )


@contextmanager
def open_temporary_feature_buffer(beside: Path) -> Iterator[TemporaryFeatureBuffer]:
    """Context manager that provides a temporary feature file, removed on exit."""
    temporary = beside.with_name(f".{beside.stem}-{uuid.uuid4().hex}.features")
    with translate_write_errors("out", beside):
        beside.parent.mkdir(parents=True, exist_ok=True)
        file = temporary.open("wb")
    try:
        with file:
            yield TemporaryFeatureBuffer(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def read_features(path: str | Path) -> Features:
    """Read a feature file written by `embed`.

    The features of an `.npy` file are memory-mapped. If only numbered shards of the file exist, they are joined in
    memory.

    Raises:
        UsageError: the file does not exist, is damaged or has no features.
    """
    file = Path(path)
    run_message = f"features: must be a file, got the run folder {path}; use `contraport embed {path} --out FILE.npz`."
    check(not (file / "config.yaml").is_file(), run_message, "run")
    is_file_name = bool(file.suffix) or file.exists()
    check(is_file_name, f"features: there is no run folder and no file {str(path)!r}.", "not_found")
    suffixes = join_names(_READER_AND_WRITER_BY_SUFFIX, "or")
    check(
        file.suffix in _READER_AND_WRITER_BY_SUFFIX,
        f"features: must be a file of `contraport embed` ({suffixes}), got {str(path)!r}.",
        "suffix",
    )
    if not file.exists() and (shards := _list_shards_or_raise_if_incomplete(file)):
        return _concatenate_shards([read_features(shard) for shard in shards])
    check(file.exists(), f"features: there is no file {str(path)!r}.", "not_found")
    check_regular_file("features", file)
    with translate_read_errors(f"features: {path}", file.suffix):
        return _READER_AND_WRITER_BY_SUFFIX[file.suffix][0](file)


def items_table_path(path: Path) -> Path:
    """Return the path of the table of items beside an `.npy` file.

    >>> items_table_path(Path("photos.npy")).name
    'photos.items.parquet'
    """
    return path.with_name(f"{path.stem}.items.parquet")


def _list_shards_or_raise_if_incomplete(file: Path) -> list[Path]:
    """List the shards of a feature file in order, or raise if one is missing."""
    shards = _list_shard_files(file)
    if not shards:
        return []
    totals = sorted({_parse_shard_total(shard) for shard in shards})
    message = f"features: {file} has shards of {' and of '.join(map(str, totals))} in all. Remove the outdated ones."
    check(len(totals) == 1, message, "mixed_shards")
    expected = [shard_path(file, number, totals[0]) for number in range(totals[0])]
    missing = [shard.name for shard in expected if shard not in shards]
    message = f"features: {len(missing)} of {len(expected)} shards of {file} are missing, first {''.join(missing[:1])}."
    check(not missing, message, "missing_shard")
    return expected


def _list_shard_files(file: Path) -> list[Path]:
    """Return the sorted paths of a feature file's shards, none if there are no shards."""
    paths = sorted(file.parent.glob(f"{glob.escape(file.stem)}.*-of-*{file.suffix}"))
    return [path for path in paths if re.fullmatch(r"\.\d{5}-of-\d{5}", path.stem.removeprefix(file.stem))]


def _parse_shard_total(shard: Path) -> int:
    """Parse the total number of shards from the file name of a shard."""
    return int(shard.stem[-5:])


def _concatenate_shards(shards: Sequence[Features]) -> Features:
    """Concatenate shards, with None for fields that any shard lacks."""
    arrays = {name: [getattr(shard, name) for shard in shards] for name in ("features", *_STORED_NAME_BY_ITEM_FIELD)}
    joined: dict[str, Any] = {
        name: None if any(value is None for value in values) else np.concatenate(values)
        for name, values in arrays.items()
    }
    # In the table formats a shard has only the names of its own classes, and "" for the others.
    class_names = [shard.class_names for shard in shards if shard.class_names is not None]
    names = [next(filter(None, several), "") for several in zip_longest(*class_names)]
    return replace(shards[0], class_names=np.array(names, dtype=np.str_) if class_names else None, **joined)


def _features_from_array(features: np.ndarray) -> Features:
    """Build `Features` from an array alone, with items numbered from 0 and no test split."""
    items = features.shape[0] if features.ndim > 0 else 0
    return Features(features, np.arange(items), np.full(items, "train"))


def _metadata_by_stored_name(features: Features) -> dict[str, str]:
    """Return the features' text metadata, keyed by its name in the file."""
    values = {stored: getattr(features, name) for name, stored in _STORED_NAME_BY_SINGLE_TEXT_FIELD.items()}
    return {name: value for name, value in values.items() if value is not None}


def _write_npz_features(path: Path, features: Features) -> None:
    """Write features and item metadata as one `.npz` file."""
    arrays = {"features": features.features, "class_names": features.class_names}
    arrays |= {stored: getattr(features, name) for name, stored in _STORED_NAME_BY_ITEM_FIELD.items()}
    arrays |= {name: np.array(value) for name, value in _metadata_by_stored_name(features).items()}
    with atomic_write(path) as temporary:
        np.savez(temporary, allow_pickle=False, **{name: array for name, array in arrays.items() if array is not None})


def _read_npz_features(path: Path) -> Features:
    """Read features and available item metadata from an `.npz` file."""
    arrays = read_npz_arrays(path)
    message = f"features: {path} has no array 'features', only {sorted(arrays)}. contraport embed writes it."
    check("features" in arrays, message, "no_features")
    message = f"features: {path} must have rows and splits or neither, as contraport embed writes both."
    check(("rows" in arrays) == ("splits" in arrays), message, "no_rows")
    if "rows" not in arrays:
        return _features_from_array(arrays["features"])
    metadata: dict[str, Any] = {
        name: str(arrays[stored]) for name, stored in _STORED_NAME_BY_SINGLE_TEXT_FIELD.items() if stored in arrays
    }
    columns: dict[str, Any] = {name: arrays.get(stored) for name, stored in _STORED_NAME_BY_ITEM_FIELD.items()}
    return Features(arrays["features"], class_names=arrays.get("class_names"), **columns, **metadata)


def _write_npy_and_items_table(path: Path, features: Features) -> None:
    """Write features as `.npy`, with item metadata as a Parquet table beside it."""
    table_path = items_table_path(path)
    with (
        atomic_write(table_path) as table,
        atomic_write(path) as temporary,
    ):  # on exit the inner file is moved into place first
        np.save(temporary, features.features, allow_pickle=False)
        _write_parquet_table(table, [_item_columns_by_name(features)], _metadata_by_stored_name(features))
        table_path.unlink(missing_ok=True)  # the old table must not describe the new features


def _read_npy_and_items_table(path: Path) -> Features:
    """Read an `.npy` file and, if present, its table of items."""
    array = read_npy_array(path, "r")
    if not items_table_path(path).exists():
        return _features_from_array(array)
    check_regular_file("features", items_table_path(path))
    table = _read_parquet_table(items_table_path(path))
    message = f"features: {items_table_path(path)} has {len(table)} rows, but {path} has {len(array)}."
    check(len(table) == len(array), message, "shape")
    return _features_from_table(array, table)


def _write_parquet_features(path: Path, features: Features) -> None:
    """Write features and item metadata as Parquet, in bounded row groups."""
    rows = max(1, _ROW_GROUP_BYTES // (4 * features.features.shape[1]))
    parts = (features.take(slice(first, first + rows)) for first in range(0, len(features), rows))
    columns = (
        {f"f{number}": column for number, column in enumerate(part.features.T)} | _item_columns_by_name(part)
        for part in parts
    )
    _write_parquet_table(path, columns, _metadata_by_stored_name(features))


def _read_parquet_features(path: Path) -> Features:
    """Read the features of a Parquet file, batch by batch, into one array."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, pre_buffer=False) as file:
        columns = file.schema_arrow.names
        names = [name for name in columns if name[:1] == "f" and name[1:].isdecimal()]
        first_names = columns[:5]
        check(len(names) > 0, f"features: {path} has no columns f0, f1 and so on, only {first_names}.", "no_features")
        names.sort(key=lambda name: int(name[1:]))
        array = np.empty((file.metadata.num_rows, len(names)), dtype=np.float32)
        start = 0
        for batch in file.iter_batches(max(1, _ROW_GROUP_BYTES // (4 * len(names))), columns=names):
            batch.validate(full=True)
            rows = array[start : start + len(batch)]
            np.stack([batch[name].to_numpy(zero_copy_only=False) for name in names], 1, rows, casting="unsafe")
            start += len(batch)
    check(start == len(array), f"features: {path} contains only {start} of {len(array)} rows.", "shape")
    return _features_from_table(array, _read_parquet_table(path, [name for name in columns if name in _ITEM_COLUMNS]))


def _item_columns_by_name(features: Features) -> dict[str, Any]:
    """Return the Parquet columns that describe items, by name."""
    columns = {stored.removesuffix("s"): getattr(features, name) for name, stored in _STORED_NAME_BY_ITEM_FIELD.items()}
    if features.labels is not None and features.class_names is not None:
        columns["class_name"] = features.class_names[features.labels]
    return {name: values for name, values in columns.items() if values is not None}


def _write_parquet_table(path: Path, parts: Iterable[Mapping[str, Any]], metadata: Mapping[str, str]) -> None:
    """Write a Parquet table part by part, to save memory."""
    # Imported here: only these formats need pyarrow, and it is slow to import.
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_write(path) as temporary, ExitStack() as files:
        writer = None
        for columns in parts:
            table = pa.table(dict(columns))
            if writer is None:
                prefixed = {_METADATA_PREFIX + name: value for name, value in metadata.items()}
                writer = files.enter_context(pq.ParquetWriter(temporary, table.schema.with_metadata(prefixed)))
            writer.write_table(table.cast(writer.schema))


def _read_parquet_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read columns of a Parquet file as a validated Arrow table."""
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=columns, partitioning=None)
    table.validate(full=True)  # otherwise Arrow would follow corrupt offsets out of its memory
    return table


def _features_from_table(array: np.ndarray, table: pa.Table) -> Features:
    """Build `Features` from an array and an Arrow table of labels and the like."""
    names = [name for name in _ITEM_COLUMNS if name in table.schema.names]
    columns = {name: np.asarray(table[name].to_pylist()) for name in names}
    if "row" not in columns or "split" not in columns:
        return _features_from_array(array)
    labels, class_names = columns.get("label"), None
    if labels is not None and "class_name" in columns:
        class_names = np.array([""] * (int(labels.max()) + 1), dtype=columns["class_name"].dtype)
        class_names[labels] = columns["class_name"]
    stored = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    metadata = {
        name: stored[key]
        for name, of in _STORED_NAME_BY_SINGLE_TEXT_FIELD.items()
        if (key := _METADATA_PREFIX + of) in stored
    }
    return Features(
        array,
        columns["row"],
        columns["split"],
        columns.get("key"),
        labels,
        class_names,
        descriptions=columns.get("description"),
        **metadata,
    )


_READER_AND_WRITER_BY_SUFFIX: dict[str, tuple[Callable[[Path], Features], Callable[[Path, Features], None]]] = {
    ".npz": (_read_npz_features, _write_npz_features),
    ".npy": (_read_npy_and_items_table, _write_npy_and_items_table),
    ".parquet": (_read_parquet_features, _write_parquet_features),
}
"""Reader and writer of each file suffix."""

SUPPORTED_SUFFIXES = tuple(_READER_AND_WRITER_BY_SUFFIX)  # file suffixes of the supported formats
