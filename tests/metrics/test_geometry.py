import math

import pytest
import torch
import torch.nn.functional as F
from tests.errors import raises_usage_error

from contraport.metrics import embedding_geometry as geometry
from contraport.metrics.embedding_geometry import alignment, centered_singular_values, effective_rank, uniformity
from contraport.metrics.pseudovalues import compute_uniformity_pseudovalues


def random(items: int, features: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(items, features, generator=torch.Generator().manual_seed(seed))


def test_alignment_is_the_mean_squared_distance_on_the_sphere() -> None:
    z0, z1 = random(50, 8), random(50, 8, seed=1)
    expected = 2 - 2 * F.cosine_similarity(z0.double(), z1.double()).mean()
    assert alignment(z0, z1) == pytest.approx(float(expected), rel=1e-5)
    assert alignment(z0, 3 * z0) == pytest.approx(0, abs=1e-9)
    assert alignment(z0, -z0) == pytest.approx(4)


@pytest.mark.parametrize("pairs", [1 << 22, 700, 1])
def test_uniformity_agrees_with_all_pairwise_distances(monkeypatch: pytest.MonkeyPatch, pairs: int) -> None:
    monkeypatch.setattr(geometry, "MAX_PAIRS_IN_MEMORY", pairs)
    z = random(101, 8)
    distances = torch.pdist(F.normalize(z.double(), dim=1))
    assert uniformity(z) == pytest.approx(float((-2 * distances.square()).exp().mean().log()), rel=1e-6)


def test_zeros_are_one_point_and_not_uniform() -> None:
    assert uniformity(torch.zeros(20, 3)) == pytest.approx(0, abs=1e-6)
    dead = torch.nn.functional.normalize(random(20, 4), dim=1) * (torch.arange(20) % 3 > 0)[:, None]
    squares = torch.pdist(dead.double()).square()
    assert uniformity(5 * dead) == pytest.approx(float((-2 * squares).exp().mean().log()), rel=1e-6)
    assert compute_uniformity_pseudovalues(dead).mean() == pytest.approx(uniformity(dead), rel=1e-6)


def test_uniformity_uses_a_fixed_subset_of_many_items(monkeypatch: pytest.MonkeyPatch) -> None:
    z = random(500, 8)
    exact = uniformity(z)
    monkeypatch.setattr(geometry, "MAX_PAIRWISE_METRIC_ITEMS", 200)
    assert uniformity(z) == uniformity(z)
    assert uniformity(z) != exact
    assert uniformity(z) == pytest.approx(exact, abs=0.1)


def test_collapsed_features_are_not_uniform() -> None:
    assert uniformity(torch.ones(20, 3)) == pytest.approx(0, abs=1e-5)


def test_spectrum_agrees_with_svd() -> None:
    x = random(40, 6)
    expected = torch.linalg.svdvals((x - x.mean(dim=0)).double())
    assert torch.allclose(centered_singular_values(x), expected, rtol=1e-6)


def test_spectrum_of_fewer_items_than_dimensions() -> None:
    x = torch.randn(7, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = centered_singular_values(x)
    assert result.shape == (30,)
    assert torch.allclose(result[:6], torch.linalg.svdvals(x - x.mean(dim=0))[:6], rtol=1e-6)
    assert (result[6:] < 1e-6).all()


def test_effective_rank_counts_the_directions_in_use() -> None:
    plane = random(1000, 2) @ random(2, 10)
    assert 1 < effective_rank(plane) <= 2 + 1e-3
    assert effective_rank(random(5000, 10)) == pytest.approx(10, abs=0.05)
    assert effective_rank(torch.ones(5, 3)) == 0
    assert not math.isnan(effective_rank(torch.zeros(5, 3)))


def test_geometry_rejects_wrong_shapes() -> None:
    with raises_usage_error("z1.shape", (3, 2), (4, 2)):
        alignment(random(3, 2), random(4, 2))
    with raises_usage_error("z.shape", (1, 2)):
        uniformity(random(1, 2))
    with raises_usage_error("z0.shape"):
        alignment(random(0, 2), random(0, 2))


def test_trustworthiness_does_not_depend_on_the_origin():
    x = (torch.randn(100, 5, generator=torch.Generator().manual_seed(0)).double() * 64).round() / 64
    z = x[:, :2].clone()
    expected = geometry.trustworthiness(x, z, 5)
    assert geometry.trustworthiness(x + 2.0**27, z - 2.0**27, 5) == expected
    assert geometry.trustworthiness(torch.eye(30) + 0.1, z[:30], 5) == 1  # all distances in the data are equal
