"""CPU time of a search among sets of vectors, by its parts: what an index over the vectors could save at most.

A run is trained for one epoch by the recipe `late-interaction`, with 128 numbers per word; texts have 32 words. Then
`contraport.search` compares one text with all others. The comparison alone is what a stage of candidates would shorten;
the sets are encoded anew in each search. The memory of all sets is that of an index without compression.

    python -m benchmarks.set_search [--items 20000]
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch

import contraport
from benchmarks.scale import count_seconds
from contraport import LateInteraction

WORDS, DIMENSIONS, VOCABULARY = 32, 128, 5_000

neighbors: Any = importlib.import_module(
    "contraport.similarity_search.neighbors"
)  # the package has a function of this name


def write_texts(path: Path, items: int) -> None:
    """Write a table of pairs of texts; the second text of a pair has the words of the first in another order."""
    random = np.random.default_rng(0)
    words = np.array([f"word{number}" for number in range(VOCABULARY)])
    drawn = random.zipf(1.3, (items, WORDS)) % VOCABULARY
    first, second = ([" ".join(words[row]) for row in rows] for rows in (drawn, random.permuted(drawn, axis=1)))
    pyarrow.parquet.write_table(pa.table({"question": first, "answer": second}), path)


def count_calls(parts: dict[str, float]) -> None:
    """Add the CPU seconds of encoding and of comparing to `parts`."""
    neighbors._embed_as_vector_sets = count_seconds(neighbors._embed_as_vector_sets, parts, "encoding")
    LateInteraction.similarities = count_seconds(LateInteraction.similarities, parts, "comparing")  # type: ignore[method-assign]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--items", type=int, default=20_000)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_texts(folder / "texts.parquet", options.items)
        run = contraport.train(
            data=folder / "texts.parquet", recipe="late-interaction", projection=DIMENSIONS, epochs=1, batch_size=64,
            out=folder / "run", progress=False, device="cpu",
        )  # fmt: skip
        parts = {"encoding": 0.0, "comparing": 0.0}
        count_calls(parts)
        started = time.process_time()
        contraport.search(run, "word1 word2 word3 " * 10, query_view="question", split="all", device="cpu")
        total = time.process_time() - started
    gigabytes = 4e-9 * options.items * WORDS * DIMENSIONS
    print(
        f"{options.items:,} sets of {WORDS} x {DIMENSIONS}: {total:.2f} CPU s; encoding {parts['encoding']:.2f}, "
        f"comparing {parts['comparing']:.2f} ({parts['comparing'] / total:.0%}); all sets: {gigabytes:.2f} GB"
    )


if __name__ == "__main__":
    main()
