"""Perfect uniformity: polygons and simplices; the toy on the circle."""

from __future__ import annotations

import math

import pytest
import torch

from contraport.errors import UsageError
from contraport.theory import five_gaussians, gaussian_mixture, perfect_uniformity


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("items", [2, 3, 5, 12, 25])
def test_the_plane_gets_a_regular_polygon(items, seed):
    found = perfect_uniformity(items, 2, seed=seed)
    assert found.deviation < 1e-5
    assert found.least_angle == pytest.approx(2 * math.pi / items, abs=1e-5)


@pytest.mark.parametrize(("items", "dimensions"), [(4, 3), (5, 4), (8, 7), (10, 16)])
def test_room_enough_gets_a_simplex(items, dimensions):
    found = perfect_uniformity(items, dimensions)
    cosines = found.points @ found.points.T
    expected = torch.full((items, items), -1 / (items - 1)).fill_diagonal_(1).double()
    torch.testing.assert_close(cosines, expected, atol=1e-6, rtol=0)
    assert found.deviation < 1e-6


def test_twelve_points_in_space_are_an_icosahedron():
    found = perfect_uniformity(12, 3)
    assert found.deviation is None
    assert found.least_angle == pytest.approx(math.atan(2), abs=1e-5)


def test_the_toy_is_as_stated():
    data = gaussian_mixture()
    assert data.x.shape == (250, 2)
    assert data.components.bincount().tolist() == [50] * 5
    spread = torch.stack([data.x[data.components == k].std(0) for k in range(5)])
    torch.testing.assert_close(spread, torch.full((5, 2), 0.1), atol=0.03, rtol=0)


def test_simclr_comes_close_to_perfect_on_the_toy():
    found = five_gaussians(data=gaussian_mixture(100), iterations=300)
    assert found.alignment < 0.01
    assert found.perfect_uniformity < found.uniformity < found.perfect_uniformity + 0.1
    assert found.untrained_uniformity > found.perfect_uniformity + 0.5


def test_the_global_generator_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    five_gaussians(data=gaussian_mixture(10), iterations=1)
    assert torch.equal(torch.rand(1), expected)


def test_figures_are_drawn(tmp_path):
    perfect_uniformity(5, 2).figure().savefig(tmp_path / "polygon.png")
    perfect_uniformity(5, 4).figure().savefig(tmp_path / "simplex.png")
    five_gaussians(data=gaussian_mixture(10), iterations=1).figure().savefig(tmp_path / "toy.png")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: perfect_uniformity(1, 2), "items: expected a whole number from 2 on, got 1"),
        (lambda: perfect_uniformity(3, 1), "dimensions: expected a whole number from 2 on, got 1"),
        (lambda: perfect_uniformity(3, 2, temperature=-1), "temperature: expected a positive"),
        (lambda: five_gaussians(noise=-1), "noise: expected a nonnegative"),
        (lambda: gaussian_mixture(4), "items: expected at least one per component"),
        (lambda: gaussian_mixture(sigma=0), "sigma: expected a positive"),
    ],
)
def test_mistakes_are_told(call, message):
    with pytest.raises(UsageError, match=message):
        call()
