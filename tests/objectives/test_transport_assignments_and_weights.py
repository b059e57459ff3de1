"""`transport` and `sinkhorn_divergence` against POT, OTT, GeomLoss and finite differences."""

import math

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.errors import raises_usage_error

import contraport
from contraport import Balanced, Exact, Gibbs, Rows, Simplex, Unbalanced, sinkhorn_divergence, transport

BACKENDS = ["dense", "stored", "streamed"]
STRICT = Balanced(5000, 1e-13)
KINKED = (118, 348)
"""Seeds of the two problems of 600 whose points lie within 1e-3 of a kink."""


def points(n=9, m=7, d=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(k, d, dtype=torch.float64, generator=generator) for k in (n, m))
    a, b = (torch.rand(k, dtype=torch.float64, generator=generator) + 0.2 for k in (n, m))
    return x, y, a / a.sum(), b / b.sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_balanced_value_potentials_and_gradient_match_pot(backend):
    x, y, a, b = (v.requires_grad_() for v in points())
    with contraport.engine.backend(backend):
        result = transport(x, y, Gibbs("sqeuclidean", 0.8), STRICT, a=a, b=b)
    # POT minimises <C, P> + reg KL(P | a x b), and differentiates at the optimum.
    expected = ot.solve(ot.dist(x, y), a, b, reg=0.8, reg_type="KL", max_iter=20000, tol=1e-14, grad="envelope")
    torch.testing.assert_close(result.plan.dense(), expected.plan, rtol=1e-9, atol=1e-13)
    torch.testing.assert_close(result.value, expected.value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(result.cost, expected.value_linear, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(result.value, [x, y], retain_graph=True),
        torch.autograd.grad(expected.value, [x, y]),
        rtol=1e-7,
        atol=1e-10,
    )
    f, g = result.potentials
    rebuilt = a[:, None] * b * torch.exp((f[:, None] + g - ot.dist(x, y)) / 0.8)
    torch.testing.assert_close(rebuilt, result.plan.dense(), rtol=1e-10, atol=1e-14)
    assert result.marginal_error < 1e-12
    assert 1 < result.iterations < 5000


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reference", ["product", "counting"])
@pytest.mark.parametrize("relaxation", [0.5, (0.3, 2.0)])
def test_unbalanced_value_and_plan_match_pot(backend, reference, relaxation):
    x, y, a, b = points()
    constraint = Unbalanced(relaxation, 5000, reference, tolerance=1e-13)
    with contraport.engine.backend(backend):
        result = transport(x, y, Gibbs("sqeuclidean", 0.8), constraint, a=a, b=b)
    expected_plan = ot.unbalanced.sinkhorn_unbalanced(
        a, b, ot.dist(x, y), 0.8, relaxation, reg_type="kl" if reference == "product" else "entropy",
        numItermax=20000, stopThr=1e-15,
    )  # fmt: skip
    torch.testing.assert_close(result.plan.dense(), expected_plan, rtol=1e-8, atol=1e-12)
    # The value is the objective at the plan, term by term.
    plan, (rho_a, rho_b) = result.plan.dense(), relaxation if isinstance(relaxation, tuple) else (relaxation,) * 2
    if reference == "product":
        entropy = (plan * (plan / (a[:, None] * b)).log()).sum() - plan.sum() + 1
    else:
        entropy = (plan * (plan.log() - 1)).sum()

    def kl(m, w):
        return (m * (m / w).log() - m + w).sum()

    expected = (ot.dist(x, y) * plan).sum() + 0.8 * entropy + rho_a * kl(plan.sum(1), a) + rho_b * kl(plan.sum(0), b)
    torch.testing.assert_close(result.value, expected, rtol=1e-10, atol=1e-12)


@pytest.fixture
def ott():
    """Enable double precision in OTT."""
    pytest.importorskip("ott", reason="ott-jax is not installed")
    import jax

    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def solve_by_ott(x, y, a, b, temperature, **relaxation_options):
    """Return the value, the plan and the gradient in the points by OTT."""
    import jax
    import jax.numpy as jnp
    from ott.geometry.pointcloud import PointCloud
    from ott.solvers import linear

    def value(x, y):
        options = {
            "a": jnp.asarray(a),
            "b": jnp.asarray(b),
            "threshold": 1e-12,
            "max_iterations": 20000,
            **relaxation_options,
        }
        result = linear.solve(PointCloud(x, y, epsilon=temperature), **options)
        return result.reg_ot_cost, result.matrix

    points = jnp.asarray(x.detach().numpy()), jnp.asarray(y.detach().numpy())
    result, slopes = jax.value_and_grad(value, (0, 1), has_aux=True)(*points)
    cost, plan, *slopes = (torch.from_numpy(np.array(v)) for v in (*result, *slopes))
    return cost, plan, slopes


def test_balanced_value_plan_and_gradient_match_ott(ott):
    x, y, a, b = points()
    value, plan, slopes = solve_by_ott(x, y, a, b, 0.8)
    x, y = x.requires_grad_(), y.requires_grad_()
    result = transport(x, y, Gibbs("sqeuclidean", 0.8), STRICT, a=a, b=b)
    torch.testing.assert_close(result.value, value, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(result.plan.dense(), plan, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(list(torch.autograd.grad(result.value, [x, y])), slopes, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("relaxation", [0.5, (0.3, 2.0)])
def test_unbalanced_plan_and_gradient_match_ott(ott, relaxation):
    """The value of OTT differs by a constant that depends on the masses only."""
    x, y, a, b = points()
    rho_a, rho_b = relaxation if isinstance(relaxation, tuple) else (relaxation,) * 2
    _, plan, slopes = solve_by_ott(x, y, a, b, 0.8, tau_a=rho_a / (rho_a + 0.8), tau_b=rho_b / (rho_b + 0.8))
    x, y = x.requires_grad_(), y.requires_grad_()
    constraint = Unbalanced(relaxation, 5000, "counting", tolerance=1e-13)
    result = transport(x, y, Gibbs("sqeuclidean", 0.8), constraint, a=a, b=b)
    torch.testing.assert_close(result.plan.dense(), plan, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(list(torch.autograd.grad(result.value, [x, y])), slopes, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("reach", [None, 0.7])
@pytest.mark.parametrize("debias", [False, True])
def test_values_match_geomloss(debias, reach):
    """GeomLoss: the cost is half the squared distance, and iterations end with the annealed temperature.

    Its gradient is that of its value for balanced plans only.
    """
    losses = pytest.importorskip("geomloss", reason="geomloss is not installed")
    x, y, a, b = points()
    x, y = x.requires_grad_(), y.requires_grad_()
    options = {"p": 2, "blur": 0.8**0.5, "reach": reach, "scaling": 0.99, "debias": debias, "backend": "tensorized"}
    reference = losses.SamplesLoss("sinkhorn", **options)(a, x, b, y)
    constraint = STRICT if reach is None else Unbalanced(2 * reach**2, 5000, tolerance=1e-13)
    problem = x, y, Gibbs("sqeuclidean", 1.6), constraint
    half_value = (sinkhorn_divergence(*problem, a=a, b=b) if debias else transport(*problem, a=a, b=b).value) / 2
    torch.testing.assert_close(half_value, reference, rtol=1e-4 if reach is None else 2e-3, atol=0)
    if reach is None:
        result, expected = (torch.autograd.grad(value, [x, y]) for value in (half_value, reference))
        torch.testing.assert_close(result, expected, rtol=0, atol=3e-3)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6), temperature=st.sampled_from([0.3, 2.0]), backend=st.sampled_from(BACKENDS),
    constraint=st.sampled_from([
        STRICT, Balanced(3), Unbalanced(0.7, 4), Unbalanced(0.7, 4000, tolerance=1e-13),
        Unbalanced(0.4, 4000, marginal_divergence="total-variation", tolerance=1e-13),
    ]),
)  # fmt: skip
def test_gradients_match_finite_differences(seed, temperature, backend, constraint):
    x, y, a, b = points(5, 4, 2, seed)
    direction = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))

    def value(x, a):
        with contraport.engine.backend(backend):
            result = transport(x, y, Gibbs("sqeuclidean", temperature), constraint, a=a, b=b)
        mapped = result.plan.barycentric(y)
        largest = result.plan.top(2).to_dense()
        return result.value + result.cost + (mapped * direction).sum() + largest.square().sum()

    x.requires_grad_()
    (slope,) = torch.autograd.grad(value(x, a), x)
    step = 1e-5
    with torch.no_grad():
        expected = (value(x + step * direction, a) - value(x - step * direction, a)) / (2 * step)
    torch.testing.assert_close((slope * direction).sum(), expected, rtol=1e-5, atol=1e-6)


def active_bounds(x, y, a, b, temperature, relaxation, iterations):
    """Return which half-steps end at their bounds, and which rows have more than their mass, by a dense computation."""
    bound, pieces = relaxation / temperature, []
    s = -torch.cdist(x, y).square() / temperature + a.log()[:, None] + b.log()
    f, g = torch.zeros_like(a), torch.zeros_like(b)
    for _ in range(iterations):
        f = a.log() - (s + g).logsumexp(1)
        pieces += [f > bound, f < -bound]
        f = f.clamp(-bound, bound)
        g = b.log() - (s + f[:, None]).logsumexp(0)
        pieces += [g > bound, g < -bound]
        g = g.clamp(-bound, bound)
    return torch.cat([*pieces, (s + f[:, None] + g).logsumexp(1) > a.log()])


def test_gradient_of_unrolled_total_variation_matches_differences_except_at_kinks():
    """Half-steps that end at a bound, and rows that exactly have their mass, are kinks of the value.

    A difference whose step crosses one is a mean of two slopes, and not the gradient: at a step of 1e-3 in 2 problems
    of 600. Each such disagreement crosses a kink, and is gone at a step of 1e-7.
    """
    temperature, relaxation, iterations = 0.1, 5.0, 5
    constraint = Unbalanced(relaxation, iterations, marginal_divergence="total-variation")
    crossed = 0
    for seed in (*KINKED, *range(20)):
        x, y, a, b = points(5, 4, 2, seed)
        direction = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))

        def value(x, y=y, a=a, b=b):
            return transport(x, y, Gibbs("sqeuclidean", temperature), constraint, a=a, b=b).value

        free = x.clone().requires_grad_()
        slope = (torch.autograd.grad(value(free), free)[0] * direction).sum()
        for step in (1e-3, 1e-7):
            ends = [x + sign * step * direction for sign in (1, -1)]
            with torch.no_grad():
                difference = (value(ends[0]) - value(ends[1])) / (2 * step)
            agrees = torch.isclose(slope, difference, rtol=1e-2, atol=1e-2)
            bounds_above, bounds_below = (
                active_bounds(end, y, a, b, temperature, relaxation, iterations) for end in ends
            )
            assert agrees or not torch.equal(bounds_above, bounds_below)
            crossed += int(not agrees)
        assert agrees
    assert crossed >= len(KINKED)


@pytest.mark.parametrize("constraint", [STRICT, Unbalanced(0.7, 4000, tolerance=1e-13), Exact()])
def test_gradients_in_the_masses(constraint):
    x, y, a, b = points(5, 4, 2)
    a = (a * 1.0).requires_grad_()
    direction = torch.tensor([0.3, -0.1, -0.2, 0.05, -0.05], dtype=torch.float64)  # with an unchanged total

    def value(a):
        return transport(x, y, Gibbs("sqeuclidean", 0.7), constraint, a=a, b=b).value

    (slope,) = torch.autograd.grad(value(a), a)
    with torch.no_grad():
        expected = (value(a + 1e-5 * direction) - value(a - 1e-5 * direction)) / 2e-5
    torch.testing.assert_close(slope @ direction, expected, rtol=1e-6, atol=1e-8)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 12), m=st.integers(1, 12), temperature=st.sampled_from([1.0, 3.0]))
def test_invariance_to_permutations_and_transposition(seed, n, m, temperature):
    x, y, a, b = points(n, m, 3, seed)
    kernel, generator = Gibbs("sqeuclidean", temperature), torch.Generator().manual_seed(seed)
    rows, columns = torch.randperm(n, generator=generator), torch.randperm(m, generator=generator)
    result = transport(x, y, kernel, STRICT, a=a, b=b)
    again = transport(x[rows], y[columns], kernel, STRICT, a=a[rows], b=b[columns])
    mirror = transport(y, x, kernel, STRICT, a=b, b=a)
    torch.testing.assert_close(again.plan.dense(), result.plan.dense()[rows][:, columns], rtol=1e-6, atol=1e-11)
    torch.testing.assert_close(mirror.plan.dense().T, result.plan.dense(), rtol=1e-6, atol=1e-11)
    torch.testing.assert_close(mirror.value, result.value, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(result.plan.dense().sum(), torch.ones((), dtype=torch.float64))


def test_methods_of_a_plan(monkeypatch):
    monkeypatch.setattr("contraport.engine.autograd_utilities.MAX_BLOCK_PAIRS", 20)  # several blocks of rows
    x, y, a, b = points()
    y.requires_grad_()
    plan = transport(x, y, Gibbs("sqeuclidean", 0.8), STRICT, a=a, b=b).plan
    dense = plan.dense()
    torch.testing.assert_close(plan.apply(y), dense @ y)
    torch.testing.assert_close(plan.apply(b), dense @ b)
    torch.testing.assert_close(plan.barycentric(y), dense @ y / dense.sum(1, keepdim=True))
    top = plan.top(2)
    values, columns = dense.topk(2, 1)
    torch.testing.assert_close(top.to_dense(), torch.zeros_like(dense).scatter(1, columns, values))
    (slope,) = torch.autograd.grad(plan.barycentric(y).square().sum(), y, retain_graph=True)
    (expected,) = torch.autograd.grad((dense @ y / dense.sum(1, keepdim=True)).square().sum(), y)
    torch.testing.assert_close(slope, expected)
    torch.testing.assert_close(plan.top(1).to_dense().sum(1), values[:, 0])
    for wrong in (0, 8):
        with raises_usage_error("k.invalid", wrong):
            plan.top(wrong)


@pytest.mark.parametrize("constraint", [STRICT, Unbalanced(0.5, 5000, tolerance=1e-13)])
def test_divergence_is_zero_only_at_equality(constraint):
    x, _, a, _ = points()
    kernel = Gibbs("sqeuclidean", 2.0)
    assert sinkhorn_divergence(x, x, kernel, constraint, a=a, b=a).abs() < 1e-10
    assert sinkhorn_divergence(x, x + 0.1, kernel, constraint, a=a, b=a) > 1e-3
    shuffled = torch.tensor([3, 1, 0, 2, 4, 5, 8, 7, 6])
    assert sinkhorn_divergence(x, x[shuffled], kernel, constraint, a=a, b=a[shuffled]).abs() < 1e-10


def test_divergence_of_a_shift_is_its_square():
    x, _, a, _ = points()
    result = sinkhorn_divergence(x, x + 0.3, Gibbs("sqeuclidean", 3.0), STRICT, a=a, b=a)
    torch.testing.assert_close(result, torch.tensor(3 * 0.09, dtype=torch.float64), rtol=1e-9, atol=0)


def test_unbalanced_problems_accept_unequal_totals():
    x, y, a, b = points()
    result = transport(x, y, Gibbs("sqeuclidean", 0.8), Unbalanced(0.5, 3000, tolerance=1e-12), a=3 * a, b=b)
    expected = ot.unbalanced.sinkhorn_unbalanced(
        3 * a, b, ot.dist(x, y), 0.8, 0.5, reg_type="kl", numItermax=20000, stopThr=1e-15
    )
    torch.testing.assert_close(result.plan.dense(), expected, rtol=1e-7, atol=1e-11)


def test_row_constraint_is_a_softmax():
    x, y, a, b = points()
    result = transport(x, y, Gibbs("sqeuclidean", 0.8), Rows(), a=a, b=b)
    torch.testing.assert_close(result.plan.dense(), a[:, None] * (-ot.dist(x, y) / 0.8).softmax(1))


X, A = torch.zeros(3, 2), torch.full((3,), 1 / 3)


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (
            lambda: transport(X[0], X, Gibbs()),
            "x.invalid",
            "torch.float32 of shape (2,)",
        ),
        (lambda: transport(X, X.long(), Gibbs()), "y.invalid", "torch.int64 of shape (3, 2)"),
        (lambda: transport(X, X[:0], Gibbs()), "y.invalid", "torch.float32 of shape (0, 2)"),
        (lambda: transport(X, X[:, :1], Gibbs()), "y.shape", "1"),
        (lambda: transport(X, X, Gibbs(), Simplex()), "constraint.type", "Balanced"),
        (lambda: transport(X, X, "cosine"), "kernel.type", "'cosine'"),
        (lambda: transport(X, X, Gibbs()).plan.top(True), "k.invalid", "True"),
        (lambda: transport(X, X, Gibbs()).plan.apply(A[:2]), "values.shape", "torch.float32 of shape (2,)"),
        (lambda: transport(X, X, Gibbs()).plan.barycentric([1.0] * 3), "values.shape", "list"),
        (lambda: transport(X, X, Gibbs(), a=A[:2]), "a.shape", "torch.float32 of shape (2,)"),
        (lambda: transport(X, X, Gibbs(), a=A * torch.tensor([1.0, 0, 1])), "a.invalid", ""),
        (lambda: transport(X, X, Gibbs(), b=A * math.nan), "b.invalid", ""),
        (lambda: transport(X, X, Gibbs(), a=2 * A, b=A), "b.total", "1"),
    ],
)
def test_rejects_invalid_arguments(call, code, value):
    with raises_usage_error(code, value):
        call()


def inner_product_cost(x, y):
    return -x @ y.T


SIGNED = {
    "dot": ("dot", inner_product_cost),
    "negative cosine": ("negative-cosine", lambda x, y: -torch.cosine_similarity(x[:, None], y[None], dim=2)),
    "callable": (inner_product_cost, inner_product_cost),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cost", SIGNED)
def test_negative_costs_have_value_and_gradient(backend, cost):
    cost_of_kernel, cost_matrix = SIGNED[cost]
    x, y, a, b = points()
    y[0] = torch.linalg.cross(x[0], x[1])  # two pairs whose cost is 0, but not its gradient
    x, y = x.requires_grad_(), y.requires_grad_()
    with contraport.engine.backend(backend):
        result = transport(x, y, Gibbs(cost_of_kernel, 0.8), Balanced(6), a=a, b=b)
        slopes = torch.autograd.grad(result.cost, [x, y])
    s = -cost_matrix(x, y) / 0.8
    g = torch.zeros_like(b)
    for _ in range(6):
        f = a.log() - (s + g).logsumexp(1)
        g = b.log() - (s + f[:, None]).logsumexp(0)
    expected = ((s + f[:, None] + g).exp() * cost_matrix(x, y)).sum()
    torch.testing.assert_close(result.cost, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(slopes, torch.autograd.grad(expected, [x, y]), rtol=1e-9, atol=1e-11)


def test_memory_is_linear_in_the_points():
    """4,096 by 4,096 pairs are 64 MiB in single precision; the largest allocation is below half of that."""
    from torch.profiler import ProfilerActivity, profile

    x = torch.randn(4096, 8).requires_grad_()
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled,
        contraport.engine.backend("streamed"),
    ):
        result = transport(x, x.detach() + 0.1, Gibbs("sqeuclidean", 2.0), Balanced(3))
        (result.value + result.plan.barycentric(x.detach()).sum()).backward()
    largest = max(event.self_cpu_memory_usage for event in profiled.events())
    assert largest < 32 << 20


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("iterations", [1, 3])
def test_rounded_plan_meets_both_marginals_and_its_bounds(backend, iterations, monkeypatch):
    monkeypatch.setattr("contraport.engine.autograd_utilities.MAX_BLOCK_PAIRS", 20)  # several blocks of rows
    x, y, a, b = points()
    with contraport.engine.backend(backend):
        result = transport(x, y, Gibbs("sqeuclidean", 0.3), Balanced(iterations), a=a, b=b)
        rounded, before, cost = result.rounded, result.plan.dense(), torch.cdist(x, y).square()
        # algorithm 2 of Altschuler et al. on the matrix
        matrix = before * (a / before.sum(1)).clamp(max=1)[:, None]
        matrix = matrix * (b / matrix.sum(0)).clamp(max=1)
        rows, columns = a - matrix.sum(1), b - matrix.sum(0)
        matrix = matrix + torch.outer(rows, columns) / rows.sum()
        torch.testing.assert_close(rounded.dense(), matrix, rtol=1e-9, atol=1e-14)
        torch.testing.assert_close(rounded.row_cost().sum(), (matrix * cost).sum())
        torch.testing.assert_close(rounded.apply(y), matrix @ y)
        torch.testing.assert_close(rounded.apply(b), matrix @ b)
    assert rounded.dense().min() >= 0
    torch.testing.assert_close(rounded.dense().sum(1), a, rtol=0, atol=1e-14)
    torch.testing.assert_close(rounded.dense().sum(0), b, rtol=0, atol=1e-14)
    assert (rounded.dense() - before).abs().sum() <= 2 * result.marginal_error
    exact = transport(x, y, Gibbs("sqeuclidean", 0.3), Exact(), a=a, b=b).cost
    assert exact <= rounded.row_cost().sum() <= result.cost + 2 * result.marginal_error * cost.max()


def test_rounding_keeps_a_feasible_plan_and_rejects_unequal_totals():
    x, y, a, b = points()
    plan = transport(x, y, Gibbs("sqeuclidean", 0.8), Exact(), a=a, b=b).plan
    torch.testing.assert_close(plan.round_to_marginals().dense(), plan.dense())
    cost = (plan.dense() * torch.cdist(x, y).square()).sum(1)
    torch.testing.assert_close(plan.round_to_marginals().row_cost(), cost)
    with raises_usage_error("plan.total", 2):
        transport(x, y, Gibbs("sqeuclidean", 0.8), Unbalanced(0.5), a=a, b=2 * b).rounded  # noqa: B018


def test_sharpness_of_plans(monkeypatch):
    monkeypatch.setattr("contraport.engine.autograd_utilities.MAX_BLOCK_PAIRS", 20)
    x, y, a, b = points()
    sharpness = []
    for temperature in (1e6, 1.0, 0.1):
        plan = transport(x, y, Gibbs("sqeuclidean", temperature), Balanced(2000, 1e-9), a=a, b=b).plan
        shares = plan.dense() / plan.dense().sum(1, keepdim=True)
        torch.testing.assert_close(plan.effective_partners(), torch.special.entr(shares).sum(1).exp())
        sharpness.append(plan.sharpness())
        rescaled = transport(3 * x, 3 * y, Gibbs("sqeuclidean", 9 * temperature), Balanced(2000, 1e-9), a=a, b=b).plan
        assert rescaled.sharpness() == pytest.approx(sharpness[-1])
    assert sharpness == sorted(sharpness)
    uniform = transport(x, y, Gibbs("sqeuclidean", 1e6), Balanced(50)).plan
    assert uniform.sharpness() == pytest.approx(0, abs=1e-9)
    assert uniform.effective_partners().tolist() == pytest.approx([7.0] * 9)
    assert transport(x, x, Gibbs("sqeuclidean", 1.0), Exact()).plan.sharpness() == 1
    assert transport(x, y[:1], Gibbs("sqeuclidean", 1.0)).plan.sharpness() == 1


def test_deprecated_name_of_the_marginal_error_warns():
    result = transport(torch.zeros(2, 1), torch.ones(3, 1), Gibbs("sqeuclidean", 0.8))
    with pytest.warns(FutureWarning, match="marginal.error"):
        assert result.error == result.marginal_error


@pytest.mark.parametrize("weighted", [False, True])
def test_exact_transport_equals_pot(weighted: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (
        torch.randn(n, 3, dtype=torch.float64, generator=generator).requires_grad_() for n in (7, 5 if weighted else 7)
    )
    a, b = (torch.rand(len(z), dtype=torch.float64, generator=generator) + 0.2 for z in (x, y))
    masses = {"a": a / a.sum(), "b": b / b.sum()} if weighted else {}
    result = contraport.transport(x, y, Gibbs("sqeuclidean", 0.3), Exact(), **masses)
    uniform = [torch.full((len(z),), 1 / len(z)).double() for z in (x, y)]
    cost = torch.cdist(x, y).square()
    expected = ot.emd2(*(masses.values() if weighted else uniform), cost)
    torch.testing.assert_close(result.value, expected)
    gradients = torch.autograd.grad(result.value, (x, y)), torch.autograd.grad(expected, (x, y))
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other)
    f, g = result.potentials
    slack = cost.detach() - f[:, None] - g
    assert slack.min() > -1e-9
    assert slack[result.plan.masses > 1e-12].abs().max() < 1e-9
    assert f @ result.marginals[0].exp() + g @ result.marginals[1].exp() == pytest.approx(result.value.item(), rel=1e-9)
    torch.testing.assert_close(result.plan.T.dual_potentials, (g, f))


def test_exact_transport_has_the_total_of_the_masses_and_the_potentials_as_gradient():
    x, y, a, b = points(5, 4, 2)
    masses = [(3 * v).requires_grad_() for v in (a, b)]
    result = transport(x, y, Gibbs("sqeuclidean", 0.3), Exact(), a=masses[0], b=masses[1])
    alone = transport(x, y, Gibbs("sqeuclidean", 0.3), Exact(), a=a, b=b)
    torch.testing.assert_close(result.value.detach(), 3 * alone.value)
    assert result.marginal_error < 1e-9
    torch.testing.assert_close(torch.autograd.grad(result.value, masses), result.potentials)


@pytest.mark.parametrize("transposed", [False, True])
def test_an_exact_plan_of_an_objective_has_the_cost_of_the_kernel(transposed):
    x, y = torch.randn(2, 5, 3, dtype=torch.float64)
    kernel = contraport.Gibbs("sqeuclidean", 0.5)
    loss = contraport.Objective(contraport.Cross(), kernel, contraport.Exact(), contraport.Pairs(), contraport.KL())
    plan = next(loss.iterate_plans_with_targets(x, y)).plan
    cost = torch.cdist(x, y).square()
    plan, cost = (plan.T, cost.T) if transposed else (plan, cost)
    torch.testing.assert_close(plan.row_cost(detach_plan=True), (plan.dense() * cost).sum(1))
