"""Nonfinite, constant and single embeddings, and invalid arguments: exact values or usage errors."""

import math

import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error
from tests.objectives.comparing import BACKENDS, build, required_attributes, views
from torch.nn import functional as F
from torch.testing import assert_close

import contraport as cp
from contraport.catalog import OBJECTIVES

SETTINGS = {
    "pairwise": [{"preset": preset} for preset in ("info_nce", "triplet", "sigmoid_pairs", "linear_pairs")],
    "alpha-cl": [{"regularizer": regularizer} for regularizer in ("direct", "square", "inverse", "entropy")],
    "iot-quadratic": [
        {"closed_form": closed, "constraint": over} for closed in (True, False) for over in ("rows", "simplex")
    ],
    "gca-uot": [{}, {"conditional": True}],
    "direct-clr": [{"dimensions": 3}],
}
OF_PHI = {"regularizer": "entropy", "phi": torch.log1p}
CASES = [(name, settings) for name in OBJECTIVES for settings in SETTINGS.get(name, [{}])]


def name_case(case):
    return case[0] + "".join(f"-{key}={value}" for key, value in case[1].items())


@pytest.mark.parametrize("case", CASES, ids=name_case)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_inputs_give_a_nan_loss(case, backend, bad):
    name, settings = case
    z0, z1 = views()
    z0[1, 2] = bad
    with cp.engine.backend(backend):
        assert not build(name, **settings)(z0, z1, **required_attributes(name)).isfinite()


@pytest.mark.parametrize("case", CASES, ids=name_case)
def test_nonfinite_negatives_give_a_nonfinite_loss(case):
    name, settings = case
    loss, options = build(name, **settings), required_attributes(name) | {"negatives": torch.full((3, 5), math.nan)}
    if name in ("byol", "align-uniform", "dhel", "mv-dhel", "kcl", "cosent", "angle", "barlow-twins", "vic-reg"):
        with raises_usage_error("negatives.conflict"):
            loss(*views(), **options)
    else:
        assert not loss(*views(), **options).isfinite()


@pytest.mark.parametrize("case", CASES, ids=name_case)
def test_inference_tensors_have_the_same_value(case):
    """All views in inference mode, and afterwards only the second view in training."""
    name, settings = case
    expected = build(name, **settings)(*views(), **required_attributes(name))
    loss = build(name, **settings)
    with torch.inference_mode():
        z0, z1 = views()
        options = required_attributes(name)
        assert_close(loss(z0, z1, **options), expected)
    assert_close(build(name, **settings)(views()[0].requires_grad_(), z1, **options).detach(), expected)


@pytest.mark.parametrize(
    ("name", "settings", "code"),
    [
        ("alpha-cl", {"detach": "false"}, "detach.invalid"),
        ("iot-quadratic", {"closed_form": 0}, "closed_form.invalid"),
        ("iot-quadratic", {"constraint": "columns"}, "constraint.unknown"),
        ("rince", {"layout": ["joint"]}, "layout.unknown"),
        ("info-nce", {"target": []}, "target.*"),
        ("gca-uot", {"marginal_divergence": "l2"}, "marginal_divergence.unknown"),
        ("x-clr", {"teacher_temperature": -1}, "teacher_temperature.invalid"),
        ("pairwise", {"preset": "sigmoid_pairs", "c": math.nan}, "c.invalid"),
        ("nt-xent", {"temperature": torch.ones((), device="meta")}, "temperature.shape"),
    ],
)
def test_rejects_settings_under_their_own_names(name, settings, code):
    with raises_usage_error(code):
        cp.objective(name, **settings)


def objective(layout=cp.Cross(), kernel=cp.Gibbs(), constraint=cp.Rows(), divergence=cp.KL(), penalties=None):  # noqa: B008
    return cp.Objective(layout, kernel, constraint, cp.Pairs(), divergence, penalties)


@pytest.mark.parametrize(
    ("build_part", "code"),
    [
        (lambda: cp.Gibbs(learnable=torch.ones(3)), "learnable.invalid"),
        (lambda: cp.Gibbs(cp.Gibbs()), "cost.invalid"),
        (lambda: cp.Gibbs(cp.KL), "cost.invalid"),
        (lambda: cp.Gibbs(power=1e39), "power.invalid"),
        (lambda: cp.RationalQuadratic(np.ones(3)), "cost.unknown"),
        (lambda: cp.StudentT(df=1e39), "df.invalid"),
        (lambda: cp.BilinearCost(0, 2), "row_features.invalid"),
        (lambda: cp.BilinearCost(2, None), "column_features.invalid"),
        (lambda: cp.Balanced(10**9), "iterations.invalid"),
        (lambda: cp.Balanced(tolerance=10**30), "tolerance.invalid"),
        (lambda: cp.Balanced(marginals=np.ones(3)), "marginals.unknown"),
        (lambda: cp.Unbalanced(marginal_divergence=["kl"]), "marginal_divergence.unknown"),
        (lambda: cp.Tsallis(-math.inf), "order.invalid"),
        (lambda: cp.Tsallis(regularizes_row_shares="no"), "regularizes_row_shares.invalid"),
        (lambda: cp.Cross(symmetric=1), "symmetric.invalid"),
        (lambda: cp.Joint(compares_all_views_at_once=None), "compares_all_views_at_once.invalid"),
        (lambda: cp.WithinView("yes"), "sum_over_views.invalid"),
        (lambda: cp.CoordinatePairs(cp.Cross(), centered=0), "centered.invalid"),
        (lambda: cp.CoordinatePairs(cp.KL()), "layout.type"),
        (lambda: cp.RotatedFirstView(None), "layout.type"),
        (lambda: cp.GuidedNegatives(torch.ones(3)), "layout.type"),
        (lambda: cp.GuidedNegatives(cp.Cross(), math.nan), "margin.invalid"),
        (lambda: cp.LeadingCoordinates(2, cp.Cross), "layout.type"),
        (lambda: cp.NestedCoordinates(4, cp.Cross()), "dims.type"),
        (lambda: cp.NestedCoordinates("42", cp.Cross()), "dims.type"),
        (lambda: cp.NestedCoordinates([4, 2], cp.Cross(), 1.0), "weights.type"),
        (lambda: cp.matryoshka(cp.nt_xent(), 4), "dims.type"),
        (lambda: cp.matryoshka(cp.nt_xent(), [4, 2], {4: 1.0, 2: 1.0}), "weights.type"),
        (lambda: cp.ContrastiveEnergy(detach_plan=torch.ones(3)), "detach_plan.invalid"),
        (lambda: cp.ContrastiveEnergy(phi_of_sum=0.5), "phi_of_sum.type"),
        (lambda: cp.MeanSquaredCost(sum_over_pairs="no"), "sum_over_pairs.invalid"),
        (lambda: cp.Logistic(1e39), "bias.invalid"),
        (lambda: cp.MarginalPenalty(["kl"]), "divergence.unknown"),
        (lambda: cp.objectives.Pairwise("own", torch.exp, torch.exp), "log_psi.type"),
        (lambda: cp.objectives.Pairwise("own", None), "phi_of_log_sum.type"),
        (lambda: cp.objectives.PairwiseSum(torch.exp, 1.0), "psi_of_difference.type"),
        (lambda: cp.SoftNeighbors(kernel="cosine"), "kernel.type"),
        (lambda: cp.Matrix(torch.ones(3, 3, device="meta")), "target.shape"),
        (lambda: cp.Matrix(torch.ones(3, 3, dtype=torch.complex64)), "target.shape"),
        (lambda: cp.DuplicateGroups(torch.ones(3, dtype=torch.complex64)), "target.type"),
        (lambda: cp.DuplicateGroups(torch.ones(3, dtype=torch.bool)), "target.type"),
        (lambda: objective(layout=cp.Joint), "layout.type"),
        (lambda: objective(kernel="cosine"), "kernel.type"),
        (lambda: objective(constraint=cp.KL()), "constraint.type"),
        (lambda: objective(divergence=None), "divergence.type"),
        (lambda: objective(penalties=[cp.MarginalPenalty()]), "penalties.type"),
        (lambda: objective(penalties={"marginal": 1.0}), "penalties.type"),
        (lambda: objective(penalties={cp.MarginalPenalty(): math.nan}), "penalties.invalid"),
        (lambda: objective().set_constraint("rows"), "constraint.type"),
        (lambda: objective().with_layout(None), "layout.type"),
        (lambda: cp.SumLoss(cp.nt_xent()), "objectives.type"),
        (lambda: cp.TemperatureSchedule(0.5, 0.1, 10, ["linear"]), "shape.unknown"),
        (lambda: cp.TemperatureSchedule(0.5, 0.1, 10).value(-1), "step.invalid"),
        (lambda: cp.TemperatureSchedule(0.5, 0.1, 10).apply(torch.ones(3), 1), "loss.type"),
        (lambda: cp.Tighten(2).apply(None, 1), "loss.type"),
        (lambda: cp.Tighten(2).apply(cp.nt_xent(), math.nan), "step.invalid"),
        (lambda: cp.engine.explain_backend(torch.ones(3, 3)), "geometry.type"),
    ],
)
def test_rejects_components_of_another_type(build_part, code):
    with raises_usage_error(code):
        build_part()


@pytest.mark.parametrize("setting", [cp.engine.backend, cp.engine.precision, cp.engine.exchange])
@pytest.mark.parametrize("name", [None, ["dense"], np.ones(3), "dens"], ids=repr)
def test_rejects_unknown_names_of_engine_settings(setting, name):
    with raises_usage_error(f"{setting.__name__}.unknown"), setting(name):
        pass


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda x: cp.Gibbs()(x, None), "y.shape"),
        (lambda x: cp.Gibbs()(x[0], x), "x.shape"),
        (lambda x: cp.Gibbs()(x.long(), x), "x.shape"),
        (lambda x: cp.Gibbs()(x, x[:, :2]), "y.shape"),
        (lambda x: cp.Gibbs()(x, x.to("meta")), "y.device"),
        (lambda x: cp.Gibbs()(x, x, -1.0), "temperature.invalid"),
        (lambda x: cp.Gibbs()(x, x, torch.ones(3)), "temperature.shape"),
        (lambda x: cp.Gibbs(lambda x, y: [1.0])(x, x).dense(), "cost.shape"),
        (lambda x: cp.Gibbs(cp.BilinearCost(2, 3))(x, x).dense(), "cost.shape"),
        (lambda x: cp.engine.row_log_sums(cp.engine.Geometry(cp.Gibbs()(x, x)), x[0]), "potential.shape"),
        (lambda x: cp.nt_xent()(x, x, shared_negatives=torch.ones(3)), "shared_negatives.invalid"),
        (lambda x: cp.nt_xent()(x, x, ids=torch.ones(4, dtype=torch.bool)), "ids.type"),
        (lambda x: cp.sup_con()(x, x, labels=torch.ones(4, 0)), "labels.shape"),
        (lambda x: cp.sup_con()(x, x, labels=torch.eye(4).to_sparse()), "labels.sparse"),
        (lambda x: cp.x_clr()(x, x, features=torch.ones(4, 0)), "features.shape"),
        (lambda x: cp.nt_xent()(x, x, target=cp.SoftNeighbors(torch.ones(4, 0))), "features.shape"),
        (lambda x: cp.nt_xent()(x, x, target=cp.SoftNeighbors(torch.eye(4).to_sparse())), "features.sparse"),
        (lambda x: cp.nt_xent().plan(x, x, weight=torch.ones(4)), "call.unknown"),
        (lambda x: cp.nt_xent().terms(x, x, lables=torch.ones(4)), "call.unknown"),
        (lambda x: cp.nt_xent().mutual_information_bound("low"), "value.invalid"),
        (lambda x: objective(constraint=cp.Free(), divergence=cp.VarianceHinge())(x, x), "kernel.conflict"),
        (lambda x: cp.transport(x, x.to("meta"), cp.Gibbs()), "y.device"),
        (lambda x: cp.transport(x, x[:, :2], cp.Gibbs()), "y.shape"),
        (lambda x: cp.transport(x, x, "cosine"), "kernel.type"),
        (lambda x: cp.transport(x * math.nan, x[:3], cp.Gibbs(), cp.Exact()), "constraint.not_finite"),
        (lambda x: cp.transport(x * math.nan, x[:3], cp.Gibbs()), "constraint.not_finite"),
        (lambda x: cp.transport(x * math.inf, x[:3], cp.Gibbs("sqeuclidean")), "constraint.not_finite"),
        (lambda x: cp.transport(x * math.inf, x, cp.Gibbs(), cp.Unbalanced(tolerance=0.1)), "constraint.not_finite"),
        (lambda x: objective(constraint=cp.Balanced(9, 0.1))(x * math.nan, x), "constraint.not_finite"),
        (lambda x: cp.transport(x * math.nan, x, cp.Gibbs(), cp.Tsallis(2.0, "balanced")), "constraint.not_finite"),
        (lambda x: cp.transport(x, x, cp.Gibbs()).plan.log_at(0, 1), "rows.type"),
        (lambda x: cp.transport(x, x, cp.Gibbs()).plan.log_at(*torch.ones(2, 3)), "rows.type"),
        (lambda x: cp.transport(x, x, cp.Gibbs()).plan.log_at(torch.arange(3), torch.arange(2)), "columns.shape"),
        (lambda x: cp.transport(x, x, cp.Gibbs()).plan.apply(x.to("meta")), "values.shape"),
        (lambda x: cp.transport(x, x, cp.Gibbs()).plan.apply(x.to(torch.complex64)), "values.shape"),
    ],
)
def test_rejects_arguments_of_calls(call, code):
    with raises_usage_error(code):
        call(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))


def test_accepts_lists_and_arrays_of_dims():
    nested = cp.NestedCoordinates(np.array([4, 2]), cp.Cross(), [1.0, 0.5])
    assert nested == cp.NestedCoordinates((4, 2), cp.Cross(), (1.0, 0.5))
    assert hash(nested) == hash(cp.NestedCoordinates([4, 2], cp.Cross(), (1.0, 0.5)))


def test_rejects_a_parameter_in_place_of_the_temperature():
    for loss in (cp.nt_xent(), cp.gca_uot("learn"), cp.align_uniform()):
        with raises_usage_error("temperature.invalid", "learn"):
            loss.temperature = torch.nn.Parameter(torch.tensor(0.5))


def test_rejects_unknown_dtypes_devices_and_reductions():
    z0, z1 = (z.float() for z in views())
    with raises_usage_error("z0.type", "float8_e4m3fn"):
        cp.nt_xent()(*(z.to(torch.float8_e4m3fn) for z in (z0, z1)))
    for name in ("ids", "weights", "labels", "features"):
        values = torch.ones(7, 3) if name == "features" else torch.ones(7, dtype=torch.long)
        with raises_usage_error(f"{name}.device", "meta"):
            cp.nt_xent()(z0, z1, **{name: values.to("meta")})
    with raises_usage_error("reduction.unknown", "None"):
        cp.nt_xent()(z0, z1, reduction=None)
    with raises_usage_error("z0.single_item", "coordinates"):
        cp.barlow_twins()(z0[:, :1], z1[:, :1])


@pytest.mark.parametrize("mean", [0.0, 0.1, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_coordinate_that_does_not_vary_correlates_with_none(mean, dtype):
    generator = torch.Generator().manual_seed(0)
    z0, z1 = (torch.randn(7, 4, generator=generator, dtype=dtype) for _ in range(2))
    z0[:, 1], z1[:, 2] = mean / 3, mean / 7
    z0.requires_grad_()
    loss = cp.barlow_twins(redundancy=1.0)(z0, z1)
    loss.backward()
    a, b = z0.detach() - z0.detach().mean(0), z1 - z1.mean(0)
    a[:, 1], b[:, 2] = 0, 0
    c = (a / a.norm(dim=0).clamp_min(1e-9)).T @ (b / b.norm(dim=0).clamp_min(1e-9))
    expected = (1 - c.diagonal()).square().sum() + (c - c.diag().diag()).square().sum()
    assert_close(loss.detach(), expected, rtol=1e-4, atol=1e-5)
    assert (z0.grad[:, 1] == 0).all()


def test_identical_rows_have_the_same_value_despite_rounding():
    losses = [cp.barlow_twins()(row.expand(6, 4), row.expand(6, 4)) for row in torch.randn(20, 1, 4)]
    assert_close(torch.stack(losses), torch.full((20,), 4.0))


@pytest.mark.parametrize(
    "settings", [*SETTINGS["alpha-cl"], {"normalize": False}, {"regularizer": "entropy", "phi": torch.log1p}]
)
def test_rejects_alpha_cl_of_a_single_item(settings):
    z0, z1 = torch.randn(2, 5, 3, dtype=torch.float64).requires_grad_()
    loss = cp.alpha_cl(**settings)
    with raises_usage_error("z0.single_item", "1"):
        loss(z0[:1], z1[:1])
    # Equal items have no negatives in larger batches either: the sum over negatives is 0.
    alike = torch.zeros(5, dtype=torch.long)
    value = loss(z0, z1, ids=alike)
    assert value == 0
    assert all((grad == 0).all() for grad in torch.autograd.grad(value, (z0, z1)))


def build_learned_kernel(temperature):
    return cp.Gibbs("cosine", temperature, learnable=True)


@pytest.mark.parametrize("create", [cp.sigmoid, build_learned_kernel])
def test_rejects_a_learned_temperature_below_its_bound(create):
    create(0.01)
    with raises_usage_error("temperature.below_minimum", 0.001):
        create(0.001)
    kernel = build_learned_kernel(0.1)
    with raises_usage_error("temperature.below_minimum", 0.005):
        kernel.temperature = 0.005


def test_noise_counts_the_compared_columns_of_a_row():
    """K counts the compared columns of a row, without equal ids, the self pair and other items' negatives."""
    generator = torch.Generator().manual_seed(1)
    z0, z1 = (F.normalize(torch.randn(6, 4, generator=generator, dtype=torch.float64)) for _ in range(2))
    own = F.normalize(torch.randn(6, 3, 4, generator=generator, dtype=torch.float64), dim=-1)
    ids = torch.tensor([0, 0, 1, 2, 3, 3])

    def expected(scores, allowed, positive):
        scores = scores.masked_fill(~allowed, -math.inf)
        noise = allowed.sum(1, keepdim=True) - 1
        odds = scores - scores[allowed].logsumexp(0) + allowed.sum().log() - noise.log()
        rows = F.softplus(odds).sum(1) - odds[positive]
        return rows.mean()

    diagonal = torch.eye(6, dtype=torch.bool)
    loss = cp.cmc_nce(0.5).double()
    assert_close(loss(z0, z1, ids=ids), expected(z0 @ z1.T / 0.5, (ids[:, None] != ids) | diagonal, diagonal))
    scores = torch.cat([z0 @ z1.T, z0 @ own.reshape(18, 4).T], 1) / 0.5
    own_columns = torch.arange(6).repeat_interleave(3) == torch.arange(6)[:, None]
    allowed = torch.cat([torch.ones(6, 6, dtype=torch.bool), own_columns], 1)
    positive = torch.cat([diagonal, torch.zeros(6, 18, dtype=torch.bool)], 1)
    loss = cp.cmc_nce(0.5).double()
    assert_close(loss(z0, z1, negatives=own), expected(scores, allowed, positive))
    z = torch.cat([z0, z1])
    joint = cp.Objective(
        cp.Joint(), cp.Gibbs("negative-cosine", 0.5), cp.Free(), cp.Pairs(), cp.NoiseContrastiveEstimation()
    ).double()
    eye = torch.eye(12, dtype=torch.bool)
    assert_close(joint(z0, z1), expected(z @ z.T / 0.5, ~eye, eye.roll(6, 1)))


@pytest.mark.parametrize("settings", SETTINGS["alpha-cl"][1:3], ids=str)
def test_thresholds_are_found_for_several_batches_at_once(settings):
    loss = cp.alpha_cl(**settings)
    z0, z1 = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    separate = torch.stack([loss(*pair) for pair in zip(z0, z1, strict=True)])
    assert_close(torch.func.vmap(loss)(z0, z1), separate)


@pytest.mark.parametrize("name", ["x-clr", "guided"])
def test_rejects_nonfinite_features(name):
    features = required_attributes(name)["features"].clone()
    features[2, 1] = math.nan
    with raises_usage_error("features.invalid", "nan"):
        build(name)(*views(), features=features)
    with raises_usage_error("features.invalid", "nan"):
        cp.info_nce(target=cp.Neighbors(features, 2))(*views())


@pytest.mark.parametrize(
    ("settings", "code", "value"),
    [
        ({"p": "4"}, "p.invalid", ""),
        ({"regularizer": "inverse", "gamma": "2"}, "gamma.invalid", "'2'"),
        ({"regularizer": "entropy", "p": 2.0}, "p.conflict", "'entropy'"),
        ({"gamma": 3.0}, "gamma.conflict", "'direct'"),
    ],
)
def test_rejects_settings_of_another_regularizer(settings, code, value):
    with raises_usage_error(code, value):
        cp.alpha_cl(**settings)
