"""How many operations a call makes at small batches, where they are what costs: from the second call on."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import contraport

ROWS = 256


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls[str(function)] += 1
        return function(*args, **(kwargs or {}))


def operations(function, *z):
    """Return how many operations the second call and its gradient make."""
    for _ in range(2):
        z = [v.detach().requires_grad_() for v in z]
        with Counting() as forward:
            value = function(*z)
        with Counting() as backward:
            value.backward()
    return forward.calls.total(), backward.calls.total()


@pytest.mark.parametrize(
    ("name", "forward", "backward"), [("nt-xent", 40, 47), ("sup-con", 105, 60), ("info-nce", 75, 80)]
)
def test_a_call_makes_few_operations(name, forward, backward):
    z0, z1 = torch.randn(2, ROWS // 2, 16)
    known = {"labels": torch.arange(ROWS // 2) % 10} if name == "sup-con" else {}
    loss = contraport.objective(name)
    there, back = operations(lambda *z: loss(*z, **known), z0, z1)
    assert there <= forward
    assert back <= backward


def test_what_is_counted():
    x, y = torch.randn(2, ROWS, 16)
    wanted = torch.arange(ROWS)
    there, back = operations(
        lambda x, y: F.cross_entropy(F.normalize(x, dim=1) @ F.normalize(y, dim=1).T / 0.1, wanted), x, y
    )
    assert 10 <= there <= 20
    assert 25 <= back <= 50


def test_what_is_remembered_serves_every_mode():
    """Made first in inference mode, then used where there is a gradient; and by many threads."""
    z0, z1 = torch.randn(2, 37, 4)
    loss = contraport.gca_ince()
    with torch.inference_mode():
        value = loss(z0, z1)
    leaf = z0.clone().requires_grad_()
    again = loss(leaf, z1)
    again.backward()
    assert torch.equal(value, again.detach())
    assert leaf.grad.isfinite().all()
