"""ContrastiveEncoder: scikit-learn's estimator checks, pipelines and searches, kinds of input, and errors."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.errors import raises_usage_error
from torch import nn

from contraport.catalog import RECIPES
from contraport.estimators import TSNE, ContrastiveEncoder, InverseOT

rng = np.random.default_rng(0)
VECTORS = rng.normal(size=(40, 6))
SERIES = rng.normal(size=(40, 3, 20))
IMAGES = rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
GREY = rng.integers(0, 256, (40, 8, 8), dtype=np.uint8)
VIEWS = (VECTORS, rng.normal(size=(40, 3)), SERIES)


def build_encoder(**settings):
    return ContrastiveEncoder(**{"epochs": 1, "random_state": 0} | settings)


REPEATED_ITEM_REASON = "a repeated item is compared with its copy; a weight scales only the item's own term of the loss"
EQUIVALENCE = "check_sample_weight_equivalence_on_dense_data"


@parametrize_with_checks(
    [ContrastiveEncoder(epochs=5)], expected_failed_checks=lambda _: {EQUIVALENCE: REPEATED_ITEM_REASON}
)
def test_passes_scikit_learn_estimator_checks(estimator, check):
    check(estimator)


def test_sample_weights_scale_the_loss_of_items():
    weights = np.r_[np.ones(20), np.zeros(20)]
    unweighted, equally_weighted = (
        build_encoder().fit(VECTORS),
        build_encoder().fit(VECTORS, sample_weight=np.full(40, 3.0)),
    )
    assert equally_weighted.loss_curve_ == pytest.approx(unweighted.loss_curve_, rel=1e-5)
    weighted = build_encoder().fit(VECTORS, sample_weight=weights)
    assert weighted.loss_curve_ != unweighted.loss_curve_
    continued = build_encoder().partial_fit(VECTORS, sample_weight=weights.tolist())
    assert continued.loss_curve_[0] == pytest.approx(weighted.loss_curve_[0], rel=0.05)
    pipeline = make_pipeline(StandardScaler(), build_encoder())
    assert pipeline.fit(VECTORS, contrastiveencoder__sample_weight=weights).transform(VECTORS).shape == (40, 256)


@pytest.mark.parametrize(
    ("weights", "value"),
    [
        (np.ones(3), 3),
        (-np.ones(40), -1),
        (np.zeros(40), "zero"),
        (np.full(40, np.nan), "NaN"),
        (["much"] * 40, "<U4"),
    ],
)
def test_rejects_invalid_sample_weights(weights, value):
    with raises_usage_error("sample_weight.*", value):
        build_encoder().fit(VECTORS, sample_weight=weights)


@pytest.mark.parametrize(
    ("X", "features", "tower"),
    [(VECTORS, 256, "MLP"), (SERIES, 128, "SmallTCN"), (IMAGES, 256, "SmallCNN"), (GREY, 256, "SmallCNN")],
)
def test_accepts_arrays_of_every_kind(X, features, tower):
    fitted = build_encoder().fit(X)
    assert fitted.transform(X[:7]).shape == (7, features)
    assert fitted.transform(X[:7]).dtype == np.float32
    assert type(fitted.training_module_.model.tower(0).encoder).__name__ == tower


def test_each_view_has_its_own_encoder():
    fitted = build_encoder().fit(VIEWS)
    assert fitted.transform(VIEWS).shape == (40, 256 + 256 + 128)
    assert build_encoder(representation="2").fit(VIEWS).transform(VIEWS).shape == (40, 128)
    assert np.isfinite(fitted.score(VIEWS))


@pytest.mark.parametrize(
    "convert", [pd.DataFrame, pl.DataFrame, lambda X: pa.table(pd.DataFrame(X)), np.ndarray.tolist]
)
def test_tuple_of_frames_or_nested_lists_is_several_views(convert):
    features = build_encoder().fit(VIEWS[:2]).transform(VIEWS[:2])
    converted = tuple(convert(view) for view in VIEWS[:2])
    np.testing.assert_array_equal(build_encoder().fit(converted).transform(converted), features)
    with_texts = (converted[0], TEXTS + TEXTS[:4])
    assert build_encoder().fit(with_texts).transform(with_texts).shape == (40, 512)


def test_transforms_a_single_view_by_name():
    fitted = build_encoder().fit({"text": VIEWS[0], "sound": VIEWS[2]})
    both = fitted.transform({"sound": VIEWS[2], "text": VIEWS[0]})
    np.testing.assert_array_equal(both, fitted.transform((VIEWS[0], VIEWS[2])))
    np.testing.assert_array_equal(fitted.transform({"sound": VIEWS[2][:9]}), both[:9, 256:])
    np.testing.assert_array_equal(build_encoder().fit(VIEWS[:2]).transform({"1": VIEWS[1]}).shape, (40, 256))
    with raises_usage_error("X.views", "'text', 'sound'", "'smell'"):
        fitted.transform({"smell": VECTORS})
    with raises_usage_error("X.views", "one array", "'text'"):
        build_encoder().fit(VECTORS).transform({"text": VECTORS})
    with raises_usage_error("X.shape", "as in fit"):
        fitted.score({"text": VIEWS[0]})


def test_device_auto_computes():
    assert build_encoder(device="auto").fit(VECTORS).transform(VECTORS).shape == (40, 256)
    assert np.isfinite(build_encoder(device="auto").fit(VECTORS).score(VECTORS))


def test_list_is_one_view():
    np.testing.assert_array_equal(
        build_encoder().fit(SERIES).transform(list(SERIES)), build_encoder().fit(list(SERIES)).transform(SERIES)
    )


def test_error_names_non_numeric_columns():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(VECTORS, columns=list("abcdef")).assign(name="Eva")
    with raises_usage_error("X.text_columns", "'name' ('Eva')"):
        build_encoder().fit(frame)


def test_list_of_rows_is_one_array():
    np.testing.assert_array_equal(
        build_encoder().fit(VECTORS.tolist()).transform(VECTORS.tolist()),
        build_encoder().fit(VECTORS).transform(VECTORS),
    )


RECIPES_NOT_FOR_VECTORS = ("distillation", "late-interaction")  # they need a teacher, or items that are sets of vectors


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name not in RECIPES_NOT_FOR_VECTORS])
def test_trains_all_recipes(recipe):
    needs_two_views = RECIPES[recipe].settings.get("shared_encoder") is False  # one encoder per view requires two views
    items = (VECTORS, VECTORS[:, :4]) if needs_two_views else VECTORS
    fitted = build_encoder(recipe=recipe, batch_size=20).fit(items, np.arange(40) % 3)
    assert fitted.n_iter_ == 2
    assert np.isfinite(fitted.transform(items)).all()
    assert np.isfinite(fitted.loss_curve_).all()


def test_parameters_override_the_recipe():
    fitted = build_encoder(recipe="moco", objective="gca-uot").fit(VECTORS)
    assert fitted.training_module_.momentum_encoder is not None
    assert type(fitted.training_module_.objective.constraint).__name__ == "Unbalanced"
    assert fitted.get_params()["objective"] == "gca-uot"


def test_accepts_views_and_augmentations():
    assert build_encoder(views="color").fit(IMAGES).transform(IMAGES).shape == (40, 512)
    assert build_encoder(views="2+2").fit(IMAGES).transform(IMAGES).shape == (40, 256)
    assert build_encoder(views=3, augment="mixup").fit(VECTORS).training_module_.views.shapes == ((6,),) * 3


def test_labels_reach_objectives_that_require_them():
    labels = np.array(["a", "b"])[np.arange(40) % 2]
    one, other = (
        build_encoder(objective="sup-con").fit(VECTORS, y).transform(VECTORS) for y in (labels, np.sort(labels))
    )
    assert not np.array_equal(one, other)
    fits = (
        build_encoder().fit(VECTORS, labels),
        build_encoder().fit(VECTORS, rng.normal(size=40)),
        build_encoder().fit(VECTORS),
    )
    first, *others = (fitted.transform(VECTORS) for fitted in fits)
    for features in others:
        np.testing.assert_array_equal(features, first)
    with raises_usage_error("labels.missing"):
        build_encoder(objective="sup-con").fit(VECTORS)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_errors_name_y_instead_of_labels():
    with raises_usage_error("y.not_categorical", (40, 1)):
        build_encoder(objective="sup-con").fit(VECTORS, np.arange(40)[:, None] % 3)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        build_encoder(objective="sup-con").fit(VECTORS, np.full(40, np.nan))


def test_rejects_y_of_a_wrong_length_or_kind():
    for X in (VECTORS, VIEWS):
        with raises_usage_error("y.shape", 40, (7,)):
            build_encoder().fit(X, np.arange(7) % 2)
    for fit in ("fit", "partial_fit"):
        with raises_usage_error("labels.missing", "y to fit"):
            getattr(build_encoder(objective="sup-con"), fit)(VECTORS)
        for y, kind in (
            (np.linspace(0, 1, 40), "continuous"),
            (np.eye(40, 3, dtype=int) + np.eye(40, 3, 1, dtype=int), "multilabel"),
        ):
            with raises_usage_error("y.not_categorical", kind, y.shape):
                getattr(build_encoder(objective="sup-con"), fit)(VECTORS, y)
    with raises_usage_error("y.not_categorical", "None in row 1"):
        build_encoder(objective="sup-con").fit(VECTORS, np.array(["a", None] * 20, dtype=object))


def test_features_improve_with_training():
    X, y = load_digits(return_X_y=True)
    train_X, test_X, train_y, test_y = train_test_split(X, y, stratify=y, random_state=0)
    encoder = ContrastiveEncoder(epochs=8, random_state=0)
    probe = make_pipeline(encoder, StandardScaler(), LogisticRegression(max_iter=300))
    assert probe.fit(train_X, train_y).score(test_X, test_y) > 0.95
    untrained = ContrastiveEncoder(epochs=1, lr=1e-12, random_state=0).fit(train_X)
    assert encoder.score(test_X) > untrained.score(test_X) + 0.5
    assert encoder.loss_curve_[-1] < encoder.loss_curve_[0]


def test_works_in_a_grid_search_over_a_pipeline():
    pipeline = make_pipeline(StandardScaler(), build_encoder())
    search = GridSearchCV(
        pipeline, {"contrastiveencoder__temperature": [0.2, 1.0], "contrastiveencoder__encoder": ["mlp"]}, cv=2
    )
    search.fit(VECTORS)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.transform(VECTORS).shape == (40, 256)


def test_score_is_repeatable_and_bounded():
    fitted = build_encoder().fit(VECTORS)
    state = torch.get_rng_state()
    assert fitted.score(VECTORS) == fitted.score(VECTORS) <= np.log(40)
    assert torch.equal(torch.get_rng_state(), state)
    with raises_usage_error("predict.no_score"):
        build_encoder(recipe="predictive").fit(VECTORS).score(VECTORS)


def test_random_state_determines_the_fit():
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    one = build_encoder(random_state=3).fit_transform(VECTORS)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    torch.manual_seed(2)
    np.testing.assert_array_equal(build_encoder(random_state=3).fit_transform(VECTORS), one)
    assert not np.array_equal(build_encoder(random_state=4).fit_transform(VECTORS), one)


def test_parallel_fits_in_threads_equal_sequential_fits():
    def fit_and_transform(seed):  # draws weights, views and the order of items
        return ContrastiveEncoder(epochs=6, batch_size=32, random_state=seed).fit_transform(X)

    X = np.random.default_rng(0).normal(size=(90, 6))
    sequential = [fit_and_transform(seed) for seed in range(3)]
    with ThreadPoolExecutor(3) as pool:
        parallel = list(pool.map(fit_and_transform, [0, 1, 2] * 2))
    for seed, features in zip([0, 1, 2] * 2, parallel, strict=True):
        assert np.array_equal(features, sequential[seed])


def test_partial_fit_continues_a_fit_and_a_pickle():
    fitted = build_encoder(recipe="moco", batch_size=20).fit(VECTORS)
    copied = pickle.loads(pickle.dumps(fitted))
    before = fitted.transform(VECTORS)
    for estimator in (fitted, copied):
        assert estimator.partial_fit(VECTORS).n_iter_ == 4
        assert len(estimator.loss_curve_) == 2
        assert int(estimator.training_module_.comparison.memory.written) == 2 * 40
    after = fitted.transform(VECTORS)
    assert not np.array_equal(after, before)
    np.testing.assert_array_equal(copied.transform(VECTORS), after)
    assert fitted.fit(VECTORS).n_iter_ == 2
    np.testing.assert_array_equal(fitted.transform(VECTORS), before)


def test_partial_fit_from_the_start():
    encoder = build_encoder()
    for batch in np.split(VECTORS, 4):
        encoder.partial_fit(batch)
    assert encoder.n_iter_ == 4


@pytest.mark.parametrize(
    ("fit", "code"),
    [
        (lambda: build_encoder(recipe="cmc-nce").partial_fit, "negatives.partial_fit"),
        (lambda: build_encoder(lr=-1.0).fit, "lr.invalid"),
        (lambda: TSNE(encoder="mlp", perplexity=3, max_iter=0).fit, "max_iter.invalid"),
    ],
)
def test_rejected_fit_leaves_the_estimator_unfitted(fit, code):
    method = fit()
    with raises_usage_error(code):
        method(VECTORS)
    with pytest.raises(NotFittedError):
        method.__self__.transform(VECTORS)


def test_pickle_contains_no_items():
    random = np.random.default_rng(0)
    few, many = (len(pickle.dumps(build_encoder().fit(random.normal(size=(40 * times, 6))))) for times in (1, 100))
    assert many - few < 10_000


def test_number_of_batches_is_rounded_down():
    fitted = build_encoder(batch_size=16).fit(VECTORS)
    assert fitted.n_iter_ == 2
    assert build_encoder(batch_size=21).fit(VECTORS).n_iter_ == 1


def test_feature_names_of_views_and_frames():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(VECTORS, columns=list("abcdef"), index=np.arange(40) * 2)
    out = build_encoder().set_output(transform="pandas").fit_transform(frame)
    assert list(out.columns[:2]) == ["contrastiveencoder0", "contrastiveencoder1"]
    assert (out.index == frame.index).all()
    assert build_encoder().set_output(transform="pandas").fit_transform(VIEWS).shape == (40, 640)


def test_frame_of_a_single_view_has_its_feature_names():
    pd = pytest.importorskip("pandas")
    text, sound = (
        pd.DataFrame(rng.normal(size=(40, width)), columns=list("abcdef")[:width], index=np.arange(40) * 2)
        for width in (6, 3)
    )
    fitted = build_encoder(representation="0").set_output(transform="pandas").fit({"text": text, "sound": sound})
    both = fitted.transform({"text": text, "sound": sound})
    assert list(both.columns) == [f"contrastiveencoder_text_{number}" for number in range(256)]
    assert list(fitted.get_feature_names_out()) == list(both.columns)
    sound_features = fitted.transform({"sound": sound})
    assert list(sound_features.columns) == [f"contrastiveencoder_sound_{number}" for number in range(256)]
    pd.testing.assert_frame_equal(fitted.transform({"text": text}), both)
    assert list(both.index) == list(sound_features.index) == list(text.index)
    both = build_encoder().set_output(transform="pandas").fit_transform((VECTORS, text))
    assert list(both.index) == list(text.index)
    np.testing.assert_array_equal(sound_features, fitted.set_output(transform="default").transform({"sound": sound}))
    with config_context(transform_output="pandas"):
        sound_features = build_encoder().fit((text, sound)).transform({"1": sound})
    assert list(sound_features.columns) == [f"contrastiveencoder_1_{number}" for number in range(256)]
    transformed = clone(build_encoder().set_output(transform="pandas")).fit_transform((text, sound))
    assert list(transformed.columns[[0, 256]]) == ["contrastiveencoder_0_0", "contrastiveencoder_1_0"]


def test_columns_of_views_are_checked_by_name():
    a, b = pd.DataFrame(VIEWS[0], columns=list("abcdef")), pd.DataFrame(VIEWS[1], columns=list("xyz"))
    for views in ({"a": a, "b": b}, (a, b)):
        fitted = build_encoder().fit(views)
        features = fitted.transform(views)
        with raises_usage_error("X.column_names", "same order"):
            fitted.transform({"a": a, "b": b[["z", "y", "x"]]} if isinstance(views, dict) else (a, b[["z", "y", "x"]]))
        with raises_usage_error("X.column_names", "- w"):
            fitted.partial_fit((a, b.rename(columns={"x": "w"})))
        del fitted._column_name_holders  # as in an older pickle
        np.testing.assert_array_equal(fitted.transform(views), features)
    with raises_usage_error("X.column_names", "same order"):
        build_encoder().fit({"a": a, "b": b}).transform({"b": b[["z", "y", "x"]]})


def test_get_feature_names_out():
    names = build_encoder().fit(VECTORS).get_feature_names_out()
    assert list(names[[0, 255]]) == ["contrastiveencoder0", "contrastiveencoder255"]


def test_objective_module_is_copied():
    class ScaledDistance(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, z0, z1):
            return (self.scale * z0 - z1).square().mean()

    objective = ScaledDistance()
    fitted = build_encoder(objective=objective).fit(VECTORS)
    assert objective.scale.item() == 1.0 != fitted.training_module_.objective.scale.item()
    clone(fitted)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (scipy.sparse.csr_matrix(VECTORS), "Sparse data was passed"),
        (VECTORS[:1], "minimum of 2 is required"),
        (VECTORS[:, 0], "Expected 2D array"),
    ],
)
def test_scikit_learn_rejects_data_of_a_wrong_form(X, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build_encoder().fit(X)


@pytest.mark.parametrize(
    ("settings", "X", "code", "values"),
    [
        (
            {},
            np.where(np.arange(240).reshape(40, 6) == 7, np.nan, VECTORS),
            "X.not_finite",
            ["1 of 40", "row 1"],
        ),
        ({}, [np.ones((3, 20)), np.ones((3, 30))], "X.shape", ["(3, 20), (3, 30)"]),
        ({}, np.ma.masked_greater(VECTORS, 1.5), "X.masked", ["15 of 240"]),
        (
            {},
            pd.DataFrame(VECTORS, columns=list("abcdef")).assign(kind=pd.Categorical(["old", "new"] * 20)),
            "X.text_columns",
            ["'kind' ('old')"],
        ),
        ({}, (VECTORS, VECTORS[:9]), "X.rows", [[40, 9]]),
        ({}, ([[1.0, 2.0], [3.0]], VECTORS), "X.invalid", ["X[0]", "list"]),
        ({}, {}, "X.empty", ["none"]),
        ({"objective": "nt-xnet"}, VECTORS, "objective.unknown", ["'nt-xnet'", "'nt-xent'"]),
        ({"recipe": "mocco"}, VECTORS, "recipe.unknown", ["'mocco'", "'moco'"]),
        ({"objective": "byol"}, VECTORS, "objective.collapses", ["predictor=True"]),
        ({"encoder": "small-cnn"}, VECTORS, "encoder.shape", ["'small-cnn'", (6,)]),
        ({"epochs": 0}, VECTORS, "epochs.invalid", [0]),
        ({"epochs": None}, VECTORS, "epochs.invalid", [None]),
        ({"batch_size": None}, VECTORS, "batch_size.invalid", [None]),
        ({"device": None}, VECTORS, "device.unknown", [None]),
        ({"random_state": -1}, VECTORS, "random_state.invalid", []),
        ({"random_state": "a"}, VECTORS, "random_state.invalid", ["'a'"]),
        ({"batch_size": 1}, VECTORS, "batch_size.invalid", ["got 1"]),
        ({"lr": -1.0}, VECTORS, "lr.invalid", [-1.0]),
        ({"lr": 1e30, "epochs": 5}, VECTORS, "lr.nonfinite_loss", ["nan"]),
        ({"temperature": 0.0}, VECTORS, "temperature.invalid", [0.0]),
        ({"device": "gpu"}, VECTORS, "device.unknown", ["'gpu'", "auto"]),
        ({"views": 1}, VECTORS, "views.too_few", [2, 1]),
        ({"views": "color"}, VECTORS, "views.not_rgb", ["'color'", "3 channels"]),
    ],
)
def test_rejects_invalid_parameters_and_data(settings, X, code, values):
    with raises_usage_error(code, *values):
        build_encoder(**settings).fit(X)


def test_accepts_tensors_with_gradients():
    tensor = torch.from_numpy(VECTORS).bfloat16().requires_grad_()
    fitted = build_encoder().fit(tensor)
    assert np.array_equal(fitted.transform(tensor), fitted.transform(tensor.detach().float().numpy()))


def test_rejects_items_of_another_shape_than_fitted():
    fitted = build_encoder().fit(SERIES)
    with raises_usage_error("X.shape", (3, 20), (3, 19)):
        fitted.transform(SERIES[:, :, :19])
    with raises_usage_error("X.shape", "(3, 20), (6,)"):
        fitted.partial_fit((SERIES, VECTORS))
    with pytest.raises(NotFittedError):
        build_encoder().score(VECTORS)


def test_fit_on_views_removes_feature_attributes_of_one_array():
    X = np.random.default_rng(0).normal(size=(30, 5))
    encoder = ContrastiveEncoder(epochs=1, random_state=0).fit(X)
    assert encoder.n_features_in_ == 5
    encoder.fit((X, X[:, :3]))
    assert not hasattr(encoder, "n_features_in_")
    assert encoder.transform((X, X[:, :3])).shape == (30, 512)


def test_audit_flags_mismatched_pairs() -> None:
    random = np.random.default_rng(0)
    hidden = random.normal(size=(300, 4))
    first, second = hidden @ random.normal(size=(4, 6)), hidden @ random.normal(size=(4, 9))
    second[:60] = np.roll(second[:60], 5, axis=0)
    encoder = ContrastiveEncoder(audit=True, epochs=6, batch_size=50, random_state=0).fit((first, second))
    assert encoder.audit_.noise_rate == pytest.approx(0.2, abs=0.1)
    assert (encoder.audit_.flagged(count=30) < 60).mean() > 0.8
    assert encoder.n_iter_ == 36
    with raises_usage_error("audit.partial_fit"):
        encoder.partial_fit((first, second))
    with raises_usage_error("audit.views", 1):
        encoder.fit(first)


TEXTS = [f"{color} {thing} {number}" for color in ("red", "blue") for thing in ("bag", "shoe") for number in range(9)]


@pytest.mark.parametrize("X", [TEXTS, np.array(TEXTS), pd.Series(TEXTS)], ids=["list", "array", "series"])
def test_list_of_texts_is_one_view(X):
    encoder = ContrastiveEncoder(epochs=1, batch_size=12, random_state=0).fit(X)
    features = encoder.transform(X)
    assert features.shape == (36, 256)
    assert np.array_equal(encoder.transform(X[3:5] if isinstance(X, list) else list(X[3:5])), features[3:5])
    assert encoder.score(X) > 0


def test_texts_and_arrays_as_views():
    encoder = ContrastiveEncoder(epochs=1, batch_size=12, random_state=0)
    views = {"caption": TEXTS, "vector": np.random.default_rng(0).normal(size=(36, 4))}
    assert encoder.fit(views).transform({"caption": TEXTS[:2]}).shape == (2, 256)
    pair = ContrastiveEncoder(epochs=1, batch_size=12, random_state=0).fit((TEXTS, TEXTS[::-1]))
    assert pair.transform((TEXTS[:2], TEXTS[:2])).shape == (2, 512)


@pytest.mark.parametrize(
    ("X", "code", "values"),
    [
        (["a", ""], "X.empty_text", ["1 of 2", "row 1"]),
        (["a", 3.0], "X.mixed", ["3.0", "row 1"]),
        (["a"], "X.invalid", [2, 1]),
    ],
    ids=["empty", "mixed", "one"],
)
def test_rejects_empty_mixed_and_single_texts(X, code, values):
    with raises_usage_error(code, *values):
        ContrastiveEncoder().fit(X)


@pytest.mark.parametrize(
    ("X", "view"), [(np.ones((40, 6)), "view0"), ({"a": VECTORS, "b": np.ones((40, 2))}, "b"), (["same"] * 40, "view0")]
)
def test_warns_of_a_constant_view(X, view):
    with pytest.warns(UserWarning, match=f"X: view '{view}' is the same"):
        build_encoder().fit(X)


def test_encoder_of_texts_rejects_numbers():
    encoder = ContrastiveEncoder(epochs=1, random_state=0).fit(TEXTS)
    with raises_usage_error("X.shape", "as in fit"):
        encoder.transform(np.ones((2, 3)))


@pytest.mark.parametrize(
    ("estimator", "keyword", "suggestion"),
    [(ContrastiveEncoder, "epoch", "epochs"), (TSNE, "perplexty", "perplexity"), (InverseOT, "max_itr", "max_iter")],
)
def test_unknown_keyword_suggests_a_similar_one(estimator, keyword, suggestion):
    with pytest.raises(TypeError, match=rf"{estimator.__name__}\(\) .*{keyword}.*; did you mean '{suggestion}'"):
        estimator(**{keyword: 3})
    assert keyword not in estimator().get_params()
    assert clone(estimator(**{suggestion: 3})).get_params()[suggestion] == 3
