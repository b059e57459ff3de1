"""Options shared by several commands, and base classes with such options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contraport.options import BaseOptions, int_in_range, one_of, option

if TYPE_CHECKING:
    from contraport.runs import Run as Run
else:
    Run = Any  # options and their types are read without importing torch, so that --help is fast


VIEW_HELP = (
    "View of the run, by its name, number or kind, such as image. Its projection is written, which is comparable "
    "between views, or its features if the run has no projection; default: the features of all views side by side, "
    "unless the run was trained with another `representation`."
)
"""Help text of the option `view`."""

DIMS_HELP = (
    "Use only this many first coordinates of each view's features (or projection, with `view`), such as a length "
    "trained with `matryoshka`; default: all."
)
"""Help text of the option `dims`."""


def device_field() -> Any:
    """Return the dataclass field of `device` for commands that use an encoder."""
    return option("auto", "Device: auto (the fastest available), cpu, cuda, mps or another torch device.")


def training_device_field(**metadata: Any) -> Any:
    """Return the dataclass field of `device` for commands that train."""
    help = "Device: auto (the fastest available), cpu, cuda or mps."
    return option("auto", help, check=one_of("auto", "cpu", "cuda", "mps"), lifetime="machine", **metadata)


def num_workers_field() -> Any:
    """Return the dataclass field of the option `num_workers`."""
    return option(
        None,
        "Number of data loading processes; default: 0 for data in memory, else the number of cores minus one.",
        check=int_in_range(0),
        lifetime="machine",
        deprecated_name="workers",
    )


def seed_field() -> Any:
    """Return the dataclass field of the option `seed`."""
    return option(0, "Random seed.", check=int_in_range(0, most=2**64 - 1))  # what torch's generators take


def progress_field(help: str = "Show progress bars on a terminal.") -> Any:
    """Return the dataclass field of the option `progress`."""
    return option(True, help, lifetime="call")


@dataclass(frozen=True, kw_only=True)
class TrustOptions(BaseOptions):
    """Option `trust_remote_code`, which allows importing a run's custom encoder code."""

    trust_remote_code: bool = option(
        False,
        "Import and run the encoder that the run names as ``module:attribute``. Only for code you trust.",
        deprecated_name="trust",
    )


@dataclass(frozen=True, kw_only=True)
class DataEmbeddingOptions(TrustOptions):
    """Options of commands that embed data with the encoders of runs."""

    data: str | Path | Any | None = option(None, "Data, as in `contraport train`; default: those of the run.")
    columns: dict[str, Any] | None = option(
        None, "Roles of table columns, as in `contraport train`; default: the run's for its own data, else inferred."
    )
    root: str | Path | None = option(
        None, "Folder with the files of named data (see `contraport list data`); default: that of the run."
    )
    batch_size: int = option(
        512,
        "Number of items loaded at a time, rounded up to a multiple of 64. Results do not depend on it.",
        check=int_in_range(1),
    )
    num_workers: int | None = num_workers_field()
    device: str = device_field()
    progress: bool = progress_field()
