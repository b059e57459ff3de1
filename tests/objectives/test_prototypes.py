"""Prototypes: rows and columns of different number, and assignments as targets."""

import pytest
import torch
import torch.nn.functional as F
from tests.errors import raises_usage_error

import contraport
from contraport import soft_assignments

GENERATOR = torch.Generator().manual_seed(3)
Z0, Z1 = torch.randn(2, 8, 5, dtype=torch.float64, generator=GENERATOR)
PROTOTYPES = torch.randn(3, 5, dtype=torch.float64, generator=GENERATOR)


def sinkhorn(scores, temperature=0.05, iterations=3):
    """Return the assignments by algorithm 1 of SwAV, with samples in columns."""
    q = (scores / temperature).exp().T
    q = q / q.sum()
    for _ in range(iterations):
        q = q / q.sum(1, keepdim=True) / len(q)
        q = q / q.sum(0) / q.shape[1]
    return (q * q.shape[1]).T


@pytest.mark.parametrize("iterations", [1, 3])
def test_assignments_match_swav(iterations):
    result = soft_assignments(Z0, PROTOTYPES, iterations=iterations)
    expected = sinkhorn(F.normalize(Z0) @ F.normalize(PROTOTYPES).T, iterations=iterations)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(result.sum(1), torch.ones(8, dtype=torch.float64))


def test_assignments_are_detached_and_accept_half_precision():
    z, prototypes = Z0.bfloat16().requires_grad_(), PROTOTYPES.float().requires_grad_()
    result = soft_assignments(z, prototypes)
    assert not result.requires_grad
    assert result.dtype == torch.float32
    expected = soft_assignments(z.detach().double(), prototypes.detach().double())
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n", [8, 3])  # also as many items as prototypes
@pytest.mark.parametrize("backend", ["dense", "stored", "streamed"])
def test_swapped_prediction_matches_swav(backend, n):
    z, prototypes = Z0[:n].clone().requires_grad_(), PROTOTYPES.clone().requires_grad_()
    target = soft_assignments(Z1[:n], prototypes)
    loss = contraport.info_nce(temperature=0.1, symmetric=False, shared_columns=True)
    with contraport.engine.backend(backend):
        value = loss(z, prototypes, target=target)
    gradients = torch.autograd.grad(value, (z, prototypes))
    expected = F.cross_entropy(F.normalize(z) @ F.normalize(prototypes).T / 0.1, target)
    expected_gradients = torch.autograd.grad(expected, (z, prototypes))
    entropy = -torch.xlogy(target, target).sum(1).mean()
    torch.testing.assert_close(value, expected - entropy)
    for a, b in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_prototypes_equal_a_second_view_of_different_items():
    target = contraport.soft_assignments(Z1, PROTOTYPES)
    expected = contraport.info_nce(symmetric=False, shared_columns=True)(Z0, PROTOTYPES, target=target)
    torch.testing.assert_close(contraport.info_nce(symmetric=False)(Z0, PROTOTYPES, target=target), expected)


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (lambda swap, target: swap(Z0, PROTOTYPES), "target.shared_columns", ""),
        (lambda swap, target: swap(Z0, PROTOTYPES, target=target[:, :2]), "target.shape", "(8, 2)"),
        (
            lambda swap, target: swap(Z0, PROTOTYPES, target=contraport.Labels(), labels=torch.arange(8)),
            "target.shared_columns",
            "",
        ),
        (lambda swap, target: swap(Z0, PROTOTYPES, target=target, ids=torch.arange(8)), "ids.conflict", ""),
        (lambda swap, target: swap(Z0, PROTOTYPES[:, :2], target=target), "z1.shape", ""),
        (lambda swap, target: contraport.Cross(shared_columns=True), "shared_columns.conflict", "False"),
        (lambda swap, target: soft_assignments(Z0, PROTOTYPES[:, :2]), "z1.shape", ""),
        (lambda swap, target: soft_assignments(Z0, PROTOTYPES, temperature=0), "temperature.invalid", ""),
        (lambda swap, target: soft_assignments(Z0, PROTOTYPES, iterations=0), "iterations.invalid", ""),
    ],
)
def test_rejects_invalid_arguments(call, code, value):
    swap = contraport.info_nce(symmetric=False, shared_columns=True)
    with raises_usage_error(code, value):
        call(swap, soft_assignments(Z1, PROTOTYPES))
