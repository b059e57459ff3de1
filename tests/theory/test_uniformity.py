"""Perfect uniformity: polygons, simplices, and five Gaussians on the circle."""

from __future__ import annotations

import math

import pytest
import torch
from tests.errors import raises_usage_error

from contraport.theory import minimize_uniformity_loss, sample_gaussians_on_circle, train_on_five_gaussians


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("items", [2, 3, 5, 12, 25])
def test_points_in_the_plane_form_a_regular_polygon(items, seed):
    result = minimize_uniformity_loss(items, 2, seed=seed)
    assert result.deviation_from_optimum < 1e-5
    assert result.smallest_angle == pytest.approx(2 * math.pi / items, abs=1e-5)


@pytest.mark.parametrize(("items", "dimensions"), [(4, 3), (5, 4), (8, 7), (10, 16)])
def test_points_form_a_simplex_in_enough_dimensions(items, dimensions):
    result = minimize_uniformity_loss(items, dimensions)
    cosines = result.points @ result.points.T
    expected = torch.full((items, items), -1 / (items - 1)).fill_diagonal_(1).double()
    torch.testing.assert_close(cosines, expected, atol=1e-6, rtol=0)
    assert result.deviation_from_optimum < 1e-6


def test_twelve_points_in_space_form_an_icosahedron():
    result = minimize_uniformity_loss(12, 3)
    assert result.deviation_from_optimum is None
    assert result.smallest_angle == pytest.approx(math.atan(2), abs=1e-5)


def test_mixture_has_equal_components_of_the_given_sigma():
    data = sample_gaussians_on_circle()
    assert data.x.shape == (250, 2)
    assert data.component_indices.bincount().tolist() == [50] * 5
    spread = torch.stack([data.x[data.component_indices == k].std(0) for k in range(5)])
    torch.testing.assert_close(spread, torch.full((5, 2), 0.1), atol=0.03, rtol=0)


def test_simclr_comes_close_to_perfect_uniformity():
    result = train_on_five_gaussians(data=sample_gaussians_on_circle(100), iterations=300)
    assert result.alignment < 0.01
    assert result.perfect_uniformity < result.uniformity < result.perfect_uniformity + 0.1
    assert result.untrained_uniformity > result.perfect_uniformity + 0.5


def test_global_generator_is_unchanged():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    train_on_five_gaussians(data=sample_gaussians_on_circle(10), iterations=1)
    assert torch.equal(torch.rand(1), expected)


def test_figures_are_drawn(tmp_path):
    minimize_uniformity_loss(5, 2).figure().savefig(tmp_path / "polygon.png")
    minimize_uniformity_loss(5, 4).figure().savefig(tmp_path / "simplex.png")
    train_on_five_gaussians(data=sample_gaussians_on_circle(10), iterations=1).figure().savefig(tmp_path / "toy.png")


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: minimize_uniformity_loss(1, 2), "items.invalid"),
        (lambda: minimize_uniformity_loss(3, 1), "dimensions.invalid"),
        (lambda: minimize_uniformity_loss(3, 2, temperature=-1), "temperature.invalid"),
        (lambda: train_on_five_gaussians(noise=-1), "noise.invalid"),
        (lambda: sample_gaussians_on_circle(4), "items.invalid"),
        (lambda: sample_gaussians_on_circle(sigma=0), "sigma.invalid"),
    ],
)
def test_rejects_invalid_arguments(call, code):
    with raises_usage_error(code):
        call()
