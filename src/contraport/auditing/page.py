"""One HTML page about an audit: the worst pairs side by side, each with the partner that would suit it more."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch

from contraport import pages
from contraport._utils.files import write_text
from contraport._utils.formatting import format_significant
from contraport.auditing.pairs.pair_statistics import STATISTICS
from contraport.auditing.result import Audit
from contraport.data import Dataset
from contraport.data.thumbnails import sketches

SHOWN = 200
"""At most so many pairs are on the page, the worst first."""

SIDE = 112
"""Most pixels of a side of a picture."""


BINS = 48

METHODS = {
    "online": "one training that looked at its pairs as it went and left out what seemed wrong",
    "crossfit": "encoders judged pairs that they had not seen",
    "frozen": "the vectors are compared as they are, and nothing was trained",
}
"""What was done, in words, by the method of an audit."""


class PairRow(TypedDict):
    """A pair as the page has it."""

    id: int
    row: int
    name: str
    kind: str
    score: float
    fdr: float
    flagged: bool
    partner: int
    partner_score: float
    views: list[pages.Drawing]


def write_page(found: Audit, dataset: Dataset, path: Path) -> None:
    """Write the page about what an audit found of a dataset of pairs."""
    rows = page_rows(found, dataset)
    html = pages.render(
        "audit.html.j2",
        "contraport.auditing",
        found=found,
        sentence=sentence(found),
        rows=rows,
        kinds=sorted({row["kind"] for row in rows if row["kind"]}),
        views=dataset.view_names,
        percent=_percent,
        method=METHODS[found.method],
        statistic=STATISTICS[found.statistic].description,
        bins=histogram(found),
    )
    write_text(path, html)


def sentence(found: Audit) -> str:
    """Say in one sentence how many pairs seem wrong.

    >>> scores, none = np.ones(100), np.full(100, -1)
    >>> sentence(Audit("toy", "frozen", "cosine", scores, scores, 0.12, (0.1, 0.15), none, scores))
    'Of 100 pairs of toy about 12% seem wrong (10% to 15%).'
    """
    low, high = (_percent(end) for end in found.noise_interval)
    name = Path(found.data).name
    if round(found.noise_rate * len(found.scores)) == 0:
        return f"None of {len(found.scores):,} pairs of {name} seems wrong ({low} to {high})."
    return f"Of {len(found.scores):,} pairs of {name} about {_percent(found.noise_rate)} seem wrong ({low} to {high})."


def page_rows(found: Audit, dataset: Dataset) -> list[PairRow]:
    """Return the worst pairs, the worst first."""
    worst = found.flagged(count=min(SHOWN, len(found.scores)))
    partners = found.partners[worst]
    first, second = map(pages.drawings, sketches(dataset, torch.from_numpy(worst), SIDE))
    better = pages.drawings(sketches(dataset, torch.from_numpy(np.where(partners < 0, worst, partners)), SIDE)[1])
    flagged, fdr = set(found.flagged().tolist()), found.fdr
    return [
        {
            "id": int(pair),
            "row": int(dataset.rows[pair]),
            "name": dataset.keys[pair] if dataset.keys is not None else "",
            "kind": _kind(dataset, int(pair)),
            "score": round(float(found.scores[pair]), 4),
            "fdr": round(float(fdr[pair]), 4),
            "flagged": int(pair) in flagged,
            "partner": int(partners[place]),
            "partner_score": round(float(found.partner_scores[pair]), 4),
            "views": [first[place], second[place], *([better[place]] if partners[place] >= 0 else [])],
        }
        for place, pair in enumerate(worst)
    ]


def histogram(found: Audit) -> dict[str, Any]:
    """Return how the scores of the pairs and of known mismatches are spread, as shares in equal bins."""
    low = float(min(found.scores.min(), found.mismatched.min()))
    high = float(max(found.scores.max(), found.mismatched.max()))
    ends = (low, high if high > low else low + 1)
    counted = [np.histogram(values, BINS, ends)[0] / len(values) for values in (found.scores, found.mismatched)]
    flagged = found.flagged()
    mark = None if len(flagged) == 0 else float(found.scores[flagged[-1]])
    return {
        "low": ends[0],
        "high": ends[1],
        "pairs": [round(float(share), 5) for share in counted[0]],
        "mismatched": [round(float(share), 5) for share in counted[1]],
        "mark": mark,
    }


def _kind(dataset: Dataset, item: int) -> str:
    if dataset.labels is None:
        return ""
    label = int(dataset.labels[item])
    return str(label) if dataset.class_names is None else dataset.class_names[label]


def _percent(share: float) -> str:
    return f"{format_significant(100 * share)}%"
