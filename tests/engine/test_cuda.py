"""The cuda backend in Triton's interpreter, in its compiler without a device, and on a device (-m gpu)."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.compiling import COMPILES_AS_ONE_GRAPH
from tests.engine.triton_interpreted import CHAINS, KERNELS, assert_near, outcome, problem
from tests.errors import raises_usage_error

import contraport
from contraport.engine import (
    Geometry,
    Gibbs,
    LabelExclusion,
    LogOfFunction,
    MatrixLogKernel,
    backend,
    choose_backend_name,
    explain_backend,
    precision,
)
from contraport.engine.backends.cuda import HAS_TRITON, choose_launch_config

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_triton = pytest.mark.skipif(not HAS_TRITON or INTERPRETED, reason="needs Triton, and not its interpreter")


@needs_triton
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_kernels_match_the_reference_in_the_interpreter(which):
    """Run `triton_interpreted.py` in a separate process with the interpreter enabled."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        which,
        Path(__file__).with_name("triton_interpreted.py"),
    ]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout[-5000:]


def test_falls_back_without_a_kernel():
    x = torch.randn(2000, 3)
    matrix = Geometry(MatrixLogKernel(torch.zeros(2000, 2000)))
    link = Geometry(Gibbs("dot", 1.0)(x, x)).with_link(LogOfFunction(torch.sigmoid))
    double = Geometry(Gibbs()(x.double(), x.double()))
    with backend("cuda"):
        for geometry, reason in [(matrix, "inner products"), (link, "LogOfFunction"), (double, "float64")]:
            assert choose_backend_name(geometry) == "stored"
            assert reason in explain_backend(geometry)
        assert choose_backend_name(Geometry(Gibbs()(x, x))) == "cuda"
        assert "as requested" in explain_backend(Geometry(Gibbs()(x, x)))
    assert choose_backend_name(Geometry(Gibbs()(x, x))) == "stored"


@needs_triton
def test_rejects_embeddings_on_a_cpu():
    z0, z1 = torch.randn(2, 8, 4)
    with backend("cuda"), raises_usage_error("backend.device", "cpu"):
        contraport.nt_xent()(z0, z1)


def test_requires_triton(monkeypatch):
    monkeypatch.setattr("contraport.engine.backends.cuda.HAS_TRITON", False)
    z0, z1 = torch.randn(2, 8, 4)
    with backend("cuda"), raises_usage_error("backend.missing", "triton"):
        contraport.nt_xent()(z0, z1)


def test_rejects_an_unknown_precision():
    with raises_usage_error("precision.unknown", "'bfloat16'"), precision("bfloat"):
        pass


def test_the_engine_does_not_load_triton():
    code = "import sys, contraport.engine; sys.exit(any(name.split('.')[0] == 'triton' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


KINDS = {
    "row_labels": "*i64",
    "column_labels": "*i64",
    "can_share_exponential": "*i32",
    "factor": "fp32",
    "power": "fp32",
    "n": "i32",
    "m": "i32",
}
HOPPER_SHARED_MEMORY = 227 << 10


@needs_triton
@pytest.mark.parametrize(
    ("name", "dtype", "direction", "dimensions"),
    [
        pytest.param("row_sums_by_column_split_kernel", "bf16", "tf32", 128, marks=pytest.mark.slow),
        pytest.param("row_sums_by_column_split_kernel", "fp32", "tf32", 768, marks=pytest.mark.slow),
        ("row_sums_by_column_split_kernel", "fp32", "ieee", 128),
        pytest.param("weighted_products_by_column_split_kernel", "bf16", "tf32", 256, marks=pytest.mark.slow),
        pytest.param("weighted_products_by_column_split_kernel", "fp16", "tf32", 128, marks=pytest.mark.slow),
        ("weighted_products_by_column_split_kernel", "fp32", "tf32", 128),
        pytest.param("weighted_products_by_column_split_kernel", "fp32", "ieee", 32, marks=pytest.mark.slow),
        ("pair_weights_kernel", "bf16", "tf32", 768),
        pytest.param("pair_weights_kernel", "fp32", "tf32", 768, marks=pytest.mark.slow),
        pytest.param("pair_weights_kernel", "fp32", "ieee", 128, marks=pytest.mark.slow),
    ],
)
def test_lowering_to_hopper(name, dtype, direction, dimensions, tmp_path, monkeypatch):
    """Every kernel compiles, with its block sizes, to machine code that fits the device and uses tensor cores."""
    from triton import compile, knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from contraport.engine.backends import triton_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # the home folder may not be writable
    try:
        assert knobs.nvidia.ptxas.path
    except RuntimeError as error:
        pytest.skip(f"no assembler: {error}")
    blocks = choose_launch_config(
        name, dimensions, 4 if dtype == "fp32" else 2, direction, HOPPER_SHARED_MEMORY
    )._asdict()
    options = {key: blocks.pop(key) for key in ("num_warps", "num_stages")}
    kernel = getattr(triton_kernels, name)
    constants = {"D": dimensions, "LINK": "log-decay", "NUM_MASKS": 1, "EXCEPTION_BITS": 1} | blocks
    constants["PRECISION"] = direction
    constants |= (
        {"LOGARITHM": True}
        if name == "row_sums_by_column_split_kernel"
        else {"GROUPS": 1, "RANK": 6, "WITHOUT_LINK": False}
    )
    kinds = {**KINDS, "x": f"*{dtype}", "y": f"*{dtype}", **dict.fromkeys(constants, "constexpr")}
    signature = {argument: kinds.get(argument, "*fp32") for argument in kernel.arg_names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (argument, kind) in enumerate(signature.items())
        if kind.startswith("*") or argument in ("n", "m")
    }
    code = compile(ASTSource(kernel, signature, constants, aligned), target=GPUTarget("cuda", 90, 32), options=options)
    assert code.metadata.shared <= HOPPER_SHARED_MEMORY
    assert ("wgmma.mma_async" in code.asm["ptx"]) == (direction == "tf32")
    assert len(code.asm["cubin"]) > 0


# Largest error, relative to the largest entry, of potentials and gradients at temperature 0.2.
TOLERANCES = {"float32": 1e-4, "tf32": 1e-2, "float16": 1e-2, "bfloat16": 5e-2}


@contextmanager
def use_arithmetic(name):
    """Multiply in one of `TOLERANCES` within the block."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if name == "tf32" else "ieee"
    try:
        with precision("float32" if name == "tf32" else name):
            yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.gpu
@pytest.mark.parametrize("name", TOLERANCES)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [(2000, 3001, 127), (8192, 8192, 128), (2048, 4096, 256), (2048, 2048, 768)])
def test_on_a_device(name, kernel, shape):
    x, y, masks = problem(*shape, device="cuda")
    kernel, chain = KERNELS[kernel]().cuda(), CHAINS["sinkhorn 2"]
    with use_arithmetic(name):
        result = outcome("cuda", kernel, chain, x, y, masks, damping=0.4)
        again = outcome("cuda", kernel, chain, x, y, masks, damping=0.4)
    assert all(torch.equal(a, b) for a, b in zip(result, again, strict=True))
    exact = outcome("dense", kernel.double(), chain, x.double(), y.double(), masks, damping=0.4)
    assert_near(result, exact, TOLERANCES[name])


@pytest.mark.gpu
@pytest.mark.parametrize("dimensions", [128, 768])
def test_a_symmetric_problem_on_a_device(dimensions):
    x, _, _ = problem(4096, 1, dimensions, device="cuda")
    kernel, chain = KERNELS["cosine"]().cuda(), CHAINS["sinkhorn 2"]
    places = torch.arange(4096, device="cuda")
    with use_arithmetic("float32"):
        result = outcome("cuda", kernel, chain, x, None, (LabelExclusion((places, places)),))
    exact = outcome("dense", kernel.double(), chain, x.double(), None, (LabelExclusion((places, places)),))
    assert_near(result, exact, TOLERANCES["float32"])


@pytest.mark.gpu
def test_cuda_is_the_default_on_a_device():
    x = torch.randn(4096, 16, device="cuda")
    assert choose_backend_name(Geometry(Gibbs()(x, x))) == "cuda"
    assert "Not cuda" in explain_backend(Geometry(MatrixLogKernel(x @ x.T)))


@pytest.mark.gpu
@pytest.mark.skipif(not COMPILES_AS_ONE_GRAPH, reason="this torch breaks the graph")
def test_compiled_on_a_device():
    z0, z1 = (torch.randn(2048, 128, device="cuda", requires_grad=True) for _ in range(2))
    loss = contraport.info_nce(temperature=0.2)
    with backend("cuda"):
        value, from_compiled = loss(z0, z1), torch.compile(loss, fullgraph=True)(z0, z1)
    torch.testing.assert_close(value, from_compiled)
    for a, b in zip(*(torch.autograd.grad(v, [z0, z1]) for v in (value, from_compiled)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["info-nce", "gca-ince"])
def test_memory_is_linear_in_the_rows(name):
    rows, dimensions = 65536 if name == "info-nce" else 32768, 128
    z0, z1 = (torch.randn(rows, dimensions, device="cuda", requires_grad=True) for _ in range(2))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with use_arithmetic("bfloat16"):
        contraport.objective(name, temperature=0.2)(z0, z1).backward()
    assert torch.cuda.max_memory_allocated() - before < 16 * 65536 * dimensions * 4
