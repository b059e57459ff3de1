"""The optimiser and the learning rate of each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timm.optim import create_optimizer_v2, list_optimizers, param_groups_layer_decay  # type: ignore[attr-defined]
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from contraport._utils.formatting import format_options
from contraport.errors import check, unknown_name_error
from contraport.schedules import ScalarSchedule
from contraport.training.config import Settings

# Learning rates that suit small encoders and batches of a few hundred items.
DEFAULT_LR = {"adamw": 1e-3, "adam": 1e-3, "sgd": 0.06, "lamb": 2e-3, "lars": 0.3}


def check_optimizer(optimizer: str, lr: float | None) -> None:
    """Raise `UsageError` unless timm knows the optimiser and its learning rate is given or has a default."""
    if optimizer not in list_optimizers():
        raise unknown_name_error("optimizer", optimizer, DEFAULT_LR)
    has_lr = lr is not None or optimizer in DEFAULT_LR
    check(has_lr, f"lr: has no default for {format_options(optimizer=optimizer)}; give it.", "missing")


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
    """Return timm's optimiser of that name; biases, norms and scalars (a learnable temperature) do not decay.

    Args:
        module: what is trained.
        optimizer: name of the optimizer.
        lr: peak learning rate; default: that of the optimiser.
        weight_decay: of weights.
        encoders: those within the module whose rate is another.
        encoder_lr_scale: what their rate is multiplied by.
        layer_decay: what it is multiplied by once more for each layer below their last, as timm counts layers.

    Raises:
        UsageError: the layers of an encoder are not known.
    """
    rate = DEFAULT_LR[optimizer] if lr is None else lr
    if encoder_lr_scale == 1 and layer_decay is None:
        uniform: Optimizer = create_optimizer_v2(module, opt=optimizer, lr=rate, weight_decay=weight_decay)
        return uniform
    theirs = {id(weights) for encoder in encoders for weights in encoder.parameters()}
    rest = [(name, weights) for name, weights in module.named_parameters() if id(weights) not in theirs]
    groups = _decayed(rest, rate, weight_decay)  # first, as what is logged is the rate of the first
    for encoder in encoders:
        if layer_decay is None:
            groups += _decayed(list(encoder.named_parameters()), rate * encoder_lr_scale, weight_decay)
            continue
        check_layers(encoder)
        for group in param_groups_layer_decay(encoder, weight_decay, layer_decay=layer_decay):
            scale = encoder_lr_scale * group.pop("lr_scale")
            groups.append({**group, "lr": rate * scale})
    scaled: Optimizer = create_optimizer_v2([group for group in groups if group["params"]], opt=optimizer, lr=rate)
    return scaled


def build_optimizer(settings: Settings, module: nn.Module, encoders: Sequence[nn.Module]) -> Optimizer:
    """Return the optimiser that the settings of a training say; see `create_optimizer`."""
    return create_optimizer(
        module,
        optimizer=settings.optimizer,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        encoders=encoders,
        encoder_lr_scale=settings.encoder_lr_scale,
        layer_decay=settings.layer_decay,
    )


def check_layers(encoder: nn.Module) -> None:
    """Raise `UsageError` unless an encoder says what its layers are, as timm's do."""
    check(
        hasattr(encoder, "group_matcher"),
        f"layer_decay: expected an encoder of timm's, which says what its layers are, got {type(encoder).__name__}.",
    )


def _decayed(named: Sequence[tuple[str, nn.Parameter]], lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """Return the weights that learn in two groups: those that decay, and biases, norms and scalars."""
    learning = [(name, weights) for name, weights in named if weights.requires_grad]
    plain = [weights for name, weights in learning if weights.ndim <= 1 or name.endswith(".bias")]
    fading = [weights for name, weights in learning if not (weights.ndim <= 1 or name.endswith(".bias"))]
    return [
        {"params": plain, "lr": lr, "weight_decay": 0.0},
        {"params": fading, "lr": lr, "weight_decay": weight_decay},
    ]


def build_lr_schedule(optimizer: Optimizer, *, lr_scheduler: str, steps: int, warmup: int) -> LambdaLR:
    """Return a schedule that rises linearly over `warmup` steps and then falls to the end of `steps`.

    The rate is a function of the step alone, so a run that is resumed with more epochs follows the longer schedule.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> schedule = build_lr_schedule(optimizer, lr_scheduler="linear", steps=6, warmup=2)
    >>> [schedule.lr_lambdas[0](step) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    fall = ScalarSchedule(1, 0, steps - warmup, lr_scheduler)

    def share(step: int) -> float:
        return (step + 1) / warmup if step < warmup else fall.value(step - warmup)

    return LambdaLR(optimizer, share)
