"""Custom random transforms of items and of batches, reproducible by seed, epoch and position."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import kornia.augmentation
import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error
from torch import Tensor
from torchvision.transforms import v2

from contraport import evaluate, train
from contraport.data import BatchTransform, Views, from_arrays
from contraport.data.views.custom_transforms import DrawOnLoadDataset, wrap_transform_unless_name

IMAGES = np.random.default_rng(0).integers(0, 256, (24, 3, 12, 12), dtype=np.uint8)


def jittered(item: Tensor) -> Tensor:
    """Add noise from all three global generators; the result exceeds [0, 1]."""
    return 100 * (item.float() / 255 + torch.randn(1) + np.random.normal() + random.random())


class Flipped:
    """Transform with the interface of albumentations: arrays by keyword, and its own generator."""

    def __init__(self) -> None:
        self.random = np.random.default_rng()

    def set_random_seed(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def __call__(self, *, image: np.ndarray) -> dict[str, np.ndarray]:
        assert image.shape == (12, 12, 3)
        return {"image": np.roll(image, int(self.random.integers(12)), axis=0)}


Flipped.__module__ = "albumentations.core.composition"


def test_transforms_depend_on_seed_epoch_and_position_only() -> None:
    dataset = from_arrays(IMAGES)
    state = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    transformed = DrawOnLoadDataset(dataset, wrap_transform_unless_name(jittered), num_views=2, seed=3)
    (views,) = transformed.__getitems__([5, 2]).views
    assert views.shape == (2, 2, 3, 12, 12)
    assert not torch.equal(views[:, 0], views[:, 1])
    assert torch.equal(transformed.__getitems__([2]).views[0][0], views[1])
    assert torch.equal(torch.random.get_rng_state(), state[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == state[1:]
    augmented = Views(dataset, augment=jittered)((views,))
    assert [tuple(view.shape) for view in augmented] == [(2, 3, 12, 12)] * 2
    assert torch.equal(augmented[1], views[:, 1])  # floats are not clipped
    assert float(augmented[0].abs().max()) > 1


@pytest.mark.parametrize(
    "augment",
    [jittered, v2.RandomResizedCrop(8), Flipped(), kornia.augmentation.RandomHorizontalFlip(),
    BatchTransform(torch.sin)],
    ids=["function", "torchvision", "albumentations", "kornia", "on batches"],
)  # fmt: skip
def test_training_is_the_same_with_any_number_of_workers(augment: Any, tmp_path: Path) -> None:
    options = {"data": from_arrays(IMAGES), "augment": augment, "batch_size": 8, "progress": False}
    run = train(**options, epochs=2, num_workers=0, out=tmp_path / "run")
    other = train(**options, epochs=2, num_workers=1, out=tmp_path / "other")
    assert [row["loss"] for row in run.metrics_rows()] == [row["loss"] for row in other.metrics_rows()]
    assert run.config()["augment"].startswith("<")


def test_log_states_whether_items_or_batches_are_transformed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "contraport")
    options = {"data": from_arrays(IMAGES), "batch_size": 8, "epochs": 1, "progress": False}
    train(**options, augment=v2.RandomHorizontalFlip(), num_workers=1, out=tmp_path / "items")
    assert "RandomHorizontalFlip, applied to items, in 1 loading process" in caplog.text
    train(**options, augment=kornia.augmentation.RandomHorizontalFlip(), out=tmp_path / "batches")
    assert "RandomHorizontalFlip, applied to batches" in caplog.text


def test_resuming_requires_the_custom_transform_again(tmp_path: Path) -> None:
    dataset = from_arrays(IMAGES, labels=[0, 1] * 12)
    run = train(
        data=dataset, augment=jittered, epochs=1, batch_size=8, num_workers=0, out=tmp_path / "run", progress=False
    )
    unseen = from_arrays(IMAGES[:, ::-1].copy(), labels=[0, 1] * 12)
    result = evaluate(run, data=(dataset, unseen), neighbors=3, metrics=["knn", "alignment"], progress=False)
    assert "knn" in result["rows"]["trained"]
    assert "alignment" not in result["rows"]["trained"]
    assert any("augmentation" in note for note in result["notes"])
    with raises_usage_error("augment.object_required", "jittered"):
        train(data=dataset, resume=True, epochs=2, out=tmp_path / "run", progress=False)
    train(data=dataset, augment=jittered, resume=True, epochs=2, out=tmp_path / "run", progress=False)


def failing_transform(item: Tensor) -> Tensor:
    raise KeyError("no such colour")


@pytest.mark.parametrize(
    ("augment", "expected"),
    [
        (3, ("augment.invalid", '3')),
        (failing_transform, ("augment.transform_failed", '(3, 12, 12)', 'no such colour')),
        (str, ("augment.transform_output",)),
        (BatchTransform(lambda images: images[:1].repeat(3, 1, 1, 1)), ("augment.transform_output", '1')),
    ],
    ids=["number", "fails", "text", "other number"],
)  # fmt: skip
def test_rejects_invalid_transforms(augment: Any, expected: tuple[str, ...], tmp_path: Path) -> None:
    with raises_usage_error(*expected):
        train(data=from_arrays(IMAGES), augment=augment, batch_size=8, out=tmp_path / "run", progress=False)


def test_custom_transform_excludes_named_views() -> None:
    with raises_usage_error("views.conflict", "2+6"):
        Views(from_arrays(IMAGES), augment=jittered, views="2+6")
    assert len(Views(from_arrays(IMAGES), augment=jittered, views=3).shapes) == 3
    assert Views(from_arrays((IMAGES, IMAGES)), augment=jittered).shapes == ((3, 12, 12),) * 2
