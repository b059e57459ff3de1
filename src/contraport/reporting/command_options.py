"""Options of `contraport report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contraport.options import TRAIN_AND_REPORT_EXTRAS, BaseOptions, Command, option, option_metadata
from contraport.runs.shared_options import Run


@dataclass(frozen=True, kw_only=True)
class ReportOptions(BaseOptions):
    """Options of `contraport.report`."""

    runs: Sequence[str | Path | Run] = field(kw_only=False, metadata=option_metadata("Run folders."))
    out: str | Path = field(metadata=option_metadata("HTML file to write."))
    overwrite: bool = option(False, "Replace `out` if it exists.")


REPORT_COMMAND_SPEC = Command(
    ReportOptions,
    "contraport.reporting:report",
    "Show one or several runs on an HTML page.",
    details="""
        The page is one file with metrics, curves, embeddings and plans. It notes what a run lacks, such as labels or an
        evaluation.
    """,
    examples=("contraport report runs/a runs/b --out comparison.html",),
    printer_path="builtins:print",
    required_extra=TRAIN_AND_REPORT_EXTRAS,
    group="train and evaluate",
    docs_page="evaluating the-page",
)
