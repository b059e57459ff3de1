from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from contraport import SumLoss, byol, guided, nt_xent
from contraport._utils.formatting import use_flag_style
from contraport.data import Dataset, from_arrays
from contraport.errors import UsageError
from contraport.training import train
from tests.errors import raises_usage_error

from .conftest import Pull


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"data": None}, "data: expected"),
        ({"data": "digitz"}, "did you mean 'digits'"),
        ({"data": "no/such/folder"}, "no/such/folder"),
        ({"objective": "gca-uott"}, "did you mean 'gca-uot'"),
        ({"objective_settings": {"iteration": 3}}, "'iteration'"),
        ({"objective": nn.Identity(), "temperature": 0.1}, "temperature: belongs to a named objective"),
        ({"objective": nn.Identity(), "objective_settings": {"x": 1}}, "objective_settings: belong"),
        ({"temperature": 0.1, "objective_settings": {"temperature": 0.2}}, "temperature: given twice"),
        ({"temperature": -0.1}, "temperature: expected a positive"),
        ({"temperature": "0.5:-0.1"}, "temperature: expected a positive"),
        ({"temperature": "0.5:0.1:cosin"}, "temperature: shape: unknown name 'cosin'; did you mean 'cosine'"),
        ({"temperature": "0.5:0.1:cosine:2"}, "temperature: expected a number, or start:end:shape"),
        ({"temperature": "warm"}, "temperature: expected a number, or start:end:shape"),
        (
            {"temperature": 0.1, "objective": "pairwise", "objective_settings": {"preset": "mine"}},
            "temperature: mine has none",
        ),
        ({"temperature": "0.5:0.1", "objective": "quadratic"}, "setting of quadratic: unknown name 'temperature'"),
        ({"given_views": [0, 0]}, "given_views: expected each view once, got [0, 0]"),
        ({"given_views": None}, "given_views: expected numbers of views, got None"),
        ({"constraint": "tighten"}, "constraint: expected tighten:every=N"),
        ({"constraint": "tighten:every=0"}, "constraint: expected tighten:every=N"),
        ({"constraint": "tigthen:every=3"}, "did you mean 'tighten'"),
        ({"constraint": "relax:every=3", "objective": "align-uniform"}, "constraint: expected a single objective"),
        *(
            (
                {"constraint": "balanced", "objective": name},
                "constraint: expected none, as the objective judges the kernel",
            )
            for name in ("sigmoid", "spectral", "pairwise", "debiased", "hard-negative", "iot-quadratic")
        ),
        ({"constraint": "relax:every=3", "objective": Pull()}, "constraint: expected a single objective"),
        ({"target": "lables"}, "target: unknown name 'lables'; did you mean 'labels'"),
        ({"target": "domains"}, "target: domains expects data with domains; 'vectors' has none"),
        ({"target": "labels", "objective": Pull()}, "target: the call of Pull has no keyword `target` to take it"),
        (
            {"target": "labels", "objective": "align-uniform"},
            "target: align-uniform is a sum of objectives",
        ),
        ({"target": "labels", "objective": "dcl"}, "target: dcl keeps an item's views out of what they are"),
        (
            {"target": "labels", "objective": "spectral"},
            "expected pairs, or nothing, got Labels()",
        ),
        ({"target": "labels", "prototypes": 5}, "target: prototypes want what items are assigned to"),
        ({"target": "labels", "predict": "l2"}, "target: predict compares nothing"),
        ({"target": "soft:no/such.npy"}, "target: file: no/such.npy cannot be read as a file"),
        ({"recipe": "mocco"}, "recipe: unknown name 'mocco'; did you mean 'moco'"),
        ({"objective": None}, "objective: expected a name or a module"),
        ({"negatives": "que"}, "did you mean 'queue'"),
        ({"queue_size": 8}, "queue_size: expected nothing, as it belongs to negatives='queue', got 8"),
        ({"negatives": "bank", "queue_size": 8}, "queue_size: expected nothing"),
        ({"negatives": "queue", "queue_size": 0}, "queue_size: expected a whole number from 1 on, got 0"),
        ({"negatives": "queue", "bank_negatives": 8}, "bank_negatives: expected nothing"),
        ({"negatives": "queue", "objective": Pull()}, "negatives: the call of Pull has no keyword `negatives`"),
        ({"negatives": "queue", "recipe": "byol"}, "negatives: the divergence Cost() pushes nothing apart"),
        ({"negatives": "queue", "prototypes": 5}, "prototypes: stand in the place of negatives"),
        ({"prototypes": 1}, "prototypes: expected a whole number from 2 on, got 1"),
        ({"prototypes": 5, "objective": "align-uniform"}, "prototypes: expected a single Objective"),
        ({"momentum": 1}, "momentum: expected numbers from 0 to 1, and below 1 at the start"),
        ({"momentum": "0.9:1.1"}, "momentum: expected numbers from 0 to 1"),
        ({"objective": "byol", "momentum": 0.9}, "expected predictor=True"),
        ({"objective": SumLoss({byol(): 1.0, byol(): 0.5})}, "expected predictor=True"),
        (
            {"objective": SumLoss({nt_xent(): 1.0, guided(): 0.5})},
            "teacher: the objective asks for the features of one",
        ),
        (
            {"objective": "guided"},
            "teacher: the objective asks for the features of one; expected a file of them, teacher=..., got",
        ),
        ({"objective": "guided", "teacher": "no/such.npy"}, "teacher: no/such.npy cannot be read as a file"),
        ({"objective": "guided", "teacher": 3}, "teacher: expected text or a path, got 3"),
        (
            {"teacher": "teacher.npy", "audit": True},
            "teacher: it knows none of the pairs that audit puts beside",
        ),
        ({"teacher": "teacher.npy", "prototypes": 5}, "teacher: prototypes ask for none"),
        ({"teacher": "teacher.npy", "predict": "l2"}, "teacher: predict compares nothing"),
        ({"predict": "l3"}, "predict: unknown name 'l3'"),
        ({"predict": "l2", "momentum": 0.9}, "predict: compares nothing"),
        ({"predict": "l2", "objective": "nt-xent"}, "objective: predict compares nothing"),
        ({"predict": "l2", "temperature": 0.1}, "temperature: predict compares nothing"),
        ({"views": 1}, "views: expected at least 2, to compare them, got 1"),
        ({"views": "2+6"}, "crops one image"),
        ({"shared_encoder": False}, "shared_encoder: false needs items of several views"),
        ({"representation": "7"}, "representation: unknown name '7'"),
        ({"objective": "direct-clr", "objective_settings": {"dimensions": 500}}, "dimensions: expected at most 128"),
        ({"cache_chunk": 1}, "cache_chunk: expected a whole number from 2 on, got 1"),
        ({"grad_accum_steps": 0}, "grad_accum_steps: expected a whole number from 1 on, got 0"),
        ({"temperature": math.nan}, "temperature: expected a positive"),
        ({"encoder": "resnet81"}, "encoder: unknown name 'resnet81'"),
        ({"encoder": "small-cnn"}, "use 'mlp' for vectors"),
        ({"predict": "l2", "projection": 8}, "projection: predict decodes features; expected 0, got 8"),
        ({"projection": 0, "projection_layers": 2}, "projection_layers: expected 0 or nothing with a projection of 0"),
        ({"projection_layers": 4}, "projection_layers: expected at most 3, got 4"),
        ({"augment": "noise:x"}, "augment: expected a positive number as the strength of noise, got 'noise:x'"),
        ({"projection": -1}, "projection: expected a whole number from 0 on, got -1"),
        ({"epochs": 0}, "epochs: expected a whole number from 1 on, got 0"),
        ({"epochs": 1.5}, "epochs: expected a whole number"),
        ({"epochs": True}, "epochs: expected a whole number"),
        ({"batch_size": 1}, "batch_size: expected a whole number from 2 on, got 1"),
        ({"batch_size": 71}, "batch_size: expected at most the 70 items of 'vectors', got 71"),
        ({"optimizer": "adamq"}, "did you mean 'adam"),
        ({"optimizer": "nadam"}, "lr: has no default"),
        ({"lr": 0}, "lr: expected a positive"),
        ({"weight_decay": -1}, "weight_decay: "),
        ({"lr_scheduler": "cosin"}, "did you mean 'cosine'"),
        ({"warmup_epochs": 2}, "warmup_epochs: "),
        ({"augment": "stronger"}, "did you mean 'strong'"),
        ({"image_size": 0}, "image_size"),
        ({"image_size": 16}, "data: expected images, to be made 16 x 16 pixels (image_size), got 'vectors'"),
        ({"num_workers": -1}, "num_workers: expected"),
        ({"device": "cdua"}, "did you mean 'cuda'"),
        ({"seed": -1}, "seed: expected"),
        ({"log_every": 0}, "log_every: expected"),
        ({"keep_every": 0}, "keep_every: expected"),
        ({"resume": True, "overwrite": True}, "no such folder"),
        ({"resume": True, "out": None}, "out: resume needs"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_written(
    settings: dict[str, Any], wrong: dict[str, Any], message: str
) -> None:
    out: Path = settings["out"]
    with pytest.raises(UsageError) as raised:
        train(**{**settings, **wrong})
    assert message in str(raised.value)
    assert not out.exists()


def test_features_of_a_teacher_that_nobody_asks_for(settings: dict[str, Any], tmp_path: Path) -> None:
    np.save(tmp_path / "teacher.npy", np.ones((70, 2)))
    with pytest.raises(UsageError, match="teacher: the objective asks for no features of one; expected nothing, got"):
        train(**settings, teacher=tmp_path / "teacher.npy")
    with pytest.raises(UsageError, match="teacher: the call of Pull has no keyword `features` to take it"):
        train(**settings, teacher=tmp_path / "teacher.npy", objective=Pull())
    assert not settings["out"].exists()


def test_labels_that_the_data_lack(settings: dict[str, Any]) -> None:
    settings["data"] = from_arrays(np.random.default_rng(0).normal(size=(70, 6)))
    with pytest.raises(UsageError, match=r"labels: this needs a label of each item: .* data with labels"):
        train(**settings, objective="sup-con")
    assert not settings["out"].exists()


def test_labels_that_are_left_out_are_told_by_the_option(settings: dict[str, Any]) -> None:
    settings["data"] = "digits"
    with pytest.raises(UsageError, match=r"^ignore_labels: sup-con needs a label of each item, got ignore_labels=True"):
        train(**settings, objective="sup-con", ignore_labels=True)
    with use_flag_style(), pytest.raises(UsageError, match="got --ignore_labels; leave it out"):
        train(**settings, objective="sup-con", ignore_labels=True)
    assert not settings["out"].exists()


def test_encoders_of_different_sizes_need_a_projection(settings: dict[str, Any], images: Dataset) -> None:
    random = np.random.default_rng(0)
    settings["data"] = from_arrays((random.normal(size=(40, 5)), random.integers(0, 255, (40, 8, 8)).astype(np.uint8)))
    both = {**settings, "encoder": ["mlp", "torch.nn:Flatten"]}
    with pytest.raises(UsageError, match=r"torch\.nn:Flatten"):
        train(**both)
    with raises_usage_error("encoder.shape", 2, 1):
        train(**{**settings, "encoder": ["mlp"]})
    with raises_usage_error("shared.shape"):
        train(**settings, shared_encoder=True)


def test_a_device_that_is_not_there(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UsageError, match="this machine has no 'cuda'"):
        train(**settings, device="cuda")


def test_a_folder_that_is_not_empty_is_left_alone(settings: dict[str, Any]) -> None:
    out: Path = settings["out"]
    train(**settings)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=r"not empty; overwrite=True replaces it"):
        train(**settings)
    with pytest.raises(UsageError, match="temperature"):
        train(**settings, overwrite=True, temperature=-1)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_overwrite_deletes_nothing_but_runs(settings: dict[str, Any], vectors: Dataset) -> None:
    out: Path = settings["out"]
    out.mkdir()
    (out / "thesis.tex").write_text("ten years")
    with pytest.raises(UsageError, match="no run"):
        train(**settings, overwrite=True)
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]
