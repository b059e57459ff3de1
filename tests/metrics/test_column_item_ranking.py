import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from sklearn.metrics import ndcg_score
from tests.errors import raises_usage_error

from contraport.metrics import column_item_ranking
from contraport.metrics.column_item_ranking import ColumnRanking, rank_columns
from contraport.metrics.intervals import MetricResult, bootstrap_interval

rng = np.random.default_rng(0)
ROWS, COLUMNS = torch.tensor(rng.normal(size=(20, 5))), torch.tensor(rng.normal(size=(30, 5)))
PAIRS = torch.tensor([(row, column) for row in range(20) for column in rng.permutation(30)[:6]])
IS_TEST = torch.tensor(rng.random(len(PAIRS)) < 0.4) | (PAIRS[:, 0] == 3)
TRAIN, TEST = PAIRS[~IS_TEST], PAIRS[IS_TEST]


def scores_without_training_columns() -> np.ndarray:
    cosines = F.normalize(ROWS, dim=1) @ F.normalize(COLUMNS, dim=1).T
    cosines[TRAIN[:, 0], TRAIN[:, 1]] = -2
    return cosines.numpy()


@pytest.fixture(params=[1 << 24, 100], ids=["at once", "in parts"])
def ranking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ColumnRanking:
    monkeypatch.setattr(column_item_ranking, "MAX_COSINES_IN_MEMORY", request.param)
    return rank_columns(ROWS, COLUMNS, TRAIN, TEST)


def test_ranks_agree_with_sorting_each_row(ranking: ColumnRanking) -> None:
    scores = scores_without_training_columns()
    expected = [1 + (scores[row] > scores[row, column]).sum() for row, column in TEST.tolist()]
    assert ranking.pair_ranks.tolist() == expected
    assert ranking.pair_hits_at(7).mean() == np.mean(np.array(expected) <= 7)


def test_ndcg_equals_scikit_learn(ranking: ColumnRanking) -> None:
    chosen = TEST[:, 0].unique()
    truth = np.zeros((20, 30))
    truth[TEST[:, 0], TEST[:, 1]] = 1
    expected = ndcg_score(truth[chosen], scores_without_training_columns()[chosen], k=10)
    assert ranking.row_ndcg_at(10).mean() == pytest.approx(expected)


def test_recall_per_row_has_the_mean_of_all_pairs(ranking: ColumnRanking) -> None:
    values = ranking.pair_recall_row_pseudovalues_at(7)
    assert len(values) == len(TEST[:, 0].unique())
    assert values.mean() == pytest.approx(ranking.pair_hits_at(7).mean())


def build_ranking(pairs_per_row: np.ndarray, ranks: np.ndarray) -> ColumnRanking:
    rows, nothing = np.repeat(np.arange(len(pairs_per_row)), pairs_per_row), np.zeros((len(pairs_per_row), 1))
    return ColumnRanking(rows, ranks, nothing, np.zeros(1), np.zeros(len(rows), dtype=bool))


def test_repeated_pairs_of_a_row_do_not_narrow_the_interval() -> None:
    ranks = np.random.default_rng(0).integers(1, 20, size=50).astype(float)
    once, copies = build_ranking(np.ones(50, dtype=int), ranks), build_ranking(np.full(50, 9), ranks.repeat(9))
    for k in (5, 10):
        expected, result = (
            bootstrap_interval(MetricResult(one.pair_recall_row_pseudovalues_at(k))) for one in (once, copies)
        )
        assert result == pytest.approx(expected)
        pair_interval = bootstrap_interval(MetricResult(copies.pair_hits_at(k)))
        assert pair_interval.high - pair_interval.low < 0.5 * (result.high - result.low)


def test_recall_interval_agrees_with_resampling_rows() -> None:
    random = np.random.default_rng(0)
    pairs_per_row = random.integers(1, 12, size=300)
    # Rows with many pairs have a lower recall, so that the number of pairs matters.
    ranks = random.geometric(0.3 / pairs_per_row.repeat(pairs_per_row)).astype(float)
    ranking = build_ranking(pairs_per_row, ranks)
    hits = np.bincount(ranking.pair_row_positions, weights=ranking.pair_hits_at(10))
    drawn = random.integers(300, size=(4_000, 300))
    low, high = np.quantile(hits[drawn].sum(1) / pairs_per_row[drawn].sum(1), [0.025, 0.975])
    result = bootstrap_interval(MetricResult(ranking.pair_recall_row_pseudovalues_at(10)), resamples=4_000)
    assert result == pytest.approx((low, high), abs=0.07 * (high - low))


def test_rejects_numbers_beyond_the_stored_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rank_columns(ROWS, COLUMNS, TRAIN, TEST).pair_hits_at(31).all()  # all 30 columns are ranked
    monkeypatch.setattr(column_item_ranking, "MAX_NEAREST_COLUMNS_KEPT_PER_ROW", 8)
    ranking = rank_columns(ROWS, COLUMNS, TRAIN, TEST)
    metrics = (
        ranking.pair_hits_at,
        ranking.pair_recall_row_pseudovalues_at,
        ranking.row_ndcg_at,
        ranking.share_of_columns_in_any_top_k,
        ranking.column_hubness,
        ranking.nearest_to_paired_popularity_ratio,
    )
    for metric in metrics:
        metric(8)
        with raises_usage_error("metrics.number", 8, 9):
            metric(9)


def test_rows_without_a_training_pair_are_marked_unseen(ranking: ColumnRanking) -> None:
    assert np.array_equal(ranking.pair_has_unseen_row, TEST[:, 0] == 3)


def test_coverage_and_popularity(ranking: ColumnRanking) -> None:
    order = np.argsort(-scores_without_training_columns()[TEST[:, 0].unique()], axis=1)[:, :4]
    counts = TRAIN[:, 1].bincount(minlength=30).numpy()
    assert ranking.share_of_columns_in_any_top_k(4) == len(np.unique(order)) / 30
    assert ranking.nearest_to_paired_popularity_ratio(4) == pytest.approx(
        counts[order].mean() / counts[TRAIN[:, 1]].mean()
    )


def test_hubness_equals_the_skewness_of_scipy(ranking: ColumnRanking) -> None:
    order = np.argsort(-scores_without_training_columns()[TEST[:, 0].unique()], axis=1)[:, :4]
    assert ranking.column_hubness(4) == pytest.approx(stats.skew(np.bincount(order.ravel(), minlength=30)))


def test_rows_with_few_columns_left_count_only_those() -> None:
    # Columns without a training pair: three for row 0, only the test column for row 1, all but one for row 2.
    train = torch.tensor([(0, column) for column in range(27)] + [(1, column) for column in range(29)] + [(2, 5)])
    ranking = rank_columns(ROWS, COLUMNS, train, torch.tensor([(0, 28), (1, 29), (2, 7), (2, 5)]))
    candidates = [[27, 28, 29], [29], [column for column in range(30) if column != 5]]
    cosines = F.cosine_similarity(ROWS[:3, None], COLUMNS[None], dim=2).tolist()
    orders = [
        sorted(columns, key=lambda column: -row[column]) for row, columns in zip(cosines, candidates, strict=True)
    ]
    assert [[column for column in row if column >= 0] for row in ranking.ranked_columns.tolist()] == orders
    assert ranking.pair_ranks.tolist() == [orders[0].index(28) + 1, 1, orders[2].index(7) + 1, np.inf]
    popularity = train[:, 1].bincount(minlength=30).numpy()
    for k in (2, 10, 30):
        shown = [column for order in orders for column in order[:k]]
        assert ranking.share_of_columns_in_any_top_k(k) == len(set(shown)) / 30
        assert ranking.column_hubness(k) == pytest.approx(stats.skew(np.bincount(shown, minlength=30)))
        expected = popularity[shown].mean() / popularity[train[:, 1]].mean()
        assert ranking.nearest_to_paired_popularity_ratio(k) == pytest.approx(expected)


def test_ranking_by_popularity_has_a_large_popularity_ratio() -> None:
    pairs = torch.tensor([(row, 0) for row in range(20)] + [(row, 1 + row % 5) for row in range(20)])
    columns = torch.tensor([[1.0, 0.0]] + [[0.0, 1.0]] * 5)
    ranking = rank_columns(torch.tensor([[1.0, 0.1]]).repeat(30, 1), columns, pairs, torch.tensor([[25, 1]]))
    assert ranking.nearest_to_paired_popularity_ratio(1) > 1.5
