"""Rankings of graded pairs: against their formulas over all pairs of pairs, and sentence-transformers."""

import importlib
import math

import pytest
import torch
from tests.errors import raises_usage_error
from tests.objectives import formulas
from tests.objectives.comparing import BACKENDS, RANKING, assert_same, build, outcome, views
from tests.processes import run_in_processes

import contraport
from contraport.integrations import SentenceTransformerLoss

GRADES = torch.tensor([0.2, 0.0, 1.0, 0.5, 0.5, 3.0, 0.25], dtype=torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", RANKING)
@pytest.mark.parametrize(("d", "temperature"), [(5, 0.1), (6, 0.1), (6, 1.0), (1, 0.5)])
def test_matches_the_formula(name, d, temperature, backend):
    with contraport.engine.backend(backend):
        loss = outcome(lambda *z: build(name, temperature=temperature)(*z, weights=GRADES), *views(d=d))
    assert_same(loss, outcome(lambda *z: getattr(formulas, name)(*z, temperature, GRADES), *views(d=d)))


@pytest.mark.parametrize("name", RANKING)
def test_only_the_order_of_grades_matters(name):
    loss, z = build(name), views()
    value = loss(*z, weights=GRADES)
    torch.testing.assert_close(loss(*z, weights=GRADES.square() + GRADES.sqrt()), value)
    assert loss(*z, weights=torch.full((7,), 0.3)) == 0
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(loss(*(view[order] for view in z), weights=GRADES[order]), value)


def test_large_differences_neither_overflow_nor_vanish():
    z0 = torch.tensor([[1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    z1 = torch.tensor([[-1.0, 0.1], [1.0, 0.1]])
    value = contraport.cosent(temperature=1e-4)(z0, z1, weights=torch.tensor([1.0, 0.0]))
    value.backward()
    assert value.item() == pytest.approx(2e4 * math.cos(math.atan(0.1)), rel=1e-4)
    assert z0.grad.isfinite().all()


@pytest.mark.parametrize("name", RANKING)
def test_learns_the_temperature(name):
    loss = contraport.objective(name, temperature="learn")
    loss(*views(), weights=GRADES).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in loss.parameters())


def test_rejects_invalid_rankings():
    z = views()
    with raises_usage_error("weights.missing"):
        contraport.cosent()(*z)
    with raises_usage_error("target.conflict"):
        contraport.cosent()(*z, weights=GRADES, target=contraport.SoftNeighbors(z[0]))
    with raises_usage_error("reduction.*"):
        contraport.cosent()(*z, weights=GRADES, reduction="none")
    with raises_usage_error("negatives.conflict"):
        contraport.cosent()(*z, weights=GRADES, negatives=z[0])
    with raises_usage_error("absolute_scores.*"):
        contraport.PairRanking("yes")


@pytest.mark.parametrize("name", RANKING)
def test_sets_of_one_vector_are_vectors(name):
    expected = outcome(lambda *z: build(name, temperature=0.1)(*z, weights=GRADES), *views(d=5))
    loss = build(name)
    loss.kernel = contraport.LateInteraction("max", temperature=0.1, reduction="sum")
    assert_same(outcome(lambda *z: loss(*(v[:, None] for v in z), weights=GRADES), *views(d=5)), expected)


@pytest.mark.parametrize("name", RANKING)
def test_matches_sentence_transformers(name):
    peer = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    losses = importlib.import_module(f"{peer.__name__}.losses")
    model = torch.nn.Identity()
    if name == "cosent":
        reference, loss = losses.CoSENTLoss(model, scale=20.0), contraport.cosent()
    else:
        reference, loss = losses.AnglELoss(model, scale=20.0), contraport.angle(temperature=0.05 / math.sqrt(2))
    for d in (5, 6):
        expected = outcome(lambda *z: reference.compute_loss_from_embeddings(list(z), GRADES), *views(d=d))
        assert_same(outcome(lambda *z: loss(*z, weights=GRADES), *views(d=d)), expected)


def test_scores_of_a_trainer_are_grades():
    loss, z = contraport.cosent(), views()
    adapter = SentenceTransformerLoss(torch.nn.Identity(), loss)
    torch.testing.assert_close(adapter.compute_embedding_loss(list(z), GRADES), loss(*z, weights=GRADES))


@pytest.mark.parametrize("exchange_name", ["gather", "ring"])
def test_processes_rank_the_pairs_of_all_processes(exchange_name):
    expected = outcome(lambda *z: contraport.cosent()(*z, weights=GRADES), *views())
    for rank, value, slopes in run_in_processes(report_share, 2, exchange_name):
        rows = slice(0, 4) if rank == 0 else slice(4, 7)
        torch.testing.assert_close(torch.tensor(value, dtype=torch.float64), expected[0])
        for slope, expected_slope in zip(slopes, expected[1], strict=True):
            torch.testing.assert_close(torch.tensor(slope, dtype=torch.float64) / 2, expected_slope[rows])


def report_share(rank, report, exchange_name):
    rows = slice(0, 4) if rank == 0 else slice(4, 7)
    z = [view[rows] for view in views()]
    with contraport.engine.exchange(exchange_name):
        value, slopes = outcome(lambda *z: contraport.cosent()(*z, weights=GRADES[rows]), *z)
    report((rank, value.item(), [slope.tolist() for slope in slopes]))


def test_symmetric_views_of_odd_size_accept_negatives():
    parts = contraport.Gibbs("cosine", 0.3), contraport.Rows(), contraport.Pairs(), contraport.KL()
    loss = contraport.Objective(contraport.RotatedFirstView(contraport.Cross(symmetric=False)), *parts)
    *z, bank = *views(d=5), views(n=4, d=5, seed=9)[0]
    padded = [torch.nn.functional.pad(values, (0, 1)) for values in (*z, bank)]
    torch.testing.assert_close(loss(*z, negatives=bank), loss(*padded[:2], negatives=padded[2]))
