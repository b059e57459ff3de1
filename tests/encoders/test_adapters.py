"""Low-rank adapters (LoRA), compared with explicit matrix products."""

from __future__ import annotations

import sys
import warnings

import pytest
import timm
import torch
from tests.errors import raises_usage_error
from torch import nn

from contraport.encoders import Model
from contraport.encoders.lora import inject_lora, with_merged_lora


def randomize(encoder: nn.Module) -> None:
    """Randomize the factors that are initially zero."""
    generator = torch.Generator().manual_seed(1)
    for name, weights in encoder.named_parameters():
        if "lora_B" in name:
            weights.data = torch.randn(weights.shape, generator=generator) / 10


def test_adapted_layer_computes_w_x_plus_twice_b_a_x() -> None:
    pytest.importorskip("peft")
    encoder = nn.Sequential(nn.Linear(5, 4), nn.ReLU())
    weights, x = encoder[0].weight.clone(), torch.randn(3, 5)
    before = encoder(x)
    inject_lora(encoder, 2)
    assert torch.equal(encoder(x), before)
    trainable = {name: value for name, value in encoder.named_parameters() if value.requires_grad}
    (down,) = (value for name, value in trainable.items() if "lora_A" in name)
    (up,) = (value for name, value in trainable.items() if "lora_B" in name)
    assert len(trainable) == 2
    assert (down.shape, up.shape) == ((2, 5), (4, 2))
    randomize(encoder)
    expected = (x @ (weights + 2 * up @ down).T + encoder[0].bias).relu()
    torch.testing.assert_close(encoder(x), expected)


@pytest.mark.parametrize("name", ["small-cnn", "mlp", "test_vit", "test_resnet", "test_efficientnet"])
def test_merged_model_has_the_original_structure(name: str) -> None:
    pytest.importorskip("peft")
    shape = (6,) if name == "mlp" else (3, 32, 32)
    torch.manual_seed(0)
    model = Model(name, [shape]).eval()
    original = {key: value.clone() for key, value in model.state_dict().items()}
    inject_lora(model.encoders[0], 2)
    items = torch.rand(4, *shape)
    assert all(
        torch.equal(value, original[key.replace(".base_layer", "")])
        for key, value in model.state_dict().items()
        if "lora_" not in key
    )
    randomize(model.encoders[0])
    with torch.no_grad():
        adapted, merged = model(items), with_merged_lora(model)
        torch.testing.assert_close(merged(items), adapted, rtol=1e-4, atol=1e-4)
        assert torch.equal(model(items), adapted)
    assert merged.state_dict().keys() == original.keys()
    assert any(not torch.equal(value, original[key]) for key, value in merged.state_dict().items())
    assert not torch.equal(adapted, Model(name, [shape]).eval()(items))
    assert with_merged_lora(merged) is merged


def test_transposed_linear_layers_of_gpt2() -> None:
    pytest.importorskip("peft")
    layers = pytest.importorskip("transformers.pytorch_utils")
    encoder = nn.Sequential(layers.Conv1D(4, 5))  # from 5 to 4
    weights, x = encoder[0].weight.clone(), torch.randn(3, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inject_lora(encoder, 2)
    randomize(encoder)
    (down,) = (value for name, value in encoder.named_parameters() if "lora_A" in name)
    (up,) = (value for name, value in encoder.named_parameters() if "lora_B" in name)
    expected = x @ (weights + 2 * (up @ down).T) + encoder[0].bias
    torch.testing.assert_close(encoder(x), expected)
    model = nn.Module()
    model.encoders = nn.ModuleList([encoder])
    (merged,) = with_merged_lora(model).encoders
    assert type(merged[0]) is layers.Conv1D
    torch.testing.assert_close(merged(x), expected)


def test_adapts_no_attention_modules_or_grouped_convolutions() -> None:
    pytest.importorskip("peft")
    encoder = timm.create_model("test_vit", num_classes=0)
    inject_lora(encoder, 1)
    adapted_layers = {name.split(".lora_A")[0] for name, _ in encoder.named_parameters() if ".lora_A" in name}
    assert adapted_layers == {
        f"blocks.{block}.{layer}"
        for block in range(len(encoder.blocks))
        for layer in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    }
    network = nn.ModuleDict({"attention": nn.MultiheadAttention(4, 2), "after": nn.Linear(4, 4)})
    inject_lora(network, 1)
    assert {name.partition(".")[0] for name, _ in network.named_parameters() if ".lora_A" in name} == {"after"}
    grouped = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, groups=4))
    inject_lora(grouped, 1)
    assert {name.partition(".")[0] for name, _ in grouped.named_parameters() if ".lora_A" in name} == {"0"}


def test_rejects_encoder_without_adaptable_layers() -> None:
    pytest.importorskip("peft")
    with raises_usage_error("lora.unsupported_encoder", "Sequential"):
        inject_lora(nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()), 2)


def test_rejects_rank_above_every_layer() -> None:
    pytest.importorskip("peft")
    network = nn.Sequential(nn.Linear(5, 3), nn.Linear(9, 4))
    inject_lora(network, 4)
    with raises_usage_error("lora.invalid", 4, 5):
        inject_lora(nn.Sequential(nn.Linear(5, 3), nn.Linear(9, 4)), 5)


def test_missing_peft_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with raises_usage_error("lora.*", "contraport[peft]"):
        inject_lora(nn.Linear(2, 2), 1)
