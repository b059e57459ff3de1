"""Builds the optimizer, learning rate schedule and loop of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from contraport._utils.formatting import format_keyword_or_flag, format_options
from contraport.data import local_batch_offset
from contraport.data.data_loader import ClosableDataLoader, StreamLoader
from contraport.errors import UsageError, check, unknown_name_error
from contraport.schedules import RampSchedule
from contraport.training.config import Settings
from contraport.training.loop import Callback, Loop
from contraport.training.step.training_module import TrainingModule

DEFAULT_LR_BY_OPTIMIZER = {"adamw": 1e-3, "adam": 1e-3, "sgd": 0.06, "lamb": 2e-3, "lars": 0.3}
"""Default peak learning rates; they suit small encoders and batches of a few hundred items."""


def check_optimizer_and_required_lr(optimizer: str, lr: float | None) -> None:
    """Raise `UsageError` if the optimizer is unknown, or `lr` is missing."""
    from timm.optim import list_optimizers  # type: ignore[attr-defined]

    if optimizer not in list_optimizers():
        error = unknown_name_error("optimizer", optimizer, DEFAULT_LR_BY_OPTIMIZER)
        raise UsageError(f"{error} Also valid: any timm name, with {format_keyword_or_flag('lr')}.", kind="unknown")
    has_lr = lr is not None or optimizer in DEFAULT_LR_BY_OPTIMIZER
    check(has_lr, f"lr: required with {format_options(optimizer=optimizer)}, not given.", "missing")


def create_optimizer(
    module: nn.Module,
    *,
    optimizer: str,
    lr: float | None,
    weight_decay: float,
    encoders: Sequence[nn.Module] = (),
    encoder_lr_scale: float = 1.0,
    layer_decay: float | None = None,
) -> Optimizer:
    """Create a timm optimizer, without weight decay for biases, norm layers and scalars.

    Args:
        module: the module to train.
        optimizer: name of the optimizer.
        lr: peak learning rate; default: that of the optimizer.
        weight_decay: weight decay.
        encoders: encoders within the module with their own learning rate.
        encoder_lr_scale: factor on the learning rate of the encoders.
        layer_decay: additional factor per layer of an encoder of timm below its last.
    """
    from timm.optim import create_optimizer_v2, param_groups_layer_decay  # type: ignore[attr-defined]

    rate = DEFAULT_LR_BY_OPTIMIZER[optimizer] if lr is None else lr
    if encoder_lr_scale == 1 and layer_decay is None:
        uniform: Optimizer = create_optimizer_v2(module, opt=optimizer, lr=rate, weight_decay=weight_decay)
        return uniform
    encoder_ids = {id(weights) for encoder in encoders for weights in encoder.parameters()}
    rest = [(name, weights) for name, weights in module.named_parameters() if id(weights) not in encoder_ids]
    groups = _build_param_groups(rest, rate, weight_decay)  # first: the logged learning rate is that of the first group
    for encoder in encoders:
        if layer_decay is None:
            groups += _build_param_groups(list(encoder.named_parameters()), rate * encoder_lr_scale, weight_decay)
            continue
        for group in param_groups_layer_decay(encoder, weight_decay, layer_decay=layer_decay):
            scale = encoder_lr_scale * group.pop("lr_scale")
            groups.append({**group, "lr": rate * scale})
    scaled: Optimizer = create_optimizer_v2([group for group in groups if group["params"]], opt=optimizer, lr=rate)
    return scaled


def build_loop(
    settings: Settings,
    module: TrainingModule,
    batches: ClosableDataLoader | StreamLoader,
    device: torch.device,
    callbacks: Sequence[Callback],
    *,
    steps_per_epoch: int,
) -> Loop:
    """Build the training loop with the configured optimizer and learning rate schedule."""
    optimizer = create_optimizer(
        module,
        optimizer=settings.optimizer,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        encoders=module.model.encoders,
        encoder_lr_scale=settings.encoder_lr_scale,
        layer_decay=settings.layer_decay,
    )
    warmup_epochs = settings.epochs / 10 if settings.warmup_epochs is None else settings.warmup_epochs
    schedule = build_lr_schedule(
        optimizer,
        lr_scheduler=settings.lr_scheduler,
        steps=settings.epochs * steps_per_epoch,
        warmup_steps=int(warmup_epochs * steps_per_epoch),
    )
    return Loop(
        module,
        batches,
        optimizer,
        schedule,
        epochs=settings.epochs,
        device=device,
        grad_accum_steps=settings.grad_accum_steps,
        gradient_clip=settings.gradient_clip,
        amp=settings.amp,
        offset=local_batch_offset(settings.batch_size),
        callbacks=callbacks,
    )


def _build_param_groups(
    named: Sequence[tuple[str, nn.Parameter]], lr: float, weight_decay: float
) -> list[dict[str, Any]]:
    """Split trainable weights into parameter groups without and with weight decay."""
    trainable = [(name, weights) for name, weights in named if weights.requires_grad]
    undecayed = [weights for name, weights in trainable if weights.ndim <= 1 or name.endswith(".bias")]
    decayed = [weights for name, weights in trainable if not (weights.ndim <= 1 or name.endswith(".bias"))]
    return [
        {"params": undecayed, "lr": lr, "weight_decay": 0.0},
        {"params": decayed, "lr": lr, "weight_decay": weight_decay},
    ]


def build_lr_schedule(optimizer: Optimizer, *, lr_scheduler: str, steps: int, warmup_steps: int) -> LambdaLR:
    """Build the learning rate schedule, a linear warmup and then a decay.

    The decay to 0 is cosine or linear, or the rate stays constant. The rate is a function of the step alone, so a run
    that is resumed with more epochs follows the longer schedule.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> schedule = build_lr_schedule(optimizer, lr_scheduler="linear", steps=6, warmup_steps=2)
    >>> [schedule.lr_lambdas[0](step) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    decay = RampSchedule(1, 0, steps - warmup_steps, lr_scheduler)

    def factor(step: int) -> float:
        return (step + 1) / warmup_steps if step < warmup_steps else decay.value(step - warmup_steps)

    return LambdaLR(optimizer, factor)
