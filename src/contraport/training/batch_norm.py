"""Batch norm synchronized over processes, for CPUs as well as GPUs."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from timm.layers import convert_sync_batchnorm  # type: ignore[attr-defined]
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from contraport import distributed


class CrossProcessBatchNorm(_BatchNorm):
    """Batch norm whose mean and variance are over the items of all processes, on any device.

    `torch.nn.SyncBatchNorm` computes the same, faster, but on GPUs only.

    Shape: ``(b, C, ...)`` to the same; `b` may differ between processes.

    >>> layer = CrossProcessBatchNorm(2).train()
    >>> layer(torch.tensor([[1.0, 5.0], [3.0, 9.0]])).round(decimals=2)
    tensor([[-1., -1.],
            [ 1.,  1.]], grad_fn=<RoundBackward1>)
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the normalized inputs."""
        if not (self.training or self.running_mean is None):
            return F.batch_norm(inputs, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        values = inputs.to(torch.promote_types(inputs.dtype, torch.float32))  # bfloat16 is too coarse for the sums
        axes = [axis for axis in range(values.dim()) if axis != 1]
        shape = [-1 if axis == 1 else 1 for axis in range(values.dim())]
        count = distributed.current_processes().all_reduce(values.new_tensor(float(values[:, 0].numel())))
        mean = distributed.current_processes().all_reduce(values.sum(axes)) / count
        centred = values - mean.view(shape)  # two passes: E[x^2] - E[x]^2 would cancel
        variance = distributed.current_processes().all_reduce(centred.square().sum(axes)) / count
        self._update_running_statistics(mean.detach(), variance.detach() * count / (count - 1))
        normalised = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normalised = normalised * self.weight.view(shape) + self.bias.view(shape)
        return normalised.to(inputs.dtype)

    def _update_running_statistics(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or not self.track_running_stats:
            return
        tracked = cast(Tensor, self.num_batches_tracked).add_(1)
        share = 1 / float(tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        cast(Tensor, self.running_var).lerp_(variance.to(self.running_mean.dtype), share)


class _CrossProcessBatchNormAct(CrossProcessBatchNorm):
    """Synchronized version of timm's batch norm layer that includes dropout and activation."""

    drop: nn.Module
    act: nn.Module

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the normalized, activated inputs."""
        activated: Tensor = self.act(self.drop(super().forward(inputs)))
        return activated


def convert_batch_norm(module: nn.Module, device: torch.device) -> None:
    """Replace all batch norm layers of a module by synchronized ones, in place; state dict keys do not change."""
    for name, child in module.named_children():
        if device.type == "cuda":
            setattr(module, name, convert_sync_batchnorm(child))
        elif isinstance(child, _BatchNorm):
            setattr(module, name, _synchronize(child))
        else:
            convert_batch_norm(child, device)


def _synchronize(norm: _BatchNorm) -> CrossProcessBatchNorm:
    kind = _CrossProcessBatchNormAct if hasattr(norm, "act") else CrossProcessBatchNorm
    shared = kind.__new__(kind)
    shared.__dict__ = norm.__dict__  # keeps parameters, buffers, settings and hooks; only forward differs
    return shared
