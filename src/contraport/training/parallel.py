"""Devices and processes of a training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from contraport.distributed import world
from contraport.training.batch_norm import share_batch_norm
from contraport.training.step.pipeline import Pipeline

_KNOWN_WHOLE = ("contraport", "torch")
"""Packages whose modules give each of their parameters a gradient in each step."""


def device_of(name: str) -> torch.device:
    """Return the device of that name; of `auto` the fastest of this machine."""
    if name != "auto":
        return torch.device(name)
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return torch.device(next((kind for kind, found in there.items() if found), "cpu"))


def parallel(pipeline: Pipeline, device: torch.device) -> nn.Module:
    """Return what the processes of a training call for the loss: the pipeline, or one whose gradients they average."""
    if world().size == 1:
        return pipeline
    share_batch_norm(pipeline, device)
    ids: dict[str, Any] = {"device_ids": [torch.cuda.current_device()]} if device.type == "cuda" else {}
    # All processes make the same buffers (statistics, queue, bank). Our parts have no parameter without a gradient.
    return DistributedDataParallel(
        pipeline, broadcast_buffers=False, find_unused_parameters=may_lack_gradients(pipeline), **ids
    )


def may_lack_gradients(pipeline: Pipeline) -> bool:
    """Return whether a step may leave weights without a gradient: held at first, or in parts of other packages."""
    for_some_steps = pipeline.freezing is not None and pipeline.freezing.steps is not None
    return for_some_steps or any(
        type(module).__module__.partition(".")[0] not in _KNOWN_WHOLE
        and any(weights.requires_grad for weights in module.parameters())
        for module in pipeline.modules()
    )
