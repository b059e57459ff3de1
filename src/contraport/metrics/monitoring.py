"""What is measured while an encoder is trained, and how often."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from contraport.errors import check
from contraport.metrics.registry import Metric, chosen

_EVERY = re.compile(r"every=([1-9][0-9]{0,8})")


class ScheduledMetric(NamedTuple):
    """A measure, and after how many epochs it is taken again."""

    measure: Metric
    every: int


def parse_scheduled_metrics(texts: Iterable[str]) -> list[ScheduledMetric]:
    """Return what texts such as ``"knn:every=5"`` or ``"uniformity"`` say: each measure after so many epochs, or each.

    Raises:
        UsageError: a name of no measure and no group, or what follows is no interval.

    >>> [(watch.measure.key, watch.every) for watch in parse_scheduled_metrics(["knn:every=5", "uniformity"])]
    [('knn', 5), ('uniformity', 1)]
    """
    watches = []
    for text in texts:
        name, colon, rest = text.partition(":")
        found = _EVERY.fullmatch(rest)
        good = found is not None or not colon
        check(good, f"monitor: expected {name}:every=N, N a whole number of epochs from 1 on, got {text!r}.")
        watches += [ScheduledMetric(measure, int(found[1]) if found else 1) for measure in chosen([name])]
    return watches
