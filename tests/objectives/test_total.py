"""Sums of objectives."""

import torch

import contraport
from contraport import Total


def test_terms_of_one_kind_add_up():
    z0, z1 = torch.randn(2, 6, 4)
    a, b = contraport.nt_xent(0.5), contraport.nt_xent(0.1)
    value = Total({a: 0.5, b: -2.0})(z0, z1)
    torch.testing.assert_close(value, 0.5 * a(z0, z1) - 2 * b(z0, z1))


def test_terms_name_the_parts():
    z0, z1 = torch.randn(2, 6, 4)
    loss = contraport.align_uniform(weight=0.3)
    assert set(loss.terms(z0, z1)) == {"Cost", "LogMean"}
    torch.testing.assert_close(sum(loss.terms(z0, z1).values()), loss(z0, z1).item())
