"""Item weights from the balanced plan of the batch, against the dense plan in double precision."""

import pytest
import torch
from tests.errors import raises_usage_error
from tests.objectives.comparing import BACKENDS, assert_same, build, outcome, views

import contraport
from contraport import WeightsFromPlan
from contraport.objectives.loss_schedules import parse_sample_weight_schedule

pytestmark = pytest.mark.usefixtures("uneven_tiles")

WEIGHTS = torch.tensor([0.5, 0.0, 2.0, 4.0, 0.1, 1.0, 3.0], dtype=torch.float64)


def weights_by_formula(z0, z1, temperature, strength, iterations):
    u, v = (torch.nn.functional.normalize(z.detach().double()) for z in (z0, z1))
    kernel, n = torch.exp(u @ v.T / temperature), len(u)
    a, b = torch.ones(n, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    for _ in range(iterations):
        a = 1 / n / (kernel @ b)
        b = 1 / n / (kernel.T @ a)
    return 1 - strength + strength * n * (a * kernel.diag() * b)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weights_of_call", [None, WEIGHTS], ids=["alone", "times-given"])
@pytest.mark.parametrize("name", ["info-nce", "nt-xent", "gca-uot", "iot"])
def test_value_and_gradient_match_explicit_weights(name, weights_of_call, backend):
    z0, z1 = views()
    loss = build(name)
    weights = weights_by_formula(z0, z1, loss.temperature, 0.7, 6) * (1 if weights_of_call is None else weights_of_call)
    with contraport.engine.backend(backend):
        result = outcome(lambda *z: build(name)(*z, weights=WeightsFromPlan(0.7, 6, weights_of_call)), z0, z1)
        expected = outcome(lambda *z: build(name)(*z, weights=weights), z0, z1)
    assert_same(result, expected)


def test_several_views_average_over_pairs():
    z = views(k=3)
    loss = build("cmc")
    pairs = [(0, 1), (0, 2), (1, 2)]
    weights = sum(weights_by_formula(z[v], z[w], loss.temperature, 0.9, 20) for v, w in pairs) / 3
    assert_same(outcome(lambda *z: loss(*z, weights="plan"), *z), outcome(lambda *z: loss(*z, weights=weights), *z))


def test_marginals_are_the_weights_too():
    z0, z1 = views()
    allowed = contraport.Balanced(4, marginals="weights")
    loss = contraport.Objective(
        contraport.Cross(), contraport.Gibbs("cosine", 0.5), allowed, contraport.Pairs(), contraport.KL()
    )
    weights = weights_by_formula(z0, z1, 0.5, 0.9, 20)
    torch.testing.assert_close(loss(z0, z1, weights="plan"), loss(z0, z1, weights=weights))


def test_mismatched_pairs_have_smaller_weights():
    z0 = torch.nn.functional.normalize(torch.randn(40, 8, generator=torch.Generator().manual_seed(0)))
    z1 = z0.clone()
    z1[:10] = z0[:10].roll(1, 0)
    weights = WeightsFromPlan(1.0)((z0, z1), contraport.Gibbs("cosine", 0.1))
    assert weights[:10].max() < weights[10:].min()


def test_zero_strength_gives_equal_weights():
    result = outcome(lambda *z: build("nt-xent")(*z, weights=WeightsFromPlan(0)), *views())
    assert_same(result, outcome(build("nt-xent"), *views()), 1e-12)


def test_the_strength_follows_its_schedule():
    constant = parse_sample_weight_schedule("plan", 10)
    assert [(constant(step).strength, constant(step).iterations) for step in (0, 10)] == [(0.9, 20)] * 2
    assert parse_sample_weight_schedule("plan:0.5", 10)(0).strength == 0.5
    course = parse_sample_weight_schedule("plan:strength=0.2:0.6:linear,iterations=3", 10)
    assert (course(5).strength, course(5).iterations) == (0.4, 3)


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (lambda: build("nt-xent")(*views(), weights="plans"), "weights.unknown", "'plan'"),
        (lambda: build("vic-reg")(*views(), weights="plan"), "weights.conflict", ""),
        (lambda: build("nt-xent")(views()[0], weights="plan", target=[[0, 1]]), "weights.single_view", "one"),
        (
            lambda: build("nt-xent")(*views(), weights="plan", present=torch.eye(7, 2).flip(0) < 1),
            "weights.conflict",
            "",
        ),
        (lambda: WeightsFromPlan(1.5), "strength.invalid", "1.5"),
        (lambda: WeightsFromPlan(iterations=0), "iterations.invalid", ""),
        (lambda: parse_sample_weight_schedule("plan:power=2", 1), "sample_weight.unknown", "'power'"),
        (lambda: parse_sample_weight_schedule("plan:strength=0:2", 1), "strength.invalid", "2.0"),
    ],
)
def test_rejects_invalid_arguments(call, code, value):
    with raises_usage_error(code, value):
        call()


@pytest.mark.parametrize("keyword", ["given", "item_weights"])
def test_plan_weights_accept_the_deprecated_keywords_with_one_warning(keyword):
    with pytest.warns(FutureWarning, match="batch.item.weights") as caught:
        weights = WeightsFromPlan(0.5, **{keyword: WEIGHTS})
    assert weights.batch_item_weights is WEIGHTS
    assert len(caught) == 1
