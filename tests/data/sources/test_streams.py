"""Streams of unknown length: batches, training by steps, resuming, embedding, and invalid items."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.errors import raises_usage_error
from torch.utils.data import IterableDataset

from contraport import embed, train
from contraport._utils.text_bytes import tensor_to_texts as as_texts
from contraport.data import build_loader, from_stream, load
from contraport.errors import UsageError
from contraport.feature_files import read_features
from contraport.runs import as_run_folder


class Numbers(IterableDataset):
    """Stream of vectors that depend on their number only."""

    def __init__(self, items: int = 50, breaks_at: int | None = None, label: bool = True) -> None:
        self.items, self.breaks_at, self.label = items, breaks_at, label
        self.passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        for number in range(self.items):
            if number == self.breaks_at and self.passes > 1:  # the first pass reads the head only
                raise ConnectionError("the line went dead")
            vector = torch.from_numpy(np.random.default_rng(number).normal(size=6).astype(np.float32))
            yield (vector, number % 3) if self.label else vector


class Pictures:
    """Stream of dicts as in Hugging Face and webdataset, with encoded or decoded images."""

    def __init__(self, encoded: bool) -> None:
        self.encoded = encoded

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(9):
            image = Image.new("RGB", (8 + number % 2, 8), (number, 0, 0))
            buffer = io.BytesIO()
            image.save(buffer, "PNG")
            yield (
                {"__key__": f"sample{number}", "png": buffer.getvalue(), "cls": str(number).encode(), "url": "a text"}
                if self.encoded
                else {"image": image, "label": number}
            )


class Pixels(IterableDataset):
    """Stream of images of one size, without labels."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.rand(3, 16, 16, generator=torch.manual_seed(number)) for number in range(20))


def test_streams_drop_unused_labels() -> None:
    stream = from_stream(Numbers(items=7), labels=False)
    assert stream.labels is None
    assert all(batch.labels is None for batch in stream.batches(3))
    assert all(item.label is None for item in stream.items())


def test_stream_batches_continue_over_passes_and_start_anywhere() -> None:
    stream = from_stream(Numbers(items=7))
    assert (stream.shapes, len(stream), stream.labels.tolist()) == (((6,),), 7, [0, 1, 2, 0, 1, 2, 0])
    all_ids = [batch.ids.tolist() for batch in build_loader(stream, 3)]
    assert all_ids == [[0, 1, 2], [3, 4, 5], [6]]
    batches = build_loader(stream, 3, batches_per_epoch=4)
    epochs = []
    for epoch in range(2):
        batches.batch_sampler.set_epoch(epoch)
        epochs += [batch.views[0] for batch in batches]
    assert [len(batch) for batch in epochs] == [3] * 8
    everything = stream.__getitems__([number % 7 for number in range(24)]).views[0]
    assert torch.equal(torch.cat(epochs), everything)
    later = build_loader(stream, 3, batches_per_epoch=4)
    later.batch_sampler.begin_at(epoch=1, batch=2)
    later.batch_sampler.set_epoch(1)
    assert torch.equal(torch.cat([batch.views[0] for batch in later]), everything[18:])


@pytest.mark.parametrize("encoded", [True, False])
def test_dicts_have_images_labels_and_keys(encoded: bool) -> None:
    stream = load(Pictures(encoded), image_size=8)
    assert stream.shapes == ((3, 8, 8),)
    (batch,) = build_loader(stream, 20)
    assert batch.views[0][:, 0, 4, 4].tolist() == batch.labels.tolist() == list(range(9))
    assert batch.keys == (tuple(f"sample{number}" for number in range(9)) if encoded else None)
    assert stream.allows_flips
    with raises_usage_error("data.shape", "(3, 8, 8)", "0"):
        load(Pictures(encoded))


@pytest.mark.parametrize("decoded", [False, True])
def test_stream_texts_beside_images_are_a_view(decoded: bool, tmp_path: Path) -> None:
    """Texts are bytes, as in webdataset, or strings, as in Hugging Face."""
    texts = [f"number {number}" + " and more" * (number % 2) for number in range(9)]

    class Captioned(Pictures):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            names = ("image", "caption") if decoded else ("img.png", "txt")
            for sample, text in zip(super().__iter__(), texts, strict=True):
                image = sample["image"] if decoded else sample["png"]
                yield {names[0]: image, names[1]: text if decoded else text.encode(), "title_id": "no view"}

    data = Captioned(encoded=not decoded)
    stream = load(data, image_size=8)
    assert stream.shapes == ((3, 8, 8), ())
    assert stream.view_names == (("image", "caption") if decoded else ("img", "text"))
    assert [text for batch in build_loader(stream, 4) for text in as_texts(batch.views[1])] == texts
    run = train(data=data, recipe="clip", image_size=8, steps=2, batch_size=8, out=tmp_path / "run", progress=False)
    assert run.model().view_names == stream.view_names


@pytest.mark.parametrize(("text", "kind"), [(" ", "empty_text"), (b"\xff", "not_unicode")])
def test_rejects_invalid_texts_in_streams(text: str | bytes, kind: str) -> None:
    class Texts(IterableDataset):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            return iter([{"txt": "a text"}, {"txt": text}])

    with raises_usage_error(f"data.{kind}", "Texts: item 1: txt"):
        load(Texts())


def test_training_on_a_stream_resumes_at_its_place(tmp_path: Path) -> None:
    options = {"steps": 9, "batch_size": 16, "log_every": 1, "num_workers": None, "progress": False}
    uninterrupted = train(data=Numbers(), out=tmp_path / "whole", **options)
    assert [row["step"] for row in uninterrupted.metrics_rows()] == list(range(1, 10))
    assert uninterrupted.config()["epochs"] == 1
    with raises_usage_error("data.invalid", "40", "0"):
        train(data=Numbers(breaks_at=40), out=tmp_path / "broken", **options)
    assert not (tmp_path / "broken" / "model").exists()
    run = train(data=Numbers(), resume=True, out=tmp_path / "broken", progress=False)
    assert [row["loss"] for row in run.metrics_rows()] == [row["loss"] for row in uninterrupted.metrics_rows()]
    weights, expected_weights = uninterrupted.model().state_dict(), run.model().state_dict()
    assert all(torch.equal(weights[name], expected_weights[name]) for name in weights)
    longer = train(data=Numbers(), resume=True, epochs=2, out=tmp_path / "broken", progress=False)
    assert longer.metrics_rows()[-1]["step"] == 18


def test_steps_are_rounded_up_to_epochs_without_a_stream(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 4))
    run = train(data=vectors, steps=5, batch_size=16, out=tmp_path / "run", progress=False)
    assert (run.config()["epochs"], run.config()["steps"], run.metrics_rows()[-1]["step"]) == (3, None, 6)
    with raises_usage_error("steps.conflict"):
        train(data=vectors, steps=5, epochs=3, batch_size=16, out=tmp_path / "both", progress=False)


@pytest.mark.parametrize(
    ("data", "options", "code"),
    [
        (Numbers(), {}, "steps."),
        (Numbers(0), {"steps": 2}, "data.empty"),
        ((number for number in range(3)), {"steps": 2}, "data.single_use"),
        (Numbers(), {"steps": 2, "negatives": "bank"}, "negatives."),
        (Numbers(), {"steps": 2, "target": "neighbors:k=2"}, "target."),
        (Numbers(), {"steps": 2, "objective": "sog-clr"}, "objective."),
        (Numbers(), {"steps": 2, "constraint": "data-balanced"}, "constraint."),
        (Numbers(), {"steps": 2, "max_items": 20}, "max_items."),
        (Numbers(), {"steps": 2, "validation": 0.5}, "validation."),
        (Numbers(), {"steps": 2, "sample_weight": "weights.npy"}, "sample_weight."),
        (Numbers(), {"steps": 2, "encoder": "gradients", "frozen_draws": 2}, "frozen_draws."),
        (from_stream(Numbers()), {"steps": 2, "ignore_labels": True}, "data.stream"),
        (from_stream(Pixels()), {"steps": 2, "image_size": 4}, "data.stream"),
        (Numbers(), {"steps": 2, "num_workers": 1}, "num_workers."),
        (Numbers(), {"steps": 2, "test_fraction": 0.5}, "test_fraction.conflict"),
    ],
    ids=["steps", "empty", "once", "bank", "target", "by item", "data balanced", "items", "validation", "weights",
         "draws", "labels", "size", "num_workers", "fraction"],
)  # fmt: skip
def test_rejects_options_that_need_all_items_of_a_stream(
    data: Any, options: dict[str, Any], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("weights.npy", np.ones(50))
    with pytest.raises(UsageError) as caught:
        train(data=data, batch_size=8, out=tmp_path / "run", progress=False, **options)
    assert caught.value.code.startswith(code)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [{"encoder": "gradients", "augment": "mixup"}, {"sample_weight": "plan"}])
def test_accepts_streams_for_options_that_need_only_a_batch(options: dict[str, Any], tmp_path: Path) -> None:
    run = train(data=Pixels(), steps=2, batch_size=8, out=tmp_path / "run", progress=False, **options)
    assert run.metrics_rows()[-1]["step"] == 2
    assert not as_run_folder(run).features_path.exists()


def test_rejects_a_stream_that_is_shorter_the_second_time() -> None:
    class Once(Numbers):
        def __iter__(self) -> Iterator[Any]:
            return super().__iter__() if self.passes < 1 else iter(())

    with raises_usage_error("data.empty", "0"):
        next(iter(build_loader(from_stream(Once()), 4, batches_per_epoch=3)))


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
def test_stream_is_embedded_in_order_and_in_shards(suffix: str, tmp_path: Path) -> None:
    run = train(data=Numbers(), steps=2, batch_size=16, out=tmp_path / "run", progress=False)
    features = read_features(
        embed(run, data=Numbers(200), out=tmp_path / f"whole{suffix}", batch_size=64, progress=False)
    )
    assert features.source_rows.tolist() == list(range(200))
    assert features.labels.tolist() == [number % 3 for number in range(200)]
    embed(run, data=Numbers(200), out=tmp_path / f"parts{suffix}", shard_items=70, progress=False)
    assert [len(read_features(file)) for file in sorted(tmp_path.glob(f"parts.*-of-*{suffix}"))] == [70, 70, 60]
    joined = read_features(tmp_path / f"parts{suffix}")
    assert np.array_equal(joined.features, features.features)
    assert joined.source_rows.tolist() == features.source_rows.tolist()
    assert not list(tmp_path.glob("*.features")) + list(tmp_path.glob(".*.features"))
    sorted(tmp_path.glob(f"parts.*-of-*{suffix}"))[1].unlink()
    with raises_usage_error("features.missing_shard", "00003"):
        read_features(tmp_path / f"parts{suffix}")


def test_a_stream_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"image": [Image.new("RGB", (8, 8), (number, 0, 0)) for number in range(12)], "label": [0, 1, 2] * 4}
    stream = datasets.Dataset.from_dict(rows).to_iterable_dataset()
    assert load(stream).labels.tolist() == [0, 1, 2] * 4
    run = train(data=stream, steps=3, batch_size=8, out=tmp_path / "run", progress=False)
    assert run.metrics_rows()[-1]["step"] == 3
    features = read_features(embed(run, data=stream, out=tmp_path / "a.npz", progress=False))
    assert features.labels.tolist() == [0, 1, 2] * 4


def test_a_pipeline_of_webdataset(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as tar:
        for sample in Pictures(encoded=True):
            tar.write({**sample, "cls": int(sample["cls"])})
    for pipeline in (
        webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False),
        webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).decode("pil"),
        webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).decode("pil").to_tuple("png", "cls"),
    ):
        stream = load(pipeline, image_size=8)
        assert (stream.shapes, stream.labels.tolist()) == (((3, 8, 8),), list(range(9)))
        run = train(data=pipeline, image_size=8, steps=2, batch_size=8, out=tmp_path / "run", overwrite=True,
                    progress=False)  # fmt: skip
        assert run.metrics_rows()[-1]["step"] == 2
    dataset = webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False)
    features = read_features(embed(run, data=dataset, out=tmp_path / "a.npz", progress=False))
    assert features.keys.tolist() == [f"sample{number}" for number in range(9)]


def test_encoded_images_are_decoded_as_in_a_folder(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x112] = 6
    corner = np.zeros((12, 12, 3), np.uint8)
    corner[:4, :4] = 250
    Image.fromarray(corner).save(tmp_path / "0.png", exif=turned)
    Image.fromarray(np.full((12, 12), 30_000, np.uint16)).save(tmp_path / "1.png")
    Image.new("RGBA", (12, 12), (0, 0, 0, 0)).save(tmp_path / "2.png")

    class Encoded:
        def __iter__(self) -> Iterator[dict[str, bytes]]:
            return ({"png": (tmp_path / f"{number}.png").read_bytes()} for number in range(3))

    in_folder = load(tmp_path, test_fraction=0).__getitems__([0, 1, 2]).views[0]
    assert torch.equal(load(Encoded()).__getitems__([0, 1, 2]).views[0], in_folder)
    opened = [Image.open(tmp_path / f"{number}.png") for number in range(3)]
    assert torch.equal(load(opened, test_fraction=0).__getitems__([0, 1, 2]).views[0], in_folder)

    class Opened:
        def __iter__(self) -> Iterator[Image.Image]:
            return iter(opened[:1])

    for size in (None, 12):
        assert torch.equal(load(Opened(), image_size=size).__getitems__([0]).views[0], in_folder[:1])
    assert in_folder[2].min() == 255
