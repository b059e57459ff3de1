"""Where a training computes, what it tells on the way, and its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contraport._utils.lazy import import_object
from contraport.errors import check, check_nonnegative
from contraport.options import Options, int_in_range, one_of, option, subset_of


def _watches(name: str, value: Sequence[str]) -> None:
    import_object("contraport.metrics.registry:parse_scheduled_metrics")(value)


@dataclass(frozen=True, kw_only=True)
class RunningSettings(Options):
    """The device, the seed, the rows and checkpoints that are written, and the folder."""

    device: str = option(
        "auto",
        "auto, cpu, cuda or mps.",
        check=one_of("auto", "cpu", "cuda", "mps"),
        scope="machine",
        group="computing",
    )
    threads: int | None = option(
        None,
        "threads of the processor that compute; default: as many as OMP_NUM_THREADS says, else as many as make a few "
        "steps fast, which for small networks is one. A run keeps the number, which the last bits depend on.",
        check=int_in_range(1),
        scope="machine",
    )
    amp: bool = option(False, "compute in bfloat16 where that is safe (the objective stays in float32).")
    strategy: str = option(
        "ddp",
        "how several processes share the training: ddp, each has all weights; or fsdp, each keeps a part of the "
        "encoders' weights and of the optimizer's state (torch's FSDP2), for encoders that fit in no one GPU.",
        check=one_of("ddp", "fsdp"),
        scope="machine",
    )
    compile: bool = option(
        False,
        "compile the encoders by torch.compile: the first steps take longer, by up to minutes, the others are faster.",
    )
    activation_checkpointing: bool = option(
        False,
        "compute the activations within an encoder of timm or transformers a second time for the gradient instead of "
        "keeping them: less memory, longer steps, the same result. Of small networks cache_chunk does so.",
    )
    seed: int = option(
        0,
        "what all that is random depends on.",
        check=int_in_range(0, most=2**64 - 1),  # what torch's generators take
    )
    log_every: int = option(
        10, "steps between two rows of `metrics.jsonl`.", check=int_in_range(1), group="the run and its folder"
    )
    online_metrics: Sequence[str] = option(
        (),
        "what is measured of some training items at the end of each epoch, into `metrics.jsonl`: names of "
        "`contraport list measures`, such as knn, or knn:every=5 for every fifth epoch; it changes no weight.",
        check=_watches,
        scope="machine",
        formerly="monitor",
    )
    logger: Sequence[str] = option(
        (),
        "where the rows go too: tensorboard, mlflow, wandb, or several of them.",
        check=subset_of("tensorboard", "mlflow", "wandb"),
        scope="machine",
    )
    checkpoint_minutes: float = option(
        10.0,
        "minutes between two checkpoints within an epoch; 0 saves after every step.",
        check=check_nonnegative,
        scope="machine",
        formerly="save_every",
    )
    keep_every: int | None = option(
        None,
        "epochs between two checkpoints that are kept beside the last; default: keep the last only.",
        check=int_in_range(1),
    )
    out: str | Path | None = option(
        None, "the run folder; default: runs/DATA-RECIPE or runs/DATA-OBJECTIVE.", scope="call"
    )
    resume: bool = option(
        False,
        "go on with the run in `out`; what is left out comes from its `config.yaml`, and `epochs` may grow.",
        scope="call",
    )
    overwrite: bool = option(
        False, "replace the run in `out`, which is kept until the new one has a checkpoint.", scope="call"
    )
    dry_run: bool = option(
        False,
        "say how many items and steps there are, and how long they take with how much memory, as a few steps tell, "
        "and write nothing.",
        scope="call",
    )
    profile: bool = option(
        False,
        "record where the time of some steps goes: `profile/trace.json` in the run folder, for chrome://tracing or "
        "Perfetto, and `profile/steps.txt`, a table.",
        scope="call",
    )
    trust_remote_code: bool = option(
        False,
        "on resume or with `init`, import and run the encoder that the run names as ``module:attribute``.",
        scope="call",
        formerly="trust",
    )
    progress: bool = option(True, "show a progress bar and a summary on the standard error.", scope="call")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(not (self.resume and self.dry_run), "dry_run: a run that goes on told it when it began.")
        check(not (self.resume and self.overwrite), "resume: goes on with a run that overwrite would delete.")
