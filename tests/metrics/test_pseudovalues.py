"""Pseudovalues of items for metrics of all items, compared with leave-one-out."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.neighbors import NearestNeighbors

from contraport.metrics import clustering, pseudovalues
from contraport.metrics import embedding_geometry as geometry
from contraport.metrics.intervals import (
    MetricResult,
    bootstrap_interval,
    bootstrap_means_kept_below_1,
    bootstrap_means_limited_to_0_1,
)
from contraport.metrics.probes import squared_calibration_pseudovalues

ITEMS = 150


def draw_items(seed: int, items: int = ITEMS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw points around four centres, their classes, and the nearest of four other centres as their cluster."""
    random, centres = np.random.default_rng(seed), np.random.default_rng(99).normal(size=(4, 5))
    labels = random.integers(4, size=items)
    x = centres[labels] + random.normal(size=(items, 5))
    others = centres + 0.5 * np.random.default_rng(98).normal(size=(4, 5))
    return x, labels, ((x[:, None] - others) ** 2).sum(axis=2).argmin(axis=1)


def uniformity(x, y, c):
    return np.log(np.exp(-2 * np.square(pdist(x))).mean())


def pdist(x):
    return torch.pdist(F.normalize(torch.from_numpy(x), dim=1)).numpy()


def tolerance(x, y, c):
    z = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs = (y[:, None] == y) & ~np.eye(len(y), dtype=bool)
    return (z @ z.T)[pairs].mean()


def effective_rank(x, y, c):
    values = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)
    return np.exp(stats.entropy(values))


def calibration(x, y, c):
    """Mean product of the calibration gaps of two items in a bin."""
    confidence, hit = 1 / (1 + np.exp(-x[:, 0])), y > 1
    bins, gaps, result = np.floor(confidence * 15), hit - confidence, []
    for one in np.unique(bins):
        own = gaps[bins == one]
        if len(own) > 1:
            result.append(len(own) * np.outer(own, own)[~np.eye(len(own), dtype=bool)].mean())
    return sum(result) / len(x)


METRIC_AND_PSEUDOVALUES = {
    "uniformity": (uniformity, lambda x, y, c: pseudovalues.compute_uniformity_pseudovalues(torch.from_numpy(x))),
    "tolerance": (
        tolerance,
        lambda x, y, c: pseudovalues.compute_tolerance_pseudovalues(torch.from_numpy(x), torch.from_numpy(y)),
    ),
    "effective rank": (
        effective_rank,
        lambda x, y, c: pseudovalues.compute_effective_rank_pseudovalues(torch.from_numpy(x)),
    ),
    "nmi": (
        lambda x, y, c: normalized_mutual_info_score(y, c),
        lambda x, y, c: clustering.nmi_pseudovalues(torch.from_numpy(y), c),
    ),
    "ari": (
        lambda x, y, c: adjusted_rand_score(y, c),
        lambda x, y, c: clustering.ari_pseudovalues(torch.from_numpy(y), c),
    ),
    "calibration": (
        calibration,
        lambda x, y, c: squared_calibration_pseudovalues(np.stack([1 / (1 + np.exp(-x[:, 0])), y > 1], axis=1)),
    ),
}


@pytest.mark.parametrize("name", METRIC_AND_PSEUDOVALUES)
def test_pseudovalues_agree_with_leave_one_out(name: str) -> None:
    number, per_item = METRIC_AND_PSEUDOVALUES[name]
    args = draw_items(0)
    result, value = per_item(*args), number(*args)
    assert result.mean() == pytest.approx(value, abs=1e-6)
    left_out = np.array([number(*(np.delete(array, item, axis=0) for array in args)) for item in range(ITEMS)])
    influence = (ITEMS - 1) * (value - left_out)
    assert np.corrcoef(result, influence)[0, 1] > 0.93
    assert np.std(result) == pytest.approx(np.std(influence), rel=0.3)  # leave-one-out is not exactly first-order


@pytest.mark.parametrize("name", ["uniformity", "tolerance", "effective rank", "ari"])
def test_interval_width_agrees_with_the_spread_over_new_items(name: str) -> None:
    number, per_item = METRIC_AND_PSEUDOVALUES[name]
    results = [(per_item(*args), number(*args)) for args in map(draw_items, range(40))]
    spread = np.std([value for _, value in results])
    widths = [np.subtract(*bootstrap_interval(MetricResult(result), resamples=100)[::-1]) for result, _ in results]
    assert 0.7 < np.mean(widths) / (2 * 1.96 * spread) < 1.5


def test_hubness_varies_by_less_than_its_standard_error() -> None:
    features = [torch.randn(ITEMS, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(30)]
    result = [pseudovalues.compute_hubness_pseudovalues(z) for z in features]
    values = [geometry.hubness(z) for z in features]
    assert [row.mean() for row in result] == pytest.approx(values)
    assert np.std(values) < np.mean([row.std() for row in result]) / ITEMS**0.5


def test_hubness_pseudovalues_agree_with_finite_differences() -> None:
    x = draw_items(0)[0]
    near = NearestNeighbors(n_neighbors=11, metric="cosine").fit(x).kneighbors(x, return_distance=False)[:, 1:]

    def number(counts: np.ndarray) -> float:
        result = np.bincount(near.ravel(), np.repeat(counts, 10), minlength=ITEMS)
        centred = result - np.average(result, weights=counts)
        moments = [np.average(centred**power, weights=counts) for power in (2, 3)]
        return moments[1] / moments[0] ** 1.5

    ones, step = np.ones(ITEMS), 1e-4 * np.eye(ITEMS)
    slopes = np.array([(number(ones + one) - number(ones - one)) / 2e-4 for one in step])
    expected = stats.skew(np.bincount(near.ravel(), minlength=ITEMS)) + ITEMS * (slopes - slopes.mean())
    assert pseudovalues.compute_hubness_pseudovalues(torch.from_numpy(x)) == pytest.approx(expected, abs=1e-4)


def test_pseudovalues_of_a_subset_are_scaled_to_all_items(monkeypatch: pytest.MonkeyPatch) -> None:
    z = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    without_subset = [
        compute(z).std()
        for compute in (pseudovalues.compute_uniformity_pseudovalues, pseudovalues.compute_hubness_pseudovalues)
    ]
    monkeypatch.setattr(geometry, "MAX_PAIRWISE_METRIC_ITEMS", 100)
    for compute, number in (
        (pseudovalues.compute_uniformity_pseudovalues, geometry.uniformity),
        (pseudovalues.compute_hubness_pseudovalues, geometry.hubness),
    ):
        result = compute(z)
        assert result.mean() == pytest.approx(number(z))
        assert (abs(result - result.mean()) > 1e-9).sum() <= 100
    with_subset = [
        compute(z).std()
        for compute in (pseudovalues.compute_uniformity_pseudovalues, pseudovalues.compute_hubness_pseudovalues)
    ]
    assert np.array(with_subset) == pytest.approx(np.array(without_subset) * 3**0.5, rel=0.4)


def test_zero_features_do_not_change_effective_rank_pseudovalues() -> None:
    """With more features than items the other Gram matrix is used."""
    x = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wide = torch.cat([x, torch.zeros(40, 60)], dim=1)
    assert pseudovalues.compute_effective_rank_pseudovalues(wide) == pytest.approx(
        pseudovalues.compute_effective_rank_pseudovalues(x)
    )


def test_pseudovalues_of_constant_features_are_finite() -> None:
    same, labels = torch.ones(20, 3), torch.arange(20) % 2
    for result in (
        pseudovalues.compute_uniformity_pseudovalues(same),
        pseudovalues.compute_tolerance_pseudovalues(same, labels),
        pseudovalues.compute_effective_rank_pseudovalues(same),
        pseudovalues.compute_hubness_pseudovalues(torch.eye(20)[torch.arange(20) % 20]),
        clustering.ari_pseudovalues(labels, np.zeros(20, dtype=int)),
        clustering.nmi_pseudovalues(torch.zeros(20), np.zeros(20, dtype=int)),
    ):
        assert np.isfinite(result).all()


@pytest.mark.parametrize("wrong", [0, 1, 3])
def test_ari_interval_stays_below_one(wrong: int) -> None:
    labels = torch.arange(60) % 4
    result = labels.numpy().copy()
    result[:wrong] = (result[:wrong] + 1) % 4
    value = adjusted_rand_score(labels, result)
    plain = clustering.ari_pseudovalues(labels, result)
    low, high = bootstrap_interval(MetricResult(plain, bootstrap_means_kept_below_1))
    assert low <= value <= high <= 1
    assert (bootstrap_interval(MetricResult(plain)).high > 1) == (wrong == 1)
    assert (low < value - 0.03) == (wrong > 0)
    assert MetricResult(plain, bootstrap_means_kept_below_1).value == pytest.approx(value)


def test_nmi_interval_stays_above_zero() -> None:
    labels, result = torch.arange(60) % 3, np.arange(60) // 7 % 3
    value = normalized_mutual_info_score(labels, result)
    plain = clustering.nmi_pseudovalues(labels, result)
    low, high = bootstrap_interval(MetricResult(plain, bootstrap_means_limited_to_0_1))
    assert bootstrap_interval(MetricResult(plain)).low < 0 <= low < value < high < 0.3
