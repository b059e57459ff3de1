"""Images and captions from a table: two encoders, several captions an image; embedded, exported, measured by view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import contraport
from contraport.data import load
from contraport.encoders import Model
from contraport.errors import UsageError
from contraport.features import read_features
from contraport.objectives import Shown
from contraport.runs import Run
from contraport.texts import encoded
from contraport.training.build import build
from contraport.training.given import settings_of

COLOURS = {"dark": 20, "grey": 120, "bright": 220}
SHAPES = ("bar", "pole")


def draw(colour: str, shape: str, random: np.random.Generator) -> Image.Image:
    pixels = random.integers(0, 20, (12, 12), dtype=np.uint8)
    rows, columns = (slice(4, 8), slice(0, 12)) if shape == "bar" else (slice(0, 12), slice(4, 8))
    pixels[rows, columns] += np.uint8(COLOURS[colour])
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of images, two captions each, and a label."""
    folder, random = tmp_path_factory.mktemp("captioned"), np.random.default_rng(0)
    lines = ["image,caption,label"]
    for number in range(90):
        colour, shape = list(COLOURS)[number % 3], SHAPES[number % 2]
        draw(colour, shape, random).save(folder / f"{number:02}.png")
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
        workers=0,
        out=tmp_path_factory.mktemp("runs") / "run",
        progress=False,
    )


def test_each_view_has_its_encoder_and_the_temperature_learns(run: Run) -> None:
    model = run.model()
    assert model.view_names == ("image", "caption")
    assert [type(encoder).__name__ for encoder in model.encoders] == ["SmallCNN", "SmallText"]
    temperatures = [row["temperature"] for row in run.metrics()]
    assert temperatures[0] == pytest.approx(0.07, rel=0.1)
    assert temperatures[-1] != temperatures[0]


def test_what_shows_the_same_is_wanted(folder: Path) -> None:
    """The loss is that of the images and captions of a batch that are of one image or of one caption."""
    given = {"data": str(folder / "captions.csv"), "recipe": "clip", "image_size": 12, "batch_size": 8}
    built = build(settings_of(given))
    batch = built.dataset.__getitems__([0, 1, 2, 7, 12])
    model = built.pipeline.eval().model  # nothing is left out at random
    numbers = built.dataset.shown[batch.ids]
    with torch.no_grad():
        z = model.project(model.encode(built.pipeline.views(batch.views)))
        expected = contraport.info_nce(temperature=0.07)(*z, target=Shown(numbers))
        assert float(built.pipeline(batch, 0)) == pytest.approx(float(expected), rel=1e-5)
    own = build(settings_of({**given, "target": "pairs"}))
    assert float(own.pipeline.eval()(batch, 0).detach()) != pytest.approx(float(expected), rel=1e-3)


def test_both_directions_are_measured(run: Run) -> None:
    result = contraport.evaluate(run, measures=["retrieval"], progress=False)
    assert list(result["directions"]) == ["image to caption", "caption to image"]
    for found in result["directions"].values():
        assert found["recall@5"]["value"] > 0.8
        assert found["median_rank"]["value"] < 3
    assert result["rows"]["untrained"]["recall@5"] < 0.8


@pytest.mark.parametrize("name", ["images.npz", "images.parquet", "images.npy"])
def test_one_view_is_embedded_once_an_item(run: Run, tmp_path: Path, name: str) -> None:
    path = contraport.embed(run, view="image", out=tmp_path / name, progress=False)
    features = read_features(path)
    assert (len(features), features.view, features.run) == (90, "image", str(run.path))
    assert {Path(key).name for key in features.keys} == {f"{number:02}.png" for number in range(90)}


def test_captions_are_called_by_their_texts(run: Run, tmp_path: Path) -> None:
    features = read_features(contraport.embed(run, view="text", out=tmp_path / "captions.npz", progress=False))
    assert features.view == "caption"
    model, texts = run.model(), features.keys.tolist()
    assert len(texts) == len(set(zip(texts, features.splits.tolist(), strict=True)))
    with torch.no_grad():
        (expected,) = model.project(model.encode((torch.zeros(1, 3, 12, 12), encoded(texts[:1]))))[1:]
    np.testing.assert_allclose(features.features[:1], expected.numpy(), rtol=1e-4, atol=1e-5)


def test_images_alone_are_embedded_too(run: Run, folder: Path, tmp_path: Path) -> None:
    """A folder of images has no captions, and needs none."""
    alone = contraport.embed(run, data=folder, view="image", out=tmp_path / "alone.npz", progress=False)
    both = contraport.embed(run, view="image", out=tmp_path / "both.npz", progress=False)
    first, second = (
        {Path(k).name: row for k, row in zip(f.keys, f.features, strict=True)}
        for f in map(read_features, (alone, both))
    )
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match=r"^data: the model takes items of shape"):
        contraport.embed(run, data=folder, out=tmp_path / "items.npz", progress=False)


def test_an_unknown_view_is_told(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^view: unknown name 'imaje'; did you mean 'image'"):
        contraport.embed(run, view="imaje", out=tmp_path / "x.npz")


@pytest.mark.parametrize("view", ["image", "caption"])
@pytest.mark.parametrize("form", ["torchscript", "safetensors"])
def test_each_encoder_is_exported_alone(run: Run, tmp_path: Path, view: str, form: str) -> None:
    path = contraport.export(run, view=view, format=form, out=tmp_path / "one")
    whole = run.model()
    views = load(run.settings().data, "test", image_size=12).__getitems__([0, 3, 4]).views
    number = whole.view(view)
    with torch.no_grad():
        expected = whole.project(whole.encode(views))[number]
        again: Any = Model.from_pretrained(path) if form == "safetensors" else torch.jit.load(path)
        given = views[number] / 255 if view == "image" else views[number]
        torch.testing.assert_close(again(given), expected, rtol=1e-4, atol=1e-5)


def test_images_without_captions_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"^shared_encoder: false needs items of several views, such as an image and a"
    ):
        contraport.train(data=folder, recipe="clip", image_size=12, out=tmp_path / "run")
