"""torch.compile takes objectives whole on the dense backend, that of small batches; before torch 2.14 in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.compiling import WHOLE
from tests.objectives.comparing import needed
from torch._dynamo.backends.registry import lookup_backend

import contraport
from contraport.catalog import OBJECTIVES

SETTINGS = {"direct-clr": {"dimensions": 3}}
# How many groups of equal labels or entries there are depends on the data, which breaks the graph unless it is forced.
BROKEN = {
    "align-uniform", "iot-quadratic", "iot-uniform", "sup-con", "kcl", "spectral", "debiased", "hard-negative"
}  # fmt: skip
# Looks at the ids, which breaks the graph for good.
KEEPS = {"sog-clr"}
# One of each way to a loss: the others are put together of the same parts.
FAST = {"nt-xent", "gca-uot", "iot-uniform", "sup-con", "alpha-cl", "barlow-twins", "t-simclr", "byol"}


def objective(name: str) -> contraport.Loss:
    return contraport.objective(name, **SETTINGS.get(name, {})).double()


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in sorted(set(OBJECTIVES) - KEEPS)],
)
def test_an_objective_compiles(name: str) -> None:
    torch.compiler.reset()
    z0, z1 = (torch.randn(6, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    known = needed(name, 6)
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return lookup_backend("aot_eager")(graph, inputs)

    expected = objective(name)(z0, z1, **known)
    got = torch.compile(objective(name), fullgraph=WHOLE and name in BROKEN, backend=backend)(z0, z1, **known)
    assert len(graphs) == 1 if WHOLE else graphs
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    gradients = [torch.autograd.grad(value, [z0, z1], allow_unused=True) for value in (got, expected)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
