"""t-SNE loss with sums interpolated on a grid: value and gradient compared with a dense loss in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.manifold._t_sne import _kl_divergence
from tests.errors import raises_usage_error

from contraport.estimators import SNE, TSNE
from contraport.estimators.grid_tsne_loss import GridTSNELoss
from contraport.objectives.perplexity_affinities import compute_affinity_plan


def compute_dense_divergence(plan, points, exaggeration):
    """KL(P | Q) over all pairs with plain broadcasting, in double precision."""
    distances = (points[:, None] - points).square().sum(2)
    off_diagonal = ~torch.eye(len(points), dtype=torch.bool)
    entropy = torch.special.xlogy(plan, plan).sum()
    attraction = exaggeration * (plan * distances.log1p()).sum()
    return entropy + attraction + (1 / (1 + distances))[off_diagonal].sum().log()


@pytest.mark.parametrize("exaggeration", [1.0, 12.0])
@pytest.mark.parametrize(("spread", "error"), [(1e-4, 1e-3), (0.1, 1e-3), (0.3, 1e-3), (4.0, 0.03), (15.0, 0.08)])
def test_value_and_gradient_match_a_dense_objective(spread, error, exaggeration):
    x = torch.from_numpy(load_digits().data[:400])
    plan = compute_affinity_plan(x, 10.0, symmetric=True)
    generator = torch.Generator().manual_seed(0)
    points = (spread * torch.randn(400, 2, generator=generator)).requires_grad_()
    value = GridTSNELoss(plan, exaggeration)(points)
    (gradient,) = torch.autograd.grad(value, points)
    exact_points = points.detach().double().requires_grad_()
    expected = compute_dense_divergence(plan.to_dense(), exact_points, exaggeration)
    (expected_gradients,) = torch.autograd.grad(expected, exact_points)
    assert value.item() == pytest.approx(expected.item(), abs=min(error, 5e-3), rel=1e-5)
    assert float((gradient - expected_gradients).norm() / expected_gradients.norm()) < error


def test_value_and_gradient_match_scikit_learn():
    x = load_digits().data[:300]
    plan = compute_affinity_plan(torch.from_numpy(x), 10.0, symmetric=True)
    points = torch.from_numpy(np.random.default_rng(0).normal(size=(300, 2)) * 4).float().requires_grad_()
    upper = plan.to_dense().numpy()[np.triu_indices(300, 1)]
    value, gradient = _kl_divergence(points.detach().numpy().astype(float).ravel(), upper, 1.0, 300, 2)
    loss = GridTSNELoss(plan)(points)
    (loss_gradient,) = torch.autograd.grad(loss, points)
    assert loss.item() == pytest.approx(value, abs=5e-3)
    np.testing.assert_allclose(loss_gradient.numpy(), gradient.reshape(-1, 2), atol=0.03 * np.abs(gradient).max())


def test_interpolated_fit_reaches_the_divergence_of_a_sparse_fit():
    x = load_digits().data[:300]
    settings = {"perplexity": 10.0, "max_iter": 300, "random_state": 0}
    exact, interpolated = (TSNE(method=method, **settings).fit(x) for method in ("sparse", "interpolated"))
    assert interpolated.kl_divergence_ == pytest.approx(exact.kl_divergence_, abs=0.05)
    first, second = (TSNE(method="interpolated", **settings | {"max_iter": 30}).fit(x) for _ in range(2))
    assert np.array_equal(first.embedding_, second.embedding_)


@pytest.mark.parametrize(
    ("estimator", "settings", "code"),
    [
        (SNE, {}, "method.conflict"),
        (TSNE, {"n_components": 3}, "method.conflict"),
        (TSNE, {"learning_rate": 1e9}, "learning_rate.diverged"),
    ],
)
def test_rejects_unsupported_settings(estimator, settings, code):
    with raises_usage_error(code):
        estimator(method="interpolated", perplexity=5, **settings).fit(load_digits().data[:50])
