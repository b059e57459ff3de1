"""Inverse optimal transport: which cost makes an observed matching the best one?"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from contraport.engine import Geometry, Gibbs, MatrixLogKernel, Step, scale
from contraport.errors import check, check_positive, unknown_name
from contraport.estimators.arrays import as_tensor
from contraport.objectives import KL, Coupling, Matrix, Plan
from contraport.objectives.layouts import Block
from contraport.objectives.matching import Matching


class Bilinear(nn.Module):
    """The cost C_ij = -<x_i, W y_j>: how well each feature of a row goes with each feature of a column.

    Args:
        row_features: p.
        column_features: q.

    >>> Bilinear(2, 3)(torch.ones(4, 2), torch.ones(5, 3)).shape
    torch.Size([4, 5])
    """

    def __init__(self, row_features: int, column_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(row_features, column_features))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cost, (n, m), between x (n, p) and y (m, q)."""
        return -x @ self.weight @ y.T


class InverseOT(BaseEstimator):
    """Learns the cost whose optimal transport plan is an observed coupling.

    Minimises KL(observed | P) over the parameters of the cost, where P is the entropic plan of that cost with the
    marginals of the observed coupling. At the converged plan the gradient in the cost is exactly (observed - P) /
    temperature, so that none is taken through Sinkhorn's iterations.

    Args:
        cost: ``"bilinear"``, `Bilinear`, or a module that maps (n, p) and (m, q) to (n, m), of which a copy is fitted.
        temperature: of the plan, in units of the cost; the cost is learned in this unit.
        ridge: factor of half the squared norm of the parameters, nonnegative; a coupling with zeros (a strict
            matching) needs some, for without it the cost grows without bound.
        max_iter: of L-BFGS, at most.
        tolerance: how far the masses of the plan's rows may be off in all, the total being 1.

    Attributes:
        cost_: (n, m), the fitted cost less the means of its rows and columns: the part of it that the plan determines.
        coupling_: (n, m), the plan of the fitted cost, of total mass 1.
        kl_divergence_: KL(observed | coupling_), in nats.
        marginal_error_: the largest sum of absolute differences between the masses of coupling_ and of the observed
            coupling, over rows or over columns.
        module_: the fitted cost as a module, in double precision.
        n_iter_: iterations made.

    Raises:
        UsageError: in `fit`, for values that do not fit.

    Source: the bilevel problem of inverse optimal transport for contrastive learning (Shi et al., 2023, eq. 7); with a
    bilinear cost, Dupuy, Galichon and Sun (2019), Estimating matching affinity matrices.

    >>> people, jobs = np.eye(2), np.eye(2)
    >>> learned = InverseOT().fit(people, jobs, [[0.4, 0.1], [0.1, 0.4]])
    >>> learned.coupling_.round(4).tolist()
    [[0.4, 0.1], [0.1, 0.4]]
    """

    module_: nn.Module
    cost_: NDArray[np.float64]
    coupling_: NDArray[np.float64]
    kl_divergence_: float
    marginal_error_: float
    n_iter_: int

    def __init__(
        self,
        cost: str | nn.Module = "bilinear",
        *,
        temperature: float = 1.0,
        ridge: float = 0.0,
        max_iter: int = 500,
        tolerance: float = 1e-9,
    ) -> None:
        self.cost = cost
        self.temperature = temperature
        self.ridge = ridge
        self.max_iter = max_iter
        self.tolerance = tolerance

    def fit(self, features_rows: ArrayLike, features_columns: ArrayLike, observed_coupling: ArrayLike) -> Self:
        """Learn the cost.

        Args:
            features_rows: (n, p).
            features_columns: (m, q).
            observed_coupling: (n, m), nonnegative; it is scaled to total mass 1. Every row and column must have some.

        Raises:
            UsageError: a parameter or a shape does not fit, or a row or column of the coupling is empty.
        """
        check_positive("tolerance", self.tolerance)
        good = isinstance(self.ridge, int | float) and self.ridge >= 0
        check(good, f"ridge: expected a nonnegative number, got {self.ridge!r}.")
        x, y = as_tensor("features_rows", features_rows), as_tensor("features_columns", features_columns)
        observed = _observed(observed_coupling, (len(x), len(y)))
        self.module_ = self._module(x.shape[1], y.shape[1])
        kernel = Gibbs(self.module_, self.temperature)
        block = _block(x, y)
        target = Matrix(observed)(block, {})
        plan = _Held(observed.sum(1).log(), observed.sum(0).log(), self.tolerance)

        def matching() -> Matching:
            # The cost is evaluated once; Sinkhorn's iterations, many of them, go over the matrix.
            geometry = Geometry(MatrixLogKernel(block.geometry(kernel).dense()))
            return Matching(block, target, plan(geometry)[0])

        def divergence() -> Tensor:
            squares = torch.stack([p.square().sum() for p in self.module_.parameters()]).sum()
            return KL()(matching()) + self.ridge / 2 * squares

        self.n_iter_ = _minimize(list(self.module_.parameters()), divergence, self.max_iter)
        with torch.no_grad():
            found = matching()
            coupling = found.coupling.dense()
            off = [(coupling.sum(k) - observed.sum(k)).abs().sum().item() for k in (0, 1)]
            self.cost_ = centered(self.module_(x, y).numpy())
            self.coupling_ = coupling.numpy()
            self.kl_divergence_ = KL()(found).item()
            self.marginal_error_ = max(off)
        if self.marginal_error_ > 2 * self.tolerance:
            warnings.warn(
                f"InverseOT: the masses of the fitted plan are off by {self.marginal_error_:.3g}, more than the "
                f"tolerance {self.tolerance:.3g}; a ridge, or a higher temperature, keeps the cost smaller.",
                stacklevel=2,
            )
        return self

    def predict(self, features_rows: ArrayLike, features_columns: ArrayLike) -> NDArray[np.float64]:
        """Return the learned cost, (k, l), between other rows (k, p) and columns (l, q).

        Raises:
            UsageError: `fit` has not been called, or the features do not fit.
        """
        check(hasattr(self, "module_"), "InverseOT: call fit before predict.")
        x, y = as_tensor("features_rows", features_rows), as_tensor("features_columns", features_columns)
        with torch.no_grad():
            return np.asarray(self.module_(x, y))

    def _module(self, row_features: int, column_features: int) -> nn.Module:
        if isinstance(self.cost, nn.Module):
            check(any(True for _ in self.cost.parameters()), "cost: expected a module with parameters to learn.")
            return copy.deepcopy(self.cost).double()
        if self.cost != "bilinear":
            raise unknown_name("cost", self.cost, ["bilinear"])
        return Bilinear(row_features, column_features).double()


def centered(cost: ArrayLike) -> NDArray[np.float64]:
    """Return a cost less the means of its rows and columns: two costs have the same plans if this is equal.

    >>> centered([[1.0, 2.0], [3.0, 5.0]]).tolist()
    [[0.25, -0.25], [-0.25, 0.25]]
    """
    matrix = np.asarray(cost, dtype=np.float64)
    return matrix - matrix.mean(0) - matrix.mean(1, keepdims=True) + matrix.mean()


class _Held(Plan):
    """Plans with given marginals, by Sinkhorn's iterations to a tolerance, from where the last ones ended.

    The potentials are held fixed: KL to a target with these marginals, which is stationary in them, still has its exact
    gradient in the kernel.
    """

    def __init__(self, log_a: Tensor, log_b: Tensor, tolerance: float) -> None:
        self.log_marginals, self.tolerance = (log_a, log_b), tolerance
        self.f = torch.zeros_like(log_a)

    def __call__(self, geometry: Geometry, *, reciprocal: bool = False) -> list[Coupling]:
        log_a, _ = self.log_marginals
        with torch.no_grad():
            for _ in range(_SINKHORN):
                g, following = scale(
                    geometry, [Step("columns", 0), Step("rows", 1)], self.log_marginals, given=[self.f]
                )
                # The row masses of the plan (f, g) are a e^{f - next f}.
                off = (torch.exp(log_a + self.f - following) - log_a.exp()).abs().sum()
                if off <= self.tolerance:
                    break
                self.f = following
        return [Coupling(geometry, self.f, g)]


_SINKHORN = 10_000


def _observed(coupling: ArrayLike, shape: tuple[int, int]) -> Tensor:
    observed = as_tensor("observed_coupling", coupling, "(n, m)")
    got = tuple(observed.shape)
    check(got == shape, f"observed_coupling: expected shape {shape}, one row and column per item, got {got}.")
    check(bool((observed >= 0).all()), "observed_coupling: expected nonnegative numbers.")
    for side, masses in (("row", observed.sum(1)), ("column", observed.sum(0))):
        empty = int((masses == 0).sum())
        check(empty == 0, f"observed_coupling: {empty} {side}s have no mass; leave these items out.")
    return observed / observed.sum()


def _block(x: Tensor, y: Tensor) -> Block:
    """Return the block that compares every row with every column, items of two kinds that share nothing."""
    rows, columns = torch.arange(len(x)), len(x) + torch.arange(len(y))
    return Block(x, y, len(x), rows, columns, (rows[:0], rows[:0]))


def _minimize(parameters: list[nn.Parameter], value: Callable[[], Tensor], iterations: int) -> int:
    """Minimise by L-BFGS and return how many iterations it took."""
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=iterations,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = value()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    return int(optimizer.state[parameters[0]]["n_iter"])
