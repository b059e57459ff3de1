"""Uniformity penalty on the toy data: summary against the plan, and its effect."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error

from contraport.theory import sample_gaussians_on_circle, sweep_uniformity_penalty


@pytest.fixture(scope="module")
def results():
    return sweep_uniformity_penalty((0.0, 2.0), data=sample_gaussians_on_circle(30), iterations=60)


def test_summary_matches_the_plan(results):
    n = 30
    for one in results.by_factor.values():
        plan = one.plan.double().numpy()
        np.testing.assert_allclose(plan.sum(0), 1 / (2 * n), rtol=1e-4)
        positive = np.roll(np.eye(2 * n, dtype=bool), n, axis=1)
        negatives = plan[~positive & ~np.eye(2 * n, dtype=bool)]
        q = negatives.mean()
        assert one.penalty_value == pytest.approx((q * np.log(q / negatives)).sum(), rel=1e-3)
        assert one.negatives_unevenness == pytest.approx(np.abs(negatives - q).sum() / negatives.sum() / 2, rel=1e-4)
        assert one.positive_mass_share == pytest.approx(plan[positive].sum() / plan.sum(), rel=1e-4)
        z = one.clean_embeddings.double()
        distances = torch.pdist(z).square()
        assert one.alignment_and_uniformity.uniformity == pytest.approx(
            (-2 * distances).exp().mean().log().item(), abs=0.02
        )


def test_penalty_evens_out_the_plan(results):
    without, with_it = results.by_factor.values()
    assert with_it.penalty_value < without.penalty_value
    assert with_it.negatives_unevenness < without.negatives_unevenness


def test_figure_is_drawn(results, tmp_path):
    figure = results.figure()
    assert "factor 2: uniformity" in figure.axes[1].get_title()
    figure.savefig(tmp_path / "figure.png")


def test_rejects_invalid_arguments():
    with raises_usage_error("factors.missing"):
        sweep_uniformity_penalty(())
    with raises_usage_error("uniformity.invalid", -1.0):
        sweep_uniformity_penalty((-1.0,))
    with raises_usage_error("noise.invalid", -1.0):
        sweep_uniformity_penalty(noise=-1.0)
