"""Options of `contraport list`, `demo`, `docs` and `doctor`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from contraport.options import (
    TRAIN_AND_REPORT_EXTRAS,
    BaseOptions,
    Command,
    int_in_range,
    one_of,
    option,
    option_metadata,
)
from contraport.runs.shared_options import progress_field, seed_field

LIST_NAMES = ("recipes", "objectives", "encoders", "data", "metrics", "suites")
"""Values of `what` in `contraport list what`."""


@dataclass(frozen=True, kw_only=True)
class ListOptions(BaseOptions):
    """Options of `contraport list`."""

    what: str = field(
        kw_only=False,
        metadata=option_metadata(
            "Recipes, objectives, encoders, data, metrics or suites.",
            # "measures" is the deprecated name of "metrics".
            check=lambda name, value: one_of(*LIST_NAMES)(name, "metrics" if value == "measures" else value),
        ),
    )


LIST_COMMAND_SPEC = Command(
    ListOptions,
    "contraport.cli.listing:list_names",
    "List the named recipes, objectives, encoders, data sets, metrics or suites.",
    examples=("contraport list recipes", "contraport list objectives"),
    printer_path="contraport.cli.listing:print_names",
    required_extra=TRAIN_AND_REPORT_EXTRAS,
    group="getting started",
)


@dataclass(frozen=True, kw_only=True)
class DemoOptions(BaseOptions):
    """Options of `contraport.demo`."""

    out: str | Path = option("runs/demo", "Folder of the two runs and of report.html; existing runs are replaced.")
    epochs: int | None = option(
        None, "Number of training epochs; default: about a minute's worth on two cores.", check=int_in_range(1)
    )
    seed: int = seed_field()
    progress: bool = progress_field("Show progress bars and summaries.")


DEMO_COMMAND_SPEC = Command(
    DemoOptions,
    "contraport.cli.demo:demo",
    "Train two encoders on small digits and compare them, in about two minutes.",
    details="""
        One encoder is trained with nt-xent, one with gca-uot. A table compares the accuracy of a linear probe and of
        kNN on their frozen features, on raw pixels and on the features of the untrained encoder.
    """,
    examples=("contraport demo", "contraport demo --json"),
    printer_path="contraport.cli.demo:print_demo_result",
    required_extra=TRAIN_AND_REPORT_EXTRAS,
    group="getting started",
    docs_page="start",
)


@dataclass(frozen=True)
class DocsOptions(BaseOptions):
    """Options of `contraport docs`."""

    page: str | None = option(None, "Page, such as photos; default: a list of the pages.")
    section: str | None = option(None, "Section, its heading in lower case with hyphens; default: the whole page.")


DOCS_COMMAND_SPEC = Command(
    DocsOptions,
    "contraport.cli.docs:docs",
    "Print a page of the documentation, or the list of pages.",
    examples=("contraport docs", "contraport docs photos", "contraport docs troubleshooting out-of-memory"),
    printer_path="contraport.cli.docs:print_wrapped_markdown",
    group="getting started",
)


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(BaseOptions):
    """Options of `contraport.doctor`."""

    test: bool = option(True, "Run the self-tests, about a minute.")
    progress: bool = progress_field("Show a line per self-test on standard error.")


DOCTOR_COMMAND_SPEC = Command(
    DoctorOptions,
    "contraport.cli.doctor:doctor",
    "Show the installed versions and the hardware, and run self-tests.",
    details="""
        The output can be pasted into a bug report. The self-tests compare values and gradients of losses, for every
        backend and device, with a dense computation in double precision. With the extra `train` installed, a small
        training is also run, stopped and resumed. The exit status is 1 if a test fails.
    """,
    examples=("contraport doctor", "contraport doctor --test false"),
    printer_path="contraport.cli.doctor:print_diagnosis",
    failure_check_path="contraport.cli.doctor:check_diagnosis",
    group="getting started",
)
