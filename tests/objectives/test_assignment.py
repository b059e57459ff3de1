"""Approximate assignment against SciPy on the whole matrix, on known permutations and on degenerate points."""

import math
import sys
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error

import contraport
from contraport import Exact, Gibbs, approximate_assignment, transport
from contraport.objectives import auction, large_assignment

optimize = pytest.importorskip("scipy.optimize", reason="SciPy is not installed")
refine = partial(approximate_assignment, auction_size=0)
SOLVERS = {"auction": approximate_assignment, "refinement": refine}
COSTS = ["sqeuclidean", "cosine", "negative-cosine", "chordal", "dot"]


def points(n=300, d=4, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(n, d, dtype=dtype, generator=generator) for _ in range(2))
    return x, 0.5 * y + torch.tensor([3.0] + [0.0] * (d - 1), dtype=dtype)


def costs_of_all_pairs(x, y, cost):
    """Return the costs of all pairs by the kernel, (n, n), in double precision."""
    return -Gibbs(cost, 1.0)(x.double(), y.double()).dense()


def lowest_cost(x, y, cost="sqeuclidean"):
    matrix = costs_of_all_pairs(x, y, cost).numpy()
    return matrix[optimize.linear_sum_assignment(matrix)].mean()


def is_permutation(result, n):
    return result.partners.dtype == torch.int64 and result.partners.sort().values.tolist() == list(range(n))


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("n", [1, 2, 3, 200])
def test_is_exact_up_to_the_block_size(cost, n):
    x, y = points(n)
    result = approximate_assignment(x, y, cost, block_size=200)
    matrix = costs_of_all_pairs(x, y, cost)
    assert is_permutation(result, n)
    torch.testing.assert_close(result.row_cost, matrix[torch.arange(n), result.partners])
    assert result.mean_cost == pytest.approx(lowest_cost(x, y, cost), rel=1e-12)
    assert len(result.mean_cost_by_pass) == 1
    assert result.gap == 0


def test_cost_is_that_of_exact_transport():
    x, y = points(60)
    exact = transport(x, y, Gibbs("sqeuclidean", 1.0), Exact())
    assert approximate_assignment(x, y).mean_cost == pytest.approx(exact.cost.item(), rel=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize(("n", "block_size"), [(601, 150), (1000, 100), (7, 2)])
def test_is_a_permutation_of_nearly_the_lowest_cost(solver, cost, n, block_size):
    x, y = points(n)
    result = SOLVERS[solver](x, y, cost, block_size=block_size)
    least = lowest_cost(x, y, cost)
    assert is_permutation(result, n)
    if block_size > 2:
        assert 0 <= result.mean_cost - least < 0.01 * abs(least) + 1e-12
    if solver == "auction":
        assert result.mean_cost - least <= result.gap + 1e-9 * abs(least)
    else:
        assert result.gap is None


def test_random_points_in_many_dimensions():
    """Points without clusters, the hardest case: the excess is below 3 percent."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 1500, 32, generator=generator)
    result = refine(x, y, block_size=300)
    assert result.mean_cost < 1.03 * lowest_cost(x, y)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finds_a_permutation_of_the_same_points(solver, dtype):
    x, _ = points(2000, dtype=dtype)
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(1))
    result = SOLVERS[solver](x, x[order], block_size=250)
    assert result.mean_cost == 0
    assert torch.equal(order[result.partners], torch.arange(2000))


def test_passes_never_raise_the_cost():
    x, y = points(1500, 16)
    result = refine(x, y, block_size=100, passes=12)
    costs = result.mean_cost_by_pass
    assert len(costs) == 13
    assert all(after <= before for before, after in pairwise(costs))
    assert costs[-1] < 0.98 * costs[0]
    assert result.mean_cost == pytest.approx((x - y[result.partners]).square().sum(1).mean().item(), rel=1e-12)


def test_a_block_of_higher_cost_is_not_accepted(monkeypatch):
    monkeypatch.setattr(large_assignment, "_least_cost_partners", lambda _, x, y: torch.arange(len(x)).flip(0))
    x, y = points(600)
    costs = refine(x, y, block_size=100, passes=5).mean_cost_by_pass
    assert all(after <= before for before, after in pairwise(costs))


def test_fewer_passes_are_the_first_of_more():
    x, y = points(600)
    more = refine(x, y, block_size=100, passes=5)
    for passes in (0, 2):
        fewer = refine(x, y, block_size=100, passes=passes)
        assert fewer.mean_cost_by_pass == more.mean_cost_by_pass[: passes + 1]


def test_passes_end_when_one_lowers_no_cost():
    x, _ = points(600)
    result = refine(x, x + 1, block_size=100, passes=1000)
    assert len(result.mean_cost_by_pass) < 10
    assert result.mean_cost_by_pass[-1] == result.mean_cost_by_pass[-2]


def test_the_seed_determines_the_assignment():
    x, y = points(900, 16)
    first, again, other = (refine(x, y, block_size=100, passes=2, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.partners, again.partners)
    assert not torch.equal(first.partners, other.partners)
    state = torch.get_rng_state()
    refine(x, y, block_size=100, passes=2)
    assert torch.equal(torch.get_rng_state(), state)


def test_cost_hardly_depends_on_the_order_of_the_points():
    x, y = points(1200)
    generator = torch.Generator().manual_seed(2)
    shuffled = x[torch.randperm(1200, generator=generator)], y[torch.randperm(1200, generator=generator)]
    costs = [approximate_assignment(*pair, block_size=200).mean_cost for pair in ((x, y), shuffled, (y, x))]
    assert max(costs) < 1.005 * min(costs)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("scale", [1e-18, 1e18, 1e37])
def test_scale_does_not_matter(solver, scale):
    """In single precision, where products would overflow or vanish."""
    x, y = points(500, dtype=torch.float32)
    expected = SOLVERS[solver](x, y, block_size=100).mean_cost
    result = SOLVERS[solver](scale * x, scale * y, block_size=100)
    assert result.mean_cost / scale**2 == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize("solver", SOLVERS)
def test_single_precision_far_from_the_origin(solver):
    x, y = points(500, dtype=torch.float32)
    x, y = x + 1e5, y + 1e5
    result = SOLVERS[solver](x, y, block_size=100)
    assert result.mean_cost < 1.01 * lowest_cost(x - x.double().mean(0), y - x.double().mean(0))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("cost", COSTS)
def test_equal_points(solver, cost):
    x = torch.ones(50, 3)
    result = SOLVERS[solver](x, x, cost, block_size=8)
    assert is_permutation(result, 50)
    assert result.mean_cost == pytest.approx(costs_of_all_pairs(x, x, cost)[0, 0].item(), abs=1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("cost", COSTS)
def test_points_at_the_origin(solver, cost):
    x = torch.zeros(50, 3)
    assert SOLVERS[solver](x, x, cost, block_size=8).mean_cost == (1 if cost == "cosine" else 0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_many_copies_of_few_points(solver):
    x = torch.eye(4).repeat(100, 1)
    y = x[torch.randperm(400, generator=torch.Generator().manual_seed(0))]
    result = SOLVERS[solver](x, y, block_size=32)
    assert is_permutation(result, 400)
    assert result.mean_cost == 0


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(solver, dtype):
    x, y = points(300, dtype=dtype)
    result = SOLVERS[solver](x, y, block_size=100)
    assert result.row_cost.dtype == torch.float64
    assert result.mean_cost < 1.01 * lowest_cost(x.double(), y.double())


def test_has_no_gradient_and_ignores_autocast():
    x, y = points(300, dtype=torch.float32)
    expected = approximate_assignment(x, y, block_size=100)
    with torch.autocast("cpu"):
        result = approximate_assignment(x.requires_grad_(), y, block_size=100)
    assert torch.equal(result.partners, expected.partners)
    assert not result.row_cost.requires_grad


def test_inputs_are_not_modified():
    x, y = points(300)
    before = x.clone(), y.clone()
    approximate_assignment(x, y, "cosine", block_size=100)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


def test_accepts_views_of_tensors():
    x, y = points(300)
    expected = approximate_assignment(x, y, block_size=100)
    result = approximate_assignment(x.T.contiguous().T, torch.stack([y, y])[1], block_size=100)
    assert result.mean_cost == pytest.approx(expected.mean_cost, rel=0.01)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e200])
@pytest.mark.parametrize("name", ["x", "y"])
def test_rejects_values_out_of_range(name, number):
    options = dict(zip("xy", points(5), strict=True))
    options[name][3, 1] = number
    with raises_usage_error(f"{name}.invalid", f"{number:.9g}"):
        approximate_assignment(**options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tolerance", [1, 0.1, 1e-3])
def test_the_gap_of_an_auction_bounds_its_excess_and_is_within_the_tolerance(tolerance, dtype):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 800, 32, generator=generator, dtype=dtype)
    result = approximate_assignment(x, y, block_size=100, tolerance=tolerance)
    least = lowest_cost(x, y)
    assert -1e-9 * least <= result.mean_cost - least <= result.gap <= tolerance * result.mean_cost
    # a gap above rounding, so that the bound is not trivial
    assert result.gap > 0.05 * tolerance * result.mean_cost


def test_a_smaller_tolerance_lowers_the_cost():
    x, y = torch.randn(2, 800, 32, generator=torch.Generator().manual_seed(0))
    costs = [approximate_assignment(x, y, block_size=100, tolerance=t).mean_cost for t in (1, 0.1, 0.01)]
    assert all(after < before for before, after in pairwise(costs))


def test_an_auction_on_random_points_in_many_dimensions_is_within_a_thousandth():
    """The local passes alone leave an excess of percents."""
    x, y = torch.randn(2, 1500, 32, generator=torch.Generator().manual_seed(0))
    assert approximate_assignment(x, y, block_size=300).mean_cost < 1.001 * lowest_cost(x, y)


def test_the_seed_determines_the_auction():
    x, y = torch.randn(2, 600, 16, generator=torch.Generator().manual_seed(0))
    first, again, other = (approximate_assignment(x, y, block_size=100, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.partners, again.partners)
    assert not torch.equal(first.partners, other.partners)


def test_auction_allocates_no_matrix_of_all_pairs(monkeypatch):
    """Values are computed for blocks of rows."""
    monkeypatch.setattr(auction, "ROWS_PER_BLOCK", 64)
    shapes, product = [], auction.Auction._update_shortlists_and_bounds

    def spy(self, rows):
        values = self.values
        self.values = lambda part: shapes.append(len(part)) or values(part)
        product(self, rows)
        self.values = values

    monkeypatch.setattr(auction.Auction, "_update_shortlists_and_bounds", spy)
    x, y = points(500)
    approximate_assignment(x, y, block_size=100)
    assert 0 < max(shapes) <= 64


@pytest.mark.parametrize("is_structured", [False, True])
def test_exact_assignment_starts_with_an_auction(is_structured, monkeypatch):
    monkeypatch.setattr(auction, "_MAX_ROWS_WITHOUT_AUCTION", 50)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 300, 8, generator=generator, dtype=torch.float64)
    costs = torch.cdist(x, x + 0.3 * y if is_structured else y).square().numpy()
    columns, f, g = auction.solve_assignment_and_potentials(optimize.linear_sum_assignment, costs)
    expected = optimize.linear_sum_assignment(costs)[1]
    assert (columns == expected).all()
    slack = costs - f[:, None] - g
    assert slack.min() > -1e-9
    assert abs(slack[range(300), columns]).max() < 1e-9
    assert f.sum() + g.sum() == pytest.approx(costs[range(300), columns].sum(), rel=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0, -3e5])
def test_exact_assignment_of_equal_costs(value, monkeypatch):
    monkeypatch.setattr(auction, "_MAX_ROWS_WITHOUT_AUCTION", 1)
    columns, f, g = auction.solve_assignment_and_potentials(optimize.linear_sum_assignment, np.full((80, 80), value))
    assert sorted(columns) == list(range(80))
    assert f[:, None] + g == pytest.approx(np.full((80, 80), value))


def test_exact_assignment_avoids_forbidden_pairs(monkeypatch):
    monkeypatch.setattr(auction, "_MAX_ROWS_WITHOUT_AUCTION", 1)
    costs = np.array([[1.0, 2.0, math.inf], [1.0, 5.0, 1.0], [math.inf, math.inf, 3.0]])
    columns, f, g = auction.solve_assignment_and_potentials(optimize.linear_sum_assignment, costs)
    assert columns.tolist() == [1, 0, 2]
    assert (f[:, None] + g <= costs + 1e-12).all()


POINTS = torch.ones(5, 3)


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        ((POINTS, POINTS[:4]), "y.shape", (4, 3)),
        ((POINTS, torch.ones(5, 2)), "y.shape", (5, 2)),
        ((POINTS[:0], POINTS[:0]), "x.invalid", (0, 3)),
        ((POINTS[:, :0], POINTS[:, :0]), "x.invalid", (5, 0)),
        ((POINTS[0], POINTS), "x.invalid", (3,)),
        ((POINTS, POINTS[None]), "y.invalid", (1, 5, 3)),
        ((POINTS.int(), POINTS), "x.invalid", "int32"),
        ((POINTS, POINTS.bool()), "y.invalid", "bool"),
        ((POINTS * 1j, POINTS), "x.invalid", "complex64"),
        ((POINTS.numpy(), POINTS), "x.invalid", "float32"),
        ((POINTS.tolist(), POINTS), "x.invalid", "list"),
        ((POINTS.to_sparse(), POINTS), "x.sparse", "sparse"),
        ((POINTS.to("meta"), POINTS), "x.device", "meta"),
        ((POINTS, POINTS, "euclidean"), "cost.unknown", "sqeuclidean"),
        ((POINTS, POINTS, torch.cdist), "cost.unknown", "cdist"),
    ],
)
def test_rejects_invalid_points_and_costs(arguments, code, value):
    with raises_usage_error(code, value):
        approximate_assignment(*arguments)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_size", 1),
        ("block_size", 2.5),
        ("passes", -1),
        ("passes", True),
        ("seed", 0.5),
        ("seed", None),
        ("auction_size", -1),
        ("auction_size", 1e4),
        ("tolerance", 0),
        ("tolerance", 1.5),
        ("tolerance", "small"),
        ("tolerance", math.nan),
    ],
)
def test_rejects_invalid_options(name, value):
    with raises_usage_error(f"{name}.invalid", value):
        approximate_assignment(POINTS, POINTS, **{name: value})


def test_names_the_extra_without_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with raises_usage_error("missing_package", "contraport[train]"):
        approximate_assignment(POINTS, POINTS)


def test_repr():
    x, y = points(30)
    assert repr(approximate_assignment(x, x)) == "Assignment(n=30, mean_cost=0, passes=0)"
    assert isinstance(approximate_assignment(x, y), contraport.Assignment)
