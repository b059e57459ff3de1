"""Distillation with a queue of teacher features: value, gradient, queue, and teachers from folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from tests.errors import raises_usage_error
from tests.training.test_train import are_equal_states, get_model_state
from torch import Tensor

import contraport
from contraport.data import Batch, Dataset, from_arrays
from contraport.embedding import LoaderConfig
from contraport.training import train
from contraport.training.components.teacher_features import get_teacher_features, normalize_and_resize_by_svd
from contraport.training.step.step_losses import EmbeddedBatch, FixedTeacherQueueDistillationLoss


def build_batch(ids: list[int]) -> Batch:
    return Batch((), None, None, torch.tensor(ids))


def build_embedded_batch(ids: list[int], *queries: Tensor) -> EmbeddedBatch:
    return EmbeddedBatch(build_batch(ids), (), (), queries, queries)


def compute_expected_loss(
    queries: list[Tensor], teacher_features: Tensor, classes: Tensor, temperature: float
) -> Tensor:
    """Compute KL(teacher softmax | student softmax) over the classes, averaged over items and views."""
    target = torch.softmax(teacher_features @ classes.T / temperature, 1)
    losses = []
    for query in queries:
        log_plan = torch.log_softmax(F.normalize(query, dim=1) @ classes.T / temperature, 1)
        losses.append((target * (target.log() - log_plan)).sum(1).mean())
    return torch.stack(losses).mean()


def test_value_gradient_and_queue_in_float64() -> None:
    torch.manual_seed(0)
    teacher = torch.randn(12, 5, dtype=torch.float64)
    unit, temperature = F.normalize(teacher, dim=1), 0.2
    loss = FixedTeacherQueueDistillationLoss(contraport.info_nce(temperature, symmetric=False), teacher, 6).double()
    history: list[Tensor] = []
    for ids in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [3, 0, 1, 2]):
        queries = [torch.randn(4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        value = loss(build_embedded_batch(ids, *queries))
        gradients = torch.autograd.grad(value, queries)
        history.insert(0, unit[ids])
        expected_values = compute_expected_loss(queries, unit[ids], torch.cat(history)[:6], temperature)
        assert torch.allclose(value, expected_values, rtol=1e-12)
        for gradient, other in zip(gradients, torch.autograd.grad(expected_values, queries), strict=True):
            assert torch.allclose(gradient, other, atol=1e-14)
        loss.after_step()


def test_queue_contains_the_latest_micro_batches() -> None:
    teacher = torch.randn(6, 3)
    loss = FixedTeacherQueueDistillationLoss(contraport.info_nce(0.1, symmetric=False), teacher, 4)
    for ids in ([0, 1], [2, 3], [4, 5]):
        loss(build_embedded_batch(ids, torch.randn(2, 3)))
    loss.after_step()
    assert torch.equal(loss.queue, F.normalize(teacher, dim=1)[[4, 5, 2, 3]])


def test_student_equal_to_its_teacher_has_zero_loss() -> None:
    teacher = torch.randn(8, 3)
    loss = FixedTeacherQueueDistillationLoss(contraport.info_nce(0.1, symmetric=False), teacher, 4)
    assert abs(float(loss(build_embedded_batch([0, 1, 2, 3], 2 * teacher[:4])))) < 1e-6


def test_reduced_features_keep_inner_products() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 4, generator=generator) @ torch.randn(4, 20, generator=generator)
    unit = F.normalize(features, dim=1)
    for width in (4, 7, 20, 25):
        reduced = normalize_and_resize_by_svd(features, width)
        assert reduced.shape == (30, width)
        assert torch.allclose(reduced @ reduced.T, unit @ unit.T, atol=1e-5)


@pytest.fixture
def images() -> Dataset:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 12, 12), dtype=np.uint8)
    return from_arrays(pixels, name="images")


@pytest.fixture
def timm_folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", pretrained=False)
    folder = tmp_path / "teacher"
    folder.mkdir()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    settings = {"input_size": [3, 32, 32], "mean": [0.2, 0.3, 0.4], "std": [0.5, 0.5, 0.5]}
    (folder / "config.json").write_text(json.dumps({"architecture": "resnet10t", "pretrained_cfg": settings}))
    return folder


def test_timm_folder_embeds_gray_images_at_its_size(images: Dataset, timm_folder: Path) -> None:
    features = get_teacher_features("teacher", timm_folder, images, LoaderConfig())
    model = timm.create_model("resnet10t", num_classes=0, in_chans=1, pretrained=False).eval()
    state = torch.load(timm_folder / "pytorch_model.bin")
    weights = {name: value for name, value in state.items() if not name.startswith("fc.")}
    weights["conv1.0.weight"] = weights["conv1.0.weight"].sum(1, keepdim=True)
    model.load_state_dict(weights)
    pixels = images.store.fetch_views(torch.arange(40))[0].float() / 255
    large = F.interpolate(pixels, size=(32, 32), mode="bilinear", antialias=True)
    with torch.no_grad():
        assert torch.allclose(features, model((large - 0.3) / 0.5), atol=1e-4)


def test_recipe_trains_from_a_folder_as_from_its_features(images: Dataset, timm_folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "data": images, "recipe": "distillation", "batch_size": 16, "epochs": 2, "progress": False, "device": "cpu",
    }  # fmt: skip
    np.save(
        tmp_path / "teacher.npy",
        get_teacher_features("teacher", timm_folder, images, LoaderConfig()).numpy(),
    )
    first = train(**options, teacher=timm_folder, out=tmp_path / "folder")
    second = train(**options, teacher=tmp_path / "teacher.npy", out=tmp_path / "file")
    assert are_equal_states(get_model_state(first), get_model_state(second))
    stopped = train(
        **options | {"epochs": 1}, teacher=tmp_path / "teacher.npy", lr_scheduler="constant", out=tmp_path / "a"
    )
    resumed = train(out=stopped.path, resume=True, data=images, epochs=2, progress=False)
    uninterrupted = train(**options, teacher=tmp_path / "teacher.npy", lr_scheduler="constant", out=tmp_path / "b")
    assert are_equal_states(get_model_state(resumed), get_model_state(uninterrupted))


def test_run_is_a_teacher_for_other_objectives(images: Dataset, tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": images, "batch_size": 16, "epochs": 1, "progress": False, "device": "cpu"}
    teacher = train(**options, out=tmp_path / "teacher")
    student = train(**options, objective="x-clr", teacher=teacher.path, out=tmp_path / "student")
    assert np.isfinite(student.metrics_rows()[-1]["loss"])


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"teacher": None}, "teacher.missing"),
        ({"teacher": "nowhere.npy"}, "teacher.not_found"),
        ({"prototypes": 4}, "teacher.prototypes"),
        ({"prototypes": "pupil"}, "prototypes.invalid"),
        ({"negatives": "queue"}, "negatives.prototypes"),
        ({"prototypes": None, "queue_size": 8}, "queue_size.conflict"),
        ({"objective": "align-uniform"}, "prototypes.no_single_objective"),
    ],
    ids=str,
)
def test_rejects_invalid_options(images: Dataset, tmp_path: Path, changes: dict[str, Any], code: str) -> None:
    np.save(tmp_path / "teacher.npy", np.ones((40, 3)))
    options: dict[str, Any] = {"recipe": "distillation", "teacher": tmp_path / "teacher.npy", "batch_size": 16}
    with raises_usage_error(code):
        train(**options | changes, data=images, out=tmp_path / "run", progress=False)
