"""Learned numbers as parameters of one element, (1,): torch's FSDP2 shards none without dimensions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def scalar_parameter(owner: nn.Module, value: float) -> nn.Parameter:
    """Return a parameter that a module is to learn, (1,); the module then loads states in which it was of shape ()."""
    owner.register_load_state_dict_pre_hook(_with_dimension)
    return nn.Parameter(torch.tensor([value]))


def parameter_value(parameter: Tensor) -> float:
    """Return the value of a learned number; of one that processes share all of them call it."""
    whole = getattr(parameter, "full_tensor", None)
    value: float = (parameter if whole is None else whole()).item()
    return value


def _with_dimension(owner: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, parameter in owner.named_parameters(recurse=False):
        value = state.get(prefix + name)
        if parameter.shape == (1,) and isinstance(value, Tensor) and value.ndim == 0:
            state[prefix + name] = value.reshape(1)
