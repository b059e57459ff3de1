from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from contraport import SumLoss, byol, guided, nt_xent
from contraport._utils.formatting import use_flag_style
from contraport.data import from_arrays
from contraport.errors import UsageError
from contraport.training import train
from tests.errors import raises_usage_error

from .conftest import StubObjective

# Options, a pattern of the error's code, and values that its message contains. The codes of other packages are matched
# by the argument alone.
CASES: list[tuple[Any, ...]] = [
    ({"data": None}, r"data\..*"),
    ({"data": "digitz"}, r"data\..*", "digitz", "digits"),
    ({"data": "no/such/folder"}, r"data\..*", "no/such/folder"),
    ({"objective": "gca-uott"}, "objective.unknown", "gca-uott", "gca-uot"),
    ({"objective_settings": {"iteration": 3}}, "objective_settings.unknown", "nt_xent", "'iteration'"),
    ({"objective": nn.Identity(), "temperature": 0.1}, "temperature.module"),
    ({"objective": nn.Identity(), "objective_settings": {"x": 1}}, "objective_settings.module"),
    ({"temperature": 0.1, "objective_settings": {"temperature": 0.2}}, "temperature.duplicate"),
    ({"temperature": -0.1}, "temperature.invalid", -0.1),
    ({"temperature": math.nan}, "temperature.invalid", "nan"),
    ({"temperature": "0.5:-0.1"}, "temperature.invalid", -0.1),
    ({"temperature": "0.5:0.1:cosin"}, "temperature.unknown", "cosin", "cosine"),
    ({"temperature": "0.5:0.1:cosine:2"}, "temperature.format", "0.5:0.1:cosine:2"),
    ({"temperature": "warm"}, "temperature.format", "warm"),
    (
        {"temperature": 0.1, "objective": "pairwise", "objective_settings": {"preset": "mine"}},
        r"temperature\..*",
        "mine",
    ),
    ({"temperature": "0.5:0.1", "objective": "quadratic"}, r".*unknown", "quadratic", "temperature"),
    ({"given_views": [0, 0]}, "given_views.duplicate", [0, 0]),
    ({"given_views": None}, "given_views.invalid", None),
    ({"constraint": "tighten"}, r"constraint\..*", "tighten:every=N"),
    ({"constraint": "tighten:every=0"}, r"constraint\..*", "tighten:every=0"),
    ({"constraint": "tigthen:every=3"}, "constraint.unknown", "tigthen", "tighten"),
    ({"constraint": "relax:every=3", "objective": "align-uniform"}, r"constraint\..*", "SumLoss"),
    ({"constraint": "relax:every=3", "objective": StubObjective()}, "constraint.no_constraint", "StubObjective()"),
    *(
        ({"constraint": "balanced", "objective": name}, "constraint.no_effect", "balanced")
        for name in ("sigmoid", "spectral", "pairwise", "debiased", "hard-negative", "iot-quadratic")
    ),
    ({"target": "lables"}, "target.unknown", "lables", "labels"),
    ({"target": "domains"}, "target.missing_data", "domains", "vectors"),
    ({"target": "labels", "objective": StubObjective()}, "target.unsupported", "StubObjective"),
    ({"target": "labels", "objective": "align-uniform"}, "target.mismatch", "align-uniform"),
    ({"target": "labels", "objective": "dcl"}, "target.mismatch", "dcl", "Labels()"),
    ({"target": "labels", "objective": "spectral"}, "target.mismatch", "spectral", "Labels()"),
    ({"target": "labels", "prototypes": 5}, "target.prototypes"),
    ({"target": "labels", "predict": "l2"}, "target.predict"),
    ({"target": "soft:no/such.npy"}, "target.not_found", "no/such.npy"),
    ({"recipe": "mocco"}, "recipe.unknown", "mocco", "moco"),
    ({"objective": None}, "objective.missing"),
    ({"negatives": "que"}, "negatives.unknown", "que", "queue"),
    ({"queue_size": 8}, "queue_size.conflict", "in-batch"),
    ({"negatives": "bank", "queue_size": 8}, "queue_size.conflict", "bank"),
    ({"negatives": "queue", "queue_size": 0}, "queue_size.invalid", 0),
    ({"negatives": "queue", "bank_negatives": 8}, "bank_negatives.conflict", "queue"),
    ({"negatives": "queue", "objective": StubObjective()}, "negatives.unsupported", "StubObjective"),
    ({"negatives": "queue", "recipe": "byol"}, r"negatives\..*", "Cost()"),
    ({"negatives": "queue", "prototypes": 5}, "negatives.prototypes", "queue"),
    ({"prototypes": 1}, "prototypes.invalid", 1),
    ({"prototypes": 5, "objective": "align-uniform"}, "prototypes.no_single_objective"),
    ({"momentum": 1}, "momentum.invalid", "got 1."),
    ({"momentum": "0.9:1.1"}, "momentum.invalid", "0.9:1.1"),
    ({"objective": "byol", "momentum": 0.9}, "objective.collapses", "predictor=True"),
    ({"objective": SumLoss({byol(): 1.0, byol(): 0.5})}, "objective.collapses", "predictor=True"),
    ({"objective": SumLoss({nt_xent(): 1.0, guided(): 0.5})}, "teacher.missing", "Pass teacher"),
    ({"objective": "guided"}, "teacher.missing", "Pass teacher"),
    ({"objective": "guided", "teacher": "no/such.npy"}, "teacher.not_found", "no/such.npy"),
    ({"objective": "guided", "teacher": 3}, "teacher.invalid", 3),
    ({"teacher": "teacher.npy", "audit": True}, "audit.teacher"),
    ({"teacher": "teacher.npy", "prototypes": 5}, "teacher.prototypes"),
    ({"teacher": "teacher.npy", "predict": "l2"}, "teacher.predict"),
    ({"predict": "l3"}, "predict.unknown", "l3", "l2"),
    ({"predict": "l2", "momentum": 0.9}, "momentum.predict"),
    ({"predict": "l2", "negatives": "queue"}, "negatives.predict"),
    ({"predict": "l2", "objective": "nt-xent"}, "objective.predict"),
    ({"predict": "l2", "temperature": 0.1}, "temperature.predict"),
    ({"views": 1}, "views.too_few", 1),
    ({"views": "2+6"}, r"views\..*", "2+6"),
    ({"shared_encoder": False}, "shared_encoder.one_view", "view0"),
    ({"representation": "7"}, "representation.unknown", "7"),
    ({"objective": "direct-clr", "objective_settings": {"dimensions": 500}}, r"dimensions\..*", 128, 500),
    ({"cache_chunk": 1}, "cache_chunk.invalid", 1),
    ({"grad_accum_steps": 0}, "grad_accum_steps.invalid", 0),
    ({"encoder": "resnet81"}, r"encoder\..*", "resnet81", "resnet18"),
    ({"encoder": "small-cnn"}, r"encoder\..*", "small-cnn", "mlp"),
    ({"predict": "l2", "projection": 8}, "projection.predict", 8),
    ({"projection": 0, "projection_layers": 2}, "projection_layers.conflict", 2),
    ({"projection_layers": 4}, "projection_layers.too_large", 4),
    ({"augment": "noise:x"}, r"augment\..*", "noise:x"),
    ({"augment": "stronger"}, "augment.unknown", "stronger", "strong"),
    ({"projection": -1}, "projection.invalid", -1),
    ({"epochs": 0}, "epochs.invalid", 0),
    ({"epochs": 1.5}, "epochs.invalid", 1.5),
    ({"epochs": True}, "epochs.invalid", True),
    ({"batch_size": 1}, "batch_size.invalid", 1),
    ({"batch_size": 71}, "batch_size.few_items", 70, 71),
    ({"optimizer": "adamq"}, "optimizer.unknown", "adamq", "adam"),
    ({"optimizer": "nadam"}, "lr.missing", "nadam"),
    ({"lr": 0}, "lr.invalid", 0),
    ({"weight_decay": -1}, "weight_decay.invalid", -1),
    ({"lr_scheduler": "cosin"}, "lr_scheduler.unknown", "cosin", "cosine"),
    ({"warmup_epochs": 2}, "warmup_epochs.too_large", 2),
    ({"image_size": 0}, "image_size.invalid", 0),
    ({"image_size": 16}, r"data\..*", "16 x 16", "vectors"),
    ({"num_workers": -1}, "num_workers.invalid", -1),
    ({"device": "cdua"}, "device.unknown", "cdua", "cuda"),
    ({"seed": -1}, "seed.invalid", -1),
    ({"log_every": 0}, "log_every.invalid", 0),
    ({"keep_every": 0}, "keep_every.invalid", 0),
    ({"resume": True, "overwrite": True}, "out.not_found"),
    ({"resume": True, "out": None}, "out.missing"),
]


@pytest.mark.parametrize(
    ("wrong", "code", "values"), [(wrong, code, values) for wrong, code, *values in CASES], ids=str
)
def test_rejects_invalid_arguments_before_writing(
    settings: dict[str, Any], wrong: dict[str, Any], code: str, values: list[object]
) -> None:
    with pytest.raises(UsageError) as raised:
        train(**{**settings, **wrong})
    assert re.fullmatch(code, raised.value.code), str(raised.value)
    assert all(str(value) in str(raised.value) for value in values), str(raised.value)
    assert not settings["out"].exists()


def test_rejects_an_unused_teacher(settings: dict[str, Any], tmp_path: Path) -> None:
    np.save(tmp_path / "teacher.npy", np.ones((70, 2)))
    with raises_usage_error("teacher.unused"):
        train(**settings, teacher=tmp_path / "teacher.npy")
    with raises_usage_error("teacher.unsupported", "StubObjective"):
        train(**settings, teacher=tmp_path / "teacher.npy", objective=StubObjective())
    assert not settings["out"].exists()


def test_rejects_data_without_labels(settings: dict[str, Any]) -> None:
    settings["data"] = from_arrays(np.random.default_rng(0).normal(size=(70, 6)))
    with raises_usage_error("labels.missing"):
        train(**settings, objective="sup-con")
    assert not settings["out"].exists()


def test_rejects_ignored_labels(settings: dict[str, Any]) -> None:
    settings["data"] = "digits"
    with raises_usage_error("ignore_labels.labels_required", "sup-con", "ignore_labels=True"):
        train(**settings, objective="sup-con", ignore_labels=True)
    with use_flag_style(), raises_usage_error("ignore_labels.labels_required", "--ignore_labels"):
        train(**settings, objective="sup-con", ignore_labels=True)
    assert not settings["out"].exists()


def test_requires_a_projection_for_encoders_of_different_sizes(settings: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    settings["data"] = from_arrays((random.normal(size=(40, 5)), random.integers(0, 255, (40, 8, 8)).astype(np.uint8)))
    with raises_usage_error("*", "torch.nn:Flatten"):
        train(**settings, encoder=["mlp", "torch.nn:Flatten"])
    for wrong, code in (({"encoder": ["mlp"]}, "encoder.*"), ({"shared_encoder": True}, "shared*")):
        with raises_usage_error(code):
            train(**settings, **wrong)


def test_rejects_an_unavailable_device(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with raises_usage_error("device.unavailable", "cuda"):
        train(**settings, device="cuda")


def test_rejects_an_existing_run_without_overwrite(settings: dict[str, Any]) -> None:
    out: Path = settings["out"]
    train(**settings)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with raises_usage_error("out.exists", "overwrite=True"):
        train(**settings)
    with raises_usage_error("temperature.invalid", -1):
        train(**settings, overwrite=True, temperature=-1)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_overwrites_only_run_folders(settings: dict[str, Any]) -> None:
    out: Path = settings["out"]
    out.mkdir()
    (out / "thesis.tex").write_text("ten years")
    with raises_usage_error("out.not_a_run"):
        train(**settings, overwrite=True)
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]
