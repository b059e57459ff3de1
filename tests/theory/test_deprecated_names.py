"""Deprecated names of the theory studies still work, with a warning."""

import pytest
import torch

from contraport import theory


@pytest.mark.parametrize(("old", "new"), [("matching", "compare_constraints"), ("SimplexPath", "SimplexEntropicPath")])
def test_old_names_of_the_package_warn(old, new):
    with pytest.warns(FutureWarning, match=new):
        assert getattr(theory, old) is getattr(theory, new)
    with pytest.raises(AttributeError):
        theory.nothing  # noqa: B018


def test_old_names_of_attributes_warn():
    result = theory.compare_constraints(torch.eye(2), torch.eye(2))
    with pytest.warns(FutureWarning, match="ConstraintComparison.plans_by_constraint"):
        assert result.plans is result.plans_by_constraint
    with pytest.warns(FutureWarning, match="PlanWithStatistics.column_mass_shares"):
        assert result.plans_by_constraint["rows"].columns.shape == (2,)
    points = theory.minimize_uniformity_loss(3, 2, iterations=2)
    with pytest.warns(FutureWarning, match="UniformPoints.deviation_from_optimum"):
        assert points.deviation == points.deviation_from_optimum
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    encoder = theory.train_linear_encoder(x, x, iterations=2)
    with pytest.warns(FutureWarning, match="LinearEncoderResult.principal_angles_by_iteration"):
        assert encoder.angles is encoder.principal_angles_by_iteration
