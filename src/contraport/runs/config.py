"""Options that commands on a run have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contraport._utils.lazy import import_object
from contraport.options import Options, int_in_range, option, option_metadata

if TYPE_CHECKING:
    from contraport.runs import Run as Run
else:
    Run = Any  # a command's options are read without torch, and their types with them


VIEW = (
    "one of the run's views, by its name, number or kind, such as image: what the loss sees of it alone, where views "
    "can be compared; default: the representation of items as a whole."
)
"""Help of the option ``view``."""


def is_run(name: str, value: Any) -> None:
    """Check that what a command gives as run folders are such."""
    for one in value if isinstance(value, list) else [value]:
        import_object("contraport.runs.run_folder:RunFolder")(one).check_is_run()


@dataclass(frozen=True, kw_only=True)
class TrustOptions(Options):
    """Options where a run folder may name code as its encoder."""

    trust_remote_code: bool = option(
        False,
        "import and run the encoder that the run names as ``module:attribute``; your own, or one you looked at.",
        formerly="trust",
    )


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(TrustOptions):
    """Options of a command that opens a run and looks at data with its encoder, but the run.

    Raises:
        UsageError: a value that is wrong.
    """

    data: str | Path | Any | None = option(None, "as in `contraport train`; default: the run's own.")
    columns: dict[str, Any] | None = option(
        None, "what the columns of a table are for, as in `contraport train`; default: the run's own of its data."
    )
    root: str | Path | None = option(None, "folder of named data; default: the run's own.")
    batch_size: int = option(
        512,
        "items fetched at a time, rounded up to whole blocks of 64, in which they are embedded; it changes no number.",
        check=int_in_range(1),
    )
    num_workers: int | None = option(
        None,
        "processes that fetch data; default: none for data in memory, else one per core but one.",
        check=int_in_range(0),
        formerly="workers",
    )
    device: str = option("auto", "auto, cpu, cuda or another of torch's devices.")
    progress: bool = option(True, "show progress bars on a terminal.")


@dataclass(frozen=True, kw_only=True)
class RunOptions(EncoderOptions):
    """Options of such a command on one run."""

    run: str | Path | Run = field(kw_only=False, metadata=option_metadata("the run folder.", check_exists=is_run))
