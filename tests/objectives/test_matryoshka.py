"""Matryoshka losses: against the objective on each prefix, a dense formula, and sentence-transformers."""

import importlib

import pytest
import torch
from tests.errors import raises_usage_error
from tests.objectives.comparing import LABELS, assert_same, build, outcome, required_attributes, views
from tests.processes import run_in_processes

import contraport
from contraport.catalog import OBJECTIVES

DIMS, WEIGHTS = [2, 5, 3], [0.5, 1.0, 2.0]
SETTINGS = {"direct-clr": {"dimensions": 2}}


def sum_over_prefixes(losses, *z, **options):
    """Return the weighted sum of the losses of truncated embeddings, one loss for each number of coordinates."""
    terms = [
        weight * loss(*(view[:, :size] for view in z), **options)
        for loss, size, weight in zip(losses, DIMS, WEIGHTS, strict=True)
    ]
    return torch.stack(terms).sum()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_sums_the_objective_over_prefixes(name):
    own = SETTINGS.get(name, {})
    nested = contraport.matryoshka(build(name, **own), DIMS, WEIGHTS).double()
    separate = [build(name, **own) for _ in DIMS]
    for call in range(2):  # moving averages differ by the number of coordinates
        z = views(seed=call)
        result = outcome(lambda *z: nested(*z, **required_attributes(name)), *z)
        expected = outcome(lambda *z: sum_over_prefixes(separate, *z, **required_attributes(name)), *z)
        assert_same(result, expected)


def dense(z0, z1, temperature):
    """Return InfoNCE in one direction from the matrix of all cosines."""
    x, y = (z / z.norm(dim=1, keepdim=True) for z in (z0, z1))
    logits = x @ y.T / temperature
    return (logits.logsumexp(1) - logits.diagonal()).mean()


def test_matches_the_dense_formula():
    nested = contraport.matryoshka(contraport.info_nce(0.2, symmetric=False), DIMS, WEIGHTS)
    losses = [lambda z0, z1: dense(z0, z1, 0.2)] * 3
    assert_same(outcome(nested, *views()), outcome(lambda *z: sum_over_prefixes(losses, *z), *views()))


def test_negatives_targets_and_absent_views_apply_to_each_prefix():
    bank, present = views(n=4, seed=9)[0], torch.rand(7, 2) < 0.8
    present[:3] = True
    for name, options in (
        ("info-nce", {"negatives": bank}),
        ("info-nce", {"present": present}),
        ("gca-ince", {"target": contraport.Labels(), "labels": LABELS}),
        ("nt-xent", {"ids": LABELS, "weights": torch.arange(7.0)}),
    ):
        nested, plain = contraport.matryoshka(build(name), DIMS, WEIGHTS), build(name)

        def expected(*z, plain=plain, options=options):
            terms = []
            for size, weight in zip(DIMS, WEIGHTS, strict=True):
                own = options | ({"negatives": bank[:, :size]} if "negatives" in options else {})
                terms.append(weight * plain(*(view[:, :size] for view in z), **own))
            return torch.stack(terms).sum()

        assert_same(outcome(lambda *z, nested=nested, options=options: nested(*z, **options), *views()),
                    outcome(expected, *views()))  # fmt: skip


def test_keeps_the_properties_of_the_objective():
    nested = contraport.matryoshka(contraport.nt_xent(0.2), [4, 2])
    z = views(d=4)
    assert nested.is_info_nce
    bounds = [contraport.nt_xent(0.2) for _ in range(2)]
    mean = sum(loss.mutual_information_bound(loss(*(v[:, :size] for v in z)).item())
               for loss, size in zip(bounds, (4, 2), strict=True)) / 2  # fmt: skip
    assert nested.mutual_information_bound(nested(*z).item()) == pytest.approx(mean)
    torch.testing.assert_close(nested.plan(*z), contraport.nt_xent(0.2).plan(*z))  # plan of all coordinates
    assert "matryoshka(nt_xent(0.2), dims=[4, 2])" in nested.explain()
    nested.temperature = 0.7
    assert nested.temperature == 0.7


def test_shares_a_learned_temperature_and_bias():
    loss = contraport.sigmoid()
    nested = contraport.matryoshka(loss, [4, 2])
    assert {id(p) for p in nested.parameters()} == {id(p) for p in loss.parameters()}


@pytest.mark.parametrize("exchange_name", ["gather", "ring"])
def test_several_processes_have_the_loss_of_one(exchange_name):
    x, y = views(n=8, d=6, seed=4)
    expected = outcome(contraport.matryoshka(contraport.gca_ince(), [6, 2], [1.0, 0.5]), x, y)
    for rank, value, slopes in run_in_processes(report_share, 2, exchange_name):
        torch.testing.assert_close(torch.tensor(value, dtype=torch.float64), expected[0])
        rows = slice(0, 5) if rank == 0 else slice(5, 8)
        for slope, expected_slope in zip(slopes, expected[1], strict=True):
            torch.testing.assert_close(torch.tensor(slope, dtype=torch.float64) / 2, expected_slope[rows])


def report_share(rank, report, exchange_name):
    rows = slice(0, 5) if rank == 0 else slice(5, 8)
    z = [view[rows] for view in views(n=8, d=6, seed=4)]
    with contraport.engine.exchange(exchange_name):
        value, slopes = outcome(contraport.matryoshka(contraport.gca_ince(), [6, 2], [1.0, 0.5]), *z)
    report((rank, value.item(), [slope.tolist() for slope in slopes]))


@pytest.mark.parametrize(
    ("dims", "weights", "code"),
    [
        ([], None, "dims.missing"),
        ([4, 4], None, "dims.repeated"),
        ([0], None, "dims.*"),
        ([2.5], None, "dims.*"),
        (["4"], None, "dims.*"),
        ([4, 2], [1.0], "weights.number"),
        ([4, 2], [1.0, 0.0], "weights.*"),
        ([4, 2], [1.0, float("nan")], "weights.*"),
    ],
)
def test_rejects_invalid_dims(dims, weights, code):
    with raises_usage_error(code):
        contraport.matryoshka(contraport.nt_xent(), dims, weights)


def test_rejects_calls_that_have_no_prefixes():
    nested = contraport.matryoshka(contraport.nt_xent(), [6, 2])
    with raises_usage_error("dims.range", 5):
        nested(*views())
    with raises_usage_error("similarities.conflict"):
        nested(similarities=torch.eye(4))
    with raises_usage_error("objective.type"):
        contraport.matryoshka(torch.nn.MSELoss(), [2])


def test_matches_sentence_transformers():
    peer = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    losses = importlib.import_module(f"{peer.__name__}.losses")

    class Identity(torch.nn.Module):
        """Model whose input is its embedding."""

        def forward(self, features):
            return {"sentence_embedding": features["z"]}

        def get_embedding_dimension(self):
            return 5

    model = Identity()
    inner = losses.MultipleNegativesRankingLoss(model, scale=20.0)
    reference = losses.MatryoshkaLoss(model, inner, DIMS, WEIGHTS)
    loss = contraport.matryoshka(contraport.info_nce(1 / 20, symmetric=False), DIMS, WEIGHTS)
    expected = outcome(lambda *z: reference([{"z": view} for view in z], None), *views())
    assert_same(outcome(loss, *views()), expected, rtol=1e-6)


def test_parts_with_averages_keep_their_weight_in_a_sum():
    parts = [build("sog-clr"), build("info-nce")]
    nested = contraport.matryoshka(contraport.SumLoss({parts[0]: 0.3, parts[1]: 1.0}), DIMS, WEIGHTS)
    one, other = (contraport.matryoshka(part, DIMS, WEIGHTS) for part in (build("sog-clr"), parts[1]))
    z, ids = views(), required_attributes("sog-clr")
    torch.testing.assert_close(nested(*z, **ids), 0.3 * one(*z, **ids) + other(*z))
