"""Points that are no finite matrix, wrong labels and counts are refused; no measure depends on the scale of points."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error

from contraport.metrics.clustering import assign_kmeans_clusters
from contraport.metrics.embedding_geometry import (
    alignment,
    effective_rank,
    hubness,
    tolerance,
    trustworthiness,
    uniformity,
)
from contraport.metrics.intervals import MetricResult, bootstrap_interval, percentile_interval
from contraport.metrics.probes import knn, linear_probe
from contraport.metrics.retrieval import (
    compute_unit_class_embeddings,
    log_match_probability_per_item,
    nearest_indices,
    rank_links,
    retrieval_ranks,
    zero_shot_correctness,
)

WIDE = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
CLASSES = torch.arange(30) % 3
PAIRS = torch.tensor([[0, 1], [2, 3]])


def with_nan(z: torch.Tensor) -> torch.Tensor:
    return z.index_fill(0, torch.tensor([3]), torch.nan)


@pytest.mark.parametrize(
    ("measure", "code"),
    [
        (lambda z: alignment(z, WIDE), "z0"),
        (lambda z: alignment(WIDE, z), "z1"),
        (uniformity, "z"),
        (effective_rank, "features"),
        (lambda z: tolerance(z, CLASSES), "z"),
        (hubness, "z"),
        (lambda z: trustworthiness(z, WIDE, 5), "x"),
        (lambda z: trustworthiness(WIDE, z, 5), "z"),
        (lambda z: assign_kmeans_clusters(z, 3), "z"),
        (lambda z: retrieval_ranks(z, WIDE), "z0"),
        (lambda z: retrieval_ranks(WIDE, z), "z1"),
        (lambda z: log_match_probability_per_item(WIDE, z, 0.1), "z1"),
        (lambda z: nearest_indices(z, 2), "z"),
        (lambda z: zero_shot_correctness(z, CLASSES, WIDE[:3]), "items"),
        (lambda z: compute_unit_class_embeddings(z, 2), "texts"),
        (lambda z: rank_links(z, WIDE, PAIRS, PAIRS), "rows"),
        (lambda z: rank_links(WIDE, z, PAIRS, PAIRS, normalize=False), "columns"),
        (lambda z: knn(z, CLASSES, WIDE, CLASSES), "train_x"),
        (lambda z: linear_probe(WIDE, CLASSES, z, CLASSES), "test_x"),
    ],
)
def test_rejects_points_that_are_no_finite_matrix(measure: Callable[[Any], object], code: str) -> None:
    """Comparisons with NaN are false, so that each item would be the nearest to its other view."""
    with raises_usage_error(f"{code}.invalid", "nan"):
        measure(with_nan(WIDE))
    with raises_usage_error(f"{code}.invalid", "inf"):
        measure(WIDE.double() * 1e308 * 10)
    for other in (WIDE.numpy(), WIDE.tolist(), None, WIDE[0], WIDE[None], WIDE[:, :0], WIDE[:0], WIDE.to_sparse()):
        with raises_usage_error(f"{code}.shape"):
            measure(other)


@pytest.mark.parametrize(
    ("measure", "code"),
    [
        (lambda: tolerance(WIDE, CLASSES[:3]), "labels.shape"),
        (lambda: tolerance(WIDE, CLASSES * math.nan), "labels.shape"),
        (lambda: zero_shot_correctness(WIDE, CLASSES[:3], WIDE[:3]), "labels.shape"),
        (lambda: zero_shot_correctness(WIDE, CLASSES, WIDE[:3, :2]), "classes.shape"),
        (lambda: knn(WIDE, CLASSES - 1, WIDE, CLASSES), "train_y.invalid"),
        (lambda: knn(WIDE, CLASSES, WIDE, CLASSES, neighbors=1.5), "neighbors.invalid"),
        (lambda: linear_probe(WIDE, CLASSES, WIDE, CLASSES, penalty=0), "penalty.invalid"),
        (lambda: hubness(WIDE, 0), "neighbors.invalid"),
        (lambda: trustworthiness(WIDE, WIDE, 0), "neighbors.invalid"),
        (lambda: trustworthiness(WIDE, WIDE[:29], 5), "z.shape"),
        (lambda: nearest_indices(WIDE, 30), "count.invalid"),
        (lambda: assign_kmeans_clusters(WIDE, 31), "z.shape"),
        (lambda: log_match_probability_per_item(WIDE, WIDE, 0), "temperature.invalid"),
        (lambda: retrieval_ranks(WIDE, WIDE, content_ids=CLASSES), "content_ids.shape"),
        (lambda: compute_unit_class_embeddings(WIDE, 0), "num_templates.invalid"),
        (lambda: rank_links(WIDE, WIDE, PAIRS, PAIRS - 1), "test_pairs.invalid"),
        (lambda: rank_links(WIDE, WIDE[:3], PAIRS, PAIRS), "train_pairs.invalid"),
        (lambda: rank_links(WIDE, WIDE, PAIRS.double(), PAIRS), "train_pairs.shape"),
        (lambda: rank_links(WIDE, WIDE[:, :2], PAIRS, PAIRS), "columns.shape"),
        (lambda: bootstrap_interval(MetricResult(np.empty(0))), "results.empty"),
        (lambda: bootstrap_interval(MetricResult(np.ones(3)), level=1.5), "level.invalid"),
        (lambda: bootstrap_interval(MetricResult(np.ones(3)), resamples=0), "resamples.invalid"),
        (lambda: percentile_interval(np.array([math.nan])), "draws.not_finite"),
    ],
)
def test_rejects_other_arguments(measure: Callable[[], object], code: str) -> None:
    with raises_usage_error(code):
        measure()


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15, 1e30])
def test_values_are_the_same_at_any_scale(scale: float) -> None:
    """Squared lengths are below or above the range of single precision."""
    noisy = WIDE + 0.1 * torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    measures: list[Callable[[float], Any]] = [
        lambda by: alignment(WIDE * by, noisy * by),
        lambda by: uniformity(WIDE * by),
        lambda by: effective_rank(WIDE * by),
        lambda by: tolerance(WIDE * by, CLASSES),
        lambda by: hubness(WIDE * by),
        lambda by: retrieval_ranks(WIDE * by, noisy * by),
        lambda by: log_match_probability_per_item(WIDE * by, noisy * by, 0.1),
        lambda by: nearest_indices(WIDE * by, 5),
        lambda by: knn(WIDE * by, CLASSES, noisy * by, CLASSES, neighbors=5),
        lambda by: assign_kmeans_clusters(WIDE * by, 3),
        lambda by: zero_shot_correctness(WIDE * by, CLASSES, noisy[:3] * by),
        lambda by: rank_links(WIDE * by, noisy * by, PAIRS, PAIRS).ranked_columns,
    ]
    for measure in measures:
        np.testing.assert_allclose(measure(scale), measure(1.0), rtol=1e-4, atol=1e-6)


def test_gradients_and_other_types_of_numbers_are_taken() -> None:
    z = WIDE.clone().requires_grad_() * 1
    assert alignment(z, WIDE + 1) == alignment(WIDE, WIDE + 1)
    assert linear_probe(z, CLASSES, z.bfloat16(), CLASSES) > 0.3
    whole = (10 * WIDE).int()
    assert alignment(whole, whole + 1) == alignment(whole.double(), whole.double() + 1)
