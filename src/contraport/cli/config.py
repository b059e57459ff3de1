"""Options of `contraport list`, `demo`, `docs` and `doctor`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from contraport.command import EXTRA, GETTING_STARTED, Command
from contraport.options import Options, int_in_range, option, option_metadata


@dataclass(frozen=True, kw_only=True)
class ListOptions(Options):
    """Options of `contraport list`."""

    what: Literal["recipes", "objectives", "encoders", "data", "metrics", "suites"] = field(
        kw_only=False, metadata=option_metadata("recipes, objectives, encoders, data, metrics or suites.")
    )


LIST = Command(
    ListOptions,
    "contraport.cli.listing:list_names",
    "List the recipes, objectives, encoders, data, metrics or suites that have names.",
    examples=("contraport list recipes", "contraport list objectives"),
    printer="contraport.cli.listing:print_names",
    extra=EXTRA,
    group=GETTING_STARTED,
)


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Options):
    """Options of `contraport.demo`; see there for each."""

    out: str | Path = option("runs/demo", "folder of the two runs and of report.html; runs that it holds are replaced.")
    epochs: int | None = option(
        None, "passes over the data; default: as many as take a minute or so on two cores.", check=int_in_range(1)
    )
    seed: int = option(0, "what all that is random depends on.", check=int_in_range(0, most=2**64 - 1))
    progress: bool = option(True, "show progress bars and summaries.")


DEMO = Command(
    DemoOptions,
    "contraport.cli.demo:demo",
    "Train two encoders on small digits and compare them, in about two minutes.",
    details="""
        One is trained with nt-xent and one with gca-uot. The table says how well a linear probe and a kNN vote tell
        held-out digits apart on frozen features, beside raw pixels and the same encoder untrained.
    """,
    examples=("contraport demo", "contraport demo --json"),
    printer="contraport.cli.demo:print_demo_result",
    extra=EXTRA,
    group=GETTING_STARTED,
    page="start",
)


@dataclass(frozen=True)
class DocsOptions(Options):
    """Options of `contraport docs`."""

    page: str | None = option(None, "a page, such as photos; default: which pages there are.")
    section: str | None = option(None, "a section of it, its heading in small letters with hyphens; default: all.")


DOCS = Command(
    DocsOptions,
    "contraport.cli.docs:docs",
    "Print a page of the documentation, or the list of pages.",
    examples=("contraport docs", "contraport docs photos", "contraport docs troubleshooting out-of-memory"),
    printer="contraport.cli.docs:print_page",
    group=GETTING_STARTED,
)


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(Options):
    """Options of `contraport.doctor`; see there for each."""

    test: bool = option(True, "check, in about a minute, that what is here computes what it should.")


DOCTOR = Command(
    DoctorOptions,
    "contraport.cli.doctor:doctor",
    "Tell what is installed and what the machine has, and check that it works.",
    details="""
        What it prints can be pasted into a report of a fault. Values and gradients of losses are compared with a dense
        computation in double precision, by every backend and on every device that there is; where the extra `train`
        is installed a small training is run, stopped and gone on with. The exit status is 1 if a check fails.
    """,
    examples=("contraport doctor", "contraport doctor --test false"),
    printer="contraport.cli.doctor:print_diagnosis",
    failure_check="contraport.cli.doctor:check_diagnosis",
    group=GETTING_STARTED,
)
