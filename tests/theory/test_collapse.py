"""Dimensional collapse: order of the objectives on digits, reproducibility, and the figure."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from tests.errors import raises_usage_error

from contraport.catalog.objectives import nt_xent
from contraport.theory import compare_collapse


def test_direct_variants_collapse_less_than_nt_xent():
    result = compare_collapse(torch.from_numpy(load_digits().data[:100]) / 16, features=32, iterations=80)
    ranks = result.effective_ranks
    assert ranks["quadratic"] < ranks["nt-xent"] < ranks["alpha-cl direct"]
    assert ranks["nt-xent"] < ranks["direct-clr"] < ranks["untrained"]
    for name, values in result.relative_singular_values.items():
        shares = values / values.sum()
        assert ranks[name] == pytest.approx(np.exp(-(shares * shares.log()).sum().item()), rel=1e-6)
        assert values[0] == 1


def test_custom_objectives_are_reproducible():
    x = torch.randn(20, 6)
    first, second = (compare_collapse(x, {"mine": nt_xent()}, features=4, iterations=2) for _ in range(2))
    assert list(first.relative_singular_values) == ["untrained", "mine"]
    assert torch.equal(first.relative_singular_values["mine"], second.relative_singular_values["mine"])


def test_figure_is_drawn(tmp_path):
    compare_collapse(torch.randn(10, 6), features=4, iterations=1).figure().savefig(tmp_path / "figure.png")


@pytest.mark.parametrize(
    ("settings", "code", "value"),
    [
        ({"features": 3}, "features.invalid", 3),
        ({"masked": 1.0}, "masked.invalid", 1.0),
        ({"x": torch.zeros(1, 3)}, "x.shape", (1, 3)),
    ],
)
def test_rejects_invalid_arguments(settings, code, value):
    with raises_usage_error(code, value):
        compare_collapse(**{"x": torch.randn(10, 6)} | settings)
