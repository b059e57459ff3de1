"""Built-in metrics: invariants of each, and values known in closed form."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from contraport import KL, Cross, Gibbs, Objective, Pairs, Rows, info_nce, nt_xent
from contraport.catalog.data_option_parsers import CORRUPTION_KINDS
from contraport.data import Dataset, Views, from_arrays, from_coupling
from contraport.embedding import LoaderConfig, RawInputEncoder
from contraport.encoders import Model
from contraport.metrics import METRICS, Metric, builtin_metrics, probes
from contraport.metrics import fine_tuning as tuning
from contraport.metrics.builtin_metrics import REQUIRES_ENTITY_PAIRS, REQUIRES_ZERO_SHOT_SUPPORT
from contraport.metrics.column_item_ranking import rank_columns
from contraport.metrics.eval_context import EvalContext
from contraport.metrics.intervals import MetricResult
from contraport.metrics.probes import mean_few_label_accuracy_per_item, ridge_prediction_target_pairs


def build_images(items: int, split: str, seed: int = 0) -> Dataset:
    """Build images of three classes and two domains, with a numeric label per item."""
    generator = np.random.default_rng([items, seed])
    labels, domains = np.arange(items) % 3, np.arange(items) // 3 % 2
    images = generator.integers(0, 60, size=(items, 3, 12, 12), dtype=np.uint8)
    images[np.arange(items), labels, 2:10, 2:10] += 120
    images[domains == 1, :, :2] += 90
    return from_arrays(images, labels=labels, domains=domains, numbers=labels + 0.5 * domains, split=split)


def build_captioned_images(items: int, split: str, seed: int = 0) -> Dataset:
    """Build the images, each with a caption that names its class."""
    dataset = build_images(items, split, seed)
    (images,) = dataset.__getitems__(list(range(items))).views
    texts = [f"a photo of a {label}" for label in dataset.labels.tolist()]
    return from_arrays({"image": images, "caption": texts}, labels=dataset.labels, split=split)


def build_model(dataset: Dataset) -> Model:
    torch.manual_seed(0)
    model = Model(None, dataset.shapes)
    with torch.no_grad():  # nonzero running statistics, which a pass in training mode would change
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.uniform_(-0.1, 0.1)
    return model


def build_context(encoder: Model | RawInputEncoder | None = None, build_data=build_images, **options) -> EvalContext:
    train, test = build_data(60, "train"), build_data(30, "test", seed=1)
    encoder = build_model(train) if encoder is None else encoder
    return EvalContext(
        encoder, train, test, Views(train), LoaderConfig(), **{"objective": info_nce(0.2), "neighbors": 5} | options
    )


def build_link_data(items: int, split: str, seed: int = 0) -> Dataset:
    """Build pairs of rows and columns; no row of a test pair is in one of the first 60 pairs, used for training."""
    random = np.random.default_rng(0)
    rows, columns = random.normal(size=(90, 4)), random.normal(size=(20, 4))
    pairs = np.array([(row, row * 7 % 20) for row in range(90)])
    part = pairs[60 : 60 + items] if split == "test" else pairs[:items]
    return from_coupling(rows.astype("float32"), columns.astype("float32"), part, test_fraction=0)


ALL_METRICS = [one for row in METRICS.values() for one in row.expand_default_numbers()]


@pytest.mark.parametrize("metric", ALL_METRICS, ids=lambda row: row.key)
def test_no_metric_changes_the_encoder(metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MIN_EPOCHS", 2)
    monkeypatch.setattr(tuning, "MIN_STEPS", 2)
    build_data = build_captioned_images if REQUIRES_ZERO_SHOT_SUPPORT in metric.requirements else build_images
    build_data = build_link_data if REQUIRES_ENTITY_PAIRS in metric.requirements else build_data
    model = build_model(build_data(6, "train")).train()
    model.towers[0].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    flags = [(module.training, [p.requires_grad for p in module.parameters()]) for module in model.modules()]
    state = torch.get_rng_state()
    context = build_context(model, build_data)
    assert metric.find_unmet_requirement(context) is None
    result = metric(context)
    assert torch.equal(torch.get_rng_state(), state)
    assert flags == [(module.training, [p.requires_grad for p in module.parameters()]) for module in model.modules()]
    assert all(p.grad is None for p in model.parameters())
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert np.isfinite(finite_value(result))
    assert finite_value(result) == finite_value(metric(build_context(model, build_data)))


def test_rows_without_a_training_pair_are_ranked_by_their_own_embedding() -> None:
    context = build_context(build_model(build_link_data(6, "train")).eval(), build_link_data)
    everything = build_link_data(90, "train")
    rows, columns = context._embed_views(everything, project=not context.has_shared_encoder, view_kind="unaugmented")
    first = [everything.entity_ids[:, 1].tolist().index(column) for column in range(20)]
    expected = rank_columns(rows, columns[first], context.train.entity_ids, context.test.entity_ids)
    assert context.columns_ranked_per_row.pair_has_unseen_row.all()
    assert np.array_equal(context.columns_ranked_per_row.ranked_columns, expected.ranked_columns)


def test_columns_without_a_pair_are_not_ranked() -> None:
    def coupled_with_even_columns(items: int, split: str, seed: int = 0) -> Dataset:
        data = build_link_data(items, split)
        return data.subset((data.entity_ids[:, 1] % 2 == 0).nonzero()[:, 0])

    context = build_context(build_model(build_link_data(6, "train")).eval(), coupled_with_even_columns)
    ranking = context.columns_ranked_per_row
    assert ranking.ranked_columns.shape[1] == len(ranking.column_popularity) == 10
    assert ranking.column_popularity.sum() == 30
    assert ranking.pair_hits_at(10).all()


def finite_value(result: MetricResult | float) -> float:
    if isinstance(result, float):
        return result
    assert len(result.item_values) == 30
    return result.value


def test_raw_inputs_lack_weights_and_objective() -> None:
    raw = build_context(RawInputEncoder(((3, 12, 12),)))
    lacking = {row.key for row in ALL_METRICS if row.find_unmet_requirement(raw) not in (None, REQUIRES_ENTITY_PAIRS)}
    assert lacking == {"fine_tuning", "mutual_information", "zero_shot"}


@pytest.mark.parametrize(
    ("objective", "temperature"),
    [
        (info_nce(0.3), 0.3),
        (nt_xent(0.5), 0.5),
        (Objective(Cross(), Gibbs("cosine", 0.1), Rows(), Pairs(), KL()), 0.1),
        (Objective(Cross(), Gibbs("sqeuclidean", 0.1), Rows(), Pairs(), KL()), None),
        (Objective(Cross(), Gibbs("cosine", 0.1), Rows(), Pairs(), KL(), {KL(): 1.0}), None),
        (nn.Identity(), None),
        (None, None),
    ],
)
def test_mutual_information_requires_info_nce(objective, temperature: float | None) -> None:
    assert build_context(objective=objective).temperature_if_trained_by_cosine_info_nce == temperature


def test_deprecated_names_of_the_context() -> None:
    context = build_context()
    for old, new in (("train_x", "train_features"), ("test_x", "test_features"), ("test_y", "test_labels")):
        with pytest.warns(FutureWarning, match=f"EvalContext.{new}"):
            assert getattr(context, old) is getattr(context, new)
    with pytest.warns(FutureWarning, match="REQUIRES_LABELS"):
        assert builtin_metrics.LABELS is builtin_metrics.REQUIRES_LABELS


def test_unseen_domain_probe_is_trained_on_the_other_domains() -> None:
    """A class looks like another class in the other domain, so a probe of the other domain is always wrong."""
    context = build_context()
    shift = 100 * torch.nn.functional.one_hot((context.test_labels + context.test_domains) % 3, 3).float()
    context.__dict__["test_features"] = shift
    context.__dict__["train_features"] = (
        100 * torch.nn.functional.one_hot((context.train_labels + context.train_domains) % 3, 3).float()
    )
    assert METRICS["unseen_domain"](context).value == 0


def test_few_shot_accuracy_grows_with_the_number() -> None:
    context = build_context()
    few, more = (METRICS["few_shot"].with_number(number)(context).value for number in (1, 15))
    assert few < more <= 1


def test_fine_tuning_beats_a_linear_probe_on_a_ring() -> None:
    """A ring around a disc is not linearly separable."""
    random = np.random.default_rng(0)
    labels = np.arange(300) % 2
    angles, radii = random.uniform(0, 2 * np.pi, 300), 1 + labels + 0.1 * random.normal(size=300)
    rows = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
    train, test = (from_arrays(rows[part], labels=labels[part]) for part in (slice(200), slice(200, None)))
    torch.manual_seed(0)
    model = Model(nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 2)), [(2,)])
    context = EvalContext(model, train, test, Views(train), LoaderConfig())
    assert METRICS["fine_tuning"](context).value > 0.95 > METRICS["linear_probe"](context).value


def test_few_label_metrics_draw_the_requested_number_per_class(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = []

    def record(x: torch.Tensor, y: torch.Tensor) -> float:
        draws.append((x, y))
        return 1.0

    monkeypatch.setattr(probes, "select_linear_probe_penalty", record)
    context = build_context()
    for key, number, expected in (("few_shot", 5, 5), ("few_percent", 10, 2), ("few_percent", 1, 1)):
        for _ in range(2):
            METRICS[key].with_number(number)(context)
        (first, labels), *others = draws[-10:]
        assert labels.bincount().tolist() == [expected] * 3
        assert [torch.equal(first, other) for other, _ in others] == [False] * 4 + [True] + [False] * 4


def test_few_label_hits_are_averaged_over_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first draw classifies correctly, the other four do not.
    generators = [SimpleNamespace(permutation=np.copy), *[SimpleNamespace(permutation=np.flip)] * 4]
    monkeypatch.setattr(probes, "numpy_generator", lambda purpose, seed: generators[seed])
    x, y = torch.tensor([[-1.0], [1.0], [-3.0]]), torch.tensor([0, 1, 1])
    hits = mean_few_label_accuracy_per_item(x, y, torch.tensor([[-5.0]]), torch.tensor([0]), lambda size: size - 1)
    assert hits.tolist() == [1 / 5]


def test_recall_counts_ranks_up_to_the_number() -> None:
    context = build_context()
    context.__dict__["retrieval_rank_table"] = np.array([[1, 2], [5, 6], [10, 11], [30, 1]])
    result = [METRICS["recall"].with_number(number)(context).value for number in (1, 5, 10)]
    assert "5 nearest" in METRICS["recall"].with_number(5).summary
    assert result == [2 / 8, 4 / 8, 6 / 8]
    assert METRICS["median_rank"](context).value == np.mean([7.5, 4])


def test_mutual_information_is_log_n_minus_the_loss() -> None:
    context = build_context()
    loss = info_nce(0.2)(*(view.double() for view in context.test_random_view_projector_outputs))
    assert METRICS["mutual_information"](context).value == pytest.approx(np.log(30) - float(loss), abs=1e-5)


def test_domain_probe_is_trained_on_training_items() -> None:
    context = build_context()
    other = 1 - context.test_domains
    context.__dict__["train_features"] = torch.nn.functional.one_hot(context.train_domains, 2).float()
    context.__dict__["test_features"] = torch.nn.functional.one_hot(other, 2).float()
    assert METRICS["domain_probe"](context).value == 0


def test_knn_uses_the_requested_number_of_neighbors() -> None:
    random = torch.Generator().manual_seed(0)
    features = [torch.randn(items, 4, generator=random) for items in (60, 30)]
    result = []
    for neighbors in (1, 7):
        context = build_context(neighbors=neighbors)
        context.__dict__["train_features"], context.__dict__["test_features"] = features
        result.append(METRICS["knn"](context).item_values)
        expected = KNeighborsClassifier(
            neighbors, metric="cosine", weights=lambda distances: np.exp((1 - distances) / 0.07)
        ).fit(features[0], context.train_labels)
        assert np.array_equal(result[-1], expected.predict(features[1]) == context.test_labels.numpy())
    assert not np.array_equal(*result)


def test_number_of_clusters_equals_number_of_classes() -> None:
    context = build_context()
    context.__dict__["test_features"] = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    assert sorted(set(context.test_clusters)) == [0, 1, 2]


@pytest.mark.parametrize("kind", CORRUPTION_KINDS)
def test_robustness_metrics_use_their_kind_and_severity(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe is trained on clean images."""
    context, calls = build_context(), []
    wrong = (context.test_labels + 1) % 3
    context.__dict__["train_features"] = torch.nn.functional.one_hot(context.train_labels, 3).float()
    context.__dict__["test_features"] = torch.nn.functional.one_hot(context.test_labels, 3).float()

    def corrupted(_: EvalContext, kind: str, severity: int) -> torch.Tensor:
        calls.append((kind, severity))
        return torch.nn.functional.one_hot(wrong if severity > 3 else context.test_labels, 3).float()

    monkeypatch.setattr(EvalContext, "corrupted_features", corrupted)
    assert [METRICS[kind].with_number(severity)(context).value for severity in (1, 3, 4)] == [1, 1, 0]
    assert calls == [(kind, 1), (kind, 3), (kind, 4)]


def test_ridge_predictions_do_not_depend_on_feature_scale() -> None:
    random = np.random.default_rng(0)
    x = torch.from_numpy(random.normal(size=(80, 3)))
    y = x @ torch.tensor([3.0, -2.0, 0.5], dtype=torch.float64) + 7
    result = ridge_prediction_target_pairs(x[:50], y[:50], x[50:], y[50:])
    assert result[:, 0] == pytest.approx(y[50:].numpy(), abs=0.05)
    assert np.array_equal(result[:, 1], y[50:])
    noisy = y + torch.from_numpy(random.normal(size=80))
    scaled = x * torch.tensor([1e4, 1.0, 1e-4])
    plain, other = (ridge_prediction_target_pairs(z[:50], noisy[:50], z[50:], noisy[50:]) for z in (x, scaled))
    assert other == pytest.approx(plain, rel=1e-6)


def test_equal_captions_are_one_candidate() -> None:
    """Thirty images share three captions, so that no caption has a rank beyond 3."""
    context = build_context(build_data=build_captioned_images)
    assert context.retrieval_direction_names == ("image to caption", "caption to image")
    assert context.retrieval_rank_table[:, 0].max() <= 3
    assert context.retrieval_rank_table[:, 1].max() <= 21  # the best of the ten images of a caption counts


@pytest.mark.parametrize("shared", [True, False])
def test_retrieval_compares_features_if_views_share_an_encoder(shared: bool) -> None:
    random = np.random.default_rng(0)
    data = from_arrays({name: random.normal(size=(20, 5)) for name in ("left", "right")})
    torch.manual_seed(0)
    model = Model("mlp", data.shapes, shared=shared, projection=8).eval()
    context = EvalContext(model, data, data, Views(data, augment="strong"), LoaderConfig())
    features = model.encode(data.__getitems__(list(range(20))).views)
    expected = features if shared else model.project(features)
    for actual, target in zip(context.test_view_embeddings_for_retrieval, expected, strict=True):
        torch.testing.assert_close(actual, target.detach())
