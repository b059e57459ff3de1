"""Encoders with one vector per token, patch or time step, and training with late interaction."""

import pytest
import torch
from tests.errors import raises_usage_error
from torch import nn

import contraport
from contraport._utils.text_bytes import texts_to_tensor
from contraport.catalog import apply_recipe
from contraport.encoders import Model
from contraport.encoders.builtin_networks import Projector
from contraport.training.components.step_builder import build_objective, build_training_module
from contraport.training.config import Settings

ITEMS = {
    "small-cnn": (1, 8, 8),
    "small-tcn": (3, 20),
    "resnet10t": (3, 32, 32),
    "vit_tiny_patch16_224": (3, 32, 32),
}
TEXTS = "a red bag", "bag", "  blue   shoe\nof leather "


@pytest.mark.parametrize("name", ["small-cnn", "small-tcn"])
def test_pooled_feature_is_the_mean_of_the_vectors(name):
    model = Model(name, shapes=[ITEMS[name]]).eval()
    items = [torch.rand(3, *ITEMS[name])]
    (vectors,), (pooled,) = model.encode(items, pooled=False), model.encode(items)
    torch.testing.assert_close(vectors.mean(1), pooled)


@pytest.mark.parametrize(("name", "number"), [("resnet10t", 16), ("vit_tiny_patch16_224", 4)])
def test_timm_vectors_exclude_class_tokens(name, number):
    model = Model(name, shapes=[ITEMS[name]]).eval()
    (vectors,) = model.encode([torch.rand(2, *ITEMS[name])], pooled=False)
    assert vectors.shape == (2, number, model.num_features)


def test_text_vectors_are_word_features():
    model = Model("small-text", shapes=[()], projection=16).eval()
    features = model.encode([texts_to_tensor(TEXTS)], pooled=False)
    words = model.encode([texts_to_tensor(["a", "red", "bag"])])[0]
    torch.testing.assert_close(features[0][0, :3], words)
    assert features[0].any(2).tolist() == [[True, True, True, False], [True] + 3 * [False], 4 * [True]]
    (projections,) = model.project(features)
    assert projections.shape == (3, 4, 16)
    assert torch.equal(projections.any(2), features[0].any(2))


@pytest.mark.parametrize("projection", [16, 0])
def test_dims_keep_the_first_coordinates_of_each_vector(projection):
    representation = "projection" if projection > 0 else "concatenate"
    full = Model("small-text", shapes=[()], projection=projection, representation=representation).eval()
    short = full.truncate(2)
    sets = full.encode([texts_to_tensor(TEXTS)], pooled=False)
    (expected,) = full.project(sets)
    assert expected.shape[:2] == (3, 4)
    for (result,) in (short.project(sets), short.to_chosen_representations(sets)):
        assert torch.equal(result, expected[:, :, :2])
    kernel = contraport.LateInteraction("max")
    units = torch.nn.functional.normalize(expected[:, :, :2], dim=2)
    torch.testing.assert_close(
        kernel.similarities(*short.project(sets), *short.project(sets)), kernel.similarities(units, units)
    )


def test_projector_normalizes_over_vectors_without_padding():
    projector = Projector(4, 8, 3, layers=2)
    sets = torch.randn(5, 6, 4)
    sets[:, 4:] = 0
    torch.testing.assert_close(projector(sets)[:, :4].flatten(0, 1), projector(sets[:, :4].flatten(0, 1)))


def test_rejects_encoders_without_vectors():
    with raises_usage_error("encoder.no_vectors"):
        Model("mlp", shapes=[(4,)]).encode([torch.rand(2, 4)], pooled=False)

    class NarrowVectors(nn.Module):
        def forward(self, items):
            return items

        def forward_tokens(self, items):
            return items[:, None, :2]

    with raises_usage_error("encoder.vectors_shape"):
        Model(NarrowVectors(), shapes=[(4,)]).encode([torch.rand(2, 4)], pooled=False)


def compute_step_loss(chunk=None, **options):
    """Return the loss and the gradients of a step on pairs of texts."""
    texts = [f"item {word} number {word}" for word in "abcdefgh"], [f"{word} thing" * (1 + k % 3) for k, word in
                                                                  enumerate("abcdefgh")]  # fmt: skip
    dataset = contraport.data.from_arrays(texts)
    defaults = {"recipe": "late-interaction", "cache_chunk": chunk, "augment": "none"} | options
    settings = Settings(**apply_recipe(defaults))
    module = build_training_module(settings, dataset, build_objective(settings), steps_per_epoch=1).eval()
    batch = next(iter(contraport.data.build_loader(dataset, 8)))
    value = module(batch, step=0)
    value.backward()
    return value.detach(), [weights.grad for weights in module.parameters() if weights.grad is not None]


def test_step_in_chunks_equals_the_step_on_the_whole_batch():
    full, in_chunks = compute_step_loss(), compute_step_loss(chunk=3)
    torch.testing.assert_close(in_chunks[0], full[0])
    for one, other in zip(in_chunks[1], full[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("option", "value"), [("momentum", 0.9), ("negatives", "queue"), ("predictor", True), ("prototypes", 4)]
)
def test_rejects_options_that_need_one_vector_per_item(option, value):
    with raises_usage_error(f"{option}.sets"):
        compute_step_loss(**{option: value})


def test_training_on_pairs_of_texts_is_reproducible(tmp_path):
    texts = [f"the number {n}" for n in range(64)], [f"{n} is a number" for n in range(64)]
    options = {"recipe": "late-interaction", "batch_size": 16, "progress": False, "threads": 1, "device": "cpu"}
    data = contraport.data.from_arrays(texts)
    first, second = (contraport.train(data=data, epochs=1, out=tmp_path / name, **options).model() for name in "ab")
    assert all(torch.equal(one, other) for one, other in zip(first.parameters(), second.parameters(), strict=True))
