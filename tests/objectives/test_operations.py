"""How many operations a call makes at small batches, where they are what costs: from the second call on."""

import dataclasses
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from tests.objectives import comparing
from torch.utils._python_dispatch import TorchDispatchMode

import contraport
from contraport.catalog import OBJECTIVES
from contraport.objectives.constraints import PlanRequest

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
    ("name", "forward", "backward"),
    [("nt-xent", 25, 32), ("sup-con", 75, 42), ("info-nce", 43, 49), ("gca-ince", 68, 74)],
)
def test_a_call_makes_few_operations(name, forward, backward):
    z0, z1 = torch.randn(2, ROWS // 2, 16)
    attributes = {"labels": torch.arange(ROWS // 2) % 10} if name == "sup-con" else {}
    loss = contraport.objective(name)
    there, back = operations(lambda *z: loss(*z, **attributes), z0, z1)
    assert there <= forward
    assert back <= backward


def test_operation_counts_of_plain_cross_entropy():
    x, y = torch.randn(2, ROWS, 16)
    expected = torch.arange(ROWS)
    there, back = operations(
        lambda x, y: F.cross_entropy(F.normalize(x, dim=1) @ F.normalize(y, dim=1).T / 0.1, expected), x, y
    )
    assert 10 <= there <= 20
    assert 25 <= back <= 50


def test_cached_results_serve_every_mode():
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


def reachable(part, seen):
    """Yield the tensors without a gradient that can be reached from a part of an outcome."""
    if id(part) in seen:
        return
    seen.add(id(part))
    if isinstance(part, torch.Tensor):
        if not part.requires_grad:
            yield part
    elif isinstance(part, (tuple, list)):
        for each in part:
            yield from reachable(each, seen)
    elif dataclasses.is_dataclass(part):
        yield from reachable([getattr(part, each.name) for each in dataclasses.fields(part)], seen)


SETTINGS = {"direct-clr": {"dimensions": 3}}
OF_ONE = [
    name
    for name in OBJECTIVES
    if isinstance(contraport.objective(name, **SETTINGS.get(name, {})), contraport.Objective)
]
"""Objectives that are not sums of others."""


@pytest.mark.parametrize("name", OF_ONE)
def test_writing_to_a_plan_changes_no_later_call(name):
    """Nor what is written to anything else that a plan, a target or a block holds."""
    z, attributes, settings = comparing.views(), comparing.needed(name), SETTINGS.get(name, {})
    expected = comparing.build(name, **settings)(*z, **attributes)
    own = {tensor.untyped_storage().data_ptr() for tensor in [*z, *attributes.values()]}
    for outcome in comparing.build(name, **settings).iterate_block_results(*z, **attributes):
        for tensor in list(reachable(outcome, set())):
            if tensor.untyped_storage().data_ptr() not in own and tensor.is_contiguous():
                tensor.zero_()
    assert torch.equal(comparing.build(name, **settings)(*z, **attributes), expected)


@pytest.mark.parametrize(
    "constraint",
    [contraport.Rows(), contraport.Columns(), contraport.Free(), contraport.Simplex(), contraport.Balanced(3),
     contraport.Balanced(50, 1e-6), contraport.Unbalanced(1.0), contraport.Tsallis(), contraport.Tsallis(0.5)],
    ids=repr,
)  # fmt: skip
def test_plan_owns_its_vectors(constraint):
    """No write is seen by another plan, not even one through an array."""
    z = [view.float() for view in comparing.views()]
    layout, kernel = contraport.Joint(), contraport.Gibbs("cosine", 0.5)
    (block,) = layout(*z)

    def vectors():
        plans = constraint(block.build_geometry(kernel), PlanRequest(bidirectional=True))
        parts = [
            [plan.f, plan.g, plan.cached_log_row_mass, plan.cached_log_column_mass, plan.log_target_row_marginal,
             plan.log_target_column_marginal, plan.log_row_mass(), plan.log_column_mass()]
            for plan in plans
        ]  # fmt: skip
        return [part for each in parts for part in each if part is not None]

    expected = [part.clone() for part in vectors()]
    for part in vectors():
        if part.is_contiguous():
            part.numpy()[...] = 7
    for part, before in zip(vectors(), expected, strict=True):
        assert torch.equal(part, before)
