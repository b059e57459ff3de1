"""Deprecated names of the theory studies still work, with a warning."""

import pytest
import torch

from contraport import theory


@pytest.mark.parametrize(("old", "new"), [("matching", "compare_constraints"), ("SimplexPath", "EntropicPath")])
def test_old_names_of_the_package_warn(old, new):
    with pytest.warns(FutureWarning, match=new):
        assert getattr(theory, old) is getattr(theory, new)
    with pytest.raises(AttributeError):
        theory.nothing  # noqa: B018


def test_old_names_of_attributes_warn():
    result = theory.compare_constraints(torch.eye(2), torch.eye(2))
    with pytest.warns(FutureWarning, match="ConstraintComparison.plans_by_constraint"):
        assert result.plans is result.plans_by_constraint
    with pytest.warns(FutureWarning, match="PlanWithStatistics.column_masses"):
        assert result.plans_by_constraint["rows"].columns.shape == (2,)
