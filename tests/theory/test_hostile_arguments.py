"""Invalid types, shapes and ranges of arguments of the theory studies."""

import math
from fractions import Fraction

import pytest
import torch
from tests.errors import raises_usage_error

from contraport import nt_xent, pairwise, theory

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
PAIRS = torch.eye(4, dtype=torch.bool)


@pytest.mark.parametrize(
    ("study", "code"),
    [
        (lambda: theory.compare_collapse([1.0]), "x.shape"),
        (lambda: theory.compare_collapse(X * math.nan), "x.invalid"),
        (lambda: theory.compare_collapse(X, nt_xent()), "objectives.type"),
        (lambda: theory.compare_collapse(X, {"own": None}, iterations=1), "objectives.type"),
        (lambda: theory.compare_collapse(X, iterations=-1), "iterations.invalid"),
        (lambda: theory.compare_collapse(X, iterations=1, seed="0"), "seed.invalid"),
        (lambda: theory.compare_collapse(X[:1].repeat(4, 1), iterations=1), "x.constant"),
        (lambda: theory.compare_constraints(X, None), "z1.shape"),
        (lambda: theory.compare_constraints(X, torch.Tensor), "z1.shape"),
        (
            lambda: theory.compare_constraints(X, X, partners=PAIRS.to_sparse()),
            "partners.shape",
        ),
        (lambda: theory.compare_constraints(X, X, temperature=1e-300), "temperature.invalid"),
        (lambda: theory.compare_constraints(X, X, relaxation=Fraction(1, 2)), "relaxation.invalid"),
        (lambda: theory.compare_constraints(X, X, partners=torch.eye(4)), "partners.shape"),
        (lambda: theory.compute_noise_and_mixup_targets(2), "dimensions.type"),
        (lambda: theory.compute_noise_and_mixup_targets((2,), components=math.nan), "components.invalid"),
        (lambda: theory.compute_item_cosines_by_class(X, [0, 0, 1, 1]), "labels.shape"),
        (lambda: theory.compute_item_cosines_by_class(X, torch.tensor([0.0, 0.0, 1.0, 1.0])), "labels.shape"),
        (lambda: theory.contrastive_covariance(X[0], X), "x0.shape"),
        (lambda: theory.contrastive_covariance(X, X[:, :2]), "x1.shape"),
        (lambda: theory.compute_item_cosines_by_class(X, torch.tensor([0, 0, 1, 1]), names=2), "names.type"),
        (lambda: theory.contrastive_covariance(X, X, alpha=1.0), "alpha.shape"),
        (lambda: theory.contrastive_covariance(X, X, alpha=torch.eye(8).to_sparse()), "alpha.shape"),
        (lambda: theory.contrastive_covariance(X.double() * 1e200, X.double()), "x0.invalid"),
        (lambda: theory.pair_weights(X, X * math.nan), "z1.invalid"),
        (lambda: theory.pair_weights(X[:2], X, loss=pairwise("triplet")), "z1.shape"),
        (lambda: theory.pair_weights(X.numpy(), X, loss=pairwise("triplet")), "z0.shape"),
        (lambda: theory.energy(X, X.to("meta")), "z1.shape"),
        (lambda: theory.compute_couplings_1d(X[0].abs(), None), "b.shape"),
        (lambda: theory.compute_couplings_1d(X[0] * math.inf, X[0].abs()), "a.invalid"),
        (lambda: theory.compute_couplings_1d(X[0].abs(), X[1].abs(), x=0.5), "x.shape"),
        (lambda: theory.compute_couplings_1d(X[0].abs(), X[1].abs(), iterations=4), "iterations.type"),
        (lambda: theory.compute_couplings_1d(X[0].abs(), X[1].abs(), iterations=""), "iterations.type"),
        (lambda: theory.compute_couplings_1d(X[0].abs(), X[1].abs().to("meta")), "b.shape"),
        (lambda: theory.compute_couplings_1d(X[0].abs(), X[1].abs(), temperatures=()), "temperatures.missing"),
        (lambda: theory.sample_gaussians_on_circle(components="5"), "components.invalid"),
        (lambda: theory.sample_gaussians_on_circle(items=4), "items.invalid"),
        (lambda: theory.sample_gaussians_on_circle(seed=0.5), "seed.invalid"),
        (lambda: theory.solve_entropic_program(None), "costs.type"),
        (lambda: theory.solve_entropic_program((0.0, 1.0)), "costs.invalid"),
        (lambda: theory.solve_entropic_program(torch.zeros(3).to_sparse()), "costs.invalid"),
        (lambda: theory.solve_entropic_program(temperatures=0.5), "temperatures.type"),
        (lambda: theory.sweep_uniformity_penalty(0.5), "factors.type"),
        (lambda: theory.sweep_uniformity_penalty(data=X, iterations=1), "data.type"),
        (lambda: theory.train_deep_linear_encoder(X, X, 8), "widths.type"),
        (lambda: theory.train_deep_linear_encoder(X, X, (4, 0)), "widths.invalid"),
        (lambda: theory.train_deep_linear_encoder(X, X, per_filter="no"), "per_filter.invalid"),
        (lambda: theory.train_linear_encoder(X, X, 4), "dimensions.invalid"),
        (lambda: theory.train_linear_encoder(None, X), "x0.shape"),
        (lambda: theory.train_linear_encoder(X, X, iterations="many"), "iterations.invalid"),
        (lambda: theory.train_on_five_gaussians("nt-xent"), "objective.type"),
        (lambda: theory.train_on_five_gaussians(data=X), "data.type"),
    ],
)
def test_rejects_arguments(study, code):
    with raises_usage_error(code):
        study()


def test_accepts_tensors_of_integers_and_costs():
    integers = torch.tensor([[1, 2, 3], [3, 2, 1], [0, 1, 0]])
    expected = theory.contrastive_covariance(integers.double(), integers.double()).matrix
    torch.testing.assert_close(theory.contrastive_covariance(integers, integers).matrix, expected)
    path = theory.solve_entropic_program(torch.tensor([0.0, 0.3, 1.0]), (0.1,))
    torch.testing.assert_close(
        path.solutions, theory.solve_entropic_program((0.0, 0.3, 1.0), (0.1,)).solutions, rtol=1e-6, atol=0
    )


def test_accepts_views_that_require_a_gradient():
    views = X.clone().requires_grad_() * 2, X.clone().requires_grad_() + 1
    plain = [view.detach() for view in views]
    train = theory.train_linear_encoder
    torch.testing.assert_close(train(*views, iterations=2).weight, train(*plain, iterations=2).weight)
    deep = theory.train_deep_linear_encoder(*views, (3, 2), iterations=2)
    assert not any(weight.requires_grad for weight in deep.layer_weights)
    masses = views[0][0].abs()
    theory.compute_couplings_1d(masses, masses, temperatures=(1.0,), iterations=(1,)).figure()
    theory.contrastive_covariance(*views).figure()


def test_an_encoder_of_one_layer_has_no_alignments():
    result = theory.train_deep_linear_encoder(X, X, (2,), iterations=2)
    assert result.layer_alignments_by_iteration.shape == (len(result.energy_by_iteration), 0)
    assert not result.figure().axes[2].lines


def test_a_collapsed_representation_has_no_singular_values():
    result = theory.compare_collapse(X, {str(number): nt_xent() for number in range(11)}, features=4, iterations=1)
    assert len(result.figure().axes[0].lines) == 12
    assert all(torch.isfinite(values).all() for values in result.relative_singular_values.values())
