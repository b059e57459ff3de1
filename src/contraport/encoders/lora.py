"""Low-rank adapters of encoders (LoRA): factors that learn beside weights that are held."""

from __future__ import annotations

import copy
import re
from typing import Any

from torch import nn

from contraport.encoders.model import Model
from contraport.errors import check, import_optional

EXTRA = "peft"
SCALE = 2.0


def check_peft_installed() -> None:
    """Raise `UsageError` where the package that makes adapters is not installed."""
    import_optional("peft", EXTRA, "lora")


def adapt(encoder: nn.Module, rank: int) -> None:
    """Put an adapter beside each linear layer of an encoder, or of one that has none beside each convolution.

    What the layer gives of x becomes W x + 2 B A x, with r rows of A, drawn, and r columns of B, which begin as zeros.
    A and B learn and nothing else does. Convolutions in groups have none, and what is within torch's own attention.

    Args:
        encoder: is changed in its place.
        rank: r.

    Raises:
        UsageError: it has no such layers, or none of that rank, or the package peft is not installed.

    Source: Hu et al. (2022), LoRA: low-rank adaptation of large language models, section 4.1; by peft.
    """
    peft = import_optional("peft", EXTRA, "lora")
    names = _adaptable(encoder)
    check(
        len(names) > 0,
        f"lora: the encoder {type(encoder).__name__} has neither linear layers nor convolutions to adapt.",
    )
    full = max(min(encoder.get_parameter(f"{name}.weight").flatten(1).shape) for name in names)
    check(rank <= full, f"lora: expected at most {full}, the full rank of the widest layer, got {rank}.")
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=SCALE * rank,
        target_modules="|".join(map(re.escape, names)),
        fan_in_fan_out=any(_is_transposed(encoder.get_submodule(name)) for name in names),
    )
    peft.inject_adapter_in_model(config, encoder)


def merged(model: Model) -> Model:
    """Return a model with what its adapters have learned in its weights, or the model itself where it has none.

    The model stays as it is.
    """
    if not any(_is_adapter(part) for part in model.modules()):
        return model
    whole = copy.deepcopy(model)
    for encoder in whole.encoders:
        for name, part in list(encoder.named_modules()):
            if _is_adapter(part):
                layer: Any = part
                layer.merge()
                parent, _, own = name.rpartition(".")
                setattr(encoder.get_submodule(parent), own, layer.get_base_layer())
        vars(encoder).pop("peft_config", None)
        encoder.requires_grad_(True)
    return whole


def _adaptable(encoder: nn.Module) -> list[str]:
    """Return the names of the layers that have an adapter."""
    within = {
        id(part) for each in encoder.modules() if isinstance(each, nn.MultiheadAttention) for part in each.modules()
    }
    named = [(name, part) for name, part in encoder.named_modules() if name and id(part) not in within]
    linear = [name for name, part in named if isinstance(part, nn.Linear) or _is_transposed(part)]
    return linear or [name for name, part in named if isinstance(part, nn.Conv1d | nn.Conv2d) and part.groups == 1]


def _is_transposed(part: nn.Module) -> bool:
    """Return whether a layer is the linear one of transformers whose weights are (in, out), such as those of GPT-2."""
    kind = type(part)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


def _is_adapter(part: nn.Module) -> bool:
    return type(part).__module__.startswith("peft.") and hasattr(part, "get_base_layer")
