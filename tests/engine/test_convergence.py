"""The plan at convergence: its gradient without the way there."""

import math

import pytest
import torch

import contraport
from contraport import KL, Balanced, Gibbs, Joint, Objective, Pairs
from contraport.engine import Geometry, MatrixLogKernel, converge, policy


def potentials(name, temperature=0.3, learnable=False):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, 4, dtype=torch.float64, generator=generator).requires_grad_() for n in (9, 7))
    log_a = torch.randn(9, dtype=torch.float64, generator=generator).log_softmax(0)
    log_b = torch.randn(7, dtype=torch.float64, generator=generator).log_softmax(0)
    kernel = Gibbs("cosine", temperature, learnable=learnable).double()
    with policy(name):
        f, g = converge(Geometry(kernel(x, y)), (log_a, log_b), 1e-14, 5000)
    # The plan does not change when f gains what g loses, and neither may a loss.
    value = ((f[:, None] + g).sin() * torch.randn(9, 7, dtype=torch.float64, generator=generator)).sum()
    return [value.detach(), *torch.autograd.grad(value, [x, y, *kernel.parameters()])]


@pytest.mark.parametrize("name", ["stored", "streamed"])
@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize("learnable", [False, True])
def test_the_gradient_is_that_of_the_whole_way(monkeypatch, name, temperature, learnable):
    monkeypatch.setattr("contraport.engine.passes.TILE", (4, 8))
    for ours, oracle in zip(
        potentials(name, temperature, learnable), potentials("dense", temperature, learnable), strict=True
    ):
        torch.testing.assert_close(ours, oracle, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["stored", "streamed"])
def test_a_target_with_the_same_marginals_needs_no_solution(monkeypatch, name):
    """dL/dS is plan less target, exactly, and no step of the solver is made."""
    monkeypatch.setattr("contraport.engine.convergence.MOST_GRADIENT_STEPS", 0)
    logits = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
    target = torch.eye(6, dtype=torch.float64).roll(1, 0) / 6
    uniform = torch.full((6,), -math.log(6), dtype=torch.float64)
    with policy(name):
        f, g = converge(Geometry(MatrixLogKernel(logits)), (uniform, uniform), 1e-15, 5000)
    log_plan = logits + f[:, None] + g
    (slope,) = torch.autograd.grad(-(target * log_plan).sum(), logits)
    torch.testing.assert_close(slope, log_plan.detach().exp() - target, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["dense", "stored", "streamed"])
def test_the_objective_with_a_tolerance(name):
    z0, z1 = torch.randn(2, 8, 5, dtype=torch.float64).unbind()
    strict = Objective(Joint(), Gibbs("cosine", 0.5), Balanced(5000, tolerance=1e-13), Pairs(), KL())
    with policy(name):
        plan = strict.plan(z0, z1)
        torch.testing.assert_close(strict(z0, z1), contraport.gca_ince(0.5, iterations=2000)(z0, z1))
    for side in (0, 1):
        torch.testing.assert_close(plan.sum(side), torch.full((16,), 1 / 16, dtype=torch.float64))


def test_too_few_iterations_are_said():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(6, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    uniform = torch.full((6,), -math.log(6), dtype=torch.float64)
    with pytest.warns(UserWarning, match="off by"):
        converge(Geometry(Gibbs("cosine", 0.1)(x, y)), (uniform, uniform), 1e-12, 2)
