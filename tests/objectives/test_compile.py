"""torch.compile takes every objective of the catalog whole, on the dense policy, which is that of small batches."""

from __future__ import annotations

import pytest
import torch

import contraport
from contraport.objectives.catalog import CATALOG

SETTINGS = {"direct-clr": {"dimensions": 3}}


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_an_objective_compiles_without_a_break(name: str) -> None:
    torch.compiler.reset()
    z0, z1 = (torch.randn(6, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    known = {"labels": torch.arange(6) % 3} if name == "sup-con" else {}
    loss = contraport.objective(name, **SETTINGS.get(name, {})).double()
    expected = loss(z0, z1, **known)
    again = contraport.objective(name, **SETTINGS.get(name, {})).double()  # cmc-nce remembers its first batch
    got = torch.compile(again, fullgraph=True, backend="aot_eager")(z0, z1, **known)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    gradients = [torch.autograd.grad(value, [z0, z1], allow_unused=True) for value in (got, expected)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
