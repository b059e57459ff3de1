"""Kernel target plans against the same targets as dense matrices."""

import pytest
import torch
from tests.objectives.comparing import views

from contraport.engine import Geometry, Gibbs, LabelExclusion, StudentT
from contraport.objectives.targets.feature_targets import KernelTargetPlan
from contraport.objectives.targets.target import DenseTargetPlan


@pytest.fixture(params=[1 << 20, 12], ids=["whole", "in blocks"], autouse=True)
def blocks(request, monkeypatch):
    monkeypatch.setattr("contraport.engine.autograd_utilities.MAX_BLOCK_PAIRS", request.param)


@pytest.fixture(params=[Gibbs("cosine", 0.3), StudentT(2.0)], ids=repr)
def kernel_and_dense_target(request):
    """Kernel target with an empty row, and the same target as a matrix."""
    x, y = views(7, 3, seed=1)
    rows = torch.arange(7)
    everything = LabelExclusion((torch.where(rows == 4, 1, 0), torch.ones_like(rows)))  # of row 4
    masks = LabelExclusion((rows, rows)), everything
    target = KernelTargetPlan.with_uniform_row_masses(Geometry(request.param(x, y), masks))
    kernel = request.param(x, y).dense().exp() * ~masks[0].dense() * ~everything.dense()
    mass = kernel.sum(1, keepdim=True)
    return target, DenseTargetPlan(kernel / torch.where(mass > 0, mass, 1) / 7)


def assert_same(target, matrix):
    y = torch.randn(matrix.matrix.shape[1], 2, dtype=torch.float64)
    for compute in (lambda t: t.dense(), lambda t: t.row_mass(), lambda t: t.row_negative_entropy(),
               lambda t: t.row_squared_norm(), lambda t: t.apply(y), lambda t: t.apply(y[:, 0])):  # fmt: skip
        torch.testing.assert_close(compute(target), compute(matrix))


def test_equals_the_dense_matrix(kernel_and_dense_target):
    target, matrix = kernel_and_dense_target
    assert_same(target, matrix)
    assert_same(target.T, DenseTargetPlan(matrix.matrix.T))
    assert_same(target.take_rows(slice(2, 6)), matrix.take_rows(slice(2, 6)))
    factors = torch.arange(7.0, dtype=torch.float64)
    assert_same(target.scale_rows(factors), matrix.scale_rows(factors))
    assert_same(target.append_columns(3), matrix.append_columns(3))


def test_gradients_of_any_order(kernel_and_dense_target):
    target, matrix = kernel_and_dense_target
    z = torch.randn(7, 2, dtype=torch.float64, requires_grad=True)
    seed = torch.randn(7, 2, dtype=torch.float64)

    def orders(target):
        value = (target.apply(z.square()).sin() * seed).sum()
        (slope,) = torch.autograd.grad(value, z, create_graph=True)
        return slope, torch.autograd.grad((slope * seed).sum(), z)[0]

    for result, expected in zip(orders(target), orders(matrix), strict=True):
        torch.testing.assert_close(result, expected)


def test_extra_columns_have_no_gradient(kernel_and_dense_target):
    target, matrix = (one.append_columns(3) for one in kernel_and_dense_target)
    z = torch.randn(10, 2, dtype=torch.float64, requires_grad=True)
    result, expected = (torch.autograd.grad(one.apply(z).sin().sum(), z)[0] for one in (target, matrix))
    torch.testing.assert_close(result, expected)
    assert not result[7:].any()
