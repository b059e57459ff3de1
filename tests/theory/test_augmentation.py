"""Noise and mixup as targets, against densities from SciPy and against sampled displacements."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from tests.errors import raises_usage_error

from contraport.theory import compute_noise_and_mixup_targets, sample_gaussians_on_circle


def test_targets_match_densities_from_scipy():
    result = compute_noise_and_mixup_targets((3,), items=15, mixup_fraction=0.4)
    data = sample_gaussians_on_circle(15, 3)
    x, centers = data.x.double().numpy(), data.centers.double().numpy()
    differences = x[:, None] - x
    moves = 0.4 * (centers[:, None] - centers).reshape(-1, 3)
    mixup = sum(multivariate_normal(move, 2 * (0.4 * 0.1) ** 2).pdf(differences) for move in moves)
    strength = 0.4**2 * 2 * (centers.var(0) + 0.1**2).mean()
    noise = multivariate_normal(np.zeros(3), strength).pdf(differences)
    for density, target in ((noise, result.noise_target_plans[0]), (mixup, result.mixup_target_plans[0])):
        np.fill_diagonal(density, 0)
        np.testing.assert_allclose(target, density / density.sum(1, keepdims=True) / 15, atol=1e-5)


def test_share_in_the_plane_matches_sampled_displacements():
    result = compute_noise_and_mixup_targets((2, 16), items=5000 // 25)
    x = sample_gaussians_on_circle(20_000, 16).x
    moved = (x[torch.randperm(len(x))] - x).square().mean(0)
    assert result.mixup_share_in_plane[1].item() == pytest.approx((moved[:2].sum() / moved.sum()).item(), abs=0.01)
    assert result.noise_share_in_plane.tolist() == [1.0, 0.125]
    assert result.mixup_share_in_plane[0].item() == pytest.approx(1)


def test_target_rows_have_equal_mass_and_an_empty_diagonal():
    result = compute_noise_and_mixup_targets((2, 8), items=30)
    for target in (*result.noise_target_plans, *result.mixup_target_plans):
        torch.testing.assert_close(target.sum(1), torch.full((30,), 1 / 30))
        assert (target.diagonal() == 0).all()
    assert (result.noise_mass_within_components > 0.5).all()
    assert (result.mixup_mass_within_components <= 1 + 1e-6).all()


def test_figure_is_drawn(tmp_path):
    compute_noise_and_mixup_targets((2, 8), items=20).figure().savefig(tmp_path / "figure.png")


def test_rejects_invalid_arguments():
    with raises_usage_error("mixup_fraction.invalid", 1.0):
        compute_noise_and_mixup_targets(mixup_fraction=1.0)
    with raises_usage_error("dimensions.missing"):
        compute_noise_and_mixup_targets(())
    with raises_usage_error("dimensions.invalid", 1):
        compute_noise_and_mixup_targets((1,))
