"""Options of the optimizer, the learning rate, epochs and batches."""

from __future__ import annotations

from dataclasses import dataclass

from contraport.errors import check, check_nonnegative, check_positive
from contraport.options import BaseOptions, int_in_range, one_of, option
from contraport.schedules import RAMP_FUNCTION_BY_SHAPE


@dataclass(frozen=True, kw_only=True)
class OptimizationSettings(BaseOptions):
    """Options of the optimizer, the learning rate, epochs and batches."""

    epochs: int = option(
        10, "Number of training epochs.", check=int_in_range(1), may_increase_on_resume=True, group="optimization"
    )
    steps: int | None = option(
        None,
        "Number of optimizer steps, in place of `epochs`; rounded up to whole epochs. For a stream, whose length is "
        "unknown: number of steps per epoch, with one epoch unless `epochs` is given.",
        check=int_in_range(1),
    )
    batch_size: int = option(
        256,
        "Number of items per batch, over all processes. An incomplete last batch is dropped. The default is "
        "reduced for small data: to at most a quarter of the items, but not below 32.",
        check=int_in_range(2),
    )
    cache_chunk: int | None = option(
        None,
        "Gradient caching: maximum number of items encoded at a time, over all processes. Each chunk is computed "
        "twice, which gives the gradient of the whole batch with the memory of one chunk. Batch norm normalizes each "
        "chunk by itself; chunks do not depend on the number of processes; default: the whole batch at once.",
        check=int_in_range(2),
    )
    grad_accum_steps: int = option(
        1,
        "Number of batches whose gradients are accumulated for one optimizer step. In contrast to cache_chunk, each "
        "batch has its own negatives.",
        check=int_in_range(1),
        deprecated_name="accumulate",
    )
    optimizer: str = option(
        "adamw",
        "Optimizer, by its name in timm, such as adamw, sgd (with Nesterov momentum) or lars.",
        deprecated_name="opt",
    )
    lr: float | None = option(
        None,
        "Peak learning rate; default: 0.001 for adamw and adam, 0.06 for sgd, 0.002 for lamb, 0.3 for lars. The "
        "defaults suit 256 items per step; for more, multiply by items / 256 for sgd and lars, and by its square root "
        "for the others.",
        check=check_positive,
    )
    encoder_lr_scale: float = option(
        1.0, "Factor on the learning rate of the encoder, such as 0.1 for a pretrained encoder.", check=check_positive
    )
    layer_decay: float | None = option(
        None,
        "Layer-wise learning rate decay: factor per layer below the last, for timm encoders, such as 0.75; default: "
        "none.",
        check=check_positive,
    )
    weight_decay: float = option(
        1e-4, "Weight decay. Not applied to biases, norms and a learned temperature.", check=check_nonnegative
    )
    gradient_clip: float | None = option(
        None, "Maximum gradient norm over all parameters, such as 1.0; default: no clipping.", check=check_positive
    )
    lr_scheduler: str = option(
        "cosine",
        "Learning rate schedule after warmup: cosine, linear or constant.",
        check=one_of(*RAMP_FUNCTION_BY_SHAPE),
        deprecated_name="sched",
    )
    warmup_epochs: float | None = option(
        None,
        "Number of epochs of linear learning rate warmup, such as 2 or 0.5; default: a tenth of `epochs`.",
        check=check_nonnegative,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        message = f"warmup_epochs: must be less than epochs = {self.epochs}, got {self.warmup_epochs}."
        check(self.warmup_epochs is None or self.warmup_epochs < self.epochs, message, "too_large")
