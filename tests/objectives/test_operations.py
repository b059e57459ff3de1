"""Number of operations of a call, which determines its time at small batches; from the second call on."""

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


class OperationCounter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls[str(function)] += 1
        return function(*args, **(kwargs or {}))


def count_operations(function, *z):
    """Return the numbers of operations of the second call and of its gradient."""
    for _ in range(2):
        z = [v.detach().requires_grad_() for v in z]
        with OperationCounter() as forward:
            value = function(*z)
        with OperationCounter() as backward:
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
    num_forward, num_backward = count_operations(lambda *z: loss(*z, **attributes), z0, z1)
    assert num_forward <= forward
    assert num_backward <= backward


def test_operation_counts_of_plain_cross_entropy():
    x, y = torch.randn(2, ROWS, 16)
    expected = torch.arange(ROWS)
    num_forward, num_backward = count_operations(
        lambda x, y: F.cross_entropy(F.normalize(x, dim=1) @ F.normalize(y, dim=1).T / 0.1, expected), x, y
    )
    assert 10 <= num_forward <= 20
    assert 25 <= num_backward <= 50


def test_results_cached_in_inference_mode_serve_gradients():
    """Results cached in inference mode serve calls with gradients."""
    z0, z1 = torch.randn(2, 37, 4)
    loss = contraport.gca_ince()
    with torch.inference_mode():
        value = loss(z0, z1)
    leaf = z0.clone().requires_grad_()
    again = loss(leaf, z1)
    again.backward()
    assert torch.equal(value, again.detach())
    assert leaf.grad.isfinite().all()


def reachable_tensors(part, visited):
    """Yield the tensors without a gradient that are reachable from a part of a plan with its target."""
    if id(part) in visited:
        return
    visited.add(id(part))
    if isinstance(part, torch.Tensor):
        if not part.requires_grad:
            yield part
    elif isinstance(part, (tuple, list)):
        for each in part:
            yield from reachable_tensors(each, visited)
    elif dataclasses.is_dataclass(part):
        yield from reachable_tensors([getattr(part, each.name) for each in dataclasses.fields(part)], visited)


SETTINGS = {"direct-clr": {"dimensions": 3}}
SINGLE_OBJECTIVES = [
    name
    for name in OBJECTIVES
    if isinstance(contraport.objective(name, **SETTINGS.get(name, {})), contraport.Objective)
]
"""Names of objectives that are not sums of others."""


@pytest.mark.parametrize("name", SINGLE_OBJECTIVES)
def test_writing_to_results_changes_no_later_call(name):
    """Tensors of plans, targets and blocks are overwritten."""
    z, attributes, settings = comparing.views(), comparing.required_attributes(name), SETTINGS.get(name, {})
    expected = comparing.build(name, **settings)(*z, **attributes)
    own = {tensor.untyped_storage().data_ptr() for tensor in [*z, *attributes.values()]}
    for outcome in comparing.build(name, **settings).iterate_plans_with_targets(*z, **attributes):
        for tensor in list(reachable_tensors(outcome, set())):
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
    """Vectors of a plan are overwritten through NumPy arrays; a new plan has the same values as before."""
    z = [view.float() for view in comparing.views()]
    layout, kernel = contraport.Joint(), contraport.Gibbs("cosine", 0.5)
    (block,) = layout(*z)

    def vectors():
        plans = constraint(block.build_geometry(kernel), PlanRequest(bidirectional=True))
        parts = [
            [plan.f, plan.g, plan.cached_log_row_mass, plan.cached_log_column_mass, plan.log_prescribed_row_marginal,
             plan.log_prescribed_column_marginal, plan.log_row_mass(), plan.log_column_mass()]
            for plan in plans
        ]  # fmt: skip
        return [part for each in parts for part in each if part is not None]

    expected = [part.clone() for part in vectors()]
    for part in vectors():
        if part.is_contiguous():
            part.numpy()[...] = 7
    for part, before in zip(vectors(), expected, strict=True):
        assert torch.equal(part, before)
