"""Data parallelism by DDP or FSDP2, with batch norm over all processes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from contraport.distributed import current_processes
from contraport.errors import check
from contraport.training.config import Settings
from contraport.training.step.training_module import TrainingModule


def check_strategy_and_exchange(settings: Settings) -> None:
    """Raise `UsageError` for conflicting options, or multi-process options in one process."""
    for name, value, default in (("strategy", settings.strategy, "ddp"), ("exchange", settings.exchange, "gather")):
        message = f"{name}: {value} requires several processes; start them with torchrun."
        check(value == default or current_processes().size > 1, message, "one_process")
    if settings.strategy == "ddp":
        return
    others = {
        "audit": settings.audit,
        "negatives mined": settings.mined_negatives_spec is not None,
        settings.freezing_cause: settings.freezes_some_encoder_throughout,
        "online_metrics": bool(settings.online_metrics),
        "freeze_epochs": settings.freeze_epochs > 0,
    }
    wrong = [name for name, is_used in others.items() if is_used]
    # Each of these runs the encoder in a single process, which has only its shard.
    check(not wrong, f"strategy: fsdp cannot be combined with {', '.join(wrong)}.", "conflict")


def resolve_available_device(name: str) -> torch.device:
    """Return the named torch device, with `auto` preferring CUDA, then MPS.

    Raises:
        UsageError: the device is not available.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    chosen = next(kind for kind, is_available in available.items() if is_available) if name == "auto" else name
    message = f"device: {name!r} is not available on this machine; use auto or cpu."
    check(available.get(chosen, True), message, "unavailable")
    return torch.device(chosen)


def wrap_data_parallel(module: TrainingModule, device: torch.device, strategy: str) -> nn.Module:
    """Wrap the training module to average gradients over processes.

    With a single process, the module itself is returned. With the strategy `ddp` each process has all weights; with
    `fsdp` the weights of the encoders are sharded.
    """
    if current_processes().size == 1:
        return module
    install_sync_batch_norm_on_any_device(module, device)
    if strategy == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        # Weights are gathered when a layer computes, and blocks of timm transformers one by one. They are freed after
        # the forward pass: a network without gradients, such as a momentum encoder, has no backward pass to free them.
        mesh = init_device_mesh(device.type, (current_processes().size,))
        for network in module.list_all_encoders():
            blocks = getattr(network, "blocks", None)
            for part in (*(blocks if isinstance(blocks, nn.ModuleList | nn.Sequential) else ()), network):
                if next(part.parameters(), None) is not None:
                    fully_shard(part, mesh=mesh, reshard_after_forward=True)
    ignored = [name for name, weights in module.named_parameters() if is_sharded_tensor(weights)]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ignored)
    if not any(weights.requires_grad for name, weights in module.named_parameters() if name not in ignored):
        return module
    options: dict[str, Any] = {"device_ids": [torch.cuda.current_device()]} if device.type == "cuda" else {}
    parameters = inspect.signature(DistributedDataParallel.__init__).parameters
    sync_argument = "forward_sync_buffers" if "forward_sync_buffers" in parameters else "broadcast_buffers"  # old torch
    options[sync_argument] = False  # all processes compute equal buffers (statistics, queue, bank)
    return DistributedDataParallel(module, find_unused_parameters=may_have_unused_parameters(module), **options)


def may_have_unused_parameters(module: TrainingModule) -> bool:
    """Return whether some trainable parameters may get no gradient in some steps.

    That is so for encoders frozen for the first epochs, and possible for modules of other packages: those of contraport
    and torch use all parameters in each step.
    """
    for_some_steps = module.encoder_freezer is not None and module.encoder_freezer.frozen_steps is not None
    return for_some_steps or any(
        type(module).__module__.partition(".")[0] not in ("contraport", "torch")
        and any(weights.requires_grad for weights in module.parameters())
        for module in module.modules()
    )


def is_sharded_tensor(value: Any) -> bool:
    """Return whether a value is a `DTensor`, whose entries are distributed over processes."""
    module = sys.modules.get("torch.distributed.tensor")  # takes half a second to import; not imported: no shards
    return module is not None and isinstance(value, module.DTensor)


def gather_sharded_state(values: Any) -> Any:
    """Gather the sharded tensors of a state dict to full tensors.

    All processes must call it.

    >>> gather_sharded_state({"weight": torch.ones(2), "steps": [3]})
    {'weight': tensor([1., 1.]), 'steps': [3]}
    """
    if isinstance(values, Mapping):
        return {name: gather_sharded_state(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(map(gather_sharded_state, values))
    return values.full_tensor() if is_sharded_tensor(values) else values


def shard_like(value: Any, template: Any) -> Any:
    """Shard a full tensor as `template` is sharded; return other values unchanged."""
    if not is_sharded_tensor(template) or is_sharded_tensor(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(template.device), template.device_mesh, template.placements)


def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float | None) -> Tensor:
    """Clip the total gradient norm in place, and return the norm before clipping.

    >>> weights = nn.Parameter(torch.zeros(2))
    >>> weights.grad = torch.tensor([3.0, 4.0])
    >>> clip_gradients([weights], 1.0), weights.grad.norm()
    (tensor(5.), tensor(1.0000))
    """
    sharded = [weights for weights in parameters if is_sharded_tensor(weights.grad)]
    others = [weights for weights in parameters if not is_sharded_tensor(weights.grad)]
    # Sharded and plain gradients are clipped apart, as torch mixes them in no function, but by their common norm.
    norm = get_total_norm([weights.grad for weights in others if weights.grad is not None])
    if sharded:
        sharded_norm: Any = get_total_norm([weights.grad for weights in sharded if weights.grad is not None])
        norm = torch.hypot(norm.to(sharded_norm.device), sharded_norm.full_tensor())
    if max_norm is not None:
        clip_grads_with_norm_(others, max_norm, norm)
        clip_grads_with_norm_(sharded, max_norm, norm, foreach=False)
    return norm


class CrossProcessBatchNorm(_BatchNorm):
    """Batch norm with mean and variance over the items of all processes.

    It works on any device. `torch.nn.SyncBatchNorm` computes the same, faster, but on GPUs only.

    Shape: ``(b, C, ...)`` to the same; `b` may differ between processes.

    >>> layer = CrossProcessBatchNorm(2).train()
    >>> layer(torch.tensor([[1.0, 5.0], [3.0, 9.0]])).round(decimals=2)
    tensor([[-1., -1.],
            [ 1.,  1.]], grad_fn=<RoundBackward1>)
    """

    def forward(self, inputs: Tensor) -> Tensor:
        if not (self.training or self.running_mean is None):
            return F.batch_norm(inputs, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        values = inputs.to(torch.promote_types(inputs.dtype, torch.float32))  # bfloat16 is too coarse for the sums
        axes = [axis for axis in range(values.dim()) if axis != 1]
        shape = [-1 if axis == 1 else 1 for axis in range(values.dim())]
        processes = current_processes()
        count = processes.all_reduce(values.new_tensor(float(values[:, 0].numel())))
        mean = processes.all_reduce(values.sum(axes)) / count
        centred = values - mean.view(shape)  # two passes: E[x^2] - E[x]^2 would cancel
        variance = processes.all_reduce(centred.square().sum(axes)) / count
        if self.running_mean is not None and self.track_running_stats:
            tracked = cast(Tensor, self.num_batches_tracked).add_(1)
            share = 1 / float(tracked) if self.momentum is None else self.momentum
            unbiased = variance.detach() * count / (count - 1)
            self.running_mean.lerp_(mean.detach().to(self.running_mean.dtype), share)
            cast(Tensor, self.running_var).lerp_(unbiased.to(self.running_mean.dtype), share)
        normalised = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normalised = normalised * self.weight.view(shape) + self.bias.view(shape)
        return normalised.to(inputs.dtype)


class _CrossProcessBatchNormAct(CrossProcessBatchNorm):
    """Synchronized version of timm's batch norm layer that includes dropout and activation."""

    drop: nn.Module
    act: nn.Module

    def forward(self, inputs: Tensor) -> Tensor:
        activated: Tensor = self.act(self.drop(super().forward(inputs)))
        return activated


def install_sync_batch_norm_on_any_device(module: nn.Module, device: torch.device) -> None:
    """Synchronize a module's batch norm layers in place, keeping its state dict keys."""
    for name, child in module.named_children():
        if device.type == "cuda":
            from timm.layers import convert_sync_batchnorm  # type: ignore[attr-defined]

            setattr(module, name, convert_sync_batchnorm(child))
        elif isinstance(child, _BatchNorm):
            kind = _CrossProcessBatchNormAct if hasattr(child, "act") else CrossProcessBatchNorm
            shared = kind.__new__(kind)
            shared.__dict__ = child.__dict__  # keeps parameters, buffers, settings and hooks; only forward differs
            setattr(module, name, shared)
        else:
            install_sync_batch_norm_on_any_device(child, device)
