"""Devices and processes of a training."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from contraport.distributed import world
from contraport.errors import check
from contraport.training.batch_norm import convert_batch_norm
from contraport.training.config import Settings
from contraport.training.sharding import shard, sharded_parameter_names
from contraport.training.step.training_module import TrainingModule

_KNOWN_WHOLE = ("contraport", "torch")
"""Packages whose modules give each of their parameters a gradient in each step."""


_SYNC = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")  # older versions of torch know the second alone
    if name in inspect.signature(DistributedDataParallel.__init__).parameters
)


def check_strategy(settings: Settings) -> None:
    """Raise `UsageError` where encoders that are kept in parts do not go with the rest of a training."""
    if settings.strategy == "ddp":
        return
    check(world().size > 1, "strategy: fsdp requires several processes; start them by torchrun.")
    others = {
        "audit": settings.audit,
        settings.freeze_source: settings.freezes,
        "online_metrics": bool(settings.online_metrics),
    }
    wrong = [name for name, is_given in others.items() if is_given]
    check(not wrong, f"strategy: fsdp cannot be combined with {', '.join(wrong)}, which one process computes alone.")
    check(settings.freeze_epochs == 0, "strategy: fsdp cannot be combined with freeze_epochs.")


def resolve_device(name: str) -> torch.device:
    """Return the device of that name; of `auto` the fastest of this machine."""
    if name != "auto":
        return torch.device(name)
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return torch.device(next((kind for kind, found in there.items() if found), "cpu"))


def parallel(pipeline: TrainingModule, device: torch.device, strategy: str = "ddp") -> nn.Module:
    """Return what the processes of a training call for the loss: the pipeline, or one whose gradients they average.

    Args:
        pipeline: is on the device.
        device: of this process.
        strategy: `ddp`, each process has all weights; or `fsdp`, each has a part of those of the encoders.
    """
    if world().size == 1:
        return pipeline
    convert_batch_norm(pipeline, device)
    if strategy == "fsdp":
        shard([encoder for model in pipeline.encoding() for encoder in model.encoders], device)
    ignored = sharded_parameter_names(pipeline)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(pipeline, ignored)
    if not any(weights.requires_grad for name, weights in pipeline.named_parameters() if name not in ignored):
        return pipeline
    how: dict[str, Any] = {"device_ids": [torch.cuda.current_device()]} if device.type == "cuda" else {}
    how[_SYNC] = False  # all processes make the same buffers: statistics, queue, bank
    return DistributedDataParallel(pipeline, find_unused_parameters=may_have_unused_parameters(pipeline), **how)


def may_have_unused_parameters(pipeline: TrainingModule) -> bool:
    """Return whether a step may leave weights without a gradient: held at first, or in parts of other packages."""
    for_some_steps = pipeline.freezing is not None and pipeline.freezing.steps is not None
    return for_some_steps or any(
        type(module).__module__.partition(".")[0] not in _KNOWN_WHOLE
        and any(weights.requires_grad for weights in module.parameters())
        for module in pipeline.modules()
    )
