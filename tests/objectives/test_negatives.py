"""Negatives from elsewhere: further columns, against the formulas with their matrices widened."""

import pytest
import torch
import torch.nn.functional as F
from tests.errors import raises_usage_error
from tests.objectives import formulas
from tests.objectives.comparing import (
    BACKENDS,
    DOMAINS,
    IDS,
    LABELS,
    OF_COORDINATES,
    RANKING,
    assert_same,
    build,
    outcome,
    views,
)

import contraport

pytestmark = pytest.mark.usefixtures("uneven_tiles")

BANK = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
BANK_IDS = torch.tensor([0, 4, 9, 2, 2, 8, 0, -5, 7])
MATRIX = torch.rand(14, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).fill_diagonal_(0)
CASES = [
    ("info-nce", {}),
    ("info-nce", {"symmetric": False}),
    ("nt-xent", {"temperature": 0.1}),
    ("rince", {}),
    ("rince", {"layout": "cross"}),
    ("gca-ince", {}),
    ("gca-rince", {}),
    ("gca-uot", {"relaxation": (0.3, 2.0), "rince_weight": 0.5}),
    ("iot", {"constraint": "simplex"}),
    ("iot-uniform", {}),
    ("iot-quadratic", {}),
    ("iot-quadratic", {"closed_form": False, "constraint": "simplex"}),
    ("iot-quadratic", {"closed_form": False, "layout": "cross"}),
    ("pairwise", {}),
    ("pairwise", {"preset": "triplet", "negatives": "same"}),
    ("alpha-cl", {"negatives": "other"}),
    ("alpha-cl", {"regularizer": "square"}),
    ("quadratic", {}),
    ("direct-clr", {"dimensions": 3}),
    ("t-simclr", {}),
    ("cmc", {"graph": "core"}),
    ("cmc-nce", {}),
    ("sigmoid", {}),
    ("dcl", {}),
    ("dclw", {}),
    ("gte", {}),
    ("spectral", {}),
    ("debiased", {}),
    ("hard-negative", {}),
]
WITHOUT = {"align-uniform", "byol", "dhel", "mv-dhel", "kcl", *OF_COORDINATES, *RANKING}
KNOWN = {
    "labels": ({"target": contraport.Labels(), "labels": LABELS}, {"target": formulas.classes(LABELS)}),
    "domains": (
        {"target": contraport.Domains(0.2, 0.1), "domains": DOMAINS},
        {"target": formulas.domains(DOMAINS, 0.2, 0.1)},
    ),
    "matrix": ({"target": MATRIX}, {"target": formulas.matrix(MATRIX)}),
    "sparse matrix": ({"target": MATRIX.to_sparse()}, {"target": formulas.matrix(MATRIX)}),
}


def label(case):
    return case[0] + "".join(f"-{value}" for value in case[1].values())


@pytest.fixture
def widened(monkeypatch):
    """Make the formulas' pairings as wide as the bank that they are told; return how to tell them."""
    plain = {name: getattr(formulas, name) for name in ("joint", "cross")}

    def tell(bank, twins=None):
        twins = torch.zeros(7, len(bank), dtype=torch.bool) if twins is None else twins
        for name, pairing in plain.items():

            def wide(*z, _pairing=pairing, **settings):
                result = _pairing(*z, **settings)
                return formulas.beside(result, bank[:, : result.x.shape[1]], twins)

            monkeypatch.setattr(formulas, name, wide)

    return tell


def by_formula(name, *z, **settings):
    return getattr(formulas, name.replace("-", "_"))(*z, **settings)


def check_case(widened, name, chosen, ours=None, theirs=None, twins=None):
    z = views(k=3 if name == "cmc" else 2)

    def expected(*inputs):
        widened(inputs[-1], twins)
        return by_formula(name, *inputs[:-1], **chosen, **(theirs or {}))

    # What is held in a value has no slope by the bank in ours either.
    result = outcome(lambda *v: build(name, **chosen)(*v[:-1], negatives=v[-1], **(ours or {})), *z, BANK)
    assert_same(result, outcome(expected, *z, BANK))


def test_the_cases_cover_the_catalog():
    from contraport.catalog import OBJECTIVES

    assert {name for name, _ in CASES} | WITHOUT | {"sup-con", "x-clr", "guided", "sog-clr"} == set(OBJECTIVES)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=label)
def test_value_and_gradient(widened, case, backend):
    with contraport.engine.backend(backend):
        check_case(widened, *case)


@pytest.mark.parametrize("attributes", KNOWN)
@pytest.mark.parametrize("name", ["nt-xent", "gca-ince", "t-simclr"])
def test_targets_have_no_mass_on_negatives(widened, name, attributes):
    check_case(widened, name, {}, *KNOWN[attributes])
    loss = build(name)
    plan = loss.target_plan(*views(), negatives=BANK, **KNOWN[attributes][0])
    assert plan.shape == (14, 23)
    assert not plan[:, 14:].any()


def test_negatives_of_sup_con(widened):
    check_case(widened, "sup-con", {}, {"labels": LABELS}, {"labels": LABELS})


@pytest.mark.parametrize(("graph", "number"), [("full", 3), ("core", 4)])
def test_negatives_extend_every_block_and_direction(graph, number):
    z = views(k=number)
    edges = [(v, w) for w in range(number) for v in range(w) if graph == "full" or v == 0]
    one_way = build("info-nce", symmetric=False, temperature=0.3)
    expected = sum(one_way(z[v], z[w], negatives=BANK) + one_way(z[w], z[v], negatives=BANK) for v, w in edges)
    torch.testing.assert_close(build("cmc", temperature=0.3, graph=graph)(*z, negatives=BANK), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["info-nce", "nt-xent", "gca-uot", "t-simclr", "sigmoid"])
def test_negatives_of_the_same_item_are_left_out(widened, name, backend):
    twins = IDS[:, None] == BANK_IDS
    attributes = {"ids": IDS}
    with contraport.engine.backend(backend):
        check_case(widened, name, {}, attributes | {"negative_ids": BANK_IDS}, attributes, twins)
        check_case(widened, name, {}, attributes, attributes)


def test_info_nce_with_a_queue_matches_moco():
    z0, z1 = (F.normalize(z) for z in views())
    queue = F.normalize(BANK)
    logits = torch.cat([(z0 * z1).sum(1, keepdim=True), z0 @ queue.T], 1) / 0.07
    theirs = F.cross_entropy(logits, torch.zeros(7, dtype=torch.long))
    # MoCo compares with the queue alone: one item at a time has no other columns.
    ours = contraport.info_nce(temperature=0.07, symmetric=False)
    each = [ours(a[None], b[None], negatives=queue) for a, b in zip(z0, z1, strict=True)]
    torch.testing.assert_close(torch.stack(each).mean(), theirs)


def test_empty_negatives_equal_none():
    for name in ["info-nce", "nt-xent", "gca-uot"]:
        torch.testing.assert_close(build(name)(*views(), negatives=BANK[:0]), build(name)(*views()))


def test_every_column_has_the_same_mass():
    plan = contraport.gca_ince(iterations=3).plan(*views(), negatives=BANK)
    torch.testing.assert_close(plan.sum(0), torch.full((23,), 1 / 23, dtype=torch.float64))


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.bfloat16, torch.float32)])
def test_embeddings_and_negatives_of_different_precision(dtypes):
    z0, z1 = (z.to(dtypes[0]) for z in views())
    bank = BANK.to(dtypes[1])
    result = contraport.nt_xent()(z0, z1, negatives=bank)
    assert result.dtype == torch.float32  # that of the batch, single at least
    expected = contraport.nt_xent()(z0.double(), z1.double(), negatives=bank.double())
    torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (
            lambda z: contraport.nt_xent()(*z, negatives=BANK[:, :4]),
            "negatives.shape",
            "shape (9, 4)",
        ),
        (lambda z: contraport.nt_xent()(*z, negatives=[1.0]), "negatives.shape", "list"),
        (lambda z: contraport.nt_xent()(*z, negatives=BANK.long()), "negatives.type", ""),
        (lambda z: contraport.nt_xent()(*z, negative_ids=BANK_IDS, ids=IDS), "negative_ids.missing", "negatives="),
        (lambda z: contraport.nt_xent()(*z, negatives=BANK, negative_ids=BANK_IDS), "negative_ids.missing", "ids="),
        (
            lambda z: contraport.nt_xent()(*z, negatives=BANK, negative_ids=BANK_IDS[:3], ids=IDS),
            "negative_ids.shape",
            "(3,)",
        ),
        (lambda z: contraport.byol()(*z, negatives=BANK), "negatives.conflict", ""),
        (lambda z: contraport.align_uniform()(*z, negatives=BANK), "negatives.conflict", ""),
        (
            lambda z: contraport.Objective(
                contraport.WithinView(),
                contraport.Gibbs(),
                contraport.Free(),
                contraport.Pairs(),
                contraport.LogMeanKernel(),
            )(*z, negatives=BANK),
            "negatives.conflict",
            "",
        ),
        (lambda z: contraport.nt_xent()(*z, negatives=BANK, target=torch.ones(14, 23)), "target.shape", "(14, 23)"),
    ],
)
def test_rejects_invalid_arguments(call, code, value):
    with raises_usage_error(code, value):
        call(views())
