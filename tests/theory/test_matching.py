"""ConstraintComparison under three constraints, against POT and a softmax."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import torch
from tests.errors import raises_usage_error

from contraport.theory import compare_constraints


def embeddings(n=8, m=8):
    generator = torch.Generator().manual_seed(0)
    z0 = torch.randn(n, 3, generator=generator)
    return z0, torch.cat([z0, z0])[:m] + 0.8 * torch.randn(m, 3, generator=generator)


def cost_of(z0, z1):
    a, b = (z.double().numpy() for z in (z0, z1))
    return 1 - (a / np.linalg.norm(a, axis=1)[:, None]) @ (b / np.linalg.norm(b, axis=1)[:, None]).T


def test_plans_match_pot():
    z0, z1 = embeddings(8, 6)
    result = compare_constraints(
        z0, z1, torch.zeros(8, 6, dtype=torch.bool), temperature=0.2, relaxation=0.4
    ).plans_by_constraint
    cost, a, b = cost_of(z0, z1), np.full(8, 1 / 8), np.full(6, 1 / 6)
    kernel = np.exp(-cost / 0.2)
    np.testing.assert_allclose(result["rows"].plan, kernel / kernel.sum(1, keepdims=True) / 8, rtol=1e-9)
    balanced = ot.sinkhorn(a, b, cost, 0.2, method="sinkhorn_log", stopThr=1e-13, numItermax=50_000)
    np.testing.assert_allclose(result["balanced"].plan, balanced, atol=1e-6)
    unbalanced = ot.unbalanced.sinkhorn_unbalanced(
        a, b, cost, 0.2, 0.4, reg_type="kl", stopThr=1e-14, numItermax=50_000
    )
    np.testing.assert_allclose(result["unbalanced"].plan, unbalanced, atol=1e-6)
    assert result["unbalanced"].mass == pytest.approx(unbalanced.sum(), abs=1e-5)


def test_summary_matches_the_plan():
    partners = torch.eye(8, dtype=torch.bool).roll(1, 1)
    for result in compare_constraints(*embeddings(), partners).plans_by_constraint.values():
        plan = result.plan.numpy()
        columns = plan.sum(0) / plan.sum()
        np.testing.assert_allclose(result.column_mass_shares, columns)
        assert result.true_pair_share == pytest.approx(plan[np.arange(8), (np.arange(8) + 1) % 8].sum() / plan.sum())
        assert result.unevenness == pytest.approx(np.clip(columns - 1 / 8, 0, None).sum())
        assert result.effective_num_columns == pytest.approx(np.exp(-(columns * np.log(columns)).sum()))


def test_column_constraint_evens_out_the_columns():
    result = compare_constraints(*embeddings()).plans_by_constraint
    assert result["rows"].unevenness > 0.1 > 1e-6 > result["balanced"].unevenness
    assert result["balanced"].effective_num_columns == pytest.approx(8)
    assert result["rows"].effective_num_columns < 7.5
    assert result["unbalanced"].mass < 1
    high = compare_constraints(*embeddings(), relaxation=100.0).plans_by_constraint["unbalanced"]
    torch.testing.assert_close(high.plan, result["balanced"].plan, atol=5e-3, rtol=0)


def test_hub_takes_all_mass_with_rows_only():
    z0 = torch.tensor([[1.0, 0.0]] * 4)
    z1 = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    rows = compare_constraints(z0, z1, temperature=0.05).plans_by_constraint["rows"]
    assert rows.unevenness == pytest.approx(0.75)
    assert rows.effective_num_columns == pytest.approx(1)


def test_figure_draws_lines_by_mass_with_partners_in_blue(tmp_path):
    figure = compare_constraints(torch.eye(3), torch.eye(3), temperature=0.05).figure()
    figure.savefig(tmp_path / "figure.png")
    lines = figure.axes[1].get_lines()
    assert len(lines) == 3  # lines to other items are too faint to be drawn
    assert {line.get_color() for line in lines} == {"#0072b2"}
    weak = compare_constraints(torch.eye(2), torch.eye(2), temperature=10.0).figure().axes[1].get_lines()
    straight = [line for line in weak if line.get_ydata()[0] == line.get_ydata()[1]]
    crossed = [line for line in weak if line not in straight]
    assert len(straight) == len(crossed) == 2
    assert straight[0].get_alpha() > crossed[0].get_alpha()


def test_rejects_invalid_arguments():
    with raises_usage_error("partners.missing", 8, 6):
        compare_constraints(*embeddings(8, 6))
    with raises_usage_error("partners.shape", (8, 8), (2, 2)):
        compare_constraints(*embeddings(), torch.eye(2, dtype=torch.bool))
    with raises_usage_error("temperature.invalid", 0.0):
        compare_constraints(*embeddings(), temperature=0.0)
    with raises_usage_error("relaxation.invalid", -1.0):
        compare_constraints(*embeddings(), relaxation=-1.0)
