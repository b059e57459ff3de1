"""Weights of items: the loss is the weighted mean of the values of rows; rows without a target."""

import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss
from tests.objectives.comparing import OF_COORDINATES, RANKING, required_attributes
from torch.nn.functional import normalize

import contraport
from contraport import (
    KL,
    Balanced,
    Cross,
    Free,
    Gibbs,
    Joint,
    Labels,
    Matrix,
    Objective,
    Rows,
    Simplex,
    Tsallis,
    Unbalanced,
)
from contraport.catalog import OBJECTIVES
from contraport.objectives import (
    ContrastiveEnergy,
    FenchelYoung,
    ReverseKL,
    Rince,
    SoftNeighbors,
    SquaredL2,
    TargetCost,
)

LABELS = torch.tensor([0, 1, 1, 2, 3, 3])
SETTINGS = {"direct-clr": {"dimensions": 3}}
WITHOUT_ROWS = {"align-uniform", *OF_COORDINATES, *RANKING}
WEIGHTS = torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0, 3.0], dtype=torch.float64)


def views(n=6, d=4, seed=0):
    return torch.randn(2, n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).unbind()


def test_classes_of_one_item_match_pytorch_metric_learning():
    """One view: items without another item of their class contribute neither to the value nor to the gradient."""
    z, _ = views()
    layout = contraport.WithinView()
    loss = Objective(layout, Gibbs("cosine", 0.3), Rows(), Labels(), KL())
    value, slope = with_gradient(lambda z: loss(z, labels=LABELS), z)
    expected, expected_slope = with_gradient(lambda z: SupConLoss(temperature=0.3)(z, LABELS), z)
    torch.testing.assert_close(value, expected)  # classes of two: the mean of log |P(i)| is 0
    torch.testing.assert_close(slope, expected_slope)


def with_gradient(function, z):
    z = z.clone().requires_grad_()
    value = function(z)
    return value.detach(), torch.autograd.grad(value, z)[0]


def test_classes_of_several_items_differ_by_the_constant():
    z, _ = views(8)
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2])
    loss = Objective(contraport.WithinView(), Gibbs("cosine", 0.3), Rows(), Labels(), KL())
    value, slope = with_gradient(lambda z: loss(z, labels=labels), z)
    expected, expected_slope = with_gradient(lambda z: SupConLoss(temperature=0.3)(z, labels), z)
    constant = torch.tensor([2.0] * 3 + [3.0] * 4, dtype=torch.float64).log().mean()
    torch.testing.assert_close(value, expected - constant)
    torch.testing.assert_close(slope, expected_slope)


@pytest.mark.parametrize("constraint", [Rows(), Balanced(3), Simplex(), Free()], ids=repr)
def test_a_batch_without_positives_has_zero_loss_and_gradient(constraint):
    z, _ = views()
    loss = Objective(contraport.WithinView(), Gibbs("cosine", 0.3), constraint, Labels(), KL())
    value, slope = with_gradient(lambda z: loss(z, labels=torch.arange(6)), z)
    assert value == 0
    assert (slope == 0).all()


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name not in WITHOUT_ROWS])
def test_equal_weights_change_nothing(name):
    loss = contraport.objective(name, **SETTINGS.get(name, {})).double().eval()
    attributes = required_attributes(name, 6)
    torch.testing.assert_close(
        loss(*views(), **attributes, weights=torch.full((6,), 7.0)), loss(*views(), **attributes)
    )


DIVERGENCES = {
    "KL": (Rows(), KL()),
    "KL balanced": (Balanced(2), KL()),
    "reverse": (Rows(), ReverseKL()),
    "squared": (Rows(), SquaredL2()),
    "rince": (Balanced(2), Rince()),
    "quadratic": (Tsallis(mass_constraint="rows"), FenchelYoung()),
    "cost": (Free(), TargetCost()),
    "energy": (Rows(), ContrastiveEnergy()),
    "energy, not held": (Rows(), ContrastiveEnergy(detach_plan=False)),
    "quadratic energy": (Tsallis(mass_constraint="rows"), ContrastiveEnergy()),
}


@pytest.mark.parametrize("name", DIVERGENCES)
def test_the_weighted_mean_is_linear_in_the_shares(name):
    """The value of an item is the loss with weight on it alone; any weights give the weighted mean of these values."""
    z0, z1 = views()
    constraint, divergence = DIVERGENCES[name]
    loss = Objective(
        contraport.Cross(symmetric=False), Gibbs("cosine", 0.4), constraint, SoftNeighbors((z0, z1)), divergence
    )
    alone = torch.stack([loss(z0, z1, weights=one) for one in torch.eye(6, dtype=torch.float64)])
    torch.testing.assert_close(loss(z0, z1, weights=WEIGHTS), alone @ WEIGHTS / WEIGHTS.sum())
    torch.testing.assert_close(loss(z0, z1), alone.mean())


def test_values_under_different_weights_are_comparable():
    """Items with equal values have the same loss under any weights."""
    z = torch.eye(6, dtype=torch.float64)
    for weights in (None, WEIGHTS, torch.eye(6)[0]):
        torch.testing.assert_close(contraport.nt_xent()(z, z, weights=weights), contraport.nt_xent()(z, z))


def test_a_matrix_target_keeps_its_row_masses():
    """Row masses are part of a matrix target: the divergence is zero if the plan equals it."""
    z0, z1 = views()
    plan = Objective(Joint(), Gibbs("cosine", 0.4), Simplex(), contraport.Pairs(), KL()).plan(z0, z1)
    value = Objective(Joint(), Gibbs("cosine", 0.4), Simplex(), contraport.Matrix(plan), KL())(z0, z1)
    torch.testing.assert_close(value, torch.zeros((), dtype=torch.float64), atol=1e-14, rtol=0)


@pytest.mark.parametrize("weights", [None, torch.tensor([3.0, 2.0, 0.5, 1.0])], ids=["equal", "weighted"])
@pytest.mark.parametrize("constraint", [Rows(), Unbalanced(0.5, iterations=3), Free()], ids=repr)
def test_kl_weights_target_rows_and_counts_a_fixed_mass_as_1(constraint, weights):
    """The first row has no compared pair, as its item is in all columns."""
    (z0, _), (z1, _) = views(4, 3), views(5, 3, seed=1)
    target = torch.rand(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    target[0] = 0
    loss = Objective(Cross(symmetric=False), Gibbs("cosine", 0.5), constraint, Matrix(target), KL())
    ids = (torch.arange(4), torch.zeros(5, dtype=torch.long))
    options = {} if weights is None else {"weights": (weights, torch.ones(5))}
    value = loss(z0, z1, ids=ids, **options)

    kernel = ((normalize(z0[1:]) @ normalize(z1).T - 1) / 0.5).exp()
    if isinstance(constraint, Rows):
        plan, mass = kernel / kernel.sum(1, keepdim=True) / 4, 1  # not 3/4
    elif isinstance(constraint, Free):
        plan = kernel / 4
        mass = plan.sum()
    else:
        columns = torch.ones(5, dtype=torch.float64)
        for _ in range(3):  # the damping is 0.5 / (0.5 + 0.5)
            rows = (kernel @ columns / 5) ** -0.5
            columns = (kernel.T @ rows / 4) ** -0.5
        plan = rows[:, None] * kernel * columns / 20
        mass = plan.sum()
    t = target[1:] / target.sum()
    w = torch.ones(3, dtype=torch.float64) if weights is None else weights[1:].double()
    w = w / (w @ t.sum(1))
    torch.testing.assert_close(value, (w[:, None] * t * (t / plan).log()).sum() - 1 + mass)
