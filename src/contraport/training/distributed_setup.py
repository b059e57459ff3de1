"""Setup of distributed training: selects the device, and wraps the training module by DDP or FSDP."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from contraport.distributed import current_processes
from contraport.errors import check
from contraport.training.batch_norm import convert_batch_norm
from contraport.training.config import Settings
from contraport.training.sharding import shard_networks, sharded_parameter_names
from contraport.training.step.training_module import TrainingModule

_ALWAYS_WITH_GRADIENTS = ("contraport", "torch")
"""Packages whose modules give a gradient to each of their parameters in each step."""


_BUFFER_SYNC_ARGUMENT = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")  # older versions of torch have only the second
    if name in inspect.signature(DistributedDataParallel.__init__).parameters
)


def check_strategy(settings: Settings) -> None:
    """Raise `UsageError` if the strategy is fsdp and another setting does not support it."""
    if settings.strategy == "ddp":
        return
    check(
        current_processes().size > 1,
        "strategy: fsdp requires several processes; start them with torchrun.",
        "one_process",
    )
    others = {
        "audit": settings.audit,
        settings.freezing_option: settings.freezes_some_encoder,
        "online_metrics": bool(settings.online_metrics),
        "freeze_epochs": settings.freeze_epochs > 0,
    }
    wrong = [name for name, is_used in others.items() if is_used]
    # Each of these runs the encoder in a single process, which has only its shard.
    check(not wrong, f"strategy: fsdp cannot be combined with {', '.join(wrong)}.", "conflict")


def select_training_device(name: str) -> torch.device:
    """Return the torch device of a name; for `auto` the fastest available one."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def wrap_data_parallel(module: TrainingModule, device: torch.device, strategy: str = "ddp") -> nn.Module:
    """Wrap the training module so that gradients are averaged over processes; unchanged for a single process.

    Args:
        module: the module, on the device.
        device: device of this process.
        strategy: `ddp`, each process has all weights; or `fsdp`, the weights of the encoders are sharded.
    """
    if current_processes().size == 1:
        return module
    convert_batch_norm(module, device)
    if strategy == "fsdp":
        shard_networks([encoder for model in module.encoding_models() for encoder in model.encoders], device)
    ignored = sharded_parameter_names(module)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ignored)
    if not any(weights.requires_grad for name, weights in module.named_parameters() if name not in ignored):
        return module
    how: dict[str, Any] = {"device_ids": [torch.cuda.current_device()]} if device.type == "cuda" else {}
    how[_BUFFER_SYNC_ARGUMENT] = False  # no broadcast: all processes compute equal buffers (statistics, queue, bank)
    return DistributedDataParallel(module, find_unused_parameters=may_have_unused_parameters(module), **how)


def may_have_unused_parameters(module: TrainingModule) -> bool:
    """Return whether some trainable parameters may get no gradient in some steps.

    That is so for encoders frozen for the first epochs, and possible for modules of other packages.
    """
    for_some_steps = module.encoder_freezer is not None and module.encoder_freezer.steps is not None
    return for_some_steps or any(
        type(module).__module__.partition(".")[0] not in _ALWAYS_WITH_GRADIENTS
        and any(weights.requires_grad for weights in module.parameters())
        for module in module.modules()
    )
