"""The data of an audit without what seems wrong: such pairs left out, given better partners, or weights of zero."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contraport._utils.files import atomic_write, write_arrays
from contraport._utils.text_tensors import is_text_shape, tensor_to_texts
from contraport.auditing.result import Audit
from contraport.data import Dataset
from contraport.data.formats import array_files, tables

FILES = {"drop": "dropped", "repair": "repaired", "weigh": "weighed"}
"""What the data are called that an option writes."""

WEIGHTS = "audit_weight"
"""The column of a table that has the weights."""

BLOCK = 1_000


@dataclass(frozen=True)
class Edit:
    """What becomes of the rows of some data.

    Attributes:
        kept: which stay, Booleans ``(rows,)``.
        partners: whose second view each row has, int64 ``(rows,)``.
        weights: what each counts, ``(rows,)``; None where the data keep their own.
    """

    kept: NDArray[np.bool_]
    partners: NDArray[np.int64]
    weights: NDArray[np.float32] | None

    @classmethod
    def of(cls, found: Audit, way: str, rows: NDArray[np.int64], length: int) -> Edit:
        """Return what an audit does to data of some length, whose rows were judged in this order; others stay.

        Args:
            found: what the audit found.
            way: drop, what is flagged; repair, by better partners, and drop where there is none; weigh, with zero.
            rows: of each pair that was judged.
            length: of the data.
        """
        kept, partners, wrong = np.ones(length, dtype=np.bool_), np.arange(length), found.flagged()
        if way == "weigh":
            weights = np.ones(length, dtype=np.float32)
            weights[rows[wrong]] = 0
            return cls(kept, partners, weights)
        mended = wrong[found.partners[wrong] >= 0] if way == "repair" else wrong[:0]
        partners[rows[mended]] = rows[found.partners[mended]]
        kept[rows[np.setdiff1d(wrong, mended)]] = False
        return cls(kept, partners, None)


def write_clean_data(
    found: Audit, way: str, folder: Path, *, data: Any, dataset: Dataset, second: int, columns: dict[str, Any] | None
) -> Path:
    """Write data of the kind that they came in, and return the file: it has the test split too, where there is one.

    Data that are no table and no `.npz` become an `.npz`; where they are only to be weighed, an `.npy` of the weights.
    A table whose rows have lists of texts becomes one with a row for each text, as each was judged by itself.

    Args:
        found: what the audit found.
        way: drop, repair or weigh.
        folder: where to.
        data: what was judged, as it was asked.
        dataset: all views of it.
        second: the number of the view that is exchanged.
        columns: what the columns of a table are for.
    """
    rows = dataset.rows.numpy()
    suffix = Path(data).suffix if isinstance(data, str | Path) and Path(data).is_file() else ""
    if suffix in tables.SUFFIXES:
        path = folder / f"{FILES[way]}{suffix}"
        table, sources = tables.explode_texts(tables.read_table(data, columns), columns, str(data))
        written = tables.read_csv_as_text(Path(data)) if suffix == ".csv" else table
        edit = Edit.of(found, way, np.flatnonzero(np.isin(sources, rows)), len(table))
        changed = tables.rewrite_rows(
            table, written, columns, str(data),
            view=second, partners=edit.partners, kept=edit.kept, here=Path(data), there=path,
        )  # fmt: skip
        if edit.weights is not None:
            changed = tables.add_number_column(changed, WEIGHTS, edit.weights)
        tables.write_table(changed, path)
        return path
    if way == "weigh" and suffix != ".npz":
        path = folder / "weights.npy"
        weights = Edit.of(found, way, rows, int(rows.max()) + 1).weights
        assert weights is not None
        with atomic_write(path) as temporary:
            np.save(temporary, weights)
        return path
    arrays = array_files.read_npz("data", str(data)) if suffix == ".npz" else _arrays(dataset)
    own = rows if suffix == ".npz" else np.arange(len(dataset))
    view = dataset.view_names[second] if suffix == ".npz" else f"view{second}"
    edit = Edit.of(found, way, own, len(arrays[view]))
    path = folder / f"{FILES[way]}.npz"
    write_arrays(path, _edited(arrays, edit, view))
    return path


def _edited(arrays: dict[str, np.ndarray], edit: Edit, view: str) -> dict[str, np.ndarray]:
    """Return arrays by name of which those of the training items are changed; a view is exchanged."""
    of_test = {name: array for name, array in arrays.items() if name.endswith("_test")}
    changed = {name: array for name, array in arrays.items() if name not in of_test}
    changed[view] = changed[view][edit.partners]
    if edit.weights is not None:
        changed["weights"] = edit.weights * changed.get("weights", 1)
        if of_test and "weights_test" not in of_test:
            of_test["weights_test"] = np.ones(len(next(iter(of_test.values()))), dtype=np.float32)
    return {name: array[edit.kept] for name, array in changed.items()} | of_test


def _arrays(dataset: Dataset) -> dict[str, np.ndarray]:
    """Return the items of a dataset as arrays by the names of an `.npz`."""
    blocks = [dataset.store.fetch(positions) for positions in torch.arange(len(dataset)).split(BLOCK)]
    arrays = {
        f"view{view}": np.concatenate([_plain(block[view], shape) for block in blocks])
        for view, shape in enumerate(dataset.shapes)
    }
    for name, names in (("labels", dataset.class_names), ("domains", dataset.domain_names)):
        codes = getattr(dataset, name)
        if codes is not None:
            arrays[name] = codes.numpy() if names is None else np.array(names)[codes.numpy()]
    for name in ("weights", "numbers"):
        if getattr(dataset, name) is not None:
            arrays[name] = getattr(dataset, name).numpy()
    return arrays


def _plain(items: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    return np.array(tensor_to_texts(items)) if is_text_shape(shape) else items.numpy()
