"""Result of a comparison, in Markdown, CSV and JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contraport._utils.files import format_csv
from contraport.comparison.comparison_tables import (
    build_epoch_tables,
    format_markdown_table,
    list_table_captions_and_tables,
)
from contraport.comparison.seed_intervals import MAX_PREDICTED_SEEDS
from contraport.comparison.statistics_and_verdicts import ClaimVerdict, SeedMeanAtEpoch, TableEntry, to_json_record
from contraport.comparison.summary_sentences import (
    explain_verdict,
    summarize_first_metric,
    summarize_seeds_to_decide,
    summarize_significant_row_differences,
)
from contraport.metrics import Metric, select_metrics_keeping_order
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes


@accept_deprecated_keywords(reference_values="reference_metrics")
@keep_deprecated_attributes(
    reference_values="reference_metrics",
    trials="search_trials",
    verdicts="claim_verdicts",
    missing="num_missing",
    entry="find_entry",
    sentences="column_summaries",
    headings="table_header_row",
    best_rows="rows_with_best_mean",
)
@dataclass(frozen=True)
class Comparison:
    """Result of a comparison of objectives, with its tables and notes.

    Attributes:
        baseline: name of the row that the others are compared with.
        rows: names of the rows (objectives).
        columns: names of the columns, each one data set with one setting.
        entries: table entries, one for each row, column and metric.
        epoch_means: means over seeds at intermediate epochs; empty unless the training runs used `keep_every`.
        reference_metrics: metrics of the untrained encoder and of the raw inputs, by their name, column and metric key.
        search_spaces: range of each searched hyperparameter, by row and hyperparameter.
        search_trials: records of the hyperparameter search: row, column, settings, and value on the validation items.
        notes: notes printed below the tables.
        num_missing: number of training runs that are not done yet.
        column_data: name of the data of each column, with which the column's name begins; empty: the part of its name
            before the first comma.
    """

    title: str
    folder: Path
    baseline: str
    rows: list[str]
    columns: list[str]
    entries: list[TableEntry]
    claim_verdicts: list[ClaimVerdict] = field(default_factory=list)
    epoch_means: list[SeedMeanAtEpoch] = field(default_factory=list)
    reference_metrics: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    search_spaces: dict[str, dict[str, str]] = field(default_factory=dict)
    search_trials: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    num_missing: int = 0
    column_data: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> list[Metric]:
        """Metrics of the tables in order, the main metric first."""
        return select_metrics_keeping_order([entry.metric_key for entry in self.entries])

    @property
    def table_header_row(self) -> list[str]:
        """Header row of the tables, beginning with the heading of row names.

        Data that all columns share are named in the first heading only.
        """
        data = set(self.column_data or (column.partition(", ")[0] for column in self.columns))
        if len(self.columns) == 1 or len(data) > 1:
            return ["objective", *self.columns]
        (shared,) = data
        return [f"on {shared}", *(column.removeprefix(f"{shared}, ") for column in self.columns)]

    def find_entry(self, row: str, column: str, metric: str) -> TableEntry | None:
        """Return the table entry for a row, column and metric key, or None."""
        place = (row, column, metric)
        return next((one for one in self.entries if (one.row_name, one.column_name, one.metric_key) == place), None)

    def list_row_entries(self, row: str, metric: Metric) -> list[TableEntry | None]:
        """Return the entry of a row in each column, None where missing."""
        return [self.find_entry(row, column, metric.key) for column in self.columns]

    def list_column_entries(self, column: str, metric: Metric) -> list[TableEntry]:
        """Return the entries of one metric in a table column, one per row."""
        return [one for one in self.entries if (one.column_name, one.metric_key) == (column, metric.key)]

    def rows_with_best_mean(self, column: str, metric: Metric) -> set[str]:
        """Return the names of the rows with the best mean in a column.

        The set is empty if the metric has no better direction, or if all rows with a mean, or the only one, share it.
        """
        means = {one.row_name: one.mean for one in self.list_column_entries(column, metric) if one.mean is not None}
        if metric.better_direction == "neither" or len(set(means.values())) < 2:
            return set()
        best = min(means.values()) if metric.better_direction == "lower" else max(means.values())
        return {row for row, mean in means.items() if mean == best}

    def format_reference(self, name: str, column: str, metric: Metric) -> str:
        """Format the metric value of a reference, such as "untrained encoder"."""
        value = self.reference_metrics.get(name, {}).get(column, {}).get(metric.key)
        return "—" if value is None else metric.format(value).removesuffix("%")

    @property
    def search_space_sentences(self) -> list[str]:
        """One sentence for each row, with the ranges of its searched hyperparameters."""
        return [
            f"{row}: {', '.join(f'{key} from {span}' for key, span in spans.items()) or 'no searchable settings'}"
            for row, spans in self.search_spaces.items()
        ]

    @property
    def column_summaries(self) -> list[str]:
        """Summary of each column in one or several sentences."""
        if not self.entries:
            return []
        return [
            summarize_first_metric(self, column)
            + summarize_significant_row_differences(self, column)
            + summarize_seeds_to_decide(self, column)
            for column in self.columns
        ]

    def markdown(self) -> str:
        """Return the comparison as Markdown, with tables, summaries, notes and trials."""
        parts = [
            f"# {self.title}",
            *list_table_captions_and_tables(self),
            "\n".join(f"- {one}" for one in self.column_summaries),
        ]
        for metric in self.metrics:
            for table in build_epoch_tables(self, metric):
                rows = [[row, *means] for row, means in table.means_by_row.items()]
                parts.append(f"{metric.title} by epoch, {table.column}")
                parts.append(format_markdown_table(["objective", *map(str, table.epochs)], rows))
        parts += self.notes
        if self.claim_verdicts:
            rows = [[one.claim, one.outcome, explain_verdict(one)] for one in self.claim_verdicts]
            parts += ["## Claims", format_markdown_table(["claim", "verdict", "why"], rows, align_all_left=True)]
        if self.search_trials:
            parts += ["## Searched settings", *(f"- {sentence}" for sentence in self.search_space_sentences)]
            keys = ("row", "column", "trial", "settings", "value")
            rows = [[*(str(one[key]) for key in keys), "chosen" if one["chosen"] else ""] for one in self.search_trials]
            head = ["objective", "on", "trial", "settings", "on validation items", ""]
            parts.append(format_markdown_table(head, rows, align_all_left=True))
        return "\n\n".join(parts) + "\n"

    def csv(self) -> str:
        """Return the comparison as CSV text, one line for each table entry."""
        heading = ("row", "column", "measure", "seeds", "mean", "low", "high", "difference", "from", "to", "seconds")
        rows = (
            (*one[:5], *(one.interval or (None,) * 2), *(one.difference or (None,) * 3), one.mean_training_seconds)
            for one in self.entries
        )
        return format_csv(heading, rows)

    def to_json_dict(self) -> dict[str, Any]:
        """Return the comparison as a dictionary for `results.json`."""
        return {
            "title": self.title,
            "baseline": self.baseline,
            "rows": self.rows,
            "columns": self.columns,
            "column_data": self.column_data,
            "entries": [to_json_record(entry) for entry in self.entries],
            "sentences": self.column_summaries,
            "verdicts": [
                {"says": one.claim, "verdict": one.outcome, "measure": one.metric_key, "why": explain_verdict(one)}
                | {
                    # At the maximum the search gave up: it is no number of seeds that would decide.
                    "seeds": None if one.num_seeds_to_decide == MAX_PREDICTED_SEEDS else one.num_seeds_to_decide,
                    "found": {name: list(gain) for name, gain in one.gains.items()},
                }
                for one in self.claim_verdicts
            ],
            "waypoints": [to_json_record(one) for one in self.epoch_means],
            "references": self.reference_metrics,
            "spaces": self.search_spaces,
            "trials": self.search_trials,
            "notes": self.notes,
            "lacking": self.num_missing,
        }
