import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from contraport import embedding
from contraport.data import Dataset, Views, from_arrays, load
from contraport.embedding import (
    FORWARD_BLOCK_ITEMS,
    LARGE_ITEMS_PER_BLOCK,
    LoaderConfig,
    RawInputEncoder,
    apply_in_fixed_blocks,
    embed_items_as_vectors,
    embed_views,
    inference_mode,
)
from contraport.encoders import Model
from tests import TIMEOUT
from tests.allocation import LargestAllocation
from tests.errors import raises_usage_error

ROOT = Path(__file__).parents[1]
ENCODERS = [
    ("mlp", (6,)),
    ("mlp", (1, 8, 8)),
    ("small-cnn", (1, 8, 8)),
    ("small-cnn", (3, 64, 64)),
    ("small-tcn", (3, 20)),
    ("resnet10t", (3, 8, 8)),
    ("test_vit", (3, 32, 32)),
]


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits", "test")


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model("small-cnn", [(1, 8, 8)])


def has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def test_embedding_does_not_change_the_model(model: Model, digits: Dataset) -> None:
    assert has_batch_norm(model)
    model.train()
    encoder = model.tower(0).encoder
    encoder.eval()
    next(iter(encoder.children())).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    embed_items_as_vectors(model, digits, batch_size=64)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [module.training for module in model.modules()] == flags
    assert all(parameter.grad is None for parameter in model.parameters())


def test_embeddings_are_features_of_the_model_in_order(model: Model, digits: Dataset) -> None:
    features = embed_items_as_vectors(model, digits, batch_size=100)
    items = digits.__getitems__(list(range(len(digits)))).views[0]
    with torch.no_grad():
        assert torch.allclose(features, model.eval()(items), atol=1e-5)
    assert not features.is_inference()
    assert not features.requires_grad


def assert_features_are_reproducible(encoder: str, shape: tuple[int, ...]) -> None:
    """Check that features do not depend on the batch size, other items, the position and the threads."""
    torch.manual_seed(0)
    model, items, threads = Model(encoder, [shape]), torch.rand(150, *shape).numpy(), torch.get_num_threads()
    expected = embed_items_as_vectors(model, from_arrays(items), batch_size=512)
    for batch_size, number in ((1, 150), (100, 150), (512, 149), (512, 64), (7, 3), (512, 1)):
        features = embed_items_as_vectors(model, from_arrays(items[:number]), batch_size=batch_size)
        assert torch.equal(features, expected[:number]), (encoder, shape, batch_size, number)
    features = embed_items_as_vectors(model, from_arrays(np.roll(items, 37, axis=0)))
    assert torch.equal(features, expected.roll(37, dims=0)), (encoder, shape)
    for number in (1, 5):
        torch.set_num_threads(number)
        assert torch.equal(embed_items_as_vectors(model, from_arrays(items)), expected), (encoder, shape, number)
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("encoder", "shape"), ENCODERS)
def test_features_do_not_depend_on_batch_size_position_or_threads(encoder: str, shape: tuple[int, ...]) -> None:
    assert_features_are_reproducible(encoder, shape)


MACHINES = [
    {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
]


@pytest.mark.parametrize("machine", [MACHINES[0], pytest.param(MACHINES[1], marks=pytest.mark.slow)])
def test_features_do_not_depend_on_the_processor(machine: dict[str, str]) -> None:
    code = "import torch; torch.set_num_threads(5)\nfrom tests.test_embedding import *\n"
    code += "for case in ENCODERS: assert_features_are_reproducible(*case)"
    completed = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | machine,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert completed.returncode == 0, completed.stderr


def test_number_of_threads_is_restored() -> None:
    threads, result = torch.get_num_threads(), []
    torch.set_num_threads(3)
    threads_of_blocks = apply_in_fixed_blocks(
        lambda x: x.new_full((len(x), 1), torch.get_num_threads()), [torch.zeros(90, 2)], model=nn.ReLU()
    )
    later = threading.Thread(target=lambda: result.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert (threads_of_blocks == 1).all()
    assert [torch.get_num_threads(), *result] == [3, 3]
    torch.set_num_threads(threads)


class StatefulModel(nn.Module):
    """Model that stores a tensor during the forward pass, which another thread must not replace."""

    num_features = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.stored = x.clone()
        time.sleep(0.001)
        return self.stored


@pytest.mark.parametrize("hooked", [False, True])
def test_stateful_model_gets_blocks_in_order(hooked: bool) -> None:
    threads, model, items = torch.get_num_threads(), StatefulModel(), torch.rand(1000, 2)
    torch.set_num_threads(4)
    if hooked:
        model, stored = nn.Identity(), {}
        model.register_forward_pre_hook(lambda _, inputs: stored.update(x=inputs[0].clone()))
        model.register_forward_hook(lambda *_: (time.sleep(0.001), stored["x"])[1])
    with inference_mode(model):
        assert torch.equal(apply_in_fixed_blocks(model, [items], model=model), items)
    torch.set_num_threads(threads)


class RecordingModel(nn.Module):
    """Model that records the sizes of blocks, and requires contiguous inputs, as `view` does."""

    num_features = 2

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[tuple[int, bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.blocks.append((len(x), x.is_contiguous()))
        return x.view(len(x), -1)[:, :2]


@pytest.mark.parametrize(
    ("shape", "items_per_block"),
    [
        ((3, 64, 64), LARGE_ITEMS_PER_BLOCK),
        ((3, 32, 32), FORWARD_BLOCK_ITEMS),
        ((6, 2000), LARGE_ITEMS_PER_BLOCK),
        ((20_000,), FORWARD_BLOCK_ITEMS),
    ],
)
def test_block_size_depends_on_image_size(shape: tuple[int, ...], items_per_block: int) -> None:
    model, items = RecordingModel(), torch.rand(70, *shape)
    with inference_mode(model):
        assert torch.equal(apply_in_fixed_blocks(model, [items], model=model), items.view(70, -1)[:, :2])
    assert model.blocks == [(items_per_block, True)] * (2 * FORWARD_BLOCK_ITEMS // items_per_block)


def test_images_are_channels_last_for_built_in_encoders() -> None:
    is_channels_last = []

    def function(x: torch.Tensor) -> torch.Tensor:
        is_channels_last.append(x.is_contiguous(memory_format=torch.channels_last))
        return x.mean((2, 3))

    items = torch.rand(5, 3, 70, 70)
    built_in, custom = (
        apply_in_fixed_blocks(function, [items], model=model) for model in (nn.Identity(), RecordingModel())
    )
    assert is_channels_last == [True] * (FORWARD_BLOCK_ITEMS // LARGE_ITEMS_PER_BLOCK) + [False] * (
        FORWARD_BLOCK_ITEMS // LARGE_ITEMS_PER_BLOCK
    )
    torch.testing.assert_close(built_in, custom)


@pytest.mark.parametrize("augment", ["standard", "mixup"])
def test_random_views_are_the_same_for_every_batch_size(model: Model, digits: Dataset, augment: str) -> None:
    views = Views(digits, augment=augment)
    first, second = (embed_views(model, digits, views, LoaderConfig(batch_size=size)) for size in (7, 512))
    assert torch.equal(torch.stack(first), torch.stack(second))


def test_flags_are_restored_after_an_error(model: Model) -> None:
    model.train()
    with pytest.raises(RuntimeError), inference_mode(model):
        raise RuntimeError
    assert all(module.training for module in model.modules())


def test_rejects_nonfinite_features_of_a_model(model: Model, digits: Dataset) -> None:
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with raises_usage_error("features.not_finite", "item 0"):
        embed_items_as_vectors(model, digits)
    with raises_usage_error("features.not_finite", "item 0"):
        embed_views(model, digits, Views(digits), LoaderConfig(), project=True)


def test_rejects_items_of_another_shape(digits: Dataset) -> None:
    with raises_usage_error("data.shape", (3, 32, 32), "digits", (1, 8, 8)):
        embed_items_as_vectors(Model("small-cnn", [(3, 32, 32)]), digits)


def test_rejects_an_invalid_batch_size(model: Model, digits: Dataset) -> None:
    with raises_usage_error("batch_size.invalid", 0):
        embed_items_as_vectors(model, digits, batch_size=0)


def test_raw_inputs_are_scaled_flattened_and_shrunk_only_when_large() -> None:
    small = torch.full((2, 1, 8, 8), 255, dtype=torch.uint8)
    assert torch.equal(RawInputEncoder([(1, 8, 8)])(small), torch.ones(2, 64))
    large = RawInputEncoder([(3, 96, 96)])
    assert large.downscaled_side == 36
    assert large(torch.full((2, 3, 96, 96), 0.5)).shape == (2, 3 * 36 * 36)


def test_raw_inputs_concatenate_views() -> None:
    views = torch.rand(2, 5), torch.rand(2, 3, 4), torch.rand(2, 1, 6, 6)
    rows = RawInputEncoder([view.shape[1:] for view in views])(*views)
    assert torch.equal(rows, torch.cat([view.flatten(1) for view in views], dim=1))


def test_all_views_of_the_data_are_embedded() -> None:
    generator = np.random.default_rng(0)
    dataset = from_arrays(tuple(generator.normal(size=(9, width)).astype(np.float32) for width in (5, 3)))
    model = Model(shapes=dataset.shapes)
    features = embed_items_as_vectors(model, dataset, batch_size=4)
    with torch.no_grad():
        expected = model.eval()(*dataset.__getitems__(list(range(9))).views)
    assert torch.allclose(features, expected, atol=1e-5)


def test_views_of_a_color_split_are_embedded() -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 16, 16), dtype=np.uint8)
    dataset = from_arrays(images)
    views = Views(dataset, views="color")
    model = Model(shapes=views.unaugmented_shapes)
    features = embed_items_as_vectors(model, dataset, views=views)
    with torch.no_grad():
        expected = model.eval()(*views.make_unaugmented(dataset.__getitems__(list(range(6))).views))
    assert torch.allclose(features, expected, atol=1e-5)
    with raises_usage_error("data.shape", (1, 16, 16), (2, 16, 16), "arrays"):
        embed_items_as_vectors(model, dataset)


def test_finite_features_are_checked_in_blocks(monkeypatch):
    monkeypatch.setattr(embedding, "ITEMS_PER_FINITE_CHECK", 20)
    features = torch.ones(1_000, 50)
    with LargestAllocation() as largest:
        embedding.check_finite_features(features)
    assert largest.nbytes < features.nbytes / 10
    features[777, 3] = torch.inf
    with raises_usage_error("features.not_finite", "item 782"):
        embedding.check_finite_features(features, first_item=5)
