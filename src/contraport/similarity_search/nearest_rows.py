"""Nearest rows of features by cosine similarity, exactly or by an index."""

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

from contraport._utils.files import atomic_write, read_json_or_none, write_json
from contraport._utils.formatting import format_options
from contraport.embedding import check_finite_features
from contraport.engine import LateInteraction, normalize
from contraport.errors import (
    UsageError,
    check,
    check_regular_file,
    check_writable,
    import_optional,
    one_line_reason,
    translate_write_errors,
)
from contraport.objectives import Loss
from contraport.options import has_object_placeholder
from contraport.runs import WritableRun
from contraport.training.components.step_builder import build_objective

MAX_FEATURE_ROWS_IN_MEMORY = 16_384
"""Number of rows of features in memory at a time; the features themselves may be a memory-mapped file."""

COSINE_ROUNDING_ERROR = 1e-6  # in float32: equal features may have a cosine this much below 1
SLOW_SEARCH_ROWS = 1_000_000  # number of rows above which the log recommends an index

log = logging.getLogger("contraport.similarity_search")


def check_and_normalize_rows(features: np.ndarray, device: torch.device | str, *, first_item: int = 0) -> Tensor:
    """Check that features are finite, and scale rows to unit length, float32 ``(b, F)``.

    Zero rows stay zero. `first_item` is the position of the first row among all, for errors.

    Raises:
        UsageError: a feature is not finite.

    >>> check_and_normalize_rows(np.array([[3.0, 4.0]]), torch.device("cpu"))
    tensor([[0.6000, 0.8000]])
    """
    with np.errstate(over="ignore"):  # overflow is reported below
        rows = torch.from_numpy(np.array(features, dtype=np.float32))
    check_finite_features(rows, first_item=first_item)
    return normalize(rows.to(device))


def find_late_interaction(run: WritableRun) -> LateInteraction | None:
    """Return a run's late interaction kernel, or None if it has none."""
    settings = run.settings()
    if has_object_placeholder(settings.objective):
        log.info("Items are compared by one vector each: the run's objective was an object, which it does not store.")
        return None
    try:
        objective = build_objective(settings)
    except UsageError as error:  # an objective of another version; its encoder can still be used
        log.warning("Items are compared by one vector each: the run's objective cannot be built. %s", error)
        return None
    if not isinstance(objective, Loss) or not objective.accepts_vector_sets:
        return None
    return next(module for module in objective.modules() if isinstance(module, LateInteraction))


def warn_of_pooled_features(run: str | Path | None) -> None:
    """Log a warning if a run compares vector sets, but its features are pooled.

    A run that was moved or removed passes: the features are all that is left of it.
    """
    try:
        kernel = None if run is None else find_late_interaction(WritableRun(run))
    except (UsageError, OSError):
        return
    if kernel is not None:
        log.warning(
            "The features have one vector per item, pooled from its set, though %s was trained with %r. "
            "`contraport search` compares sets, of a run of several views",
            *(run, kernel),
        )


def evenly_spaced_indices(num_items: int, max_count: int) -> np.ndarray:
    """Return the indices of evenly spaced items, at most `max_count`.

    >>> evenly_spaced_indices(10, 4)
    array([0, 3, 6, 9])
    """
    return np.linspace(0, num_items - 1, min(max_count, num_items)).round().astype(np.int64)


def iter_normalized_blocks(features: np.ndarray, device: torch.device | str) -> Iterator[tuple[int, Tensor]]:
    """Yield each block's first row index and its rows, scaled to unit length."""
    for first in range(0, len(features), MAX_FEATURE_ROWS_IN_MEMORY):
        yield (
            first,
            check_and_normalize_rows(features[first : first + MAX_FEATURE_ROWS_IN_MEMORY], device, first_item=first),
        )


def top_scores_and_indices(
    query_vector: Tensor,
    features: np.ndarray,
    count: int,
    *,
    candidate_rows: np.ndarray | None = None,
    bonuses: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the largest scores and their row indices.

    A score is the cosine similarity to the query plus the bonus of the row. The search is exact. The nearest row comes
    first; of equal similarities, the earlier row.

    Args:
        query_vector: ``(F,)``, on the device that computes.
        features: ``(n, F)``.
        count: number of rows to return, at most all.
        candidate_rows: sorted indices of the only rows to search; default: all.
        bonuses: numbers added to the similarities, ``(n,)`` float32; default: none.

    >>> top_scores_and_indices(torch.tensor([1.0, 0.0]), np.array([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]]), 2)[1]
    tensor([1, 2])
    """
    query_vector = normalize(query_vector.float()[None])[0]
    best, places = query_vector.new_empty(0), torch.empty(0, dtype=torch.int64, device=query_vector.device)
    rows = np.arange(len(features)) if candidate_rows is None else candidate_rows
    for first in range(0, len(rows), MAX_FEATURE_ROWS_IN_MEMORY):
        block = rows[first : first + MAX_FEATURE_ROWS_IN_MEMORY]
        cosines = (
            check_and_normalize_rows(features[block], query_vector.device, first_item=int(block[0])) @ query_vector
        )
        best = torch.cat([best, cosines if bonuses is None else cosines + bonuses[block].to(query_vector.device)])
        places = torch.cat([places, torch.from_numpy(block).to(query_vector.device)])
        order = best.argsort(descending=True, stable=True)[:count]
        best, places = best[order], places[order]
    return best.cpu(), places.cpu()


@dataclass(frozen=True)
class ApproximateFeatureIndex:
    """Approximate faiss index of features that proposes candidates for exact comparison."""

    faiss_index: Any
    features: np.ndarray

    def find_candidate_rows(self, query_vector: Tensor, num_nearest: int) -> np.ndarray:
        """Return the row numbers of about 10 * `num_nearest` candidates, in ascending order."""
        rows = check_and_normalize_rows(query_vector.cpu().numpy()[None], "cpu").numpy()
        _, places = self.faiss_index.search(rows, min(10 * num_nearest, len(self.features)))
        return np.unique(places[places >= 0])

    def iter_near_pairs(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield index pairs of similar rows with their cosines, block by block."""
        for first, rows in iter_normalized_blocks(self.features, "cpu"):
            _, places = self.faiss_index.search(rows.numpy(), min(32, len(self.features)))
            left = np.repeat(np.arange(len(rows)), places.shape[1])
            right = places.reshape(-1)
            left, right = left[right >= 0], right[right >= 0]
            unique, inverse = np.unique(right, return_inverse=True)
            vectors = check_and_normalize_rows(self.features[unique], "cpu")
            cosines = torch.cat([
                (rows[left[part]] * vectors[inverse[part]]).sum(1)
                for part in np.array_split(np.arange(len(left)), max(1, len(left) // MAX_FEATURE_ROWS_IN_MEMORY))
            ])  # fmt: skip
            differ = left + first != right
            yield left[differ] + first, right[differ], cosines.numpy()[differ]


def warn_of_slow_search(features: np.ndarray) -> None:
    """If there are more than a million rows, log a warning that an index is faster."""
    if len(features) > SLOW_SEARCH_ROWS:
        option = format_options(index="FILE")
        log.warning("Searching all %s rows. An index is faster: %s builds it once.", f"{len(features):,}", option)


def load_or_build_index(features: np.ndarray, path: Path) -> ApproximateFeatureIndex:
    """Load the index from a file, or build it if missing or outdated."""
    faiss = import_optional("faiss", "index", f"index: {path}")
    record_path = path.with_name(path.name + ".json")
    sample = np.ascontiguousarray(features[evenly_spaced_indices(len(features), 1_000)])
    digest = hashlib.sha256(sample.tobytes()).hexdigest()  # of some rows, which identifies the features
    record = {"rows": list(features.shape), "digest": digest, "faiss": faiss.__version__}
    if path.exists() and record_path.exists():
        check_regular_file("index", path)
        if read_json_or_none(record_path) == record:
            try:
                return ApproximateFeatureIndex(faiss.read_index(str(path)), features)
            except RuntimeError as error:
                message = f"index: {path} cannot be read: {one_line_reason(error)}. Delete it."
                raise UsageError(message, kind="unreadable") from error
        log.warning("Rebuilding the index in %s: it was built from other features or by another faiss.", path)
    else:
        check(not path.exists(), f"index: {path} exists and is not an index of features. Name another file.", "exists")
    check_writable("index", path)
    faiss_index = _build_ivf_index(faiss, features)
    with translate_write_errors("index", path):
        with atomic_write(path) as temporary:
            try:
                faiss.write_index(faiss_index, str(temporary))
            except RuntimeError as error:
                raise OSError(one_line_reason(error)) from error
            # Without its record an index is not trusted, so a write that is interrupted here cannot mix two.
            record_path.unlink(missing_ok=True)
        write_json(record_path, record)
    log.info("Wrote the index to %s: %.1f MB.", path, path.stat().st_size / 1e6)
    return ApproximateFeatureIndex(faiss_index, features)


def _build_ivf_index(faiss: Any, features: np.ndarray) -> Any:
    """Build an approximate (IVF) faiss index of rows scaled to unit length."""
    items, width = features.shape
    cells = max(1, min(round(4 * math.sqrt(items)), items // 39))  # faiss requires 39 training rows a cell
    faiss_index = faiss.index_factory(width, f"IVF{cells},SQ8", faiss.METRIC_INNER_PRODUCT)
    training_rows = evenly_spaced_indices(items, max(100_000, 64 * cells))
    faiss_index.train(check_and_normalize_rows(features[training_rows], "cpu").numpy())
    for _, rows in iter_normalized_blocks(features, "cpu"):
        faiss_index.add(rows.numpy())
    faiss_index.nprobe = min(32, cells)
    return faiss_index
