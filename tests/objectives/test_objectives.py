"""Objectives of the catalog against other libraries, POT and dense formulas; invariances; degenerate batches."""

import contextlib
import inspect
import math

import ot
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.errors import raises_usage_error
from tests.objectives.comparing import required_attributes

import contraport
from contraport import UsageError
from contraport.catalog import OBJECTIVES

SETTINGS = {"direct-clr": {"dimensions": 2}}
NEEDS_TWO_ITEMS = {
    "align-uniform", "pairwise", "cmc-nce", "dcl", "dclw", "gte", "dhel", "mv-dhel", "kcl", "spectral",
    "debiased", "hard-negative", "sog-clr", "barlow-twins", "vic-reg", "alpha-cl", "quadratic",
}  # fmt: skip
NO_TEMPERATURE = {"byol", "align-uniform", "quadratic", "spectral", "barlow-twins", "vic-reg"}
ONE_SIDED = {"byol"}
SIGNED = {
    "rince", "gca-rince", "align-uniform", "alpha-cl", "quadratic", "t-simclr", "iot-quadratic", "dcl", "dclw", "dhel",
    "mv-dhel", "kcl", "spectral", "sog-clr",
}  # fmt: skip
UNNORMALISED = {"t-simclr", "vic-reg"}
ORDERED_VIEWS = {"angle"}  # divides the complex numbers of the first view by those of the second


def build(name, **settings):
    return contraport.objective(name, **SETTINGS.get(name, {}), **settings).double()


def attributes(name, n):
    return required_attributes(name, n)


def views(n=7, d=5, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(n, d, dtype=dtype, generator=generator) for _ in range(2))


def joint_cost(z0, z1):
    z = F.normalize(torch.cat([z0, z1]), dim=1)
    return (1 - z @ z.T).fill_diagonal_(torch.inf)


def joint_pairs(n):
    return torch.eye(2 * n, dtype=torch.float64).roll(n, 0) / (2 * n)


def generalised_kl(target, plan):
    present = target > 0
    return (target[present] * (target[present] / plan[present]).log()).sum() - target.sum() + plan.sum()


def test_nt_xent_matches_pytorch_metric_learning():
    from pytorch_metric_learning.losses import NTXentLoss, SelfSupervisedLoss

    z0, z1 = views()
    expected = SelfSupervisedLoss(NTXentLoss(temperature=0.3))(z0, z1)
    torch.testing.assert_close(contraport.nt_xent(temperature=0.3)(z0, z1), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("symmetric", [True, False])
def test_info_nce_is_cross_entropy(symmetric):
    z0, z1 = views()
    logits, labels = F.normalize(z0) @ F.normalize(z1).T / 0.2, torch.arange(7)
    expected = F.cross_entropy(logits, labels)
    if symmetric:
        expected = (expected + F.cross_entropy(logits.T, labels)) / 2
    torch.testing.assert_close(contraport.info_nce(temperature=0.2, symmetric=symmetric)(z0, z1), expected)


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_gca_ince_is_the_divergence_from_the_scaled_kernel(iterations):
    """Sinkhorn iterations on the matrix, as in the paper."""
    z0, z1 = views()
    plan = torch.exp(-joint_cost(z0, z1) / 0.5)
    for _ in range(iterations):
        plan = plan / plan.sum(1, keepdim=True) / 14
        plan = plan / plan.sum(0) / 14
    loss = contraport.gca_ince(temperature=0.5, iterations=iterations)
    torch.testing.assert_close(loss(z0, z1), generalised_kl(joint_pairs(7), plan))
    torch.testing.assert_close(loss.plan(z0, z1), plan)
    torch.testing.assert_close(loss.target_plan(z0, z1), joint_pairs(7))


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("value", ["domains", [1], {"a": 1}, True, None, 2.5, -1, 0, math.nan], ids=str)
def test_settings_of_any_type_are_accepted_or_rejected(name, value):
    """Values from a command line or a YAML file raise a UsageError or none."""
    torch.manual_seed(0)
    z0, z1 = torch.randn(2, 5, 8)
    for setting in inspect.signature(OBJECTIVES[name].build).parameters:
        with contextlib.suppress(UsageError):
            contraport.objective(name, **{setting: value})(z0, z1, **attributes(name, 5))


def test_rejects_a_target_given_by_name():
    with raises_usage_error("target.type", "'domains'"):
        contraport.objective("info-nce", target="domains")
    with raises_usage_error("target.type", "'domains'"):
        contraport.nt_xent()(torch.eye(2), torch.eye(2), target="domains")


@pytest.mark.parametrize("relaxation", [0.2, 1.0, (0.3, 2.0)])
def test_gca_uot_matches_the_unbalanced_plan_of_pot(relaxation):
    z0, z1 = views()
    cost = joint_cost(z0, z1)
    cost[cost == torch.inf] = 1e6
    uniform = torch.full((14,), 1 / 14, dtype=torch.float64)
    expected = ot.unbalanced.sinkhorn_unbalanced(
        uniform, uniform, cost, 0.5, relaxation, reg_type="kl", numItermax=5000, stopThr=1e-14
    )
    loss = contraport.gca_uot(temperature=0.5, iterations=400, relaxation=relaxation)
    torch.testing.assert_close(loss.plan(z0, z1), expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(loss(z0, z1), generalised_kl(joint_pairs(7), expected), rtol=1e-6, atol=1e-9)


def test_gca_uot_with_infinite_relaxation_is_gca_ince():
    z0, z1 = views()
    strict = contraport.gca_uot(relaxation=math.inf)(z0, z1)
    torch.testing.assert_close(strict, contraport.gca_ince()(z0, z1))


def test_symmetric_balanced_loss_is_the_mean_of_both_directions():
    from contraport import KL, Balanced, Cross, Gibbs, Objective, Pairs

    z0, z1 = views()
    both = Objective(Cross(), Gibbs("cosine", 0.3), Balanced(2), Pairs(), KL())
    single = Objective(Cross(symmetric=False), Gibbs("cosine", 0.3), Balanced(2), Pairs(), KL())
    torch.testing.assert_close(both(z0, z1), (single(z0, z1) + single(z1, z0)) / 2)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("backend", ["stored", "streamed"])
def test_backends_agree_on_every_objective(monkeypatch, name, backend):
    monkeypatch.setattr("contraport.engine.backends.tiled.TILE_SHAPE", (4, 8))

    def value_and_gradients(backend_name):
        z0, z1 = (z.requires_grad_() for z in views())
        with contraport.engine.backend(backend_name):
            value = build(name)(z0, z1, **attributes(name, 7))
        value.backward()
        return value, z0.grad, torch.zeros_like(z1) if z1.grad is None else z1.grad

    for a, b in zip(value_and_gradients(backend), value_and_gradients("dense"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradcheck(name):
    z0, z1 = (z.requires_grad_() for z in views(n=4, d=3))
    if name in ONE_SIDED:
        z1 = z1.detach()
    settings_by_name = {
        "alpha-cl": {"detach": False}
    }  # detached weights have no gradient, unlike in differences of the value
    loss = build(name, **settings_by_name.get(name, {}))
    loss(z0, z1, **attributes(name, 4))  # initializes the averages over batches, constant from here on
    loss.eval()
    if name not in {"quadratic", "dclw", "sog-clr"}:
        assert torch.autograd.gradcheck(lambda a, b: loss(a, b, **attributes(name, 4)), (z0, z1))


@settings(max_examples=15, deadline=None)
@given(name=st.sampled_from(sorted(OBJECTIVES)), n=st.integers(1, 9), seed=st.integers(0, 10**6))
def test_invariances(name, n, seed):
    n = max(n, 2) if name in NEEDS_TWO_ITEMS else n
    z0, z1 = views(n=n, seed=seed)
    loss, attributes_of_items = build(name), attributes(name, n)
    value = loss(z0, z1, **attributes_of_items)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    shuffled = {key: attribute[order] for key, attribute in attributes_of_items.items()}
    torch.testing.assert_close(loss(z0[order], z1[order], **shuffled), value)  # order of the batch
    if name not in ORDERED_VIEWS:
        torch.testing.assert_close(loss(z1, z0, **attributes_of_items), value)  # order of the views
    if name not in UNNORMALISED:
        torch.testing.assert_close(loss(3 * z0, 0.5 * z1, **attributes_of_items), value)  # lengths of the embeddings
    if name not in SIGNED:
        assert value >= -1e-12  # a divergence


@pytest.mark.parametrize("name", ["info-nce", "nt-xent", "gca-ince", "gca-uot", "iot", "t-simclr", "direct-clr"])
def test_divergence_is_zero_if_the_plan_is_the_target(name):
    z0, z1 = views()
    loss = build(name)
    plan = loss.plan(z0, z1)
    if name == "info-nce":  # each direction has its own plan, so that no single target fits both
        loss = contraport.info_nce(symmetric=False)
    value = loss(z0, z1, target=plan)
    slack = generalised_kl(plan / plan.sum(), plan)  # the target has mass 1, an unbalanced plan may have less
    torch.testing.assert_close(value, slack, rtol=1e-9, atol=1e-12)


HOSTILE = {
    "identical rows": lambda: (torch.ones(6, 4), torch.ones(6, 4)),
    "zero rows": lambda: (torch.zeros(6, 4), torch.zeros(6, 4)),
    "opposite views": lambda: (torch.eye(4), -torch.eye(4)),
    "one item": lambda: (torch.randn(1, 4), torch.randn(1, 4)),
    "two items": lambda: (torch.randn(2, 4), torch.randn(2, 4)),
    "large numbers": lambda: (1e4 * torch.randn(6, 4), 1e4 * torch.randn(6, 4)),
}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("batch", HOSTILE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["dense", "streamed"])
def test_hostile_batches_stay_finite(name, batch, dtype, backend):
    torch.manual_seed(0)
    z0, z1 = (z.to(dtype).requires_grad_() for z in HOSTILE[batch]())
    # Gradients of the first two grow with 1 / temperature beyond the range of half precision; the third learns its
    # temperature, and rejects a lower one.
    lowest = {"rince": 0.1, "iot-quadratic": 0.1, "sigmoid": 0.01}
    temperature = {} if name in NO_TEMPERATURE else {"temperature": lowest.get(name, 0.001)}
    loss, attributes_of_items = build(name, **temperature), attributes(name, len(z0))
    if name == "vic-reg" and batch == "large numbers" and dtype == torch.float16:
        return  # the slope of a square of covariances grows with the cube of the length
    if batch == "one item" and name in NEEDS_TWO_ITEMS:
        with raises_usage_error("z0.single_item"):
            loss(z0, z1, **attributes_of_items)
        return
    with contraport.engine.backend(backend):
        value = loss(z0, z1, **attributes_of_items)
    value.backward()
    assert value.dtype == torch.float32
    assert torch.isfinite(value)
    for z in (z0, z1):
        assert z.grad is None or torch.isfinite(z.grad).all()


def test_half_precision_error_is_that_of_its_embeddings():
    z0, z1 = views(64, 16, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        value = contraport.nt_xent(temperature=0.1)(z0.bfloat16(), z1.bfloat16())
    exact = contraport.nt_xent(temperature=0.1)(z0.bfloat16().double(), z1.bfloat16().double())
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-5)


def test_learnable_temperature_has_its_gradient():
    from contraport import KL, Gibbs, Joint, Objective, Pairs, Unbalanced

    z0, z1 = views()

    def value(temperature):
        return contraport.gca_uot(temperature=temperature, iterations=3, relaxation=0.5)(z0, z1)

    for backend in ["dense", "streamed"]:
        kernel = Gibbs("cosine", 0.4, learnable=True).double()
        with contraport.engine.backend(backend):
            Objective(Joint(), kernel, Unbalanced(0.5, 3), Pairs(), KL())(z0, z1).backward()
        slope = (value(0.4 + 1e-6) - value(0.4 - 1e-6)) / 2e-6
        torch.testing.assert_close(kernel.log_temperature.grad, (slope * 0.4).reshape(1), rtol=1e-6, atol=1e-9)


def test_equal_ids_are_not_negatives():
    z0, z1 = views(4)
    ids = torch.tensor([0, 1, 2, 1])
    keep = [j for j in range(8) if j % 4 != 3]
    plan = contraport.nt_xent().plan(z0, z1, ids=ids)
    assert plan[1, 3] == plan[1, 7] == plan[5, 3] == 0
    assert plan[1, 5] > 0
    assert plan[3, 7] > 0
    without = contraport.nt_xent().plan(z0[:3], z1[:3])
    torch.testing.assert_close(plan[1][keep] * 8, without[1] * 6)


def test_weights_are_the_importance_of_the_positives():
    z0, z1 = views(4)
    each = -(contraport.nt_xent().plan(z0, z1) * 8).log()[torch.arange(8), torch.arange(8).roll(4)]
    weights = torch.tensor([1.0, 0.0, 2.0, 1.0], dtype=torch.float64)
    value = contraport.nt_xent()(z0, z1, weights=weights)
    torch.testing.assert_close(value, (weights / 8).repeat(2) @ each)


def test_any_target_matrix():
    z0, z1 = views()
    target = torch.rand(14, 14, dtype=torch.float64).fill_diagonal_(0)
    loss = contraport.gca_ince(iterations=3)
    torch.testing.assert_close(loss(z0, z1, target=target), generalised_kl(target / target.sum(), loss.plan(z0, z1)))


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (lambda: contraport.nt_xent(temperature=-1), "temperature.invalid", "-1"),
        (lambda: contraport.gca_ince(iterations=0), "iterations.invalid", "0"),
        (lambda: contraport.gca_uot(relaxation=0), "relaxation.invalid", "0"),
        (lambda: contraport.objective("gca-uott"), "objective.unknown", "'gca-uot'"),
        (lambda: contraport.objective("gca-uot", iteration=3), "gca_uot.unknown", "'iterations'"),
        (lambda: contraport.nt_xent()(torch.zeros(3)), "z0.shape", ""),
        (
            lambda: contraport.nt_xent()(torch.zeros(3, 2)),
            "views.missing",
            "Pairs",
        ),
        (
            lambda: contraport.nt_xent()(torch.zeros(3, 2), torch.zeros(4, 2)),
            "views.shape",
            "",
        ),
        (lambda: contraport.nt_xent()(torch.zeros(3, 2).int(), torch.zeros(3, 2).int()), "z0.type", ""),
        (lambda: contraport.nt_xent()(torch.zeros(0, 2), torch.zeros(0, 2)), "z0.empty", ""),
        (
            lambda: contraport.nt_xent()(*views(3), ids=torch.zeros(2, dtype=torch.int64)),
            "ids.shape",
            "(2,)",
        ),
        (lambda: contraport.nt_xent()(*views(3), weights=-torch.ones(3)), "weights.invalid", ""),
        (lambda: contraport.nt_xent()(*views(3), target=torch.ones(3, 3)), "target.shape", "(3, 3)"),
        (lambda: contraport.nt_xent()(*views(3), target=torch.ones(6, 6)), "target.excluded_pairs", ""),
        (lambda: contraport.nt_xent()(*views(3), target=torch.zeros(6, 6)), "target.zero", ""),
        (lambda: contraport.Gibbs("cosin"), "cost.unknown", "'cosine'"),
    ],
)
def test_rejects_invalid_arguments(call, code, value):
    with raises_usage_error(code, value):
        call()


def mass_of(plan, layout=None):
    from contraport import Gibbs, Joint, Objective, Pairs

    divergence = contraport.FenchelYoung() if isinstance(plan, contraport.Tsallis) else contraport.TargetCost()
    loss = Objective(layout or Joint(), Gibbs("cosine", 0.5), plan, Pairs(), divergence)
    assert loss.last_plan_mass is None
    loss(*views())
    return loss.last_plan_mass, loss.plan(*views()).sum().item()


@pytest.mark.parametrize("relaxation", [0.1, (0.1, math.inf), (math.inf, 0.1), math.inf])
def test_the_mass_of_an_unbalanced_plan(relaxation):
    mass, total = mass_of(contraport.Unbalanced(relaxation, iterations=3))
    assert mass == pytest.approx(total, rel=1e-12)
    assert (mass == pytest.approx(1)) == (relaxation != 0.1 and relaxation != (math.inf, 0.1))


@pytest.mark.parametrize(
    "plan", [contraport.Rows(), contraport.Columns(), contraport.Balanced(2), contraport.Balanced(500, 1e-9),
             contraport.Simplex(), contraport.Tsallis()], ids=repr
)  # fmt: skip
def test_the_mass_of_plans_with_a_marginal(plan):
    assert mass_of(plan) == pytest.approx((1, 1))


@pytest.mark.parametrize("plan", [contraport.Free(), contraport.Tsallis(mass_constraint="simplex")], ids=repr)
def test_mass_is_none_if_it_needs_a_pass(plan):
    assert mass_of(plan)[0] is None


def test_the_mass_is_the_mean_of_the_directions():
    plan, (z0, z1) = contraport.Unbalanced(0.2, 2), views()
    one_way = contraport.Cross(symmetric=False)
    loss = contraport.Objective(contraport.Cross(), contraport.Gibbs(), plan, contraport.Pairs(), contraport.KL())
    loss(z0, z1)
    masses = []
    for z in [(z0, z1), (z1, z0)]:
        single = contraport.Objective(one_way, contraport.Gibbs(), plan, contraport.Pairs(), contraport.KL())
        single(*z)
        masses.append(single.last_plan_mass)
    assert loss.last_plan_mass == pytest.approx(sum(masses) / 2)
    assert contraport.align_uniform().last_plan_mass is None


@pytest.mark.parametrize(("name", "code"), [("byol", "byol.unknown"), ("gca_uot", "gca_uot.unknown")])
def test_rejects_an_unknown_setting_under_the_name_of_the_objective(name, code):
    with raises_usage_error(code, "tempreature"):
        contraport.objective(name, tempreature=0.1)
