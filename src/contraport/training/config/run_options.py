"""Options of the device, the seed, metrics, checkpoints and the run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contraport._utils.lazy_imports import import_object
from contraport.errors import check, check_nonnegative
from contraport.options import BaseOptions, int_in_range, one_of, option, subset_of
from contraport.runs.shared_options import progress_field, seed_field, training_device_field


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
        "Resume the run in `out`, which must be given. Its `config.yaml` has the options; `epochs` may be increased.",
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
