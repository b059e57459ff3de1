"""Linear encoders under fixed weights find the eigenvectors of the contrastive covariance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from sklearn.datasets import load_digits
from tests.errors import raises_usage_error

from contraport.theory import contrastive_covariance, pair_weights, train_deep_linear_encoder, train_linear_encoder


@pytest.fixture(scope="module")
def digits():
    x = torch.from_numpy(load_digits().data[:100]) / 16
    generator = torch.Generator().manual_seed(0)
    x0, x1 = (x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype) for _ in range(2))
    return x0, x1, pair_weights(x0, x1, temperature=0.1)


@pytest.mark.parametrize("dimensions", [1, 4])
def test_linear_encoder_reaches_the_top_eigenvectors(digits, dimensions):
    x0, x1, alpha = digits
    result = train_linear_encoder(x0, x1, dimensions, alpha=alpha)
    top = contrastive_covariance(x0, x1, alpha).eigenvectors[:, :dimensions]
    torch.testing.assert_close(result.weight @ result.weight.T, torch.eye(dimensions, dtype=torch.float64))
    assert subspace_angles(result.weight.T.numpy(), top.numpy()).max() < 1e-5
    assert result.principal_angles_by_iteration[-1].max() < 1e-5
    assert result.principal_angles_by_iteration[0].max() > 0.5
    assert result.energy_by_iteration[-1].item() == pytest.approx(result.max_energy)
    assert (result.energy_by_iteration.diff() > -1e-12).all()


def test_angles_match_scipy(digits):
    x0, x1, alpha = digits
    result = train_linear_encoder(x0, x1, 3, alpha=alpha, iterations=2)
    top = contrastive_covariance(x0, x1, alpha).eigenvectors[:, :3].numpy()
    np.testing.assert_allclose(
        result.principal_angles_by_iteration[-1], subspace_angles(result.weight.T.numpy(), top), atol=1e-8
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_deep_linear_encoder_aligns_and_becomes_rank_one(digits, seed):
    x0, x1, alpha = digits
    result = train_deep_linear_encoder(x0, x1, (8, 8, 4), alpha=alpha, seed=seed)
    assert result.layer_alignments_by_iteration.shape[1] == 2
    assert result.rank_one_shares_by_iteration.shape[1] == 3
    assert result.layer_alignments_by_iteration[-1].min() > 0.9999
    assert result.rank_one_shares_by_iteration[-1].min() > 0.9999
    assert result.rank_one_shares_by_iteration[0].max() < 0.6
    assert result.top_eigenvector_cosine > 0.9999
    assert result.energy_by_iteration[-1].item() == pytest.approx(result.max_energy, rel=1e-5)
    for weight in result.layer_weights:
        assert weight.norm().item() == pytest.approx(1)


@pytest.mark.parametrize("seed", [0, 1])
def test_normalized_filters_contribute_equally(digits, seed):
    x0, x1, alpha = digits
    result = train_deep_linear_encoder(x0, x1, (8, 5, 4), alpha=alpha, per_filter=True, seed=seed)
    assert result.filter_norm_deviation < 1e-3
    for weight in result.layer_weights[:-1]:
        expected = torch.full((len(weight),), len(weight) ** -0.5, dtype=torch.float64)
        torch.testing.assert_close(weight.norm(dim=1), expected)
    assert result.energy_by_iteration[-1].item() == pytest.approx(result.max_energy, rel=1e-5)
    assert train_deep_linear_encoder(x0, x1, (8, 5, 4), alpha=alpha, seed=seed).filter_norm_deviation > 0.1


def test_figures_are_drawn(digits, tmp_path):
    x0, x1, _ = digits
    train_linear_encoder(x0, x1, 2, iterations=3).figure().savefig(tmp_path / "linear.png")
    train_deep_linear_encoder(x0, x1, (4, 4), iterations=3).figure().savefig(tmp_path / "deep.png")


def test_rejects_invalid_arguments(digits):
    x0, x1, _ = digits
    with raises_usage_error("dimensions.invalid", 64, 65):
        train_linear_encoder(x0, x1, 65)
    with raises_usage_error("widths.missing"):
        train_deep_linear_encoder(x0, x1, ())
