"""How long is trained, in which batches, and by which steps."""

from __future__ import annotations

from dataclasses import dataclass

from contraport.errors import check, check_nonnegative, check_positive
from contraport.options import Options, int_in_range, one_of, option
from contraport.schedules import SHAPES


@dataclass(frozen=True, kw_only=True)
class OptimizationSettings(Options):
    """The epochs, the batches, the optimiser and its rate."""

    epochs: int = option(10, "passes over the data.", check=int_in_range(1), extendable=True, group="optimisation")
    steps: int | None = option(
        None,
        "how many steps to train, instead of `epochs`: rounded up to whole epochs; or of a stream, of which nobody "
        "knows how many items it has, the steps of an epoch, of which there is then one unless `epochs` says more.",
        check=int_in_range(1),
    )
    batch_size: int = option(
        256,
        "items in a batch, of all processes together; a smaller last batch is left out. Where none is given, a quarter "
        "of the items at most, but 32.",
        check=int_in_range(2),
    )
    cache_chunk: int | None = option(
        None,
        "encode a batch in chunks of at most so many items, of all processes together, each computed twice: the "
        "gradient of the whole batch with the memory of a chunk. Batch norm sees one chunk at a time, the same chunks "
        "however many processes there are; default: all at once.",
        check=int_in_range(2),
    )
    grad_accum_steps: int = option(
        1,
        "batches whose gradients are added up for one step. Unlike cache_chunk it adds no negatives.",
        check=int_in_range(1),
        formerly="accumulate",
    )
    optimizer: str = option(
        "adamw", "optimiser, a name of timm's, such as adamw, sgd (with Nesterov's momentum) or lars.", formerly="opt"
    )
    lr: float | None = option(
        None,
        "peak learning rate; default: 0.001 for adamw and adam, 0.06 for sgd, 0.002 for lamb, 0.3 for lars; all suit "
        "256 items in a step. For more, multiply by items / 256 for sgd and lars, by its square root for the others.",
        check=check_positive,
    )
    encoder_lr_scale: float = option(
        1.0,
        "what the learning rate is multiplied by for the encoder, such as 0.1 for a pretrained one.",
        check=check_positive,
    )
    layer_decay: float | None = option(
        None,
        "what the learning rate is multiplied by for each layer of a timm encoder below its last, such as 0.75; "
        "default: all layers have one.",
        check=check_positive,
    )
    weight_decay: float = option(
        1e-4, "decay of weights; biases, norms and the temperature have none.", check=check_nonnegative
    )
    gradient_clip: float | None = option(
        None,
        "largest norm of a step's gradient, over all weights; a longer gradient is scaled down to it, such as 1.0; "
        "default: gradients are not clipped.",
        check=check_positive,
    )
    lr_scheduler: str = option(
        "cosine",
        "how the learning rate falls after warm-up: cosine, linear or constant.",
        check=one_of(*SHAPES),
        formerly="sched",
    )
    warmup_epochs: float | None = option(
        None,
        "epochs, or a part of one, in which the learning rate rises; default: a tenth of `epochs`.",
        check=check_nonnegative,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.warmup_epochs is None or self.warmup_epochs < self.epochs,
            f"warmup_epochs: must be less than epochs = {self.epochs}, got {self.warmup_epochs}.",
            "too_large",
        )

    @property
    def warmup(self) -> float:
        """Epochs in which the learning rate rises."""
        return self.epochs / 10 if self.warmup_epochs is None else self.warmup_epochs
