"""Sinkhorn to convergence: implicit gradients against unrolled ones."""

import math
import warnings

import pytest
import torch

import contraport
from contraport import KL, Balanced, Gibbs, Joint, Objective, Pairs
from contraport.engine import (
    Geometry,
    HalfStepSpec,
    MatrixLogKernel,
    Relaxation,
    backend,
    run_half_steps,
    run_sinkhorn_to_convergence,
)


def problem(temperature=0.3, learnable=False):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, 4, dtype=torch.float64, generator=generator).requires_grad_() for n in (9, 7))
    log_a = torch.randn(9, dtype=torch.float64, generator=generator).log_softmax(0)
    log_b = torch.randn(7, dtype=torch.float64, generator=generator).log_softmax(0)
    kernel = Gibbs("cosine", temperature, learnable=learnable).double()
    return kernel, x, y, (log_a, log_b), torch.randn(9, 7, dtype=torch.float64, generator=generator)


def unrolled(geometry, log_marginals, iterations=1000):
    """Return the potentials with gradients by autograd through all iterations."""
    steps = [HalfStepSpec("rows" if k % 2 == 0 else "columns", k - 1 if k else None) for k in range(2 * iterations)]
    with backend("dense"):
        *_, f, g = run_half_steps(geometry, steps, log_marginals)
    return f, g


def build_solver(name):
    def solve(geometry, log_marginals):
        with backend(name):
            return run_sinkhorn_to_convergence(geometry, log_marginals, 1e-14, 5000)[:2]

    return solve


def value_and_gradients(solve, *settings):
    kernel, x, y, log_marginals, mixed = problem(*settings)
    f, g = solve(Geometry(kernel(x, y)), log_marginals)
    # The plan does not depend on a constant added to f and subtracted from g, and neither may the value.
    value = ((f[:, None] + g).sin() * mixed).sum()
    return [value.detach(), *torch.autograd.grad(value, [x, y, *kernel.parameters()])]


BACKENDS = ["dense", "stored", "streamed"]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize("learnable", [False, True])
def test_gradient_matches_unrolling(monkeypatch, name, temperature, learnable):
    monkeypatch.setattr("contraport.engine.backends.tiled.TILE_SHAPE", (4, 8))
    settings = temperature, learnable
    result, exact = value_and_gradients(build_solver(name), *settings), value_and_gradients(unrolled, *settings)
    for value, reference in zip(result, exact, strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("bound", [None, 0.7])
@pytest.mark.parametrize("dampings", [(0.6, 0.8), (0.5, 1.0), (1.0, 1.0)])
@pytest.mark.parametrize("counting", [False, True])
def test_relaxed_gradient_matches_unrolling(monkeypatch, name, bound, dampings, counting):
    """In all variables of the fixed point, against autograd through all iterations."""
    monkeypatch.setattr("contraport.engine.backends.tiled.TILE_SHAPE", (4, 8))
    if bound is None and dampings == (1.0, 1.0):
        pytest.skip("not relaxed: the potentials have a free constant")

    def outcome(solve):
        kernel, x, y, (log_a, log_b), mixed = problem(learnable=True)
        damping_factors = torch.tensor(dampings, dtype=torch.float64, requires_grad=True)
        bounds = None if bound is None else torch.full((2,), bound, dtype=torch.float64, requires_grad=True)
        references = None if counting else ((log_a + 0.1).requires_grad_(), (log_b - 0.2).requires_grad_())
        log_a, log_b = log_a.clone().requires_grad_(), log_b.clone().requires_grad_()
        f, g = solve(Geometry(kernel(x, y)), (log_a, log_b), Relaxation(damping_factors, bounds, references))
        value = ((f[:, None] + g).sin() * mixed).sum() + (f * mixed[:, 0]).sum()
        free = [x, y, log_a, log_b, damping_factors, *kernel.parameters(), *(references or ())]
        free += [] if bounds is None else [bounds]
        return [f.detach(), g.detach(), value.detach(), *torch.autograd.grad(value, free)]

    def unrolled_relaxed(geometry, log_marginals, slack):
        steps = [HalfStepSpec("rows" if k % 2 == 0 else "columns", k - 1 if k else None) for k in range(2000)]
        repeated = [None if v is None else v.repeat(1000) for v in slack[:2]]
        with backend("dense"):
            *_, f, g = run_half_steps(geometry, steps, log_marginals, Relaxation(*repeated, slack.reference_potentials))
        return f, g

    def converged(geometry, log_marginals, slack):
        with backend(name):
            return run_sinkhorn_to_convergence(geometry, log_marginals, 1e-14, 5000, slack)[:2]

    for value, reference in zip(outcome(converged), outcome(unrolled_relaxed), strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", BACKENDS)
def test_gradient_of_one_potential_ignores_its_free_constant(name):
    """The potential f is determined up to a constant; its gradient is that of f less its mean under a."""
    kernel, x, y, (log_a, log_b), mixed = problem()
    f, _ = build_solver(name)(Geometry(kernel(x, y)), (log_a, log_b))
    result = torch.autograd.grad((f * mixed[:, 0]).sum(), [x, y])
    f, _ = unrolled(Geometry(kernel(x, y)), (log_a, log_b))
    exact = torch.autograd.grad(((f - log_a.exp() @ f) * mixed[:, 0]).sum(), [x, y])
    for value, reference in zip(result, exact, strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", BACKENDS)
def test_target_with_the_same_marginals_needs_no_cg_step(monkeypatch, name):
    """dL/dS is exactly plan less target, without any step of the solver."""
    monkeypatch.setattr("contraport.engine.fixed_point.MAX_CG_STEPS", 0)
    logits = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
    target = torch.eye(6, dtype=torch.float64).roll(1, 0) / 6
    uniform = torch.full((6,), -math.log(6), dtype=torch.float64)
    with backend(name):
        f, g, _ = run_sinkhorn_to_convergence(Geometry(MatrixLogKernel(logits)), (uniform, uniform), 1e-15, 5000)
    log_plan = logits + f[:, None] + g
    (slope,) = torch.autograd.grad(-(target * log_plan).sum(), logits)
    torch.testing.assert_close(slope, log_plan.detach().exp() - target, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", BACKENDS)
def test_objective_with_a_tolerance(name):
    z0, z1 = torch.randn(2, 8, 5, dtype=torch.float64).unbind()
    strict = Objective(Joint(), Gibbs("cosine", 0.5), Balanced(5000, tolerance=1e-13), Pairs(), KL())
    with backend(name):
        plan = strict.plan(z0, z1)
        torch.testing.assert_close(strict(z0, z1), contraport.gca_ince(0.5, iterations=2000)(z0, z1))
    for side in (0, 1):
        torch.testing.assert_close(plan.sum(side), torch.full((16,), 1 / 16, dtype=torch.float64))


def test_warns_of_too_few_iterations():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(6, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    uniform = torch.full((6,), -math.log(6), dtype=torch.float64)
    with pytest.warns(UserWarning, match="1e-12"):
        run_sinkhorn_to_convergence(Geometry(Gibbs("cosine", 0.1)(x, y)), (uniform, uniform), 1e-12, 2)


def test_warns_once_in_a_loop():
    generator = torch.Generator().manual_seed(0)
    uniform = torch.full((6,), -math.log(6), dtype=torch.float64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            x, y = (torch.randn(6, 3, dtype=torch.float64, generator=generator) for _ in range(2))
            run_sinkhorn_to_convergence(Geometry(Gibbs("cosine", 0.1)(x, y)), (uniform, uniform), 1e-12, 2)
    assert sum(issubclass(warning.category, UserWarning) for warning in caught) == 1
