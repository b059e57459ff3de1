"""Pair statistics compared with dense and pairwise formulas, and on planted mismatches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tests.errors import raises_usage_error
from torch import Tensor

from contraport.auditing.command_options import STATISTIC_NAMES
from contraport.auditing.pairs.canonical_maps import (
    NUM_FOLDS,
    RIDGE,
    find_width_reduction_note,
    svd_without_negligible_correlations,
)
from contraport.auditing.pairs.pair_scoring import (
    MARGINAL_RELAXATION,
    SCORE_TEMPERATURE,
    SINKHORN_ITERATIONS,
    STATISTICS,
    score_pairs,
)
from contraport.auditing.pairs.paired_features import PairedFeatures, PairIndices

ITEMS, WRONG = 120, 30


@pytest.fixture
def noisy_pairs() -> PairedFeatures:
    """Two noisy views of one vector per item; the first 30 items have exchanged partners."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ITEMS, 5, generator=generator)
    first, second = (hidden + 0.2 * torch.randn(ITEMS, 5, generator=generator) for _ in range(2))
    second[:WRONG] = second[:WRONG].roll(7, 0)
    return PairedFeatures((first, second), (first, second))


def dense_cosines(noisy_pairs: PairedFeatures) -> np.ndarray:
    x, y = (values.double() / values.double().norm(dim=1, keepdim=True) for values in noisy_pairs.features)
    return np.asarray(x @ y.T)


def compute_dense_statistic(name: str, noisy_pairs: PairedFeatures) -> np.ndarray:
    """Compute a statistic of all pairs of items, ``(n, n)``."""
    s = dense_cosines(noisy_pairs)
    if name == "cosine":
        return s
    if name == "softmax":
        e = np.exp(s / SCORE_TEMPERATURE)
        return np.log(e / np.sqrt(e.sum(1, keepdims=True) * e.sum(0, keepdims=True)))
    if name == "csls":
        k = noisy_pairs.num_neighbors
        near = [np.sort(matrix, axis=1)[:, -k:].mean(1) for matrix in (s, s.T)]
        return 2 * s - near[0][:, None] - near[1]
    if name == "rank":
        return -((s[:, :, None] < s[:, None, :]).mean(2) + (s[:, :, None] < s.T[None].transpose(0, 2, 1)).mean(1)) / 2
    damping = 1.0 if name == "balanced" else 1 / (1 + SCORE_TEMPERATURE / MARGINAL_RELAXATION)
    log_k, mass = (s - 1) / SCORE_TEMPERATURE, -np.log(len(s))
    f, g = np.zeros(len(s)), np.full(len(s), mass if name == "unbalanced" else 0.0)
    start = mass if name == "unbalanced" else 0.0
    for _ in range(SINKHORN_ITERATIONS):
        f = start + damping * (mass - start - np.logaddexp.reduce(log_k + g, axis=1))
        g = start + damping * (mass - start - np.logaddexp.reduce(log_k + f[:, None], axis=0))
    return log_k + f[:, None] + g


@pytest.mark.parametrize("name", ["cosine", "softmax", "csls", "balanced", "unbalanced"])
def test_statistics_agree_with_dense_formulas(name: str, noisy_pairs: PairedFeatures) -> None:
    expected = compute_dense_statistic(name, noisy_pairs)
    pairs = PairIndices(torch.arange(ITEMS), torch.arange(ITEMS).roll(11))
    for one in (noisy_pairs.observed_pair_indices, pairs):
        result = score_pairs(noisy_pairs, one, name).double().numpy()
        np.testing.assert_allclose(result, expected[one.first, one.second], rtol=2e-3, atol=2e-3)


def test_rank_is_the_share_of_nearer_items(noisy_pairs: PairedFeatures) -> None:
    s = dense_cosines(noisy_pairs)
    first, second = torch.arange(ITEMS), torch.arange(ITEMS).roll(3)
    own = s[first, second]
    expected = -((s[first] > own[:, None]).mean(1) + (s.T[second] > own[:, None]).mean(1)) / 2
    np.testing.assert_allclose(
        score_pairs(noisy_pairs, PairIndices(first, second), "rank"), expected, atol=1.01 / ITEMS
    )


def test_ties_do_not_count_as_nearer() -> None:
    same = torch.eye(5).repeat(12, 1)
    items = torch.arange(60)
    assert (score_pairs(PairedFeatures((same, same), (same, same)), statistic="rank") == 0).all()
    moved = score_pairs(PairedFeatures((same, same), (same, same)), PairIndices(items, items.roll(1)), "rank")
    assert moved.numpy() == pytest.approx(-12 / 60)


@pytest.mark.parametrize("shift", [0, 5])
def test_likeness_averages_both_directions(noisy_pairs: PairedFeatures, shift: int) -> None:
    pool = torch.arange(ITEMS)[10::2]
    subset = PairedFeatures(noisy_pairs.features, neighbor_pool=pool)
    pairs = PairIndices(torch.arange(ITEMS), torch.arange(ITEMS).roll(shift))
    x, y = (values.double().numpy() for values in subset.features)
    expected = []
    for i, j in zip(*(side.tolist() for side in pairs), strict=True):
        near_i, near_j = nearest_in_pool(x, y, i, j, pool)
        expected.append(((y[near_i] @ y[j]).mean() + (x[near_j] @ x[i]).mean()) / 2)
    np.testing.assert_allclose(score_pairs(subset, pairs, "likeness"), expected, atol=1e-5)


def nearest_in_pool(x: np.ndarray, y: np.ndarray, i: int, j: int, pool: Tensor) -> tuple[list[int], list[int]]:
    """Return the 15 items of the pool nearest to i in the first view and to j in the second, without i and j."""
    others = [k for k in pool.tolist() if k not in (i, j)]
    return tuple(sorted(others, key=lambda k: -float(of[k] @ of[own]))[:15] for of, own in ((x, i), (y, j)))


@pytest.mark.parametrize("shift", [0, 5])
def test_neighbors_come_from_the_pool_without_the_pair(noisy_pairs: PairedFeatures, shift: int) -> None:
    pool = torch.arange(ITEMS)[10::2]
    subset = PairedFeatures(noisy_pairs.features, neighbor_pool=pool)
    pairs = PairIndices(torch.arange(ITEMS), torch.arange(ITEMS).roll(shift))
    result = score_pairs(subset, pairs)
    x, y = (np.asarray(values) for values in subset.features)
    for i, j in zip(*(side.tolist() for side in pairs), strict=True):
        others = [k for k in pool.tolist() if k not in (i, j)]
        near_i = sorted(others, key=lambda k: -float(x[i] @ x[k]))[:15]
        near_j = sorted(others, key=lambda k: -float(y[j] @ y[k]))[:15]
        shares_in_second = [share(y, j, k) for k in near_i]
        shares_in_first = [share(x, i, k) for k in near_j]
        expected = -(np.log(shares_in_second).mean() + np.log(shares_in_first).mean()) / 2
        assert float(result[i]) == pytest.approx(expected, abs=0.05)


def share(values: np.ndarray, item: int, other: int) -> float:
    """Return the share of all other items that are at least as near to an item as another item is."""
    near = np.delete(values, item, 0) @ values[item] >= values[other] @ values[item] - 1e-6
    return float(near.mean())


def test_another_pool_gives_the_scores_of_new_features(noisy_pairs: PairedFeatures) -> None:
    """Few of the nearest items are in the pool, so some neighbors are searched again."""
    near_first = noisy_pairs.features[0] @ noisy_pairs.features[0][0]
    pool = near_first.argsort()[: ITEMS // 2].sort().values
    expected = score_pairs(PairedFeatures(noisy_pairs.features, neighbor_pool=pool), statistic="combined")
    score_pairs(noisy_pairs, statistic="combined")
    torch.testing.assert_close(score_pairs(noisy_pairs.with_neighbor_pool(pool), statistic="combined"), expected)
    with raises_usage_error("neighbor_pool.invalid", "17"):
        noisy_pairs.with_neighbor_pool(pool[:5])


def test_approximate_neighbors_separate_mismatches_like_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(6_000, 6, generator=generator)
    first, second = (hidden + 0.5 * torch.randn(6_000, 6, generator=generator) for _ in range(2))
    second[:1_000] = second[:1_000].roll(1, 0)
    result = []
    for limit in (20_000, 100):
        monkeypatch.setattr("contraport.auditing.pairs.paired_features.MAX_EXACT_NEIGHBOR_ITEMS", limit)
        result.append(score_pairs(PairedFeatures((first, second)), statistic="combined"))
    assert not torch.equal(*result)
    exact, by_cells = (roc_auc_score(np.arange(6_000) >= 1_000, scores) for scores in result)
    assert by_cells == pytest.approx(exact, abs=0.002)
    assert exact > 0.9


@pytest.mark.parametrize("with_pool", [False, True])
def test_stored_similarities_give_the_scores_of_recomputed_ones(
    with_pool: bool, noisy_pairs: PairedFeatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = []
    for limit in (ITEMS, ITEMS - 1):
        monkeypatch.setattr("contraport.auditing.pairs.paired_features.MAX_SIMILARITY_MATRIX_ITEMS", limit)
        paired = PairedFeatures(noisy_pairs.features)
        if with_pool:
            paired = PairedFeatures(noisy_pairs.features, neighbor_pool=torch.arange(ITEMS)).with_neighbor_pool(
                torch.arange(0, ITEMS, 2)
            )
        result.append(score_pairs(paired))
        assert (paired._similarity_matrices is None) == (limit < ITEMS)
    torch.testing.assert_close(*result)


def test_equal_items_count_as_one_group() -> None:
    """Captions are equal within a class, so it is arbitrary which of the equal ones is nearest."""
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(600) % 6
    images = torch.randn(6, 8, generator=generator)[label] + 0.5 * torch.randn(600, 8, generator=generator)
    caption_class = label.clone()
    caption_class[:60] = (caption_class[:60] + 1) % 6
    captions = torch.randn(6, 8, generator=generator)[caption_class]
    paired = PairedFeatures((images, captions))
    scores = score_pairs(paired)
    assert roc_auc_score(np.arange(600) >= 60, scores) > 0.98
    assert scores[caption_class == 2].std() > 0  # images with equal captions have different scores
    neighbors_in_second = paired.neighbors_by_view_excluding_members(paired.observed_pair_indices)[1]
    near = paired.neg_log_reference_rank_shares(1, torch.arange(600), neighbors_in_second)
    assert near.min() == near.max() == pytest.approx(np.log(599 / 99), abs=0.15)  # a hundred equal captions are as near


def test_ranks_of_many_items_use_a_sample_of_references(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(900, 4, generator=generator)
    views = (hidden, hidden + 0.3 * torch.randn(900, 4, generator=generator))
    whole = score_pairs(PairedFeatures(views))
    monkeypatch.setattr("contraport.auditing.pairs.paired_features.MAX_REFERENCE_ITEMS", 300)
    subset = score_pairs(PairedFeatures(views))
    assert np.corrcoef(whole, subset)[0, 1] > 0.9
    assert not torch.equal(whole, subset)


def test_option_lists_all_statistics() -> None:
    assert set(STATISTIC_NAMES) == set(STATISTICS)


@pytest.mark.parametrize("name", STATISTICS)
def test_separates_planted_mismatches(name: str, noisy_pairs: PairedFeatures) -> None:
    scores: Tensor = score_pairs(noisy_pairs, statistic=name)
    assert scores.shape == (ITEMS,)
    assert roc_auc_score(np.arange(ITEMS) >= WRONG, scores) > 0.9


def test_canonical_agrees_with_the_singular_vectors(noisy_pairs: PairedFeatures) -> None:
    """The reference is a singular value decomposition in double precision per fold, with symmetric whitening."""
    pool = torch.arange(ITEMS)[WRONG::2]
    subset = PairedFeatures((noisy_pairs.features[0], noisy_pairs.features[1][:, :4]), neighbor_pool=pool)
    first, second = torch.arange(ITEMS), torch.arange(ITEMS).roll(4)
    expected = np.empty(ITEMS)
    raw = [values.double().numpy() for values in subset.features]
    x, y = (values - values[pool].mean(0) for values in raw)
    fold = np.arange(ITEMS) % NUM_FOLDS
    fold[pool] = np.arange(len(pool)) % NUM_FOLDS  # the pool is spread evenly over the folds
    for number in range(NUM_FOLDS):
        fitted = (fold != number) & np.isin(np.arange(ITEMS), pool)
        roots = []
        for values in (x, y):
            covariance = values[fitted].T @ values[fitted] / fitted.sum()
            covariance += RIDGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
            values_, vectors = np.linalg.eigh(covariance)
            roots.append(vectors @ np.diag(values_**-0.5) @ vectors.T)
        a, b = x @ roots[0], y @ roots[1]
        u, s, v = np.linalg.svd(a[fitted].T @ b[fitted] / fitted.sum(), full_matrices=False)
        assert s.max() < 1
        directions = [csls(a @ u * s**p, b @ v.T * s**q, subset.num_neighbors) for p, q in ((1, 2), (2, 1))]
        held_out = fold == number
        expected[held_out] = sum(directions)[first, second][held_out] / 2
    np.testing.assert_allclose(score_pairs(subset, PairIndices(first, second), "canonical"), expected, atol=1e-4)


@pytest.mark.parametrize(("rows", "columns", "rank"), [(30, 50, 30), (50, 30, 30), (40, 40, 7), (60, 20, 0)])
def test_decomposition_agrees_with_singular_values(rows: int, columns: int, rank: int) -> None:
    """The reference is NumPy's in double precision, for matrices of full and lower rank."""
    random = np.random.default_rng(rows)
    u, v = (np.linalg.qr(random.normal(size=(size, max(rank, 1))))[0] for size in (rows, columns))
    values = np.linspace(0.99, 0.01, rank) if rank else np.zeros(1)
    matrix = torch.from_numpy((u * values @ v.T).astype(np.float32))
    found_u, result, found_v = svd_without_negligible_correlations(matrix)
    left, singular, right = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
    num_values = len(result)
    assert singular[num_values:].max(initial=0) < 0.3
    np.testing.assert_allclose(result, singular[:num_values], atol=3e-6)
    expected = left[:, :num_values] * singular[:num_values] ** 3 @ right[:num_values]
    np.testing.assert_allclose((found_u * result**3) @ found_v.T, expected, atol=3e-6)


def build_wide_features(rank: int, noise: float) -> PairedFeatures:
    """Build features of width 90 that vary in few directions, with noise in all; the first 30 pairs are mismatched."""
    generator = torch.Generator().manual_seed(3)
    hidden, views = torch.randn(400, rank, generator=generator), []
    for _ in range(2):
        own = hidden + 0.3 * torch.randn(400, rank, generator=generator)
        values = own @ torch.randn(rank, 90, generator=generator)
        views.append(values + noise * torch.randn(400, 90, generator=generator))
    views[1][:WRONG] = views[1][:WRONG].roll(7, 0)
    return PairedFeatures((views[0], views[1]))


def test_projection_of_wide_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """The projection is exact for features that vary in few directions, and loses little if the rest is noise."""
    exact, noisy = build_wide_features(6, 0.0), build_wide_features(6, 1.0)
    expected, whole = (score_pairs(paired, statistic="canonical") for paired in (exact, noisy))
    assert find_width_reduction_note(noisy.features) is None
    monkeypatch.setattr("contraport.auditing.pairs.canonical_maps.MAX_FITTED_WIDTH", 20)
    exact, noisy = build_wide_features(6, 0.0), build_wide_features(6, 1.0)
    assert [linear.shape[0] for linear in noisy.cross_fitted_canonical_maps.fold_maps[0]] == [90, 90]
    np.testing.assert_allclose(score_pairs(exact, statistic="canonical"), expected, atol=1e-4)
    projected = score_pairs(noisy, statistic="canonical")
    assert not torch.equal(projected, whole)
    aurocs = [roc_auc_score(np.arange(400) >= WRONG, scores) for scores in (whole, projected)]
    assert min(aurocs) > 0.9
    assert aurocs[1] > aurocs[0] - 0.01
    assert "90 and 90" in str(find_width_reduction_note(noisy.features))


def csls(x: np.ndarray, y: np.ndarray, number: int) -> np.ndarray:
    s = (x / np.linalg.norm(x, axis=1, keepdims=True)) @ (y / np.linalg.norm(y, axis=1, keepdims=True)).T
    near = [np.sort(matrix, axis=1)[:, -number:].mean(1) for matrix in (s, s.T)]
    return np.asarray(2 * s - near[0][:, None] - near[1])


def test_canonical_is_invariant_to_rotation_and_view_order(noisy_pairs: PairedFeatures) -> None:
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(1))).Q
    x, y = noisy_pairs.features
    expected = score_pairs(PairedFeatures((x, y)), statistic="canonical")
    for other in (PairedFeatures((x @ rotation, y)), PairedFeatures((x, y @ rotation)), PairedFeatures((y, x))):
        np.testing.assert_allclose(score_pairs(other, statistic="canonical"), expected, atol=1e-4)


def test_constant_views_score_zero(noisy_pairs: PairedFeatures) -> None:
    constant = PairedFeatures((noisy_pairs.features[0], torch.ones(ITEMS, 3)))
    assert (score_pairs(constant, statistic="canonical") == 0).all()
    assert score_pairs(constant, statistic="combined").isfinite().all()


def test_combined_is_standardized_over_the_pairs_of_the_data(noisy_pairs: PairedFeatures) -> None:
    others = PairIndices(torch.arange(ITEMS), torch.arange(ITEMS).roll(3))
    expected = torch.zeros(ITEMS)
    for name in ("neighbors", "canonical"):
        observed = score_pairs(noisy_pairs, statistic=name)
        expected += (score_pairs(noisy_pairs, others, name) - observed.mean()) / observed.std()
    np.testing.assert_allclose(score_pairs(noisy_pairs, others, "combined"), expected, atol=1e-4)


def test_statistics_without_a_shared_space(noisy_pairs: PairedFeatures) -> None:
    different_widths = PairedFeatures((noisy_pairs.features[0], noisy_pairs.features[1][:, :3]))
    assert score_pairs(different_widths).shape == (ITEMS,)
    with raises_usage_error("statistic.no_shared_space", "'csls'", "neighbors, canonical, likeness or combined"):
        score_pairs(different_widths, statistic="csls")
    with raises_usage_error("statistic.unknown", "'csls'"):
        score_pairs(noisy_pairs, statistic="clsl")


def test_rejects_a_pool_of_few_items(noisy_pairs: PairedFeatures) -> None:
    with raises_usage_error("neighbor_pool.invalid", 17, 5):
        PairedFeatures(noisy_pairs.features, neighbor_pool=torch.arange(5))


def test_rounding_does_not_break_ties() -> None:
    """All second views are equal, so no item is nearer than another, and the share of nearer items is 0."""
    generator = torch.Generator().manual_seed(0)
    lengths = 1 + torch.rand(ITEMS, 1, generator=generator)
    same = torch.randn(1, 9, generator=generator) * lengths
    same = PairedFeatures((same, same), (same, same))
    assert (score_pairs(same, statistic="rank") == 0).all()
