"""Features in a file, and what each row of them is: written by `embed`, read by whatever uses an embedding.

- `.npz`: the arrays `features` `(n, F)` float32, `rows` `(n,)`, `splits` `(n,)`, `run`, `data`, and where there are
  such `view`, `keys` `(n,)` and `labels` `(n,)` with `class_names`.
- `.parquet`: the columns `f0`, `f1` and so on, `row`, `split`, and where known `key`, `label` and `class_name`.
- `.npy`: the features alone, which can be mapped to memory; beside it `NAME.items.parquet` has the other columns.
"""

from __future__ import annotations

import glob
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from contraport._utils.files import atomic_write
from contraport.errors import UsageError, check, check_regular_file, unreadable_error

_PREFIX = "contraport."
_TOLD = ("run", "view", "data")
_PER_ITEM = ("row", "split", "key", "label", "class_name")
_OF_EACH = ("features", "rows", "splits", "keys", "labels")
_GROUP_BYTES = 2**26
_SHARD = re.compile(r"\.\d{5}-of-\d{5}")


@dataclass(frozen=True)
class Features:
    """Features of `n` items, and what each is.

    Attributes:
        features: ``(n, F)`` float32.
        rows: the number of each item in its source, what was left out counted, ``(n,)``.
        splits: the split of each, ``(n,)``.
        keys: what the source calls each, such as the path of a file, ``(n,)``; None where it has only rows.
        labels: the class of each, ``(n,)``, or None.
        class_names: the names of the classes, or None.
        run: the folder of the run that embedded them, or None where that is not known.
        view: which of the run's views they are of, where they are what its loss sees of that one; None where they are
            of items as a whole.
        data: what the items are of: where that is what the run was trained on, as its settings call it; None where it
            is not known.

    Raises:
        UsageError: they do not fit together.
    """

    features: np.ndarray
    rows: np.ndarray
    splits: np.ndarray
    keys: np.ndarray | None = None
    labels: np.ndarray | None = None
    class_names: np.ndarray | None = None
    run: str | None = None
    view: str | None = None
    data: str | None = None

    def __post_init__(self) -> None:
        good = self.features.ndim == 2 and self.features.size > 0 and self.features.dtype.kind == "f"
        check(good, f"features: expected rows of floats, got {self.features.dtype} of shape {self.features.shape}.")
        for name in ("rows", "splits", "keys", "labels"):
            values = getattr(self, name)
            fits = values is None or values.shape == (len(self.features),)
            check(fits, f"features: expected one of {name} for each of {len(self.features)} rows, got another number.")

    def __len__(self) -> int:
        return len(self.features)

    def between(self, first: int, last: int) -> Features:
        """Return the items from one position to another, which is left out."""
        some: dict[str, Any] = {name: getattr(self, name) for name in _OF_EACH}
        some = {name: None if values is None else values[first:last] for name, values in some.items()}
        return replace(self, **some)

    def name_of(self, position: int) -> str:
        """Return what the item at a position is called: its key, or its split and row.

        >>> Features(np.ones((2, 3)), np.array([4, 7]), np.array(["test", "test"])).name_of(1)
        'test row 7'
        """
        if self.keys is not None:
            return str(self.keys[position])
        return f"{self.splits[position]} row {self.rows[position]}"

    def class_name_of(self, position: int) -> str | None:
        """Return the name of the class of the item at a position, or None."""
        if self.labels is None:
            return None
        label = int(self.labels[position])
        return str(label if self.class_names is None else self.class_names[label])


def as_features(given: Any) -> Features:
    """Return features that are given as such, as an array ``(n, F)``, or as a file that `embed` wrote.

    Raises:
        UsageError: there is no such file, it is damaged, or it has no features.

    >>> as_features(np.ones((2, 3))).rows.tolist()
    [0, 1]
    """
    if isinstance(given, Features):
        return given
    if isinstance(given, str | Path):
        return read_features(given)
    from contraport.data.arrays import as_array  # here, not above, as it needs torch

    array = as_array("features", given)
    check(array.dtype.kind in "fiu", f"features: expected an array of numbers or a file, got {type(given).__name__}.")
    return _of_rows(array if array.dtype.kind == "f" else array.astype(np.float32))


def write_features(path: Path, features: Features) -> None:
    """Write features to a file, `.npz`, `.npy` or `.parquet`, whole or not at all."""
    _FORMATS[path.suffix][1](path, features)


def write_shards(path: Path, features: Features, items: int) -> list[Path]:
    """Write features to numbered files of so many items each, and return these, in order.

    >>> shard_path(Path("photos.npz"), 0, 2).name
    'photos.00000-of-00002.npz'
    """
    number = -(-len(features) // items)
    written = []
    for shard in range(number):
        written.append(shard_path(path, shard, number))
        write_features(written[-1], features.between(shard * items, (shard + 1) * items))
    return written


def shard_path(path: Path, number: int, of: int) -> Path:
    """Return where one of several numbered shards of a file is."""
    return path.with_name(f"{path.stem}.{number:05d}-of-{of:05d}{path.suffix}")


def conflicting_files(path: Path, of: int | None = None) -> list[Path]:
    """Return the files that would be read instead of new shards of a file, or with them: itself, and older shards.

    Args:
        path: the file that the shards stand for.
        of: how many are written; None: nobody knows yet.
    """
    older = [shard for shard in _numbered(path) if of is None or _number_of(shard) != of]
    return [path, *older] if path.exists() else older


def remove(path: Path) -> None:
    """Remove a file of features, and what is beside it."""
    path.unlink(missing_ok=True)
    if path.suffix == ".npy":
        items_table_path(path).unlink(missing_ok=True)


class FeatureBuffer:
    """Features that come some items after the other: in a file until all are there, what they are of in memory."""

    def __init__(self, file: Path) -> None:
        self._path = file
        self._file = file.open("wb")
        self._width = 0
        self._rows: list[np.ndarray] = []
        self._splits: list[np.ndarray] = []
        self._labels: list[np.ndarray | None] = []
        self._keys: list[Sequence[str] | None] = []

    def add(
        self, features: np.ndarray, *, rows: np.ndarray, split: str, keys: Sequence[str] | None, labels: Any | None
    ) -> None:
        """Take the features of some items, ``(b, F)`` float32, and what each is."""
        features.tofile(self._file)
        self._width = features.shape[1]
        self._rows.append(rows)
        self._splits.append(np.full(len(features), split))
        self._labels.append(None if labels is None else np.asarray(labels))
        self._keys.append(keys)

    def features(self, class_names: Sequence[str] | None, run: str) -> Features:
        """Return all, the features mapped to memory."""
        self._file.close()
        rows = np.concatenate(self._rows)
        keys = None if None in self._keys else [key for some in self._keys for key in some or ()]
        known = [labels for labels in self._labels if labels is not None]
        labels = np.concatenate(known) if len(known) == len(self._labels) else None
        return Features(
            np.memmap(self._path, np.float32, "r", shape=(len(rows), self._width)),
            rows,
            np.concatenate(self._splits),
            None if keys is None else np.array(keys, dtype=np.str_),
            labels,
            None if labels is None or class_names is None else np.array(class_names, dtype=np.str_),
            run,
        )

    def close(self) -> None:
        """Remove the file."""
        try:
            self._file.close()
        finally:
            self._path.unlink(missing_ok=True)


@contextmanager
def gathering(path: Path) -> Iterator[FeatureBuffer]:
    """Give what takes features that will be written to a path, beside which they are meanwhile."""
    found = FeatureBuffer(path.with_name(f".{path.stem}-{uuid.uuid4().hex}.features"))
    try:
        yield found
    finally:
        found.close()


def read_features(path: str | Path) -> Features:
    """Return the features of a file that `embed` wrote; those of `.npy` are mapped to memory.

    Where there is no such file, but its numbered shards are there, they are put together in memory.

    Raises:
        UsageError: there is no such file, it is damaged, or it has no features.
    """
    file = Path(path)
    check(file.suffix in _FORMATS, f"features: expected a file {', '.join(_FORMATS)}, got {str(path)!r}.")
    if not file.exists() and (shards := _shards_of(file)):
        return _joined([read_features(shard) for shard in shards])
    check(file.exists(), f"features: there is no file {str(path)!r}.")
    check_regular_file("features", file)
    try:
        return _FORMATS[file.suffix][0](file)
    except UsageError:
        raise
    except Exception as error:  # on hostile bytes readers raise whatever they like
        raise unreadable_error(f"features: {path}", file.suffix, error) from error


def is_feature_file(path: Path) -> bool:
    """Return whether a file holds features, by the names of what is in it."""
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return {"features", "rows", "splits"} <= set(file.files)
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            return {"f0", "row", "split"} <= set(pq.read_schema(path).names)
        return path.suffix == ".npy" and items_table_path(path).is_file()
    except Exception:  # on hostile bytes readers raise whatever they like
        return False


def suffixes() -> list[str]:
    """Return the suffixes of the files that features are written to."""
    return list(_FORMATS)


def items_table_path(path: Path) -> Path:
    """Return where it is told what the rows of an `.npy` file are.

    >>> items_table_path(Path("photos.npy")).name
    'photos.items.parquet'
    """
    return path.with_name(f"{path.stem}.items.parquet")


def _shards_of(path: Path) -> list[Path]:
    """Return the numbered shards of a file, none where there are none.

    Raises:
        UsageError: one is missing, or there are those of two files of different numbers of shards.
    """
    shards = _numbered(path)
    if not shards:
        return []
    numbers = sorted({_number_of(shard) for shard in shards})
    told = f"features: {path} was written in {' and in '.join(map(str, numbers))} shards; remove those that are old."
    check(len(numbers) == 1, told)
    expected = [shard_path(path, number, numbers[0]) for number in range(numbers[0])]
    missing = [file.name for file in expected if file not in shards]
    check(
        not missing, f"features: {len(missing)} of {len(expected)} shards of {path} are missing, first {missing[:1]}."
    )
    return expected


def _numbered(path: Path) -> list[Path]:
    """Return the numbered shards of a file that are there, in order."""
    found = sorted(path.parent.glob(f"{glob.escape(path.stem)}.*-of-*{path.suffix}"))
    return [file for file in found if _SHARD.fullmatch(file.stem.removeprefix(path.stem))]


def _number_of(shard: Path) -> int:
    """Return how many shards there are with one."""
    return int(shard.stem[-5:])


def _joined(parts: Sequence[Features]) -> Features:
    every = {name: [getattr(part, name) for part in parts] for name in _OF_EACH}
    joined: dict[str, Any] = {
        name: None if any(value is None for value in values) else np.concatenate(values)
        for name, values in every.items()
    }
    names_of_classes = [part.class_names for part in parts if part.class_names is not None]
    longest = max(names_of_classes, key=len) if names_of_classes else None
    return replace(parts[0], class_names=longest, **joined)


def _of_rows(features: np.ndarray) -> Features:
    return Features(features, np.arange(len(features)), np.full(len(features), "train"))


def _arrays(features: Features) -> dict[str, np.ndarray]:
    every = {"features": features.features, "rows": features.rows, "splits": features.splits, "keys": features.keys}
    every |= {"labels": features.labels, "class_names": features.class_names}
    every |= {name: np.array(told) for name, told in _told(features).items()}
    return {name: values for name, values in every.items() if values is not None}


def _write_npz(path: Path, features: Features) -> None:
    with atomic_write(path) as temporary:
        np.savez(temporary, allow_pickle=False, **_arrays(features))


def _read_npz(path: Path) -> Features:
    with np.load(path, allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    check("features" in found, f"features: {path} has no array 'features', but {sorted(found)}.")
    if "rows" not in found or "splits" not in found:
        return _of_rows(found["features"])
    told: dict[str, Any] = {name: str(found[name]) for name in _TOLD if name in found}
    known = {
        name: found[name] for name in ("features", "rows", "splits", "keys", "labels", "class_names") if name in found
    }
    return Features(**known, **told)


def _told(features: Features) -> dict[str, str]:
    """Return what is told of all rows."""
    every = {name: getattr(features, name) for name in _TOLD}
    return {name: told for name, told in every.items() if told is not None}


def _write_npy(path: Path, features: Features) -> None:
    beside = items_table_path(path)
    with atomic_write(beside) as table, atomic_write(path) as temporary:  # the inner one takes its place first
        np.save(temporary, features.features, allow_pickle=False)
        _write_table(table, [_items(features)], _told(features))
        beside.unlink(missing_ok=True)  # what it tells is no more so


def _read_npy(path: Path) -> Features:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not items_table_path(path).exists():
        return _of_rows(array)
    check_regular_file("features", items_table_path(path))
    table = _read_table(items_table_path(path))
    check(
        len(table) == len(array), f"features: {items_table_path(path)} is of {len(table)} rows, {path} of {len(array)}."
    )
    return _of_table(array, table)


def _write_parquet(path: Path, features: Features) -> None:
    rows = max(1, _GROUP_BYTES // (4 * features.features.shape[1]))
    parts = (features.between(first, first + rows) for first in range(0, len(features), rows))
    columns = ({f"f{number}": column for number, column in enumerate(part.features.T)} | _items(part) for part in parts)
    _write_table(path, columns, _told(features))


def _read_parquet(path: Path) -> Features:
    table = _read_table(path)
    names = [name for name in table.schema.names if name[:1] == "f" and name[1:].isdecimal()]
    check(len(names) > 0, f"features: {path} has no columns f0, f1 and so on, but {table.schema.names[:5]}.")
    numbers = sorted(names, key=lambda name: int(name[1:]))
    array = np.stack([table[name].to_numpy() for name in numbers], axis=1).astype(np.float32)
    return _of_table(array, table)


def _items(features: Features) -> dict[str, Any]:
    """Return the columns that say what each row is."""
    columns = {"row": features.rows, "split": features.splits, "key": features.keys, "label": features.labels}
    if features.labels is not None and features.class_names is not None:
        columns["class_name"] = features.class_names[features.labels]
    return {name: values for name, values in columns.items() if values is not None}


def _write_table(path: Path, parts: Iterable[Mapping[str, Any]], told: Mapping[str, str]) -> None:
    """Write a table whose rows come in parts, of which one is in memory."""
    # Here, not above: only these formats need it, and it takes a while to import.
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_write(path) as temporary, ExitStack() as files:
        writer = None
        for columns in parts:
            table = pa.table(dict(columns))
            if writer is None:
                schema = table.schema.with_metadata({_PREFIX + name: value for name, value in told.items()})
                writer = files.enter_context(pq.ParquetWriter(temporary, schema))
            writer.write_table(table.cast(writer.schema))


def _read_table(path: Path) -> Any:
    import pyarrow.parquet as pq

    table = pq.read_table(path, partitioning=None)
    table.validate(full=True)  # Arrow itself follows corrupt offsets out of the memory that it has
    return table


def _of_table(array: np.ndarray, table: Any) -> Features:
    found = {name: np.asarray(table[name].to_pylist()) for name in _PER_ITEM if name in table.schema.names}
    if "row" not in found or "split" not in found:
        return _of_rows(array)
    labels, class_names = found.get("label"), None
    if labels is not None and "class_name" in found:
        class_names = np.array([""] * (int(labels.max()) + 1), dtype=found["class_name"].dtype)
        class_names[labels] = found["class_name"]
    metadata = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    told = {name: metadata[_PREFIX + name] for name in _TOLD if _PREFIX + name in metadata}
    return Features(array, found["row"], found["split"], found.get("key"), labels, class_names, **told)


_FORMATS: dict[str, tuple[Callable[[Path], Features], Callable[[Path, Features], None]]] = {
    ".npz": (_read_npz, _write_npz),
    ".npy": (_read_npy, _write_npy),
    ".parquet": (_read_parquet, _write_parquet),
}
