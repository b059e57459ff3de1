"""Format of text files with one text per line."""

from __future__ import annotations

import numpy as np

from contraport.data.dataset import Dataset
from contraport.data.formats.format import data_format
from contraport.data.formats.image_folder import read_text_file
from contraport.data.item_metadata import ItemMetadata
from contraport.data.stores import TextStoreBuilder
from contraport.errors import check


@data_format("texts", suffixes=[".txt"])
def load_lines(path: str, split: str, test_fraction: float | None = None) -> Dataset:
    """Load one split of a UTF-8 `.txt` file with one item per line; empty lines are skipped.

    `test_fraction` of the lines is held out, by default 0.2.

    Raises:
        UsageError: the file is not text, or has no line.
    """
    lines = [line.strip() for line in read_text_file(path).split("\n")]
    rows = [row for row, line in enumerate(lines) if line]
    check(len(rows) > 0, f"data: {path} has no line.", "empty")
    items = ItemMetadata(path, len(rows), source_rows=np.array(rows), test_fraction=test_fraction)
    return items.build_dataset(
        split, [TextStoreBuilder([lines[row] for row in rows], f"data: {path}")], view_names=("text",)
    )
