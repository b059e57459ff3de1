"""One HTML page about an audit: the worst pairs side by side, each with the partner that would suit it more."""

from __future__ import annotations

import base64
import datetime
import io
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypedDict

import jinja2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from contraport._version import __version__
from contraport.auditing.report import Audit
from contraport.data import Dataset
from contraport.files import write_text
from contraport.texts import decoded, is_text

SHOWN = 200
"""At most so many pairs are on the page, the worst first."""

SIDE = 112
"""Most pixels of a side of a picture."""

SMALL = 48
"""Pictures of up to so many pixels a side lose nothing."""

BARS, POINTS, CHANNELS, LETTERS = 96, 160, 6, 500
"""Most numbers of a vector, of a channel of a series, channels, and letters of a text."""

SPREAD = 3
"""Bars and lines reach to so many standard deviations of the data."""

BINS = 48

Drawn = dict[str, Any]
"""A view as the page draws it: its kind, and what that kind needs."""


class PairShown(TypedDict):
    """A pair as the page has it."""

    id: int
    name: str
    kind: str
    score: float
    fdr: float
    flagged: bool
    partner: int
    partner_score: float
    views: list[Drawn]


def write_page(found: Audit, dataset: Dataset, path: Path) -> None:
    """Write the page about what an audit found of a dataset of pairs."""
    root = files("contraport")
    folders = [str(root / room / "templates") for room in ("auditing", "reporting")]  # which has the style
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    rows = pairs_shown(found, dataset)
    html = environment.get_template("audit.html.j2").render(
        found=found,
        sentence=sentence(found),
        rows=rows,
        kinds=sorted({row["kind"] for row in rows if row["kind"]}),
        views=dataset.view_names,
        bins=histogram(found),
        version=__version__,
        date=datetime.date.today().isoformat(),
    )
    write_text(path, html)


def sentence(found: Audit) -> str:
    r"""Say in one sentence how many pairs seem wrong.

    >>> scores, none = np.ones(100), np.full(100, -1)
    >>> sentence(Audit("toy", "frozen", "cosine", scores, scores, 0.12, (0.1, 0.15), none, scores)).replace("\xa0", " ")
    'Of 100 pairs of toy about 12 % seem wrong (10 % to 15 %).'
    """
    low, high = (_percent(end) for end in found.noise_interval)
    name = Path(found.data).name
    if round(found.noise_rate * len(found.scores)) == 0:
        return f"None of {len(found.scores):,} pairs of {name} seems wrong ({low} to {high})."
    return f"Of {len(found.scores):,} pairs of {name} about {_percent(found.noise_rate)} seem wrong ({low} to {high})."


def pairs_shown(found: Audit, dataset: Dataset) -> list[PairShown]:
    """Return the worst pairs, the worst first."""
    worst = found.flagged(count=min(SHOWN, len(found.scores)))
    partners = found.partners[worst]
    first, second = _drawn(dataset, worst)
    better = _drawn(dataset, np.where(partners < 0, worst, partners))[1]
    flagged, fdr = set(found.flagged().tolist()), found.fdr
    return [
        {
            "id": int(pair),
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


def _drawn(dataset: Dataset, positions: NDArray[np.int64]) -> list[list[Drawn]]:
    """Return both views of some items as the page draws them."""
    fetched = dataset.store.fetch(torch.from_numpy(positions))
    return [
        _drawing(shape)(items, dataset, view)
        for view, (items, shape) in enumerate(zip(fetched, dataset.shapes, strict=True))
    ]


def _drawing(shape: Sequence[int]) -> Callable[[Tensor, Dataset, int], list[Drawn]]:
    return _texts if is_text(shape) else {3: _images, 2: _series}.get(len(shape), _vectors)


def _images(items: Tensor, dataset: Dataset, view: int) -> list[Drawn]:
    return [{"is": "image", "uri": _picture(item)} for item in items]


def _texts(items: Tensor, dataset: Dataset, view: int) -> list[Drawn]:
    return [{"is": "text", "text": text if len(text) <= LETTERS else text[:LETTERS] + " …"} for text in decoded(items)]


def _vectors(items: Tensor, dataset: Dataset, view: int) -> list[Drawn]:
    values = _standard(items.flatten(1)[:, None], dataset, view)[:, 0]
    return [{"is": "vector", "of": items[0].numel(), "values": row} for row in _whole(_thinned(values, BARS))]


def _series(items: Tensor, dataset: Dataset, view: int) -> list[Drawn]:
    values = _thinned(_standard(items, dataset, view)[:, :CHANNELS], POINTS)
    return [{"is": "series", "of": list(items.shape[1:]), "values": rows} for rows in _whole(values)]


def _standard(items: Tensor, dataset: Dataset, view: int) -> Tensor:
    """Return the values ``(b, C, T)`` in units of the spread of the data, from -1 to 1."""
    mean, std = (torch.tensor(values) for values in dataset.statistics(view))
    shape = (1, 1, -1) if len(dataset.shapes[view]) == 1 else (1, -1, 1)
    return ((items.float() - mean.reshape(shape)) / std.reshape(shape) / SPREAD).clamp(-1, 1)


def _thinned(values: Tensor, most: int) -> Tensor:
    """Return at most so many values along the last axis, means of neighbours."""
    if values.shape[-1] <= most:
        return values
    flat = values.reshape(-1, 1, values.shape[-1])
    return torch.nn.functional.adaptive_avg_pool1d(flat, most).reshape(*values.shape[:-1], most)


def _whole(values: Tensor) -> list[Any]:
    return list((100 * values).round().to(torch.int8).tolist())


def _picture(item: Tensor) -> str:
    """Return an image ``(C, H, W)`` as a data URI; three channels are colours, of any other number it is the mean."""
    shown = item.float()
    if item.shape[0] != 3:
        shown = shown.mean(dim=0, keepdim=True)
    if item.dtype != torch.uint8:
        low, high = min(float(item.min()), 0.0), max(float(item.max()), 1.0)
        shown = 255 * (shown - low) / (high - low)
    pixels = shown.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
    image, buffer = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels), io.BytesIO()
    image.thumbnail((SIDE, SIDE))
    kind = "png" if max(image.size) <= SMALL else "webp"
    image.save(buffer, kind, quality=80)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _kind(dataset: Dataset, item: int) -> str:
    if dataset.labels is None:
        return ""
    label = int(dataset.labels[item])
    return str(label) if dataset.class_names is None else dataset.class_names[label]


def _percent(share: float) -> str:
    return f"{100 * share:.3g}\N{NO-BREAK SPACE}%"
