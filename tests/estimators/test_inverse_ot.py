"""InverseOT: recovery of planted costs from couplings computed by POT."""

from __future__ import annotations

import numpy as np
import ot
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.errors import raises_usage_error
from torch import nn

from contraport.estimators import InverseOT
from contraport.estimators.inverse_ot import double_center

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(200, 5)), RNG.normal(size=(200, 6))
W = RNG.normal(size=(5, 6)) / 3
COST = -X @ W @ Y.T
TEMPERATURE = 0.5


def compute_coupling(cost, a=None, b=None):
    a, b = (np.full(n, 1 / n) if m is None else m for n, m in zip(cost.shape, (a, b), strict=True))
    return ot.sinkhorn(a, b, cost, TEMPERATURE, numItermax=100_000, stopThr=1e-13)


def compute_correlation(estimator, cost):
    return np.corrcoef(estimator.cost_.ravel(), double_center(cost).ravel())[0, 1]


@pytest.mark.parametrize("uniform", [True, False])
def test_recovers_a_planted_bilinear_cost(uniform):
    a, b = (None, None) if uniform else (RNG.dirichlet(np.full(200, 5.0)) for _ in range(2))
    observed = compute_coupling(COST, a, b)
    estimator = InverseOT(temperature=TEMPERATURE).fit(X, Y, 7 * observed)
    assert compute_correlation(estimator, COST) > 0.999999
    np.testing.assert_allclose(estimator.module_.weight.detach().numpy(), W, atol=1e-5)
    np.testing.assert_allclose(estimator.coupling_, observed, atol=1e-9)
    assert estimator.kl_divergence_ < 1e-9
    assert estimator.marginal_error_ < 1e-6


def test_recovers_the_cost_from_sampled_matches():
    counts = RNG.multinomial(20_000, compute_coupling(COST).ravel()).reshape(200, 200)
    estimator = InverseOT(temperature=TEMPERATURE).fit(X, Y, counts)
    assert compute_correlation(estimator, COST) > 0.99


def test_rectangular_couplings_and_prediction_for_new_items():
    observed = compute_coupling(COST[:150])
    estimator = InverseOT(temperature=TEMPERATURE).fit(X[:150], Y, observed)
    np.testing.assert_allclose(estimator.predict(X[150:], Y), COST[150:], atol=1e-5)
    assert estimator.cost_.shape == estimator.coupling_.shape == (150, 200)


def test_one_to_one_matching_with_ridge_determines_the_cost_up_to_scale():
    matching = ot.emd(np.full(200, 1.0), np.full(200, 1.0), COST)
    estimator = InverseOT(temperature=TEMPERATURE, ridge=1e-3, tolerance=1e-6).fit(X, Y, matching)
    assert compute_correlation(estimator, COST) > 0.97


class ShiftedDistance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.shift = nn.Parameter(torch.tensor(0.5))

    def forward(self, x, y):
        return self.scale * (x[:, None, 0] - y[None, :, 0] - self.shift).square()


def test_cost_module_is_copied_and_fitted():
    truth, start = ShiftedDistance(), ShiftedDistance()
    with torch.no_grad():
        truth.scale.fill_(0.7)
        truth.shift.fill_(-0.3)
        planted = truth(torch.from_numpy(X), torch.from_numpy(Y)).numpy()
    estimator = InverseOT(start, temperature=TEMPERATURE).fit(X, Y, compute_coupling(planted))
    assert compute_correlation(estimator, planted) > 0.999999
    assert estimator.module_.scale.item() == pytest.approx(0.7, abs=1e-4)
    assert start.scale.item() == 1.0


def test_warns_about_too_few_iterations():
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        estimator = InverseOT(temperature=TEMPERATURE, max_iter=2).fit(X, Y, compute_coupling(COST))
    assert estimator.n_iter_ == 2


def test_columns_of_both_sides_are_checked_by_name():
    rows, columns = pd.DataFrame(X[:9, :2], columns=["p", "q"]), pd.DataFrame(Y[:8, :2], columns=["u", "v"])
    estimator = InverseOT(temperature=TEMPERATURE).fit(rows, columns, compute_coupling(COST[:9, :8]))
    cost = estimator.predict(rows, columns)
    with raises_usage_error("features_columns.column_names", "same order"):
        estimator.predict(rows, columns[["v", "u"]])
    with raises_usage_error("features_rows.invalid", "same order"):
        estimator.predict(rows[["q", "p"]], columns)
    del estimator._column_name_holder  # as in an older pickle
    np.testing.assert_array_equal(estimator.predict(rows, columns), cost)


def test_clone_keeps_the_parameters():
    estimator = InverseOT(temperature=2.0, ridge=0.1)
    assert clone(estimator).get_params() == estimator.get_params()


class RowEstimator(InverseOT):
    """InverseOT with fixed columns and coupling, so that scikit-learn's checks can call `fit(X, y)`."""

    COLUMNS = ((0.0,), (1.0,))

    def fit(self, X, y=None):
        return super().fit(X, self.COLUMNS, np.ones((len(X) if np.ndim(X) else 1, 2)))

    def predict(self, X):
        return super().predict(X, self.COLUMNS)


# InverseOT itself passes only the checks without a fit, since `fit(X, y)` lacks the third argument. RowEstimator passes
# all of them; only check_array_api_input is skipped, by itself, unless SCIPY_ARRAY_API is set.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks([RowEstimator(max_iter=5)])
def test_row_estimator_passes_scikit_learn_checks(estimator, check):
    check(estimator)


UNIFORM = np.full((200, 200), 1.0)


@pytest.mark.parametrize(
    ("settings", "arguments", "code", "values"),
    [
        ({"cost": "bilinaer"}, (X, Y, UNIFORM), "cost.unknown", ["'bilinear'"]),
        ({"cost": nn.Flatten()}, (X, Y, UNIFORM), "cost.no_parameters", []),
        ({"temperature": 0}, (X, Y, UNIFORM), "temperature.invalid", [0]),
        ({"ridge": -1}, (X, Y, UNIFORM), "ridge.invalid", [-1]),
        ({"tolerance": 0}, (X, Y, UNIFORM), "tolerance.invalid", [0]),
        ({"max_iter": 0}, (X, Y, UNIFORM), "max_iter.invalid", [0]),
        ({}, (X, Y, UNIFORM[:, :9]), "observed_coupling.shape", [(200, 200), (200, 9)]),
        ({}, (X, Y, -UNIFORM), "observed_coupling.invalid", [-1]),
        ({}, (X, Y, np.nan * UNIFORM), "observed_coupling.not_finite", [40000]),
        ({}, (X, Y, np.eye(200)[:, ::-1] * (np.arange(200) > 2)[:, None]), "observed_coupling.empty", ["3 rows"]),
        ({}, (X[:, 0], Y, UNIFORM), "features_rows.invalid", ["1D array"]),
        ({}, (torch.from_numpy(X).to("meta"), Y, UNIFORM), "features_rows.invalid", ["meta"]),
        ({}, (torch.from_numpy(X).bfloat16(), Y + 1j, UNIFORM), "features_columns.not_numbers", ["complex128"]),
        ({}, (X, torch.from_numpy(Y).to("meta"), UNIFORM), "features_columns.not_numbers", []),
    ],
)
def test_rejects_invalid_parameters_and_data(settings, arguments, code, values):
    with raises_usage_error(code, *values):
        InverseOT(**settings).fit(*arguments)


def test_predict_requires_fit():
    with pytest.raises(NotFittedError):
        InverseOT().predict(X, Y)
