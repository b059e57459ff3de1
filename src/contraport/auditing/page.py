"""HTML page of an audit, with the worst pairs and score histograms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from contraport._utils.files import write_text
from contraport._utils.formatting import format_percent
from contraport.auditing.pairs.pair_scoring import STATISTICS
from contraport.auditing.result import Audit
from contraport.data import Dataset
from contraport.data.item_previews import make_item_previews_per_view
from contraport.reporting.html_page_parts import build_preview_records, render_page

MAX_PAGE_PAIRS = 200
"""Maximum number of pairs on the page; with more the file would be slow to open."""

MAX_IMAGE_SIDE_PIXELS = 112
"""Longest side of an image, in pixels."""

METHOD_DESCRIPTIONS = {
    "online": "one training run scored its pairs between epochs and dropped suspected mismatches",
    "crossfit": "encoders scored pairs that they were not trained on",
    "frozen": "the vectors were compared as they are; nothing was trained",
}
"""Description of each method."""


def write_audit_page(audit: Audit, dataset: Dataset, path: Path) -> None:
    """Write the HTML page of an audit, with thumbnails of the items."""
    rows = build_worst_pair_rows(audit, dataset)
    html = render_page(
        "audit.html.j2",
        "contraport.auditing",
        audit=audit,
        headline=audit.headline,
        rows=rows,
        kinds=sorted({row["kind"] for row in rows if row["kind"]}),
        views=dataset.view_names,
        percent=format_percent,
        method=METHOD_DESCRIPTIONS[audit.method],
        statistic=STATISTICS[audit.statistic_name].description,
        bins=compute_pair_and_mismatch_histograms(audit),
    )
    write_text(path, html)


def build_worst_pair_rows(audit: Audit, dataset: Dataset) -> list[dict[str, Any]]:
    """Return the rows of the page's table: the pairs with the lowest scores, lowest first."""
    worst = audit.flagged(count=min(MAX_PAGE_PAIRS, len(audit.scores)))
    partners = audit.partners[worst]
    first, second = map(
        build_preview_records, make_item_previews_per_view(dataset, torch.from_numpy(worst), MAX_IMAGE_SIDE_PIXELS)
    )
    shown_partners = torch.from_numpy(np.where(partners < 0, worst, partners))
    better = build_preview_records(make_item_previews_per_view(dataset, shown_partners, MAX_IMAGE_SIDE_PIXELS)[1])
    labels = [] if dataset.labels is None else dataset.labels[torch.from_numpy(worst)].tolist()
    classes = labels if dataset.class_names is None else [dataset.class_names[label] for label in labels]
    flagged, fdr, confidences = set(audit.flagged().tolist()), audit.pair_fdrs, audit.partner_confidences
    return [
        {
            "id": int(pair),
            "row": int(dataset.source_rows[pair]),
            "name": dataset.keys[pair] if dataset.keys is not None else "",
            "kind": str(classes[place]) if classes else "",
            "score": round(float(audit.scores[pair]), 4),
            "fdr": round(float(fdr[pair]), 4),
            "flagged": int(pair) in flagged,
            "partner": int(partners[place]),
            "partner_score": round(float(audit.partner_scores[pair]), 4),
            "confidence": None if confidences is None else round(float(confidences[pair]), 4),
            "views": [first[place], second[place], *([better[place]] if partners[place] >= 0 else [])],
        }
        for place, pair in enumerate(worst)
    ]


def compute_pair_and_mismatch_histograms(audit: Audit) -> dict[str, Any]:
    """Return normalized histograms of the scores of pairs and of known mismatches."""
    low = float(min(audit.scores.min(), audit.known_mismatch_scores.min()))
    high = float(max(audit.scores.max(), audit.known_mismatch_scores.max()))
    if high == low:
        high = low + 1
    shares = [
        np.histogram(values, 48, (low, high))[0] / len(values) for values in (audit.scores, audit.known_mismatch_scores)
    ]
    flagged = audit.flagged()
    return {
        "low": low,
        "high": high,
        "pairs": [round(float(share), 5) for share in shares[0]],
        "mismatched": [round(float(share), 5) for share in shares[1]],
        "mark": float(audit.scores[flagged[-1]]) if len(flagged) > 0 else None,
    }
