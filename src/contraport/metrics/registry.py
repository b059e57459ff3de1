"""Registry of metrics, with their names, requirements, formats and functions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from contraport._utils.formatting import format_options, join_names, lower_first_letter
from contraport.errors import check, unknown_name_error
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes

if TYPE_CHECKING:
    from contraport.metrics.eval_context import EvalContext
    from contraport.metrics.intervals import ItemValueArray, MetricResult

BetterDirection = Literal["higher", "lower", "neither"]
"""Direction in which values of a metric are better."""

INITIAL_ENCODER_BASELINE_TITLES: Final = {"given": "the encoder as it was given", "untrained": "the untrained encoder"}
"""Titles of the baselines that are the encoder before training, by row name in `evaluation.json`.

A run has only one of the two: its initial weights, or random ones. Pretrained weights are far better than random ones.
"""

BASELINE_TITLES: Final = {**INITIAL_ENCODER_BASELINE_TITLES, "raw": "raw inputs"}
"""Titles of all baselines, by row name in `evaluation.json`."""

MAX_VERDICT_METRICS = 2
"""Maximum number of metrics that a verdict is based on."""

_NUMBER_PLACEHOLDER = "{}"  # place of the number in the key and title of a metric: "recall@{}"
_KEY_NUMBER_SEPARATOR = "@"  # between the name and the number in a key: "recall@5"


class Requirement(NamedTuple):
    """Condition on the evaluation context that a metric requires, such as labels.

    Attributes:
        is_met: function of the context that returns whether the condition holds.
        reason: reason for skipping the metric, printed if the condition fails.
        is_rarely_met: whether most data or runs fail the condition; the reason is then printed only for metrics
            requested by name.
    """

    is_met: Callable[[EvalContext], object]
    reason: str
    is_rarely_met: bool = False


@keep_deprecated_attributes(better="better_direction", pattern="value_format", in_percent="is_shown_in_percent")
@dataclass(frozen=True)
class Metric:
    """Registered metric, with its name, requirements, format and function.

    Attributes:
        key: identifier in `evaluation.json` and for ``--metrics``; ``{}`` stands for a number (the k of Recall@k).
        title: display name, such as Linear probe or Recall@1.
        summary: description of the metric in one sentence.
        group: group of metrics; its name selects all of them.
        better_direction: direction in which values are better: higher, lower or neither.
        unit: unit of the metric values, such as "share of test items".
        value_format: format string for printing a value, such as ``{:.1%}``.
        requirements: conditions on the evaluation context; if one fails, the metric is skipped with its reason.
        default_numbers: numbers at which the metric is computed by default, such as each k of Recall@k; or empty.
        is_default: whether the metric is computed if no metric is requested by name.
        is_headline: whether a verdict prefers the metric to others of its group.
        headline_numbers: numbers at which it does, such as the k of Recall@k; empty: all.
        function: computes the metric from the context (and the number). It returns an array with a value per test item,
            whose mean is the metric; a `MetricResult`; or one number, which then has no interval.
        number: second argument of the function, such as the k of Recall@k; None for none.
    """

    key: str
    title: str
    summary: str
    group: str
    better_direction: BetterDirection
    unit: str
    value_format: str
    requirements: tuple[Requirement, ...]
    default_numbers: tuple[int, ...]
    is_default: bool
    is_headline: bool
    headline_numbers: tuple[int, ...]
    function: Callable[..., ItemValueArray | MetricResult | float]
    number: int | None = None

    def __call__(self, context: EvalContext) -> MetricResult | float:
        """Compute the metric, as one number or with values per item."""
        # Imported here because the registry must be readable without numpy.
        from contraport.metrics.intervals import MetricResult

        output = self.function(context) if self.number is None else self.function(context, self.number)
        return output if isinstance(output, MetricResult | float | int) else MetricResult(output)

    def format_difference(self, difference: tuple[float, float, float], *, signed: bool = False) -> str:
        """Format a difference with its interval, in percentage points for shares.

        >>> from contraport.metrics import find_metric
        >>> find_metric("knn").format_difference((0.012, 0.003, 0.021), signed=True)
        '+1.2 points (+0.3 to +2.1)'
        """
        metric = replace(self, value_format=self.value_format.replace("{:", "{:+", 1)) if signed else self
        value, low, high = (metric.format(number).removesuffix("%").replace("-", "−") for number in difference)
        return f"{value}{' points' * self.is_shown_in_percent} ({low} to {high})"

    @property
    def title_with_definite_article(self) -> str:
        """Title with an article where needed, such as "the linear probe" or "recall@1"."""
        title = lower_first_letter(self.title)
        return title if title == self.title or title[-1].isdigit() else f"the {title}"

    def with_number(self, number: int) -> Metric:
        """Return a copy of the metric for one value of k, such as Recall@5."""
        return replace(
            self,
            key=self.key.replace(_NUMBER_PLACEHOLDER, str(number)),
            title=self.title.replace(_NUMBER_PLACEHOLDER, str(number)),
            summary=re.sub(r"\bk\b", str(number), self.summary),
            default_numbers=(),
            is_headline=self.is_headline and (not self.headline_numbers or number in self.headline_numbers),
            number=number,
        )

    def expand_default_numbers(self) -> tuple[Metric, ...]:
        """Return the metric for each default k, or unchanged if it has no k."""
        return tuple(map(self.with_number, self.default_numbers)) or (self,)

    def find_unmet_requirement(self, context: EvalContext) -> Requirement | None:
        """Return the first requirement that the context does not meet, or None."""
        for requirement in self.requirements:
            if not requirement.is_met(context):
                return requirement
        return None

    @property
    def is_shown_in_percent(self) -> bool:
        """True if values are printed in percent and differences in percentage points."""
        return self.value_format.endswith("%}")

    def format(self, value: float) -> str:
        """Format a metric value, without a sign if it prints as zero.

        >>> from contraport.metrics import find_metric
        >>> find_metric("tolerance").format(-0.0004), find_metric("tolerance").format(-0.004)
        ('0.000', '-0.004')
        """
        text = self.value_format.format(value)
        return text.lstrip("+-") if not set(text) & set("123456789") else text

    def is_visibly_worse(self, value: float, other: float) -> bool:
        """Return whether a value is worse than another even after rounding.

        >>> from contraport.metrics import find_metric
        >>> find_metric("knn").is_visibly_worse(0.91, 0.95), find_metric("knn").is_visibly_worse(0.95001, 0.95004)
        (True, False)
        """
        worse = {"higher": value < other, "lower": value > other, "neither": False}
        return worse[self.better_direction] and self.format(value) != self.format(other)


METRICS: dict[str, Metric] = {}
"""All metrics in display order; a key has no number, such as ``recall`` for ``recall@5``."""


@accept_deprecated_keywords(pattern="value_format")
def register_metric(
    title: str,
    *,
    group: str,
    better: BetterDirection,
    unit: str,
    value_format: str,
    requires: Sequence[Requirement] = (),
    numbers: Sequence[int] = (),
    default: bool = True,
    headline: bool | Sequence[int] = True,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that registers a function of an evaluation context as a metric.

    `Metric` describes the arguments. The key is the title in lower case with underscores, and the summary is the first
    paragraph of the docstring. The title of a function that also takes a number ends in ``@{}``. `headline` is
    whether a verdict prefers the metric to others of its group, or at which of its numbers.

    >>> from contraport.metrics import METRICS, register_metric
    >>> @register_metric("Largest variance", group="geometry", better="neither", unit="squared", value_format="{:.2f}")
    ... def largest_variance(context):
    ...     \"""Largest variance of a feature.\"""
    ...     return float(context.test_features.var(dim=0).max())
    >>> METRICS.pop("largest_variance").summary
    'Largest variance of a feature.'
    """
    key = _normalize_metric_name(title)
    name, at, number = key.partition(_KEY_NUMBER_SEPARATOR)

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        check(name not in METRICS, f"title: a metric {name!r} exists already.", "exists")
        good = at + number == (_KEY_NUMBER_SEPARATOR + _NUMBER_PLACEHOLDER if numbers else "")
        check(good, f"title: must end in '@{{}}' exactly if the metric has numbers, got {title!r}.", "number")
        summary = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
        message = f"function: must have a docstring, which is printed as the summary of {title!r}."
        check(bool(summary), message, "docstring")
        METRICS[name] = Metric(
            key=key,
            title=title,
            summary=summary,
            group=group,
            better_direction=better,
            unit=unit,
            value_format=value_format,
            requirements=tuple(requires),
            default_numbers=tuple(numbers),
            is_default=default,
            is_headline=headline is not False,
            headline_numbers=() if isinstance(headline, bool) else tuple(headline),
            function=function,
        )
        return function

    return register


def _normalize_metric_name(name: str) -> str:
    """Convert a metric's name or title to the form of its key.

    >>> _normalize_metric_name("Linear probe"), _normalize_metric_name("Recall@1")
    ('linear_probe', 'recall@1')
    """
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def find_metric(key: str) -> Metric | None:
    """Return the metric whose key in `evaluation.json` is `key`, or None.

    >>> from contraport.metrics import find_metric
    >>> find_metric("knn").title, find_metric("typo")
    ('kNN', None)
    """
    name, _, number = key.partition(_KEY_NUMBER_SEPARATOR)
    entry = METRICS.get(name)
    if entry is None or bool(entry.default_numbers) != bool(re.fullmatch("[1-9][0-9]{0,8}", number)):
        return None
    return entry.with_number(int(number)) if entry.default_numbers else entry


def collect_metrics_for_display(rows: Iterable[Iterable[str]]) -> list[Metric]:
    """Return the metrics whose keys occur in any row of results, in display order.

    Unknown keys are skipped. The order is that of the registry, but with the geometry of the features last: it supports
    no verdict.

    >>> [metric.key for metric in collect_metrics_for_display([{"uniformity": -2.1, "nmi": 0.6, "knn": 0.9}])]
    ['knn', 'nmi', 'uniformity']
    """
    keys = {key for row in rows for key in row}
    metrics = _sort_for_display([entry for key in keys if (entry := find_metric(key)) is not None])
    return [metric for last in (False, True) for metric in metrics if (metric.group == "geometry") is last]


def choose_headline_metrics(metrics: Iterable[Metric]) -> list[Metric]:
    """Choose at most two metrics by which a result is judged.

    Both are of the first group present, of links, accuracy, retrieval and clustering. Metrics of it that are not
    for a headline are chosen only if there are no others.

    >>> from contraport.metrics import select_metrics
    >>> [metric.key for metric in choose_headline_metrics(select_metrics(["nmi", "retrieval"]))]
    ['recall@1', 'recall@5']
    >>> [metric.key for metric in choose_headline_metrics(select_metrics(["links", "retrieval"]))]
    ['link_recall@10', 'link_ndcg@10']
    """
    directed = [metric for metric in metrics if metric.better_direction != "neither"]
    for group in ("links", "accuracy", "retrieval", "clustering"):
        if in_group := [metric for metric in directed if metric.group == group]:
            preferred = [metric for metric in in_group if metric.is_headline]
            return (preferred or in_group)[:MAX_VERDICT_METRICS]
    return []


def _sort_for_display(metrics: Iterable[Metric]) -> list[Metric]:
    """Sort metrics in registry order, with for example `recall@1` before `recall@5`."""
    by_name: dict[str, list[tuple[int, Metric]]] = {name: [] for name in METRICS}
    for entry in metrics:
        name, _, number = entry.key.partition(_KEY_NUMBER_SEPARATOR)
        by_name[name].append((int(number or 0), entry))
    return [entry for entries in by_name.values() for _, entry in sorted(entries, key=itemgetter(0))]


def combined_titles_by_name(metrics: Iterable[Metric]) -> dict[str, str]:
    """Return titles by metric name, with numbers joined, as in "Recall@1, 5 and 10".

    >>> from contraport.metrics import combined_titles_by_name, select_metrics
    >>> list(combined_titles_by_name(select_metrics(["knn", "recall", "noise"])).values())
    ['kNN', 'Recall@1, 5 and 10', 'Noise@1 to 5']
    """
    numbers: dict[str, list[str]] = {}
    for entry in metrics:
        name, _, number = entry.key.partition(_KEY_NUMBER_SEPARATOR)
        numbers.setdefault(name, []).append(number)
    texts = {name: join_names(of) if len(of) <= 3 else f"{of[0]} to {of[-1]}" for name, of in numbers.items()}
    return {name: METRICS[name].title.replace(_NUMBER_PLACEHOLDER, text) for name, text in texts.items()}


def select_metrics(names: Sequence[str] = (), *, argument: str = "metrics") -> list[Metric]:
    """Select metrics by name, in display order.

    Without names, they are the default metrics.

    Args:
        names: keys or titles, with or without their number; groups; or "all".
        argument: name of the argument, for errors.

    Raises:
        UsageError: unknown name.

    >>> from contraport.metrics import select_metrics
    >>> [metric.key for metric in select_metrics(["uniformity", "knn"])]
    ['knn', 'uniformity']
    """
    groups = {entry.group for entry in METRICS.values()}
    selected: dict[str, Metric] = {}
    for name in names or [key for key, entry in METRICS.items() if entry.is_default]:
        key = _normalize_metric_name(name)
        entry = find_metric(key) or METRICS.get(key)  # or without its number
        entries = (
            [entry] if entry else [one for one in METRICS.values() if key in (_normalize_metric_name(one.group), "all")]
        )
        if not entries:
            parts = [part.strip() for part in name.split(",")]
            message = f"{argument}: separate names as in {format_options(**{argument: parts})}, got {name!r}."
            check(len(parts) == 1, message, "comma")
            stem = METRICS.get(key.partition(_KEY_NUMBER_SEPARATOR)[0])
            message = f"{argument}: the number behind {_KEY_NUMBER_SEPARATOR} must be an integer >= 1, got {name!r}."
            check(stem is None or not stem.default_numbers, message, "number")
            number = key.partition(_KEY_NUMBER_SEPARATOR)[2]  # kept in the suggestion: recall@5 for recal@5
            takes_number = {one for one, entry in METRICS.items() if number and entry.default_numbers}
            valid = {f"{one}{_KEY_NUMBER_SEPARATOR}{number}" if one in takes_number else one for one in METRICS}
            raise unknown_name_error(argument, name, {*valid, *groups, "all"}, list_command="contraport list metrics")
        selected |= {single.key: single for one in entries for single in one.expand_default_numbers()}
    return _sort_for_display(selected.values())


def select_metrics_keeping_order(names: Sequence[str]) -> list[Metric]:
    """Select metrics by name, in the order in which they are named."""
    return [entry for name in dict.fromkeys(names) for entry in select_metrics([name])]


class ScheduledMetric(NamedTuple):
    """Metric that is computed during training, with its interval in epochs."""

    metric: Metric
    epoch_interval: int


def parse_scheduled_metrics(texts: Iterable[str]) -> list[ScheduledMetric]:
    """Parse metrics to compute during training, such as ``"knn:every=5"``.

    Without an interval a metric is computed every epoch.

    Raises:
        UsageError: unknown metric or group, or malformed interval.

    >>> [(one.metric.key, one.epoch_interval) for one in parse_scheduled_metrics(["knn:every=5", "uniformity"])]
    [('knn', 5), ('uniformity', 1)]
    """
    scheduled = []
    for text in texts:
        name, colon, rest = text.partition(":")
        interval = re.fullmatch("every=([1-9][0-9]{0,8})", rest)
        message = f"online_metrics: must be {name}:every=N with an integer N >= 1, got {text!r}."
        check(interval is not None or not colon, message, "interval")
        epochs = int(interval[1]) if interval else 1
        scheduled += [ScheduledMetric(one, epochs) for one in select_metrics([name], argument="online_metrics")]
    return scheduled
