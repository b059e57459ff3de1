"""A gradient of a gradient, under every policy: Hessian-vector products against differences of gradients."""

from contextlib import nullcontext

import pytest
import torch

import contraport
from contraport.engine import Geometry, Gibbs, Step, converge, held_sums, policy, scale
from contraport.objectives import CATALOG

N = 300  # past the size at which small batches are one matrix and plain autograd
FEW = 24  # where the policy is forced
HELD = {"alpha-cl", "quadratic", "byol", "cmc-nce"}  # hold something fixed, which differences of gradients do not
SETTINGS = {"direct-clr": {"dimensions": 3}}
CASES = [
    *((name, SETTINGS.get(name, {})) for name in CATALOG),
    ("alpha-cl", {"detach": False}),
    ("pairwise", {"preset": "soft_triplet"}),
    ("iot-quadratic", {"closed_form": False}),
    ("iot-quadratic", {"closed_form": False, "constraint": "simplex"}),
    ("t-simclr", {"conditional": True}),
]


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def hessian_vector(function, x, v):
    """Return the product by autograd, and by a central difference of gradients."""

    def gradient(x, **settings):
        x = x.detach().requires_grad_()
        return x, torch.autograd.grad(function(x), x, **settings)[0]

    inputs, slope = gradient(x, create_graph=True)
    (product,) = torch.autograd.grad((slope * v).sum(), inputs)
    step = 1e-5
    return product, (gradient(x + step * v)[1] - gradient(x - step * v)[1]) / (2 * step)


def assert_near(found, expected, tolerance=1e-5):
    assert (found - expected).norm() <= tolerance * expected.norm()


def products(objective, settings, chosen, n):
    loss = contraport.objective(objective, **settings).double().eval()
    known = {"labels": torch.arange(n) % 7} if objective == "sup-con" else {}
    other = numbers(n, 4, seed=1)
    with nullcontext() if chosen is None else policy(chosen):
        return hessian_vector(lambda x: loss(x, other, **known), numbers(n, 4), numbers(n, 4, seed=2))


@pytest.mark.parametrize(
    ("chosen", "n"), [("dense", FEW), ("stored", FEW), ("streamed", FEW), (None, N)], ids=lambda v: str(v)
)
@pytest.mark.parametrize(("objective", "settings"), CASES, ids=lambda case: str(case))
def test_every_objective(monkeypatch, objective, settings, chosen, n):
    if n == N and settings.get("constraint") == "simplex":
        n = 140  # its search for the threshold takes many passes; 280 rows are past that size too
    if n == FEW:
        monkeypatch.setattr("contraport.engine.backends.tiled.TILE", (4, 8))
    product, difference = products(objective, settings, chosen, n)
    if objective in HELD and settings.get("detach", True):
        assert_near(product, products(objective, settings, "dense", n)[0], 1e-9)
    else:
        assert_near(product, difference)


@pytest.mark.parametrize("name", ["dense", "stored", "streamed"])
def test_all_that_half_steps_depend_on(name):
    """A seed with a gradient of its own, marginals, dampings, given potentials, and biases that depend on x too."""
    x, y, v = numbers(FEW, 3), numbers(FEW, 3, seed=1), numbers(FEW, 3, seed=2)
    weights, given = numbers(FEW, seed=3), numbers(FEW, seed=4)

    def value(x):
        geometry = Geometry(Gibbs("sqeuclidean", 2.0)(x, y))
        log_marginals = x[:, 0].log_softmax(0), x[:, 1].log_softmax(0)
        with policy(name):
            f, g = scale(
                geometry,
                [Step("rows", 0), Step("columns", 1)],
                log_marginals,
                x[:2, 2].sigmoid(),
                [given * x[:, 0]],
            )
        return (f.sin() * weights).sum() + (g.square() * weights).sum()

    assert_near(*hessian_vector(value, x, v))


@pytest.mark.parametrize("name", ["dense", "stored", "streamed"])
@pytest.mark.parametrize("cost", ["cosine", "sqeuclidean", "callable"])
def test_the_plan_at_convergence(name, cost):
    x, y, v = numbers(FEW, 3), numbers(FEW, 3, seed=1), numbers(FEW, 3, seed=2)
    weights = numbers(FEW, FEW, seed=3)
    kernel = Gibbs(torch.cdist if cost == "callable" else cost, 5.0)

    def value(x):
        log_a, log_b = x[:, 0].log_softmax(0), x[:, 1].log_softmax(0)
        with policy(name):
            f, g = converge(Geometry(kernel(x, y)), (log_a, log_b), 1e-13, 5000)
        return ((f[:, None] + g).sin() * weights).sum()

    assert_near(*hessian_vector(value, x, v), 1e-4)


@pytest.mark.parametrize("name", ["stored", "streamed"])
def test_held_sums(name):
    x, y, v = numbers(FEW, 3), numbers(FEW, 3, seed=1), numbers(FEW, 3, seed=2)
    f, g = numbers(FEW, seed=3), numbers(FEW, seed=4)

    def product(chosen):
        with policy(chosen):
            return hessian_vector(
                lambda x: (held_sums(Geometry(contraport.StudentT(3.0)(x, y)), f, g) * numbers(FEW, seed=5)).sum(), x, v
            )[0]

    assert_near(product(name), product("dense"), 1e-12)


def test_a_gradient_penalty_trains_as_under_autograd():
    """backward(create_graph=True), then a second backward through a network."""
    network = torch.nn.Linear(5, 4).double()
    loss = contraport.gca_ince(iterations=2)

    def slopes(chosen):
        network.zero_grad()
        z0, z1 = numbers(N, 5).requires_grad_(), numbers(N, 5, seed=1)
        with policy(chosen):
            value = loss(network(z0), network(z1))
        (slope,) = torch.autograd.grad(value, z0, create_graph=True)
        (value + 100 * slope.square().sum()).backward()
        return torch.cat([p.grad.flatten() for p in network.parameters()])

    assert_near(slopes("streamed"), slopes("dense"), 1e-9)
