"""Runs with nested (matryoshka) features: settings, resuming, evaluation, and embedding and export of `dims`."""

import numpy as np
import pytest
import torch

import contraport
from contraport.data import from_arrays
from contraport.encoders import Model
from contraport.feature_files import read_features
from contraport.runs import Run
from contraport.training.config import Settings
from contraport.training.step.training_module import TrainingModule
from tests.errors import raises_usage_error


def build_split(items, name, views=1):
    random = np.random.default_rng(len(name))
    labels = random.integers(0, 3, items)
    shared = np.eye(3)[labels] + 0.1 * random.normal(size=(items, 3))
    arrays = tuple(np.hstack([shared, random.normal(size=(items, 4 + view))]) for view in range(views))
    return from_arrays(arrays, labels=labels, name="nested", split=name)


def train_run(out, **options):
    defaults = {
        "data": build_split(80, "train"),
        "epochs": 3,
        "batch_size": 20,
        "projection": 8,
        "matryoshka": "8,4,2:0.5",
    }
    return contraport.train(**defaults | options, out=out, progress=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_run(tmp_path_factory.mktemp("nested") / "run")


def test_nested_run_outputs_the_projection(run):
    assert run.settings().matryoshka_dims == (8, 4, 2)
    assert run.model().num_features == 8
    assert run.model().config["representation"] == "projection"


def test_resumed_run_equals_an_uninterrupted_one(tmp_path, monkeypatch):
    data = build_split(80, "train")
    options = {"data": data, "checkpoint_minutes": 0, "recipe": "moco", "queue_size": 30}
    full = train_run(tmp_path / "whole", **options)
    after_step = TrainingModule.after_step

    def stop(self, step):
        after_step(self, step)
        if step == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TrainingModule, "after_step", stop)
        with pytest.raises(KeyboardInterrupt):
            train_run(tmp_path / "part", **options)
    resumed = contraport.train(out=tmp_path / "part", resume=True, data=data, progress=False)
    assert resumed.settings().matryoshka == "8,4,2:0.5"
    for name, weight in full.model().state_dict().items():
        assert torch.equal(weight, resumed.model().state_dict()[name]), name


def test_evaluates_each_number_of_dimensions(run, capsys):
    data = build_split(80, "train"), build_split(40, "test")
    result = contraport.evaluate(run, data=data, metrics=["knn", "linear_probe", "recall@1"], progress=False)
    assert set(result["rows"]) == {"raw", "untrained", "trained", "dims 4", "dims 2"}
    assert "dims 2" in result["intervals"]
    chosen = contraport.evaluate(run, data=data, metrics=["knn", "recall@1"], dims=[3], alone=True, progress=False)
    assert set(chosen["rows"]) == {"trained", "dims 3"}
    assert "dims 3" in chosen._repr_html_()
    reloaded = Run(run.path)
    truncated_features = contraport.embedding.embed_items_as_vectors(reloaded.model().truncate(3), data[1])
    full = contraport.embedding.embed_items_as_vectors(reloaded.model(), data[1])
    assert torch.equal(truncated_features, full[:, :3])


def test_embeds_the_leading_dimensions_of_each_view(tmp_path):
    data = build_split(80, "train", views=2)
    run = train_run(tmp_path / "run", data=data)
    files = [contraport.embed(run, data=data, out=tmp_path / f"{dims}.npz", dims=dims, progress=False)
             for dims in (None, 3)]  # fmt: skip
    full, leading = (read_features(file) for file in files)
    assert full.dims is None
    assert leading.dims == "3"
    assert np.array_equal(leading.features, full.features[:, [0, 1, 2, 8, 9, 10]])
    view_file = contraport.embed(run, data=data, out=tmp_path / "v.parquet", view="view1", dims=3, progress=False)
    assert np.array_equal(read_features(view_file).features, full.features[:, 8:11])
    np.save(tmp_path / "query.npy", data[5].views[1][0].numpy())
    result = contraport.neighbors(view_file, query=tmp_path / "query.npy", run=run, top=1)
    assert result[0].position == 5


@pytest.mark.parametrize("format", ["safetensors", "torchscript"])
def test_exports_the_leading_dimensions(run, tmp_path, format):
    path = contraport.export(run, format=format, out=tmp_path / f"model{'.pt' * (format == 'torchscript')}", dims=3)
    items = torch.randn(5, 7)
    exported = torch.jit.load(path) if format == "torchscript" else Model.from_pretrained(path)
    torch.testing.assert_close(exported(items), run.model()(items)[:, :3])


def test_features_are_nested_without_a_projection(tmp_path):
    run = train_run(tmp_path / "run", projection=0, encoder="mlp", matryoshka=[256, 16])
    assert run.model().config["representation"] == "concatenate"
    assert run.model().truncate(16)(torch.zeros(3, 7)).shape == (3, 16)


def test_estimator_has_nested_features():
    encoder = contraport.ContrastiveEncoder(matryoshka=[8, 2], projection=8, epochs=1, random_state=0)
    views = {name: np.random.default_rng(0).normal(size=(30, 4)) for name in ("ear", "eye")}
    assert encoder.fit_transform(views).shape == (30, 16)
    assert len(encoder.get_feature_names_out()) == 16


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"matryoshka": "8,x"}, "matryoshka.*"),
        ({"matryoshka": "8,8"}, "matryoshka.*"),
        ({"matryoshka": "8:0"}, "matryoshka.*"),
        ({"matryoshka": "8:a"}, "matryoshka.*"),
        ({"matryoshka": "-8"}, "matryoshka.*"),
        ({"matryoshka": "9" * 5_000}, "matryoshka.*"),
        ({"matryoshka": 8}, "matryoshka.*"),
        ({"matryoshka": ""}, "matryoshka.*"),
        ({"matryoshka": "8", "predict": "l2", "objective": None, "projection": 0}, "matryoshka.predict"),
        ({"matryoshka": "8", "representation": "both"}, "representation.matryoshka"),
    ],
)
def test_rejects_invalid_settings(options, code):
    with raises_usage_error(code):
        Settings(**options)


def test_rejects_settings_that_do_not_fit_the_run(run, tmp_path):
    with raises_usage_error("matryoshka.range", 8, 16):
        train_run(tmp_path / "run", matryoshka="16,8")
    with raises_usage_error("matryoshka.module"):
        train_run(tmp_path / "run", objective=torch.nn.CosineEmbeddingLoss())
    with raises_usage_error("dims.*", 9):
        contraport.embed(run, data=build_split(9, "x"), out=tmp_path / "f.npy", dims=9, progress=False)
    with raises_usage_error("dims.both"):
        Model(shapes=[(3,)], projection=4, representation="both").truncate(2)
    with raises_usage_error("dims.*"):
        contraport.evaluate(run, data=build_split(9, "x"), dims=[2, 2], progress=False)
