"""Options of the optimization, the device, the checkpoints and the run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contraport._utils.lazy_imports import import_object
from contraport.errors import check, check_nonnegative, check_positive
from contraport.options import BaseOptions, int_in_range, one_of, option, subset_of
from contraport.runs.shared_options import progress_field, seed_field, training_device_field
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
        "Number of items per batch, over all processes. An incomplete last batch is dropped. If not given, it is "
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


@dataclass(frozen=True, kw_only=True)
class RunSettings(BaseOptions):
    """Options of the device, seed, metrics, checkpoints and run folder."""

    device: str = training_device_field(group="computing")
    threads: int | None = option(
        None,
        "Number of CPU threads; default: OMP_NUM_THREADS, else the number that is fastest in a few timed steps (one "
        "for small networks). The run records it, since results depend on it in their last bits.",
        check=int_in_range(1),
        lifetime="machine",
    )
    amp: bool = option(False, "Automatic mixed precision in bfloat16; the objective stays in float32.")
    strategy: str = option(
        "ddp",
        "Strategy for several processes: ddp (each process holds all weights) or fsdp (torch's FSDP2: weights of the "
        "encoders and optimizer state are sharded, for encoders that do not fit on one GPU).",
        check=one_of("ddp", "fsdp"),
        lifetime="machine",
    )
    exchange: str = option(
        "gather",
        "Exchange of embeddings between several processes: gather (each process holds those of the whole batch) or "
        "ring (each holds its own, and blocks travel around the processes: for batches whose embeddings do not fit).",
        check=one_of("gather", "ring"),
        lifetime="machine",
    )
    compile: bool = option(
        False,
        "Compile the encoders with torch.compile: the first steps take up to minutes longer, later steps are faster.",
    )
    activation_checkpointing: bool = option(
        False,
        "Recompute the activations of timm and transformers encoders in the backward pass instead of storing them: "
        "less memory, longer steps, the same result. For other encoders use cache_chunk.",
    )
    seed: int = seed_field()
    log_every: int = option(
        10,
        "Number of steps between two rows of `metrics.jsonl`.",
        check=int_in_range(1),
        group="run folder and logging",
    )
    online_metrics: Sequence[str] = option(
        (),
        "Metrics to compute on a subset of the training items after each epoch and to log to `metrics.jsonl`: names "
        "of `contraport list metrics`, such as knn, or knn:every=5 for every fifth epoch. The trained weights do not "
        "depend on it.",
        check=lambda _, value: import_object("contraport.metrics.registry:parse_scheduled_metrics")(value),
        lifetime="machine",
        deprecated_name="monitor",
    )
    early_stopping: str | None = option(
        None,
        "End the training when a value no longer improves: loss, or a metric as in online_metrics, such as recall@1 "
        "(retrieval between two views, which needs no labels). Settings: patience (epochs without improvement; default "
        "a fifth of the epochs, at least 10) and min_delta, as in recall@1:patience=20,min_delta=0.005.",
        check=lambda _, value: import_object("contraport.training.callbacks.early_stopping:parse_stopping_rule")(value),
        lifetime="machine",
    )
    logger: Sequence[str] = option(
        (),
        "Experiment trackers that receive the metrics too: tensorboard, mlflow, wandb.",
        check=subset_of("tensorboard", "mlflow", "wandb"),
        lifetime="machine",
    )
    checkpoint_minutes: float = option(
        10.0,
        "Minutes between two checkpoints within an epoch; 0 saves after every step.",
        check=check_nonnegative,
        lifetime="machine",
        deprecated_name="save_every",
    )
    keep_every: int | None = option(
        None,
        "Number of epochs between two checkpoints that are kept in addition to the last; default: only the last is "
        "kept.",
        check=int_in_range(1),
    )
    out: str | Path | None = option(
        None, "Run folder to write; default: runs/DATA-RECIPE or runs/DATA-OBJECTIVE.", lifetime="call"
    )
    resume: bool = option(
        False,
        "Resume the run in `out`. Options that are not given come from its `config.yaml`; `epochs` may grow.",
        lifetime="call",
    )
    overwrite: bool = option(
        False, "Replace the run in `out`. The old run is kept until the new one has a checkpoint.", lifetime="call"
    )
    dry_run: bool = option(
        False,
        "Print the numbers of items and steps and, from a few timed steps, the estimated time and peak memory. Writes "
        "nothing.",
        lifetime="call",
    )
    profile: bool = option(
        False,
        "Profile some steps with torch's profiler: writes `profile/trace.json` (for chrome://tracing or Perfetto) and "
        "the table `profile/steps.txt` to the run folder.",
        lifetime="call",
    )
    trust_remote_code: bool = option(
        False,
        "With `resume` or `init`: import and run the encoder that the run names as ``module:attribute``. Only for code "
        "you trust.",
        lifetime="call",
        deprecated_name="trust",
    )
    progress: bool = progress_field("Show progress and a summary on standard error.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(not (self.resume and self.dry_run), "dry_run: cannot be combined with resume.", "conflict")
        check(not (self.resume and self.overwrite), "resume: cannot be combined with overwrite.", "conflict")
