"""SNE and t-SNE: affinities compared with scikit-learn, the loss with its formula, and the quality on digits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import entr
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.manifold import TSNE as ReferenceTSNE
from sklearn.manifold import trustworthiness
from sklearn.manifold._t_sne import _joint_probabilities, squareform
from sklearn.metrics import pairwise_distances
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.errors import raises_usage_error
from torch import nn

from contraport.estimators import SNE, TSNE
from contraport.objectives.perplexity_affinities import (
    compute_affinity_plan,
    nearest_squared_distances_and_indices,
    row_softmax_of_perplexity,
)

ESTIMATORS = [SNE, TSNE]


@pytest.fixture(scope="module")
def digits():
    return load_digits(n_class=5).data[:300]


def draw_clusters(n=60, d=5):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, d)) + 8 * np.eye(d)[np.arange(n) % 3], np.arange(n) % 3


def test_affinities_match_scikit_learn(digits):
    # With a perplexity above a third of the items every pair is kept, as in the exact method.
    ours = compute_affinity_plan(torch.from_numpy(digits), 100.0, symmetric=True).to_dense().numpy()
    distances = pairwise_distances(digits, metric="sqeuclidean").astype(np.float32)
    reference = squareform(_joint_probabilities(distances, 100.0, verbose=0))
    np.testing.assert_allclose(ours, reference, atol=2e-8)


def compute_dense_plan(x, perplexity, *, symmetric):
    """Compute P over all pairs, with the precision of each row by bisection of its logarithm."""
    distances = pairwise_distances(x.astype(np.float64), metric="sqeuclidean")
    np.fill_diagonal(distances, np.inf)
    excess = distances - distances.min(1, keepdims=True)
    low, high = np.full((len(x), 1), -60.0), np.full((len(x), 1), 60.0)
    for _ in range(80):
        middle = (low + high) / 2
        weights = np.exp(-excess * np.exp(middle))
        shares = weights / weights.sum(1, keepdims=True)
        is_wide = entr(shares).sum(1, keepdims=True) > np.log(perplexity)
        low, high = np.where(is_wide, middle, low), np.where(is_wide, high, middle)
    plan = shares / len(x)
    return (plan + plan.T) / 2 if symmetric else plan


@pytest.mark.parametrize("symmetric", [True, False])
def test_exact_affinities_cover_all_pairs(digits, symmetric):
    exact = compute_affinity_plan(torch.from_numpy(digits), 5.0, symmetric=symmetric, dense=True).numpy()
    np.testing.assert_allclose(exact, compute_dense_plan(digits, 5.0, symmetric=symmetric), rtol=1e-6, atol=1e-12)
    sparse = compute_affinity_plan(torch.from_numpy(digits), 5.0, symmetric=symmetric).to_dense().numpy()
    assert np.abs(sparse - exact).sum() > 0.01  # the sparse plan lacks a measurable part


def test_exact_method_reaches_the_divergence_of_scikit_learn(digits):
    x = digits[:150]
    settings = {"perplexity": 5.0, "max_iter": 750, "init": "pca", "random_state": 0}
    ours, reference = (estimator(**settings, method="exact").fit(x) for estimator in (TSNE, ReferenceTSNE))
    sparse = TSNE(**settings, method="sparse").fit(x)
    P = compute_dense_plan(x, 5.0, symmetric=True)

    def divergence(points):
        K = 1 / (1 + pairwise_distances(points.astype(np.float64), metric="sqeuclidean"))
        np.fill_diagonal(K, 0)
        Q, positive = K / K.sum(), P > 0
        return (P[positive] * np.log(P[positive] / Q[positive])).sum()

    assert ours.kl_divergence_ == pytest.approx(divergence(ours.embedding_), abs=1e-4)
    assert reference.kl_divergence_ == pytest.approx(divergence(reference.embedding_), abs=1e-3)
    assert ours.kl_divergence_ == pytest.approx(reference.kl_divergence_, rel=0.1)
    assert abs(sparse.kl_divergence_ - divergence(sparse.embedding_)) > 0.01  # its divergence refers to the sparse plan


@pytest.mark.parametrize("symmetric", [True, False])
def test_affinities_have_mass_one_and_the_perplexity(digits, symmetric):
    plan = compute_affinity_plan(torch.from_numpy(digits), 10.0, symmetric=symmetric).to_dense()
    assert plan.sum().item() == pytest.approx(1)
    assert (plan.diagonal() == 0).all()
    if symmetric:
        assert torch.equal(plan, plan.T)
    else:
        shares = plan * len(plan)
        torch.testing.assert_close(shares.sum(1), torch.ones(len(plan), dtype=torch.float64))
        torch.testing.assert_close(
            torch.special.entr(shares).sum(1).exp(), torch.full((len(plan),), 10.0).double(), rtol=1e-6, atol=0
        )


def test_nearest_neighbors_in_chunks(monkeypatch, digits):
    x = torch.from_numpy(digits)
    expected = nearest_squared_distances_and_indices(x, 7)
    monkeypatch.setattr("contraport.objectives.perplexity_affinities.MAX_DISTANCES_IN_MEMORY", 1000)
    distances, neighbors = nearest_squared_distances_and_indices(x, 7)
    torch.testing.assert_close(distances, expected[0])
    recomputed = (x[:, None] - x[neighbors]).square().sum(2)  # ties may be in another order
    torch.testing.assert_close(recomputed.double(), distances)


def test_nearest_neighbors_of_near_duplicates():
    x = 1e6 + torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).double() * 1e-3
    distances, neighbors = nearest_squared_distances_and_indices(x, 5)
    expected = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square().fill_diagonal_(torch.inf)
    torch.testing.assert_close(distances, expected.topk(5, largest=False).values, rtol=1e-6, atol=0)
    torch.testing.assert_close(expected.gather(1, neighbors), distances, rtol=1e-6, atol=0)


def test_equal_items_share_mass_evenly():
    distances = torch.tensor([[0.0, 0.0, 0.0, 5.0], [3.0, 3.0, 3.0, 3.0]]).double()
    shares = row_softmax_of_perplexity(distances, 2.0)
    torch.testing.assert_close(shares[0], torch.tensor([1 / 3, 1 / 3, 1 / 3, 0]).double())
    torch.testing.assert_close(shares[1], torch.full((4,), 0.25).double())


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_is_invariant_to_the_scale_of_the_data(scale):
    X = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(
        compute_affinity_plan(X * scale, 5.0, symmetric=True).to_dense(),
        compute_affinity_plan(X, 5.0, symmetric=True).to_dense(),
    )


@pytest.mark.parametrize("method", ["sparse", "exact", "interpolated"])
def test_embedding_depends_neither_on_scale_nor_byte_order_nor_offset(method):
    X = np.random.default_rng(0).normal(size=(60, 3)) + 9 * (np.arange(60) % 3 == 0)[:, None]
    embed = TSNE(perplexity=5, max_iter=40, random_state=0, method=method).fit_transform
    expected = embed(X)
    # Powers of 2 are exact.
    for other in (X * 2.0**900, X * 2.0**-900, X.astype(">f8"), X.astype(np.longdouble)):
        np.testing.assert_array_equal(embed(other), expected)
    far = TSNE(perplexity=5, random_state=0, method=method).fit(X + 1e9)
    near = TSNE(perplexity=5, random_state=0, method=method).fit(X)
    assert far.kl_divergence_ == pytest.approx(near.kl_divergence_, rel=0.2)


def test_rejects_masked_values_and_numbers_too_large_for_the_encoder():
    with raises_usage_error("X.masked"):
        TSNE(perplexity=3).fit(np.ma.masked_greater(POINTS, 0))
    with raises_usage_error("X.not_finite"):
        TSNE(perplexity=3, encoder=torch.nn.Linear(POINTS.shape[1], 2)).fit(POINTS * 1e60)


@pytest.mark.parametrize("method", ["sparse", "exact"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_divergence_matches_the_formula(estimator, method):
    X, _ = draw_clusters()
    fitted = estimator(perplexity=8, max_iter=60, method=method, random_state=0).fit(X)
    P = (
        compute_affinity_plan(torch.from_numpy(X), 8, symmetric=estimator is TSNE, dense=method == "exact")
        .to_dense()
        .numpy()
    )
    distances = pairwise_distances(fitted.embedding_.astype(np.float64), metric="sqeuclidean")
    K = np.exp(-distances) if estimator is SNE else 1 / (1 + distances)
    np.fill_diagonal(K, 0)
    Q = K / K.sum(1, keepdims=True) / len(K) if estimator is SNE else K / K.sum()
    expected = P > 0
    assert fitted.kl_divergence_ == pytest.approx((P[expected] * np.log(P[expected] / Q[expected])).sum(), abs=1e-4)
    assert fitted.n_iter_ == 60


@pytest.mark.parametrize(
    ("estimator", "init"),
    [
        (SNE, "random"),
        (TSNE, "pca"),
        pytest.param(SNE, "pca", marks=pytest.mark.slow),
        pytest.param(TSNE, "random", marks=pytest.mark.slow),
    ],
)
def test_clusters_are_separated(estimator, init):
    X, labels = draw_clusters()
    Z = estimator(perplexity=8, max_iter=400, init=init, random_state=0).fit_transform(X)
    assert Z.shape == (60, 2)
    assert Z.dtype == np.float32
    assert trustworthiness(X, Z) > 0.9
    distances = pairwise_distances(Z)
    np.fill_diagonal(distances, np.inf)
    assert (labels[distances.argmin(1)] == labels).all()


def test_is_reproducible_and_leaves_the_global_generator_unchanged():
    X, _ = draw_clusters()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = (TSNE(perplexity=8, max_iter=30, init="random", random_state=3).fit_transform(X) for _ in range(2))
    assert np.array_equal(first, second)
    assert torch.equal(torch.rand(1), expected)


def test_init_from_an_array_and_three_components():
    X, _ = draw_clusters()
    start = np.random.default_rng(1).normal(size=(60, 3)) * 1e-3
    with pytest.warns(ConvergenceWarning, match="learning_rate=1e-09"):
        fitted = TSNE(3, perplexity=8, max_iter=1, init=start, learning_rate=1e-9).fit(X)
    np.testing.assert_allclose(fitted.embedding_, start, atol=1e-6)


@pytest.mark.parametrize("method", ["sparse", "exact"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_warns_if_a_chosen_learning_rate_ends_no_better_than_one_point(estimator, method, recwarn):
    X, _ = draw_clusters()
    settings = {"perplexity": 8, "method": method, "random_state": 0}
    fitted = estimator(**settings, learning_rate=1e-9, max_iter=300).fit(X)
    assert [warning.category for warning in recwarn] == [ConvergenceWarning]
    assert f"{fitted.kl_divergence_:.3g}" in str(recwarn[0].message)
    recwarn.clear()
    improved = estimator(**settings, learning_rate=1.0, max_iter=400, init=estimator(**settings).fit(X).embedding_)
    assert improved.fit(X).kl_divergence_ < 0.5 * fitted.kl_divergence_
    estimator(**settings, max_iter=1).fit(X)
    assert not recwarn.list


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_encoder_embeds_other_data(estimator):
    X, labels = draw_clusters(120)
    encoder = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2))
    before = [p.clone() for p in encoder.parameters()]
    fitted = estimator(perplexity=8, max_iter=400, encoder=encoder, learning_rate=0.01, random_state=0).fit(X[:60])
    assert all(torch.equal(p, q) for p, q in zip(encoder.parameters(), before, strict=True))
    np.testing.assert_allclose(fitted.transform(X[:60]), fitted.embedding_, atol=1e-6)
    seen, unseen = fitted.embedding_, fitted.transform(X[60:])
    assert (labels[pairwise_distances(unseen, seen).argmin(1)] == labels[60:]).mean() > 0.95


def test_encoder_by_name_accepts_images():
    images = np.random.default_rng(0).random((20, 1, 8, 8), dtype=np.float32)
    fitted = TSNE(perplexity=4, max_iter=3, encoder="small-cnn", random_state=0).fit(images)
    assert fitted.transform(images[:2]).shape == (2, 2)


def test_clone_keeps_the_parameters():
    estimator = TSNE(perplexity=7, init="random", encoder="mlp")
    assert clone(estimator).get_params() == estimator.get_params()


def test_verbose_prints_iterations(capsys):
    X, _ = draw_clusters()
    TSNE(perplexity=8, max_iter=50, verbose=True).fit(X)
    assert capsys.readouterr().out.startswith("[TSNE] iteration 50: exaggerated objective ")


POINTS = np.random.default_rng(0).normal(size=(20, 3))


@pytest.mark.parametrize(
    ("settings", "X", "code", "values"),
    [
        ({"perplexity": 20}, POINTS, "perplexity.invalid", [19, 20]),
        ({"perplexity": 0.5}, POINTS, "perplexity.invalid", [0.5]),
        ({"perplexity": float("nan")}, POINTS, "perplexity.invalid", ["nan"]),
        ({"perplexity": "auto"}, POINTS, "perplexity.invalid", ["'auto'"]),
        ({}, np.where(np.arange(60).reshape(20, 3) == 4, np.nan, POINTS), "X.not_finite", [1]),
        ({}, np.ones((20, 3)), "X.constant", [20]),
        ({"n_components": 0}, POINTS, "n_components.invalid", [0]),
        ({"perplexity": 3, "n_components": 4}, POINTS, "n_components.pca", [3, 4]),
        ({"max_iter": 2.5}, POINTS, "max_iter.invalid", [2.5]),
        ({"early_exaggeration": 0.5}, POINTS, "early_exaggeration.invalid", [0.5]),
        ({"early_exaggeration": np.inf}, POINTS, "early_exaggeration.invalid", ["inf"]),
        ({"device": "gpu"}, POINTS, "device.invalid", ["'gpu'"]),
        ({"device": []}, POINTS, "device.invalid", []),
        ({"device": "meta"}, POINTS, "device.invalid", ["'meta'"]),
        ({"perplexity": 3, "random_state": -1}, POINTS, "random_state.invalid", []),
        ({}, torch.from_numpy(POINTS).to("meta"), "X.invalid", []),
        ({"perplexity": 3, "learning_rate": "fast"}, POINTS, "learning_rate.unknown", ["'fast'"]),
        ({"perplexity": 3, "learning_rate": -1.0}, POINTS, "learning_rate.invalid", [-1.0]),
        ({"perplexity": 3, "method": "barnes_hut"}, POINTS, "method.unknown", ["'barnes_hut'"]),
        ({"perplexity": 3, "init": "pcb"}, POINTS, "init.unknown", ["'pca'"]),
        ({"perplexity": 3, "init": POINTS}, POINTS, "init.shape", [(20, 2), (20, 3)]),
        ({"perplexity": 3, "encoder": nn.Linear(3, 5)}, POINTS, "encoder.shape", [(20, 2), (20, 5)]),
        ({"perplexity": 3, "encoder": "mpl"}, POINTS, "encoder.unknown", ["'mpl'"]),
        ({"perplexity": 3, "learning_rate": 1e30}, POINTS, "learning_rate.diverged", []),
    ],
)
def test_rejects_invalid_parameters_and_data(settings, X, code, values):
    with raises_usage_error(code, *values):
        TSNE(**settings).fit(X)


def test_accepts_tensors_with_gradients_of_any_precision():
    tensor = torch.from_numpy(POINTS).bfloat16().requires_grad_()
    points = TSNE(perplexity=3, max_iter=3).fit_transform(tensor)
    np.testing.assert_array_equal(points, TSNE(perplexity=3, max_iter=3).fit_transform(tensor.detach().float()))


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (POINTS[:3], r"\(3, 3\).* minimum of 4 is required by TSNE"),
        (POINTS[0], "Expected 2D array, got 1D array instead"),
        ([["a", "b"]] * 5, "not compatible with arrays of bytes/strings"),
    ],
)
def test_scikit_learn_rejects_data_of_a_wrong_form(X, message):
    with pytest.raises(ValueError, match=message):
        TSNE(perplexity=1).fit(X)


def test_transform_requires_an_encoder_and_fit():
    assert not hasattr(TSNE(), "transform")
    with pytest.raises(AttributeError, match="has no attribute 'transform'") as caught:
        TSNE().transform(POINTS)
    assert str(caught.value.__cause__).startswith("encoder: ")
    with pytest.raises(NotFittedError):
        TSNE(encoder="mlp").transform(POINTS)


@parametrize_with_checks([SNE(perplexity=2, max_iter=5), TSNE(perplexity=2, max_iter=5, encoder="mlp")])
def test_passes_scikit_learn_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([TSNE(perplexity=2, max_iter=5), SNE(perplexity=2, max_iter=5, encoder="mlp")])
def test_passes_scikit_learn_estimator_checks_with_and_without_encoder(estimator, check):
    check(estimator)


def test_set_output_returns_a_frame():
    fitted = TSNE(perplexity=3, max_iter=5).set_output(transform="pandas")
    assert list(fitted.fit_transform(POINTS).columns) == ["tsne0", "tsne1"]


@pytest.mark.slow
def test_embedding_of_digits_is_as_good_as_scikit_learns():
    X = load_digits().data
    ours = TSNE(random_state=0).fit(X)
    reference = ReferenceTSNE(random_state=0).fit(X)
    scores = [trustworthiness(X, fitted.embedding_, n_neighbors=5) for fitted in (ours, reference)]
    assert scores[0] > scores[1] - 0.005
    assert ours.kl_divergence_ < reference.kl_divergence_ + 0.05


@pytest.mark.parametrize("method", ["interpolated", "exact"])
@pytest.mark.parametrize(("items", "perplexity"), [(50, 16), (60, 30)])
def test_few_items_with_a_large_perplexity_do_not_collapse(digits, method, items, perplexity):
    """With few items, exaggerated attraction can collapse all points into one."""
    reference = ReferenceTSNE(perplexity=perplexity, random_state=0, init="pca").fit(digits[:items])
    ours = TSNE(perplexity=perplexity, random_state=0, method=method).fit(digits[:items])
    assert ours.embedding_.std() > 0.1
    assert ours.kl_divergence_ < 1.3 * reference.kl_divergence_


def test_does_not_stop_while_the_points_spread():
    """In many dimensions all distances are similar, so the divergence hardly changes for hundreds of iterations."""
    noise = np.random.default_rng(0).normal(size=(50, 1000))
    result = TSNE(perplexity=30, random_state=0, method="exact").fit(noise)
    assert result.embedding_.std() > 0.1


@pytest.mark.parametrize(("items", "perplexity", "seed"), [(5, 1.2, 0), (4, 1.5, 1)])
def test_sne_of_few_items_does_not_diverge(items, perplexity, seed):
    """An item that is a neighbor of all others has several times the usual curvature, which can make SNE diverge."""
    X = np.random.default_rng(seed).normal(size=(items, 4))
    fitted = SNE(perplexity=perplexity, random_state=0, method="exact", max_iter=600).fit(X)
    assert fitted.kl_divergence_ < 0.5 * np.log((items - 1) / perplexity)


@pytest.mark.parametrize(
    ("estimator", "options", "expected"),
    [
        (TSNE, {}, "interpolated"),
        (TSNE, {"n_components": 3}, "sparse"),
        (TSNE, {"encoder": nn.Linear(5, 2)}, "sparse"),
        (SNE, {}, "sparse"),
    ],
)
def test_automatic_method_interpolates_tsne_in_two_dimensions_without_an_encoder(estimator, options, expected):
    X, _ = draw_clusters()
    automatic, explicit = (
        estimator(perplexity=8, max_iter=30, random_state=0, method=method, **options).fit_transform(X)
        for method in ("auto", expected)
    )
    np.testing.assert_array_equal(automatic, explicit)
