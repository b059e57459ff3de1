"""Link prediction against a ranking written out row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from contraport.metrics import link_prediction
from contraport.metrics.link_prediction import LinkRanking, rank_links

rng = np.random.default_rng(0)
ROWS, COLUMNS = torch.tensor(rng.normal(size=(20, 5))), torch.tensor(rng.normal(size=(30, 5)))
PAIRS = torch.tensor([(row, column) for row in range(20) for column in rng.permutation(30)[:6]])
IS_TEST = torch.tensor(rng.random(len(PAIRS)) < 0.4) | (PAIRS[:, 0] == 3)
TRAIN, TEST = PAIRS[~IS_TEST], PAIRS[IS_TEST]


def scores_without_training_columns() -> np.ndarray:
    cosines = torch.nn.functional.normalize(ROWS, dim=1) @ torch.nn.functional.normalize(COLUMNS, dim=1).T
    cosines[TRAIN[:, 0], TRAIN[:, 1]] = -2
    return cosines.numpy()


@pytest.fixture(params=[1 << 24, 100], ids=["at once", "in parts"])
def ranking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LinkRanking:
    monkeypatch.setattr(link_prediction, "_SCORES_AT_ONCE", request.param)
    return rank_links(ROWS, COLUMNS, TRAIN, TEST)


def test_ranks_equal_sorting_each_row(ranking: LinkRanking) -> None:
    scores = scores_without_training_columns()
    expected = [1 + (scores[row] > scores[row, column]).sum() for row, column in TEST.tolist()]
    assert ranking.pair_ranks.tolist() == expected
    assert ranking.recall(7).mean() == np.mean(np.array(expected) <= 7)


def test_ndcg_equals_scikit_learn(ranking: LinkRanking) -> None:
    chosen = TEST[:, 0].unique()
    truth = np.zeros((20, 30))
    truth[TEST[:, 0], TEST[:, 1]] = 1
    expected = ndcg_score(truth[chosen], scores_without_training_columns()[chosen], k=10)
    assert ranking.ndcg(10).mean() == pytest.approx(expected)


def test_new_rows_have_no_training_pair(ranking: LinkRanking) -> None:
    assert np.array_equal(ranking.is_new_row, TEST[:, 0] == 3)


def test_coverage_and_popularity(ranking: LinkRanking) -> None:
    order = np.argsort(-scores_without_training_columns()[TEST[:, 0].unique()], axis=1)[:, :4]
    counts = TRAIN[:, 1].bincount(minlength=30).numpy()
    assert ranking.coverage(4) == len(np.unique(order)) / 30
    assert ranking.popularity_ratio(4) == pytest.approx(counts[order].mean() / counts[TRAIN[:, 1]].mean())


def test_a_ranking_by_popularity_has_a_large_popularity_ratio() -> None:
    pairs = torch.tensor([(row, 0) for row in range(20)] + [(row, 1 + row % 5) for row in range(20)])
    columns = torch.tensor([[1.0, 0.0]] + [[0.0, 1.0]] * 5)
    ranking = rank_links(torch.tensor([[1.0, 0.1]]).repeat(30, 1), columns, pairs, torch.tensor([[25, 1]]))
    assert ranking.popularity_ratio(1) > 1.5
