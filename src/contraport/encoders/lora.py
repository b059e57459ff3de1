"""Low-rank adapters (LoRA), trainable factors beside an encoder's frozen weights."""

from __future__ import annotations

import copy
import re
from typing import Any

from torch import nn

from contraport.encoders.model import Model
from contraport.errors import check, import_optional


def inject_lora(encoder: nn.Module, rank: int) -> None:
    """Add LoRA adapters to the linear layers of an encoder in place.

    In an encoder without linear layers, the convolutions get adapters. The output W x becomes W x + 2 B A x, where A
    has `rank` random rows and B has `rank` columns, initially zero. Only A and B are trainable. Grouped convolutions
    and the layers inside torch's attention get no adapter.

    Raises:
        UsageError: no layer can be adapted, the rank exceeds that of every layer, or peft is not installed.

    Source: Hu et al. (2022), LoRA: low-rank adaptation of large language models, section 4.1; implemented by peft.
    """
    peft = import_optional("peft", "peft", "lora: this option")
    attentions = [part for part in encoder.modules() if isinstance(part, nn.MultiheadAttention)]
    excluded = {id(part) for attention in attentions for part in attention.modules()}
    named = [(name, part) for name, part in encoder.named_modules() if name and id(part) not in excluded]
    names = [name for name, part in named if isinstance(part, nn.Linear) or _is_transposed_linear(part)]
    if not names:
        names = [name for name, part in named if isinstance(part, nn.Conv1d | nn.Conv2d) and part.groups == 1]
    kind = type(encoder).__name__
    check(len(names) > 0, f"lora: {kind} has no linear layers or convolutions to adapt.", "unsupported_encoder")
    full = max(min(encoder.get_parameter(f"{name}.weight").flatten(1).shape) for name in names)
    check(rank <= full, f"lora: must be at most {full}, the rank of the widest layer, got {rank}.")
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=2.0 * rank,  # the factor on B A x is alpha / rank
        target_modules="|".join(map(re.escape, names)),
        fan_in_fan_out=any(_is_transposed_linear(encoder.get_submodule(name)) for name in names),
    )
    peft.inject_adapter_in_model(config, encoder)


def with_merged_lora(model: Model) -> Model:
    """Return a copy of a model with LoRA merged into its weights.

    A model without adapters is returned itself.
    """
    if not any(_is_lora_layer(part) for part in model.modules()):
        return model
    whole = copy.deepcopy(model)
    for encoder in whole.encoders:
        for name, part in list(encoder.named_modules()):
            if _is_lora_layer(part):
                layer: Any = part
                layer.merge()
                parent, _, own = name.rpartition(".")
                setattr(encoder.get_submodule(parent), own, layer.get_base_layer())
        vars(encoder).pop("peft_config", None)
        encoder.requires_grad_(True)
    return whole


def _is_transposed_linear(part: nn.Module) -> bool:
    """Return whether a layer is the `Conv1D` of the transformers library."""
    kind = type(part)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


def _is_lora_layer(part: nn.Module) -> bool:
    """Return whether a layer is one that peft adapted."""
    return type(part).__module__.startswith("peft.") and hasattr(part, "get_base_layer")
