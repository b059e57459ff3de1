"""Rejection of invalid arguments by metric functions, and independence of the scale of points."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error

from contraport.metrics.clustering import assign_kmeans_clusters
from contraport.metrics.column_item_ranking import rank_columns
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
from contraport.metrics.retrieval_ranks import (
    nearest_indices,
    retrieval_ranks_by_view_pair,
    symmetric_log_match_probability,
)
from contraport.metrics.zero_shot import compute_unit_class_embeddings, zero_shot_correctness

WIDE = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
CLASSES = torch.arange(30) % 3
PAIRS = torch.tensor([[0, 1], [2, 3]])


def with_nan(z: torch.Tensor) -> torch.Tensor:
    return z.index_fill(0, torch.tensor([3]), torch.nan)


@pytest.mark.parametrize(
    ("metric", "code"),
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
        (lambda z: retrieval_ranks_by_view_pair(z, WIDE), "z0"),
        (lambda z: retrieval_ranks_by_view_pair(WIDE, z), "z1"),
        (lambda z: symmetric_log_match_probability(WIDE, z, 0.1), "z1"),
        (lambda z: nearest_indices(z, 2), "z"),
        (lambda z: zero_shot_correctness(z, CLASSES, WIDE[:3]), "items"),
        (lambda z: compute_unit_class_embeddings(z, 2), "texts"),
        (lambda z: rank_columns(z, WIDE, PAIRS, PAIRS), "rows"),
        (lambda z: rank_columns(WIDE, z, PAIRS, PAIRS, normalize=False), "columns"),
        (lambda z: knn(z, CLASSES, WIDE, CLASSES), "train_x"),
        (lambda z: linear_probe(WIDE, CLASSES, z, CLASSES), "test_x"),
    ],
)
def test_rejects_points_other_than_a_finite_matrix(metric: Callable[[Any], object], code: str) -> None:
    """Comparisons with NaN are false, so retrieval would rank each item first."""
    with raises_usage_error(f"{code}.invalid", "nan"):
        metric(with_nan(WIDE))
    with raises_usage_error(f"{code}.invalid", "inf"):
        metric(WIDE.double() * 1e308 * 10)
    for other in (WIDE.numpy(), WIDE.tolist(), None, WIDE[0], WIDE[None], WIDE[:, :0], WIDE[:0], WIDE.to_sparse()):
        with raises_usage_error(f"{code}.shape"):
            metric(other)


@pytest.mark.parametrize(
    ("metric", "code"),
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
        (lambda: symmetric_log_match_probability(WIDE, WIDE, 0), "temperature.invalid"),
        (lambda: retrieval_ranks_by_view_pair(WIDE, WIDE, content_ids=CLASSES), "content_ids.shape"),
        (lambda: compute_unit_class_embeddings(WIDE, 0), "num_templates.invalid"),
        (lambda: rank_columns(WIDE, WIDE, PAIRS, PAIRS - 1), "test_pairs.invalid"),
        (lambda: rank_columns(WIDE, WIDE[:3], PAIRS, PAIRS), "train_pairs.invalid"),
        (lambda: rank_columns(WIDE, WIDE, PAIRS.double(), PAIRS), "train_pairs.shape"),
        (lambda: rank_columns(WIDE, WIDE[:, :2], PAIRS, PAIRS), "columns.shape"),
        (lambda: bootstrap_interval(MetricResult(np.empty(0))), "results.empty"),
        (lambda: bootstrap_interval(MetricResult(np.ones(3)), level=1.5), "level.invalid"),
        (lambda: bootstrap_interval(MetricResult(np.ones(3)), resamples=0), "resamples.invalid"),
        (lambda: percentile_interval(np.array([math.nan])), "draws.not_finite"),
    ],
)
def test_rejects_invalid_arguments(metric: Callable[[], object], code: str) -> None:
    with raises_usage_error(code):
        metric()


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15, 1e30])
def test_metrics_do_not_depend_on_scale(scale: float) -> None:
    """Squared norms at 1e-30 and 1e30 underflow or overflow single precision."""
    noisy = WIDE + 0.1 * torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    metrics: list[Callable[[float], Any]] = [
        lambda factor: alignment(WIDE * factor, noisy * factor),
        lambda factor: uniformity(WIDE * factor),
        lambda factor: effective_rank(WIDE * factor),
        lambda factor: tolerance(WIDE * factor, CLASSES),
        lambda factor: hubness(WIDE * factor),
        lambda factor: retrieval_ranks_by_view_pair(WIDE * factor, noisy * factor),
        lambda factor: symmetric_log_match_probability(WIDE * factor, noisy * factor, 0.1),
        lambda factor: nearest_indices(WIDE * factor, 5),
        lambda factor: knn(WIDE * factor, CLASSES, noisy * factor, CLASSES, neighbors=5),
        lambda factor: assign_kmeans_clusters(WIDE * factor, 3),
        lambda factor: zero_shot_correctness(WIDE * factor, CLASSES, noisy[:3] * factor),
        lambda factor: rank_columns(WIDE * factor, noisy * factor, PAIRS, PAIRS).ranked_columns,
    ]
    for metric in metrics:
        np.testing.assert_allclose(metric(scale), metric(1.0), rtol=1e-4, atol=1e-6)


def test_accepts_tensors_with_gradients_and_other_dtypes() -> None:
    z = WIDE.clone().requires_grad_() * 1
    assert alignment(z, WIDE + 1) == alignment(WIDE, WIDE + 1)
    assert linear_probe(z, CLASSES, z.bfloat16(), CLASSES) > 0.3
    whole = (10 * WIDE).int()
    assert alignment(whole, whole + 1) == alignment(whole.double(), whole.double() + 1)
