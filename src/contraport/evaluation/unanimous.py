"""What an interval without a width does not say, said in words."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from contraport._utils.formatting import join_names
from contraport.metrics import metrics_of_rows
from contraport.metrics.intervals import LEVEL, MetricResult, mean


def unanimous(findings: Mapping[str, MetricResult | float]) -> list[str]:
    """Say which measures are right, or wrong, on each test item, and how many of other items may be otherwise.

    The bootstrap draws from what there is, so where n items agree its interval has no width, whatever n is. A share p
    of others stays unseen among n with probability (1 - p)^n: at a level of 95 % it may be about 3 / n (Clopper and
    Pearson, 1934, "The use of confidence or fiducial limits").

    Args:
        findings: of one encoder, by the measures' keys.

    >>> print(*unanimous({"knn": MetricResult(np.ones(24)), "linear_probe": MetricResult(np.arange(24) % 2)}))
    kNN is the same on all 24 test items, so its interval has no width; of other items up to 12% may be otherwise.
    """
    agreed = {key: of for key, of in findings.items() if isinstance(of, MetricResult) and _agree(of)}
    if not agreed:
        return []
    items = len(next(iter(agreed.values())).items)
    unseen = 1 - (1 - LEVEL) ** (1 / items)
    titles = [measure.title for measure in metrics_of_rows([agreed])]
    said = "is the same" if len(titles) == 1 else "are the same"
    owns = "its interval has" if len(titles) == 1 else "their intervals have"
    return [
        f"{join_names(titles)} {said} on all {items:,} test items, so {owns} no width; of other items up to "
        f"{100 * unseen:.2g}% may be otherwise."
    ]


def _agree(finding: MetricResult) -> bool:
    """Return whether each item is right, or each wrong."""
    items = finding.items
    return finding.statistic is mean and bool(np.isin(items, (0, 1)).all()) and bool((items == items[:1]).all())
