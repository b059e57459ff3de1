from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from tests.allocation import LargestAllocation
from tests.errors import raises_usage_error
from torch import Tensor

from contraport._utils import vector_search
from contraport.data.splits import draw_stratified_split
from contraport.metrics import probes, retrieval_ranks
from contraport.metrics.probes import (
    CANDIDATE_PENALTIES,
    fit_linear_probe,
    knn,
    knn_correctness,
    linear_probe,
    mean_few_label_accuracy_per_item,
    probe_correctness,
    select_linear_probe_penalty,
)


def draw_clusters(
    items: int, classes: int = 4, features: int = 6, spread: float = 1.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(classes, features, generator=torch.Generator().manual_seed(7))
    labels = torch.arange(items) % classes
    return centres[labels] + spread * torch.randn(items, features, generator=generator), labels


def test_linear_probe_separates_clusters_and_is_deterministic() -> None:
    train, test = draw_clusters(400), draw_clusters(200, seed=1)
    accuracy = linear_probe(*train, *test)
    assert accuracy > 0.95
    assert accuracy == linear_probe(*train, *test)


def test_linear_probe_is_at_chance_on_shuffled_labels() -> None:
    x, y = draw_clusters(800)
    shuffled = y[torch.randperm(800, generator=torch.Generator().manual_seed(1))]
    assert linear_probe(x[:400], shuffled[:400], x[400:], shuffled[400:]) < 0.4


def test_linear_probe_is_invariant_to_feature_scale() -> None:
    train, test = draw_clusters(400), draw_clusters(200, seed=1)
    scale = torch.tensor([1e-6, 1e6, 1.0, 1.0, 1e3, 1e-3])
    assert linear_probe(train[0] * scale, train[1], test[0] * scale, test[1]) > 0.95


def test_linear_probe_of_few_items_per_class_emits_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    x, y = draw_clusters(24, classes=16)
    fit_linear_probe(x, y, penalty=0.1)
    assert [str(warning.message) for warning in recwarn] == []


def test_linear_probe_accepts_constant_features_and_unseen_classes() -> None:
    train, test = draw_clusters(400), draw_clusters(200, seed=1)
    padded = [torch.cat([x, torch.ones(len(x), 2)], dim=1) for x in (train[0], test[0])]
    unseen = torch.full_like(test[1], 99)
    assert linear_probe(padded[0], train[1], padded[1], test[1]) > 0.95
    assert linear_probe(padded[0], train[1], padded[1], unseen) == 0


def test_penalty_is_relative_to_the_mean_loss() -> None:
    """At the optimum the gradient of the mean loss equals that of the penalty."""
    x, y = draw_clusters(200, classes=2, spread=3)
    scaler, model = fit_linear_probe(x, y, penalty=0.1)
    z = scaler.transform(x.numpy())
    predicted = 1 / (1 + np.exp(-z @ model.coef_[0] - model.intercept_[0]))
    gradient = z.T @ (predicted - y.numpy()) / len(y)
    assert -gradient / 0.1 == pytest.approx(model.coef_[0], abs=0.02)
    _, twice = fit_linear_probe(torch.cat([x, x]), torch.cat([y, y]), penalty=0.1)
    assert twice.coef_ == pytest.approx(model.coef_, abs=0.02)


@pytest.mark.parametrize("chunk", [1 << 13, 40])
def test_knn_agrees_with_scikit_learn(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(probes, "MAX_QUERIES_IN_MEMORY", chunk)
    monkeypatch.setattr(vector_search, "MAX_TILE_KEYS", chunk)
    (x, y), (tx, ty) = draw_clusters(300, spread=4), draw_clusters(150, spread=4, seed=1)

    def weigh(distances: np.ndarray) -> np.ndarray:
        return np.exp((1 - distances) / 0.07)

    reference = KNeighborsClassifier(20, metric="cosine", weights=weigh, algorithm="brute").fit(x, y)
    assert knn(x, y, tx, ty) == pytest.approx((reference.predict(tx) == ty.numpy()).mean())


def test_knn_of_many_items_uses_cells_and_logs_their_recall(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "contraport.metrics")
    (x, y), (tx, ty) = draw_clusters(12_000, features=24, spread=4), draw_clusters(1_500, features=24, spread=4, seed=1)
    exact = knn_correctness(x, y, tx, ty)
    monkeypatch.setattr(probes, "MAX_EXACT_KNN_PAIRS", len(x) * len(tx))
    assert np.array_equal(knn_correctness(x, y, tx, ty), exact)
    assert not caplog.records
    monkeypatch.setattr(probes, "MAX_EXACT_KNN_PAIRS", len(x) * len(tx) - 1)
    monkeypatch.setattr(probes, "MAX_QUERIES_IN_MEMORY", 400)
    monkeypatch.setattr(probes, "MIN_KNN_RECALL", 0.9)
    by_cells = knn_correctness(x, y, tx, ty)
    assert np.array_equal(knn_correctness(x, y, tx, ty), by_cells)
    assert 0.95 < (by_cells == exact).mean() < 1
    assert abs(by_cells.mean() - exact.mean()) < 0.01
    queries, compared, keys, recall, measured = caplog.records[0].args
    assert (queries, keys, measured) == ("1,500", "12,000", "750")
    assert 500 < int(compared.replace(",", "")) < 6_000
    assert recall == pytest.approx(0.9, abs=0.02)


def test_knn_is_exact_if_cells_would_compare_most_items(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (x, y), (tx, ty) = draw_clusters(600, spread=4), draw_clusters(150, spread=4, seed=1)
    exact = knn_correctness(x, y, tx, ty)
    caplog.set_level("INFO", "contraport.metrics")
    monkeypatch.setattr(probes, "MAX_EXACT_KNN_PAIRS", 0)
    assert np.array_equal(knn_correctness(x, y, tx, ty), exact)
    assert not caplog.records


@pytest.mark.parametrize("exact_pairs", [0, 10**9])
def test_knn_of_many_items_copies_a_small_part_of_them(monkeypatch: pytest.MonkeyPatch, exact_pairs: int) -> None:
    (x, y), (tx, ty) = draw_clusters(6_000, features=64, spread=9), draw_clusters(100, features=64, spread=9, seed=1)
    monkeypatch.setattr(probes, "MAX_EXACT_KNN_PAIRS", exact_pairs)
    monkeypatch.setattr(probes, "MIN_KNN_RECALL", 0.5)  # otherwise most items are compared, by an exact search
    expected = knn_correctness(x, y, tx, ty)
    monkeypatch.setattr(vector_search, "MAX_NORMALIZED_COPY_VALUES", 0)
    monkeypatch.setattr(vector_search, "MAX_TILE_KEYS", 256)
    monkeypatch.setattr(vector_search, "MAX_TILE_PRODUCTS", 2**15)
    monkeypatch.setattr(retrieval_ranks, "POINTS_PER_FINITE_CHECK", 256)
    with LargestAllocation() as largest:
        result = knn_correctness(x, y, tx, ty)
    assert np.array_equal(result, expected)
    assert largest.nbytes < x.nbytes / 3


def test_knn_with_one_neighbor_finds_each_item_itself() -> None:
    x, y = draw_clusters(100, spread=10)
    assert knn(x, y, x, y, neighbors=1) == 1


def test_knn_stays_finite_at_a_low_temperature() -> None:
    (x, y), (tx, ty) = draw_clusters(100), draw_clusters(50, seed=1)
    assert knn(x, y, tx, ty, temperature=1e-6) > 0.9


@pytest.mark.parametrize("neighbors", [0, -1, 101])
def test_knn_rejects_a_wrong_number_of_neighbors(neighbors: int) -> None:
    x, y = draw_clusters(100)
    with raises_usage_error("neighbors.invalid", neighbors, 100):
        knn(x, y, x, y, neighbors=neighbors)


@pytest.mark.parametrize("probe", [linear_probe, knn])
def test_probes_reject_wrong_shapes_and_values(probe) -> None:  # type: ignore[no-untyped-def]
    x, y = draw_clusters(100)
    with raises_usage_error("train_y.shape", 100, (5,)):
        probe(x, y[:5], x, y)
    with raises_usage_error("test_x.shape", 6, 3):
        probe(x, y, x[:, :3], y)
    with raises_usage_error("test_x.shape"):
        probe(x, y, x[:0], y[:0])
    with raises_usage_error("train_x.invalid", "nan"):
        probe(x.where(x > 0, torch.nan), y, x, y)


def test_linear_probe_rejects_a_single_class() -> None:
    x, _ = draw_clusters(10)
    with raises_usage_error("labels.invalid", "class 3"):
        linear_probe(x, torch.full((10,), 3), x, torch.full((10,), 3))


@pytest.mark.gpu
def test_knn_on_a_gpu_agrees_with_the_cpu() -> None:
    (x, y), (tx, ty) = draw_clusters(300, spread=4), draw_clusters(150, spread=4, seed=1)
    assert knn(x.cuda(), y, tx.cuda(), ty) == pytest.approx(knn(x, y, tx, ty), abs=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_penalty_is_selected_on_a_held_out_fifth(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(150) % 2
    x = torch.randn(150, 30, generator=random)
    x[:, 0] += y
    unseen = torch.zeros(150, dtype=torch.bool)
    unseen[draw_stratified_split(y.numpy(), "test", purpose="metrics.probe_split")] = True
    assert unseen.sum() == 30
    hits_by_penalty = [
        probe_correctness(fit_linear_probe(x[~unseen], y[~unseen], penalty=penalty), x[unseen], y[unseen]).sum()
        for penalty in CANDIDATE_PENALTIES
    ]
    assert list(CANDIDATE_PENALTIES) == sorted(CANDIDATE_PENALTIES, reverse=True)
    assert select_linear_probe_penalty(x, y) == CANDIDATE_PENALTIES[hits_by_penalty.index(max(hits_by_penalty))]


def test_strongest_penalty_wins_ties() -> None:
    assert select_linear_probe_penalty(*draw_clusters(60, spread=0.01)) == max(CANDIDATE_PENALTIES)


def test_default_penalty_if_held_out_classes_are_unseen() -> None:
    x, y = draw_clusters(100, classes=100)
    assert select_linear_probe_penalty(x, y) == 1 / 100


def test_few_label_probe_selects_its_penalty_on_its_own_items(monkeypatch: pytest.MonkeyPatch) -> None:
    first_items = SimpleNamespace(permutation=np.copy)
    monkeypatch.setattr(probes, "numpy_generator", lambda purpose, seed: first_items)
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(90, 4, generator=random), torch.arange(90) % 3
    x[:, 0] += y
    hits = mean_few_label_accuracy_per_item(x[:60], y[:60], x[60:], y[60:], lambda size: size // 2)
    penalty = select_linear_probe_penalty(x[:30], y[:30])
    assert penalty != 1 / 30  # the default without a selection
    expected = probe_correctness(fit_linear_probe(x[:30], y[:30], penalty=penalty), x[60:], y[60:])
    assert np.array_equal(hits, expected)
    corrupted = torch.cat([x[:30], 100 * torch.randn(30, 4, generator=random)])
    assert np.array_equal(mean_few_label_accuracy_per_item(corrupted, y[:60], x[60:], y[60:], lambda size: 10), hits)
