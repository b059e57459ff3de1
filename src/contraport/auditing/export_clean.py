"""Writes the audited data cleaned: flagged pairs dropped, repaired with better partners, or given weight zero."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from contraport._utils.files import atomic_write, write_arrays
from contraport._utils.text_tensors import is_text_shape, tensor_to_texts
from contraport.auditing.result import Audit
from contraport.data import Dataset
from contraport.data.formats import array_files, tables

FILE_STEMS = {"drop": "dropped", "repair": "repaired", "weigh": "weighed"}
"""Name of the written file, without its suffix, for each form."""

WEIGHT_COLUMN = "audit_weight"

BLOCK = 1_000
"""Items read at a time."""


@dataclass(frozen=True)
class RowEdits:
    """Changes to the rows of the data.

    Attributes:
        kept: which rows stay, bool ``(rows,)``.
        partners: the row whose second view each row gets, int64 ``(rows,)``.
        weights: sample weights, ``(rows,)``; None: unchanged.
    """

    kept: NDArray[np.bool_]
    partners: NDArray[np.int64]
    weights: NDArray[np.float32] | None

    @classmethod
    def of(cls, result: Audit, form: str, rows: NDArray[np.int64], length: int) -> RowEdits:
        """Return the changes that a form makes; rows that were not audited stay unchanged.

        Args:
            result: the audit.
            form: drop, repair or weigh.
            rows: the row of each audited pair.
            length: number of rows of the data.
        """
        kept, partners, flagged = np.ones(length, dtype=np.bool_), np.arange(length), result.flagged()
        if form == "weigh":
            weights = np.ones(length, dtype=np.float32)
            weights[rows[flagged]] = 0
            return cls(kept, partners, weights)
        repaired = flagged[result.partners[flagged] >= 0] if form == "repair" else flagged[:0]
        partners[rows[repaired]] = rows[result.partners[repaired]]
        kept[rows[np.setdiff1d(flagged, repaired)]] = False
        return cls(kept, partners, None)


def write_clean_data(
    result: Audit, form: str, folder: Path, *, data: Any, dataset: Dataset, second: int, columns: dict[str, Any] | None
) -> Path:
    """Write the cleaned data in the format of their source, with the test split, and return the path.

    Data that are neither a table nor an `.npz` become an `.npz`; to weigh them, only the weights are written, as an
    `.npy`. A table with lists of texts becomes one with a row for each text, as each text was audited as its own pair.

    Args:
        result: the audit.
        form: drop, repair or weigh.
        folder: the folder to write to.
        data: the source of the data, as the option of that name.
        dataset: the audited pairs, with all views of the data.
        second: index of the view that repair replaces.
        columns: roles of the columns of a table.
    """
    rows = dataset.rows.numpy()
    suffix = Path(data).suffix if isinstance(data, str | Path) and Path(data).is_file() else ""
    if suffix in tables.SUFFIXES:
        path = folder / f"{FILE_STEMS[form]}{suffix}"
        _write_table(result, form, path, data=Path(data), rows=rows, second=second, columns=columns)
    elif form == "weigh" and suffix != ".npz":
        path = folder / "weights.npy"
        weights = RowEdits.of(result, form, rows, int(rows.max()) + 1).weights
        assert weights is not None
        with atomic_write(path) as temporary:
            np.save(temporary, weights)
    else:
        path = folder / f"{FILE_STEMS[form]}.npz"
        if suffix == ".npz":
            arrays, audited, view = array_files.read_npz("data", str(data)), rows, dataset.view_names[second]
        else:
            arrays, audited, view = _arrays_of(dataset), np.arange(len(dataset)), f"view{second}"
        write_arrays(path, _edit_arrays(arrays, RowEdits.of(result, form, audited, len(arrays[view])), view))
    return path


def _write_table(
    result: Audit,
    form: str,
    path: Path,
    *,
    data: Path,
    rows: NDArray[np.int64],
    second: int,
    columns: dict[str, Any] | None,
) -> None:
    table, sources = tables.explode_texts(tables.read_table(data, columns), columns, str(data))
    # Parsing a .csv and writing it would reformat untouched cells, so they are copied as text.
    source = tables.read_csv_as_text(data) if data.suffix == ".csv" else table
    edits = RowEdits.of(result, form, np.flatnonzero(np.isin(sources, rows)), len(table))
    edited = tables.rewrite_rows(
        table, source, columns, str(data),
        view=second, partners=edits.partners, kept=edits.kept, here=data, there=path,
    )  # fmt: skip
    if edits.weights is not None:
        edited = tables.add_number_column(edited, WEIGHT_COLUMN, edits.weights)
    tables.write_table(edited, path)


def _edit_arrays(arrays: dict[str, np.ndarray], edits: RowEdits, view: str) -> dict[str, np.ndarray]:
    """Return named arrays with the rows of the training split edited; repair replaces rows of one view."""
    test = {name: array for name, array in arrays.items() if name.endswith("_test")}
    edited = {name: array for name, array in arrays.items() if name not in test}
    edited[view] = edited[view][edits.partners]
    if edits.weights is not None:
        edited["weights"] = edits.weights * edited.get("weights", 1)
        if test and "weights_test" not in test:
            test["weights_test"] = np.ones(len(next(iter(test.values()))), dtype=np.float32)
    return {name: array[edits.kept] for name, array in edited.items()} | test


def _arrays_of(dataset: Dataset) -> dict[str, np.ndarray]:
    """Return a dataset as the named arrays of an `.npz`."""
    blocks = [dataset.store.fetch(positions) for positions in torch.arange(len(dataset)).split(BLOCK)]
    arrays = {
        f"view{view}": np.concatenate([
            np.array(tensor_to_texts(block[view])) if is_text_shape(shape) else block[view].numpy() for block in blocks
        ])
        for view, shape in enumerate(dataset.shapes)
    }  # fmt: skip
    for name, names in (("labels", dataset.class_names), ("domains", dataset.domain_names)):
        codes = getattr(dataset, name)
        if codes is not None:
            arrays[name] = codes.numpy() if names is None else np.array(names)[codes.numpy()]
    for name in ("weights", "numbers"):
        if getattr(dataset, name) is not None:
            arrays[name] = getattr(dataset, name).numpy()
    return arrays
