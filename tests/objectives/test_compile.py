"""torch.compile of every objective of the catalog: one graph at every size, several before torch 2.14.

Not compiled as one graph:

- ``present=``, views of different items, and lists of pairs as a target: how many rows or entries there are depends on
  the values;
- a cost that is a module, above the sizes of the dense backend: torch takes no module for a constant of a graph;
- several processes: collectives wait for sizes of the others.
"""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.compiling import COMPILES_AS_ONE_GRAPH, requires_compiler
from tests.objectives.comparing import required_attributes
from torch._dynamo.backends.registry import lookup_backend

import contraport
from contraport.catalog import OBJECTIVES

SETTINGS = {"direct-clr": {"dimensions": 3}}
# One objective for each code path, with its number of items in the fast tests; the others have the same parts.
SIZES = {
    "nt-xent": 256, "gca-uot": 6, "iot-uniform": 256, "sup-con": 256, "alpha-cl": 6, "barlow-twins": 6, "t-simclr": 256,
    "byol": 6,
}  # fmt: skip
VARIANTS: dict[str, Callable[[], contraport.Loss]] = {
    "tolerance": lambda: build_objective(contraport.Balanced(iterations=500, tolerance=1e-8), contraport.KL()),
    "total variation": lambda: build_objective(
        contraport.Unbalanced(1.0, marginal_divergence="total-variation"), contraport.KL()
    ),
    "order 2": lambda: build_objective(contraport.Tsallis(2), contraport.FenchelYoung()),
    "order 1/2": lambda: build_objective(contraport.Tsallis(0.5), contraport.KL()),
    "cost of the plan": lambda: build_objective(contraport.Rows(), contraport.ContrastiveEnergy(detach_plan=False)),
    "signed pairs": lambda: contraport.pairwise("linear_pairs"),
    "learned temperature": lambda: contraport.info_nce("learn"),
    "own cost": lambda: build_objective(contraport.Rows(), contraport.KL(), torch.cdist),
}


def build_objective(constraint: Any, divergence: Any, cost: Any = "cosine") -> contraport.Loss:
    kernel = contraport.Gibbs(cost, 0.5)
    return contraport.Objective(contraport.Cross(), kernel, constraint, contraport.Pairs(), divergence)


def objective(name: str) -> contraport.Loss:
    return contraport.objective(name, **SETTINGS.get(name, {})).double()


@pytest.fixture(autouse=True, scope="module")
def collected_garbage() -> None:
    """Finalize objects of earlier tests, which would otherwise warn within a test of this module."""
    gc.collect()


@pytest.fixture(autouse=True)
def no_hidden_warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail on warnings, logged warnings and exceptions that Python ignores, as in a finalizer."""
    torch.compiler.reset()
    messages: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Collect(logging.WARNING)
    logger = logging.getLogger("torch._dynamo")
    logger.addHandler(handler)
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: messages.append(repr(unraisable.exc_value)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
        gc.collect()
    logger.removeHandler(handler)
    torch.compiler.reset()
    assert not messages


class Compiled:
    """Compiled loss that counts its graphs."""

    def __init__(self, loss: contraport.Loss) -> None:
        self.graphs, self.loss = 0, loss
        self._call = torch.compile(loss, fullgraph=COMPILES_AS_ONE_GRAPH, backend=self._backend)

    def _backend(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        return lookup_backend("aot_eager")(graph, inputs)

    def __call__(self, *views: torch.Tensor, **attributes: Any) -> torch.Tensor:
        value: torch.Tensor = self._call(*views, **attributes)
        return value


def views(items: int, dimensions: int = 5) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(items)
    return [torch.randn(items, dimensions, dtype=torch.float64, generator=generator) for _ in range(2)]


def check_same(compiled: Compiled, loss: contraport.Loss, items: int, attributes: dict[str, Any]) -> None:
    """Compare the values and the gradients in the views and in the parameters."""
    results = []
    for call, own in ((loss, loss), (compiled, compiled.loss)):
        z = [view.requires_grad_() for view in views(items)]
        value = call(*z, **attributes)
        gradients = torch.autograd.grad(value, [*z, *own.parameters()], allow_unused=True)
        results.append([value.detach(), *gradients])
    for expected, result in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "items"),
    [
        pytest.param(name, items, marks=() if SIZES.get(name) == items else pytest.mark.slow)
        for name in sorted(OBJECTIVES)
        for items in (6, 256)
    ],
)
def test_an_objective_compiles(name: str, items: int) -> None:
    """6 items use the dense backend; 256 items, 512 rows in the joint layout, use stored tiles."""
    compiled = Compiled(objective(name))
    check_same(compiled, objective(name), items, required_attributes(name, items))
    assert compiled.graphs == 1 or not COMPILES_AS_ONE_GRAPH


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_compiles(variant: str) -> None:
    loss = VARIANTS[variant]().double()
    compiled = Compiled(loss)
    check_same(compiled, loss, 300, {})
    assert compiled.graphs == 1 or not COMPILES_AS_ONE_GRAPH


@pytest.mark.parametrize("backend", ["stored", "streamed"])
@pytest.mark.parametrize(
    "name", [name if name == "gca-uot" else pytest.param(name, marks=pytest.mark.slow) for name in sorted(OBJECTIVES)]
)
def test_an_objective_compiles_at_4096_rows(name: str, backend: Any) -> None:
    loss = contraport.objective(name, **SETTINGS.get(name, {}))
    attributes = {key: v.float() if v.is_floating_point() else v for key, v in required_attributes(name, 2048).items()}
    z0, z1 = (view.float() for view in views(2048))
    with contraport.engine.backend(backend):
        compiled = Compiled(loss.eval())
        torch.testing.assert_close(compiled(z0, z1, **attributes), loss(z0, z1, **attributes))
    assert compiled.graphs == 1 or not COMPILES_AS_ONE_GRAPH


@pytest.mark.parametrize(
    ("grad", "first", "second", "items"),
    [
        (False, "nt-xent", "sup-con", 6),
        (True, "sup-con", "gca-uot", 256),
        pytest.param(True, "nt-xent", "sup-con", 6, marks=pytest.mark.slow),
        pytest.param(False, "sup-con", "gca-uot", 256, marks=pytest.mark.slow),
    ],
)
def test_two_losses_in_one_process(grad: bool, first: str, second: str, items: int) -> None:
    """Both directions: the second is compiled from the same functions as the first."""
    with torch.set_grad_enabled(grad):
        for name in (first, second, first):
            attributes = required_attributes(name, items)
            result = Compiled(objective(name))(*views(items), **attributes)
            torch.testing.assert_close(result, objective(name)(*views(items), **attributes), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["nt-xent", "sup-con", pytest.param("gca-ince", marks=pytest.mark.slow)])
def test_changing_sizes_need_one_additional_graph(name: str) -> None:
    compiled, loss = Compiled(objective(name)), objective(name)
    for items in (300, 257, 411, 600):
        check_same(compiled, loss, items, required_attributes(name, items))
    assert compiled.graphs == 2 or not COMPILES_AS_ONE_GRAPH


def test_a_temperature_on_a_schedule_is_given_as_a_tensor() -> None:
    """A number would be a constant of the graph, so that each new one compiles again."""
    compiled = Compiled(objective("nt-xent"))
    for temperature in (0.5, 0.4, 0.3, 0.2):
        result = compiled(*views(256), temperature=torch.tensor(temperature))
        torch.testing.assert_close(result, objective("nt-xent")(*views(256), temperature=temperature))
    assert compiled.graphs == 1 or not COMPILES_AS_ONE_GRAPH


@pytest.mark.skipif(not COMPILES_AS_ONE_GRAPH, reason="this torch compiles no objective whole")
def test_a_compiled_graph_checks_values() -> None:
    compiled = Compiled(objective("info-nce"))
    compiled(*views(6), weights=torch.ones(6))
    with pytest.raises(RuntimeError, match=r"weights: .*nonnegative finite numbers"):
        compiled(*views(6), weights=-torch.ones(6))


@pytest.mark.parametrize("items", [20, 256])
def test_a_gradient_within_autocast_is_in_single_precision(items: int) -> None:
    z = [view.float().requires_grad_() for view in views(items)]
    loss = contraport.nt_xent()
    expected = torch.autograd.grad(loss(*z), z)
    with torch.autocast("cpu", torch.bfloat16):
        result = torch.autograd.grad(Compiled(loss)(*z), z)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-8)


@requires_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", ["nt-xent", "gca-uot"])
def test_the_default_compiler(name: str) -> None:
    loss = contraport.objective(name)
    compiled = torch.compile(loss, fullgraph=COMPILES_AS_ONE_GRAPH)
    z0, z1 = (view.float().requires_grad_() for view in views(256))
    values = [call(z0, z1) for call in (loss, compiled)]
    torch.testing.assert_close(values[1], values[0])
    slopes = [torch.autograd.grad(value, [z0, z1]) for value in values]
    torch.testing.assert_close(slopes[1], slopes[0])
