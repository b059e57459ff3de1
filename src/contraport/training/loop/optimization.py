"""The optimiser and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Callable

from timm.optim import create_optimizer_v2, list_optimizers  # type: ignore[attr-defined]
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from contraport.errors import check, unknown_name

# Learning rates that suit small encoders and batches of a few hundred items.
DEFAULT_LR = {"adamw": 1e-3, "adam": 1e-3, "sgd": 0.06, "lamb": 2e-3, "lars": 0.3}

# The share of the learning rate that is left when a share of the steps after warm-up is done.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    "linear": lambda done: 1.0 - done,
    "constant": lambda done: 1.0,
}


def check_optimizer(opt: str, lr: float | None) -> None:
    """Raise `UsageError` unless timm knows the optimiser and its learning rate is given or has a default."""
    if opt not in list_optimizers():
        raise unknown_name("opt", opt, DEFAULT_LR)
    check(lr is not None or opt in DEFAULT_LR, f"lr: has no default for opt={opt!r}; give it.")


def make_optimizer(module: nn.Module, *, opt: str, lr: float | None, weight_decay: float) -> Optimizer:
    """Return timm's optimiser of that name; biases, norms and scalars (a learnable temperature) do not decay."""
    rate = DEFAULT_LR[opt] if lr is None else lr
    optimizer: Optimizer = create_optimizer_v2(module, opt=opt, lr=rate, weight_decay=weight_decay)
    return optimizer


def make_schedule(optimizer: Optimizer, *, sched: str, steps: int, warmup: int) -> LambdaLR:
    """Return a schedule that rises linearly over `warmup` steps and then falls to the end of `steps`.

    The rate is a function of the step alone, so a run that is resumed with more epochs follows the longer schedule.

    >>> import torch
    >>> schedule = make_schedule(torch.optim.SGD([torch.zeros(1)], lr=1.0), sched="linear", steps=6, warmup=2)
    >>> [schedule.lr_lambdas[0](step) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    shape = SCHEDULES[sched]

    def share(step: int) -> float:
        return (step + 1) / warmup if step < warmup else shape((step - warmup) / (steps - warmup))

    return LambdaLR(optimizer, share)
