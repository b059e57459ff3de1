"""`depends_on_constraint`: constraints do not change the value of an objective without this property."""

import inspect

import pytest
import torch
from tests.errors import raises_usage_error
from tests.objectives.comparing import RANKING

import contraport
from contraport import objectives
from contraport.catalog import OBJECTIVES
from contraport.errors import UsageError
from contraport.objectives import Objective
from contraport.objectives.constraints import Constraint

ATTRIBUTES = {
    "labels": torch.arange(8) % 3,
    "domains": torch.arange(8) % 2,
    "ids": torch.arange(8),
    "features": torch.randn(8, 3, generator=torch.Generator().manual_seed(1)),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_constraint_changes_the_value_only_if_declared(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    views = [torch.randn(8, 4, generator=generator) for _ in range(2)]
    settings = {"items": 8, "dimensions": 4}
    parameters = inspect.signature(OBJECTIVES[name].build).parameters
    loss = contraport.objective(name, **{key: settings[key] for key in settings.keys() & parameters.keys()}).eval()
    if not isinstance(loss, Objective):
        return
    unread = (*loss.unread_item_options(), *(() if loss.requires_ids else ("ids",)))
    attributes = {key: value for key, value in ATTRIBUTES.items() if key not in unread}
    if name in RANKING:
        attributes = attributes | {"weights": torch.arange(8.0)}
    before, changed, rejected = loss(*views, **attributes), False, False
    for constraint in (contraport.Simplex(), contraport.Balanced(1)):
        try:
            loss.set_constraint(constraint)
        except UsageError:
            rejected = True
        else:
            changed = changed or not torch.allclose(loss(*views, **attributes), before)
    # The plan of quadratic has an infinite temperature, and is the same under all constraints.
    assert changed == loss.depends_on_constraint or (loss.depends_on_constraint and (rejected or name == "quadratic"))


@pytest.mark.parametrize("name", ["dclw", "gte"])
def test_log_sum_kernel_rejects_constraints_with_column_potentials(name: str) -> None:
    loss = contraport.objective(name)
    for constraint in (contraport.Balanced(3), contraport.Columns(), contraport.Unbalanced(0.1)):
        with raises_usage_error("divergence.constraint", "Free"):
            loss.set_constraint(constraint)
    loss.set_constraint(contraport.Rows())


def kernel_divergences():
    """Return divergences that depend on the kernel only, by name."""
    pairwise = {name: build(0.1, 1.0) for name, build in objectives.PAIRWISE_PRESETS.items()}
    return pairwise | {
        type(divergence).__name__: divergence
        for divergence in (
            objectives.TargetCost(), objectives.KernelAttraction(), objectives.LogKernelAttraction(),
            objectives.MeanSquaredCost(), objectives.DebiasedContrastive(), objectives.ClosedFormQuadratic(),
            objectives.Logistic(), objectives.NoiseContrastiveEstimation(), objectives.LogMeanKernel(),
            objectives.MeanKernel(), objectives.LogSumKernel(),
        )
    }  # fmt: skip


@pytest.mark.parametrize("layout", [contraport.Cross(), contraport.Joint()], ids=repr)
@pytest.mark.parametrize("name", kernel_divergences())
def test_kernel_divergences_do_not_depend_on_the_constraint(name: str, layout: objectives.Layout) -> None:
    generator = torch.Generator().manual_seed(0)
    z = [torch.randn(6, 4, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2)]

    def value_and_gradient(constraint: Constraint) -> list[torch.Tensor]:
        divergence = kernel_divergences()[name]
        loss = objectives.Objective(layout, contraport.Gibbs("cosine", 0.5), constraint, contraport.Pairs(), divergence)
        value = loss.eval()(*z)
        return [value, *torch.autograd.grad(value, z)]

    expected = value_and_gradient(contraport.Free())
    if name == "LogSumKernel":
        others = [contraport.Rows(), contraport.Simplex()]
    else:
        others = [contraport.Rows(), contraport.Simplex(), contraport.Columns(), contraport.Balanced(3),
                  contraport.Unbalanced(0.1), contraport.Tsallis(2), contraport.Tsallis(0.5),
                  contraport.Tsallis(2, "balanced")]  # fmt: skip
    for constraint in others:
        torch.testing.assert_close(value_and_gradient(constraint), expected, rtol=1e-9, atol=1e-12)


def log_mean_kernel_of_block(z0: torch.Tensor, z1: torch.Tensor) -> torch.Tensor:
    kernel = torch.exp((torch.nn.functional.normalize(z0) @ torch.nn.functional.normalize(z1).T - 1) / 0.5)
    return kernel.mean().log()


@pytest.mark.parametrize(
    "constraint",
    [contraport.Free(), contraport.Rows(), contraport.Columns(), contraport.Balanced(3), contraport.Unbalanced(0.1),
     contraport.Tsallis(2), contraport.Tsallis(0.5)],
    ids=repr,
)  # fmt: skip
def test_kernel_penalties_do_not_depend_on_the_constraint(constraint: Constraint) -> None:
    generator = torch.Generator().manual_seed(0)
    z0, z1 = (torch.randn(6, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    for penalty, dense_kernel in ((contraport.LogMeanKernel(), log_mean_kernel_of_block(z0, z1)),
                            (contraport.MeanKernel(), log_mean_kernel_of_block(z0, z1).exp())):  # fmt: skip
        loss = contraport.Objective(
            contraport.Cross(), contraport.Gibbs("cosine", 0.5), constraint, contraport.Pairs(),
            contraport.TargetCost(), {penalty: 1.0},
        )  # fmt: skip
        result = loss.compute_terms_by_name(z0, z1)[type(penalty).__name__]
        torch.testing.assert_close(result, dense_kernel, rtol=1e-9, atol=0)
