"""The contrastive covariance against its definition, written out as a double loop."""

from __future__ import annotations

import pytest
import torch
from tests.errors import raises_usage_error

from contraport.catalog.objectives import alpha_cl, pairwise
from contraport.theory import contrastive_covariance, energy, pair_weights


def views(n=7, d=4):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, d, generator=generator, dtype=torch.float64) for _ in range(2)]


def by_definition(x0, x1, alpha):
    x, n = torch.cat([x0, x1]), len(x0)
    total = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    for i in range(2 * n):
        for j in range(2 * n):
            difference, positive = x[i] - x[j], x[i] - x[(i + n) % (2 * n)]
            total += alpha[i, j] * (torch.outer(difference, difference) - torch.outer(positive, positive))
    return total / 2 / (2 * n)


@pytest.mark.parametrize("regularizer", ["uniform", "direct", "entropy", "square"])
def test_covariance_and_energy_match_the_definition(regularizer):
    x0, x1 = views()
    alpha = pair_weights(x0, x1, regularizer=regularizer, temperature=0.3)
    expected = by_definition(x0, x1, alpha)
    result = contrastive_covariance(x0, x1, alpha)
    torch.testing.assert_close(result.matrix, expected, atol=1e-6, rtol=1e-6)
    assert energy(x0, x1, alpha) == pytest.approx(expected.trace().item(), abs=1e-6)
    assert result.trace == pytest.approx(expected.trace().item(), abs=1e-6)
    rebuilt = result.eigenvectors @ result.eigenvalues.diag() @ result.eigenvectors.T
    torch.testing.assert_close(rebuilt, result.matrix)
    assert (result.eigenvalues.diff() <= 0).all()


TABLE = {
    "mine": (torch.log, torch.exp),
    "triplet": (lambda s: s, lambda t: torch.relu(t + 1)),
    "soft_triplet": (lambda s: 0.5 * torch.log(1 + s), lambda t: torch.exp(t / 0.5 + 1)),
    "n_plus_1_tuplet": (lambda s: torch.log(1 + s), torch.exp),
    "lifted_structured": (lambda s: torch.relu(torch.log(s)) ** 2, lambda t: torch.exp(t + 1)),
    "sigmoid_pairs": (lambda s: s, torch.sigmoid),
    "linear_pairs": (lambda s: s, lambda t: t),
    "info_nce": (lambda s: 0.5 * torch.log(1 + s), lambda t: torch.exp(t / 0.5)),
}
"""phi and psi of each preset as in table 1 of the paper, with constants 1 and temperature 0.5."""


@pytest.mark.parametrize("preset", TABLE)
def test_weights_of_a_pairwise_loss_are_phi_prime_psi_prime(preset):
    z0, z1 = (torch.nn.functional.normalize(z) for z in views())
    alpha = pair_weights(z0, z1, loss=pairwise(preset))
    phi, psi = TABLE[preset]
    z, n = torch.cat([z0, z1]), 7
    for i in range(2 * n):
        own = (z[i] - z[(i + n) % (2 * n)]).square().sum() / 2
        others = [j for j in range(2 * n) if j % n != i % n]
        t = (own - (z[i] - z[others]).square().sum(1) / 2).requires_grad_()
        (expected,) = torch.autograd.grad(phi(psi(t).sum()), t)
        torch.testing.assert_close(alpha[i, others], expected)
    assert (alpha[torch.eye(n, dtype=torch.bool).repeat(2, 2)] == 0).all()


@pytest.mark.parametrize("preset", TABLE)
def test_energy_of_a_pairwise_loss_has_its_gradient(preset):
    free = [z.requires_grad_() for z in views()]
    z0, z1 = (torch.nn.functional.normalize(z) for z in free)
    expected = torch.autograd.grad(pairwise(preset)(z0, z1), free, retain_graph=True)
    alpha = pair_weights(z0.detach(), z1.detach(), loss=pairwise(preset))
    z, n = torch.cat([z0, z1]), 7
    squared_distances = torch.cdist(z, z).square()
    minus_energy = (
        alpha * (squared_distances[range(2 * n), [*range(n, 2 * n), *range(n)]][:, None] - squared_distances)
    ).sum() / (4 * n)
    assert energy(z0.detach(), z1.detach(), alpha) == pytest.approx(-minus_energy.item(), abs=1e-9)
    result = torch.autograd.grad(minus_energy, free)
    for one, other in zip(result, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("loss", [alpha_cl(), pairwise("triplet", negatives="same"), "triplet"])
def test_rejects_the_weights_of_other_losses(loss):
    with raises_usage_error("loss.not_pairwise"):
        pair_weights(*views(), loss=loss)


def test_default_weights_are_equal_for_all_negatives():
    x0, x1 = views()
    same = torch.eye(7).repeat(2, 2)
    expected = by_definition(x0, x1, (1 - same).double() / 12)
    torch.testing.assert_close(contrastive_covariance(x0, x1).matrix, expected)


@pytest.mark.parametrize("regularizer", ["direct", "entropy", "inverse"])
def test_energy_on_the_sphere_is_minus_alpha_cl(regularizer):
    z0, z1 = (torch.nn.functional.normalize(z) for z in views())
    alpha = pair_weights(z0, z1, regularizer=regularizer)
    assert energy(z0, z1, alpha) == pytest.approx(-alpha_cl(0.5, regularizer)(z0, z1).item(), abs=1e-6)


@pytest.mark.parametrize("setting", [{"p": 2.0}, {"regularizer": "inverse", "gamma": 3.0}])
def test_exponents_are_those_of_alpha_cl(setting):
    z0, z1 = (torch.nn.functional.normalize(z) for z in views())
    alpha = pair_weights(z0, z1, **setting)
    assert not torch.allclose(alpha, pair_weights(z0, z1, **{k: v for k, v in setting.items() if k == "regularizer"}))
    assert energy(z0, z1, alpha) == pytest.approx(-alpha_cl(0.5, **setting)(z0, z1).item(), abs=1e-6)


def test_figure_is_drawn(tmp_path):
    contrastive_covariance(*views()).figure().savefig(tmp_path / "figure.png")


@pytest.mark.parametrize(
    ("change", "code", "values"),
    [
        (lambda x0, x1, a: (x0[:1], x1[:1], None), "x0.shape", ["(1, 4)"]),
        (lambda x0, x1, a: (x0, x1[:3], None), "x1.shape", [(7, 4), (3, 4)]),
        (lambda x0, x1, a: (x0, x1, a[:3]), "alpha.shape", [(14, 14), (3, 14)]),
        (lambda x0, x1, a: (x0, x1, a / 0), "alpha.invalid", ["nonnegative"]),
        (lambda x0, x1, a: (x0, x1, -a), "alpha.invalid", ["nonnegative"]),
        (lambda x0, x1, a: (x0, x1, torch.full((14, 14), 1 / 14)), "alpha.invalid", ["views of one item"]),
    ],
)
def test_rejects_invalid_views_and_weights(change, code, values):
    x0, x1 = views()
    with raises_usage_error(code, *values):
        contrastive_covariance(*change(x0, x1, pair_weights(x0, x1)))
