"""GCA-UOT with all terms, against its formula in double precision."""

import pytest
import torch
from tests.errors import raises_usage_error
from tests.objectives import formulas

import contraport

DISTANCES = {
    "kl": lambda m, a: (m * (m / a).log() - m + a).sum(),
    "squared-l2": lambda m, a: len(m) / 2 * (m - a).square().sum(),
    "total-variation": lambda m, a: (m - a).abs().sum() / 2,
    "jensen-shannon": lambda m, a: (m * (2 * m / (m + a)).log() + a * (2 * a / (m + a)).log()).sum() / 2,
}


@pytest.mark.parametrize("name", DISTANCES)
def test_equals_the_formula(name: str) -> None:
    z0, z1 = torch.randn(2, 9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    loss = contraport.gca_uot(
        0.3, 4, 0.5, marginal_weight=(0.1, 0.7), marginal_divergence=name, entropy_weight=0.05, rince_weight=0.2
    )
    plan = formulas.unbalanced_plan(formulas.gibbs(formulas.joint(z0, z1, None), 0.3), 4, 0.5, 0.3, "product")
    rows, columns = (DISTANCES[name](plan.sum(side), torch.full((18,), 1 / 18).double()) for side in (1, 0))
    entropy = -(torch.xlogy(plan, plan) - plan).sum()
    plain = contraport.gca_uot(0.3, 4, 0.5, rince_weight=0.2)(z0, z1)
    torch.testing.assert_close(loss(z0, z1), plain + 0.1 * rows + 0.7 * columns + 0.05 * entropy)


def test_gradient_by_finite_differences() -> None:
    z = torch.randn(2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    loss = contraport.gca_uot(
        0.5, 3, marginal_weight=(0.2, 0.1), marginal_divergence="jensen-shannon", entropy_weight=0.1
    )
    assert torch.autograd.gradcheck(lambda z: loss(z[0], z[1]), z)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"marginal_weight": (0.1, -0.1)}, "marginal_weight.invalid"),
        ({"marginal_weight": (0.1, 0.1, 0.1)}, "marginal_weight.invalid"),
        ({"marginal_weight": 1.0, "marginal_divergence": "w1"}, "marginal_divergence.unknown"),
        ({"entropy_weight": -1.0}, "entropy_weight.invalid"),
    ],
)
def test_rejects_invalid_weights(options: dict[str, object], code: str) -> None:
    with raises_usage_error(code):
        contraport.gca_uot(**options)
