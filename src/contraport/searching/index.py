"""An index of features, by faiss, for more rows than are looked at one by one."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contraport._utils.files import atomic_write, read_json, write_json
from contraport.errors import (
    UsageError,
    check,
    check_regular_file,
    import_optional,
    one_line_reason,
    report_write_errors,
)
from contraport.searching.block_search import BLOCK, blocks, unit

MANY = 1_000_000
"""With more rows than this an index is proposed."""

SAMPLED = 100_000
"""From so many rows, spread evenly, the cells are found."""

PROBED = 32
"""So many cells are looked at for a query."""

CANDIDATES = 10
"""For each row that is asked for, so many candidates are compared exactly."""

LINKED = 32
"""A row is linked with so many of its nearest at most."""

_CPU = torch.device("cpu")

log = logging.getLogger("contraport.searching")


@dataclass(frozen=True)
class Index:
    """Cells of features and, in each, its rows in a byte a number; what is found in it is compared exactly."""

    cells: Any
    features: np.ndarray

    def candidates(self, query: Tensor, count: int) -> np.ndarray:
        """Return rows, rising, among which the `count` nearest to a query ``(F,)`` are, bar some that are missed."""
        rows = unit(query.cpu().numpy()[None], _CPU).numpy()
        _, places = self.cells.search(rows, min(CANDIDATES * count, len(self.features)))
        return np.unique(places[places >= 0])

    def pairs(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield rows, the nearest other rows in their cells, and the cosines of both, ``(p,)`` each."""
        for first, rows in blocks(self.features, _CPU):
            _, places = self.cells.search(rows.numpy(), min(LINKED, len(self.features)))
            here = np.repeat(np.arange(len(rows)), places.shape[1])
            there = places.reshape(-1)
            here, there = here[there >= 0], there[there >= 0]
            wanted, inverse = np.unique(there, return_inverse=True)
            vectors = unit(self.features[wanted], _CPU)
            alike = torch.cat([
                (rows[here[part]] * vectors[inverse[part]]).sum(1)
                for part in np.array_split(np.arange(len(here)), max(1, len(here) // BLOCK))
            ])  # fmt: skip
            others = here + first != there
            yield here[others] + first, there[others], alike.numpy()[others]


def suggest_index(features: np.ndarray) -> None:
    """Log that an index would be quicker, where it would."""
    if len(features) > MANY:
        log.warning("all of %s rows are looked at; an index, made once, is quicker: --index FILE", f"{len(features):,}")


def load_or_build_index(features: np.ndarray, path: Path) -> Index:
    """Return the index in a file, which is made where there is none, or one of other features.

    Raises:
        UsageError: faiss is missing, or the file cannot be read or written.
    """
    faiss = import_optional("faiss", "index", f"index: {path}")
    told = path.with_name(path.name + ".json")
    made_of = {"rows": list(features.shape), "digest": _digest(features), "faiss": faiss.__version__}
    if path.exists() and told.exists():
        check_regular_file("index", path)
        if read_json(told) == made_of:
            return Index(_read(faiss, path), features)
        log.warning("the index in %s is made again: it is of other features, or of another version", path)
    else:
        check(not path.exists(), f"index: {path} exists and is no index of features; name another file.")
    check(path.absolute().parent.is_dir(), f"index: the folder {path.parent} does not exist.")
    cells = _made(faiss, features)
    with report_write_errors("index", path):
        with atomic_write(path) as temporary:
            try:
                faiss.write_index(cells, str(temporary))
            except RuntimeError as error:
                raise OSError(one_line_reason(error)) from error
            told.unlink(missing_ok=True)
        write_json(told, made_of)
    log.info("the index is in %s: %.1f MB", path, path.stat().st_size / 1e6)
    return Index(cells, features)


def _made(faiss: Any, features: np.ndarray) -> Any:
    items, width = features.shape
    number = max(1, min(round(4 * math.sqrt(items)), items // 39))  # faiss wants 39 rows of each cell to find it
    cells = faiss.index_factory(width, f"IVF{number},SQ8", faiss.METRIC_INNER_PRODUCT)
    spread = np.linspace(0, items - 1, min(max(SAMPLED, 64 * number), items)).round().astype(np.int64)
    cells.train(unit(features[spread], _CPU).numpy())
    for _, rows in blocks(features, _CPU):
        cells.add(rows.numpy())
    cells.nprobe = min(PROBED, number)
    return cells


def _read(faiss: Any, path: Path) -> Any:
    try:
        return faiss.read_index(str(path))
    except RuntimeError as error:
        raise UsageError(f"index: {path} cannot be read: {one_line_reason(error)}; delete it.") from error


def _digest(features: np.ndarray) -> str:
    """Return a digest of rows spread evenly."""
    spread = np.linspace(0, len(features) - 1, min(1_000, len(features))).round().astype(np.int64)
    return hashlib.sha256(np.ascontiguousarray(features[spread]).tobytes()).hexdigest()
