"""Writes docs/coupling-results.md from the results of benchmarks/coupling.py."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from audit import mean_interval
from results import paragraph, table

MEASURED = Path(__file__).parents[1] / "benchmarks" / "results" / "coupling.json"
PACKAGES = {
    "most popular": "most popular columns",
    "implicit ALS": "implicit, ALS",
    "implicit BPR": "implicit, BPR",
    "LightFM": "LightFM, ids",
    "LightFM with words": "LightFM, ids and words",
    "two towers, partners as negatives": "one direction, `--target pairs`",
    "two towers": "one direction",
    "two towers, log-q": "one direction, `--log_q`",
    "InfoNCE": "both directions",
    "InfoNCE, balanced": "both directions, balanced",
    "InfoNCE, unbalanced": "both directions, unbalanced",
}
"""Methods on packages, with their names on the page."""

COLUMNS = {
    "recall@10": "recall@10",
    "NDCG@10": "NDCG@10",
    "new rows": "new rows",
    "coverage@10": "coverage",
    "hubness@10": "hubness",
    "popularity@10": "popularity",
}
LOG_Q, ONE_WAY, PLAIN, BALANCED, UNBALANCED = (
    "two towers, log-q", "two towers", "InfoNCE", "InfoNCE, balanced", "InfoNCE, unbalanced",
)  # fmt: skip
COMPARED = (
    (LOG_Q, ONE_WAY),
    (BALANCED, PLAIN),
    (UNBALANCED, PLAIN),
    (ONE_WAY, "two towers, partners as negatives"),
    (LOG_Q, "most popular"),
    (LOG_Q, "LightFM"),
    (LOG_Q, "LightFM with words"),
)
"""Methods on packages whose differences are on the page."""

Interval = tuple[float, float]


def couplings() -> str:
    """Return the page of what was measured on couplings."""
    results = json.loads(MEASURED.read_text())
    return f"""# Measurements of couplings

Written by `make docs` from what `python -m benchmarks.coupling packages persons audit` measured; do not edit. How to
use couplings is in [their guide](guides/couplings.md). All values are in `benchmarks/results/{MEASURED.name}`.

{packages(results["packages"])}
"""


def packages(part: dict[str, Any]) -> str:
    """Return the section of dependencies between packages."""
    draws = part["draws"]
    rows = [
        [title, *(f"{statistics.mean(one[key] for one in draws[name]):.3f}" for key in COLUMNS)]
        for name, title in PACKAGES.items()
        if name in draws
    ]
    differences = [
        [
            f"{PACKAGES[name]} - {PACKAGES[base]}",
            *(format_interval(paired_interval(draws[name], draws[base], key)) for key in COLUMNS),
        ]
        for name, base in COMPARED
    ]
    return "\n\n".join([
        "## Packages: which depends on which",
        table(["method", *COLUMNS.values()], rows),
        table(["difference", *COLUMNS.values()], differences),
        popularity_table(part["popularity at recall"]),
    ])  # fmt: skip


def popularity_table(levels: dict[str, list[dict[str, float]]]) -> str:
    """Return the table of popularity at equal recall, with means over draws in which the recall is reached."""
    names = [name for name in PACKAGES if name in levels and name != "most popular"]
    known = sorted({level for name in names for one in levels[name] for level in one})
    rows = []
    for name in names:
        values = {level: [one[level] for one in levels[name] if level in one] for level in known}
        reached = (f"{statistics.mean(v):.2f}" if len(v) == len(levels[name]) else "-" for v in values.values())
        rows.append([PACKAGES[name], *reached])
    return table(["method", *(f"recall {float(level):.0%}" for level in known)], rows)


def paired_interval(values: list[dict[str, float]], base: list[dict[str, float]], key: str) -> Interval:
    """Return the 95 % interval of the mean difference over draws."""
    return mean_interval([one[key] - other[key] for one, other in zip(values, base, strict=True)])


def format_interval(interval: Sequence[float]) -> str:
    """Format an interval as its mean and half-width, bold if it excludes zero."""
    low, high = interval
    text = f"{(low + high) / 2:+.3f} ± {(high - low) / 2:.3f}"
    return f"**{text}**" if low * high > 0 else text


def verdict(interval: Sequence[float]) -> str:
    """Return whether an interval is above zero, below, or neither."""
    low, high = interval
    return "yes" if low > 0 else "no" if high < 0 else "not decided"


__all__ = ["couplings", "paragraph", "verdict"]
