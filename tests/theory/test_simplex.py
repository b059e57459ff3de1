"""Linear program over the triangle against solvers of SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from tests.errors import raises_usage_error

from contraport.theory import solve_entropic_program

COSTS = (0.4, -0.2, 0.9)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
def test_solution_minimizes_cost_minus_entropy(temperature):
    result = solve_entropic_program(COSTS, [temperature])

    def height(p):
        p = np.clip(p, 1e-300, None)
        return p @ COSTS + temperature * (p * np.log(p)).sum()

    total = {"type": "eq", "fun": lambda p: p.sum() - 1}
    best = minimize(height, np.full(3, 1 / 3), bounds=[(0, 1)] * 3, constraints=total, options={"ftol": 1e-15})
    np.testing.assert_allclose(result.solutions[0], best.x, atol=1e-4)
    assert float(result.expected_costs[0] - temperature * result.entropies[0]) == pytest.approx(best.fun, abs=1e-9)


def test_optimum_matches_the_linear_program():
    result = solve_entropic_program(COSTS, [1e-3])
    best = linprog(COSTS, A_eq=[[1, 1, 1]], b_eq=[1])
    np.testing.assert_allclose(result.unregularized_solution, best.x)
    np.testing.assert_allclose(result.solutions[0], best.x, atol=1e-9)
    tied = solve_entropic_program((1.0, 0.0, 0.0), [1e-3])
    torch.testing.assert_close(tied.solutions[0], tied.unregularized_solution)
    assert tied.unregularized_solution.tolist() == [0, 0.5, 0.5]


def test_optimum_moves_inwards_as_the_temperature_grows():
    result = solve_entropic_program(COSTS)
    assert (result.temperatures.diff() > 0).all()
    for growing in (result.smallest_masses, result.expected_costs, result.entropies):
        assert (growing.diff()[10:] > 0).all()
        assert (growing.diff() >= 0).all()
    assert (result.solutions > 0).all()
    assert result.entropies[-1].item() == pytest.approx(math.log(3), abs=0.01)


def test_temperatures_are_sorted():
    assert solve_entropic_program(COSTS, [2.0, 1.0]).temperatures.tolist() == [1.0, 2.0]


def test_figure_is_drawn(tmp_path):
    figure = solve_entropic_program(COSTS).figure()
    assert figure.axes[0].get_title() == "linear program"
    assert len(figure.axes) == 4
    figure.savefig(tmp_path / "figure.png")
    solve_entropic_program(COSTS, [1.0]).figure().savefig(tmp_path / "one.png")


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: solve_entropic_program((1.0, 2.0)), "costs.invalid"),
        (lambda: solve_entropic_program((1.0, 2.0, math.nan)), "costs.invalid"),
        (lambda: solve_entropic_program(COSTS, []), "temperatures.missing"),
        (lambda: solve_entropic_program(COSTS, [-1.0]), "temperatures.invalid"),
    ],
)
def test_rejects_invalid_arguments(call, code):
    with raises_usage_error(code):
        call()
