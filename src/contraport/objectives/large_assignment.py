"""Approximate one-to-one assignment of two large sets of points.

It takes O(n d) memory. Up to some ten thousand points an auction compares all of them. Larger sets are halved together
again and again, until the parts are small enough for an exact assignment. Passes over other blocks of matched pairs
then repair what the halving has separated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from contraport.engine import autocast_disabled, normalize
from contraport.errors import check, check_integer, check_name, import_optional, is_number, type_and_shape
from contraport.objectives.auction import ROWS_PER_BLOCK, STEP_RATIO, Auction
from contraport.objectives.inputs import check_dense_and_not_meta, check_values
from contraport.options import keep_deprecated_attributes
from contraport.seeding import numpy_generator, torch_generator

_PAIRED_COSTS_BY_NAME: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sqeuclidean": lambda x, y: (x - y).square().sum(1),
    "cosine": lambda x, y: 1 - torch.linalg.vecdot(x, y),
    "negative-cosine": lambda x, y: -torch.linalg.vecdot(x, y),
    "chordal": lambda x, y: (x - y).square().sum(1),
    "dot": lambda x, y: -torch.linalg.vecdot(x, y),
}
"""Costs of pairs, (k,), of points (k, d) each. For assignments all are -<x, y> up to a factor and a constant."""


@keep_deprecated_attributes(pass_costs="mean_cost_by_pass", cost="mean_cost")
@dataclass(frozen=True, eq=False, repr=False)
class Assignment:
    """One-to-one assignment of two sets of n points.

    Attributes:
        partners: Index of the partner in y of each point of x, (n,): a permutation.
        row_cost: Cost of each point of x and its partner, (n,), in double precision on the CPU.
        mean_cost_by_pass: Mean cost of a matched pair after the auction or the hierarchical refinement, and after each
            pass that ran.
        gap: Upper bound on the excess over the least mean cost, by dual potentials and up to rounding of the points: 0
            for an exact assignment; None after a hierarchical refinement, which has no bound.
    """

    partners: Tensor
    row_cost: Tensor
    mean_cost_by_pass: tuple[float, ...]
    gap: float | None = None

    @property
    def mean_cost(self) -> float:
        """Mean cost of a matched pair, like `Transport.cost` for masses of 1/n."""
        return self.mean_cost_by_pass[-1]

    def __repr__(self) -> str:
        passes = len(self.mean_cost_by_pass) - 1
        return f"Assignment(n={len(self.partners)}, mean_cost={self.mean_cost:.6g}, passes={passes})"


@torch.no_grad()
def approximate_assignment(
    x: Tensor,
    y: Tensor,
    cost: str = "sqeuclidean",
    *,
    block_size: int = 1000,
    passes: int = 30,
    auction_size: int = 10_000,
    tolerance: float = 0.01,
    seed: int = 0,
) -> Assignment:
    """Assign two sets of points one to one, at nearly the least cost.

    It takes O(n d) memory. Up to `block_size` points the assignment is exact. Up to `auction_size` points an auction
    compares all pairs, in a time that grows with n^2, and `Assignment.gap` bounds the excess. Larger sets are halved
    and improved in passes, each in a time that grows with n. All runs on the CPU. The assignment has no gradient: for
    that of the cost, compute it from x and ``y[partners]``.

    Args:
        x: points, (n, d), of any floating-point type.
        y: as many points, (n, d).
        cost: ``"sqeuclidean"``, ``"cosine"``, ``"negative-cosine"``, ``"chordal"`` or ``"dot"``, as in `Gibbs`.
        block_size: largest number of pairs that are solved exactly at a time, at least 2. With larger blocks a pass
            gains more and takes longer; memory grows with the square.
        passes: largest number of passes that improve the assignment; they end with one that gains nothing. A pass cuts
            the pairs into blocks of near pairs and solves each block exactly, which never raises the cost.
        auction_size: largest number of points for which the auction is used; 0 for none.
        tolerance: largest excess of the auction, as a share of the mean cost, above 0 and at most 1. That is the cost
            by squared distances of points without their mean; for cosines and products, half of it. Measured excesses
            are a tenth or less of it.
        seed: of the random directions along which blocks are cut, and of draws between equal bids, an integer.

    Raises:
        UsageError: points of another shape or type, different numbers of points, values that are not finite, another
            cost or option, or SciPy is missing.

    Source: Halmos, Gold, Liu and Raphael (2025), Hierarchical refinement: optimal transport to infinity and beyond,
    algorithm 1, with two parts at each level. The passes are our addition. Bertsekas (1992), Auction algorithms for
    network flow problems: a tutorial introduction, for the auction.

    >>> import torch
    >>> x = torch.randn(3000, 8, generator=torch.Generator().manual_seed(0))
    >>> shuffled = torch.randperm(3000, generator=torch.Generator().manual_seed(1))
    >>> result = approximate_assignment(x, x[shuffled])
    >>> bool((shuffled[result.partners] == torch.arange(3000)).all()), result.mean_cost
    (True, 0.0)
    """
    check_name("cost", cost, _PAIRED_COSTS_BY_NAME)
    check_integer("block_size", block_size, 2)
    check_integer("passes", passes, 0)
    check_integer("auction_size", auction_size, 0)
    good = is_number(tolerance) and 0 < tolerance <= 1
    check(good, f"tolerance: must be a number above 0 and at most 1, got {tolerance!r}.")
    generator = torch_generator("assignment.directions", seed)
    _check_points(x, y)
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    device, (x, y) = x.device, (points.detach().to("cpu", dtype) for points in (x, y))
    with autocast_disabled(x):
        if cost in ("cosine", "negative-cosine", "chordal"):
            x, y = normalize(x), normalize(y)
        # Scale and origins do not change which assignment is best. Products of the points themselves could overflow,
        # and far from the origin they lose digits. A power of two divides without rounding.
        largest = max(x.abs().amax().item(), y.abs().amax().item())
        scale = 2.0 ** (math.frexp(largest)[1] - 1)
        u, v = (points / scale - (points / scale).mean(0) for points in (x, y))
        if block_size < len(x) <= auction_size:
            auction = _build_solved_auction(u, v, tolerance, numpy_generator("assignment.bids", seed))
            partners = torch.from_numpy(auction.partners)
            row_cost = _paired_costs(cost, x, y[partners])
            # Squared distances contain -2 <x, y>, the other costs -<x, y>.
            gap = _mean_gap(auction, u, v) * scale**2 * (2 if cost in ("sqeuclidean", "chordal") else 1)
            return Assignment(partners.to(device), row_cost, (float(row_cost.mean()),), gap)
        assignment = _assign_hierarchically_and_improve((x, y), (u, v), cost, block_size, passes, generator)
    return replace(assignment, partners=assignment.partners.to(device))


def _check_points(x: Tensor, y: Tensor) -> None:
    """Raise `UsageError` unless x and y are floating-point tensors of equal shape."""
    for name, points in (("x", x), ("y", y)):
        good = isinstance(points, Tensor) and points.ndim == 2 and points.numel() > 0 and points.is_floating_point()
        check(good, f"{name}: must be a floating-point tensor of points, (n, d), got {type_and_shape(points)}.")
        check_dense_and_not_meta(name, points, torch.device("cpu"))
        check_values(name, points, points.abs() < 1e150, "finite and below 1e150 in size")  # squares are in range
    message = f"y: must have the shape of x, {tuple(x.shape)}, got {tuple(y.shape)}."
    check(x.shape == y.shape, f"{message} For sets of different sizes use transport.", "shape")
    check(x.device == y.device, f"y: is on {y.device}, but x is on {x.device}.", "device")


def _assign_hierarchically_and_improve(
    points: tuple[Tensor, Tensor],
    scaled: tuple[Tensor, Tensor],
    cost: str,
    block_size: int,
    passes: int,
    generator: torch.Generator,
) -> Assignment:
    """Assign points by divide and conquer, then improve the assignment in passes."""
    linear_sum_assignment = import_optional("scipy.optimize", "train", "approximate_assignment").linear_sum_assignment
    (x, y), (u, v) = points, scaled
    leaves = list(_iterate_matching_part_indices((u, v), block_size, generator))
    blocks, partners = [rows for rows, _ in leaves], torch.empty(len(x), dtype=torch.int64)
    row_cost, mean_cost_by_pass = torch.empty(len(x), dtype=torch.float64), []
    for rows, columns in leaves:
        partners[rows], row_cost[rows] = columns, _paired_costs(cost, x[rows], y[columns])
    for number in range(passes + 1):
        if number:
            # An exchange of the partners of i and j gains 2 (|d_i - d_j|^2 - |m_i - m_j|^2), with the midpoints
            # m = (x + y) / 2 and the differences d = (x - y) / 2 of pairs: it gains where midpoints are near.
            blocks = [rows for (rows,) in _iterate_matching_part_indices((u + v[partners],), block_size, generator)]
        gain = 0.0
        for rows in blocks:
            columns = partners[rows]
            columns = columns[_least_cost_partners(linear_sum_assignment, u[rows], v[columns])]
            new_cost = _paired_costs(cost, x[rows], y[columns])
            # Compared in double precision: the products of the block may be rounded to single precision.
            gained = float((row_cost[rows] - new_cost).sum())
            if gained > 1e-12 * float(new_cost.abs().sum()):  # a smaller gain is rounding
                partners[rows], row_cost[rows], gain = columns, new_cost, gain + gained
        mean_cost_by_pass.append(float(row_cost.mean()))
        if len(blocks) == 1 or (number and gain == 0):
            break
    return Assignment(partners, row_cost, tuple(mean_cost_by_pass), 0.0 if len(x) <= block_size else None)


def _paired_costs(cost: str, x: Tensor, y: Tensor) -> Tensor:
    """Return the cost of row i of x and row i of y for each i, (k,), in double precision."""
    return _PAIRED_COSTS_BY_NAME[cost](x.double(), y.double())


def _build_solved_auction(x: Tensor, y: Tensor, tolerance: float, random: np.random.Generator) -> Auction:
    """Return an auction on centered points, run to the required tolerance.

    The value of a pair is <x_i, y_j>. With prices |y_j|^2 / 2 a row begins at the nearest point.
    """
    half_norms = [points.square().sum(1) / 2 for points in (x, y)]
    auction = Auction(lambda rows: x[rows] @ y.T, half_norms[1], random)
    # A share of the mean cost of all pairs; larger first steps took as long.
    step = 0.25 * float(half_norms[0].mean() + half_norms[1].mean())
    while True:
        auction.run(step)
        partners = torch.from_numpy(auction.partners)
        target = tolerance * float((x - y[partners]).square().sum(1).mean()) / 2
        if step <= max(target, auction.smallest_step):
            return auction
        step = max(step / STEP_RATIO, 0.9 * target)  # the next cost may be less, and with it the target


def _mean_gap(auction: Auction, x: Tensor, y: Tensor) -> float:
    """Return an upper bound on the assignment's suboptimality, averaged over rows.

    By duality no assignment is better than the profits of all rows from their best columns, and all prices.
    """
    prices, partners = torch.from_numpy(auction.prices).double(), torch.from_numpy(auction.partners)
    columns, losses = y.double(), []
    for rows in torch.arange(len(x)).split(ROWS_PER_BLOCK):
        profits = x[rows].double() @ columns.T - prices
        losses.append(profits.amax(1) - profits[torch.arange(len(rows)), partners[rows]])
    return float(torch.cat(losses).mean())


def _iterate_matching_part_indices(
    point_sets: Sequence[Tensor], block_size: int, generator: torch.Generator
) -> Iterator[list[Tensor]]:
    """Halve the point sets recursively, and yield the point indices of each part.

    A part has one index tensor for each set of points, (n, d). Each cut halves all sets at once. Parts of two sets
    match. No part has more than `block_size` points.
    """
    whole = [torch.arange(len(points)) for points in point_sets]
    stack = [(whole, -(-len(whole[0]) // block_size))]
    while stack:
        indices, parts = stack.pop()
        if parts == 1:
            yield indices
            continue
        cut = len(indices[0]) * (parts // 2) // parts
        orders = _order_into_two_parts(
            [points[index] for points, index in zip(point_sets, indices, strict=True)], cut, generator
        )
        indices = [index[order] for index, order in zip(indices, orders, strict=True)]
        stack.append(([index[:cut] for index in indices], parts // 2))
        stack.append(([index[cut:] for index in indices], parts - parts // 2))


def _order_into_two_parts(point_sets: Sequence[Tensor], first_size: int, generator: torch.Generator) -> list[Tensor]:
    """Return orders of both point sets that put first the points assigned to one another.

    The rest is matched too. A single set is sorted along a random direction. Given the parts of one of two sets, the
    best parts of the other are cut along the difference of the means of these parts: no plan has to be computed. The
    two sets take turns, which never raises the cost.
    """
    # A random combination of the centered points.
    weights = torch.randn(len(point_sets[0]), generator=generator, dtype=point_sets[0].dtype)
    direction = (weights - weights.mean()) @ point_sets[0]
    if len(point_sets) == 1:
        return [(point_sets[0] @ direction).argsort()]
    orders = [torch.empty(0)] * 2
    for step in range(20):  # 60 were no better on images and on random points
        number = (step + 1) % 2  # the second set begins, on a direction of the first
        points = point_sets[number]
        orders[number] = (points @ direction).argsort()
        weights = points.new_full((len(points),), -1 / first_size)
        weights[orders[number][first_size:]] = 1 / (len(points) - first_size)
        direction = weights @ points
    return orders


def _least_cost_partners(
    linear_sum_assignment: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], x: Tensor, y: Tensor
) -> Tensor:
    """Return the row of y that the least-cost assignment gives each row of x.

    Point i of y is the partner of point i of x so far. SciPy's solver begins without potentials; with those of the
    present assignment in the costs, most partners are the cheapest, and it takes a fraction of the time.
    """
    costs = -(x @ y.T).double().numpy()
    costs -= costs.diagonal()[:, None].copy()
    potentials = np.zeros(len(costs))
    for _ in range(8):  # 30 updates took longer than they saved
        # Length of the shortest path to each column, in which a step from i to j costs C_ij - C_ii.
        shorter = (costs + potentials[:, None]).min(0)
        if (shorter == potentials).all():
            return torch.arange(len(costs))  # no cycle of exchanges has a gain
        potentials = shorter
    costs += potentials[:, None]
    costs -= potentials
    return torch.from_numpy(linear_sum_assignment(costs)[1])
