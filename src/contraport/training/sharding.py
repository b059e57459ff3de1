"""Weights that processes share: torch's FSDP2 keeps a part of each weight in each process."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from contraport.distributed import world


def is_sharded(value: Any) -> bool:
    """Return whether a value is a tensor of which this process has a part."""
    known = sys.modules.get("torch.distributed.tensor")  # half a second to import: without it there are no parts
    return known is not None and isinstance(value, known.DTensor)


def shard(networks: Iterable[nn.Module], device: torch.device) -> None:
    """Keep in each process a part of the weights of some networks, which gather them when they compute.

    The blocks of timm's transformers gather theirs one by one. All let go of them after their forward pass: one
    without a gradient, such as that of a momentum encoder, has no backward pass that would.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world().size,))
    for network in networks:
        blocks = getattr(network, "blocks", None)
        for block in blocks if isinstance(blocks, nn.ModuleList | nn.Sequential) else ():
            if next(block.parameters(), None) is not None:
                fully_shard(block, mesh=mesh, reshard_after_forward=True)
        if next(network.parameters(), None) is not None:
            fully_shard(network, mesh=mesh, reshard_after_forward=True)


def sharded_parameter_names(module: nn.Module) -> list[str]:
    """Return the names of the weights of which this process has a part."""
    return [name for name, weights in module.named_parameters() if is_sharded(weights)]


def whole(values: Any) -> Any:
    """Return a state with whole tensors in the place of parts; all processes call it.

    >>> whole({"weight": torch.ones(2), "steps": [3]})
    {'weight': tensor([1., 1.]), 'steps': [3]}
    """
    if isinstance(values, Mapping):
        return {name: whole(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(map(whole, values))
    return values.full_tensor() if is_sharded(values) else values


def shard_state(values: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with the parts that another state of the same names has, in the place of whole tensors."""
    return {name: _part(value, like.get(name)) for name, value in values.items()}


def shard_optimizer_state(optimizer: Optimizer) -> None:
    """Put parts in the place of the whole tensors of a state that an optimizer has loaded."""
    for weights, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == weights.shape:
                state[name] = _part(value, weights)


def _part(value: Any, like: Any) -> Any:
    if not is_sharded(like) or is_sharded(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def clip_gradients(parameters: Sequence[nn.Parameter], most: float | None) -> Tensor:
    """Return the norm of the gradient of some parameters, which is scaled down to `most` where it is larger.

    >>> weights = nn.Parameter(torch.zeros(2))
    >>> weights.grad = torch.tensor([3.0, 4.0])
    >>> clip_gradients([weights], 1.0), weights.grad.norm()
    (tensor(5.), tensor(1.0000))
    """
    in_parts = [weights for weights in parameters if is_sharded(weights.grad)]
    others = [weights for weights in parameters if not is_sharded(weights.grad)]
    norm = get_total_norm([weights.grad for weights in others if weights.grad is not None])
    if in_parts:
        of_parts: Any = get_total_norm([weights.grad for weights in in_parts if weights.grad is not None])
        norm = torch.hypot(norm.to(of_parts.device), of_parts.full_tensor())
    if most is not None:
        clip_grads_with_norm_(others, most, norm)
        clip_grads_with_norm_(in_parts, most, norm, foreach=False)
    return norm
