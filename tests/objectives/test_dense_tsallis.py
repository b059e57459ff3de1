"""Tsallis transport with both marginals against POT, a general solver and finite differences; degenerate inputs."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import minimize
from tests.errors import raises_usage_error

import contraport as cp
from contraport import Gibbs, Tsallis, transport

BALANCED = Tsallis(2, mass_constraint="balanced")


def problem(n=12, m=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(size, 3, generator=generator, dtype=torch.float64) for size in (n, m))
    a, b = (torch.rand(size, generator=generator, dtype=torch.float64) + 0.1 for size in (n, m))
    return x, y, a / a.sum(), b / b.sum()


@pytest.mark.parametrize("temperature", [0.5, 5.0, 100.0])
def test_quadratic_plan_matches_pot(temperature):
    x, y, a, b = problem(40, 30)
    result = transport(x, y, Gibbs("sqeuclidean", temperature), BALANCED, a=a, b=b)
    cost = torch.cdist(x, y).square().numpy()
    settings = {"reg_type": "l2", "numItermax": 20_000, "stopThr": 1e-12}
    expected = ot.smooth.smooth_ot_dual(a.numpy(), b.numpy(), cost, reg=temperature, **settings)
    np.testing.assert_allclose(result.plan.dense().numpy(), expected, atol=1e-5)
    value = (cost * expected).sum() + temperature / 2 * (expected**2).sum()
    assert result.value.item() == pytest.approx(value, rel=1e-4)
    assert result.cost.item() == pytest.approx((cost * expected).sum(), rel=1e-4)
    assert result.marginal_error < 1e-10
    assert (result.plan.dense() == 0).any() or temperature > 10


@pytest.mark.parametrize("over", ["rows", "simplex", "balanced"])
@pytest.mark.parametrize("order", [0.5, 1.5, 2.0])
def test_matches_a_general_solver(order, over):
    x, y, a, b = problem(3, 4)
    result = transport(x, y, Gibbs("sqeuclidean", 1.5), Tsallis(order, mass_constraint=over), a=a, b=b)
    cost = torch.cdist(x, y).square().numpy().ravel()
    rows, columns = np.kron(np.eye(3), np.ones(4)), np.kron(np.ones(3), np.eye(4))
    # The last column's mass follows from the others.
    matrix = {"rows": rows, "simplex": np.ones((1, 12)), "balanced": np.vstack([rows, columns[:-1]])}[over]
    masses = {"rows": a, "simplex": torch.ones(1), "balanced": torch.cat([a, b[:-1]])}[over].numpy()
    solved = minimize(
        lambda plan: cost @ plan + 1.5 * (plan**order).sum() / (order * (order - 1)),
        np.outer(a, b).ravel(),
        jac=lambda plan: cost + 1.5 * plan ** (order - 1) / (order - 1),
        method="SLSQP",
        bounds=[(1e-9, 1)] * 12,
        constraints={"type": "eq", "fun": lambda plan: matrix @ plan - masses, "jac": lambda _: matrix},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    np.testing.assert_allclose(result.plan.dense().numpy().ravel(), solved.x, atol=1e-7)
    assert result.value.item() == pytest.approx(solved.fun, abs=1e-6)


@pytest.mark.parametrize("over", ["rows", "simplex", "balanced"])
@pytest.mark.parametrize("order", [0.5, 2.0, pytest.param(1.5, marks=pytest.mark.slow)])
def test_gradients_match_finite_differences(order, over):
    x, y, a, b = problem(5, 4)
    values = [one.requires_grad_() for one in (x, y, a, b, torch.tensor(1.5, dtype=torch.float64))]
    weights = torch.arange(20.0, dtype=torch.float64).view(5, 4).sin()

    def outputs(x, y, a, b, temperature):
        a, b = a / a.sum(), b / b.sum()
        result = transport(x, y, Gibbs("sqeuclidean", temperature), Tsallis(order, mass_constraint=over), a=a, b=b)
        return result.value, result.cost, (result.plan.dense() * weights).sum()

    assert torch.autograd.gradcheck(outputs, values, atol=1e-6, rtol=1e-4)


def test_value_has_the_plan_and_the_potentials_as_gradient():
    x, y, a, b = problem()
    a.requires_grad_()
    cost = torch.cdist(x, y).square().requires_grad_()
    rows, columns = torch.eye(12, dtype=torch.float64), torch.eye(9, dtype=torch.float64)
    result = transport(
        torch.cat([rows, torch.zeros(12, 9)], 1).double(),
        torch.cat([torch.zeros(9, 12), columns], 1).double(),
        Gibbs(lambda x, y: x[:, :12] @ cost @ y[:, 12:].T, 3.0),
        BALANCED,
        a=a,
        b=b,
    )
    plan, (f, g) = result.plan.dense().detach(), result.potentials
    torch.testing.assert_close(plan, ((f[:, None] + g - cost) / 3).clamp_min(0).detach(), atol=1e-12, rtol=0)
    (by_mass,) = torch.autograd.grad(result.value, [a])
    difference = by_mass - f  # potentials are determined up to a constant
    torch.testing.assert_close(difference, difference.mean().expand(12), atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    "layout", [cp.Joint(), *(pytest.param(cp.Cross(symmetric=both), marks=pytest.mark.slow) for both in (True, False))]
)
def test_fenchel_young_loss_has_plan_minus_target_as_gradient(layout):
    generator = torch.Generator().manual_seed(0)
    z = [torch.randn(6, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]
    loss = cp.Objective(layout, Gibbs("cosine", 2.0), BALANCED, cp.Pairs(), cp.FenchelYoung())
    value = loss(*z)
    plan, target = loss.plan(*z), loss.target_plan(*z)
    torch.testing.assert_close(plan.sum(0), torch.full((len(plan),), 1 / len(plan)).double())
    torch.testing.assert_close(plan.sum(1), torch.full((len(plan),), 1 / len(plan)).double())
    assert value > 0
    assert torch.autograd.gradcheck(loss, z, atol=1e-7)
    unit = torch.nn.functional.normalize(torch.cat(z) if len(plan) == 12 else z[0], dim=1)
    others = unit if len(plan) == 12 else torch.nn.functional.normalize(z[1], dim=1)
    expected = torch.autograd.grad(((plan - target).detach() * (unit @ others.T)).sum() / 2, z)
    for result, one in zip(torch.autograd.grad(value, z), expected, strict=True):
        torch.testing.assert_close(result, one, atol=1e-9, rtol=1e-7)


def test_fenchel_young_loss_is_zero_at_the_target():
    loss = cp.iot_quadratic("balanced", closed_form=False, layout="cross", temperature=0.1)
    assert loss(torch.eye(4), torch.eye(4)).item() == pytest.approx(0, abs=1e-6)
    assert loss(torch.eye(4), torch.eye(4).roll(1, 0)).item() > 0.1


def test_plan_has_the_interface_of_other_plans():
    x, y, a, b = problem()
    result = transport(x, y, Gibbs("sqeuclidean", 3.0), BALANCED, a=a, b=b)
    plan = result.plan.dense()
    torch.testing.assert_close(result.plan.apply(y), plan @ y)
    torch.testing.assert_close(result.plan.log_row_mass().exp(), a)
    torch.testing.assert_close(result.plan.row_cost(detach_plan=True), (plan * torch.cdist(x, y).square()).sum(1))
    assert repr(result).startswith("Transport(12 x 9, Tsallis(mass_constraint='balanced'), value=")
    with raises_usage_error("rounded.conflict"):
        _ = result.rounded


def test_order_one_is_entropic():
    x, y, a, b = problem()
    kernel = Gibbs("sqeuclidean", 2.0)
    one, other = (
        transport(x, y, kernel, c, a=a, b=b) for c in (Tsallis(1, mass_constraint="balanced"), cp.Balanced(1000, 1e-6))
    )
    assert torch.equal(one.plan.dense(), other.plan.dense())
    near = transport(x, y, kernel, Tsallis(1.001, mass_constraint="balanced"), a=a, b=b)
    torch.testing.assert_close(near.plan.dense(), other.plan.dense(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("points", ["equal", "far", "single", "light"])
@pytest.mark.parametrize("order", [0.5, 1.5, 2.0])
def test_hostile_inputs(points, order):
    x, y, a, b = problem()
    if points == "equal":
        x, y = torch.ones_like(x), torch.ones_like(y)
    elif points == "far":
        x = 30 * x  # costs of thousands of temperatures
    elif points == "single":
        x, a = x[:1], torch.ones(1, dtype=torch.float64)
    else:
        a = torch.where(torch.arange(12) < 6, 1e-9, a)
        a = a / a.sum()
    x.requires_grad_()
    result = transport(x, y, Gibbs("sqeuclidean", 1.0), Tsallis(order, mass_constraint="balanced"), a=a, b=b)
    assert result.marginal_error < 1e-6
    result.value.backward()
    assert torch.isfinite(x.grad).all()
    plan = result.plan.dense().detach()
    torch.testing.assert_close(x.grad, 2 * (plan.sum(1)[:, None] * x - plan @ y).detach(), atol=1e-5, rtol=1e-5)


def fenchel_young_without_pairs():
    return cp.Objective(cp.Cross(decoupled=True), Gibbs("cosine", 1.0), BALANCED, cp.Pairs(), cp.FenchelYoung())


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: Tsallis(0, mass_constraint="balanced"), "order.invalid"),
        (lambda: Tsallis(2, mass_constraint="both"), "mass_constraint.unknown"),
        (
            lambda: Tsallis(2, mass_constraint="balanced", regularizes_row_shares=True),
            "regularizes_row_shares.conflict",
        ),
        (lambda: transport(*problem()[:2], Gibbs("sqeuclidean", 1.0), Tsallis(-1)), "constraint.invalid"),
        (
            lambda: transport(1e9 * problem()[0], problem()[1], Gibbs("sqeuclidean", 1.0), BALANCED),
            "constraint.not_converged",
        ),
        (lambda: transport(*problem()[:2], cp.StudentT(1.0), Tsallis(2)), "kernel.conflict"),
        (
            lambda: transport(*problem()[:2], Gibbs("sqeuclidean", 1.0), Tsallis(2, regularizes_row_shares=True)),
            "constraint.invalid",
        ),
        (lambda: transport(*problem()[:2], Gibbs("sqeuclidean", 1.0), BALANCED, a=torch.ones(12)), "b.total"),
        (lambda: fenchel_young_without_pairs()(*torch.eye(2)[:, None]), "constraint.infeasible"),
    ],
)
def test_rejects_problems_without_a_plan(call, code):
    with raises_usage_error(code):
        call()


def test_transposed_plan_has_the_potentials_of_the_other_side():
    x, y, a, b = problem()
    plan = transport(x, y, Gibbs("sqeuclidean", 5.0), BALANCED, a=a, b=b).plan
    torch.testing.assert_close(plan.T.dual_potentials, plan.dual_potentials[::-1])
    torch.testing.assert_close(plan.T.quadratic_conjugate(), plan.quadratic_conjugate())


@pytest.mark.parametrize(
    ("order", "divergence"),
    [
        (2.0, cp.FenchelYoung()),
        (2.0, cp.SquaredL2()),
        (1.5, cp.SquaredL2()),
        (1.5, cp.JensenShannon()),
        (0.5, cp.KL()),
    ],
)
def test_second_derivatives_of_losses_match_finite_differences(order, divergence):
    z0, z1, *_ = problem(6, 6)
    constraint = Tsallis(order, mass_constraint="balanced")
    loss = cp.Objective(cp.Cross(), Gibbs("cosine", 5.0), constraint, cp.Pairs(), divergence)
    points = z0.requires_grad_(), z1.requires_grad_()
    assert torch.autograd.gradgradcheck(loss, points)
    for one in (lambda x: loss(x, z1), lambda x: loss(z0, x)):
        functional = torch.func.jacrev(torch.func.grad(one))(z0.detach())
        torch.testing.assert_close(functional, torch.autograd.functional.hessian(one, z0.detach()))


@pytest.mark.parametrize("order", [0.5, 1.5, 2.0])
@pytest.mark.parametrize("mass_constraint", ["balanced", "rows", "simplex"])
def test_second_derivatives_of_transport_match_finite_differences(order, mass_constraint):
    x, y, a, b = problem(5, 4)

    def value(x, y, a, b):
        constraint = Tsallis(order, mass_constraint=mass_constraint)
        return transport(x, y, Gibbs("sqeuclidean", 20.0), constraint, a=a / a.sum(), b=b / b.sum()).value

    assert torch.autograd.gradgradcheck(value, [v.requires_grad_() for v in (x, y, a, b)])


def test_gradient_of_the_quadratic_conjugate_in_the_masses_is_minus_the_potentials():
    x, y, a, b = problem()
    result = transport(x, y, Gibbs("sqeuclidean", 5.0), BALANCED, a=a.requires_grad_(), b=b.requires_grad_())
    gradients = torch.autograd.grad(result.plan.quadratic_conjugate(), [a, b])
    for gradient, potential in zip(gradients, result.potentials, strict=True):
        torch.testing.assert_close(gradient, -potential.detach() / 5.0)
