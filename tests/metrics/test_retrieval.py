import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from sklearn.metrics import ndcg_score
from tests.errors import raises_usage_error

from contraport import info_nce
from contraport._utils import vector_search
from contraport.metrics import retrieval
from contraport.metrics.intervals import MetricResult, bootstrap_interval
from contraport.metrics.retrieval import (
    ColumnRanking,
    build_class_prompts,
    compute_unit_class_embeddings,
    log_match_probability_per_item,
    nearest_indices,
    rank_columns,
    retrieval_ranks,
    zero_shot_correctness,
)


def paired_views(items: int = 60, noise: float = 1.5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    z0 = torch.randn(items, 8, generator=generator)
    return z0, z0 + noise * torch.randn(items, 8, generator=generator)


@pytest.mark.parametrize("tile", [1_024, 7])
@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_ranks_are_positions_in_the_sorted_cosines(monkeypatch: pytest.MonkeyPatch, tile: int, precision: str) -> None:
    monkeypatch.setattr(retrieval, "TILE_SIZE", tile)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    z0, z1 = paired_views()
    cosines = F.normalize(z0.double(), dim=1) @ F.normalize(z1.double(), dim=1).T
    result = retrieval_ranks(z0, z1)
    for column, scores in enumerate((cosines, cosines.T)):
        order = scores.argsort(dim=1, descending=True)
        places = [order[i].tolist().index(i) + 1 for i in range(len(z0))]
        assert result[:, column].tolist() == places


@pytest.mark.parametrize("tile", [1_024, 5])
def test_repeated_views_count_once(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    """The best of an image's captions counts, and a repeated image or caption is one candidate."""
    monkeypatch.setattr(retrieval, "TILE_SIZE", tile)
    generator = torch.Generator().manual_seed(1)
    images, captions = torch.randn(12, 4, generator=generator), torch.randn(20, 4, generator=generator)
    rows = torch.cat([torch.arange(12), torch.randint(12, (28,), generator=generator)])
    columns = torch.cat([torch.arange(20), torch.randint(20, (20,), generator=generator)])
    content_ids = torch.stack([rows * 7 - 3, columns], dim=1)
    result = retrieval_ranks(images[rows], captions[columns], content_ids=content_ids)
    cosines = F.normalize(images.double(), dim=1) @ F.normalize(captions.double(), dim=1).T
    pairs = set(zip(rows.tolist(), columns.tolist(), strict=True))
    for item, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        own = [j for j in range(20) if (row, j) in pairs]
        best = max(cosines[row, j] for j in own)
        assert result[item, 0] == 1 + sum(cosines[row, j] >= best for j in range(20) if j not in own)
        own = [i for i in range(12) if (i, column) in pairs]
        best = max(cosines[i, column] for i in own)
        assert result[item, 1] == 1 + sum(cosines[i, column] >= best for i in range(12) if i not in own)


@pytest.mark.parametrize("tile", [1_024, 5])
def test_ranks_of_selected_items_equal_those_of_all(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    monkeypatch.setattr(retrieval, "TILE_SIZE", tile)
    z0, z1 = paired_views()
    ids = torch.stack([torch.arange(60) % 41, torch.arange(60) % 50], dim=1)
    views = [z[ids[:, view]] for view, z in enumerate((z0, z1))]
    at = np.array([50, 3, 44, 9, 59, 0])
    for content_ids in (None, ids):
        of_all = retrieval_ranks(*views, content_ids=content_ids)
        assert np.array_equal(retrieval_ranks(*views, content_ids=content_ids, positions=at), of_all[at])
    of_all = log_match_probability_per_item(*views, 0.2)
    np.testing.assert_allclose(log_match_probability_per_item(*views, 0.2, positions=at), of_all[at])


def test_ranks_of_three_views_have_a_column_per_ordered_pair() -> None:
    z0, z1 = paired_views()
    result = retrieval_ranks(z0, z1, -z0)
    assert result.shape == (60, 6)
    assert np.array_equal(result[:, [0, 2]], retrieval_ranks(z0, z1))
    assert (result[:, 1] == 60).all()
    with raises_usage_error("views.invalid", 1):
        retrieval_ranks(z0)


def test_collapsed_embeddings_have_the_last_rank() -> None:
    assert (retrieval_ranks(torch.ones(9, 3), torch.ones(9, 3)) == 9).all()


def perturb_by_rounding(z: torch.Tensor) -> torch.Tensor:
    """Perturb each coordinate by a single-precision rounding error."""
    generator = torch.Generator().manual_seed(2)
    return z * (1 + (torch.rand(z.shape, generator=generator) - 0.5) * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("copies", [2, 60])
def test_items_equal_up_to_rounding_are_tied(copies: int) -> None:
    """Each item has several copies; rounding alone must not rank one copy before another."""
    z0, z1 = (z[: 60 // copies].repeat(copies, 1) for z in paired_views(noise=0.5))
    expected = retrieval_ranks(z0[: 60 // copies].double(), z1[: 60 // copies].double()) * copies
    assert np.array_equal(
        retrieval_ranks(perturb_by_rounding(z0), perturb_by_rounding(z1.flip(0)).flip(0)),
        np.tile(expected, (copies, 1)),
    )


def test_nearby_embeddings_are_not_tied() -> None:
    """Embeddings about 0.01 apart are not tied, although their cosines differ by only about 1e-6."""
    z0, z1 = paired_views(noise=0.5)
    cone = [1e-2 * F.normalize(z) + torch.ones(8) for z in (z0, z1)]
    dense = -torch.cdist(F.normalize(cone[0].double()), F.normalize(cone[1].double()))
    expected = (dense >= dense.diagonal()[:, None]).sum(1)
    assert retrieval_ranks(*cone)[:, 0].tolist() == expected.tolist()


def test_log_probabilities_average_to_the_info_nce_loss() -> None:
    z0, z1 = paired_views()
    assert -log_match_probability_per_item(z0, z1, 0.2).mean() == pytest.approx(
        float(info_nce(0.2)(z0.double(), z1.double()))
    )


def test_mutual_information_bound_is_at_most_log_n() -> None:
    z0, _ = paired_views()
    bound = np.log(len(z0)) + log_match_probability_per_item(z0, z0, 0.01).mean()
    assert bound == pytest.approx(np.log(len(z0)), abs=1e-3)


def test_nearest_neighbors_exclude_the_item_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_search, "MAX_TILE_KEYS", 9)
    z, _ = paired_views()
    result = nearest_indices(z, 3)
    cosines = F.cosine_similarity(z[:, None], z, dim=2).fill_diagonal_(-2)
    assert torch.equal(result, cosines.topk(3, dim=1).indices)


def test_ranks_reject_views_with_different_numbers_of_items() -> None:
    with raises_usage_error("z1.shape", (3, 2), (4, 2)):
        retrieval_ranks(torch.ones(3, 2), torch.ones(4, 2))


def test_class_embedding_is_the_mean_direction_of_its_texts() -> None:
    texts = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    long = texts * torch.tensor([1.0, 100, 1, 1, 1, 1])[:, None]
    expected = [F.normalize(texts[2 * c : 2 * c + 2], dim=1).sum(0) for c in range(3)]
    for embeddings in (texts, long):
        torch.testing.assert_close(
            compute_unit_class_embeddings(embeddings, 2), F.normalize(torch.stack(expected), dim=1)
        )
    with raises_usage_error("texts.shape", 4, 6):
        compute_unit_class_embeddings(texts, 4)


def test_zero_shot_hits_compare_the_nearest_class() -> None:
    generator = torch.Generator().manual_seed(1)
    items, classes = torch.randn(50, 5, generator=generator), torch.randn(4, 5, generator=generator)
    labels = torch.arange(50) % 4
    best = F.cosine_similarity(items[:, None], classes, dim=2).argmax(1)
    assert zero_shot_correctness(items, labels, classes).tolist() == (best == labels).tolist()


def test_braces_in_a_class_name_are_kept() -> None:
    assert build_class_prompts(["{}x"], ["a {}."]) == ["a {}x."]


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
    monkeypatch.setattr(retrieval, "MAX_COSINES_IN_MEMORY", request.param)
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
    values = ranking.row_recall_pseudovalues_at(7)
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
            bootstrap_interval(MetricResult(one.row_recall_pseudovalues_at(k))) for one in (once, copies)
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
    result = bootstrap_interval(MetricResult(ranking.row_recall_pseudovalues_at(10)), resamples=4_000)
    assert result == pytest.approx((low, high), abs=0.07 * (high - low))


def test_rejects_numbers_beyond_the_stored_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rank_columns(ROWS, COLUMNS, TRAIN, TEST).pair_hits_at(31).all()  # all 30 columns are ranked
    monkeypatch.setattr(retrieval, "MAX_RANKED_COLUMNS", 8)
    ranking = rank_columns(ROWS, COLUMNS, TRAIN, TEST)
    metrics = (
        ranking.pair_hits_at,
        ranking.row_recall_pseudovalues_at,
        ranking.row_ndcg_at,
        ranking.column_coverage,
        ranking.column_hubness,
        ranking.popularity_ratio,
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
    assert ranking.column_coverage(4) == len(np.unique(order)) / 30
    assert ranking.popularity_ratio(4) == pytest.approx(counts[order].mean() / counts[TRAIN[:, 1]].mean())


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
        assert ranking.column_coverage(k) == len(set(shown)) / 30
        assert ranking.column_hubness(k) == pytest.approx(stats.skew(np.bincount(shown, minlength=30)))
        expected = popularity[shown].mean() / popularity[train[:, 1]].mean()
        assert ranking.popularity_ratio(k) == pytest.approx(expected)


def test_ranking_by_popularity_has_a_large_popularity_ratio() -> None:
    pairs = torch.tensor([(row, 0) for row in range(20)] + [(row, 1 + row % 5) for row in range(20)])
    columns = torch.tensor([[1.0, 0.0]] + [[0.0, 1.0]] * 5)
    ranking = rank_columns(torch.tensor([[1.0, 0.1]]).repeat(30, 1), columns, pairs, torch.tensor([[25, 1]]))
    assert ranking.popularity_ratio(1) > 1.5
