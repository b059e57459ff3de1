"""All objectives of the catalog against independent formulas, other libraries and identities."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.errors import raises_usage_error
from tests.objectives import formulas
from tests.objectives.comparing import (
    BACKENDS,
    DOMAINS,
    IDS,
    LABELS,
    assert_same,
    build,
    outcome,
    required_attributes,
    views,
)

import contraport
from contraport import UsageError
from contraport import objectives as o
from contraport.catalog import OBJECTIVES

pytestmark = pytest.mark.usefixtures("uneven_tiles")

INFINITE = math.inf
WEIGHTS = torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0, 3.0, 0.25], dtype=torch.float64)


def some_matrix(size):
    entries = torch.rand(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    entries[2], entries[:, 3] = 0, 0  # a row and a column without a target
    return entries


def by_formula(name, *z, **settings):
    return getattr(formulas, name.replace("-", "_"))(*z, **settings)


def name_case(case):
    name, settings = case
    return name + "".join(f"-{key}={getattr(value, '__name__', value)}" for key, value in settings.items())


CASES = [
    ("info-nce", {}),
    ("info-nce", {"temperature": 0.5, "symmetric": False}),
    ("nt-xent", {}),
    ("nt-xent", {"temperature": 0.07}),
    ("rince", {}),
    ("rince", {"q": 1.0, "lam": 1.0}),
    ("rince", {"q": 0.1, "lam": 0.3, "layout": "cross"}),
    ("gca-ince", {}),
    ("gca-ince", {"temperature": 0.1, "iterations": 1}),
    ("gca-ince", {"iterations": 12}),
    ("gca-rince", {}),
    ("gca-rince", {"q": 1.0, "lam": 0.5, "iterations": 2}),
    ("gca-uot", {}),
    ("gca-uot", {"relaxation": (0.2, 3.0), "rince_weight": 0.7, "q": 0.9, "lam": 0.1, "iterations": 3}),
    ("gca-uot", {"relaxation": 0.2, "iterations": 10, "conditional": True}),
    ("gca-uot", {"relaxation": (0.2, 3.0), "marginal_weight": 0.4, "temperature": 0.1}),
    ("gca-uot", {"relaxation": 0.5, "reference": "counting"}),
    ("gca-uot", {"relaxation": INFINITE, "iterations": 2}),
    ("gca-uot", {"relaxation": (INFINITE, 0.5), "iterations": 3, "temperature": 0.2}),
    ("byol", {}),
    ("iot", {}),
    ("iot", {"constraint": "rows", "uniformity": 2.0}),
    ("iot", {"constraint": "simplex", "temperature": 0.2}),
    ("iot-uniform", {}),
    ("iot-uniform", {"constraint": "rows"}),
    ("iot-uniform", {"constraint": "simplex", "uniformity": 0.3}),
    *[
        ("iot-quadratic", {"constraint": constraint, "closed_form": closed, "layout": layout, "temperature": tau})
        for constraint, closed, layout, tau in itertools.product(
            ["rows", "simplex"], [True, False], ["joint", "cross"], [1.0, 0.2]
        )
    ],
    ("align-uniform", {}),
    ("align-uniform", {"weight": 0.3}),
    *[
        ("pairwise", {"preset": preset, "negatives": negatives})
        for preset in formulas.PRESETS
        for negatives in ["both", "same", "other"]
    ],
    *[("pairwise", {"preset": preset, "epsilon": 0.3, "c": 4.0}) for preset in formulas.PRESETS],
    *[("pairwise", {"preset": preset, "temperature": 0.1}) for preset in ("info_nce", "soft_triplet")],
    ("pairwise", {"phi": torch.sqrt, "psi": torch.nn.functional.softplus}),
    ("pairwise", {"phi": torch.square, "psi": torch.tanh, "negatives": "same"}),
    *[
        ("alpha-cl", {"regularizer": regularizer, "detach": detach, "negatives": negatives})
        for regularizer, detach, negatives in itertools.product(
            ["entropy", "inverse", "square", "direct", "uniform"], [True, False], ["both", "same", "other"]
        )
    ],
    ("alpha-cl", {"p": 3.0, "temperature": 0.1}),
    ("alpha-cl", {"p": 2.0, "detach": False}),
    ("alpha-cl", {"normalize": False, "negatives": "same"}),
    ("alpha-cl", {"regularizer": "inverse-shifted", "gamma": 3.0, "negatives": "other"}),
    ("alpha-cl", {"regularizer": "inverse", "gamma": 1.5, "temperature": 2.0, "detach": False}),
    ("quadratic", {}),
    ("quadratic", {"negatives": "same"}),
    ("quadratic", {"negatives": "other"}),
    ("direct-clr", {"dimensions": 3}),
    ("t-simclr", {}),
    ("t-simclr", {"df": 1.0, "temperature": 0.5}),
    ("t-simclr", {"df": 2.0, "temperature": 1.0, "conditional": True}),
    ("cmc", {}),
    ("cmc", {"graph": "core", "temperature": 0.4}),
    ("cmc-nce", {}),
    ("cmc-nce", {"temperature": 1.0, "momentum": 0.0}),
    ("sigmoid", {}),
    ("sigmoid", {"temperature": 1.0, "bias": 2.0}),
    ("dcl", {}),
    ("dcl", {"temperature": 0.7}),
    ("dclw", {}),
    ("dclw", {"temperature": 0.5, "sigma": 0.1}),
    ("gte", {}),
    ("gte", {"temperature": 0.5}),
    ("dhel", {}),
    ("dhel", {"temperature": 1.0}),
    ("mv-dhel", {}),
    ("barlow-twins", {}),
    ("barlow-twins", {"redundancy": 0.3}),
    ("vic-reg", {}),
    ("vic-reg", {"invariance": 1.0, "variance": 2.0, "covariance": 3.0}),
    ("kcl", {}),
    ("kcl", {"temperature": 2.0, "gamma": 3.0}),
    ("spectral", {}),
    ("spectral", {"normalized": False}),
    ("debiased", {}),
    ("debiased", {"temperature": 0.2, "prior": 0.3}),  # some rows are at the bound
    ("hard-negative", {}),
    ("hard-negative", {"temperature": 0.2, "beta": 0.3, "prior": 0.2}),
    ("hard-negative", {"beta": 2.0, "prior": 0.0}),
]
DECOUPLED = ["dcl", "dclw", "gte", "dhel", "mv-dhel", "kcl", "spectral", "debiased", "hard-negative"]
NEED_NEGATIVES = {
    "align-uniform", "pairwise", "alpha-cl", "quadratic", "cmc-nce", "barlow-twins", "vic-reg", *DECOUPLED
}  # fmt: skip
NEED_ATTRIBUTES = ["sup-con", "x-clr", "guided", "sog-clr", "cosent", "angle"]


def test_the_cases_cover_the_catalog():
    assert {name for name, _ in CASES} | set(NEED_ATTRIBUTES) == set(OBJECTIVES)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=name_case)
def test_value_and_gradient(case, backend):
    name, case_settings = case
    z = views(k=3 if name in {"cmc", "mv-dhel"} else 2)
    with contraport.engine.backend(backend):
        result = outcome(build(name, **case_settings), *z)
    assert_same(result, outcome(lambda *z: by_formula(name, *z, **case_settings), *z))


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=name_case)
def test_tiny_batches(case, n):
    name, case_settings = case
    loss = build(name, **case_settings)
    if n == 1 and name in NEED_NEGATIVES:
        with raises_usage_error("z0.single_item"):
            loss(*views(1))
        return
    for backend in BACKENDS:
        with contraport.engine.backend(backend):
            result = outcome(loss, *views(n))
        assert_same(result, outcome(lambda *z: by_formula(name, *z, **case_settings), *views(n)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("temperature", "attributes"), [(0.1, {}), (0.7, {"weights": WEIGHTS}), (0.2, {"ids": IDS})])
def test_sup_con(temperature, attributes, backend):
    with contraport.engine.backend(backend):
        result = outcome(lambda *z: build("sup-con", temperature=temperature)(*z, labels=LABELS, **attributes),
                       *views())  # fmt: skip
    expected = outcome(lambda *z: formulas.sup_con(*z, temperature=temperature, labels=LABELS, **attributes), *views())
    assert_same(result, expected)


FEATURES = torch.randn(7, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
ATTRIBUTE_CASES = {
    "x-clr": [
        ({}, {"features": FEATURES[:, 0]}),
        ({"temperature": 0.5, "teacher_temperature": 1.0}, {"features": FEATURES}),
        ({}, {"features": FEATURES, "weights": WEIGHTS, "ids": IDS}),
    ],
    "guided": [
        ({}, {"features": FEATURES[:, 0]}),
        ({"margin": 0.5}, {"features": FEATURES[:, 0], "weights": WEIGHTS}),
        ({"margin": -0.2, "temperature": 0.5}, {"features": FEATURES}),
        ({"layout": "joint", "temperature": 0.5}, {"features": FEATURES, "ids": IDS}),
    ],
    "sog-clr": [({}, {"ids": torch.arange(7)}), ({"temperature": 0.5}, {"ids": IDS, "weights": WEIGHTS})],
}


CASES_WITH_ATTRIBUTES = [
    (name, case_settings, attributes) for name, cases in ATTRIBUTE_CASES.items() for case_settings, attributes in cases
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "case_settings", "attributes"), CASES_WITH_ATTRIBUTES)
def test_objectives_with_required_attributes(name, case_settings, attributes, backend):
    with contraport.engine.backend(backend):
        result = outcome(lambda *z: build(name, **case_settings)(*z, **attributes), *views())
    assert_same(result, outcome(lambda *z: by_formula(name, *z, **case_settings, **attributes), *views()))


@pytest.mark.parametrize("name", ATTRIBUTE_CASES)
def test_objectives_with_required_attributes_of_a_large_batch_in_tiles(name):
    attributes = required_attributes(name, 300)
    with contraport.engine.backend("streamed"):
        result = outcome(lambda *z: build(name)(*z, **attributes), *views(300, 8))
    assert_same(result, outcome(lambda *z: by_formula(name, *z, **attributes), *views(300, 8)))


def test_guided_negatives_differ_by_direction():
    """Each direction excludes pairs of its own, and no positives."""
    plans = [result.plan.dense() for result in build("guided").iterate_plans_with_targets(*views(), features=FEATURES)]
    excluded = [plan == 0 for plan in plans]
    assert (excluded[0] != excluded[1].T).any()
    assert not excluded[0].diagonal().any()


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9])
def test_sog_clr_averages_over_batches(momentum):
    """Three batches: the averages of repeated items are updated, the others stay."""
    loss, average = build("sog-clr", items=10, temperature=0.3, momentum=momentum), {}
    for step, ids in enumerate(([0, 1, 2, 3], [7, 2, 9, 0], [9, 1, 0, 4])):
        z, item_ids = views(4, seed=step), torch.tensor(ids)
        result = outcome(lambda *z: loss(*z, ids=item_ids), *z)  # noqa: B023
        expected = outcome(
            lambda *z: formulas.sog_clr(*z, temperature=0.3, momentum=momentum, ids=item_ids, average=average),  # noqa: B023
            *z,
        )
        assert_same(result, expected)
    before = loss.divergence.log_average.clone()
    loss.eval()(*views(4), ids=torch.tensor([0, 1, 2, 3]))
    with torch.no_grad():
        loss.train()(*views(4), ids=torch.tensor([0, 1, 2, 3]))
    torch.testing.assert_close(loss.divergence.log_average, before, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (lambda: build("sog-clr")(*views()), "ids.missing", ""),
        (lambda: build("sog-clr", items=3)(*views(), ids=torch.arange(7)), "ids.invalid", ""),
        (lambda: build("sog-clr")(*views(), ids=-torch.arange(7)), "ids.invalid", ""),
        (lambda: build("sog-clr", items=0), "items.invalid", "0"),
        (lambda: build("x-clr")(*views()), "features.missing", ""),
        (lambda: build("guided")(*views()), "features.missing", ""),
        (
            lambda: build("x-clr")(*views(), features=torch.ones(7)),
            "features.shape",
            "(7,)",
        ),
        (lambda: build("guided", margin=INFINITE), "margin.invalid", "inf"),
        (
            lambda: build("guided")(*views(), features=FEATURES, target=o.Labels(), labels=LABELS),
            "features.conflict",
            "",
        ),
        (lambda: build("vic-reg")(*views(), weights=WEIGHTS), "weights.conflict", "CoordinatePairs"),
        (lambda: build("barlow-twins")(*views(), ids=IDS), "ids.conflict", "CoordinatePairs"),
        (lambda: build("barlow-twins")(*views(), negatives=views()[0]), "negatives.conflict", "Cost"),
    ],
)
def test_rejects_invalid_arguments(call, code, value):
    with raises_usage_error(code, value):
        call()


@pytest.mark.parametrize("num_views", [2, 3, 4])
def test_mv_dhel_over_any_number_of_views(num_views):
    z = views(k=num_views)
    result = outcome(build("mv-dhel", temperature=0.5), *z)
    assert_same(result, outcome(lambda *z: formulas.mv_dhel(*z, temperature=0.5), *z))
    if num_views == 2:
        assert_same(result, outcome(build("dhel", temperature=0.5), *z), 1e-12)


@pytest.mark.parametrize("num_views", [2, 3, 4])
@pytest.mark.parametrize("graph", ["full", "core"])
def test_cmc_over_any_number_of_views(num_views, graph):
    z = views(k=num_views)
    result = outcome(build("cmc", temperature=0.3, graph=graph), *z)
    assert_same(result, outcome(lambda *z: formulas.cmc(*z, temperature=0.3, graph=graph), *z))


# Attributes of a call. Each entry: the arguments of the loss, and those of the formula.

JOINT, CROSS = some_matrix(14).fill_diagonal_(0), some_matrix(7)
ATTRIBUTES = {
    "weights": lambda entries: ({"weights": WEIGHTS}, {"weights": WEIGHTS}),
    "ids": lambda entries: ({"ids": IDS}, {"ids": IDS}),
    "ids-weights": lambda entries: ({"ids": IDS, "weights": WEIGHTS}, {"ids": IDS, "weights": WEIGHTS}),
    "matrix": lambda entries: ({"target": entries}, {"target": formulas.matrix(entries)}),
    "sparse-matrix": lambda entries: ({"target": entries.to_sparse()}, {"target": formulas.matrix(entries)}),
    "labels": lambda entries: ({"target": o.Labels(), "labels": LABELS}, {"target": formulas.classes(LABELS)}),
    "domains": lambda entries: (
        {"target": o.Domains(0.25, 0.125), "domains": DOMAINS},
        {"target": formulas.domains(DOMAINS, 0.25, 0.125)},
    ),
    "across-domains": lambda entries: (
        {"target": o.Domains(0.0, 0.5), "domains": DOMAINS, "ids": IDS, "weights": WEIGHTS},
        {"target": formulas.domains(DOMAINS, 0.0, 0.5), "ids": IDS, "weights": WEIGHTS},
    ),
    "matrix-weights": lambda entries: (
        {"target": entries, "weights": WEIGHTS},
        {"target": formulas.matrix(entries), "weights": WEIGHTS},
    ),
}
TARGETED = [
    ("info-nce", {"symmetric": False}),
    ("nt-xent", {}),
    ("rince", {}),
    ("gca-ince", {}),
    ("gca-rince", {"iterations": 2}),
    ("gca-uot", {"rince_weight": 0.5}),
    ("iot", {"constraint": "simplex"}),
    ("iot-uniform", {}),
    ("iot-uniform", {"constraint": "rows"}),
    ("iot-quadratic", {"closed_form": False}),
    ("iot-quadratic", {"closed_form": False, "constraint": "simplex"}),
    ("direct-clr", {"dimensions": 3}),
    ("t-simclr", {}),
    ("t-simclr", {"conditional": True}),
]


def check_attributes(name, case_settings, attributes, backend):
    entries = CROSS if name in {"info-nce", "cmc"} or case_settings.get("layout") == "cross" else JOINT
    attributes_of_call, formula_settings = ATTRIBUTES[attributes](entries)
    loss = build(name, **case_settings)
    with contraport.engine.backend(backend):
        result = outcome(lambda *z: loss(*z, **attributes_of_call), *views())
    rtol = 1e-6 if "domains" in attributes else 1e-9  # see test_domains_keep_double_precision
    assert_same(result, outcome(lambda *z: by_formula(name, *z, **case_settings, **formula_settings), *views()), rtol)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("attributes", ATTRIBUTES)
@pytest.mark.parametrize("case", TARGETED, ids=name_case)
def test_call_attributes(case, attributes, backend):
    check_attributes(*case, attributes, backend)


@pytest.mark.parametrize("attributes", ["weights", "ids", "ids-weights", "matrix", "sparse-matrix", "labels"])
@pytest.mark.parametrize("case", [("info-nce", {}), ("rince", {"layout": "cross"}), ("cmc", {})], ids=name_case)
def test_call_attributes_of_a_symmetric_layout(case, attributes):
    check_attributes(*case, attributes, "streamed")


@pytest.mark.parametrize("attributes", ["domains", "across-domains"])
@pytest.mark.parametrize("case", [("info-nce", {}), ("rince", {"layout": "cross"}), ("cmc", {})], ids=name_case)
def test_each_direction_normalizes_its_own_target(case, attributes):
    """Rows of a target have mass 1/N, so in the second direction the items of view 1 have it."""
    check_attributes(*case, attributes, "streamed")


@pytest.mark.parametrize("layout", ["joint", "cross"])
@pytest.mark.parametrize("constraint", ["rows", "simplex"])
@pytest.mark.parametrize("attributes", ["weights", "ids", "matrix", "labels", "domains"])
def test_closed_form_has_the_target_outside_the_logarithm(attributes, constraint, layout):
    check_attributes("iot-quadratic", {"constraint": constraint, "layout": layout}, attributes, "streamed")


@pytest.mark.parametrize("attributes", ["weights", "ids", "ids-weights"])
@pytest.mark.parametrize(
    "case",
    [
        ("alpha-cl", {}),
        ("alpha-cl", {"regularizer": "entropy", "negatives": "other"}),
        ("alpha-cl", {"regularizer": "inverse", "negatives": "same", "detach": False}),
        ("quadratic", {}),
        ("pairwise", {}),
        ("pairwise", {"preset": "triplet", "negatives": "same"}),
        ("pairwise", {"preset": "linear_pairs", "negatives": "other"}),
        ("pairwise", {"preset": "lifted_structured"}),
        ("pairwise", {"phi": torch.square, "psi": torch.tanh}),
        *((name, {}) for name in DECOUPLED),
    ],
    ids=name_case,
)
def test_call_attributes_of_pair_weighted_losses(case, attributes):
    check_attributes(*case, attributes, "streamed")


def test_weights_of_byol():
    assert_same(outcome(lambda *z: build("byol")(*z, weights=WEIGHTS), *views()),
                outcome(lambda *z: formulas.byol(*z, weights=WEIGHTS), *views()))  # fmt: skip


@pytest.mark.parametrize(
    ("alpha", "beta"), [(0.2, 0.0), (0.0, 0.1), (0.2, 0.1), (0.1, 0.1), (3.0, 0.7)]
)  # not exact in single precision
@pytest.mark.parametrize("name", ["nt-xent", "rince", "t-simclr"])
def test_domains_keep_double_precision(name, alpha, beta):
    result = outcome(lambda *z: build(name)(*z, target=o.Domains(alpha, beta), domains=DOMAINS), *views())
    expected = outcome(lambda *z: by_formula(name, *z, target=formulas.domains(DOMAINS, alpha, beta)), *views())
    assert_same(result, expected, rtol=1e-12)


# Other libraries


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_matches_pytorch_metric_learning(temperature):
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    z0, z1 = views()
    classes = LABELS.repeat(2)
    nt_xent = outcome(losses.SelfSupervisedLoss(losses.NTXentLoss(temperature)), z0, z1)
    assert_same(outcome(build("nt-xent", temperature=temperature), z0, z1), nt_xent, 1e-6)
    half = build("pairwise", temperature=temperature)  # tau times NT-Xent
    torch.testing.assert_close(half(z0, z1), temperature * nt_xent[0], rtol=1e-6, atol=1e-6)
    expected = outcome(lambda a, b: losses.SupConLoss(temperature)(torch.cat([a, b]), classes), z0, z1)
    positives = (classes == classes[:, None]).sum(1) - 1
    result = outcome(
        lambda a, b: build("sup-con", temperature=temperature)(a, b, labels=LABELS)
        + positives.double().log().mean(),
        z0, z1,
    )  # fmt: skip
    assert_same(result, expected, 1e-6)


@pytest.mark.parametrize("margin", [0.3, 1.0])
def test_triplet_preset_matches_pytorch_metric_learning(margin):
    """All triplets of anchor, other view and negative; their distance is twice ours, their mean is over triplets."""
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    distances = pytest.importorskip("pytorch_metric_learning.distances")
    reducers = pytest.importorskip("pytorch_metric_learning.reducers")
    triplet_loss = losses.TripletMarginLoss(
        margin=2 * margin, distance=distances.LpDistance(power=2), reducer=reducers.MeanReducer()
    )
    items = torch.arange(7).repeat(2)
    expected = outcome(lambda a, b: triplet_loss(torch.cat([a, b]), items) * 12 / 2, *views())
    assert_same(outcome(build("pairwise", preset="triplet", epsilon=margin), *views()), expected, 1e-6)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_matches_lightly(temperature):
    losses = pytest.importorskip("lightly.loss")
    z0, z1 = views()
    expected = outcome(losses.NTXentLoss(temperature), z0, z1)
    assert_same(outcome(build("nt-xent", temperature=temperature), z0, z1), expected, 1e-6)
    expected = outcome(losses.DirectCLRLoss(loss_dim=3, temperature=temperature), z0, z1)
    loss = build("direct-clr", temperature=temperature, dimensions=3)
    assert_same(outcome(loss, z0, z1), expected, 1e-6)
    expected = outcome(lambda a, b: 2 + 2 * losses.NegativeCosineSimilarity()(a, b.detach()), z0, z1)
    assert_same(outcome(build("byol"), z0, z1), expected, 1e-6)
    expected = outcome(losses.DCLLoss(temperature), z0, z1)
    assert_same(outcome(build("dcl", temperature=temperature), z0, z1), expected, 1e-12)


def test_matches_lightly_weighted_decoupled_loss():
    """Weights of pairs depend on `sigma`; torch warns that lightly copies a tensor."""
    losses = pytest.importorskip("lightly.loss")
    with pytest.warns(UserWarning, match="copy construct"):
        expected = outcome(losses.DCLWLoss(0.2, sigma=0.3), *views())
    assert_same(outcome(build("dclw", temperature=0.2, sigma=0.3), *views()), expected, 1e-12)


def test_gte_is_one_softmax_over_four_directions():
    def written_out(queries, texts):
        q, d = (z / z.norm(dim=1, keepdim=True) for z in (queries, texts))
        each = []
        for i in range(len(q)):
            others = [j for j in range(len(q)) if j != i]
            to_texts, to_queries = (20 * d @ q[i]).exp().sum(), (20 * q @ d[i]).exp().sum()
            among_queries = (20 * q[others] @ q[i]).exp().sum()
            among_texts = (20 * d[others] @ d[i]).exp().sum()
            each.append(-((20 * q[i] @ d[i]).exp() / (to_texts + among_queries + to_queries + among_texts)).log())
        return sum(each) / len(each)

    assert_same(outcome(build("gte", temperature=1 / 20), *views()), outcome(written_out, *views()))


@pytest.mark.parametrize("name", DECOUPLED)
def test_decoupled_losses_of_a_large_batch_in_tiles(name):
    z = views(300, 8)
    with contraport.engine.backend("streamed"):
        result = outcome(build(name), *z)
    assert_same(result, outcome(lambda *z: by_formula(name, *z), *z))


def test_matches_lightly_losses_of_coordinates():
    """Its Barlow Twins adds 1e-5 to the variances."""
    losses = pytest.importorskip("lightly.loss")
    z = views(40, 6)
    assert_same(outcome(build("vic-reg"), *z), outcome(losses.VICRegLoss(), *z), 1e-12)
    assert_same(outcome(build("barlow-twins"), *z), outcome(losses.BarlowTwinsLoss(), *z), 3e-5)


def test_debiased_without_prior_equals_nt_xent():
    nt_xent = outcome(build("nt-xent", temperature=0.3), *views())
    assert_same(outcome(build("debiased", temperature=0.3, prior=0.0), *views()), nt_xent, 1e-12)
    assert_same(outcome(build("hard-negative", temperature=0.3, beta=0.0, prior=0.0), *views()), nt_xent, 1e-12)


def test_cases_cover_both_branches_of_the_debiased_bound():
    pairing = formulas.joint(*views())
    kernel = (formulas.cosine(pairing.x, pairing.y) / 0.2).exp()
    corrected = formulas.masked_mean(kernel, pairing.negative) - 0.3 * formulas.positives(kernel, pairing)
    bound = 0.7 * math.exp(-1 / 0.2)
    assert (corrected > bound).any()
    assert (corrected < bound).any()


def joint_cost(far=1e6):
    return formulas.joint(*views()), (1 - formulas.cosine(torch.cat(views()), torch.cat(views()))).fill_diagonal_(far)


@pytest.mark.parametrize("temperature", [0.2, 0.5])
def test_balanced_plan_matches_pot(temperature):
    ot = pytest.importorskip("ot")
    pairing, cost = joint_cost()
    uniform = torch.full((14,), 1 / 14, dtype=torch.float64)
    expected = ot.bregman.sinkhorn_log(uniform, uniform, cost, temperature, numItermax=2000, stopThr=1e-15)
    loss = build("gca-ince", temperature=temperature, iterations=1000)
    torch.testing.assert_close(loss.plan(*views()), expected, rtol=1e-9, atol=1e-13)
    torch.testing.assert_close(loss(*views()), formulas.kl(formulas.pairs(pairing), expected), rtol=1e-9, atol=1e-12)
    converged = o.Objective(
        o.Joint(), contraport.Gibbs("cosine", temperature), o.Balanced(5000, 1e-13), o.Pairs(), o.KL()
    )
    torch.testing.assert_close(converged.plan(*views()), expected, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("temperature", [0.2, 0.5])
@pytest.mark.parametrize("relaxation", [0.2, 1.0, (0.3, 2.0)])
@pytest.mark.parametrize(("reference", "reg_type"), [("product", "kl"), ("counting", "entropy")])
def test_unbalanced_plan_matches_pot(reference, reg_type, temperature, relaxation):
    ot = pytest.importorskip("ot")
    z0, z1 = views()
    cost, uniform = 1 - formulas.cosine(z0, z1), torch.full((7,), 1 / 7, dtype=torch.float64)
    expected = ot.unbalanced.sinkhorn_unbalanced(
        uniform, uniform, cost, temperature, relaxation, reg_type=reg_type, numItermax=5000, stopThr=1e-15
    )
    kernel, plan = contraport.Gibbs("cosine", temperature), o.Unbalanced(relaxation, 600, reference)
    loss = o.Objective(o.Cross(symmetric=False), kernel, plan, o.Pairs(), o.KL())
    torch.testing.assert_close(loss.plan(z0, z1), expected, rtol=1e-9, atol=1e-13)
    target = torch.eye(7, dtype=torch.float64) / 7
    torch.testing.assert_close(loss(z0, z1), formulas.kl(target, expected), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_quadratic_plan_matches_pot(temperature):
    """With potentials of zero, POT's semi-dual has the plan with one marginal."""
    smooth = pytest.importorskip("ot.smooth")
    z0, z1 = views()
    cost = (1 - formulas.cosine(z0, z1)).numpy()
    mass = np.full(7, 1 / 7)
    expected = smooth.get_plan_from_semi_dual(np.zeros(7), mass, cost.T, smooth.SquaredL2(gamma=temperature)).T
    loss = build("iot-quadratic", closed_form=False, layout="cross", temperature=temperature)
    torch.testing.assert_close(loss.plan(z0, z1), torch.as_tensor(expected), rtol=1e-9, atol=1e-13)
    largest, _ = smooth.SquaredL2(gamma=temperature).max_Omega(-cost.T, mass)
    value = np.mean((largest + cost.diagonal()) * 7 / temperature) + 0.5
    torch.testing.assert_close(loss(z0, z1).item(), value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_quadratic_plan_of_the_simplex_matches_pot(temperature):
    projection = pytest.importorskip("ot.utils").proj_simplex
    cost = 1 - formulas.cosine(*views())
    loss = build("iot-quadratic", closed_form=False, layout="cross", temperature=temperature, constraint="simplex")
    expected = projection(-cost.reshape(-1) / temperature).reshape(7, 7)
    torch.testing.assert_close(loss.plan(*views()), expected, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("df", [1, 3])
def test_t_sne_matches_scikit_learn(df):
    """Its divergence of a symmetric target from the joint Student plan, and its gradient."""
    t_sne = pytest.importorskip("sklearn.manifold._t_sne")
    z0, z1 = views(d=2)
    target = torch.rand(14, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    target = (target + target.T).fill_diagonal_(0)
    target = target / target.sum()
    condensed = target[tuple(torch.triu_indices(14, 14, 1))].numpy()
    value, slope = t_sne._kl_divergence(torch.cat([z0, z1]).numpy().ravel(), condensed, df, 14, 2)
    loss = build("t-simclr", df=df, temperature=1.0)
    result = outcome(lambda *z: loss(*z, target=target), z0, z1)
    torch.testing.assert_close(result[0].item(), value, rtol=1e-7, atol=0)
    if df == 1:  # its gradient has the exponent -(df + 1)/2 where the derivative has -1
        assert_same(result, (result[0], torch.as_tensor(slope).reshape(2, 7, 2).unbind()), 1e-7)


# Identities


@pytest.mark.parametrize("lam", [0.01, 1.0])
def test_rince_towards_zero_is_info_nce(lam):
    """(A^q - B^q)/q = log A/B + q/2 (log^2 A - log^2 B) + O(q^2), A/B the ratio of InfoNCE times lam."""
    q, tau = 1e-5, 0.5
    z0, z1 = views()
    similar = formulas.cosine(z0, z1) / tau
    log_a, log_b = similar.logsumexp(1) + math.log(lam), similar.diagonal()
    log_a_back = similar.logsumexp(0) + math.log(lam)
    slope = (log_a.square() + log_a_back.square() - 2 * log_b.square()).mean() / 4
    result = build("rince", temperature=tau, q=q, lam=lam, layout="cross")(z0, z1)
    limit = build("info-nce", temperature=tau)(z0, z1) + math.log(lam)
    torch.testing.assert_close(result, limit + q * slope, rtol=0, atol=1e-8)
    joint = build("rince", temperature=tau, q=q, lam=lam)(z0, z1)
    nt_xent = build("nt-xent", temperature=tau)(z0, z1)
    torch.testing.assert_close(joint, nt_xent + math.log(lam), rtol=0, atol=50 * q)


def test_gca_uot_becomes_gca_ince_as_its_relaxation_grows():
    strict = outcome(build("gca-ince", iterations=4), *views())
    gaps = [
        (build("gca-uot", iterations=4, relaxation=relaxation)(*views()) - strict[0]).abs().item()
        for relaxation in [1.0, 10.0, 100.0, 1000.0]
    ]
    assert all(after < before / 10 for before, after in itertools.pairwise(gaps))
    assert_same(outcome(build("gca-uot", iterations=4, relaxation=INFINITE), *views()), strict, 1e-12)


def test_gca_ince_converges_to_both_marginals():
    plan = build("gca-ince", temperature=0.2, iterations=300).plan(*views())
    uniform = torch.full((14,), 1 / 14, dtype=torch.float64)
    torch.testing.assert_close(plan.sum(1), uniform, rtol=1e-10, atol=0)
    torch.testing.assert_close(plan.sum(0), uniform, rtol=1e-10, atol=0)
    torch.testing.assert_close(plan, plan.T, rtol=1e-8, atol=1e-14)  # the kernel is symmetric, so the plan is
    more = build("gca-ince", temperature=0.2, iterations=301)(*views())
    torch.testing.assert_close(build("gca-ince", temperature=0.2, iterations=300)(*views()), more)


def test_gradient_at_convergence_is_target_minus_plan():
    """dL/dC = (P~ - P) / tau, for a target with the plan's marginals (inverse optimal transport, eq. 7)."""
    z0, z1 = views()
    kernel = contraport.Gibbs("dot", 0.9)
    loss = o.Objective(o.Cross(symmetric=False), kernel, o.Balanced(3000, 1e-13), o.Pairs(), o.KL())
    from_cost = (torch.eye(7, dtype=torch.float64) / 7 - loss.plan(z0, z1)) / 0.9
    value, _ = result = outcome(loss, z0, z1)
    assert_same(result, (value, [-from_cost @ z1, -from_cost.T @ z0]), 1e-8)


def test_iot_with_rows_is_nt_xent_and_with_simplex_is_equation_16():
    z0, z1 = views()
    assert_same(
        outcome(build("iot", constraint="rows", temperature=0.3), z0, z1),
        outcome(build("nt-xent", temperature=0.3), z0, z1),
        1e-14,
    )
    pairing, cost = joint_cost(torch.inf)
    kernel = (-cost / 0.3).exp()
    equation = -(14 * kernel[pairing.positive] / kernel.sum()).log().mean()
    simplex = build("iot", constraint="simplex", temperature=0.3)
    torch.testing.assert_close(simplex(z0, z1), equation, rtol=1e-12, atol=0)


@pytest.mark.parametrize("negatives", ["both", "same", "other"])
@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_alpha_cl_with_entropy_has_the_gradient_of_info_nce_without_positive(negatives, temperature):
    loss = build("alpha-cl", regularizer="entropy", temperature=temperature, negatives=negatives)
    reference = build("pairwise", epsilon=0.0, temperature=temperature, negatives=negatives)
    for a, b in zip(outcome(loss, *views())[1], outcome(reference, *views())[1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("phi", [torch.log1p, torch.sqrt, lambda xi: torch.log(0.3 + xi)])
def test_alpha_cl_with_the_mass_of_phi(phi, detach, backend):
    loss = build("alpha-cl", regularizer="entropy", phi=phi, detach=detach, temperature=0.3)
    with contraport.engine.backend(backend):
        result = outcome(loss, *views())
    assert_same(result, outcome(
        lambda *z: formulas.alpha_cl(*z, regularizer="entropy", phi=phi, detach=detach, temperature=0.3), *views()
    ), 1e-9)  # fmt: skip
    if detach:
        pairs = build("pairwise", phi=phi, psi=lambda x: torch.exp(x / 0.3))
        for a, b in zip(result[1], outcome(pairs, *views())[1], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_cmc_of_two_views_is_twice_info_nce():
    cmc, info_nce = build("cmc", temperature=0.3), build("info-nce", temperature=0.3)
    torch.testing.assert_close(cmc(*views()), 2 * info_nce(*views()), rtol=1e-14, atol=0)


def test_domains_of_zero_weight_are_pairs():
    for name in ["info-nce", "nt-xent", "gca-uot"]:
        loss = build(name)
        plain = outcome(loss, *views())
        assert_same(outcome(lambda *z: loss(*z, target=o.Domains(), domains=DOMAINS), *views()), plain, 1e-13)  # noqa: B023


@pytest.mark.parametrize("name", ["info-nce", "rince", "cmc"])
def test_symmetric_objectives_are_symmetric_in_their_views_under_domains(name):
    loss = build(name, **({"layout": "cross"} if name == "rince" else {}))
    z0, z1 = views()
    attributes = {"target": o.Domains(0.25, 0.125), "domains": DOMAINS}
    torch.testing.assert_close(loss(z0, z1, **attributes), loss(z1, z0, **attributes), rtol=1e-12, atol=0)


SYMMETRIC = [
    case for case in CASES
    if case[0] not in {"byol", "cmc"} and case[1].get("symmetric", True)
    and not (case[0] == "iot-quadratic" and case[1]["layout"] == "cross" and case[1]["constraint"] == "rows")
]  # fmt: skip


@pytest.mark.parametrize("case", SYMMETRIC, ids=name_case)
def test_the_order_of_the_views_does_not_matter(case):
    z0, z1 = views()
    loss = build(case[0], **case[1])
    value = loss(z0, z1)
    exact = "iterations" not in case[1] and case[0] not in {"gca-ince", "gca-uot", "gca-rince", "iot", "iot-uniform"}
    torch.testing.assert_close(loss(z1, z0), value, rtol=1e-12 if exact else 1e-11, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(case=st.sampled_from(CASES), n=st.integers(2, 9), seed=st.integers(0, 10**6))
def test_the_order_of_the_batch_does_not_matter(case, n, seed):
    name, case_settings = case
    z0, z1 = views(n, seed=seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    loss = build(name, **case_settings)
    value, slopes = outcome(loss, z0, z1)
    shuffled = outcome(loss, z0[order], z1[order])
    assert_same(shuffled, (value, [slope[order] for slope in slopes]), 1e-8)


# Detached terms have no gradient, unlike in differences of the value.
HELD = {"alpha-cl", "quadratic", "byol", "dclw"}
GRADCHECKED = [case for case in CASES if case[0] not in HELD and not case[1].get("c")]
GRADCHECKED += [
    ("alpha-cl", {"regularizer": regularizer, "detach": False})
    for regularizer in ["entropy", "inverse", "square", "direct"]
]


@pytest.mark.parametrize("case", GRADCHECKED, ids=name_case)
def test_gradcheck(case):
    name, case_settings = case
    z0, z1 = (z.requires_grad_() for z in views(n=3, d=3, seed=1))
    loss = build(name, **case_settings)
    loss(z0, z1)
    with contraport.engine.backend("streamed"):
        assert torch.autograd.gradcheck(loss.eval(), (z0, z1))


def test_closed_form_attracts_pairs_beyond_its_logarithm():
    """Opposite views: 1 + sum_j (C_ij - C_i+) is negative for every row."""
    z0, z1 = torch.eye(4, dtype=torch.float64), -torch.eye(4, dtype=torch.float64)
    z1 = z1 + 0.1 * views(4, 4)[1]
    for constraint, layout in itertools.product(["rows", "simplex"], ["joint", "cross"]):
        loss = build("iot-quadratic", constraint=constraint, layout=layout)
        value, (slope0, slope1) = outcome(loss, z0, z1)
        assert value.isfinite()
        before = (formulas.unit(z0) * formulas.unit(z1)).sum(1)
        after = (formulas.unit(z0 - 1e-4 * slope0) * formulas.unit(z1 - 1e-4 * slope1)).sum(1)
        assert (after > before).all()


# Plans


def plan_of(plan, layout=None, temperature=0.5):
    divergence = o.FenchelYoung() if isinstance(plan, o.Tsallis) else o.KL()
    kernel = contraport.Gibbs("cosine", temperature)
    return o.Objective(layout or o.Joint(), kernel, plan, o.Pairs(), divergence)


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 9), d=st.integers(2, 5), seed=st.integers(0, 10**6), temperature=st.sampled_from([0.05, 0.5, 2.0]),
    joint=st.booleans(), backend=st.sampled_from(BACKENDS),
)  # fmt: skip
def test_masses_and_marginals(n, d, seed, temperature, joint, backend):
    z = views(n, d, seed=seed)
    layout = o.Joint() if joint else o.Cross(symmetric=False)
    N = 2 * n if joint else n
    with contraport.engine.backend(backend):
        plans = {
            name: plan_of(plan, layout, temperature).plan(*z)
            for name, plan in {
                "Free": o.Free(), "Simplex": o.Simplex(), "Rows": o.Rows(), "Columns": o.Columns(),
                "Balanced": o.Balanced(3), "Unbalanced": o.Unbalanced(0.7, 3), "Tsallis": o.Tsallis(),
            }.items()
        }  # fmt: skip
    for plan in plans.values():
        assert (plan >= 0).all()
        assert not joint or not plan.diagonal().any()
    share = torch.full((N,), 1 / N, dtype=torch.float64)
    for name, axis in [("Rows", 1), ("Tsallis", 1), ("Columns", 0), ("Balanced", 0)]:
        torch.testing.assert_close(plans[name].sum(axis), share, rtol=1e-9, atol=0)
    torch.testing.assert_close(plans["Simplex"].sum().item(), 1.0, rtol=1e-10, atol=0)


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 7), seed=st.integers(0, 10**6), iterations=st.integers(1, 6), joint=st.booleans())
def test_kl_is_zero_at_the_target_and_never_negative(n, seed, iterations, joint):
    z0, z1 = views(n, seed=seed)
    layout = o.Joint() if joint else o.Cross(symmetric=False)
    for plan in [o.Rows(), o.Simplex(), o.Balanced(iterations)]:
        loss = plan_of(plan, layout)
        result = loss.plan(z0, z1)
        value, slopes = outcome(lambda *z: loss(*z, target=result), z0, z1)  # noqa: B023
        assert abs(value) < 1e-12
        if not isinstance(plan, o.Balanced):  # the slopes of a plan that has not converged need not vanish
            assert max(slope.abs().max() for slope in slopes) < 1e-12
        assert loss(z0, z1) >= -1e-12


@settings(max_examples=20, deadline=None)
@given(n=st.integers(2, 9), seed=st.integers(0, 10**6), temperature=st.floats(0.02, 5.0))
def test_quadratic_rows_are_sparsemax(n, seed, temperature):
    loss = build("iot-quadratic", closed_form=False, temperature=temperature)
    z0, z1 = views(n, 3, seed=seed)
    pairing = formulas.joint(z0, z1)
    logits = (formulas.cosine(pairing.x, pairing.y) - 1).masked_fill(~pairing.compared, -INFINITE) * 2 * n / temperature
    torch.testing.assert_close(loss.plan(z0, z1) * 2 * n, formulas.sparsemax(logits), rtol=0, atol=1e-9)


@pytest.mark.parametrize("constraint", ["rows", "simplex"])
@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.03, 0.01, 0.001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_quadratic_plan_of_equal_costs_is_uniform(constraint, temperature, dtype):
    """Sparsemax of the equal costs of a collapsed batch."""
    z = torch.ones(6, 4, dtype=dtype)
    loss = build("iot-quadratic", closed_form=False, constraint=constraint, temperature=temperature)
    uniform = (1 - torch.eye(12, dtype=dtype)) / (12 * 11)
    # Logits are of the size of 12 / temperature, with the rounding error of single precision.
    tolerance = 1e-5 / temperature if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(loss.plan(z, z), uniform, rtol=max(tolerance, 1e-4), atol=0)


@pytest.mark.parametrize("regularizer", ["entropy", "inverse", "inverse-shifted", "square", "direct", "uniform"])
@pytest.mark.parametrize("negatives", ["both", "same", "other"])
def test_the_plan_of_alpha_cl_is_alpha(regularizer, negatives):
    _, half, among = formulas.half_distances(*views(), negatives, None)
    if regularizer == "square":
        alpha = formulas.sparsemax((-2 * half / 0.5).masked_fill(~among, -INFINITE))
    elif regularizer == "inverse":
        alpha = formulas.inverse_weights(half, among, 0.5, 2.0)
    else:
        alpha = {
            "entropy": torch.exp(-half / 0.5),
            "inverse-shifted": (half + 0.5) ** -0.5,
            "direct": torch.exp(-(half**2) / 0.5),
            "uniform": torch.ones_like(half),
        }[regularizer] * among
        alpha = alpha / alpha.sum(1, keepdim=True)
    loss = build("alpha-cl", regularizer=regularizer, negatives=negatives)
    torch.testing.assert_close(loss.plan(*views()) * 14, alpha, rtol=1e-10, atol=1e-14)


# Hostile input


HOSTILE = {
    "identical": lambda: (torch.ones(6, 4), torch.ones(6, 4)),
    "all zero": lambda: (torch.zeros(6, 4), torch.zeros(6, 4)),
    "a zero row": lambda: (torch.cat([torch.zeros(1, 4), torch.randn(5, 4)]), torch.randn(6, 4)),
    "opposite": lambda: (torch.eye(4), -torch.eye(4)),
    "orthogonal": lambda: (torch.eye(4), torch.eye(4)),
    "one line": lambda: (torch.randn(5, 3).sign(), torch.randn(5, 3).sign()),
    "one item": lambda: (torch.randn(1, 4), torch.randn(1, 4)),
    "two items": lambda: (torch.randn(2, 4), torch.randn(2, 4)),
    "large": lambda: (1e4 * torch.randn(6, 4), 1e4 * torch.randn(6, 4)),
}
VARIANTS = {
    (name, tuple((key, value) for key, value in case_settings.items() if key != "temperature"))
    for name, case_settings in CASES
}
UNSCALED = {"byol", "align-uniform", "quadratic", "spectral", "barlow-twins", "vic-reg"}


@pytest.mark.parametrize("variant", sorted(VARIANTS, key=repr), ids=lambda v: name_case((v[0], dict(v[1]))))
def test_hostile_batches(variant):
    name, case_settings = variant[0], dict(variant[1])
    cold = {} if name in UNSCALED else {"temperature": 0.001}
    for batch in HOSTILE:
        # not float16 at a low temperature, where the slope 1/(floor tau) of the closed form overflows
        for dtype, temperature in [(torch.float32, cold), (torch.bfloat16, cold), (torch.float16, {})]:
            by_length = name == "vic-reg" or case_settings.get("normalized") is False
            if batch == "large" and dtype == torch.float16 and by_length:
                continue  # the slope of a square of inner products grows with the cube of the length
            torch.manual_seed(0)
            z = [view.to(dtype).requires_grad_() for view in HOSTILE[batch]()]
            try:
                value = build(name, **case_settings, **temperature)(*z)
            except UsageError:
                continue
            value.backward()
            where = f"{batch}, {dtype}, {temperature}"
            assert torch.isfinite(value), where
            assert all(view.grad is None or torch.isfinite(view.grad).all() for view in z), where


def test_hostile_targets():
    z0, z1 = views()
    with_empty_rows = some_matrix(14).fill_diagonal_(0)
    with_empty_rows[4:9] = 0
    different = torch.arange(7)
    for name, case_settings in [*TARGETED, ("iot-quadratic", {}), ("iot-quadratic", {"constraint": "simplex"})]:
        entries = with_empty_rows[:7, 7:] if name == "info-nce" else with_empty_rows
        for attributes in [
            {"target": entries},
            {"target": o.Labels(), "labels": different},
            {"weights": torch.eye(7)[2]},
            {"ids": torch.zeros(7, dtype=torch.long)},  # all items are equal, so there are no negatives
        ]:
            try:
                value, slopes = outcome(lambda *z: build(name, **case_settings)(*z, **attributes), z0, z1)  # noqa: B023
            except UsageError:
                continue
            assert value.isfinite(), (name, case_settings, attributes)
            assert all(slope.isfinite().all() for slope in slopes), (name, case_settings, attributes)


def test_labels_that_all_differ_are_pairs():
    result = outcome(lambda *z: build("sup-con")(*z, labels=torch.arange(7)), *views())
    assert_same(result, outcome(build("nt-xent", temperature=0.1), *views()), 1e-13)


# Representation


@pytest.mark.parametrize(
    "case", [case for case in CASES if case[0] != "pairwise"] + [(name, {}) for name in NEED_ATTRIBUTES], ids=name_case
)  # the repr of pairwise has functions
def test_repr_can_be_evaluated(case):
    loss = build(case[0], **case[1])
    names = {**vars(contraport.engine), **vars(o)}
    again = eval(repr(loss), {"inf": math.inf, **names}).double()
    assert repr(again) == repr(loss)
    attributes = required_attributes(case[0])
    torch.testing.assert_close(again(*views(), **attributes), loss(*views(), **attributes), rtol=0, atol=0)


@pytest.mark.parametrize("temperature", [1e-2, 1e-3, 1e-5])
def test_uniformity_penalty_of_similar_views_is_not_negative(temperature):
    z0 = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    for moved in torch.randn(8, 6, 5, generator=torch.Generator().manual_seed(1)):
        assert contraport.iot_uniform(temperature).terms(z0, z0 + 0.01 * moved)["PlanUniformity"] >= 0


def test_debiased_mean_is_at_least_the_lowest_kernel_value():
    prior, floored = 0.4, 0
    z0, z1 = (torch.nn.functional.normalize(z) for z in views(n=6, d=2, seed=1))
    z = torch.cat([z0, z1])
    values = []
    for i in range(12):
        partner = (i + 6) % 12
        positive = torch.exp(z[i] @ z[partner])
        others = torch.stack([torch.exp(z[i] @ z[j]) for j in range(12) if j not in (i, partner)])
        corrected = (others.mean() - prior * positive) / (1 - prior)
        floored += int(0 < corrected < math.exp(-1))
        values.append(-torch.log(positive / (positive + 10 * corrected.clamp_min(math.exp(-1)))))
    assert floored > 0
    torch.testing.assert_close(contraport.debiased(temperature=1.0, prior=prior)(z0, z1), torch.stack(values).mean())
