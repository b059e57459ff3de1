"""Assignments by the auction algorithm, in which rows bid for columns.

The prices that the bids leave behind prove how far the assignment is from the best one, and let an exact solver begin
near its end.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from contraport.seeding import numpy_generator

ROWS_PER_BLOCK = 500
"""Number of rows whose values or costs are computed at a time."""

STEP_RATIO = 4.0
"""Factor by which the step falls from one auction to the next, which begins with the prices of the last one."""

_MAX_ROWS_WITHOUT_AUCTION = 1000
"""Largest number of rows that the exact solver of SciPy assigns without prices; it takes a fraction of a second."""


class Auction:
    """Auction algorithm for assignments, in which rows bid for columns.

    Each row bids for the column of largest profit, its value minus its price. Values are finite. Prices only rise, so
    that columns outside a row's list stay below the least profit of the list when it was made. The list is made again
    only when all of its columns have fallen below that. Thus few bids compare all columns.

    Args:
        values: returns the values of some rows, (k,) indices, for all columns, (k, n).
        prices: prices to begin with, (n,).
        random: draws between columns of nearly equal profit, where equal rows would bid for the same one.

    Attributes:
        partners: Column of each row, (n,); -1 before the first run.
        prices: Price of each column, (n,).
        smallest_step: Least step of a run. Smaller ones could vanish beside the prices to which they are added.

    Source: Bertsekas (1992), Auction algorithms for network flow problems: a tutorial introduction, sections 1 and 2.
    """

    def __init__(self, values: Callable[[Tensor], Tensor], prices: Tensor, random: np.random.Generator) -> None:
        self.values, self.random = values, random
        self.prices = prices.numpy().copy()
        n = len(prices)
        # Of each row the 64 best columns are listed: shorter lists run out more often, and are then made anew.
        listed, dtype = min(64, n), self.prices.dtype
        self.partners, self._owners = np.full(n, -1), np.full(n, -1)
        self._columns, self._values = np.zeros((n, listed), np.int32), np.zeros((n, listed), dtype)
        self._bounds, self._own_values = np.zeros(n, dtype), np.zeros(n, dtype)
        self._bidders = np.zeros(n, np.int64)  # of each column in a round; only entries of this round are read
        self._update_shortlists_and_bounds(np.arange(n))
        largest = max(float(np.abs(self._values).max()), float(np.abs(self.prices).max())) or 1.0
        self.smallest_step = 64 * float(np.finfo(dtype).eps) * largest

    def run(self, step: float) -> None:
        """Let rows bid until each has a column of nearly the largest profit.

        The profit of that column is at most `step` below the row's best. The total value is then at most n times `step`
        below the best. Rows keep columns that meet this already.
        """
        step = max(step, self.smallest_step)
        rows = np.flatnonzero(self.partners >= 0)
        best = np.maximum((self._values[rows] - self.prices[self._columns[rows]]).max(1), self._bounds[rows])
        own = self._own_values[rows] - self.prices[self.partners[rows]]
        lost = rows[own < best - step]
        self._owners[self.partners[lost]] = -1
        self.partners[lost] = -1
        while len(rows := np.flatnonzero(self.partners < 0)):
            self._bid(rows, step)

    def _bid(self, rows: np.ndarray, step: float) -> None:
        """Give columns to the highest bidders among `rows`, and raise the columns' prices."""
        columns = self._columns[rows]
        profits = self._values[rows] - self.prices[columns]
        best = profits.max(1)
        stale = best < self._bounds[rows]
        if stale.any():
            self._update_shortlists_and_bounds(rows[stale])
            rows = rows[~stale]
            if not len(rows):
                return
            columns, profits, best = columns[~stale], profits[~stale], best[~stale]
        # Any column within half a step of the best may be chosen: its price still rises by half a step or more.
        chances = self.random.random(profits.shape, dtype=np.float32)
        choices = np.where(profits >= best[:, None] - step / 2, chances, -1).argmax(1)
        places = np.arange(len(rows)), choices
        columns, chosen, values = columns[places], profits[places], self._values[rows, choices]
        profits[places] = -np.inf
        second = np.maximum(profits.max(1), self._bounds[rows])
        bids = self.prices[columns] + (chosen - second + step)
        order = bids.argsort()
        self._bidders[columns[order]] = order  # the last assignment to an entry stays: the highest bid
        winners = np.unique(self._bidders[columns])
        won = columns[winners]
        former = self._owners[won]
        self.partners[former[former >= 0]] = -1
        self._owners[won], self.partners[rows[winners]] = rows[winners], won
        self._own_values[rows[winners]] = values[winners]
        self.prices[won] = bids[winners]

    def _update_shortlists_and_bounds(self, rows: np.ndarray) -> None:
        """Recompute each row's most profitable columns, and the largest profit outside them."""
        prices, listed = torch.from_numpy(self.prices), self._columns.shape[1]
        for part in np.split(rows, range(ROWS_PER_BLOCK, len(rows), ROWS_PER_BLOCK)):
            values = self.values(torch.from_numpy(part))
            largest, columns = (values - prices).topk(min(listed + 1, len(prices)), 1)
            self._columns[part] = columns[:, :listed].numpy()
            # The values themselves, so that profits that are read from the list are those of here to the last digit:
            # otherwise a new list could lie below its own bound.
            self._values[part] = values.gather(1, columns[:, :listed]).numpy()
            self._bounds[part] = largest[:, -1].numpy() if listed < len(prices) else -np.inf


def solve_assignment_and_potentials(
    linear_sum_assignment: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], costs: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Solve an assignment exactly, and return its columns and dual potentials.

    The first result is the column of each row, (n,). The potentials f, (n,), and g, (n,), have f_i + g_j <= C_ij, with
    equality for partners, up to rounding.

    Args:
        linear_sum_assignment: `scipy.optimize.linear_sum_assignment`.
        costs: costs C, (n, n), in double precision; infinite ones are forbidden.

    Raises:
        ValueError: every assignment has a forbidden pair.
    """
    n = len(costs)
    g = np.zeros(n)
    if n > _MAX_ROWS_WITHOUT_AUCTION and np.isfinite(costs).all():
        values = torch.from_numpy(costs)
        auction = Auction(lambda rows: -values[rows], values.new_zeros(n), numpy_generator("assignment.exact_bids"))
        step = float((costs.mean(1) - costs.min(1)).mean()) / STEP_RATIO
        # The time of the exact solver falls with each auction, while the last auctions take longer.
        for _ in range(5 if step > 0 else 0):
            auction.run(step)
            step /= STEP_RATIO
        g = -auction.prices
        reduced = costs - g
        reduced -= reduced.min(1, keepdims=True)
        columns = linear_sum_assignment(reduced)[1]
    else:
        columns = linear_sum_assignment(costs)[1]
    # The column potentials are lengths of shortest paths between columns, by Bellman-Ford: a step from the partner of
    # row i to column j costs C_ij minus the cost of i and its partner. No cycle is negative, as the assignment is the
    # best. Any potentials may be the start; good ones take less time.
    own_costs = costs[np.arange(n), columns]
    changed, followed = np.arange(n), g.copy()
    blocks = np.split(costs, range(ROWS_PER_BLOCK, n, ROWS_PER_BLOCK))
    largest = max(float(np.abs(block).max(where=np.isfinite(block), initial=0)) for block in blocks)
    # A cycle could seem negative by rounding errors alone, a thousandth of this, and shorten paths forever.
    precision = 1e-12 * largest
    while len(changed):
        followed[columns[changed]] = g[columns[changed]]
        shorter = g.copy()
        for part in np.split(changed, range(ROWS_PER_BLOCK, len(changed), ROWS_PER_BLOCK)):
            paths = costs[part] + (g[columns[part]] - own_costs[part])[:, None]
            np.minimum(shorter, paths.min(0), out=shorter)
        g = shorter
        changed = np.flatnonzero((g < followed - precision)[columns])
    return columns, own_costs - g[columns], g
