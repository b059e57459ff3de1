"""Similarities of sets of vectors against pairs of sets matched one by one in NumPy, and their gradients."""

import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, xlogy
from tests.engine.test_memory import LargestTensor
from tests.errors import raises_usage_error

from contraport import LateInteraction
from contraport.engine import late_interaction
from contraport.engine.late_interaction import SetMatching, compute_set_similarities

INFINITE = math.inf
KERNELS = [
    LateInteraction("max"),
    LateInteraction("max", reduction="sum"),
    LateInteraction("soft", token_temperature=0.3),
    LateInteraction("soft", reduction="sum"),
    LateInteraction("transport", iterations=1),
    LateInteraction("transport", token_temperature=0.2, iterations=4, reduction="sum"),
    LateInteraction("transport", relaxation=0.3, iterations=3),
    LateInteraction("transport", relaxation=(INFINITE, 0.1), token_temperature=0.1),
    LateInteraction("transport", relaxation=(0.2, 0.0)),
]


@pytest.fixture(params=[None, (3, 7, 10)], ids=["one tile", "many tiles"])
def tiles(request, monkeypatch):
    for name, value in zip(
        ("MAX_TILE_ROW_VECTORS", "MAX_TILE_COLUMN_VECTORS", "SORTED_MAXIMA_PER_CHUNK"),
        request.param or (),
        strict=False,
    ):
        monkeypatch.setattr(late_interaction, name, value)


def sets():
    """Return sets of 0 to 5 and of 0 to 8 vectors, with padding at any place."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in ((7, 5, 6), (9, 8, 6)))
    x[0, 3:], x[2, 1], x[5] = 0, 0, 0
    y[1, :4], y[3, 2:], y[6] = 0, 0, 0
    return x, y


def vectors_of(z):
    z = z[np.abs(z).sum(1) > 0]
    return z / np.linalg.norm(z, axis=1, keepdims=True) if len(z) else np.zeros((1, 6))


def divergence(p, q):
    return np.sum(xlogy(p, p / q) - p + q)


def penalty(price, mass, share):
    return 0.0 if price in (0, INFINITE) else price * divergence(mass, share)


def similarity(x, y, kernel, iterations=None):
    """Return the similarity of two sets, from the potentials after the iterations (by default those of the kernel)."""
    x, y = vectors_of(x), vectors_of(y)
    factor = len(x) if kernel.reduction == "sum" else 1
    cosines, tau = x @ y.T, kernel.token_temperature
    if kernel.matching == "max":
        return factor * np.mean([max(row) for row in cosines])
    if kernel.matching == "soft":
        return factor * np.mean([tau * np.log(np.mean(np.exp(row / tau))) for row in cosines])
    cost, (rows, columns) = 1 - cosines, kernel.relaxation
    f, g = np.zeros(len(x)), np.zeros(len(y))
    row_step, column_step = (1.0 if price == INFINITE else price / (price + tau) for price in (rows, columns))
    for k in range((kernel.iterations if iterations is None else iterations) + 1):
        if k > 0:
            g = -column_step * tau * logsumexp((f[:, None] - cost) / tau - np.log(len(x)), axis=0)
        f = -row_step * tau * logsumexp((g - cost) / tau - np.log(len(y)), axis=1)
    conjugates = (
        p.mean() if price == INFINITE else 0.0 if price == 0 else price * np.mean(1 - np.exp(-p / price))
        for p, price in ((f, rows), (g, columns))
    )
    plan = np.exp((f[:, None] + g - cost) / tau) / cost.size
    return factor * (1 - (sum(conjugates) - tau * (plan.sum() - 1)))


def similarity_from_plan(x, y, kernel):
    """Return the similarity of two sets from the plan at convergence: 1 minus its cost and all penalties."""
    x, y = vectors_of(x), vectors_of(y)
    cost, tau, (rows, columns) = 1 - x @ y.T, kernel.token_temperature, kernel.relaxation
    a, b = np.full(len(x), 1 / len(x)), np.full(len(y), 1 / len(y))
    u, v, gibbs = np.ones(len(x)), np.ones(len(y)), np.exp(-cost / tau)
    row_step, column_step = (1.0 if price == INFINITE else price / (price + tau) for price in (rows, columns))
    for _ in range(2_000):
        v = (gibbs.T @ (a * u)) ** -column_step
        u = (gibbs @ (b * v)) ** -row_step
    plan = a[:, None] * u[:, None] * gibbs * v * b
    value = (plan * cost).sum() + tau * divergence(plan, np.outer(a, b))
    return 1 - value - penalty(rows, plan.sum(1), a) - penalty(columns, plan.sum(0), b)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.usefixtures("tiles")
def test_equals_pairs_matched_one_by_one(kernel):
    x, y = sets()
    expected = [[similarity(one, other, kernel) for other in y.numpy()] for one in x.numpy()]
    torch.testing.assert_close(kernel.similarities(x, y), torch.tensor(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("relaxation", [INFINITE, (INFINITE, 0.2), 0.2, (0.3, 0.1)])
def test_equals_the_value_of_the_transport_problem(relaxation):
    x, y = (z[:3] for z in sets())
    kernel = LateInteraction("transport", token_temperature=0.1, relaxation=relaxation, iterations=500)
    expected = [[similarity_from_plan(one, other, kernel) for other in y.numpy()] for one in x.numpy()]
    torch.testing.assert_close(kernel.similarities(x, y), torch.tensor(expected), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.usefixtures("tiles")
def test_gradient_matches_plain_autograd(kernel):
    x, y = (z.requires_grad_() for z in sets())
    seed = torch.randn(7, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = torch.autograd.grad((compute_set_similarities(x, y, kernel._matching) * seed).sum(), [x, y])
    plain = torch.autograd.grad((late_interaction._dense_set_similarities(x, y, kernel._matching) * seed).sum(), [x, y])
    for gradient, expected in zip(gradients, plain, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_gradients_match_finite_differences(kernel):
    x, y = (z[:, :3] for z in sets())
    points = x[3:5].clone().requires_grad_(), y[4:6].clone().requires_grad_()
    assert torch.autograd.gradcheck(kernel.similarities, points)
    assert torch.autograd.gradgradcheck(kernel.similarities, points)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_views_without_any_vector_are_sets_of_zeros(kernel):
    x, y = sets()
    nothing = y[:, :0].clone().requires_grad_()
    result = kernel(x, nothing).dense()
    torch.testing.assert_close(result, kernel(x, y[:, :1] * 0).dense())
    (gradient,) = torch.autograd.grad(result.sum(), nothing)
    assert gradient.shape == nothing.shape


def test_low_temperatures_converge_to_the_maximum():
    x, y = sets()
    soft = LateInteraction("soft", token_temperature=1e-7).similarities(x, y)
    torch.testing.assert_close(soft, LateInteraction("max").similarities(x, y), rtol=0, atol=1e-6)
    free = LateInteraction("transport", token_temperature=1e-7, relaxation=(INFINITE, 0.0)).similarities(x, y)
    torch.testing.assert_close(free, soft)


def test_sets_of_one_vector_have_cosines():
    x, y = torch.randn(2, 6, 4, dtype=torch.float64)
    expected = torch.nn.functional.cosine_similarity(x[:, None], y, dim=2)
    for matching in ("max", "soft", "transport"):
        log_kernel = LateInteraction(matching, temperature=0.5)(x, y)
        torch.testing.assert_close(log_kernel.dense(), (expected - 1) / 0.5)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_single_precision_is_accurate_at_any_scale(scale):
    x, y = (z.float() for z in sets())
    for kernel in KERNELS:
        scaled = (x * scale).requires_grad_()
        values = kernel.similarities(scaled, y)
        torch.testing.assert_close(values.double(), kernel.similarities(*sets()), rtol=2e-4, atol=2e-5)
        (gradient,) = torch.autograd.grad(values.sum(), scaled)
        assert gradient.isfinite().all()


def test_opposite_vectors_at_the_lowest_temperature_stay_finite():
    x = torch.tensor([[[1.0, 0.0], [-1.0, 1e-3]]]).requires_grad_()
    kernel = LateInteraction("transport", token_temperature=0.05, iterations=20)
    value = kernel.similarities(x, -x.detach())
    value.sum().backward()
    assert value.isfinite().all()
    assert x.grad.isfinite().all()


def test_gradient_is_the_same_in_each_run():
    x, y = (torch.randn(40, 9, 8).requires_grad_() for _ in range(2))
    first, second = (
        torch.autograd.grad(compute_set_similarities(x, y, SetMatching(0.0)).sum(), [x, y]) for _ in range(2)
    )
    assert all(torch.equal(gradient, other) for gradient, other in zip(first, second, strict=True))


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_allocates_no_tensor_over_pairs_of_vectors(kernel, monkeypatch):
    for name, value in (
        ("MAX_TILE_ROW_VECTORS", 32),
        ("MAX_TILE_COLUMN_VECTORS", 32),
        ("SORTED_MAXIMA_PER_CHUNK", 256),
    ):
        monkeypatch.setattr(late_interaction, name, value)
    x, y = (torch.randn(16, 16, 4).requires_grad_() for _ in range(2))
    with LargestTensor() as recorded:
        compute_set_similarities(x, y, kernel._matching).sum().backward()
    assert recorded.entries <= 16 * 16 * 16  # the positions of the maxima, 1/16 of all pairs of vectors


@pytest.mark.parametrize("kernel", [KERNELS[0], KERNELS[2], KERNELS[6]], ids=repr)
def test_compiles_as_one_graph(kernel):
    torch.compiler.reset()
    x, y = (z.requires_grad_() for z in sets())
    compiled = torch.compile(kernel.similarities, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(kernel.similarities(x, y).sum(), x)[0]
    torch.testing.assert_close(torch.autograd.grad(compiled(x, y).sum(), x)[0], expected)


def test_supports_gradients_by_torch_func():
    x, y = sets()
    gradient = torch.func.grad(lambda x: LateInteraction()(x, y).dense().sum())(x)
    x.requires_grad_()
    torch.testing.assert_close(gradient, torch.autograd.grad(LateInteraction()(x, y).dense().sum(), x)[0])


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"matching": "min"}, "matching"),
        ({"reduction": "max"}, "reduction"),
        ({"token_temperature": 0.0}, "token_temperature"),
        ({"matching": "transport", "token_temperature": 0.01}, "token_temperature"),
        ({"iterations": 0}, "iterations"),
        ({"relaxation": 0.0}, "relaxation"),
        ({"relaxation": (1.0, -1.0)}, "relaxation"),
        ({"relaxation": math.nan}, "relaxation"),
        ({"relaxation": "0.1"}, "relaxation"),
        ({"relaxation": 0.1}, "relaxation"),
        ({"matching": "soft", "iterations": 9}, "iterations"),
        ({"token_temperature": 0.1}, "token_temperature"),
    ],
)
def test_rejects_invalid_settings(arguments, name):
    with raises_usage_error(f"{name}.*"):
        LateInteraction(**arguments)


def test_maxsim_of_a_set_of_more_vectors_than_16_bits_index():
    x, y = torch.tensor([[[1.0, 0.0]]]), torch.zeros(1, 40_000, 2)
    y[..., 1] = 1.0
    y[0, -1] = torch.tensor([1.0, 1.0])
    y.requires_grad_()
    LateInteraction("max")(x, y).dense().sum().backward()
    assert y.grad.abs().sum(2).nonzero().tolist() == [[0, 39_999]]
