"""Sums of objectives: values, terms and invalid sums."""

import pytest
import torch
from tests.errors import raises_usage_error

import contraport
from contraport import SumLoss


def test_value_is_the_weighted_sum_of_objectives():
    z0, z1 = torch.randn(2, 6, 4)
    a, b = contraport.nt_xent(0.5), contraport.nt_xent(0.1)
    value = SumLoss({a: 0.5, b: -2.0})(z0, z1)
    torch.testing.assert_close(value, 0.5 * a(z0, z1) - 2 * b(z0, z1))


def test_terms_name_the_parts():
    z0, z1 = torch.randn(2, 6, 4)
    loss = contraport.align_uniform(weight=0.3)
    assert set(loss.terms(z0, z1)) == {"TargetCost", "LogMeanKernel"}
    torch.testing.assert_close(sum(loss.terms(z0, z1).values()), loss(z0, z1).item())


@pytest.mark.parametrize(
    ("objectives", "code", "value"),
    [
        ({}, "objectives.missing", ""),
        ({torch.nn.MSELoss(): 1.0}, "objectives.type", "MSELoss()"),
        ({contraport.nt_xent(): "half"}, "objectives.invalid", "'half'"),
        ({contraport.nt_xent(): float("nan")}, "objectives.invalid", "nan"),
    ],
)
def test_rejects_invalid_sums(objectives, code, value):
    with raises_usage_error(code, value):
        SumLoss(objectives)
