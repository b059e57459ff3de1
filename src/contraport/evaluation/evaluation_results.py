"""Evaluation results of one or several runs, and their table rows."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple

from contraport._utils.formatting import pluralize
from contraport._utils.notebook_tables import format_html_rows
from contraport.metrics import collect_metrics_for_display
from contraport.metrics.intervals import Difference
from contraport.metrics.registry import BASELINE_TITLES, INITIAL_ENCODER_BASELINE_TITLES
from contraport.options import keep_deprecated_attributes

EncoderMetricRow = dict[str, Any]
"""Name of an encoder, key and value of a metric, and the ends of its interval."""


class MetricValue(NamedTuple):
    """Value of a metric, with its 95% confidence interval if it has one."""

    value: float
    low: float | None
    high: float | None


@keep_deprecated_attributes(table="to_rows")
class Evaluation(dict[str, Any]):
    """Evaluation result of one run, with the contents of `evaluation.json`.

    >>> intervals = {"raw": {}, "trained": {"knn": {"low": 0.8, "high": 0.9}}}
    >>> evaluation = Evaluation(rows={"raw": {"knn": 0.5}, "trained": {"knn": 0.85}}, intervals=intervals)
    >>> evaluation.metrics["knn"].low, evaluation.baselines["raw"]["knn"].value
    (0.8, 0.5)
    """

    @property
    def metrics(self) -> dict[str, MetricValue]:
        """Metrics of the trained encoder, by key, such as "knn"."""
        return self._collect_metrics("trained")

    @property
    def baselines(self) -> dict[str, dict[str, MetricValue]]:
        """Metrics of the baselines: "raw" inputs, and the "untrained" or "given" encoder.

        A given encoder is the pretrained one that training began with.
        """
        return {name: self._collect_metrics(name) for name in BASELINE_TITLES if name in self["rows"]}

    @property
    def differences(self) -> dict[str, dict[str, Difference]]:
        """Paired differences of this run from others, by name of the other and metric key."""
        return {
            name: {key: Difference(**one) for key, one in by_metric.items()}
            for name, by_metric in self.get("differences", {}).items()
        }

    @property
    def verdict(self) -> str | None:
        """Sentence on whether training was worth it, None without baselines."""
        return self.get("verdict")

    @property
    def notes(self) -> list[str]:
        """Caveats, and the metrics that were not computed, each with its reason."""
        notes: list[str] = self["notes"]
        return notes

    def _collect_metrics(self, encoder: str) -> dict[str, MetricValue]:
        """Return the metrics of an encoder by key."""
        intervals = self.get("intervals", {}).get(encoder, {})
        ends = {key: intervals.get(key) or {"low": None, "high": None} for key in self["rows"][encoder]}
        return {key: MetricValue(value, **ends[key]) for key, value in self["rows"][encoder].items()}

    def to_rows(self) -> list[EncoderMetricRow]:
        """Return a row for each encoder and metric, for ``pandas.DataFrame``.

        The ends of the confidence interval are None for metrics without one.

        >>> Evaluation(rows={"raw": {"knn": 0.5}}, intervals={"raw": {"knn": {"low": 0.4, "high": 0.6}}}).to_rows()
        [{'encoder': 'raw', 'metric': 'knn', 'value': 0.5, 'low': 0.4, 'high': 0.6}]
        """
        return [
            {"encoder": encoder, "metric": key, **metric._asdict()}
            for encoder in self["rows"]
            for key, metric in self._collect_metrics(encoder).items()
        ]

    def __repr__(self) -> str:
        encoders = pluralize(len(self.get("rows", {})), "encoder")
        parts = (self.get("data"), encoders, self.verdict, "values: evaluation.to_rows()")
        return f"Evaluation({'; '.join(str(part).rstrip('.') for part in parts if part)})"

    def _repr_html_(self) -> str:
        """Return the tables as HTML, for a notebook."""
        tables = metric_tables_by_title(self)
        notes = dict.fromkeys(list(tables)[-1:], self["notes"])
        return "".join(format_html_rows(title, rows, notes.get(title, ())) for title, rows in tables.items())


@keep_deprecated_attributes(table="to_rows")
class EvaluationsByRunPath(dict[str, Evaluation]):
    """Evaluation results of several runs, by path of the run folder."""

    def to_rows(self) -> list[EncoderMetricRow]:
        """Return a row for each run, encoder and metric, for ``pandas.DataFrame``."""
        return [{"run": path, **row} for path, result in self.items() for row in result.to_rows()]

    def __repr__(self) -> str:
        lines = [f"  {path!r}: {result!r}" for path, result in self.items()]
        return "\n".join(["EvaluationsByRunPath(", *lines, ")"])

    def _repr_html_(self) -> str:
        """Return HTML tables of each run, and of differences from the first."""
        first, *others = self
        tables = [f"<h4>{escape(name)}</h4>{result._repr_html_()}" for name, result in self.items()]
        for name in others:
            if rows := metric_rows_of_run_difference(self[name]["differences"].get(first, {})):
                tables.append(format_html_rows(f"{name} minus {first}, paired by item", rows))
        return "".join(tables)


def metric_tables_by_title(evaluation: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
    """Return the rows of each nonempty table of an evaluation, by title.

    Intermediate models have a column each, at most five at evenly spaced epochs.
    """
    encoders = evaluation["rows"]
    dims, epochs = ([name for name in encoders if name.startswith(prefix)] for prefix in ("dims ", "epoch "))
    if len(epochs) > 5:  # `evaluation.json` has all
        epochs = [epochs[round(place * (len(epochs) - 1) / 4)] for place in range(5)]
    truncated = {name: encoders[name] for name in ("trained", *dims)} if dims else {}
    intermediate = {name: encoders[name] for name in (*epochs, "trained")} if epochs else {}
    tables = {
        f"{evaluation['data']}: frozen features of held-out items": metric_rows_with_baselines(evaluation),
        "retrieval by direction": retrieval_direction_rows(evaluation),
        "first coordinates of the representation": metric_rows_of_encoders(truncated),
        "checkpoints by epoch": metric_rows_of_encoders(intermediate),
    }
    return {title: rows for title, rows in tables.items() if rows}


def metric_rows_with_baselines(evaluation: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a table row for each metric, with the values of encoder and baselines.

    A baseline without any value, such as raw inputs of two kinds that cannot be compared, gets no column.
    """
    rows = {name: evaluation["rows"].get(name, {}) for name in ("raw", *INITIAL_ENCODER_BASELINE_TITLES, "trained")}
    columns = {name: values for name, values in rows.items() if any(value is not None for value in values.values())}
    table = metric_rows_of_encoders(columns)
    for row, metric in zip(table, collect_metrics_for_display(columns.values()), strict=True):
        ends = evaluation["intervals"]["trained"].get(metric.key)
        row["(95% interval)"] = f"{metric.format(ends['low'])} to {metric.format(ends['high'])}" if ends else "-"
    return table


def retrieval_direction_rows(evaluation: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a table row of retrieval metrics for each ordered pair of views."""
    return [
        {"from to": direction}
        | {metric.title: metric.format(values[metric.key]["value"]) for metric in collect_metrics_for_display([values])}
        for direction, values in evaluation["directions"].items()
    ]


def metric_rows_of_run_difference(interval_by_metric: Mapping[str, Mapping[str, float]]) -> list[dict[str, str]]:
    """Return a table row for each metric's difference between two runs."""
    table = []
    for metric in collect_metrics_for_display([interval_by_metric]):
        value, low, high = (
            metric.format(interval_by_metric[metric.key][part]).removesuffix("%") for part in ("value", "low", "high")
        )
        points = " points" * metric.is_shown_in_percent
        table.append({"metric": metric.title, "difference": value + points, "95% interval": f"{low} to {high}"})
    return table


def metric_rows_of_encoders(values_by_encoder: Mapping[str, Mapping[str, float | None]]) -> list[dict[str, str]]:
    """Return a table row for each metric, with a column for each encoder."""
    return [
        {"metric": metric.title}
        | {
            name: "-" if (value := values.get(metric.key)) is None else metric.format(value)
            for name, values in values_by_encoder.items()
        }
        for metric in collect_metrics_for_display(values_by_encoder.values())
    ]
