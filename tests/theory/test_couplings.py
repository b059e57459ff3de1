"""Couplings1D on a line, against POT and SciPy."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from tests.errors import raises_usage_error

from contraport.theory import compute_couplings_1d


def distributions(n=9, m=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, generator=generator) + 0.1, torch.rand(m, generator=generator) + 0.1


def test_exact_coupling_matches_the_monotone_one():
    a, b = distributions()
    x, y = torch.rand(9, generator=torch.Generator().manual_seed(1)), torch.linspace(-1, 2, 7)
    result = compute_couplings_1d(a, b, x=x, y=y, temperatures=[1.0], iterations=[])
    a, b = (v.double().numpy() / v.double().sum().item() for v in (a, b))
    expected = ot.emd_1d(x.double().numpy(), y.double().numpy(), a, b, metric="sqeuclidean")
    np.testing.assert_allclose(result.exact.plan, expected, atol=1e-12)
    assert result.exact.cost == pytest.approx(ot.emd2_1d(x.numpy(), y.numpy(), a, b, metric="sqeuclidean"))
    assert result.exact.marginal_error < 1e-12


def test_equal_masses_solve_the_assignment_problem():
    x, y = torch.rand(2, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    result = compute_couplings_1d(torch.ones(6), torch.ones(6), x=x, y=y, temperatures=[1.0], iterations=[])
    cost = np.square(x.numpy()[:, None] - y.numpy())
    rows, columns = linear_sum_assignment(cost)
    assert result.exact.cost == pytest.approx(cost[rows, columns].mean())
    assert result.exact.entropy == pytest.approx(np.log(6))


@pytest.mark.parametrize("temperature", [0.01, 0.1, 10.0])
def test_entropic_couplings_match_pot(temperature):
    a, b = distributions()
    result = compute_couplings_1d(a, b, temperatures=[temperature], iterations=[1, 3])
    a, b = (v.double().numpy() / v.double().sum().item() for v in (a, b))
    cost = np.square(np.linspace(0, 1, 9)[:, None] - np.linspace(0, 1, 7))
    expected = ot.sinkhorn(a, b, cost, temperature, method="sinkhorn_log", stopThr=1e-13, numItermax=100_000)
    one = result.by_temperature[temperature]
    np.testing.assert_allclose(one.plan, expected, atol=1e-7)
    assert one.cost == pytest.approx((expected * cost).sum(), abs=1e-7)
    assert one.entropy == pytest.approx(-(expected * np.log(expected)).sum(), abs=1e-5)


def test_few_iterations_match_a_plain_sinkhorn_loop():
    a, b = distributions()
    result = compute_couplings_1d(a, b, temperatures=[0.02], iterations=[1, 3])
    a, b = (v.double().numpy() / v.double().sum().item() for v in (a, b))
    kernel = np.exp(-np.square(np.linspace(0, 1, 9)[:, None] - np.linspace(0, 1, 7)) / 0.02)
    right = np.ones(7)
    for iteration in range(1, 4):
        left = a / (kernel @ right)
        right = b / (kernel.T @ left)
        if (coupling := result.lowest_temperature_coupling_by_iterations.get(iteration)) is not None:
            plan = left[:, None] * kernel * right
            np.testing.assert_allclose(coupling.plan, plan, rtol=1e-9)
            assert coupling.marginal_error == pytest.approx(np.abs(plan.sum(1) - a).sum())
            assert coupling.iterations == iteration


def test_higher_temperature_raises_cost_and_entropy_up_to_the_product():
    a, b = distributions()
    result = compute_couplings_1d(a, b, temperatures=[0.005, 0.05, 0.5, 1e4], iterations=[1, 2, 4])
    couplings = [result.exact, *result.by_temperature.values()]
    assert [one.cost for one in couplings] == sorted(one.cost for one in couplings)
    assert [one.entropy for one in couplings] == sorted(one.entropy for one in couplings)
    iterations = [one.iterations for one in result.by_temperature.values()]
    assert iterations == sorted(iterations, reverse=True)
    torch.testing.assert_close(couplings[-1].plan, result.a[:, None] * result.b, atol=1e-5, rtol=0)
    errors = [one.marginal_error for one in result.lowest_temperature_coupling_by_iterations.values()]
    assert errors == sorted(errors, reverse=True)


def test_the_figure_shows_every_coupling(tmp_path):
    figure = compute_couplings_1d(*distributions(), temperatures=[0.1, 1.0], iterations=[1]).figure()
    labels = [ax.get_xlabel().split("\n")[0] for ax in figure.axes]
    assert labels == ["exact", "temperature 0.1", "temperature 1", "1 iteration at 0.1"]
    figure.savefig(tmp_path / "figure.png")


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda a, b: compute_couplings_1d(-a, b), "a.invalid"),
        (lambda a, b: compute_couplings_1d(a, b[None]), "b.shape"),
        (lambda a, b: compute_couplings_1d(a, b, temperatures=[]), "temperatures.missing"),
        (lambda a, b: compute_couplings_1d(a, b, temperatures=[0.0]), "temperatures.invalid"),
        (lambda a, b: compute_couplings_1d(a, b, iterations=[0]), "iterations.invalid"),
        (lambda a, b: compute_couplings_1d(a, b, x=b), "x.shape"),
    ],
)
def test_rejects_invalid_arguments(call, code):
    with raises_usage_error(code):
        call(*distributions())
