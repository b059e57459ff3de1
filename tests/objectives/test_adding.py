"""Custom constraints, divergences, kernels, layouts, targets and registered objectives."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch

import contraport
from contraport import Gibbs, Joint, Objective, Pairs
from contraport.catalog import OBJECTIVES, register_objective
from contraport.data import from_arrays
from contraport.engine import backend
from contraport.engine.kernel_link_functions import PolynomialTailLink
from contraport.engine.kernels import Kernel
from contraport.objectives import Constraint, DenseTargetPlan, Divergence, Layout, LayoutTraits, Plan, Target
from contraport.objectives.constraints.sinkhorn import SinkhornConstraint
from contraport.objectives.layouts import Block, build_diagonal_pattern


@dataclass(frozen=True, repr=False)
class ColumnsThenRows(SinkhornConstraint):
    """Constraint: its half-steps and their order."""

    iterations: int = 1

    def half_step_axes(self):
        return ("columns", "rows") * self.iterations


@dataclass(frozen=True, repr=False)
class Missing(Divergence):
    """Divergence: the target mass that the plan lacks, by row."""

    def __call__(self, outcome):
        return outcome.target.row_mass() - outcome.target.target_weighted_row_sums(outcome.plan, torch.exp)


class Cauchy(Kernel):
    """Kernel: a cost and a link."""

    def __init__(self, temperature=1.0):
        super().__init__("sqeuclidean", temperature, learnable=False)

    def log_kernel(self, negative_cost_in_unit, temperature):
        return negative_cost_in_unit(temperature).with_link(PolynomialTailLink(1.0))


@dataclass(frozen=True, repr=False)
class Chain(Layout):
    """Layout: each view with the next one."""

    traits = LayoutTraits(takes_all_views=True)

    def __call__(self, *views):
        pattern = build_diagonal_pattern(len(views[0]), 1.0, False, views[0].device)
        return [Block(pattern, a, b) for a, b in pairwise(views)]


@dataclass(frozen=True, repr=False)
class Smoothed(Target):
    """Target: positives, smoothed with a uniform plan."""

    fills_all_rows = True

    def __call__(self, block, attributes):
        target = Pairs()(block, attributes).dense()
        return DenseTargetPlan(0.9 * target + 0.1 / target.numel())


@pytest.fixture
def custom_objective():
    @register_objective("Nobody (2026).", r"\mathrm{mine}")
    def my_own(temperature: float = 0.5) -> contraport.objectives.Loss:
        """Return a custom objective."""
        return Objective(Chain(), Gibbs("cosine", temperature), ColumnsThenRows(2), Smoothed(), contraport.KL())

    yield "my-own"
    del OBJECTIVES["my-own"]


def views(number=2):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(9, 4, dtype=torch.float64, generator=generator) for _ in range(number)]


@pytest.mark.parametrize(
    "loss",
    [
        Objective(Joint(), Gibbs(), ColumnsThenRows(2), Pairs(), contraport.KL()),
        Objective(Joint(), Gibbs(), contraport.Rows(), Pairs(), Missing()),
        Objective(Joint(), Cauchy(), contraport.Balanced(2), Pairs(), contraport.KL(), {Missing(): 0.5}),
        Objective(Chain(), Cauchy(), ColumnsThenRows(), Smoothed(), Missing()),
    ],
    ids=["constraint", "divergence", "kernel", "all"],
)
def test_custom_parts_work_with_every_backend(loss):
    results = []
    for name in ("dense", "stored", "streamed"):
        z = [v.clone().requires_grad_() for v in views()]
        with backend(name):
            value = loss(*z, weights=torch.arange(9.0))
        results.append([value.detach(), *torch.autograd.grad(value, z)])
    for result in results[1:]:
        for value, reference in zip(result, results[0], strict=True):
            torch.testing.assert_close(value, reference)
    assert isinstance(loss.constraint, Constraint)
    assert isinstance(next(loss.iterate_plans_with_targets(*views())).plan, Plan)


def test_a_custom_objective_is_registered_and_trains(custom_objective, tmp_path):
    assert custom_objective in contraport.list_objectives()
    loss = contraport.objective(custom_objective, temperature=0.3)
    assert loss(*views(3)).isfinite()
    assert "my_own(temperature=0.3)" in loss.explain()
    data = from_arrays(torch.randn(40, 5).numpy())
    run = contraport.train(
        data=data,
        objective=custom_objective,
        epochs=1,
        batch_size=20,
        encoder="mlp",
        out=tmp_path / "run",
        progress=False,
    )
    assert run.metrics_rows()[-1]["step"] == 2
