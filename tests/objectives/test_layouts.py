"""Nested layouts, guided negatives and views within a layout."""

import pytest
import torch
from tests.errors import raises_usage_error
from tests.objectives.comparing import views

import contraport
from contraport import (
    KL,
    CoordinatePairs,
    Cross,
    Free,
    Gibbs,
    GuidedNegatives,
    LeadingCoordinates,
    Objective,
    Pairs,
    Rows,
)
from contraport.objectives import LogMeanKernel, WithinView

FEATURES = torch.stack(views(seed=3, d=4), 1)  # features of each view


def plans(layout):
    loss = Objective(layout, Gibbs("cosine", 0.5), Rows(), Pairs(), KL())
    options = {"features": FEATURES} if loss.requires_features_argument() else {}
    return [result.plan.dense() for result in loss.iterate_plans_with_targets(*views(), **options)]


def test_guided_negatives_inside_and_outside_other_layouts():
    """Each direction uses its own features."""
    inner, outer = (
        plans(layout)
        for layout in (LeadingCoordinates(2, GuidedNegatives(Cross())), GuidedNegatives(LeadingCoordinates(2, Cross())))
    )
    plain = plans(LeadingCoordinates(2, Cross()))
    for inside, outside, unguided in zip(inner, outer, plain, strict=True):
        torch.testing.assert_close(inside, outside, rtol=0, atol=0)
        assert (inside == 0).any()
        assert not (unguided == 0).any()


@pytest.mark.parametrize("margins", [(0.0, 0.5), (0.5, 0.0)])
def test_nested_guided_negatives_exclude_the_union(margins):
    strict, loose = (plans(GuidedNegatives(Cross(), margin)) for margin in (0.5, 0.0))
    both = plans(GuidedNegatives(GuidedNegatives(Cross(), margins[0]), margins[1]))
    for alone, further, together in zip(strict, loose, both, strict=True):
        assert (alone == 0).sum() > (further == 0).sum()
        assert torch.equal(together == 0, alone == 0)


def test_guided_objectives_are_not_info_nce():
    loss = Objective(GuidedNegatives(Cross()), Gibbs("cosine", 0.5), Rows(), Pairs(), KL())
    value = float(loss(*views(), features=FEATURES))
    assert not loss.is_info_nce
    assert loss.mutual_information_bound(value) is None


def test_within_view_layout_accepts_one_view():
    alone = Objective(WithinView(), Gibbs("sqeuclidean", 1.0), Free(), Pairs(), LogMeanKernel())
    z0, z1 = views()
    torch.testing.assert_close((alone(z0) + alone(z1)) / 2, alone(z0, z1))
    with raises_usage_error("views.missing"):
        contraport.nt_xent()(z0)


def test_coordinates_accept_the_deprecated_keyword_with_one_warning():
    with pytest.warns(FutureWarning, match="centered") as caught:
        layout = CoordinatePairs(Cross(symmetric=False), centred=False)
    assert layout == CoordinatePairs(Cross(symmetric=False), centered=False)
    assert len(caught) == 1
