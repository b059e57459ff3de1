"""Arguments of calls (temperature, views, labels, targets, negatives) against dense formulas and other libraries."""

import inspect
import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.errors import raises_usage_error
from tests.objectives.comparing import (
    BACKENDS,
    IDS,
    LABELS,
    OF_COORDINATES,
    RANKING,
    assert_same,
    build,
    outcome,
    required_attributes,
    views,
)
from torch import nn

import contraport
from contraport.catalog import OBJECTIVES
from contraport.engine import Geometry, Gibbs, LabelExclusion, MatrixLogKernel

pytestmark = pytest.mark.usefixtures("uneven_tiles")

SETTINGS = {"direct-clr": {"dimensions": 3}, "alpha-cl": {"detach": False}}
HOT = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0], [0, 0, 1]])


def unit(z):
    return z / z.square().sum(1, keepdim=True).sqrt()


def rows_loss(x, y, goal, temperature, compared=None, by_row=False):
    """Return the mean KL divergence of normalized target rows from kernel rows, over the rows with a target."""
    logits = unit(x) @ unit(y).T / temperature
    if compared is not None:
        logits = logits.masked_fill(~compared, -torch.inf)
    log_share = logits - logits.exp().sum(1, keepdim=True).log()
    goal = goal.double()
    mass = goal.sum(1)
    target = goal / mass.where(mass > 0, 1)[:, None]
    support = target > 0
    terms = torch.zeros_like(target).masked_scatter(
        support, target[support] * (target[support].log() - log_share[support])
    )
    values = terms.sum(1)
    has_target = mass > 0
    return values * len(values) / has_target.sum() if by_row else values.sum() / has_target.sum()


def others(n):
    return ~torch.eye(n, dtype=torch.bool)


@pytest.fixture(params=BACKENDS)
def backend(request):
    with contraport.engine.backend(request.param):
        yield request.param


# Temperatures: learned by the objective, owned by the caller, or given in a call

WITH_TEMPERATURE = [
    name
    for name in OBJECTIVES
    if "temperature" in inspect.signature(OBJECTIVES[name].build).parameters
    and name not in {"iot-quadratic", "sog-clr"}
]  # the averages of sog-clr are constants in its gradient, unlike in a difference of values


def build_at_temperature(name, temperature):
    """Build an objective at a temperature, with constant moving averages."""
    loss = build(name, **SETTINGS.get(name, {}), temperature=temperature).eval()
    for average in loss.buffers():
        average.fill_(2.0)
    return loss


def temperature_slope(name, temperature):
    """Return the value at a temperature and its derivative by a central difference."""
    z = views(k=3 if name in {"cmc", "mv-dhel"} else 2)

    def value(temperature_of_call):
        return build_at_temperature(name, temperature)(
            *z, **required_attributes(name), temperature=temperature_of_call
        ).item()

    step = 1e-5 * temperature
    return value(temperature), (value(temperature + step) - value(temperature - step)) / (2 * step)


@pytest.mark.parametrize("value", [0.0, -0.5, float("nan"), float("inf")])
def test_rejects_an_invalid_external_temperature(value):
    z0, z1 = torch.randn(2, 6, 5)
    external = torch.nn.Parameter(torch.tensor(0.5))
    loss = contraport.nt_xent(temperature=external)
    with torch.no_grad():
        external.fill_(value)
    for call in (lambda: loss(z0, z1), lambda: contraport.nt_xent()(z0, z1, temperature=torch.tensor(value))):
        with raises_usage_error("temperature.invalid", value):
            call()


@pytest.mark.parametrize("name", WITH_TEMPERATURE)
def test_every_objective_learns_its_temperature(name, backend):
    default = inspect.signature(OBJECTIVES[name].build).parameters["temperature"].default or 0.5
    expected, slope = temperature_slope(name, default)
    z, attributes = views(k=3 if name in {"cmc", "mv-dhel"} else 2), required_attributes(name)

    learned = build_at_temperature(name, "learn")
    (logarithm,) = [p for key, p in learned.named_parameters() if key.endswith("log_temperature")]
    value = learned(*z, **attributes)
    (by_logarithm,) = torch.autograd.grad(value, [logarithm])

    external = nn.Parameter(torch.tensor([default], dtype=torch.float64))
    with_external = build_at_temperature(name, external)
    assert not any(p is external for p in with_external.parameters())
    value_with_external = with_external(*z, **attributes)
    (by_external,) = torch.autograd.grad(value_with_external, [external])

    scale = torch.tensor(1 / default, dtype=torch.float64, requires_grad=True)
    in_call = build_at_temperature(name, default)(*z, **attributes, temperature=1 / scale)
    (by_scale,) = torch.autograd.grad(in_call, [scale])

    # log_temperature is created in single precision
    torch.testing.assert_close(
        torch.stack([value, value_with_external, in_call]), torch.full((3,), expected).double(), rtol=1e-6, atol=1e-6
    )
    result = [float(by_logarithm) / default, float(by_external), float(by_scale) * -(default**-2)]
    assert result == pytest.approx([slope] * 3, rel=1e-4, abs=1e-6)


def test_external_temperature_is_read_in_each_call_and_cannot_be_set():
    external = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    loss, z = contraport.info_nce(temperature=external), views()
    before = loss(*z)
    with torch.no_grad():
        external.fill_(0.1)
    assert loss.temperature == pytest.approx(0.1)
    torch.testing.assert_close(loss(*z), contraport.info_nce(temperature=0.1)(*z))
    assert not torch.isclose(before, loss(*z))
    with raises_usage_error("temperature.external"):
        loss.temperature = 0.3
    assert "Gibbs('cosine', 0.1, learnable=True)" in repr(loss)


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (lambda: contraport.nt_xent(temperature="learned"), "temperature.invalid", "'learn'"),
        (lambda: contraport.nt_xent(temperature=torch.ones(2)), "temperature.shape", "torch.float32 of shape (2,)"),
        (lambda: contraport.nt_xent(temperature=torch.tensor(1)), "temperature.shape", "torch.int64 of shape ()"),
        (
            lambda: contraport.nt_xent(temperature=torch.tensor(-1.0)),
            "temperature.invalid",
            "-1.0",
        ),
        (lambda: contraport.nt_xent(temperature=1 / torch.ones((), requires_grad=True)), "temperature.not_leaf", ""),
        (lambda: contraport.alpha_cl(temperature="learn"), "temperature.not_learnable", "Energy"),
        (lambda: contraport.objective("byol", temperature="learn"), "byol.unknown", "'temperature'"),
        (lambda: contraport.pairwise("triplet", temperature="learn"), "temperature.conflict", ""),
        (
            lambda: contraport.byol()(*views(), temperature=0.1),
            "temperature.conflict",
            "",
        ),
        (lambda: contraport.nt_xent()(*views(), temperature=-1), "temperature.invalid", ""),
        (lambda: contraport.nt_xent()(*views(), temperature=torch.ones(3)), "temperature.shape", "shape (3,)"),
    ],
)
def test_rejects_invalid_temperatures(call, code, value):
    with raises_usage_error(code, value):
        call()


# One view, and three or more


def test_sup_con_of_one_tensor(backend):
    z = views(k=1)
    target = (LABELS[:, None] == LABELS) & others(7)
    expected = outcome(lambda z: rows_loss(z, z, target, 0.1, others(7)), *z)
    assert_same(outcome(lambda z: contraport.sup_con()(z, labels=LABELS), *z), expected)


def test_sup_con_of_one_tensor_matches_pytorch_metric_learning():
    from pytorch_metric_learning.losses import SupConLoss

    z = views(k=1, n=7)
    constant = (LABELS[:, None] == LABELS).sum(1).sub(1)
    constant = constant[constant > 0].double().log().mean()
    expected = outcome(lambda z: SupConLoss(temperature=0.1)(z, LABELS) - constant, *z)
    assert_same(outcome(lambda z: contraport.sup_con()(z, labels=LABELS), *z), expected, rtol=1e-6)


@pytest.mark.parametrize("number", [3, 4])
@pytest.mark.parametrize("name", ["nt-xent", "sup-con"])
def test_more_than_two_views(name, number, backend):
    z, loss = views(k=number), build(name)
    items = torch.arange(7).repeat(number)
    attributes = {"labels": LABELS} if name == "sup-con" else {}
    classes = LABELS[items] if attributes else items
    target = (classes[:, None] == classes) & others(7 * number)
    expected = outcome(
        lambda *z: rows_loss(torch.cat(z), torch.cat(z), target, loss.temperature, others(7 * number)), *z
    )
    assert_same(outcome(lambda *z: loss(*z, **attributes), *z), expected)
    assert_same(outcome(lambda *z: loss(torch.stack(z, 1), **attributes), *z), expected)


def test_nt_xent_of_several_views_matches_pytorch_metric_learning_sup_con():
    from pytorch_metric_learning.losses import SupConLoss

    z, items = views(k=3), torch.arange(7).repeat(3)
    expected = outcome(lambda *z: SupConLoss(temperature=0.5)(torch.cat(z), items) - math.log(2), *z)
    assert_same(outcome(contraport.nt_xent(), *z), expected, rtol=1e-6)


@pytest.mark.parametrize("candidates", ["both", "same", "other"])
def test_candidates_of_more_than_two_views(candidates, backend):
    z = views(k=3)
    items, view = torch.arange(7).repeat(3), torch.arange(3).repeat_interleave(7)
    compared = items[:, None] != items
    if candidates != "both":
        compared &= (view[:, None] == view) == (candidates == "same")

    def expected(*z):
        cost = 1 - unit(torch.cat(z)) @ unit(torch.cat(z)).T
        positive = (items[:, None] == items) & others(21)
        attraction = (cost * positive).sum(1, keepdim=True) / 2
        return (0.5 * (1 + (((attraction - cost) / 0.5).exp() * compared).sum(1)).log()).mean()

    assert_same(outcome(build("pairwise", negatives=candidates), *z), outcome(expected, *z))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_all_views_in_one_tensor(name):
    attributes = required_attributes(name)
    z = views()
    assert_same(
        outcome(lambda *z: build(name, **SETTINGS.get(name, {})).eval()(torch.stack(z, 1), **attributes), *z),
        outcome(lambda *z: build(name, **SETTINGS.get(name, {})).eval()(*z, **attributes), *z),
    )


@pytest.mark.parametrize("layout", [contraport.Cross(), contraport.Joint(), contraport.AllViewPairs()], ids=repr)
@pytest.mark.parametrize("attribute", ["target", "features"])
def test_one_tensor_as_both_views_counts_as_two(attribute, layout, backend):
    z = torch.randn(4, 3)
    attributes = {
        "target": {"target": [(0, 0), (1, 2), (3, 3)]},
        "features": {"target": contraport.SoftNeighbors(), "features": torch.randn(4, 2, 5)},
    }[attribute]
    loss = contraport.Objective(layout, Gibbs("cosine", 0.5), contraport.Rows(), contraport.Pairs(), contraport.KL())
    torch.testing.assert_close(loss(z, z, **attributes), loss(z, z.clone(), **attributes))


def test_rejects_one_view_without_positives():
    with raises_usage_error("views.missing", "Pairs"):
        contraport.nt_xent()(*views(k=1))
    with raises_usage_error("views.invalid", "1"):
        contraport.info_nce(target=contraport.Labels())(*views(k=1), labels=LABELS)


# One value per row

# not sums over rows, or sums of parts with different rows
WITHOUT_ROWS = {"align-uniform", "iot-uniform", "mv-dhel", *OF_COORDINATES, *RANKING}
BY_ROW = [name for name in OBJECTIVES if name not in WITHOUT_ROWS]


@pytest.mark.parametrize("name", BY_ROW)
def test_the_mean_of_the_rows_is_the_loss(name, backend):
    attributes, z = required_attributes(name) | {"weights": torch.arange(7.0)}, views()
    loss = build(name, **SETTINGS.get(name, {})).eval()
    rows = loss(*z, **attributes, reduction="none")
    assert rows.shape in {(7,), (14,)}
    assert_same(
        outcome(lambda *z: loss(*z, **attributes, reduction="none").mean(), *z),
        outcome(lambda *z: loss(*z, **attributes), *z),
    )


def test_values_of_the_rows(backend):
    z0, z1 = views()
    logits = unit(z0) @ unit(z1).T / 0.2
    by_row = F.cross_entropy(logits, torch.arange(7), reduction="none")
    by_column = F.cross_entropy(logits.T, torch.arange(7), reduction="none")
    loss = contraport.info_nce(temperature=0.2, symmetric=False)
    torch.testing.assert_close(loss(z0, z1, reduction="none"), by_row)
    loss = contraport.info_nce(temperature=0.2)
    torch.testing.assert_close(loss(z0, z1, reduction="none"), (by_row + by_column) / 2)


def test_values_of_the_rows_of_sup_con_match_pytorch_metric_learning():
    from pytorch_metric_learning.losses import SupConLoss
    from pytorch_metric_learning.reducers import DoNothingReducer

    (z,) = views(k=1)
    reference = SupConLoss(temperature=0.1, reducer=DoNothingReducer())(z, LABELS)["loss"]["losses"]
    result = contraport.sup_con()(z, labels=LABELS, reduction="none")
    num_positives = ((LABELS[:, None] == LABELS).sum(1) - 1).double()
    has_positives = num_positives > 0
    expected = (
        torch.where(has_positives, reference - num_positives.where(has_positives, 1).log(), 0)
        * len(z)
        / has_positives.sum()
    )
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (
            lambda z: contraport.align_uniform()(*z, reduction="none"),
            "reduction.no_rows",
            "LogMeanKernel",
        ),
        (lambda z: contraport.nt_xent()(*z, reduction="sum"), "reduction.unknown", "'sum'"),
        (
            lambda z: contraport.info_nce(target=contraport.Labels())(
                z[0], z[1][:5], labels=(LABELS, LABELS[:5]), reduction="none"
            ),
            "reduction.rows_differ",
            "'mean'",
        ),
    ],
)
def test_rejects_invalid_reductions(call, code, value):
    with raises_usage_error(code, value):
        call(views())


# Negatives of each row


OWN = torch.randn(7, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(8))


def test_negatives_of_each_row(backend):
    def expected(z0, z1, own):
        batch, further = (
            unit(z0) @ unit(z1).T / 0.1,
            torch.einsum("id,ikd->ik", unit(z0), F.normalize(own, dim=2)) / 0.1,
        )
        return F.cross_entropy(torch.cat([batch, further], 1), torch.arange(7))

    loss = build("info-nce", symmetric=False)
    result = outcome(lambda z0, z1, own: loss(z0, z1, negatives=own), *views(), OWN)
    assert_same(result, outcome(expected, *views(), OWN))


def test_negatives_of_each_row_in_the_joint_layout(backend):
    items = torch.arange(7).repeat(2)

    def expected(z0, z1, own):
        z = unit(torch.cat([z0, z1]))
        batch = (z @ z.T / 0.5).masked_fill(~others(14), -torch.inf)
        further = torch.einsum("id,ikd->ik", z, F.normalize(own, dim=2)[items]) / 0.5
        return F.cross_entropy(torch.cat([batch, further], 1), torch.arange(14).roll(7))

    result = outcome(lambda z0, z1, own: build("nt-xent")(z0, z1, negatives=own), *views(), OWN)
    assert_same(result, outcome(expected, *views(), OWN))


def test_negatives_of_each_row_with_its_id_are_excluded(backend):
    ids = IDS[:, None].repeat(1, 3)
    ids[:, 1] = -1 - torch.arange(7)  # the others have the id of the row's item
    attributes = {"ids": IDS, "negatives": OWN, "negative_ids": ids}
    expected = build("nt-xent")(*views(), ids=IDS, negatives=OWN[:, 1:2])
    torch.testing.assert_close(build("nt-xent")(*views(), **attributes), expected)


@pytest.mark.parametrize("name", ["gca-ince", "gca-uot", "t-simclr", "sigmoid", "cmc-nce", "rince"])
def test_negatives_of_one_item_are_not_compared_with_others(name, backend):
    """With one item its negatives equal shared ones; with several each row has mass on its own negatives only."""
    z, own = [view[:1] for view in views()], OWN[:1]
    torch.testing.assert_close(build(name)(*z, negatives=own), build(name)(*z, negatives=own[0]))
    plan = build(name).plan(*views(), negatives=OWN)
    further = plan[:, -21:].view(-1, 7, 3)
    owners = torch.arange(len(plan)) % 7
    has_mass = further.sum(2) > 0
    assert torch.equal(has_mass, owners[:, None] == torch.arange(7))


@pytest.mark.parametrize(
    ("attributes", "code", "value"),
    [
        ({"negatives": OWN[:6]}, "negatives.shape", "shape (6, 3, 5)"),
        ({"negatives": OWN, "shared_negatives": True}, "shared_negatives.conflict", ""),
        ({"negatives": OWN, "ids": IDS, "negative_ids": IDS}, "negative_ids.shape", "(7,)"),
    ],
)
def test_rejects_invalid_negatives_of_each_row(attributes, code, value):
    with raises_usage_error(code, value):
        contraport.nt_xent()(*views(), **attributes)


# Labels and ids of any form


@pytest.mark.parametrize("form", [list, np.asarray, tuple, np.int16], ids=["list", "array", "tuple", "small integers"])
def test_labels_of_any_form(form):
    labels, z = form(LABELS.tolist()), views()
    torch.testing.assert_close(build("sup-con")(*z, labels=labels), build("sup-con")(*z, labels=LABELS))
    torch.testing.assert_close(build("nt-xent")(*z, ids=labels), build("nt-xent")(*z, ids=LABELS))


@pytest.mark.parametrize("form", [lambda v: v, lambda v: v.bool(), lambda v: v.float().numpy(), lambda v: v.tolist()])
@pytest.mark.parametrize("layout", ["joint", "one", "cross"])
def test_items_of_several_classes(form, layout, backend):
    shared = (HOT.double() @ HOT.double().T).double()
    if layout == "one":
        z, target, compared = views(k=1), shared * others(7), others(7)
    elif layout == "joint":
        z, target, compared = views(), shared.repeat(2, 2) * others(14), others(14)
    else:
        z, target, compared = views(), shared, None

    def expected(*z):
        x, y = z if layout == "cross" else (torch.cat(z),) * 2
        return rows_loss(x, y, target, 0.1, compared)

    loss = build("sup-con", **({"layout": "cross"} if layout == "cross" else {}))
    assert_same(outcome(lambda *z: loss(*z, labels=form(HOT)), *z), outcome(expected, *z))


def test_one_hot_labels_equal_class_numbers():
    hot = F.one_hot(LABELS)
    for name in ["nt-xent", "gca-ince", "gca-uot", "rince"]:
        loss = partial(build(name), target=contraport.Labels())
        assert_same(outcome(partial(loss, labels=hot), *views()), outcome(partial(loss, labels=LABELS), *views()))


def test_rejects_multi_hot_labels_beyond_zero_and_one():
    with raises_usage_error("labels.invalid"):
        contraport.sup_con()(*views(), labels=2 * HOT)
    with raises_usage_error("ids.shape", "(7, 3)"):
        contraport.nt_xent()(*views(), ids=HOT)


# Two views of different items


def views_of_different_items(n=7, m=4):
    return views(n, seed=3)[0], views(m, seed=4)[0]


OTHER = torch.tensor([2, 0, 0, 5])


@pytest.mark.parametrize("symmetric", [False, True])
def test_different_items_by_their_labels(symmetric, backend):
    target = (LABELS[:, None] == OTHER).double()

    def expected(x, y):
        forward = rows_loss(x, y, target, 0.2)
        return (forward + rows_loss(y, x, target.T, 0.2)) / 2 if symmetric else forward

    loss = contraport.info_nce(temperature=0.2, symmetric=symmetric, target=contraport.Labels())
    result = outcome(lambda x, y: loss(x, y, labels=(LABELS, OTHER.tolist())), *views_of_different_items())
    assert_same(result, outcome(expected, *views_of_different_items()))


def test_different_items_by_a_matrix(backend):
    matrix = torch.rand(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    matrix[3] = 0

    def expected(x, y):
        target = matrix / matrix.sum()
        log_plan = (unit(x) @ unit(y).T / 0.2).log_softmax(1) - math.log(7)
        support = target > 0
        return (target[support] * (target[support].log() - log_plan[support])).sum()

    loss = contraport.info_nce(temperature=0.2, symmetric=False)
    for target in (matrix, matrix.to_sparse()):
        assert_same(
            outcome(partial(loss, target=target), *views_of_different_items()),
            outcome(expected, *views_of_different_items()),
        )


def test_different_items_in_a_balanced_plan(backend):
    """Rows have 1/n, columns 1/m of the mass."""
    matrix = torch.rand(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    loss = contraport.Objective(
        contraport.Cross(symmetric=False), Gibbs("cosine", 0.5), contraport.Balanced(200), contraport.Pairs(),
        contraport.KL(),
    )  # fmt: skip
    plan = loss.plan(*views_of_different_items(), target=matrix)
    torch.testing.assert_close(plan.sum(0), torch.full((4,), 1 / 4, dtype=torch.float64))
    torch.testing.assert_close(plan.sum(1), torch.full((7,), 1 / 7, dtype=torch.float64))


PAIRS = [(0, 1), (0, 3), (2, 1), (6, 0), (0, 3)]


@pytest.mark.parametrize("form", [list, np.asarray, torch.tensor], ids=["list", "array", "tensor"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_list_of_pairs(symmetric, form, backend):
    goal = torch.zeros(7, 4)
    for i, j in PAIRS:
        goal[i, j] = 1

    def expected(x, y):
        forward = rows_loss(x, y, goal, 0.2)
        return (forward + rows_loss(y, x, goal.T, 0.2)) / 2 if symmetric else forward

    loss = contraport.info_nce(temperature=0.2, symmetric=symmetric)
    target = PAIRS if form is list else contraport.PairList(form(PAIRS))
    assert_same(
        outcome(lambda *z: loss(*z, target=target), *views_of_different_items()),
        outcome(expected, *views_of_different_items()),
    )


def test_a_list_of_pairs_of_items_of_all_views(backend):
    listed = [(0, 0), (1, 1), (1, 4), (5, 2)]
    target = torch.zeros(7, 7)
    for i, j in listed:
        target[i, j] = target[j, i] = 1
    target = target.repeat(2, 2) * others(14)
    expected = outcome(lambda *z: rows_loss(torch.cat(z), torch.cat(z), target, 0.5, others(14)), *views())
    assert_same(outcome(lambda *z: build("nt-xent")(*z, target=listed), *views()), expected)


def test_a_list_of_pairs_with_their_shares(backend):
    shares = [0.5, 2.0, 1.0, 3.0, 0.25]
    goal = torch.zeros(7, 4, dtype=torch.float64)
    for (i, j), share in zip(PAIRS, shares, strict=True):
        goal[i, j] += share

    def expected(x, y):
        return (rows_loss(x, y, goal, 0.1) + rows_loss(y, x, goal.T, 0.1)) / 2

    target = contraport.PairList(PAIRS, shares)
    assert_same(
        outcome(lambda x, y: build("info-nce")(x, y, target=target), *views_of_different_items()),
        outcome(expected, *views_of_different_items()),
    )
    items = torch.zeros(7, 7, dtype=torch.float64)
    for (i, j), share in zip([(0, 0), (1, 4), (4, 4)], [1.0, 2.0, 3.0], strict=True):
        items[i, j] = items[j, i] = share
    items = items.repeat(2, 2) * others(14)
    target = contraport.PairList([(0, 0), (1, 4), (4, 4)], np.array([1.0, 2.0, 3.0]))
    result = outcome(lambda *z: build("nt-xent")(*z, target=target), *views())
    assert_same(result, outcome(lambda *z: rows_loss(torch.cat(z), torch.cat(z), items, 0.5, others(14)), *views()))
    for wrong, code, value in (
        ([1.0], "shares.shape", "(1,)"),
        ([1.0] * 4 + [-1.0], "shares.invalid", -1),
        ([float("nan")] * 5, "shares.invalid", "nan"),
    ):
        with raises_usage_error(code, value):
            contraport.PairList(PAIRS, wrong)


@pytest.mark.parametrize("name", ["info-nce", "nt-xent"])
def test_shares_of_pairs_have_a_gradient(name):
    pairs = [(0, 1), (0, 2), (2, 0), (4, 5), (0, 1), (3, 4)]  # (0, 1) twice: its shares add up

    def loss(shares):
        return build(name)(*views(), target=contraport.PairList(pairs, shares))

    shares = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.25, 1.5], dtype=torch.float64, requires_grad=True)
    gradient = torch.autograd.grad(loss(shares), shares)[0]
    assert gradient[[0, 1, 4]].abs().min() > 1e-4
    assert torch.autograd.gradcheck(loss, shares)


def test_reference_set_excludes_the_row_itself(backend):
    """As ref_emb of pytorch-metric-learning, with the embeddings themselves in the reference set."""
    x, y = views_of_different_items()
    ids, reference_ids = torch.arange(7), torch.tensor([3, 100, 0, 101])
    compared = ids[:, None] != reference_ids
    target = (LABELS[:, None] == OTHER) & compared
    loss = contraport.sup_con(temperature=0.2, layout="cross")
    result = outcome(lambda x, y: loss(x, y, labels=(LABELS, OTHER), ids=(ids, reference_ids)), x, y)
    assert_same(result, outcome(lambda x, y: rows_loss(x, y, target, 0.2, compared), x, y))


def test_reference_set_matches_pytorch_metric_learning():
    from pytorch_metric_learning.losses import SupConLoss

    x, y = views_of_different_items()
    labels, other = torch.tensor([2, 0, 0, 5, 0, 2, 5]), OTHER
    constant = (labels[:, None] == other).sum(1).double().log().mean()
    expected = outcome(lambda x, y: SupConLoss(0.1)(x, labels, ref_emb=y, ref_labels=other) - constant, x, y)
    loss = contraport.sup_con(temperature=0.1, layout="cross")
    assert_same(outcome(lambda x, y: loss(x, y, labels=(labels, other)), x, y), expected, rtol=1e-6)


def test_all_of_two_sets_in_the_joint_layout(backend):
    x, y = views_of_different_items()
    labels = torch.cat([LABELS, OTHER])
    target = (labels[:, None] == labels) & others(11)
    result = outcome(lambda x, y: build("sup-con")(x, y, labels=(LABELS, OTHER)), x, y)
    expected = outcome(lambda x, y: rows_loss(torch.cat([x, y]), torch.cat([x, y]), target, 0.1, others(11)), x, y)
    assert_same(result, expected)


def test_different_items_with_features_and_own_negatives(backend):
    x, y = views_of_different_items()
    features = views(11, d=4, seed=9)[0]
    soft = contraport.SoftNeighbors(features, Gibbs("cosine", 0.5))
    target = (unit(features[:7]) @ unit(features[7:]).T / 0.5).softmax(1)

    def expected(x, y, own):
        batch, further = unit(x) @ unit(y).T / 0.1, torch.einsum("id,ikd->ik", unit(x), F.normalize(own, dim=2)) / 0.1
        log_share = torch.cat([batch, further], 1).log_softmax(1)[:, :4]
        return (target * (target.log() - log_share)).sum() / 7

    loss = contraport.info_nce(symmetric=False, target=soft)
    assert_same(outcome(lambda x, y, own: loss(x, y, negatives=own), x, y, OWN), outcome(expected, x, y, OWN))


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (
            lambda x, y: contraport.info_nce()(x, y),
            "views.shape",
            "Pairs",
        ),
        (
            lambda x, y: contraport.sup_con()(x, y, labels=LABELS),
            "labels.pair",
            "",
        ),
        (
            lambda x, y: contraport.sup_con()(x, y, labels=(LABELS, LABELS)),
            "labels.shape",
            "(7,)",
        ),
        (lambda x, y: contraport.sup_con()(x, y[:, :3], labels=(LABELS, OTHER)), "z1.shape", "3"),
        (
            lambda x, y: contraport.nt_xent()(x, y, target=[(0, 7)]),
            "target.invalid",
            "",
        ),
        (lambda x, y: contraport.nt_xent()(x, y, target=[(0, 1, 2)]), "target.pairs", "torch.int64 of shape (1, 3)"),
        (lambda x, y: contraport.nt_xent()(x, y, target=[]), "target.pairs", ""),
        (
            lambda x, y: contraport.nt_xent()(x, y, target=[(0, 0.5)]),
            "target.pairs",
            "",
        ),
        (lambda x, y: contraport.info_nce()(x, y, target=torch.ones(4, 7)), "target.shape", "(4, 7)"),
        (
            lambda x, y: contraport.nt_xent()(x, x, target=[(0, 1)], ids=[5] * 7),
            "target.excluded_pairs",
            "",
        ),
    ],
)
def test_rejects_invalid_options_for_different_items(call, code, value):
    with raises_usage_error(code, value):
        call(*views_of_different_items())


# Similarities instead of embeddings


@pytest.mark.parametrize(
    "name", ["info-nce", "nt-xent", "gca-ince", "gca-uot", "rince", "alpha-cl", "pairwise", "sigmoid", "iot"]
)
def test_similarities_instead_of_embeddings(name, backend):
    settings = {} if name != "alpha-cl" else {"detach": False}
    loss = build(name, **settings)
    joint = isinstance(loss.layout, contraport.Joint)

    def similarities(z0, z1):
        x, y = (unit(torch.cat([z0, z1])),) * 2 if joint else (unit(z0), unit(z1))
        return x @ y.T

    assert_same(outcome(lambda *z: loss(similarities=similarities(*z)), *views()), outcome(loss, *views()))


def test_similarities_of_labelled_items(backend):
    (z,) = views(k=1)
    loss = contraport.sup_con()
    result = outcome(lambda z: loss(similarities=unit(z) @ unit(z).T, labels=LABELS), z)
    assert_same(result, outcome(lambda z: loss(z, labels=LABELS), z))
    x, y = views_of_different_items()
    result = outcome(lambda x, y: contraport.info_nce()(similarities=unit(x) @ unit(y).T, target=PAIRS), x, y)
    assert_same(result, outcome(lambda x, y: contraport.info_nce()(x, y, target=PAIRS), x, y))


def test_logits_are_cross_entropy():
    logits = torch.randn(6, 6, dtype=torch.float64)
    loss = contraport.Objective(
        contraport.Cross(symmetric=False), Gibbs("dot", 1.0), contraport.Rows(), contraport.Pairs(), contraport.KL()
    )
    torch.testing.assert_close(loss(similarities=logits), F.cross_entropy(logits, torch.arange(6)))


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (
            lambda s: contraport.t_simclr()(similarities=s),
            "similarities.conflict",
            "'sqeuclidean'",
        ),
        (
            lambda s: contraport.cmc()(similarities=s),
            "similarities.conflict",
            "AllViewPairs",
        ),
        (
            lambda s: contraport.nt_xent()(similarities=s[:5]),
            "similarities.shape",
            "",
        ),
        (lambda s: contraport.nt_xent()(s, similarities=s), "similarities.conflict", ""),
        (lambda s: contraport.nt_xent()(similarities=s[0]), "similarities.shape", "torch.float32 of shape (6,)"),
        (
            lambda s: contraport.nt_xent()(similarities=s, negatives=s),
            "negatives.conflict",
            "",
        ),
        (
            lambda s: contraport.Objective(
                contraport.Cross(), Gibbs(torch.cdist), contraport.Rows(), contraport.Pairs(), contraport.KL()
            )(similarities=s),
            "similarities.conflict",
            "",
        ),
    ],
)
def test_rejects_invalid_similarities(call, code, value):
    with raises_usage_error(code, value):
        call(torch.rand(6, 6))


# Missing views

PRESENT = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 1, 0], [1, 1, 1], [0, 0, 1], [0, 1, 1], [1, 0, 0]]).bool()


def views_with_gaps(k):
    """Return views whose absent rows are NaN."""
    return tuple(torch.where(PRESENT[:, v, None], z, math.nan) for v, z in enumerate(views(k=k)))


def gradients_of_present_rows(function, *z):
    value, slopes = outcome(function, *z)
    for v, slope in enumerate(slopes):
        assert not slope[~PRESENT[:, v]].any()
    return value, slopes


def gather_present_rows(z):
    """Return the present rows, and the item and the view of each."""
    rows = [(v, i) for v in range(len(z)) for i in range(7) if PRESENT[i, v]]
    return (
        torch.stack([z[v][i] for v, i in rows]),
        torch.tensor([i for _, i in rows]),
        torch.tensor([v for v, _ in rows]),
    )


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("name", ["nt-xent", "sup-con"])
def test_items_that_lack_a_view_in_the_joint_layout(name, k, backend):
    loss, attributes = build(name), {"labels": LABELS} if name == "sup-con" else {}

    def expected(*z):
        rows, items, _ = gather_present_rows(z)
        classes = LABELS[items] if attributes else items
        target = (classes[:, None] == classes) & others(len(rows))
        return rows_loss(rows, rows, target, loss.temperature, others(len(rows)))

    result = gradients_of_present_rows(lambda *z: loss(*z, present=PRESENT[:, :k], **attributes), *views_with_gaps(k))
    assert_same(result, outcome(expected, *views(k=k)))


@pytest.mark.parametrize("graph", ["full", "core"])
def test_items_that_lack_a_view_in_pairs_of_views(graph, backend):
    def expected(*z):
        total = 0
        for v, w in [(0, 1), (0, 2), (1, 2)][: 3 if graph == "full" else 2]:
            x, y = (torch.arange(7)[PRESENT[:, view]] for view in (v, w))
            target = (x[:, None] == y).double()
            total = total + rows_loss(z[v][x], z[w][y], target, 0.1) + rows_loss(z[w][y], z[v][x], target.T, 0.1)
        return total

    loss = contraport.cmc(graph=graph)
    result = gradients_of_present_rows(lambda *z: loss(*z, present=PRESENT.tolist()), *views_with_gaps(3))
    assert_same(result, outcome(expected, *views(k=3)))


def test_unbalanced_plan_contains_items_without_a_partner(backend):
    """Every present row is in the plan, those without a partner too."""

    def expected(*z):
        rows, items, _ = gather_present_rows(z)
        n = len(rows)
        log_kernel = ((unit(rows) @ unit(rows).T - 1) / 0.5).masked_fill(~others(n), -torch.inf)
        loss = contraport.gca_uot()
        constraint = loss.constraint
        places = torch.arange(n)
        (plan,) = constraint(
            Geometry(
                MatrixLogKernel(log_kernel.masked_fill(~others(n), 0), temperature=0.5),
                (LabelExclusion((places, places)),),
            )
        )
        matrix = plan.dense()
        target = ((items[:, None] == items) & others(n)).double()
        has_target = target.sum(1) > 0
        support = target > 0
        # each row has the target that it would have if all rows had one
        return -(matrix[support] * n).log().sum() / has_target.sum() + matrix.sum() - 1

    result = gradients_of_present_rows(lambda *z: build("gca-uot")(*z, present=PRESENT[:, :2]), *views_with_gaps(2))
    assert_same(result, outcome(expected, *views()))
    plan = build("gca-uot").plan(*views_with_gaps(2), present=PRESENT[:, :2])
    assert plan.shape == (8, 8)
    assert (plan.sum(1) > 0).all()


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name not in OF_COORDINATES])
def test_every_objective_accepts_items_that_lack_a_view(name, backend):
    """Items without any view do not count, and a mask of present views equals none if all are present."""
    k = 3 if name in {"cmc", "mv-dhel"} else 2
    loss, z = build(name, **SETTINGS.get(name, {})).eval(), views(k=k)
    attributes = required_attributes(name)
    remaining = torch.tensor([0, 2, 3, 4, 6])
    present = torch.zeros(7, k, dtype=torch.bool)
    present[remaining] = True
    gaps = tuple(torch.where(present[:, v, None], view, math.nan) for v, view in enumerate(z))
    result = outcome(lambda *z: loss(*z, present=present, **attributes), *gaps)
    alone = outcome(
        lambda *z: loss(*(view[remaining] for view in z), **{key: v[remaining] for key, v in attributes.items()}), *z
    )
    assert_same(result, alone)
    all_present = outcome(lambda *z: loss(*z, present=torch.ones(7, k, dtype=torch.bool), **attributes), *z)
    assert_same(all_present, outcome(lambda *z: loss(*z, **attributes), *z))


def test_weights_and_targets_of_items_that_lack_a_view(backend):
    z, present = views_with_gaps(2), PRESENT[:, :2]
    complete = torch.tensor([0, 3])  # the items with both views
    weights = torch.zeros(7, dtype=torch.float64)
    weights[complete] = torch.tensor([2.0, 1.0], dtype=torch.float64)
    _, items, _ = gather_present_rows(views())
    target = (items[:, None] == items) & others(8)

    def expected(*z):
        rows, items, _ = gather_present_rows(z)
        by_row = rows_loss(rows, rows, target, 0.5, others(8), by_row=True)
        return (by_row * weights[items]).sum() / weights[items][target.any(1)].sum() * target.any(1).sum() / 8

    result = gradients_of_present_rows(lambda *z: build("nt-xent")(*z, present=present, weights=weights), *z)
    assert_same(result, outcome(expected, *views()))
    matrix = torch.rand(14, 14, dtype=torch.float64).fill_diagonal_(0)
    present_rows = torch.cat([present[:, 0], present[:, 1]])
    of_present_rows = build("nt-xent")(*z, present=present, target=matrix[present_rows][:, present_rows])
    torch.testing.assert_close(build("nt-xent")(*z, present=present, target=matrix), of_present_rows)
    torch.testing.assert_close(build("nt-xent")(*z, present=present, target=matrix.to_sparse()), of_present_rows)
    listed = build("nt-xent")(*z, present=present, target=[(i, i) for i in range(7)])
    torch.testing.assert_close(listed, build("nt-xent")(*z, present=present))


def test_features_of_items_that_lack_a_view():
    features, z, present = views(d=4, seed=3), views_with_gaps(2), PRESENT[:, :2]
    for target in (contraport.SoftNeighbors, contraport.Neighbors):
        by_view = build("nt-xent").target_plan(*z, present=present, target=target(features))
        present_rows = torch.cat([present[:, 0], present[:, 1]])
        of_all_rows = build("nt-xent").target_plan(*views(), target=target(features))[present_rows][:, present_rows]
        if target is contraport.SoftNeighbors:
            torch.testing.assert_close(by_view, of_all_rows / of_all_rows.sum(1, keepdim=True) / 8)
        assert by_view.shape == (8, 8)
        of_items = build("info-nce").target_plan(*z, present=present, target=target(features[0]))
        assert of_items.shape == (4, 4)


def test_value_is_zero_if_no_pairs_are_present():
    z = tuple(view.requires_grad_() for view in views())
    for name, present in [
        ("info-nce", [[True, False]] * 7),
        ("nt-xent", [[True, False], [False, True]] * 3 + [[True, False]]),
    ]:
        value = build(name)(*z, present=present)
        assert value.item() == 0
        slopes = torch.autograd.grad(value, z, allow_unused=True)
        assert all(slope is None or not slope.any() for slope in slopes)


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (
            lambda z: contraport.nt_xent()(*z, present=PRESENT),
            "present.invalid",
            "torch.bool of shape (7, 3)",
        ),
        (
            lambda z: contraport.nt_xent()(*z, present=PRESENT[:, :2].long()),
            "present.invalid",
            "torch.int64 of shape (7, 2)",
        ),
        (
            lambda z: contraport.sup_con()(*z, present=PRESENT[:, :2], labels=(LABELS, LABELS)),
            "present.conflict",
            "",
        ),
        (
            lambda z: contraport.info_nce(symmetric=False, shared_columns=True)(*z, present=PRESENT[:, :2]),
            "present.conflict",
            "",
        ),
    ],
)
def test_rejects_invalid_present_marks(call, code, value):
    with raises_usage_error(code, value):
        call(views())


def test_settings_are_numbers_of_python_or_numpy():
    z0, z1 = torch.randn(2, 6, 5)
    loss = contraport.gca_rince(np.float32(0.5), np.int64(3), q=np.float64(0.5))
    torch.testing.assert_close(loss(z0, z1), contraport.gca_rince(0.5, 3, q=0.5)(z0, z1))


@pytest.mark.parametrize(
    ("create", "code", "value"),
    [
        (lambda: contraport.hard_negative(beta="much"), "beta.invalid", "'much'"),
        (lambda: contraport.debiased(prior="some"), "prior.invalid", "'some'"),
        (lambda: contraport.rince(q="half"), "q.invalid", "'half'"),
        (lambda: contraport.cmc_nce(momentum=None), "momentum.invalid", "None"),
        (lambda: contraport.sog_clr(momentum=True), "momentum.invalid", "True"),
        (lambda: contraport.kcl(gamma=float("inf")), "gamma.invalid", "inf"),
        (lambda: contraport.Neighbors(torch.ones(4, 2), neighbors=1.5), "neighbors.invalid", ""),
    ],
)
def test_rejects_settings_of_a_wrong_type(create, code, value):
    with raises_usage_error(code, value):
        create()


def test_rejects_three_views_of_different_items():
    z = torch.randn(6, 5)
    with raises_usage_error("z2.shape"):
        contraport.cmc()(z, z, z[:4])


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda *z: contraport.nt_xent()(*z, labels=LABELS), "labels.unused"),
        (lambda *z: contraport.nt_xent().plan(*z, labels=LABELS), "labels.unused"),
        (lambda *z: contraport.vic_reg()(*z, labels=LABELS), "labels.unused"),
        (lambda *z: contraport.sup_con()(*z, labels=LABELS, target=torch.eye(14)), "labels.unused"),
        (lambda *z: contraport.info_nce()(*z, domains=LABELS), "domains.unused"),
        (lambda *z: contraport.info_nce()(*z, features=z[0]), "features.unused"),
        (lambda *z: contraport.byol()(*z, column_weights=LABELS + 1), "column_weights.conflict"),
        (lambda *z: contraport.cosent()(*z, weights=LABELS, ids=IDS), "ids.conflict"),
        (
            lambda *z: contraport.SumLoss({contraport.nt_xent(): 1.0, contraport.byol(): 1.0})(*z, labels=LABELS),
            "labels.unused",
        ),
    ],
)
def test_rejects_values_per_item_that_nothing_reads(call, code):
    with raises_usage_error(code):
        call(*views())


def test_sum_accepts_values_per_item_that_one_objective_reads():
    parts = contraport.sup_con(), contraport.byol()
    value = contraport.SumLoss(dict.fromkeys(parts, 1.0))(*views(), labels=LABELS, ids=IDS)
    torch.testing.assert_close(value, parts[0](*views(), labels=LABELS, ids=IDS) + parts[1](*views()))


def test_labels_that_nothing_reads_can_be_left_out():
    options = {"labels": LABELS, "domains": LABELS, "reduction": "none"}
    assert contraport.nt_xent().without_unread_labels(options) == {"reduction": "none"}
    assert contraport.sup_con().without_unread_labels(options) == {"labels": LABELS, "reduction": "none"}
