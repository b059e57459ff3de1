"""What `contraport demo` is asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from contraport.options import Options, option, whole
from contraport.verbs import BEGIN, EXTRA, Verb


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Options):
    """What `contraport.demo` is asked; see there for each."""

    out: str | Path = option("runs/demo", "folder of the two runs and of report.html; runs that it holds are replaced.")
    epochs: int | None = option(
        None, "passes over the data; default: as many as take a minute or so on two cores.", check=whole(1)
    )
    seed: int = option(0, "what all that is random depends on.", check=whole(0, most=2**64 - 1))
    progress: bool = option(True, "show progress bars and summaries.")


VERB = Verb(
    DemoOptions,
    "contraport.cli.demo:demo",
    "Train two encoders on small digits and compare them, in about two minutes.",
    about="""
        One is trained with nt-xent and one with gca-uot. The table says how well a linear probe and a kNN vote tell
        held-out digits apart on frozen features, beside raw pixels and the same encoder untrained.
    """,
    examples=("contraport demo", "contraport demo --json"),
    show="contraport.cli.demo:print_demonstration",
    extra=EXTRA,
    group=BEGIN,
    page="start",
)
