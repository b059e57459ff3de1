"""Frozen encoders, cached features, and initial weights."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import nn

import contraport
from contraport.data import Dataset, from_arrays
from contraport.data.stores import ArrayStore
from contraport.encoders import Model
from contraport.runs import Run, as_run_folder
from contraport.training.data_parallelism import may_have_unused_parameters
from contraport.training.optimization import create_optimizer
from tests.errors import raises_usage_error


@pytest.fixture
def images() -> Dataset:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 255, (40, 8, 8)).astype(np.uint8)
    return from_arrays(pixels, labels=np.arange(40) % 3, name="images")


@pytest.fixture
def initial_run(images: Dataset, tmp_path: Path) -> Run:
    """Run that provides initial weights; its encoder has batch norm."""
    return contraport.train(data=images, epochs=1, batch_size=20, out=tmp_path / "begun", progress=False)


def train(data: Any, initial_run: Run, name: str = "run", **options: Any) -> Run:
    out = initial_run.path.with_name(name)
    settings = {"data": data, "init": initial_run.path, "epochs": 2, "batch_size": 20, "out": out, "progress": False}
    return contraport.train(**(settings | options))


def mirror_images(images: Dataset) -> Dataset:
    return images.with_store(ArrayStore((images.store.views[0].flip(3),)), keep_digests=False)


def get_encoder_state(run: Run) -> dict[str, torch.Tensor]:
    return dict(run.model().tower(0).encoder.state_dict())


def are_equal_states(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


FREEZING_OPTIONS: list[dict[str, Any]] = [
    {}, {"recipe": "moco"}, {"recipe": "byol"}, {"cache_chunk": 10}, {"prototypes": 4}, {"views": "2+2"},
]  # fmt: skip


def test_encoder_without_parameters_is_frozen(images: Dataset, tmp_path: Path) -> None:
    settings = {"data": images, "encoder": "gradients", "epochs": 2, "batch_size": 20, "progress": False}
    run = contraport.train(**settings, out=tmp_path / "run")
    model = run.model()
    assert as_run_folder(run).features_path.is_dir()  # features are computed once
    assert model.num_features == model.tower(0).num_features + 128
    other = contraport.train(**settings, seed=1, out=tmp_path / "other").model()
    items = images.__getitems__([0, 1]).views
    assert torch.equal(model.encode(items)[0], other.encode(items)[0])
    assert not torch.equal(model(*items), other(*items))
    options = {"metrics": ["linear_probe", "alignment"], "progress": False}
    result = contraport.evaluate(run, data=(images, mirror_images(images)), **options)["rows"]
    assert result.keys() == {"raw", "untrained", "trained"}
    contraport.train(data=images, resume=True, out=run.path, epochs=3, progress=False)
    assert as_run_folder(run).saved_model_epoch() == 3


@pytest.mark.parametrize(
    ("draws", "extra_options"),
    [
        *((0, extra_options) for extra_options in FREEZING_OPTIONS),
        (2, {}),
        *(pytest.param(2, extra_options, marks=pytest.mark.slow) for extra_options in FREEZING_OPTIONS[1:]),
    ],
    ids=str,
)
def test_frozen_encoder_is_unchanged_bit_for_bit(
    images: Dataset, initial_run: Run, draws: int, extra_options: dict[str, Any]
) -> None:
    run = train(images, initial_run, freeze=True, frozen_draws=draws, **extra_options)
    assert are_equal_states(get_encoder_state(run), get_encoder_state(initial_run))
    first = Model.from_pretrained(as_run_folder(run).initial_path).tower(0)
    assert are_equal_states(dict(first.encoder.state_dict()), get_encoder_state(initial_run))
    weights, drawn = run.model().tower(0).projector.state_dict(), first.projector.state_dict()
    assert any(not torch.equal(weights[name], drawn[name]) for name in weights)
    assert run.model().representation_part == "both"


def test_run_is_compared_with_its_initial_encoder(images: Dataset, initial_run: Run) -> None:
    """The baseline is the initial encoder, since random weights would show the value of the initial weights."""
    run = train(images, initial_run, freeze=True)
    evaluation_options = {
        "data": (images, mirror_images(images)),
        "metrics": ["knn", "alignment", "uniformity"],
        "progress": False,
    }
    result = contraport.evaluate(run, **evaluation_options)
    assert list(result["rows"]) == ["raw", "given", "trained"]
    assert "given" in result["differences"]
    as_run_folder(run).save_model_and_delete_stale_evaluations(
        Model.from_pretrained(as_run_folder(run).initial_path), epochs=2
    )
    rows = contraport.evaluate(run, **evaluation_options)["rows"]
    assert rows["trained"] == rows["given"] == result["rows"]["given"]
    assert result["rows"]["trained"] != rows["given"]


def test_freezes_the_encoder_for_the_first_epochs(images: Dataset, initial_run: Run) -> None:
    run = train(images, initial_run, freeze_epochs=1, keep_every=1)
    saved = torch.load(as_run_folder(run).checkpoints / "epoch-0001.ckpt", weights_only=True)["pipeline"]
    prefix = "model.towers.0.encoder."
    frozen_state = {name.removeprefix(prefix): value for name, value in saved.items() if name.startswith(prefix)}
    assert are_equal_states(frozen_state, get_encoder_state(initial_run))
    assert not are_equal_states(get_encoder_state(run), frozen_state)
    assert run.model().representation_part == "concatenate"


def test_frozen_features_are_cached(
    images: Dataset, initial_run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    features = tmp_path / "features"
    first = train(images, initial_run, "first", freeze=True, features=features, augment="none")
    saved = np.load(features / "view0.npy")
    assert saved.shape == (40, 1, 256)
    model = first.model()
    with torch.no_grad():
        expected = model.encode((images.__getitems__(list(range(40))).views[0],))[0]
    np.testing.assert_allclose(saved[:, 0], expected.numpy(), rtol=1e-4, atol=1e-5)
    written = (features / "view0.npy").stat().st_mtime_ns
    second = train(images, initial_run, "second", freeze=True, features=features, augment="none")
    assert (features / "view0.npy").stat().st_mtime_ns == written
    assert "the features of the frozen encoder are those in" in as_run_folder(second).log_path.read_text()
    assert are_equal_states(dict(first.model().state_dict()), dict(second.model().state_dict()))


def test_frozen_draws_are_different_views(images: Dataset, initial_run: Run) -> None:
    run = train(images, initial_run, freeze=True, frozen_draws=3)
    saved = [np.load(as_run_folder(run).features_path / f"view{view}.npy") for view in range(2)]
    assert [view.shape for view in saved] == [(40, 3, 256)] * 2
    assert len({view[0, draw].tobytes() for view in saved for draw in range(3)}) == 6


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"data": None}, "they are of other data"),
        ({"seed": 1}, "they are of other seed"),
        pytest.param({"augment": "weak"}, "they are of other views", marks=pytest.mark.slow),
        pytest.param({"frozen_draws": 1}, "they are of other draws and shapes", marks=pytest.mark.slow),
        ("weights", "they are of other weights"),
        ("version", "they are of other version"),
        ("damage", "they are damaged"),
        pytest.param("nonsense", "they are damaged", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_cache_of_other_features_is_rebuilt(
    images: Dataset, initial_run: Run, tmp_path: Path, change: Any, expected: str
) -> None:
    features = tmp_path / "features"
    options: dict[str, Any] = {"freeze": True, "frozen_draws": 2, "features": features}
    train(images, initial_run, **options)
    made_of = json.loads((features / "made_of.json").read_text())
    data = images
    if change == {"data": None}:
        data = from_arrays(255 - images.__getitems__(list(range(40))).views[0].numpy(), name="images")
    elif change == "weights":
        initial_run = train(images, initial_run, "other", freeze=False)
    elif change == "version":
        (features / "made_of.json").write_text(json.dumps(made_of | {"version": "0.0"}))
    elif change == "damage":
        (features / "view1.npy").write_bytes((features / "view1.npy").read_bytes()[:200])
    elif change == "nonsense":
        (features / "made_of.json").write_text("[1, 2]")
    else:
        options |= change
    rebuilt = train(data, initial_run, "again", **options)
    log = as_run_folder(rebuilt).log_path.read_text()
    assert f"the features of the frozen encoder in {features} are made again: {expected}" in log
    without_cache = train(data, initial_run, "alone", **(options | {"features": None}))
    assert are_equal_states(dict(rebuilt.model().state_dict()), dict(without_cache.model().state_dict()))


def test_custom_transforms_are_encoded_in_each_step(images: Dataset, initial_run: Run, tmp_path: Path) -> None:
    def flip(item: torch.Tensor) -> torch.Tensor:
        return item.flip(-1)

    run = train(images, initial_run, freeze=True, augment=flip)
    assert not as_run_folder(run).features_path.exists()
    assert "no feature cache" in as_run_folder(run).log_path.read_text()
    without_draws = train(images, initial_run, "zero", freeze=True, augment=flip, frozen_draws=0)
    assert are_equal_states(dict(run.model().state_dict()), dict(without_draws.model().state_dict()))
    assert "no feature cache" not in as_run_folder(without_draws).log_path.read_text()
    with raises_usage_error("frozen_draws.no_cache", "flip", 2):
        train(images, initial_run, "kept", freeze=True, augment=flip, frozen_draws=2)
    with raises_usage_error("features.no_cache", "flip"):
        train(images, initial_run, "kept", freeze=True, augment=flip, features=tmp_path / "features")


def test_unused_parameters_are_searched_only_in_trainable_encoders() -> None:
    """Torch warns once per process if a search finds none."""
    module: Any = nn.ModuleDict({"encoder": timm.create_model("resnet10t", num_classes=0), "head": nn.Linear(2, 2)})
    module.encoder_freezer = None
    assert may_have_unused_parameters(module)
    module["encoder"].requires_grad_(False)
    assert not may_have_unused_parameters(module)


def test_cache_depends_on_the_architecture(images: Dataset, tmp_path: Path) -> None:
    def train_on(activation: nn.Module, name: str, features: Path | None) -> Run:
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), activation)
        settings = {"data": images, "freeze": True, "epochs": 1, "batch_size": 20, "frozen_draws": 1, "progress": False}
        return contraport.train(**settings, encoder=encoder, out=tmp_path / name, features=features)

    train_on(nn.ReLU(), "first", tmp_path / "features")
    shared, without_cache = train_on(nn.Tanh(), "shared", tmp_path / "features"), train_on(nn.Tanh(), "alone", None)
    assert [row["loss"] for row in shared.metrics_rows()] == [row["loss"] for row in without_cache.metrics_rows()]


def test_frozen_run_resumes_without_its_initial_weights(images: Dataset, initial_run: Run) -> None:
    other_schedule = train(images, initial_run, "whole", freeze=True)
    run = train(images, initial_run, freeze=True, epochs=1, lr_scheduler="constant", warmup_epochs=0.0)
    longer = train(images, initial_run, "longer", freeze=True, epochs=2, lr_scheduler="constant", warmup_epochs=0.0)
    shutil.rmtree(initial_run.path)
    contraport.train(data=images, resume=True, out=run.path, epochs=2, progress=False)
    assert are_equal_states(dict(run.model().state_dict()), dict(longer.model().state_dict()))
    assert not are_equal_states(dict(run.model().state_dict()), dict(other_schedule.model().state_dict()))


def test_encoder_lr_and_layer_decay() -> None:
    encoder = timm.create_model("resnet10t", num_classes=0)
    module = nn.ModuleDict({"encoder": encoder, "head": nn.Linear(4, 2)})
    options = {"optimizer": "adamw", "lr": 1.0, "weight_decay": 0.1, "encoders": [encoder]}
    optimizer = create_optimizer(module, **options, encoder_lr_scale=0.1)
    rates = {id(weights): group["lr"] for group in optimizer.param_groups for weights in group["params"]}
    assert len(rates) == len(list(module.parameters()))
    assert {rates[id(weights)] for weights in encoder.parameters()} == {0.1}
    assert {rates[id(weights)] for weights in module["head"].parameters()} == {1.0}
    assert optimizer.param_groups[0]["lr"] == 1.0
    decays = {id(weights): group["weight_decay"] for group in optimizer.param_groups for weights in group["params"]}
    assert decays[id(encoder.conv1[0].weight)] == 0.1
    assert decays[id(encoder.layer1[0].bn1.weight)] == decays[id(module["head"].bias)] == 0

    optimizer = create_optimizer(module, **options, encoder_lr_scale=0.5, layer_decay=0.5)
    rates = {id(weights): group["lr"] for group in optimizer.param_groups for weights in group["params"]}
    assert len(rates) == len(list(module.parameters()))
    stages = [
        rates[id(layer[0].conv1.weight)] for layer in (encoder.layer1, encoder.layer2, encoder.layer3, encoder.layer4)
    ]
    assert [after / before for before, after in pairwise(stages)] == [2, 2, 2]
    assert stages[-1] <= 0.5
    assert rates[id(encoder.conv1[0].weight)] < stages[0]
    default_optimizer = create_optimizer(module, **options)
    assert {group["lr"] for group in default_optimizer.param_groups} == {1.0}


@pytest.fixture
def pairs() -> Dataset:
    """Pairs of an image, with the shape of `images`, and a vector."""
    generator = np.random.default_rng(1)
    pixels, vectors = generator.integers(0, 255, (40, 1, 8, 8)).astype(np.uint8), generator.normal(size=(40, 5))
    return from_arrays({"photo": pixels, "sound": vectors.astype(np.float32)}, name="pairs")


def test_initial_weights_and_freezing_by_view(pairs: Dataset, initial_run: Run, tmp_path: Path) -> None:
    torch.manual_seed(5)
    mlp = Model("mlp", [(5,)]).tower(0).encoder
    torch.save(mlp.state_dict(), tmp_path / "mlp.pt")
    init = {"image": str(initial_run.path), "sound": str(tmp_path / "mlp.pt")}
    settings = {"data": pairs, "init": init, "encoder": {"sound": "mlp"}, "freeze": {"photo": True}}
    run = contraport.train(epochs=2, batch_size=20, out=tmp_path / "run", keep_every=1, progress=False, **settings)
    first = Model.from_pretrained(as_run_folder(run).initial_path)
    assert first.encoder_sources == ["small-cnn", "mlp"]
    assert are_equal_states(dict(first.tower(0).encoder.state_dict()), get_encoder_state(initial_run))
    assert are_equal_states(dict(first.tower(1).encoder.state_dict()), dict(mlp.state_dict()))
    assert torch.equal(first.tower(0).mean, initial_run.model().tower(0).mean)
    assert are_equal_states(get_encoder_state(run), get_encoder_state(initial_run))
    assert not are_equal_states(dict(run.model().tower(1).encoder.state_dict()), dict(mlp.state_dict()))
    assert run.model().representation_part == "concatenate"
    shutil.rmtree(initial_run.path)
    (tmp_path / "mlp.pt").unlink()
    extra_options = contraport.train(data=pairs, epochs=3, resume=True, out=run.path, progress=False)
    assert are_equal_states(get_encoder_state(extra_options), dict(first.tower(0).encoder.state_dict()))


def test_freezing_all_views_by_name_equals_freezing_all(pairs: Dataset, tmp_path: Path) -> None:
    both = contraport.train(data=pairs, epochs=1, batch_size=20, out=tmp_path / "both", progress=False)
    options: dict[str, Any] = {"data": pairs, "init": both.path, "epochs": 1, "batch_size": 20, "progress": False}
    frozen_by_view = contraport.train(
        **options, freeze={"photo": True, "1": True}, frozen_draws=2, out=tmp_path / "named"
    )
    frozen_as_a_whole = contraport.train(**options, freeze=True, frozen_draws=2, out=tmp_path / "whole")
    assert as_run_folder(frozen_by_view).features_path.is_dir()
    assert frozen_by_view.model().representation_part == "projection"
    assert are_equal_states(dict(frozen_by_view.model().state_dict()), dict(frozen_as_a_whole.model().state_dict()))
    longer = options | {"epochs": 2, "frozen_draws": 2, "resume": True}
    extended = contraport.train(**longer, freeze={"photo": True, "1": True}, out=frozen_by_view.path)
    assert are_equal_states(
        dict(extended.model().state_dict()),
        dict(contraport.train(**longer, out=frozen_as_a_whole.path).model().state_dict()),
    )
    for cache_options in ({"frozen_draws": 2}, {"features": tmp_path / "kept"}):
        with raises_usage_error(f"{next(iter(cache_options))}.conflict"):
            contraport.train(**options, **cache_options, freeze={"photo": True, "sound": False}, out=tmp_path / "part")
    assert not (tmp_path / "part").exists()


def test_view_is_initialized_from_the_tower_of_its_name(pairs: Dataset, images: Dataset, tmp_path: Path) -> None:
    two = contraport.train(data=pairs, epochs=1, batch_size=20, out=tmp_path / "two", progress=False)
    run = contraport.train(
        data=images,
        init={"image": two.path},
        freeze=True,
        epochs=1,
        batch_size=20,
        out=tmp_path / "one",
        progress=False,
    )
    assert are_equal_states(get_encoder_state(run), get_encoder_state(two))


def test_accepts_freezing_by_view_of_encoders_without_parameters(pairs: Dataset, tmp_path: Path) -> None:
    torch.save(Model("mlp", [(5,)]).tower(0).encoder.state_dict(), tmp_path / "mlp.pt")
    frozen_state: dict[str, Any] = {
        "init": {"sound": str(tmp_path / "mlp.pt")},
        "freeze": {"photo": True, "sound": True},
    }
    settings = frozen_state | {"encoder": {"photo": "gradients"}}
    run = contraport.train(data=pairs, epochs=1, batch_size=20, out=tmp_path / "run", progress=False, **settings)
    assert run.model().encoder_sources == ["gradients", "mlp"]
    without_cache = {"encoder": {"photo": "gradients"}, "freeze": {"photo": True}}  # no initial weights
    run = contraport.train(data=pairs, epochs=1, batch_size=20, out=tmp_path / "alone", progress=False, **without_cache)
    assert run.model().encoder_sources == ["gradients", "mlp"]


def test_rejects_freezing_random_weights(pairs: Dataset, initial_run: Run, tmp_path: Path) -> None:
    with raises_usage_error("freeze.untrained_view", "sound", "init={'sound': ...}"):
        contraport.train(
            data=pairs, init={"photo": initial_run.path}, freeze=True, out=tmp_path / "run", progress=False
        )
    with raises_usage_error("init.*", "smell"):
        contraport.train(data=pairs, init={"smell": initial_run.path}, out=tmp_path / "run", progress=False)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"freeze": {"image": True}}, "freeze.untrained"),
        ({"freeze": {"image": 3}}, "freeze.image.invalid"),
        ({"freeze": {}}, "freeze.empty"),
        ({"init": {"image": 3}}, "init.image.invalid"),
        ({"pretrained": True, "init": {"image": "x"}}, "init.conflict"),
        ({"init": {"image": "x"}, "encoder": ["mlp"]}, "init.view_number"),
        ({"pretrained": {"image": True}, "encoder": ["mlp"]}, "pretrained.view_number"),
        ({"freeze": True}, "freeze.untrained"),
        ({"freeze": True, "encoder": "small-cnn"}, "freeze.untrained"),
        ({"freeze": True, "pretrained": True, "projection": 0}, "freeze.no_projection"),
        ({"encoder": "gradients", "projection": 0}, "*no_projection"),
        ({"encoder": "gradients", "audit": True}, "audit.frozen"),
        ({"encoder": "gradients", "lora": 2}, "lora.no_weights"),
        ({"freeze": True, "pretrained": True, "freeze_epochs": 1}, "freeze_epochs.conflict"),
        ({"frozen_draws": 2}, "frozen_draws.conflict"),
        ({"features": "here"}, "features.conflict"),
        ({"pretrained": True, "init": "there"}, "init.conflict"),
        ({"pretrained": True}, "pretrained.*"),
        ({"init": "there"}, "init.*"),
        ({"layer_decay": 0.5}, "layer_decay.invalid"),
        ({"encoder_lr_scale": 0.0}, "encoder_lr_scale.invalid"),
        ({"representation": "projection", "projection": 0}, "representation.*"),
    ],
    ids=str,
)
def test_rejects_conflicting_options_before_writing(
    images: Dataset, tmp_path: Path, options: dict[str, Any], code: str
) -> None:
    with raises_usage_error(code):
        contraport.train(data=images, batch_size=20, out=tmp_path / "run", progress=False, **options)
    assert not (tmp_path / "run").exists()
