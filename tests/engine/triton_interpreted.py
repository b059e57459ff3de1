"""Triton kernels in Triton's interpreter, on a CPU, against the dense oracle in double precision.

TRITON_INTERPRET=1 must be in the environment before Triton is imported: `test_cuda.py` runs this file in a process of
its own.
"""

import math

import pytest
import torch
import torch.distributed as dist
from tests.compiling import COMPILES_AS_ONE_GRAPH
from tests.processes import run_in_processes

import contraport
from contraport.engine import (
    Geometry,
    Gibbs,
    HalfStepSpec,
    LabelExclusion,
    RationalQuadratic,
    Relaxation,
    StudentT,
    backend,
    fixed_plan_row_costs,
    precision,
    row_log_sums,
    run_half_steps,
)
from contraport.engine.backends import choose_backend_config
from contraport.engine.pair_passes import WeightTerm

CHAINS = {
    "rows": [HalfStepSpec("rows", None)],
    "sinkhorn 2": [
        HalfStepSpec("rows", None),
        HalfStepSpec("columns", 0),
        HalfStepSpec("rows", 1),
        HalfStepSpec("columns", 2),
    ],
    "both directions": [
        HalfStepSpec("rows", None),
        HalfStepSpec("columns", None),
        HalfStepSpec("columns", 0),
        HalfStepSpec("rows", 1),
    ],
}
KERNELS = {
    "cosine": lambda: Gibbs("cosine", 0.2, learnable=True),
    "sqeuclidean": lambda: Gibbs("sqeuclidean", 2.0),
    "powered": lambda: Gibbs("cosine", 0.3, power=2, learnable=True),
    "rational quadratic": lambda: RationalQuadratic("cosine", 0.3, power=0.5),
    "student": lambda: StudentT(df=3, temperature=2.0, learnable=True),
}
KERNELS_WITH_TWO_FAST = [k if k in ("cosine", "student") else pytest.param(k, marks=pytest.mark.slow) for k in KERNELS]


def outcome(name, kernel, chain, x, y, masks=(), damping=1.0, operands="float32"):
    """Return potentials, row costs of a fixed plan, and the gradient of a random functional of both."""
    x = x.clone().requires_grad_()
    y = x if y is None else y.clone().requires_grad_()
    geometry = Geometry(kernel(x, y), masks)
    log_a, log_b = (x.new_full((n,), -math.log(n)) for n in geometry.shape)
    with backend(name), precision(operands):
        potentials = run_half_steps(geometry, chain, (log_a, log_b), Relaxation(x.new_full((len(chain),), damping)))
        sums = fixed_plan_row_costs(geometry, potentials[0].detach(), torch.zeros_like(log_b))
    generator = torch.Generator().manual_seed(3)
    weights = [torch.randn(len(p), generator=generator).to(p) for p in potentials]
    value = sums @ weights[0] + sum(p @ w for p, w in zip(potentials, weights, strict=True))
    variables = [x] if y is x else [x, y]
    return [*potentials, sums.detach(), *torch.autograd.grad(value, [*variables, *kernel.parameters()])]


def assert_near(result, exact, tolerance):
    for a, b in zip(result, exact, strict=True):
        assert (a - b).abs().max() <= tolerance * max(0.05, b.abs().max())


def problem(n, m, d, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    x, y = (2 * d**-0.5 * torch.randn(k, d, generator=generator).to(device) for k in (n, m))
    rows, columns = (torch.arange(k, device=device) for k in (n, m))
    return (
        x,
        y,
        (
            LabelExclusion((rows % 4, columns % 4), exception_labels=(rows, columns)),
            LabelExclusion((rows, columns)),
        ),
    )


CASES = [*((kernel, "sinkhorn 2") for kernel in KERNELS), ("powered", "rows"), ("powered", "both directions")]


@pytest.mark.parametrize(
    ("kernel", "chain", "dimensions"),  # embeddings in one block or, from 17 dimensions on, in several
    [
        *(pytest.param(*case, 5, marks=pytest.mark.slow if case[1] == "rows" else ()) for case in CASES),
        *(pytest.param(*case, 40, marks=() if case[0] == "student" else pytest.mark.slow) for case in CASES),
    ],
)
def test_single_precision(kernel, chain, dimensions):
    x, y, masks = problem(17, 23, dimensions)
    kernel, chain = KERNELS[kernel](), CHAINS[chain]
    result = outcome("cuda", kernel, chain, x, y, masks, damping=0.4)
    exact = outcome("dense", kernel.double(), chain, x.double(), y.double(), masks, damping=0.4)
    assert_near(result, exact, 5e-5)


@pytest.mark.parametrize("kernel", KERNELS_WITH_TWO_FAST)
def test_half_precision(kernel):
    x, y, masks = problem(17, 23, 40)
    kernel, chain = KERNELS[kernel](), CHAINS["sinkhorn 2"]
    result = outcome("cuda", kernel, chain, x, y, masks, operands="float16")
    assert_near(result, outcome("dense", kernel.double(), chain, x.double(), y.double(), masks), 2e-2)


@pytest.mark.parametrize("kernel", KERNELS_WITH_TWO_FAST)
def test_a_symmetric_problem(kernel):
    x, _, _ = problem(19, 1, 40)
    places = torch.arange(19)
    kernel, chain, masks = KERNELS[kernel](), CHAINS["sinkhorn 2"], (LabelExclusion((places, places)),)
    result = outcome("cuda", kernel, chain, x, None, masks)
    assert_near(result, outcome("dense", kernel.double(), chain, x.double(), None, masks), 5e-5)


def test_power_below_one_has_no_gradient_at_equal_embeddings():
    """The power of the cost has an infinite derivative at zero."""
    x, kernel, chain = torch.eye(8), Gibbs("cosine", 0.3, power=0.5), CHAINS["sinkhorn 2"]
    result = outcome("cuda", kernel, chain, x, x)
    assert_near(result, outcome("dense", kernel.double(), chain, x.double(), x.double()), 5e-5)


@pytest.mark.parametrize("dimensions", [5, 40])
def test_a_tiny_temperature(dimensions):
    """Exponents of terms differ by hundreds: several groups, and a running maximum."""
    x, y, _ = problem(17, 23, dimensions)
    result = outcome("cuda", Gibbs("cosine", 1e-3), CHAINS["sinkhorn 2"], x, y)
    exact = outcome("dense", Gibbs("cosine", 1e-3), CHAINS["sinkhorn 2"], x.double(), y.double())
    assert all(torch.isfinite(v).all() for v in result)
    assert_near(result, exact, 5e-4)


@pytest.mark.parametrize("dimensions", [5, 40], ids=["whole", "in pieces"])
def test_terms_far_apart_have_an_exponential_each(dimensions):
    """Relative to the exponents of the first term, those of the second would overflow."""
    x, y, _ = problem(17, 23, dimensions)
    geometry = Geometry(Gibbs("cosine", 0.5)(x, y))
    near, far, columns = torch.zeros(17), torch.linspace(-200, 0, 17), torch.zeros(23)
    terms = [WeightTerm(a, columns, "rows", torch.ones(17)) for a in (near, far)]
    with backend("cuda"):
        result, *_ = (
            choose_backend_config(geometry).create_passes(geometry).input_grads(terms, [True, False, False, False])
        )
    kernel = geometry.log_kernel.dense().double().exp()
    weight = kernel * (near.double().exp() + far.double().exp())[:, None]
    assert_near([result], [weight @ geometry.log_kernel.y.double()], 5e-5)


def test_a_narrow_workspace_does_not_change_the_result(monkeypatch):
    x, y, masks = problem(50, 23, 40)
    expected = outcome("cuda", KERNELS["cosine"](), CHAINS["sinkhorn 2"], x, y, masks)
    monkeypatch.setattr("contraport.engine.backends.cuda.MAX_WORKSPACE_BYTES", 1)
    assert_near(outcome("cuda", KERNELS["cosine"](), CHAINS["sinkhorn 2"], x, y, masks), expected, 1e-5)


def test_a_row_without_pairs_has_no_effect():
    x = torch.randn(3, 2, requires_grad=True)
    masks = (LabelExclusion((torch.tensor([0, 1, 1]), torch.tensor([0, 0, 0]))),)
    uniform = torch.full((3,), -math.log(3))
    with backend("cuda"):
        geometry = Geometry(Gibbs()(x, x.detach()), masks)
        f, g = run_half_steps(geometry, CHAINS["sinkhorn 2"][:2], (uniform, uniform))
        sums = row_log_sums(geometry, torch.zeros(3))
    (f.sum() + g.sum()).backward()
    assert f[0] == uniform[0]
    assert sums[0] == -torch.inf
    assert torch.isfinite(g).all()
    assert (x.grad[0] == 0).all()
    assert (x.grad[1] != 0).any()


@pytest.mark.parametrize("name", ["info-nce", "gca-uot", "t-simclr", "rince", "dcl", "dhel", "hard-negative"])
def test_objectives(name):
    z0, z1 = (torch.randn(9, 5, requires_grad=True) for _ in range(2))
    loss = contraport.objective(name)
    results = []
    for backend_name in ("cuda", "dense"):
        with backend(backend_name):
            value = loss(z0, z1, ids=torch.arange(9) % 7)
        results.append([value.detach(), *torch.autograd.grad(value, [z0, z1])])
    assert_near(*results, 1e-5)


@pytest.mark.skipif(not COMPILES_AS_ONE_GRAPH, reason="this torch breaks the graph")
@pytest.mark.parametrize("name", [pytest.param("nt-xent", marks=pytest.mark.slow), "gca-uot"])
def test_compile_does_not_decompose_the_operators(name):
    z0, z1 = (torch.randn(9, 5, requires_grad=True) for _ in range(2))
    loss = contraport.objective(name, temperature=0.2)
    with backend("cuda"):
        value, from_compiled = loss(z0, z1), torch.compile(loss, fullgraph=True, backend="aot_eager")(z0, z1)
    assert value == from_compiled
    for a, b in zip(*(torch.autograd.grad(v, [z0, z1]) for v in (value, from_compiled)), strict=True):
        assert torch.equal(a, b)


def report_agreement(rank, report, exact):
    x, y, masks = problem(17, 23, 5)
    kernel = KERNELS["cosine"]()
    result = outcome("cuda", kernel, CHAINS["sinkhorn 2"], x, y, masks)
    for gradient in result[-2 - len(list(kernel.parameters())) :]:  # the mean over processes equals the value of one
        dist.all_reduce(gradient)
        gradient /= 2
    assert_near(result, exact, 5e-5)
    report("agreed")


def test_processes_share_the_rows():
    x, y, masks = problem(17, 23, 5)
    exact = outcome("dense", KERNELS["cosine"](), CHAINS["sinkhorn 2"], x, y, masks)
    exact = [v.detach() for v in exact]
    assert run_in_processes(report_agreement, 2, exact) == 2 * ["agreed"]
