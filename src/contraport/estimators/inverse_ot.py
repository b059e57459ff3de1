"""Inverse optimal transport, which learns the cost behind an observed coupling."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from contraport.data.array_datasets import as_array, as_finite_float64
from contraport.engine import BilinearCost, Gibbs, HalfStepSpec, run_half_steps
from contraport.errors import (
    UsageError,
    check,
    check_all_values,
    check_integer,
    check_nonnegative,
    check_positive,
    suggest_keywords,
    unknown_name_error,
)
from contraport.objectives import KL, Matrix, Plan
from contraport.objectives.layouts import Block, PairPattern
from contraport.objectives.plan import PlanWithTarget


class InverseOT(BaseEstimator):
    """Estimator of the cost whose entropic transport plan fits an observed coupling.

    Minimizes KL(observed | P) over the parameters of the cost, where P is the plan of that cost with the marginals of
    the observed coupling. KL is stationary in the potentials of P exactly where P has these marginals. So cost and
    potentials are optimized jointly by L-BFGS, without inner Sinkhorn iterations. For a cost that is linear in its
    parameters the problem is convex. Features are used as they are: standardize them, because L-BFGS converges slowly
    if they differ much in scale, and ridge acts on their coefficients.

    Args:
        cost: ``"bilinear"``, for a bilinear form of the features, or a module that maps (n, p) and (m, q) to (n, m), of
            which a copy is fitted.
        temperature: temperature of the plan; the learned cost is in its units.
        ridge: nonnegative factor of half the squared norm of the parameters. Without it the cost grows without bound
            if the coupling has zeros, as a one-to-one matching has.
        max_iter: maximum number of L-BFGS iterations; a warning is issued when it is reached.
        tolerance: largest entry of the gradient at convergence.

    Attributes:
        cost_: (n, m), fitted cost, with row and column means subtracted because the plan does not determine them.
        coupling_: (n, m), transport plan of the fitted cost, with total mass 1.
        kl_divergence_: KL divergence of the observed coupling from coupling_, in nats.
        marginal_error_: total absolute error of the row masses of the plan; the column masses are exact.
        module_: fitted cost function as a torch module, in double precision.
        n_iter_: number of L-BFGS iterations.
        n_features_in_: number of features of a row item, p.

    Raises:
        UsageError: in `fit`, for invalid parameters or data.

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

    @suggest_keywords
    def __init__(
        self,
        cost: str | nn.Module = "bilinear",
        *,
        temperature: float = 1.0,
        ridge: float = 0.0,
        max_iter: int = 1000,
        tolerance: float = 1e-8,
    ) -> None:
        self.cost = cost
        self.temperature = temperature
        self.ridge = ridge
        self.max_iter = max_iter
        self.tolerance = tolerance

    def fit(self, features_rows: ArrayLike, features_columns: ArrayLike, observed_coupling: ArrayLike) -> Self:
        """Fit the cost to an observed coupling of row items and column items.

        Args:
            features_rows: (n, p).
            features_columns: (m, q).
            observed_coupling: (n, m), nonnegative; it is scaled to total mass 1. No row or column may be empty.

        Raises:
            UsageError: an invalid parameter or shape, or an empty row or column of the coupling.
        """
        check_positive("tolerance", self.tolerance)
        check_integer("max_iter", self.max_iter)
        check_nonnegative("ridge", self.ridge)
        x = self._validate_row_features(features_rows, reset=True)
        y = as_finite_float64("features_columns", features_columns)
        self._column_name_holder = InverseOT()
        check_column_names("features_columns", features_columns, self._column_name_holder, reset=True)
        observed = _as_unit_mass_tensor(observed_coupling, (len(x), len(y)))
        self.module_ = self._build_cost_module(x.shape[1], y.shape[1])
        rows, columns = torch.arange(len(x)), len(x) + torch.arange(len(y))  # rows and columns are different items
        block = Block(PairPattern(len(x), rows, columns, positives=(rows[:0], rows[:0])), x, y)
        target, kernel = Matrix(observed)(block, {}), Gibbs(self.module_, self.temperature)
        log_a, log_b = observed.sum(1).log(), observed.sum(0).log()
        # In these units the row potential has a curvature near 1, which L-BFGS needs to converge quickly.
        scale = observed.sum(1).rsqrt()
        scaled_potential = torch.zeros_like(scale, requires_grad=True)

        def compute_plan_with_target() -> PlanWithTarget:
            """Compute the plan from cost and row potential, with exact column masses."""
            geometry, f = block.build_geometry(kernel), log_a + scale * scaled_potential
            (g,) = run_half_steps(geometry, [HalfStepSpec("columns", 0)], (log_a, log_b), initial=[f])
            return PlanWithTarget(block, target, Plan(geometry, f, g, cached_log_column_mass=log_b))

        optimizer = torch.optim.LBFGS(
            [scaled_potential, *self.module_.parameters()],
            max_iter=self.max_iter,
            max_eval=10 * self.max_iter,
            tolerance_grad=self.tolerance,
            tolerance_change=0.0,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            squares = torch.stack([p.square().sum() for p in self.module_.parameters()]).sum()
            loss = KL()(compute_plan_with_target()).sum() + self.ridge / 2 * squares
            loss.backward()
            return loss

        optimizer.step(closure)
        self.n_iter_ = int(optimizer.state[scaled_potential]["n_iter"])
        with torch.no_grad():
            result = compute_plan_with_target()
            self.cost_ = double_center(self.module_(x, y).numpy())
            self.coupling_ = result.plan.dense().numpy()
            self.kl_divergence_ = KL()(result).sum().item()
            self.marginal_error_ = (result.plan.log_row_mass().exp() - observed.sum(1)).abs().sum().item()
        if self.n_iter_ == self.max_iter:
            warnings.warn(
                f"InverseOT: stopped at max_iter={self.max_iter} iterations with a total error of the row masses of "
                f"{self.marginal_error_:.3g}. Standardize the features, or increase max_iter or ridge.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def predict(self, features_rows: ArrayLike, features_columns: ArrayLike) -> NDArray[np.float64]:
        """Return the learned cost of new row and column items, ``(k, l)``.

        The row items are ``(k, p)`` and the column items ``(l, q)``.

        Raises:
            NotFittedError: `fit` has not been called.
            UsageError: the features have the wrong shape or names of columns, or are not finite.
        """
        check_is_fitted(self, "cost_")
        x = self._validate_row_features(features_rows, reset=False)
        y = as_finite_float64("features_columns", features_columns)
        if hasattr(self, "_column_name_holder"):  # older pickles lack it
            check_column_names("features_columns", features_columns, self._column_name_holder, reset=False)
        with torch.no_grad():
            return np.asarray(self.module_(x, y))

    def _validate_row_features(self, features: ArrayLike, *, reset: bool) -> Tensor:
        """Check the features of the row items, and return them as a finite float64 tensor."""
        if isinstance(features, Tensor):
            features = as_array("features_rows", features)
        try:  # `as_finite_float64` checks for NaN
            return as_finite_float64(
                "features_rows", validate_data(self, features, reset=reset, ensure_all_finite=False)
            )
        except UsageError:
            raise
        except ValueError as error:
            raise UsageError(f"features_rows: {' '.join(str(error).split())}") from error

    def _build_cost_module(self, num_row_features: int, num_column_features: int) -> nn.Module:
        """Build the bilinear cost or copy the given module, in double precision."""
        if isinstance(self.cost, nn.Module):
            check(any(True for _ in self.cost.parameters()), "cost: must be a module with parameters.", "no_parameters")
            return copy.deepcopy(self.cost).double()
        if self.cost != "bilinear":
            raise unknown_name_error("cost", self.cost, ["bilinear"])
        return BilinearCost(num_row_features, num_column_features).double()


def check_column_names(argument: str, features: Any, holder: BaseEstimator, *, reset: bool) -> None:
    """Store the column names of a frame in `holder`, or compare them with those stored.

    As in scikit-learn, other names are an error.
    """
    try:
        validate_data(holder, features, reset=reset, skip_check_array=True, ensure_2d=False)
    except ValueError as error:
        raise UsageError(f"{argument}: {' '.join(str(error).split())}", kind="column_names") from error


def double_center(cost: ArrayLike) -> NDArray[np.float64]:
    """Center the rows and columns of a cost matrix at zero.

    Its balanced transport plans stay the same.

    >>> double_center([[1.0, 2.0], [3.0, 5.0]]).tolist()
    [[0.25, -0.25], [-0.25, 0.25]]
    """
    matrix = np.asarray(cost, dtype=np.float64)
    return np.asarray(matrix - matrix.mean(0) - matrix.mean(1, keepdims=True) + matrix.mean())


def _as_unit_mass_tensor(coupling: ArrayLike, shape: tuple[int, int]) -> Tensor:
    """Check a coupling, and scale it to a tensor of total mass 1."""
    observed = as_finite_float64("observed_coupling", coupling, "(n, m)")
    got = tuple(observed.shape)
    check(got == shape, f"observed_coupling: must have shape {shape}, got {got}.", "shape")
    check_all_values("observed_coupling", observed, observed >= 0, "nonnegative numbers")
    for side, masses in (("row", observed.sum(1)), ("column", observed.sum(0))):
        empty = int((masses == 0).sum())
        check(empty == 0, f"observed_coupling: {empty} {side}s have no mass. Remove these items.", "empty")
    return observed / observed.sum()
