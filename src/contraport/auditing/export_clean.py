"""Writes copies of audited data with flagged pairs dropped, repaired or weighted 0."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from contraport._utils.files import atomic_write, stage_files, write_npz
from contraport._utils.formatting import join_names, pluralize
from contraport._utils.text_bytes import TEXT_SHAPE, tensor_to_texts
from contraport.auditing.command_options import Cleaning
from contraport.auditing.result import Audit
from contraport.data import Dataset
from contraport.data.coupling_datasets import COUPLING_VIEW_NAMES
from contraport.data.formats import array_files, coupling_folder, tables
from contraport.data.formats.arrow_columns import read_category_values
from contraport.data.formats.arrow_datasets import TableRows, infer_roles_from_rows

log = logging.getLogger("contraport.auditing")

FILE_STEM_BY_CLEANING: dict[Cleaning, str] = {"drop": "dropped", "repair": "repaired", "weigh": "weighed"}
"""Name of the written file, without its suffix, by the option that requests it."""

SAMPLE_WEIGHT_COLUMN = "audit_weight"
"""Name of the column of sample weights (0 for flagged pairs and rows without an audited pair) in a weighted table."""


@dataclass(frozen=True)
class RowEdits:
    """Rows to keep, their partners and their sample weights after cleaning audited data.

    Attributes:
        is_kept: whether each row stays in the data, bool ``(rows,)``.
        partner_rows: row whose second view each row gets, int64 ``(rows,)``; the row itself if unchanged.
        sample_weights: new sample weight of each row, ``(rows,)``; None if weights stay unchanged.
    """

    is_kept: NDArray[np.bool_]
    partner_rows: NDArray[np.int64]
    sample_weights: NDArray[np.float32] | None

    @classmethod
    def from_audit(
        cls, result: Audit, cleaning: Cleaning, pair_rows: NDArray[np.int64], is_training_row: NDArray[np.bool_]
    ) -> RowEdits:
        """Build row edits that drop, repair or zero-weight an audit's flagged pairs.

        Training rows that were not audited, as an image cannot be read or a view is missing, are left out or get
        weight 0, with a line in the log.

        Args:
            result: the audit.
            cleaning: what to do with flagged pairs.
            pair_rows: row of each audited pair, ``(n,)``.
            is_training_row: mask of the rows of the training split, ``(rows,)``.
        """
        rows, flagged = np.arange(len(is_training_row)), result.flagged()
        kept, partners = ~is_training_row | np.isin(rows, pair_rows), rows.copy()
        if skipped := int((~kept).sum()):
            action = "gave weight 0 to" if cleaning == "weigh" else "left out"
            log.warning("%s: %s %s without an audited pair.", cleaning, action, pluralize(skipped, "row"))
        if cleaning == "weigh":
            weights = kept.astype(np.float32)
            weights[pair_rows[flagged]] = 0
            return cls(np.ones_like(kept), partners, weights)
        repaired = flagged[result.partners[flagged] >= 0] if cleaning == "repair" else flagged[:0]
        partners[pair_rows[repaired]] = pair_rows[result.partners[repaired]]
        kept[pair_rows[np.setdiff1d(flagged, repaired)]] = False
        return cls(kept, partners, None)


def write_clean_data(
    result: Audit,
    cleaning: Cleaning,
    folder: Path,
    *,
    data: Any,
    dataset: Dataset,
    repaired_view: int,
    columns: dict[str, Any] | None,
    audited_items: NDArray[np.int64] | None = None,
) -> Path:
    """Write the cleaned data in the source's format, and return the path.

    The test split is written unchanged; training rows without an audited pair are left out, or get weight 0. Data that
    are neither a table nor an `.npz` become an `.npz`; to weigh them, only the weights are written, as an `.npy`. A
    table with lists of texts becomes one with a row for each text, as each text was audited as its own pair. The folder
    of a coupling becomes a folder, whose table of pairs is edited.

    `repaired_view` is the index of the view that a repair replaces, and `audited_items` are the items of `dataset` that
    the pairs of `result` are, ``(n,)``; default: all.
    """
    rows, audited = dataset.source_rows.numpy(), np.arange(len(dataset)) if audited_items is None else audited_items
    suffix = Path(data).suffix if isinstance(data, str | Path) and Path(data).is_file() else ""
    if dataset.items_are_entity_pairs and coupling_folder.looks_like_coupling_folder(str(data)):
        path = folder / FILE_STEM_BY_CLEANING[cleaning]
        _write_cleaned_coupling_folder(
            result,
            cleaning,
            path,
            data=str(data),
            dataset=dataset.subset(torch.from_numpy(audited)),
            repaired_view=repaired_view,
        )
    elif suffix in tables.TABLE_SUFFIXES:
        path, data = folder / f"{FILE_STEM_BY_CLEANING[cleaning]}{suffix}", Path(data)
        read = TableRows(tables.read_table(data, columns))
        roles = infer_roles_from_rows(read, columns, str(data))
        exploded, sources = read.explode_with_source_rows(roles.views)
        table = exploded.read()
        # Parsing a .csv and writing it would reformat untouched cells, so they are copied as text.
        source = tables.read_csv_as_text(data) if suffix == ".csv" else table
        is_training = np.ones(len(table), dtype=np.bool_)
        if (split := roles.column_by_role["split"]) is not None:
            is_training = np.char.lower(read_category_values(table, split, str(data)).astype(str)) == "train"
        edits = RowEdits.from_audit(result, cleaning, np.flatnonzero(np.isin(sources, rows))[audited], is_training)
        edited = tables.select_rows_and_replace_view(
            table, source, columns, str(data), view=repaired_view,
            partner_rows=edits.partner_rows, kept_row_mask=edits.is_kept, old_path=data, new_path=path,
        )  # fmt: skip
        if edits.sample_weights is not None:
            edited = tables.set_number_column(edited, SAMPLE_WEIGHT_COLUMN, edits.sample_weights)
        tables.write_table(edited, path)
    elif cleaning == "weigh" and suffix != ".npz":
        path = folder / "weights.npy"
        is_training = np.isin(np.arange(int(rows.max()) + 1), rows)
        weights = RowEdits.from_audit(result, cleaning, rows[audited], is_training).sample_weights
        assert weights is not None
        with atomic_write(path) as temporary:
            np.save(temporary, weights)
    else:
        path = folder / f"{FILE_STEM_BY_CLEANING[cleaning]}.npz"
        if suffix == ".npz":
            arrays = array_files.read_npz("data", str(data), mapped=True)
            audited, view = rows[audited], dataset.view_names[repaired_view]
        else:
            names = [f"view{number}" for number in range(len(dataset.shapes))]
            arrays, view = dataset_to_arrays(dataset, names), names[repaired_view]
            sizes = [f"{shape[2]} x {shape[1]}" for shape in dataset.shapes if len(shape) == 3]
            if sizes and dataset.keys is not None:
                log.warning(
                    "%s: %s has images of %s pixels, without the names of their files; pairs.csv has the names (key), "
                    "and which pairs are flagged.",
                    cleaning, path.name, join_names(sizes),
                )  # fmt: skip
        edits = RowEdits.from_audit(result, cleaning, audited, np.ones(len(arrays[view]), dtype=np.bool_))
        write_npz(path, _edit_training_arrays(arrays, edits, view))
    return path


def _write_cleaned_coupling_folder(
    result: Audit, cleaning: Cleaning, path: Path, *, data: str, dataset: Dataset, repaired_view: int
) -> None:
    """Write a cleaned copy of a folder with row, column and pair tables."""
    files = coupling_folder.get_table_files(data)
    parsed = {part: tables.read_table(file) for part, file in files.items()}
    sources = {
        part: tables.read_csv_as_text(file) if file.suffix == ".csv" else parsed[part] for part, file in files.items()
    }
    assert dataset.entity_ids is not None
    assert dataset.entity_keys is not None
    rows, columns = dataset.entity_keys
    audited = {(rows[row], columns[column]): pair for pair, (row, column) in enumerate(dataset.entity_ids.tolist())}
    edits = RowEdits.from_audit(result, cleaning, np.arange(len(audited)), np.ones(len(audited), dtype=np.bool_))
    # A pair that is repeated in the table was audited once; pairs of the test split were not.
    cells = [map(str, parsed["pairs"].column(name).to_pylist()) for name in COUPLING_VIEW_NAMES]
    positions = np.array([audited.get(pair, -1) for pair in zip(*cells, strict=True)])
    is_audited, first_rows = positions >= 0, np.zeros(len(audited), dtype=np.int64)
    first_rows[positions[is_audited][::-1]] = np.flatnonzero(is_audited)[::-1]
    partner_rows = np.where(is_audited, first_rows[edits.partner_rows[positions]], np.arange(len(positions)))
    pairs, name = sources["pairs"], COUPLING_VIEW_NAMES[repaired_view]
    pairs = pairs.set_column(pairs.schema.get_field_index(name), name, pairs.column(name).take(pa.array(partner_rows)))
    if edits.sample_weights is not None:
        has_weights = "weight" in parsed["pairs"].column_names
        weights = parsed["pairs"].column("weight").to_numpy() if has_weights else np.ones(len(positions))
        factors = np.where(is_audited, edits.sample_weights[positions], 1)
        pairs = tables.set_number_column(pairs, "weight", factors * weights)
    sources["pairs"] = pairs.filter(pa.array(~is_audited | edits.is_kept[positions]))
    with stage_files(path) as temporary:
        for part, file in files.items():
            if part != "pairs":  # names of files are relative to the folder
                same = np.arange(len(parsed[part]))
                sources[part] = tables.select_rows_and_replace_view(
                    parsed[part], sources[part], None, str(file),
                    view=0, partner_rows=same, kept_row_mask=same >= 0, old_path=file, new_path=path / file.name,
                )  # fmt: skip
            tables.write_table(sources[part], temporary / file.name)


def _edit_training_arrays(arrays: dict[str, np.ndarray], edits: RowEdits, repaired_array: str) -> dict[str, np.ndarray]:
    """Return the arrays with training rows re-paired, reweighted or dropped."""
    test = {name: array for name, array in arrays.items() if name.endswith("_test")}
    edited = {name: array for name, array in arrays.items() if name not in test}
    edited[repaired_array] = edited[repaired_array][edits.partner_rows]
    if edits.sample_weights is not None:
        edited["weights"] = edits.sample_weights * edited.get("weights", 1)
        if test and "weights_test" not in test:
            test["weights_test"] = np.ones(len(next(iter(test.values()))), dtype=np.float32)
    return {name: array[edits.is_kept] for name, array in edited.items()} | test


def dataset_to_arrays(dataset: Dataset, view_names: Sequence[str]) -> dict[str, np.ndarray]:
    """Convert a dataset to the named arrays of an `.npz` file."""
    blocks = [dataset.__getitems__(block.tolist()).views for block in torch.arange(len(dataset)).split(1_000)]
    arrays = {
        name: np.concatenate([
            np.array(tensor_to_texts(block[view])) if shape == TEXT_SHAPE else block[view].numpy() for block in blocks
        ])
        for view, (name, shape) in enumerate(zip(view_names, dataset.shapes, strict=True))
    }  # fmt: skip
    for name, names in (("labels", dataset.class_names), ("domains", dataset.domain_names)):
        codes = getattr(dataset, name)
        if codes is not None:
            arrays[name] = codes.numpy() if names is None else np.array(names)[codes.numpy()]
    for name, values in (("weights", dataset.weights), ("numbers", dataset.regression_targets)):
        if values is not None:
            arrays[name] = values.numpy()
    return arrays
