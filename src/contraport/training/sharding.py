"""Sharding of weights and optimizer state over processes, with torch's FSDP2."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from contraport.distributed import current_processes


def is_sharded_tensor(value: Any) -> bool:
    """Return whether a value is a sharded tensor."""
    module = sys.modules.get("torch.distributed.tensor")  # takes half a second to import; not imported: no shards
    return module is not None and isinstance(value, module.DTensor)


def shard_networks(networks: Iterable[nn.Module], device: torch.device) -> None:
    """Shard the weights of networks over processes; weights are gathered when a layer computes.

    Blocks of timm transformers are gathered one by one. Gathered weights are freed after the forward pass, since a
    network without gradients, such as a momentum encoder, has no backward pass that would free them.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (current_processes().size,))
    for network in networks:
        blocks = getattr(network, "blocks", None)
        for block in blocks if isinstance(blocks, nn.ModuleList | nn.Sequential) else ():
            if next(block.parameters(), None) is not None:
                fully_shard(block, mesh=mesh, reshard_after_forward=True)
        if next(network.parameters(), None) is not None:
            fully_shard(network, mesh=mesh, reshard_after_forward=True)


def sharded_parameter_names(module: nn.Module) -> list[str]:
    """Return the names of the sharded parameters of a module."""
    return [name for name, weights in module.named_parameters() if is_sharded_tensor(weights)]


def gather_state(values: Any) -> Any:
    """Gather the sharded tensors of a state dict; a collective operation that all processes must call.

    >>> gather_state({"weight": torch.ones(2), "steps": [3]})
    {'weight': tensor([1., 1.]), 'steps': [3]}
    """
    if isinstance(values, Mapping):
        return {name: gather_state(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(map(gather_state, values))
    return values.full_tensor() if is_sharded_tensor(values) else values


def shard_state(values: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Shard the full tensors of a state dict like the tensors of the same names in another state dict."""
    return {name: _shard_like(value, like.get(name)) for name, value in values.items()}


def shard_optimizer_state(optimizer: Optimizer) -> None:
    """Shard the full tensors of a loaded optimizer state like their parameters, in place."""
    for weights, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == weights.shape:
                state[name] = _shard_like(value, weights)


def _shard_like(value: Any, like: Any) -> Any:
    if not is_sharded_tensor(like) or is_sharded_tensor(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def clip_gradients(parameters: Sequence[nn.Parameter], most: float | None) -> Tensor:
    """Clip the total gradient norm of parameters to at most `most`, in place; return the norm before clipping.

    >>> weights = nn.Parameter(torch.zeros(2))
    >>> weights.grad = torch.tensor([3.0, 4.0])
    >>> clip_gradients([weights], 1.0), weights.grad.norm()
    (tensor(5.), tensor(1.0000))
    """
    in_parts = [weights for weights in parameters if is_sharded_tensor(weights.grad)]
    others = [weights for weights in parameters if not is_sharded_tensor(weights.grad)]
    # Sharded and plain gradients are clipped apart, as torch mixes them in no function, but by their common norm.
    norm = get_total_norm([weights.grad for weights in others if weights.grad is not None])
    if in_parts:
        of_parts: Any = get_total_norm([weights.grad for weights in in_parts if weights.grad is not None])
        norm = torch.hypot(norm.to(of_parts.device), of_parts.full_tensor())
    if most is not None:
        clip_grads_with_norm_(others, most, norm)
        clip_grads_with_norm_(in_parts, most, norm, foreach=False)
    return norm
