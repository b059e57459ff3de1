"""Half-steps: backends against the dense backend, which is compared with finite differences and POT."""

import math
from concurrent.futures import ThreadPoolExecutor

import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contraport.engine import (
    Geometry,
    Gibbs,
    HalfStepSpec,
    LabelExclusion,
    LinkPlusLogCost,
    LogOfFunction,
    RationalQuadratic,
    Relaxation,
    ScaledLog,
    ScaledLog1p,
    StudentT,
    backend,
    choose_backend_name,
    fixed_plan_row_costs,
    half_steps,
    row_log_sums,
    run_half_steps,
)
from contraport.engine.kernels import Kernel

CHAINS = {
    "rows": [HalfStepSpec("rows", None)],
    "columns": [HalfStepSpec("columns", None)],
    "two independent": [HalfStepSpec("rows", None), HalfStepSpec("columns", None)],
    "sinkhorn 1": [HalfStepSpec("rows", None), HalfStepSpec("columns", 0)],
    "sinkhorn 3": [HalfStepSpec("rows" if k % 2 == 0 else "columns", k - 1 if k else None) for k in range(6)],
    "both directions, 2": [
        HalfStepSpec("rows", None),
        HalfStepSpec("columns", None),
        HalfStepSpec("columns", 0),
        HalfStepSpec("rows", 1),
        HalfStepSpec("rows", 2),
        HalfStepSpec("columns", 3),
        HalfStepSpec("columns", 4),
        HalfStepSpec("rows", 5),
    ],
}


class BilinearCost(torch.nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(d, d, dtype=torch.float64))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return -x @ self.weight @ y.T


def kernels() -> dict[str, Kernel]:
    torch.manual_seed(0)
    return {
        "cosine": Gibbs("cosine", 0.3),
        "learnable": Gibbs("cosine", 0.3, learnable=True),
        "sqeuclidean": Gibbs("sqeuclidean", 2.0),
        "dot": Gibbs("dot", 1.5),
        "chordal": Gibbs("chordal", 0.3),
        "powered": Gibbs("cosine", 0.3, power=2, learnable=True),
        "rational quadratic": RationalQuadratic("cosine", 0.3, power=0.5, learnable=True),
        "student": StudentT(df=3, temperature=2.0),
        "student learnable": StudentT(df=1, temperature=0.7, learnable=True),
        "callable": Gibbs(lambda x, y: torch.cdist(x, y, p=1), 1.3),
        "bilinear": Gibbs(BilinearCost(5), 1.3),
    }


def outcome(name, chain, kernel, x, y, masks, damping=1.0, bound=None):
    """Return the value and the gradients of a random linear functional of all potentials."""
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    n, m = len(x), len(y)
    log_a = torch.randn(n, dtype=x.dtype, generator=torch.Generator().manual_seed(1)).log_softmax(0).requires_grad_()
    log_b = torch.randn(m, dtype=x.dtype, generator=torch.Generator().manual_seed(2)).log_softmax(0).requires_grad_()
    dampings = torch.full((len(chain),), damping, dtype=x.dtype, requires_grad=True)
    bounds, references = None, None
    if bound is not None:
        bounds = torch.full((len(chain),), bound, dtype=x.dtype, requires_grad=True)
        references = tuple(
            torch.randn(k, dtype=x.dtype, generator=torch.Generator().manual_seed(3)).requires_grad_() for k in (n, m)
        )
    kernel.zero_grad()
    with backend(name):
        slack = Relaxation(dampings, bounds, references)
        potentials = run_half_steps(Geometry(kernel(x, y), masks), chain, (log_a, log_b), slack)
    generator = torch.Generator().manual_seed(3)
    value = sum((p * torch.randn(len(p), dtype=x.dtype, generator=generator)).sum() for p in potentials)
    value.backward()
    slackening = [] if bound is None else [bounds, *references]
    variables = [x, y, log_a, log_b, dampings, *slackening, *kernel.parameters()]
    return [value.detach(), *(torch.zeros_like(v) if v.grad is None else v.grad for v in variables)]


def assert_same(left, right, tolerance=1e-10):
    for a, b in zip(left, right, strict=True):
        assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max())


@pytest.mark.parametrize("name", ["stored", "streamed"])
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("kernel", kernels())
@pytest.mark.parametrize(("damping", "bound"), [(1.0, None), (0.4, None), (0.8, 1.2)])
def test_backends_agree_with_the_dense_backend(monkeypatch, name, chain, kernel, damping, bound):
    monkeypatch.setattr("contraport.engine.backends.tiled.TILE_SHAPE", (4, 8))
    torch.manual_seed(0)
    x, y = torch.randn(11, 5, dtype=torch.float64), torch.randn(9, 5, dtype=torch.float64)
    masks = (
        LabelExclusion(
            (torch.arange(11) % 4, torch.arange(9) % 4), exception_labels=(torch.arange(11), torch.arange(9))
        ),
    )
    kernel = kernels()[kernel].double()
    expected = outcome("dense", CHAINS[chain], kernel, x, y, masks, damping, bound)
    assert_same(outcome(name, CHAINS[chain], kernel, x, y, masks, damping, bound), expected)


@pytest.mark.parametrize("name", ["stored", "streamed"])
@pytest.mark.parametrize("temperature", [0.2, 0.002])  # exponents that are split into factors, and those that are not
def test_symmetric_problem_agrees_with_the_dense_backend(monkeypatch, name, temperature):
    monkeypatch.setattr("contraport.engine.backends.tiled.TILE_SHAPE", (4, 8))
    x = torch.randn(10, 5, dtype=torch.float64)
    places = torch.arange(10)

    def gradient(backend_name):
        z = x.clone().requires_grad_()
        geometry = Geometry(Gibbs("cosine", temperature)(z, z), (LabelExclusion((places, places)),))
        uniform = torch.full((10,), -math.log(10), dtype=x.dtype)
        with backend(backend_name):
            f, g = run_half_steps(
                geometry, [HalfStepSpec("rows", None), HalfStepSpec("columns", 0)], (uniform, uniform)
            )
        (f.square().sum() + g.exp().sum()).backward()
        return [f.detach(), g.detach(), z.grad]

    assert_same(gradient(name), gradient("dense"))


@pytest.mark.parametrize("name", ["stored", "streamed"])
def test_no_sum_overflows_with_one_long_side(name):
    x, y = torch.eye(3), 200 * torch.eye(3)
    for geometry in (Geometry(Gibbs("dot", 1.0)(x, y)), Geometry(Gibbs("dot", 1.0)(y, x))):
        with backend(name):
            assert_same([row_log_sums(geometry)], [torch.full((3,), 200.0)], 1e-6)


@pytest.mark.parametrize(
    ("temperature", "masked"), [(0.112, False), (0.37, True)], ids=["without masks", "an infeasible mask"]
)
def test_products_with_the_kernel_at_the_largest_exponents(monkeypatch, temperature, masked):
    """The largest exponents that are exponentiated: rows are opposite to all columns but one."""
    x = torch.eye(2, 3).repeat_interleave(8, 0)
    x[-1] = -x[0]
    y, labels = -x, torch.arange(16) // 15
    chain = [HalfStepSpec("columns" if k % 2 else "rows", k - 1 if k else None) for k in range(8)]
    calls = []
    products = half_steps._HalfStepsByScaling.apply
    monkeypatch.setattr(
        half_steps._HalfStepsByScaling, "apply", lambda *arguments: calls.append(1) or products(*arguments)
    )

    def run(dtype, name):
        sides = [side.to(dtype).requires_grad_() for side in (x, y)]
        masks = (LabelExclusion((labels, labels)),) if masked else ()
        uniform = torch.full((16,), 1 / 16, dtype=dtype).log()
        with backend(name):
            potentials = run_half_steps(
                Geometry(Gibbs("cosine", temperature)(*sides), masks, True), chain, (uniform, uniform)
            )
        return torch.stack(potentials), *torch.autograd.grad((potentials[-1] * torch.arange(16)).sum(), sides)

    expected = run(torch.float64, "stored")
    for result, value in zip(run(torch.float32, "dense"), expected, strict=True):
        torch.testing.assert_close(result.double(), value, rtol=1e-5, atol=1e-5 * value.detach().abs().max().item())
    assert calls


@pytest.mark.parametrize("name", ["dense", "stored", "streamed"])
def test_gradcheck(name):
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    start = torch.randn(4, dtype=torch.float64, requires_grad=True)
    marginals = (torch.full((5,), 0.2, dtype=torch.float64).log(), torch.full((4,), 0.25, dtype=torch.float64).log())

    def potentials(x, y, start):
        geometry = Geometry(Gibbs("cosine", 0.5)(x, y), (LabelExclusion((torch.arange(5), torch.arange(4))),))
        with backend(name):
            return tuple(
                run_half_steps(
                    geometry, [HalfStepSpec("rows", 0), HalfStepSpec("columns", 1)], marginals, initial=[start]
                )
            )

    assert torch.autograd.gradcheck(potentials, (x, y, start))


@pytest.mark.parametrize("name", ["dense", "stored", "streamed"])
@pytest.mark.parametrize("temperature", [1e-3, 1e-2, 1.0])
def test_far_apart_exponents_stay_finite_and_exact(monkeypatch, name, temperature):
    """At a tiny temperature successive potentials differ by hundreds; the terms must not be merged then."""
    monkeypatch.setattr("contraport.engine.backends.tiled.TILE_SHAPE", (4, 8))
    torch.manual_seed(0)
    x, y = torch.randn(9, 3), torch.randn(9, 3)
    single = outcome(name, CHAINS["sinkhorn 3"], Gibbs("cosine", temperature), x, y, ())
    double = outcome("dense", CHAINS["sinkhorn 3"], Gibbs("cosine", temperature), x.double(), y.double(), ())
    for a, b in zip(single, double, strict=True):
        assert torch.isfinite(a).all()
        assert (a - b).abs().max() <= 2e-4 * max(1.0, b.abs().max())


@pytest.mark.parametrize("name", ["dense", "stored", "streamed"])
def test_a_row_without_pairs_has_no_effect(name):
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    masks = (LabelExclusion((torch.tensor([0, 1, 1]), torch.tensor([0, 0, 0]))),)
    uniform = torch.full((3,), -math.log(3), dtype=torch.float64)
    with backend(name):
        f, g = run_half_steps(
            Geometry(Gibbs()(x, x.detach()), masks),
            [HalfStepSpec("rows", None), HalfStepSpec("columns", 0)],
            (uniform, uniform),
        )
    (f.sum() + g.sum()).backward()
    assert f[0] == uniform[0]
    assert torch.isfinite(g).all()
    assert (x.grad[0] == 0).all()
    assert (x.grad[1] != 0).any()


@pytest.mark.parametrize("name", ["dense", "stored", "streamed"])
def test_log_sums(name):
    x, y, q = torch.randn(6, 3), torch.randn(4, 3), torch.randn(4)
    geometry = Geometry(Gibbs("dot", 1.0)(x, y))
    with backend(name):
        torch.testing.assert_close(row_log_sums(geometry, q), (x @ y.T + q).logsumexp(1))


@settings(max_examples=20, deadline=None)
@given(n=st.integers(2, 12), m=st.integers(2, 12), iterations=st.integers(1, 30), temperature=st.floats(0.05, 2))
def test_sinkhorn_matches_pot(n, m, iterations, temperature):
    generator = torch.Generator().manual_seed(n * 100 + m)
    x = torch.nn.functional.normalize(torch.randn(n, 3, dtype=torch.float64, generator=generator))
    y = torch.nn.functional.normalize(torch.randn(m, 3, dtype=torch.float64, generator=generator))
    steps = [HalfStepSpec("rows" if k % 2 == 0 else "columns", k - 1 if k else None) for k in range(2 * iterations)]
    log_a, log_b = (torch.full((k,), -math.log(k), dtype=torch.float64) for k in (n, m))
    geometry = Geometry(Gibbs("cosine", temperature)(x, y))
    *_, f, g = run_half_steps(geometry, steps, (log_a, log_b))
    plan = (geometry.dense() + f[:, None] + g).exp()
    # the first half-step of POT is on the columns, so its plan is that of the transposed problem
    cost = 1 - y @ x.T
    expected = ot.bregman.sinkhorn_log(
        log_b.exp(), log_a.exp(), cost, temperature, numItermax=iterations, stopThr=0, warn=False
    ).T
    assert (plan.sum(0) - log_b.exp()).abs().max() < 1e-12
    assert (plan - expected).abs().max() < 1e-9


@pytest.mark.parametrize("name", ["stored", "streamed"])
@pytest.mark.parametrize("kernel", kernels())
def test_transport_cost_with_a_fixed_plan(monkeypatch, name, kernel):
    monkeypatch.setattr("contraport.engine.backends.tiled.TILE_SHAPE", (4, 8))
    kernel = kernels()[kernel].double()

    def result(backend_name):
        torch.manual_seed(0)
        x, y = (torch.randn(n, 5, dtype=torch.float64, requires_grad=True) for n in (9, 6))
        f, g = (torch.randn(n, dtype=torch.float64) for n in (9, 6))
        masks = (LabelExclusion((torch.arange(9), torch.arange(6))),)
        with backend(backend_name):
            sums = fixed_plan_row_costs(Geometry(kernel(x, y), masks), f, g)
        return [sums.detach(), *torch.autograd.grad(sums, [x, y], torch.arange(9.0).double())]

    assert_same(result(name), result("dense"))


@pytest.mark.parametrize("name", ["dense", "stored", "streamed"])
@pytest.mark.parametrize("kernel", ["cosine", "callable", "bilinear"])
def test_links_over_a_biased_cost(monkeypatch, name, kernel):
    """sum_j psi(scale T_ij + b_i) for any nonnegative psi, its value and its gradient, through the log-sum-exp."""
    monkeypatch.setattr("contraport.engine.backends.tiled.TILE_SHAPE", (4, 8))
    torch.manual_seed(0)
    kernel = kernels()[kernel].double()
    x, y = (torch.randn(n, 5, dtype=torch.float64, requires_grad=True) for n in (9, 6))
    bias = torch.randn(9, dtype=torch.float64, requires_grad=True)
    for link, psi in [
        (ScaledLog(2), lambda t: t.clamp_min(0) ** 2),
        (ScaledLog1p(3), lambda t: (1 + t).clamp_min(0) ** 3),
        (LogOfFunction(torch.sigmoid), torch.sigmoid),
    ]:
        geometry = Geometry(kernel(x, y)).with_link(link, factor=1.5, row_shift=bias)
        with backend(name):
            row_sums = row_log_sums(geometry, torch.zeros(6, dtype=torch.float64)).exp()
        expected = psi(1.5 * kernel(x, y).dense() + bias[:, None]).sum(1)
        assert_same([row_sums], [expected])
        weights = torch.randn(9, dtype=torch.float64)
        gradients, expected_gradients = (
            torch.autograd.grad(v @ weights, [x, y, bias], retain_graph=True) for v in (row_sums, expected)
        )
        assert_same(gradients, expected_gradients)


def test_terms_with_distant_exponents_are_not_merged(monkeypatch):
    """Potentials of two chains differ by a factor of e^60: a common exponent would lose one of them."""
    monkeypatch.setattr("contraport.engine.backends.tiled.TILE_SHAPE", (4, 8))
    x, y = (torch.randn(n, 5, generator=torch.Generator().manual_seed(n)).requires_grad_() for n in (9, 6))
    uniform = torch.full((9,), -math.log(9)), torch.full((6,), -math.log(6))
    initial = [torch.linspace(0, 60, 6), torch.linspace(60, 0, 6)]

    def slopes(name, *z):
        with backend(name):
            geometry, steps = Geometry(Gibbs("cosine", 0.02)(*z)), [HalfStepSpec("rows", 0), HalfStepSpec("rows", 1)]
            potentials = run_half_steps(geometry, steps, uniform, initial=[v.to(z[0]) for v in initial])
        return torch.autograd.grad(sum((p * torch.arange(9)).sum() for p in potentials), z)

    exact = slopes("dense", x.detach().double().requires_grad_(), y.detach().double().requires_grad_())
    for result, expected in zip(slopes("streamed", x, y), exact, strict=True):
        torch.testing.assert_close(result.double(), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_many_half_steps_are_not_dense():
    """For 1,000 iterations at 128 rows, autograd of the dense backend would store 1.5 GB."""
    x = torch.randn(128, 4)
    geometry = Geometry(Gibbs()(x, x))
    assert choose_backend_name(geometry) == choose_backend_name(geometry, 20) == "dense"
    assert choose_backend_name(geometry, 2000) == "stored"


def test_a_long_chain_saves_few_tensors():
    x, y = (torch.randn(128, 4).requires_grad_() for _ in range(2))
    steps = [HalfStepSpec("rows" if k % 2 == 0 else "columns", k - 1 if k else None) for k in range(2000)]
    uniform = torch.full((128,), -math.log(128))
    saved_bytes = 0

    def count(tensor):
        nonlocal saved_bytes
        saved_bytes += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        *_, f, g = run_half_steps(Geometry(Gibbs("cosine", 0.5)(x, y)), steps, (uniform, uniform))
    assert saved_bytes < 16 << 20
    (f @ g).backward()
    assert x.grad.isfinite().all()


def test_backward_uses_the_backend_of_forward():
    """Backward in another thread, within the block of another backend."""
    x, y = (torch.randn(40, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    uniform = torch.full((40,), -math.log(40), dtype=torch.float64)

    def slope(in_thread):
        z = x.clone().requires_grad_()
        with backend("streamed"):
            f, g = run_half_steps(
                Geometry(Gibbs("cosine", 0.5)(z, y)),
                [HalfStepSpec("rows", None), HalfStepSpec("columns", 0)],
                (uniform,) * 2,
            )
        value = f @ g
        if in_thread:
            with ThreadPoolExecutor(1) as pool, backend("dense"):
                pool.submit(value.backward).result()
        else:
            value.backward()
        return z.grad

    assert torch.equal(slope(True), slope(False))


def test_slope_of_a_link_is_zero_where_it_is_minus_infinity():
    t = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    link = LogOfFunction(lambda t: t.square().sqrt())  # with an infinite slope at 0
    torch.testing.assert_close(link.derivative(t), torch.tensor([-1.0, 0.0, 0.5], dtype=torch.float64))
    torch.testing.assert_close(LinkPlusLogCost(None, 0.0).derivative(t), torch.tensor([0.0, 0.0, 0.0]).double())
