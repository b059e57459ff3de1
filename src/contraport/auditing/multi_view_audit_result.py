"""Audit result of three or more views, with scores per item and view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contraport._utils.files import write_json, write_npz
from contraport._utils.formatting import format_percent, join_names
from contraport._utils.notebook_tables import format_html_rows
from contraport.auditing.export_clean import dataset_to_arrays
from contraport.auditing.pairs.mismatch_dropping_callback import MAX_DROPPED_SHARE
from contraport.auditing.pairs.right_view_log_odds import (
    computable_view_rate_mask,
    estimate_view_noise_rates,
    mismatch_log_likelihood_ratios,
    right_view_log_odds,
)
from contraport.auditing.result import Audit, compose_training_advice, write_csv_columns
from contraport.data import Dataset
from contraport.data.formats.array_files import read_npz
from contraport.encoders import kind_from_shape
from contraport.errors import check, is_integer
from contraport.options import keep_deprecated_attributes

ItemViewIndexPairs = NDArray[np.int64]
"""Pairs of an item index and a view index, int64 ``(m, 2)``."""


def check_views_accept_nan(dataset: Dataset) -> None:
    """Raise `UsageError` if a view is an image or a text, which cannot hold NaN."""
    kinds = [kind_from_shape(shape) for shape in dataset.shapes]
    good = not {"image", "text"} & {*kinds}
    check(good, f"drop: requires vectors or series as three or more views, got {join_names(kinds)}.", "not_numeric")


@keep_deprecated_attributes(
    table="to_columns", write_without_flagged="write_npz_without_flagged_views", format_worst_rows="format_worst_views"
)
@dataclass(frozen=True, eq=False)
class ViewAudit:
    """Result of an audit of the `k` views of `n` items.

    They combine the audits of all pairs of views; see `contraport.auditing.pairs.right_view_log_odds`.

    Attributes:
        data_name: name of the audited data.
        view_names: names of the views.
        scores: log odds that each view belongs to its item, ``(n, k)``; higher is better, below 0 is probably wrong.
        noise_rates: estimated share of items whose view is wrong, for each view, ``(k,)``; NaN if the pairs of views
            with a reliable rate do not determine it.
        pair_audits: audit of each pair of views, by their names.
        source_rows: row of each item in the source, int64 ``(n,)``.
        keys: names of the items in the source; None if they have no names.
        clean_files: files with the cleaned data that the audit wrote.
        next_commands: command lines that train on the data, or clean them; none for data that only Python has.
    """

    data_name: str
    view_names: tuple[str, ...]
    scores: NDArray[np.floating]
    noise_rates: NDArray[np.floating]
    pair_audits: Mapping[tuple[str, str], Audit]
    source_rows: NDArray[np.int64]
    keys: Sequence[str] | None = None
    clean_files: tuple[Path, ...] = ()
    next_commands: tuple[str, ...] = ()

    @classmethod
    def from_pair_audits(cls, dataset: Dataset, pair_audits: Mapping[tuple[str, str], Audit]) -> ViewAudit:
        """Combine the audits of all view pairs into one result."""
        names = dataset.view_names
        pair_rates = {pair: audit.noise_rate for pair, audit in pair_audits.items()}
        reliable = {
            pair: audit.noise_rate
            for pair, audit in pair_audits.items()
            if audit.is_rate_reliable and audit.noise_interval[1] <= MAX_DROPPED_SHARE
        }
        rates, is_known = estimate_view_noise_rates(names, pair_rates), computable_view_rate_mask(names, reliable)
        if is_known.any():
            rates[is_known] = estimate_view_noise_rates(names, reliable)[is_known]
        ratios = [
            mismatch_log_likelihood_ratios(audit.scores, audit.scores, audit.known_mismatch_scores, audit.noise_rate)
            for audit in pair_audits.values()
        ]
        pairs = [(names.index(first), names.index(second)) for first, second in pair_audits]
        scores = right_view_log_odds(np.stack(ratios, axis=1), pairs, rates)
        known_rates = np.where(is_known, rates, np.nan)  # the order by score is kept for views of unknown share too
        rows = dataset.source_rows.numpy()
        return cls(dataset.name, names, scores, known_rates, dict(pair_audits), rows, dataset.keys)

    @property
    def views_of_unknown_rate(self) -> tuple[str, ...]:
        """Names of the views without an estimated share of wrong items."""
        return tuple(name for name, rate in zip(self.view_names, self.noise_rates, strict=True) if np.isnan(rate))

    def flagged(self, *, count: int | None = None) -> ItemViewIndexPairs:
        """Return the item and view of each suspect, int64 ``(m, 2)``, by ascending score.

        Args:
            count: number of suspects; default: all views that are more probably wrong than right, without the views
                of unknown share.

        Raises:
            UsageError: the count is out of range.
        """
        items, views = self.scores.shape
        good = count is None or (is_integer(count) and 0 <= count <= items * views)
        check(good, f"count: must be an integer from 0 to {items * views}, got {count!r}.")
        scores = np.where(np.isnan(self.noise_rates), np.inf, self.scores) if count is None else self.scores
        number = int((scores < 0).sum()) if count is None else count
        order = np.argsort(scores, axis=None, kind="stable")[:number]
        return np.stack(np.unravel_index(order, self.scores.shape), axis=1).astype(np.int64)

    def to_columns(self) -> dict[str, NDArray[np.generic]]:
        """Return the result per item as named columns for ``pandas.DataFrame``."""
        flagged = np.zeros(self.scores.shape, dtype=bool)
        flagged[tuple(self.flagged().T)] = True
        names = np.array([" ".join(np.array(self.view_names)[row]) for row in flagged])
        table: dict[str, NDArray[np.generic]] = {"id": np.arange(len(self.scores)), "flagged": names}
        table |= {f"score_{name}": self.scores[:, view] for view, name in enumerate(self.view_names)}
        table["row"] = self.source_rows
        return table if self.keys is None else table | {"key": np.array(self.keys, dtype=np.str_)}

    def json_summary(self) -> dict[str, object]:
        """Return the contents of `audit.json`, with a summary for each view pair."""
        return {
            "data": self.data_name,
            "items": len(self.scores),
            "noise_rates": {
                name: None if np.isnan(rate) else float(rate)
                for name, rate in zip(self.view_names, self.noise_rates, strict=True)
            },
            "flagged": len(self.flagged()),
            "pairs": {" and ".join(pair): audit.json_summary() for pair, audit in self.pair_audits.items()},
        }

    def json_output_fields(self) -> dict[str, object]:
        """Return what `--json` prints: `audit.json`, all attributes, and the flagged views."""
        attributes = {one.name: getattr(self, one.name) for one in fields(self)}
        flagged = [{"item": item, "view": self.view_names[view]} for item, view in self.flagged().tolist()]
        return self.json_summary() | attributes | {"flagged_views": flagged}

    def save(self, folder: str | Path) -> None:
        """Write `views.csv` and `audit.json` to an existing folder."""
        write_csv_columns(Path(folder) / "views.csv", self.to_columns())
        write_json(Path(folder) / "audit.json", self.json_summary())

    def write_npz_without_flagged_views(self, dataset: Dataset, folder: Path, *, data: Any = None) -> Path:
        """Write `dropped.npz` with flagged views set to NaN, and return its path.

        Training skips the views that are NaN.

        Args:
            dataset: the items.
            folder: folder of the file.
            data: source of the items; all arrays of an `.npz` are kept, those of its test split too.

        Raises:
            UsageError: a view is an image or a text, which an `.npz` cannot mark as missing.
        """
        check_views_accept_nan(dataset)
        is_npz = isinstance(data, str | Path) and Path(data).is_file() and Path(data).suffix == ".npz"
        arrays = read_npz("data", str(data)) if is_npz else dataset_to_arrays(dataset, self.view_names)
        for item, view in self.flagged().tolist():
            name = self.view_names[view]
            if arrays[name].dtype.kind != "f":
                arrays[name] = arrays[name].astype(np.float32)
            arrays[name][self.source_rows[item] if is_npz else item] = np.nan
        path = folder / "dropped.npz"
        write_npz(path, arrays)
        return path

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings from the pairwise audits, and about views without a share of wrong items."""
        notes = [f"{' and '.join(pair)}: {note}" for pair, one in self.pair_audits.items() for note in one.notes]
        if unknown := self.views_of_unknown_rate:
            notes.append(
                f"No share is given for {join_names(unknown)}, and none of them is flagged: the pairs of views whose "
                "share could be estimated do not determine it. Leave out the view that shares too little with others."
            )
        return tuple(notes)

    @property
    def advice(self) -> str:
        """Recommendation of the next step, in a sentence."""
        if unknown := self.views_of_unknown_rate:
            return f"Look at the worst views before you train: the share of wrong {join_names(unknown)} is unknown."
        return compose_training_advice(len(self.flagged()), "view", self.clean_files)

    @property
    def worst_table_title(self) -> str:
        """Title of the table of the worst views."""
        rates = zip(self.view_names, self.noise_rates.tolist(), strict=True)
        shares = ", ".join(f"{name} {'unknown' if np.isnan(rate) else format_percent(rate)}" for name, rate in rates)
        name = Path(self.data_name).name
        return f"Estimated share of wrong views in the {len(self.scores):,} items of {name}: {shares}. Worst views:"

    def format_worst_views(self) -> list[dict[str, str]]:
        """Format the ten views with the lowest scores as rows of a table."""
        worst = self.flagged(count=min(10, self.scores.size)).tolist()
        return [
            {
                "item": str(item) if self.keys is None else self.keys[item],
                "view": self.view_names[view],
                "score": f"{self.scores[item, view]:z.3f}".replace("-", "−"),
            }
            for item, view in worst
        ]

    def _repr_html_(self) -> str:
        """Return the table of the worst views as HTML, for a notebook."""
        return format_html_rows(self.worst_table_title, self.format_worst_views(), self.notes)

    def __repr__(self) -> str:
        named_rates = zip(self.view_names, self.noise_rates, strict=True)
        rates = ", ".join(f"{name} {'unknown' if np.isnan(rate) else f'{rate:.1%}'}" for name, rate in named_rates)
        return f"ViewAudit({self.data_name}: {len(self.scores)} items, wrong views: {rates})"
