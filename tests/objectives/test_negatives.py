"""Additional negatives as columns, against the formulas with widened matrices."""

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
WITHOUT_NEGATIVES = {"align-uniform", "byol", "dhel", "mv-dhel", "kcl", *OF_COORDINATES, *RANKING}
ATTRIBUTES = {
    "labels": ({"target": contraport.Labels(), "labels": LABELS}, {"target": formulas.classes(LABELS)}),
    "domains": (
        {"target": contraport.Domains(0.2, 0.1), "domains": DOMAINS},
        {"target": formulas.domains(DOMAINS, 0.2, 0.1)},
    ),
    "matrix": ({"target": MATRIX}, {"target": formulas.matrix(MATRIX)}),
    "sparse matrix": ({"target": MATRIX.to_sparse()}, {"target": formulas.matrix(MATRIX)}),
}


def name_case(case):
    return case[0] + "".join(f"-{value}" for value in case[1].values())


@pytest.fixture
def widen(monkeypatch):
    """Return a function that appends a bank of negatives to the pairings of the formulas."""
    plain = {name: getattr(formulas, name) for name in ("joint", "cross")}

    def append_bank(bank, duplicates=None):
        duplicates = torch.zeros(7, len(bank), dtype=torch.bool) if duplicates is None else duplicates
        for name, pairing in plain.items():

            def widened_pairing(*z, _pairing=pairing, **settings):
                result = _pairing(*z, **settings)
                return formulas.append_negatives(result, bank[:, : result.x.shape[1]], duplicates)

            monkeypatch.setattr(formulas, name, widened_pairing)

    return append_bank


def by_formula(name, *z, **settings):
    return getattr(formulas, name.replace("-", "_"))(*z, **settings)


def check_case(widen, name, settings, attributes=None, formula_settings=None, duplicates=None):
    z = views(k=3 if name == "cmc" else 2)

    def expected(*inputs):
        widen(inputs[-1], duplicates)
        return by_formula(name, *inputs[:-1], **settings, **(formula_settings or {}))

    # Detached terms have no gradient in the bank in either.
    result = outcome(lambda *v: build(name, **settings)(*v[:-1], negatives=v[-1], **(attributes or {})), *z, BANK)
    assert_same(result, outcome(expected, *z, BANK))


def test_the_cases_cover_the_catalog():
    from contraport.catalog import OBJECTIVES

    assert {name for name, _ in CASES} | WITHOUT_NEGATIVES | {"sup-con", "x-clr", "guided", "sog-clr"} == set(
        OBJECTIVES
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=name_case)
def test_value_and_gradient(widen, case, backend):
    with contraport.engine.backend(backend):
        check_case(widen, *case)


@pytest.mark.parametrize("attributes", ATTRIBUTES)
@pytest.mark.parametrize("name", ["nt-xent", "gca-ince", "t-simclr"])
def test_targets_have_no_mass_on_negatives(widen, name, attributes):
    check_case(widen, name, {}, *ATTRIBUTES[attributes])
    loss = build(name)
    plan = loss.target_plan(*views(), negatives=BANK, **ATTRIBUTES[attributes][0])
    assert plan.shape == (14, 23)
    assert not plan[:, 14:].any()


def test_negatives_of_sup_con(widen):
    check_case(widen, "sup-con", {}, {"labels": LABELS}, {"labels": LABELS})


@pytest.mark.parametrize(("graph", "number"), [("full", 3), ("core", 4)])
def test_negatives_extend_every_block_and_direction(graph, number):
    z = views(k=number)
    edges = [(v, w) for w in range(number) for v in range(w) if graph == "full" or v == 0]
    one_way = build("info-nce", symmetric=False, temperature=0.3)
    expected = sum(one_way(z[v], z[w], negatives=BANK) + one_way(z[w], z[v], negatives=BANK) for v, w in edges)
    torch.testing.assert_close(build("cmc", temperature=0.3, graph=graph)(*z, negatives=BANK), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["info-nce", "nt-xent", "gca-uot", "t-simclr", "sigmoid"])
def test_negatives_of_the_same_item_are_excluded(widen, name, backend):
    duplicates = IDS[:, None] == BANK_IDS
    attributes = {"ids": IDS}
    with contraport.engine.backend(backend):
        check_case(widen, name, {}, attributes | {"negative_ids": BANK_IDS}, attributes, duplicates)
        check_case(widen, name, {}, attributes, attributes)


def test_info_nce_with_a_queue_matches_moco():
    z0, z1 = (F.normalize(z) for z in views())
    queue = F.normalize(BANK)
    logits = torch.cat([(z0 * z1).sum(1, keepdim=True), z0 @ queue.T], 1) / 0.07
    expected = F.cross_entropy(logits, torch.zeros(7, dtype=torch.long))
    # MoCo compares with the queue alone: one item at a time has no other columns.
    loss = contraport.info_nce(temperature=0.07, symmetric=False)
    values = [loss(a[None], b[None], negatives=queue) for a, b in zip(z0, z1, strict=True)]
    torch.testing.assert_close(torch.stack(values).mean(), expected)


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
    assert result.dtype == torch.float32  # precision of the batch, at least single
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
