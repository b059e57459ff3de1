"""Inputs of objectives: sizes of embeddings, precisions, kinds of tensors; copies of objectives; torch.func."""

import copy
import pickle

import pytest
import torch
from tests.errors import raises_usage_error
from tests.objectives.comparing import OF_COORDINATES, required_attributes

import contraport
from contraport.catalog import OBJECTIVES
from contraport.engine import normalize
from contraport.engine.kernels import MIN_LEARNED_TEMPERATURE
from contraport.objectives import PAIRWISE_PRESETS

SETTINGS = {"direct-clr": {"dimensions": 3}}
CASES = [
    *((name, SETTINGS.get(name, {})) for name in OBJECTIVES),
    *(("pairwise", {"preset": preset}) for preset in PAIRWISE_PRESETS),
    *(("alpha-cl", {"regularizer": name}) for name in ("entropy", "inverse", "inverse-shifted", "square", "uniform")),
    ("iot-quadratic", {"closed_form": False}),
    ("gca-uot", {"rince_weight": 0.2}),
]


def views(n=6, d=5, seed=0, dtype=torch.float32):
    return torch.randn(2, n, d, dtype=dtype, generator=torch.Generator().manual_seed(seed)).unbind()


def build(name, settings):
    loss = contraport.objective(name, **settings)
    return loss, required_attributes(name, 6)


@pytest.mark.parametrize("size", [1e-30, 1e-15, 1e15, 1e30])
def test_value_depends_on_directions_only(size):
    """The gradient is inversely proportional to the length of the embedding."""
    z0, z1 = views()
    loss = contraport.nt_xent(temperature=0.1)

    def outcome(factor):
        z = (z0 * factor).requires_grad_()
        result = loss(z, z1)
        return result.detach(), torch.autograd.grad(result, z)[0] * factor

    for far, near in zip(outcome(size), outcome(1), strict=True):
        torch.testing.assert_close(far, near, rtol=1e-4, atol=1e-6)


def test_a_row_of_zeros_has_no_direction_and_no_gradient():
    z = torch.tensor([[0.0, 0.0], [1e-42, 0.0], [3.0, 4.0]], requires_grad=True)
    unit = normalize(z)
    assert unit.tolist() == [[0, 0], [0, 0], [pytest.approx(0.6), pytest.approx(0.8)]]
    unit.sum().backward()
    assert (z.grad[:2] == 0).all()


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_views_of_two_precisions_are_compared_in_the_wider(name, settings):
    loss, attributes = build(name, settings)
    z0, z1 = views()
    mixed = loss(z0.half(), z1.double(), **attributes)
    assert mixed.dtype == torch.float64
    again, _ = build(name, settings)
    torch.testing.assert_close(mixed, again(z0.half().double(), z1.double(), **attributes))


def test_uniformity_of_identical_items_is_zero():
    z0, z1 = (z.requires_grad_() for z in views())
    loss = contraport.align_uniform()(z0, z1, ids=torch.zeros(6, dtype=torch.long))
    cost = contraport.Objective(
        contraport.Cross(symmetric=False), contraport.Gibbs("chordal", 1.0), contraport.Free(), contraport.Pairs(),
        contraport.TargetCost(),
    )  # fmt: skip
    torch.testing.assert_close(loss, cost(z0, z1))
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(loss, [z0, z1]))


@pytest.mark.parametrize(
    ("attributes", "code", "value"),
    [
        ({"weights": torch.ones(6, 1)}, "weights.shape", "(6, 1)"),
        ({"weights": [1.0] * 5}, "weights.shape", "(5,)"),
        ({"weights": ["a"] * 6}, "weights.type", "['a', 'a'"),
        ({"ids": [[1], [2, 3]]}, "ids.type", "lists of unequal lengths"),
        ({"ids": torch.arange(12).view(6, 2)}, "ids.shape", "(6, 2)"),
        ({"shared_negatives": True}, "shared_negatives.missing", "negatives="),
    ],
)
def test_rejects_item_attributes_of_a_wrong_shape(attributes, code, value):
    with raises_usage_error(code, value):
        contraport.nt_xent()(*views(), **attributes)


def test_sparse_views():
    with raises_usage_error("z0.sparse", "torch.sparse_coo"):
        contraport.nt_xent()(torch.eye(3).to_sparse(), torch.eye(3))


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_every_objective_can_be_pickled_and_copied(name, settings):
    loss, attributes = build(name, settings)
    expected = loss.eval()(*views(), **attributes)
    for again in (pickle.loads(pickle.dumps(loss)), copy.deepcopy(loss)):
        torch.testing.assert_close(again(*views(), **attributes), expected, rtol=0, atol=0)
        assert repr(again) == repr(loss)


@pytest.mark.parametrize("preset", ["info_nce", "soft_triplet"])
def test_temperature_of_pairwise_presets_can_be_set(preset):
    loss, z = contraport.pairwise(preset, temperature=0.3), views()
    assert loss.temperature == 0.3
    loss.temperature = 0.7
    torch.testing.assert_close(loss(*z), contraport.pairwise(preset, temperature=0.7)(*z))


@pytest.mark.parametrize("settings", [{"preset": "triplet"}, {"phi": torch.sqrt, "psi": torch.exp}])
def test_rejects_a_temperature_for_presets_without_one(settings):
    assert contraport.pairwise(**settings).temperature == 1.0
    with raises_usage_error("temperature.conflict"):
        contraport.pairwise(**settings, temperature=0.3)


@pytest.mark.parametrize("name", ["info-nce", "gca-uot", "t-simclr", "sigmoid", "dcl", "gte", "kcl", "hard-negative"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_accepts_temperature_tensors_of_any_precision(name, dtype):
    z0, z1 = views()
    temperature = torch.tensor(0.5, dtype=dtype, requires_grad=True)
    loss = contraport.objective(name)
    value = loss(z0, z1, temperature=temperature)
    torch.testing.assert_close(value, loss(z0, z1, temperature=0.5))
    (slope,) = torch.autograd.grad(value, temperature)
    assert slope.dtype == dtype
    assert slope != 0


@pytest.mark.parametrize(
    ("attributes", "code", "value"),
    [
        ({"ids": torch.rand(6)}, "ids.type", "torch.float32"),
        (
            {"negatives": torch.ones(2, 5), "ids": torch.arange(6), "negative_ids": torch.rand(2)},
            "negative_ids.type",
            "torch.float32",
        ),
        ({"weights": torch.ones(6).cfloat()}, "weights.type", "torch.complex64"),
        ({"temperature": True}, "temperature.invalid", "True"),
    ],
)
def test_rejects_item_attributes_of_a_wrong_type(attributes, code, value):
    with raises_usage_error(code, value):
        contraport.nt_xent()(*views(), **attributes)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_accepts_target_matrices_of_any_kind():
    z0, z1 = views()
    loss, matrix = contraport.info_nce(), torch.rand(6, 6, generator=torch.Generator().manual_seed(1)).round(decimals=1)
    expected = loss(z0, z1, target=matrix)
    for kind in (matrix.to_sparse(), matrix.to_sparse_csr(), matrix.to_sparse_csc(), matrix.numpy()):
        torch.testing.assert_close(loss(z0, z1, target=kind), expected)


@pytest.mark.parametrize("pairs", [[(0, 1), (2, 3)], [(0, 1), (4, 5)]])
@pytest.mark.parametrize("name", ["info-nce", "nt-xent", "gca-ince", "gca-uot", "rince", "hard-negative", "iot"])
def test_dense_and_sparse_targets_agree_if_views_are_absent(name, pairs):
    """One view of each item of the first pairs is absent."""
    loss = contraport.objective(name).double()
    size = 12 if isinstance(loss.layout, contraport.Joint) else 6
    matrix = torch.zeros(size, size, dtype=torch.float64)
    for i, j in pairs:
        matrix[i, j] = 1
    present = torch.ones(6, 2, dtype=torch.bool)
    present[[0, 2], 0] = False
    results = []
    for target in (matrix, matrix.to_sparse()):
        z = [view.requires_grad_() for view in views(dtype=torch.float64)]
        value = loss(*z, target=target, present=present)
        results.append([value, *torch.autograd.grad(value, z)])
    for dense, sparse in zip(*results, strict=True):
        assert dense.isfinite().all()
        torch.testing.assert_close(dense, sparse)


@pytest.mark.parametrize("name", ["barlow-twins", "vic-reg"])
def test_rejects_a_target_of_items_if_coordinates_are_compared(name):
    z0, z1 = views(n=6, d=6)
    loss = contraport.objective(name)
    classes = torch.arange(6) % 2
    for target, attributes in [
        (contraport.Labels(), {"labels": classes}),
        (contraport.Domains(alpha=0.1), {"domains": classes}),
        (contraport.Neighbors(z0, 2), {}),
        (torch.eye(6), {}),
        ([(0, 1)], {}),
    ]:
        with raises_usage_error("target.conflict"):
            loss(z0, z1, target=target, **attributes)
    assert torch.equal(loss(z0, z1, target=contraport.Pairs()), loss(z0, z1))


@pytest.mark.parametrize("name", ["nt-xent", "gte", "dclw", "hard-negative"])
def test_duplicate_target_of_distinct_items_is_the_identity(name):
    z = [v.requires_grad_() for v in views()]
    value = contraport.objective(name)(*z, present=torch.tensor([[True, False], [False, True]] * 3))
    assert value == 0
    assert all(not slope.any() for slope in torch.autograd.grad(value, z))


@pytest.mark.parametrize("name", ["info-nce", "nt-xent", "gca-ince", "t-simclr", "gte"])
def test_transforms_of_functions_and_tensors_without_storage(name):
    loss, z0, z1 = contraport.objective(name), torch.randn(3, 6, 5), torch.randn(3, 6, 5)
    expected = torch.stack([loss(a, b) for a, b in zip(z0, z1, strict=True)])
    torch.testing.assert_close(torch.func.vmap(loss)(z0, z1), expected)
    slopes = torch.func.vmap(torch.func.grad(loss))(z0, z1)
    torch.testing.assert_close(slopes[1], torch.func.grad(loss)(z0[1], z1[1]))
    assert loss(z0[0].to("meta"), z1[0].to("meta")).is_meta


TRANSFORMED = {
    "sigmoid": (lambda: contraport.sigmoid(), {}),
    "a learned temperature": (lambda: contraport.nt_xent(temperature="learn"), {}),
    "average": (lambda: contraport.cmc_nce().eval(), {}),
    "averages of items": (lambda: contraport.sog_clr(items=9).eval(), {"ids": torch.arange(6)}),
    "teacher": (lambda: contraport.x_clr(), {"features": torch.randn(6, 3, dtype=torch.float64)}),
    "held": (lambda: contraport.alpha_cl(), {}),
    "weights that are held": (lambda: contraport.dclw(), {}),
    "thresholds": (lambda: contraport.alpha_cl(regularizer="inverse", detach=False), {}),
    "mass of a function": (lambda: contraport.alpha_cl(regularizer="entropy", phi=torch.log1p), {}),
}


@pytest.mark.parametrize(
    ("name", "settings", "weights"),
    [
        (*case, weights)
        for case in CASES
        for weights in (None, "plan")
        if weights is None or case[0] not in OF_COORDINATES
    ],
    ids=str,
)
def test_forward_mode_matches_reverse_mode(name, settings, weights):
    loss, attributes = (
        contraport.objective(name, **settings).double().eval(),
        {"weights": weights} | required_attributes(name, 6),
    )
    z, along = views(dtype=torch.float64), views(seed=1, dtype=torch.float64)
    free = [view.clone().requires_grad_() for view in z]
    slopes = torch.autograd.grad(loss(*free, **attributes), free, materialize_grads=True)
    expected = sum((slope * step).sum() for slope, step in zip(slopes, along, strict=True))
    _, result = torch.func.jvp(lambda *z: loss(*z, **attributes), z, along)
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", ["dense", "streamed"])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_function_transforms_match_autograd(name, backend):
    create, attributes = TRANSFORMED[name]
    loss, (z0, z1) = create().double(), torch.randn(2, 6, 5, dtype=torch.float64)
    free = z0.clone().requires_grad_()
    with contraport.engine.backend(backend):
        value = loss(free, z1, **attributes)
        (expected,) = torch.autograd.grad(value, free)
        slopes = torch.func.grad(lambda z: loss(z, z1, **attributes))(z0)
        _, along = torch.func.jvp(lambda z: loss(z, z1, **attributes), (z0,), (z0,))
        batched = torch.func.vmap(lambda z: loss(z, z1, **attributes))(torch.stack([z0, 2 * z0]))
    torch.testing.assert_close(slopes, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(along, (expected * z0).sum(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(batched[0], value.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
@pytest.mark.parametrize("name", ["nt-xent", "gca-uot", "vic-reg", "sup-con"])
def test_transforms_cache_no_tensors_for_later_calls(name, transform):
    """With sizes of no other test, so that nothing is cached before."""
    loss, items = contraport.objective(name), 37 if transform is torch.func.grad else 41
    attributes = {"labels": torch.arange(items) % 5} if name == "sup-con" else {}
    z0, z1 = torch.randn(2, items, items - 7)
    transform(lambda z: loss(z, z1, **attributes))(z0 if transform is torch.func.grad else z0[None])
    pickle.dumps(loss)
    value = loss(z0, z1, **attributes)
    for again in (pickle.loads(pickle.dumps(loss)), copy.deepcopy(loss)):
        assert torch.equal(again(z0, z1, **attributes), value)


def test_a_transform_changes_no_parameter():
    loss = contraport.nt_xent(temperature="learn").double()
    with torch.no_grad():
        loss.kernel.log_temperature.fill_(-9.0)
    z0, z1 = torch.randn(2, 6, 5, dtype=torch.float64)
    slopes = torch.func.grad(loss)(z0, z1)
    assert loss.kernel.log_temperature == -9.0
    torch.testing.assert_close(slopes, torch.func.grad(contraport.nt_xent(MIN_LEARNED_TEMPERATURE))(z0, z1))
    loss(z0, z1)
    assert loss.kernel.log_temperature > -9.0


def converged():
    parts = contraport.Joint(), contraport.Gibbs(), contraport.Balanced(100, 1e-3), contraport.Pairs(), contraport.KL()
    return contraport.Objective(*parts)


@pytest.mark.parametrize(
    ("create", "attributes", "code"),
    [
        (lambda: contraport.cmc_nce(), {}, "averages.torch_func"),
        (lambda: contraport.sog_clr(items=9), {"ids": torch.arange(6)}, "averages.torch_func"),
        (converged, {}, "tolerance.torch_func"),
    ],
)
def test_rejects_moving_averages_and_tolerances_in_torch_func(create, attributes, code):
    loss, (z0, z1) = create(), torch.randn(2, 6, 5)
    with raises_usage_error(code):
        torch.func.grad(lambda z: loss(z, z1, **attributes))(z0)


@pytest.mark.parametrize(
    ("create", "code", "value"),
    [
        (lambda: contraport.sigmoid(bias=float("nan")), "bias.invalid", "nan"),
        (lambda: contraport.t_simclr(conditional="no"), "conditional.invalid", "'no'"),
        (lambda: contraport.direct_clr(dimensions=True), "dimensions.invalid", "True"),
        (lambda: contraport.RationalQuadratic(power="2"), "power.invalid", "'2'"),
        (lambda: contraport.gte(temperature=True), "temperature.invalid", "True"),
    ],
)
def test_rejects_settings_of_a_wrong_type(create, code, value):
    with raises_usage_error(code, value):
        create()
