"""Texts in a file, one in each line."""

from __future__ import annotations

import numpy as np

from contraport.data.dataset import Dataset
from contraport.data.formats.format import data_format
from contraport.data.formats.image_folder import read_text_file
from contraport.data.source_items import Items
from contraport.data.text_store import Texts
from contraport.errors import check


@data_format("texts", suffixes=[".txt"])
def load_lines(path: str, split: str, test_fraction: float | None = None) -> Dataset:
    """Return one split of a `.txt` file of UTF-8, of which each line is an item; empty lines are none.

    `test_fraction` of the lines is held out, a fifth by default.

    Raises:
        UsageError: the file is no text, or has no line.
    """
    lines = [line.strip() for line in read_text_file(path).split("\n")]
    rows = [row for row, line in enumerate(lines) if line]
    check(len(rows) > 0, f"data: {path} has no line.")
    items = Items(path, len(rows), rows=np.array(rows), test_fraction=test_fraction)
    texts = Texts([lines[row] for row in rows], f"data: {path}")
    return items.dataset(split, [texts], image_size=None, view_names=["text"])
