"""Images with several captions from a table: training, embedding, export, zero-shot classification and search."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import contraport
from contraport._utils.text_bytes import texts_to_tensor
from contraport.cli import main
from contraport.data import load
from contraport.encoders import Model
from contraport.feature_files import read_features
from contraport.objectives import DuplicateGroups
from contraport.runs import Run
from contraport.training.components.assembly import build_components
from contraport.training.settings_and_run_folder import resolve_settings
from tests.errors import raises_usage_error
from tests.evaluation.builders import build_image_model, make_run

COLOURS = {"dark": 20, "grey": 120, "bright": 220}
SHAPES = ("bar", "pole")


def draw_shape(colour: str, shape: str, random: np.random.Generator) -> Image.Image:
    pixels = random.integers(0, 20, (12, 12), dtype=np.uint8)
    rows, columns = (slice(4, 8), slice(0, 12)) if shape == "bar" else (slice(0, 12), slice(4, 8))
    pixels[rows, columns] += np.uint8(COLOURS[colour])
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a table of images, two captions per image, and labels."""
    folder, random = tmp_path_factory.mktemp("captioned"), np.random.default_rng(0)
    lines = ["image,caption,label"]
    for number in range(90):
        colour, shape = list(COLOURS)[number % 3], SHAPES[number % 2]
        draw_shape(colour, shape, random).save(folder / f"{number:02}.png")
        lines += [f"{number:02}.png,{text},{shape}" for text in (f"a {colour} {shape}", f"a photo of a {shape}")]
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return contraport.train(
        data=folder / "captions.csv",
        recipe="clip",
        epochs=12,
        batch_size=48,
        lr=3e-3,
        image_size=12,
        num_workers=0,
        out=tmp_path_factory.mktemp("runs") / "run",
        progress=False,
    )


def test_each_view_has_its_encoder_and_the_temperature_is_learned(run: Run) -> None:
    model = run.model()
    assert model.view_names == ("image", "caption")
    assert [type(encoder).__name__ for encoder in model.encoders] == ["SmallCNN", "NgramEmbeddingTextEncoder"]
    temperatures = [row["temperature"] for row in run.metrics_rows()]
    assert temperatures[0] == pytest.approx(0.07, rel=0.1)
    assert temperatures[-1] != temperatures[0]


def test_captions_of_one_image_are_positives(folder: Path) -> None:
    """The loss has positives for all pairs of a batch with the same image or the same caption."""
    options = {"data": str(folder / "captions.csv"), "recipe": "clip", "image_size": 12, "batch_size": 8}
    components = build_components(resolve_settings(options))
    batch = components.dataset.__getitems__([0, 1, 2, 7, 12])
    model = components.module.eval().model  # no dropout
    numbers = components.dataset.view_content_ids_if_repeated[batch.ids]
    with torch.no_grad():
        z = model.project(model.encode(components.module.views(batch.views)))
        expected = contraport.info_nce(temperature=0.07)(*z, target=DuplicateGroups(numbers))
        assert float(components.module(batch, 0)) == pytest.approx(float(expected), rel=1e-5)
    default_names = build_components(resolve_settings({**options, "target": "pairs"}))
    assert float(default_names.module.eval()(batch, 0).detach()) != pytest.approx(float(expected), rel=1e-3)


def test_evaluates_both_directions(run: Run) -> None:
    result = contraport.evaluate(run, metrics=["retrieval"], progress=False)
    assert list(result["directions"]) == ["image to caption", "caption to image"]
    for actual in result["directions"].values():
        assert actual["recall@5"]["value"] > 0.8
        assert actual["median_rank"]["value"] < 3
    assert result["rows"]["untrained"]["recall@1"] < result["rows"]["trained"]["recall@1"] - 0.1


@pytest.mark.parametrize("name", ["images.npz", "images.parquet", "images.npy"])
def test_embeds_one_view_per_item(run: Run, tmp_path: Path, name: str) -> None:
    path = contraport.embed(run, view="image", out=tmp_path / name, progress=False)
    features = read_features(path)
    assert (len(features), features.view, features.run) == (90, "image", str(run.path))
    assert {Path(key).name for key in features.keys} == {f"{number:02}.png" for number in range(90)}


def test_captions_are_named_by_their_text(run: Run, tmp_path: Path) -> None:
    features = read_features(contraport.embed(run, view="text", out=tmp_path / "captions.npz", progress=False))
    assert features.view == "caption"
    model, texts = run.model(), features.keys.tolist()
    assert len(texts) == len(set(zip(texts, features.splits.tolist(), strict=True)))
    with torch.no_grad():
        (expected,) = model.project(model.encode((torch.zeros(1, 3, 12, 12), texts_to_tensor(texts[:1]))))[1:]
    np.testing.assert_allclose(features.features[:1], expected.numpy(), rtol=1e-4, atol=1e-5)


def test_images_without_captions_are_embedded(run: Run, folder: Path, tmp_path: Path) -> None:
    """A folder of images without captions can be embedded."""
    images_only = contraport.embed(run, data=folder, view="image", out=tmp_path / "alone.npz", progress=False)
    both = contraport.embed(run, view="image", out=tmp_path / "both.npz", progress=False)
    first, second = (
        {Path(k).name: row for k, row in zip(f.keys, f.features, strict=True)}
        for f in map(read_features, (images_only, both))
    )
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=1e-4, atol=1e-5)
    with raises_usage_error("data.shape"):
        contraport.embed(run, data=folder, out=tmp_path / "items.npz", progress=False)


def test_rejects_an_unknown_view(run: Run, tmp_path: Path) -> None:
    with raises_usage_error("view.unknown", "image"):
        contraport.embed(run, view="imaje", out=tmp_path / "x.npz")


@pytest.mark.parametrize("view", ["image", "caption"])
@pytest.mark.parametrize("form", ["torchscript", "safetensors"])
def test_each_encoder_is_exported_alone(run: Run, tmp_path: Path, view: str, form: str) -> None:
    path = contraport.export(run, view=view, format=form, out=tmp_path / "one")
    whole = run.model()
    views = load(run.settings().data, "test", image_size=12).__getitems__([0, 3, 4]).views
    number = whole.view_index(view)
    with torch.no_grad():
        expected = whole.project(whole.encode(views))[number]
        exported: Any = Model.from_pretrained(path) if form == "safetensors" else torch.jit.load(path)
        inputs = views[number] / 255 if view == "image" else views[number]
        torch.testing.assert_close(exported(inputs), expected, rtol=1e-4, atol=1e-5)


def test_zero_shot_classifies_by_class_names(run: Run) -> None:
    named = contraport.evaluate(run, metrics=["zero-shot"], classes=["bar", "pole"], progress=False)
    assert named["rows"]["trained"]["zero_shot"] > 0.9
    assert "zero_shot" not in named["rows"]["raw"]
    default_names = contraport.evaluate(run, metrics=["zero_shot"], progress=False)
    assert default_names["rows"]["trained"] == named["rows"]["trained"]
    other = contraport.evaluate(run, metrics=["zero_shot"], classes=["pole", "bar"], progress=False)
    assert other["rows"]["trained"]["zero_shot"] == pytest.approx(1 - default_names["rows"]["trained"]["zero_shot"])


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        ({"classes": ["bar"]}, "classes.*", [2, "bar, pole", 1]),
        ({"templates": ["a photo"]}, "templates.*", ["{}"]),
        ({"templates": []}, "templates.*", ["{}"]),
    ],
)
def test_rejects_invalid_class_names(run: Run, options: dict[str, Any], code: str, values: list[object]) -> None:
    with raises_usage_error(code, *values):
        contraport.evaluate(run, progress=False, **options)


def test_search_images_by_text(run: Run) -> None:
    result = contraport.search(run, "a bright pole", top=3, split="all")
    assert {near.class_name for near in result} == {"pole"}
    assert all(int(Path(near.name).stem) % 3 == 2 for near in result)  # the bright images
    assert [near.similarity for near in result] == sorted((near.similarity for near in result), reverse=True)


def test_search_captions_by_image(run: Run, folder: Path, tmp_path: Path) -> None:
    features = contraport.embed(run, view="caption", out=tmp_path / "captions.npz", progress=False)
    result = contraport.search(features, folder / "04.png", top=2)
    assert {near.name.split()[-1] for near in result} == {"bar"}
    contraport.search(features, "a dark bar", page=tmp_path / "found.html")
    assert "a dark bar" in (tmp_path / "found.html").read_text()


def test_neighbors_within_one_view(run: Run, folder: Path, tmp_path: Path) -> None:
    """`neighbors` embeds the query with the encoder of the view of the features."""
    features = contraport.embed(run, view="image", out=tmp_path / "images.npz", progress=False)
    copied = shutil.copy(folder / "04.png", tmp_path / "copied.png")
    near = contraport.neighbors(features, query=copied, top=1)[0]
    assert Path(near.name).name == "04.png"
    assert near.similarity == pytest.approx(1, abs=1e-4)


def test_search_command(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    main(["search", str(run.path), "a dark bar", "--top", "2"])
    assert capsys.readouterr().out.count(".png") == 2


def test_search_rejects_unsuitable_features_and_queries(run: Run, folder: Path, tmp_path: Path) -> None:
    items = contraport.embed(run, out=tmp_path / "items.npz", split="test", progress=False)
    images = contraport.embed(run, view="image", out=tmp_path / "images.npz", split="test", progress=False)
    np.save(tmp_path / "vector.npy", np.zeros(3, np.float32))
    for arguments, code, value in (
        ((items, "a bar"), "features.whole_items", "--view"),
        ((images, tmp_path / "vector.npy"), "query_view.ambiguous", "vector.npy"),
        ((images, tmp_path / "nowhere"), "query.not_found", "nowhere"),
        ((images, "nowhere.png"), "query.not_found", "query_view=..."),
    ):
        with raises_usage_error(code, value):
            contraport.search(*arguments)
    assert contraport.search(images, "nowhere.png", query_view="caption").query_name == "nowhere.png"
    with raises_usage_error("query_view.ambiguous", "query_view='image' or query_view='caption'"):
        contraport.search(images, tmp_path / "vector.npy")
    with raises_usage_error("query.unknown", "image or caption", "--view image", "contraport search"):
        contraport.neighbors(items, query="a bar")
    for arguments, code, value in (
        ((images, ""), "query.*", "text"),
        ((tmp_path / "none.npz", "a bar"), "features.*", "none.npz"),
        ((folder / "00.png", "a bar"), "features.*", "00.png"),
        ((tmp_path / "none", "a bar"), "features.*", "none"),
    ):
        with raises_usage_error(code, value):
            contraport.search(*arguments)
    with raises_usage_error("view.conflict"):
        contraport.search(images, "a bar", view="image")


def test_search_rejects_runs_with_incomparable_views(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_image_model())
    with raises_usage_error("run.one_view", run.path, "view0"):
        contraport.search(run, "a bar")
    model = Model("mlp", [(6,), (4,)], projection=0, view_names=["photo", "sound"])
    without_objective = make_run(tmp_path / "bare", model, objective=None, projection=0, predict="l2")
    with raises_usage_error("run.not_comparable", without_objective.path, "predict='l2'"):
        contraport.search(without_objective, "a bar")
    with raises_usage_error("classes.views", "view0"):
        contraport.evaluate(run, classes=list("0123456789"), progress=False)
    with raises_usage_error("metrics.none_computed", "text", "Zero-shot"):
        contraport.evaluate(run, metrics=["zero_shot"], progress=False)


def test_search_rejects_a_text_for_a_run_of_vectors(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Model(shapes=[(3,), (4,)], projection=8))
    with raises_usage_error("query.kind", "'a bar'", "view0 (vector)"):
        contraport.search(run, "a bar")


def test_warns_of_images_without_captions(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [f"{number:02}.png,{'' if number < 7 else f'thing {number}'}" for number in range(40)]
    (folder / "lacking.csv").write_text("\n".join(["image,caption", *lines]) + "\n")
    options = {"recipe": "siglip", "epochs": 1, "batch_size": 16, "image_size": 12, "progress": False, "num_workers": 0}
    with caplog.at_level("WARNING", "contraport"):
        contraport.train(data=folder / "lacking.csv", out=tmp_path / "run", **options)
    (message,) = (record.getMessage() for record in caplog.records if "lack" in record.getMessage())
    assert re.match(r"\d of 32 items lack a view \(\d caption\)", message)
    (folder / "empty.csv").write_text("image,caption\n" + "".join(f"{number:02}.png,\n" for number in range(40)))
    with raises_usage_error("*", "caption"):
        contraport.train(data=folder / "empty.csv", out=tmp_path / "none", **options)


def test_rejects_data_without_captions(folder: Path, tmp_path: Path) -> None:
    with raises_usage_error("shared_encoder.one_view"):
        contraport.train(data=folder, recipe="clip", image_size=12, out=tmp_path / "run")
