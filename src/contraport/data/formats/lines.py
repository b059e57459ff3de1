"""Texts in a file, one in each line."""

from __future__ import annotations

import numpy as np

from contraport.data.dataset import Dataset
from contraport.data.formats.folder import read_text
from contraport.data.formats.format import data_format
from contraport.data.items import Items
from contraport.data.text_store import TextStore
from contraport.errors import check


@data_format("texts", suffixes=[".txt"])
def load_lines(path: str, split: str, test_fraction: float | None = None) -> Dataset:
    """Return one split of a `.txt` file of UTF-8, of which each line is an item; empty lines are none.

    `test_fraction` of the lines is held out, a fifth by default.

    Raises:
        UsageError: the file is no text, or has no line.
    """
    lines = read_text(path).split("\n")
    rows = [row for row, line in enumerate(lines) if line.strip()]
    check(len(rows) > 0, f"data: {path} has no line.")
    items = Items(path, len(rows), rows=np.array(rows), test_fraction=test_fraction)
    return items.dataset(
        split,
        [lambda positions: TextStore.of([lines[rows[place]].strip() for place in positions.tolist()], f"data: {path}")],
        image_size=None,
        view_names=["text"],
    )
