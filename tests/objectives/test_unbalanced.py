"""Unbalanced transport: mass, value, marginals and gradients at common settings."""

import math

import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.errors import raises_usage_error

import contraport
from contraport import (
    KL,
    Balanced,
    Cross,
    Exact,
    Gibbs,
    Joint,
    MarginalPenalty,
    Objective,
    Pairs,
    Unbalanced,
)
from contraport.engine import Geometry
from contraport.objectives.constraints.constraint import PlanRequest
from contraport.objectives.constraints.sinkhorn import MarginalRelaxation, SinkhornConstraint

BACKENDS = ["dense", "stored", "streamed"]


def batch(n, *, clusters, seed):
    """Return items, uniform on the sphere or around a few centers, and noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 16, dtype=torch.float64, generator=generator)
    if clusters:
        centres = 3 * torch.randn(clusters, 16, dtype=torch.float64, generator=generator)
        x += centres[torch.randint(clusters, (n,), generator=generator)]
    return x, torch.randn(n, 16, dtype=torch.float64, generator=generator)


SITUATIONS = {
    "temperature": st.sampled_from([0.05, 0.1, 0.2, 0.5]),
    "relaxation": st.sampled_from([0.05, 0.2, 1.0, 5.0]),
    "n": st.sampled_from([64, 256]),
    "clusters": st.sampled_from([0, 5]),
    "seed": st.integers(0, 10**6),
}


@settings(max_examples=25, deadline=None)
@given(**SITUATIONS)
def test_value_falls_as_views_agree_without_creating_mass(temperature, relaxation, n, clusters, seed):
    x, noise = batch(n, clusters=clusters, seed=seed)
    loss = contraport.gca_uot(temperature, iterations=10, relaxation=relaxation)
    values = []
    for noise_scale in (2.0, 0.8, 0.0):
        values.append(loss(x, x + noise_scale * noise).item())
        assert 0 < loss.last_plan_mass <= 1 + 1e-9
    assert values == sorted(values, reverse=True)
    assert min(values) >= 0


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_a_thousand_rows(temperature):
    x, noise = batch(512, clusters=5, seed=0)
    loss = contraport.gca_uot(temperature, iterations=10, relaxation=0.2)
    assert loss(x, x + 0.3 * noise) > loss(x, x)
    assert loss.last_plan_mass <= 1


@settings(max_examples=10, deadline=None)
@given(**SITUATIONS)
def test_large_relaxation_enforces_the_marginals(temperature, relaxation, n, clusters, seed):
    x, noise = batch(n, clusters=clusters, seed=seed)
    strict = contraport.gca_ince(temperature, iterations=4)(x, x + 0.3 * noise)
    result = contraport.gca_uot(temperature, iterations=4, relaxation=1e9)(x, x + 0.3 * noise)
    torch.testing.assert_close(result, strict, rtol=1e-6, atol=1e-8)


def test_conditional_plan_ranges_from_nt_xent_to_the_balanced_plan():
    x, noise = batch(64, clusters=0, seed=0)
    views = x, x + 0.7 * noise
    free = contraport.gca_uot(relaxation=1e-9, conditional=True)(*views)
    torch.testing.assert_close(free, contraport.nt_xent()(*views), rtol=1e-6, atol=0)
    strict = contraport.gca_uot(relaxation=1e9, conditional=True)(*views)
    joint = Objective(Joint(), Gibbs("cosine", 0.5), Balanced(), Pairs(), KL(conditional=True))
    torch.testing.assert_close(strict, joint(*views), rtol=1e-6, atol=0)


@pytest.mark.parametrize("reference", ["product", "counting"])
def test_value_and_gradient_match_unrolled_pot(reference):
    """POT differentiates through all of its steps; at convergence the gradients are equal."""
    x, noise = batch(12, clusters=0, seed=0)
    z0, z1 = x.clone().requires_grad_(), (x + noise).requires_grad_()
    uniform = torch.full((12,), 1 / 12, dtype=torch.float64)
    cost = 1 - torch.nn.functional.normalize(z0) @ torch.nn.functional.normalize(z1).T
    reg_type = {"product": "kl", "counting": "entropy"}[reference]
    plan = ot.unbalanced.sinkhorn_unbalanced(
        uniform, uniform, cost, 0.3, 0.7, reg_type=reg_type, numItermax=2000, stopThr=1e-15
    )
    eye = torch.eye(12, dtype=torch.float64)
    expected = (eye / 12 * (-math.log(12) - plan.log())).sum() - 1 + plan.sum()
    expected_gradients = torch.autograd.grad(expected, [z0, z1])
    constraint = Unbalanced(0.7, 200, reference)
    value = Objective(Cross(symmetric=False), Gibbs("cosine", 0.3), constraint, Pairs(), KL())(z0, z1)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(value, [z0, z1]), expected_gradients, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("cost", "side"), [("cosine", 1), ("negative-cosine", -1)])
def test_total_variation_bounds_potentials(cost, side, backend):
    x, noise = batch(40, clusters=5, seed=0)
    temperature, relaxation = 0.2, 0.15
    constraint = Unbalanced(relaxation, 2000, marginal_divergence="total-variation")
    loss = Objective(Cross(symmetric=False), Gibbs(cost, temperature), constraint, Pairs(), KL())
    with contraport.engine.backend(backend):
        (outcome,) = loss.iterate_plans_with_targets(x, x + 2 * noise)
        plan, potentials = outcome.plan.dense(), (outcome.plan.f, outcome.plan.g)
    bound = relaxation / temperature
    num_at_bound = 0
    for mass, potential in zip((plan.sum(1), plan.sum(0)), potentials, strict=True):
        step = potential + math.log(40)
        assert step.abs().max() <= bound + 1e-12
        # Inside the bounds the marginal is met; at a bound mass is missing or in excess.
        inside = step.abs() < bound - 1e-9
        torch.testing.assert_close(mass[inside] * 40, torch.ones_like(mass[inside]), rtol=0, atol=1e-6)
        assert (mass[step >= bound - 1e-9] * 40 <= 1 + 1e-6).all()
        assert (mass[step <= -bound + 1e-9] * 40 >= 1 - 1e-6).all()
        num_at_bound += int(
            (side * step >= bound - 1e-9).sum()
        )  # mass is dropped at positive costs, and created at negative ones
    assert num_at_bound > 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("constraint", [Balanced(300, marginals="weights"), Balanced(2000, 1e-12, marginals="weights")])
def test_marginals_from_the_weights(constraint, backend):
    x, noise = batch(9, clusters=0, seed=0)
    weights = torch.linspace(0.2, 3, 9, dtype=torch.float64)
    loss = Objective(Cross(symmetric=False), Gibbs("cosine", 0.4), constraint, Pairs(), KL())
    with contraport.engine.backend(backend):
        plan = loss.plan(x, x + noise, weights=weights)
        value = loss(x, x + noise, weights=weights)
    a = weights / weights.sum()
    cost = 1 - torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(x + noise).T
    expected = ot.sinkhorn(a, a, cost, 0.4, method="sinkhorn_log", numItermax=20000, stopThr=1e-14)
    torch.testing.assert_close(plan, expected, rtol=1e-7, atol=1e-12)
    torch.testing.assert_close(value, (a * (a.log() - expected.diagonal().log())).sum(), rtol=1e-7, atol=1e-12)


def test_row_marginals_equal_weights():
    x, noise = batch(9, clusters=0, seed=0)
    weights = torch.linspace(0.2, 3, 9, dtype=torch.float64)
    unbalanced = Unbalanced((math.inf, 1e-9), 1, marginals="weights")
    loss = Objective(Cross(symmetric=False), Gibbs("cosine", 0.4), unbalanced, Pairs(), KL(conditional=True))
    cost = 1 - torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(x + noise).T
    a = weights / weights.sum()
    rows = ((-cost / 0.4).exp() * a) / ((-cost / 0.4).exp() * a).sum(1, keepdim=True)
    torch.testing.assert_close(
        loss(x, x + noise, weights=weights), -(a * rows.diagonal().log()).sum(), rtol=1e-6, atol=1e-9
    )


def test_rejects_weight_marginals_without_weights():
    x, _ = batch(4, clusters=0, seed=0)
    loss = Objective(Joint(), Gibbs(), Balanced(marginals="weights"), Pairs(), KL())
    for call in (lambda: loss(x, x), lambda: loss(x, x, weights=torch.tensor([1.0, 0, 1, 1]))):
        with raises_usage_error("weights.marginals", "Balanced"):
            call()
    with raises_usage_error("weights.columns", "Balanced"):
        loss(x, x, weights=torch.ones(4), negatives=x)


@pytest.mark.parametrize(
    ("create", "code", "value"),
    [
        (lambda: Unbalanced(reference="lebesgue"), "reference.unknown", "'lebesgue'"),
        (lambda: Unbalanced(marginal_divergence="l2"), "marginal_divergence.unknown", "'l2'"),
        (lambda: Unbalanced(marginals="labels"), "marginals.unknown", "'labels'"),
        (
            lambda: contraport.gca_uot(marginal_weight=-1),
            "marginal_weight.invalid",
            "-1",
        ),
        (lambda: KL(conditional=1), "conditional.invalid", "1"),
    ],
)
def test_rejects_invalid_settings(create, code, value):
    with raises_usage_error(code, value):
        create()


def test_exact_plan_with_custom_marginals_matches_pot():
    x, noise = batch(6, clusters=0, seed=0)
    a = torch.linspace(1, 2, 6, dtype=torch.float64).log().log_softmax(0)
    kernel = Gibbs("cosine", 1.0)(x, x + noise)
    (plan,) = Exact()(Geometry(kernel), PlanRequest((a, a)))
    expected = ot.emd(a.exp().numpy(), a.exp().numpy(), (-kernel.dense()).numpy())
    torch.testing.assert_close(plan.dense(), torch.as_tensor(expected), rtol=0, atol=1e-9)


def test_the_penalty_of_marginals_is_their_kl():
    x, noise = batch(8, clusters=0, seed=0)
    loss = Objective(Joint(), Gibbs(), Unbalanced(0.1), Pairs(), KL(), {MarginalPenalty(): 1.0})
    plan, u = loss.plan(x, x + noise), 1 / 16
    expected = sum((m * (m / u).log() - m + u).sum() for m in (plan.sum(0), plan.sum(1)))
    torch.testing.assert_close(loss.compute_terms_by_name(x, x + noise)["MarginalPenalty"], expected)


def build_relaxed_constraint(**declared):
    """Return a custom constraint that relaxes its marginals as `Unbalanced` does."""

    class Loose(SinkhornConstraint):
        reference: str | None = declared.get("reference")

        def half_step_axes(self):
            return ("rows", "columns") * 5

        def marginal_relaxation(self, axis, temperature):
            return MarginalRelaxation(damping=1 / (1 + temperature / 0.7))

    return Loose()


@pytest.mark.parametrize("reference", ["product", "counting"])
def test_custom_constraint_declares_its_reference_measure(reference):
    x, noise = batch(16, clusters=0, seed=0)
    plans = [
        Objective(Cross(), Gibbs("cosine", 0.5), constraint, Pairs(), KL()).plan(x, x + noise)
        for constraint in (build_relaxed_constraint(reference=reference), Unbalanced(0.7, 5, reference))
    ]
    torch.testing.assert_close(*plans)


def test_rejects_a_relaxed_constraint_class_without_a_reference():
    with raises_usage_error("reference.missing", "Unsaid"):

        class Unsaid(SinkhornConstraint):
            def half_step_axes(self):
                return ("rows", "columns")

            def marginal_relaxation(self, axis, temperature):
                return MarginalRelaxation(damping=0.5)

    with raises_usage_error("reference.unknown", "'uniform'"):
        build_relaxed_constraint(reference="uniform")


def build_columns_first_constraint(order=("columns", "rows"), iterations=2000, relaxations=None):
    """Return a custom constraint that iterates from the columns on, with a relaxation for each axis or none."""

    class ColumnsFirst(SinkhornConstraint):
        reference: str | None = "counting"
        tolerance = 1e-13

        def half_step_axes(self):
            return order * iterations

    class Relaxed(ColumnsFirst):
        def marginal_relaxation(self, axis, temperature):
            return MarginalRelaxation(damping=1 / (1 + temperature / relaxations[axis]))

    return ColumnsFirst() if relaxations is None else Relaxed()


def plan_from_columns(kernel, temperature, relaxations):
    """Return the plan of a kernel, (N, M), scaled from its columns on; the relaxation of rows comes first."""
    row, column = (1.0 if price is None else price / (price + temperature) for price in relaxations)
    (n, m), u = kernel.shape, torch.ones(len(kernel), dtype=kernel.dtype)
    for _ in range(2000):
        v = (kernel.T @ u * m) ** -column
        u = (kernel @ v * n) ** -row
    return u[:, None] * kernel * v


@pytest.mark.parametrize("relaxations", [(None, None), (0.7, 0.7), (0.2, 1.5)])
def test_tolerance_with_columns_first(relaxations):
    x, y = torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).split([5, 7])
    relaxed = dict(zip(("rows", "columns"), relaxations, strict=True))
    constraint = build_columns_first_constraint(relaxations=None if relaxations[0] is None else relaxed)
    weights = torch.linspace(-1, 2, 35, dtype=torch.float64).reshape(5, 7)

    def solve(x, y):
        plans = constraint(Geometry(Gibbs("cosine", 0.5)(x, y)), PlanRequest(bidirectional=True))
        return [plan.dense() for plan in plans]

    def solve_densely(x, y):
        x, y = torch.nn.functional.normalize(x), torch.nn.functional.normalize(y)
        kernel = ((x @ y.T - 1) / 0.5).exp()
        return [plan_from_columns(k, 0.5, relaxations) for k in (kernel, kernel.T)]

    results = []
    for function in (solve, solve_densely):
        inputs = [x.clone().requires_grad_(), y.clone().requires_grad_()]
        plans = function(*inputs)
        value = (weights * plans[0]).sum() + (weights.square().T * plans[1]).sum()
        results.append([*plans, *torch.autograd.grad(value, inputs)])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("order", [("rows", "rows"), ("columns",), ("rows", "columns", "rows")])
def test_rejects_a_tolerance_of_half_steps_that_do_not_alternate(order):
    x, _ = batch(4, clusters=0, seed=0)
    with raises_usage_error("tolerance.axes", "ColumnsFirst"):
        build_columns_first_constraint(order, 1)(Geometry(Gibbs()(x, x)))
