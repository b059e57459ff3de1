"""Tsallis plans over all orders and temperatures, in single precision too (order 1 is `Rows` and `Simplex`).

The reference finds the threshold by bisection of the logarithm of its distance from the largest logit, in double
precision on the whole matrix.
"""

import math

import pytest
import torch
from tests.errors import raises_usage_error
from tests.objectives import formulas
from torch.nn import functional as F

import contraport as cp
from contraport.engine import Geometry, Gibbs, LabelExclusion

ORDERS = (-5, -4, -2.5, -1, 0, 0.5, 0.9, 0.9999, 1.0001, 1.1, 1.5, 2)
TEMPERATURES = (1e-3, 1e-2, 0.1, 1, 10, 100)
ROWS = 6


def shares(logits, order):
    """Return the plan whose rows add up to 1, (N, M), by bisection."""
    largest, slope = logits.amax(1, keepdim=True), order - 1

    def log_weights(log_gap):
        if order < 1:
            return torch.log(-slope * (log_gap.exp() + largest - logits)) / slope
        return torch.log((slope * (log_gap.exp() - (largest - logits))).clamp_min(0)) / slope

    low = torch.full_like(largest, -40)
    high = torch.full_like(largest, math.log(1 / abs(slope)) + max(0, -slope) * math.log(logits.shape[1]))
    for _ in range(200):
        middle = (low + high) / 2
        heavy = log_weights(middle).logsumexp(1, keepdim=True) > 0
        rise = heavy if order < 1 else ~heavy
        low, high = torch.where(rise, middle, low), torch.where(rise, high, middle)
    return log_weights((low + high) / 2).softmax(1)


def unit_rows(n, d=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(n, d, generator=generator, dtype=torch.float64)).float()


@pytest.mark.parametrize("columns", [17, 256, 4096])
@pytest.mark.parametrize("order", ORDERS)
def test_single_precision_is_as_accurate_as_its_logits(order, columns):
    x, y = unit_rows(ROWS), unit_rows(columns, seed=1)
    cost = 1 - F.normalize(x.double()) @ F.normalize(y.double()).T
    for temperature in TEMPERATURES:
        exact = shares(-cost / temperature, order)
        (plan,) = cp.Tsallis(order, regularizes_row_shares=True)(Geometry(Gibbs("cosine", temperature)(x, y)))
        result = ROWS * plan.dense().double()
        torch.testing.assert_close(result.sum(1), torch.ones(ROWS).double(), rtol=0, atol=4e-6)
        # rounded logits change a sharp plan
        loss = 2e-6 * (1 + 0.1 / temperature)
        torch.testing.assert_close(result / exact.amax(), exact / exact.amax(), rtol=0, atol=2 * loss)
        for requires_grad in (True, False):
            expected = (exact * cost).sum(1)
            torch.testing.assert_close(
                ROWS * plan.row_cost(detach_plan=requires_grad).double(), expected, rtol=2 * loss, atol=1e-7
            )


@pytest.mark.parametrize("backend", ["dense", "stored", "streamed"])
@pytest.mark.parametrize("over", ["rows", "simplex"])
@pytest.mark.parametrize("order", ORDERS)
def test_gradients_in_single_precision_are_those_in_double(order, over, backend):
    labels = torch.arange(40)
    for temperature in (0.1, 1, 100):
        slopes = []
        for dtype in (torch.float32, torch.float64):
            x = unit_rows(40, 8).to(dtype).requires_grad_()
            with cp.engine.backend(backend):
                geometry = Geometry(Gibbs("cosine", temperature)(x, x), (LabelExclusion((labels, labels)),))
                (plan,) = cp.Tsallis(order, mass_constraint=over)(geometry)
                values = [plan.row_cost(detach_plan=True).sum(), plan.row_cost(detach_plan=False).sum()]
                if order < 1:
                    values.append(plan.log_at(labels, labels.roll(1)).sum())
                slopes.append([torch.autograd.grad(v, x, retain_graph=True)[0].double() for v in values])
        for single, double in zip(*slopes, strict=True):
            torch.testing.assert_close(single, double, rtol=0, atol=1e-4 * double.abs().amax().item())


@pytest.mark.parametrize("gamma", [2, 3, 3.5, 5])
@pytest.mark.parametrize("n", [17, 256])
def test_inverse_weights_of_alpha_cl_in_single_precision(n, gamma):
    # rows with different numbers of negatives, and so with distant thresholds
    ids = torch.arange(n).masked_fill(torch.arange(n) < n // 4, 0)
    z0, z1 = unit_rows(n, seed=2), unit_rows(n, seed=3)
    for attributes in ({}, {"ids": ids}):
        settings = {"temperature": 0.1, "regularizer": "inverse", "gamma": gamma}
        value = cp.alpha_cl(**settings)(z0, z1, **attributes)
        expected = formulas.alpha_cl(z0.double(), z1.double(), **settings, **attributes)
        torch.testing.assert_close(value.double(), expected, rtol=5e-6, atol=3e-6)


def test_rejects_an_order_whose_thresholds_overflow():
    z0, z1 = unit_rows(64, seed=2), unit_rows(64, seed=3)
    loss = cp.alpha_cl(regularizer="inverse", gamma=30)
    with raises_usage_error("order.range", "-29"):
        loss(z0, z1)
    assert loss(z0.double(), z1.double()).isfinite()


@pytest.mark.parametrize("order", [2, 0.5])
def test_a_transposed_plan_keeps_its_costs(order):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(size, 3, dtype=torch.float64, generator=generator) for size in (5, 7))
    geometry = Geometry(Gibbs("sqeuclidean", 2.0)(x, y))
    (plan,) = cp.Tsallis(order)(geometry)
    costs = torch.cdist(x, y).square()
    torch.testing.assert_close(plan.row_cost(detach_plan=False), (plan.dense() * costs).sum(1))
    torch.testing.assert_close(plan.T.row_cost(detach_plan=False), (plan.dense() * costs).sum(0))
    torch.testing.assert_close(plan.T.kernel_log_row_sums(), (-costs / 2).logsumexp(0))
