"""Commands on texts: training, evaluation, embedding, search, clusters, duplicates and audits."""

import numpy as np
import pytest
import torch

from contraport import audit, cluster, duplicates, embed, evaluate, neighbors, search, train
from contraport._utils.text_bytes import texts_to_tensor
from contraport.data import from_arrays
from contraport.encoders import Model
from contraport.feature_files import read_features
from contraport.runs import Run, as_run_folder
from contraport.similarity_search.output_files import NO_PICTURES_NOTE
from tests.errors import raises_usage_error

COLORS, THINGS, NAMES = ("red", "blue", "green"), ("bag", "shoe", "coat", "hat"), ("Anna", "Bob", "Eva", "日本", "Zoë")
TEXTS = [f"the {color} {thing} of {name}" for color in COLORS for thing in THINGS for name in NAMES]
ANSWERS = [f"{name} has a {thing}, and it is {color}" for color in COLORS for thing in THINGS for name in NAMES]
LABELS = [thing for _ in COLORS for thing in THINGS for _ in NAMES]


def build_split(part, name):
    positions = np.random.default_rng(0).permutation(len(TEXTS))[part]
    texts, labels = ([values[position] for position in positions] for values in (TEXTS, LABELS))
    return from_arrays(texts, labels=labels, name="texts", split=name)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(
        data=build_split(slice(12, None), "train"), epochs=8, batch_size=16, lr=3e-3, progress=False,
        lr_scheduler="constant", out=tmp_path_factory.mktemp("texts") / "run",
    )  # fmt: skip


def test_run_on_texts_is_trained_and_evaluated(run):
    losses = [row["loss"] for row in run.metrics_rows() if "loss" in row]
    assert np.mean(losses[-2:]) < np.mean(losses[:1]) - 0.3
    data = build_split(slice(12, None), "train"), build_split(slice(12), "test")
    rows = evaluate(run, data=data, metrics=["knn", "recall@1"], neighbors=5, progress=False)["rows"]
    assert set(rows) == {"raw", "untrained", "trained"}
    assert rows["trained"]["recall@1"] > 0.3


def test_texts_are_named_by_their_first_words(run, tmp_path):
    long = "word " * 40
    data = from_arrays([*TEXTS, long], name="texts")
    file = embed(run, data=data, out=tmp_path / "f.parquet", progress=False)
    result = read_features(file)
    assert result.keys[:60].tolist() == TEXTS
    assert result.keys[60] == "word word word word word word word word word word word word word word word ..."
    (first, *_) = neighbors(file, query="the Red bag of Anna", top=3, page=tmp_path / "near.html")
    assert first.name == TEXTS[0]
    assert first.similarity == pytest.approx(1, abs=1e-5)
    page = (tmp_path / "near.html").read_text()
    assert "the Red bag of Anna" in page
    assert NO_PICTURES_NOTE not in page
    assert neighbors(file, query=TEXTS[3], top=1)[0].name != TEXTS[3]
    assert len(cluster(file, k=3).labels) == 61
    twice = embed(run, data=from_arrays([*TEXTS, TEXTS[7]], name="twice"), out=tmp_path / "t.npz", progress=False)
    (group,) = duplicates(twice)
    assert group.positions == (7, 60)
    with raises_usage_error("query.*", "nowhere"):
        neighbors(result.features, query="nowhere")


def test_resumed_run_on_texts_equals_an_uninterrupted_one(tmp_path):
    settings = {
        "data": build_split(slice(12, None), "train"),
        "batch_size": 16,
        "lr_scheduler": "constant",
        "warmup_epochs": 0,
    }
    uninterrupted = train(**settings, epochs=2, out=tmp_path / "whole", progress=False)
    train(**settings, epochs=1, out=tmp_path / "parts", progress=False)
    resumed = train(**settings, epochs=2, out=tmp_path / "parts", resume=True, progress=False)
    states = zip(uninterrupted.model().state_dict().items(), resumed.model().state_dict().values(), strict=True)
    assert all(bool((one == other).all()) for (_, one), other in states)
    assert Model.from_pretrained(as_run_folder(resumed).model_path).shapes == ((),)


@pytest.mark.parametrize(
    "settings",
    [{"shared_encoder": True}, {"shared_encoder": True, "cache_chunk": 8}, {"recipe": "moco"}, {"augment": "strong"}],
    ids=["shared", "chunks", "queue", "changed"],
)
def test_trains_on_pairs_of_texts(settings, tmp_path):
    data = from_arrays({"text": TEXTS, "answer": [*ANSWERS[:-3], "", "", ""]}, name="pairs")
    if settings.get("recipe"):
        data = data.drop_incomplete()
    run = train(data=data, epochs=1, batch_size=16, out=tmp_path / "run", progress=False, **settings)
    assert run.model().shapes == ((), ())
    assert np.isfinite([row["loss"] for row in run.metrics_rows() if "loss" in row]).all()


@pytest.mark.parametrize(
    ("settings", "encoders"),
    [
        ({}, 1),
        ({"encoder": "small-text"}, 1),
        ({"shared_encoder": False}, 2),
        ({"recipe": "clip"}, 2),
        ({"encoder": {"answer": "small-text"}}, 2),
    ],
    ids=str,
)
def test_text_views_share_an_encoder_without_options_by_view(settings, encoders, tmp_path):
    data = from_arrays({"text": TEXTS, "answer": ANSWERS}, name="pairs")
    options = {"data": data, "epochs": 1, "batch_size": 16, "progress": False}
    run = train(**options, **settings, out=tmp_path / "run")
    assert len(run.model().towers) == encoders
    next_run = train(**options, init=run.path, out=tmp_path / "next")
    assert len(next_run.model().towers) == encoders


def test_pairs_of_texts_are_searched_without_a_projection(tmp_path, caplog):
    """With one encoder for both texts, as the log of the training suggests."""
    caplog.set_level("INFO", "contraport")
    data = from_arrays({"text": TEXTS, "answer": ANSWERS}, name="pairs")
    run = train(data=data, epochs=6, batch_size=16, lr=3e-3, projection=0, out=tmp_path / "run", progress=False)
    assert any(record.getMessage().endswith("2 views: text (text), answer (text)") for record in caplog.records)
    file = embed(run, data=data, view="answer", out=tmp_path / "answers.npz", progress=False)
    result = search(file, TEXTS[7], query_view="text", top=5)
    z = run.model().project(run.model().encode((texts_to_tensor([TEXTS[7]]), texts_to_tensor(ANSWERS))))
    cosines = torch.nn.functional.cosine_similarity(z[0], z[1]).detach()
    with raises_usage_error("query.unknown", "'nowhere.png'"):
        neighbors(file, query="nowhere.png")
    assert [near.name for near in result] == [
        ANSWERS[position] for position in cosines.argsort(descending=True)[:5].tolist()
    ]


def test_simcse_recipe_trains_without_augmentation(tmp_path, caplog):
    run = train(data=TEXTS, recipe="simcse", epochs=1, batch_size=16, out=tmp_path / "run", progress=False)
    assert run.settings().augment == "none"
    train(data=TEXTS, recipe="simcse", epochs=1, batch_size=16, out=tmp_path / "no", dry_run=True, progress=False)
    assert not (tmp_path / "no").exists()
    assert isinstance(run, Run)


def test_audit_finds_mismatched_texts(tmp_path):
    shuffled = [*ANSWERS[30:36], *ANSWERS[6:]]
    result = audit(data=from_arrays((TEXTS, shuffled), name="pairs"), epochs=3, progress=False)
    assert result.scores.shape == (60,)
    assert set(result.scores.argsort()[:5]) <= set(range(6))


def test_rejects_options_that_do_not_apply_to_texts(tmp_path):
    data = from_arrays((TEXTS, ANSWERS), name="pairs")
    with raises_usage_error("predict.texts"):
        train(data=data, recipe="predictive", out=tmp_path / "run", progress=False)
    with raises_usage_error("augment.*", "noise", "pairs"):
        train(data=data, augment="noise", out=tmp_path / "run", progress=False)
