"""What `contraport docs` is asked."""

from __future__ import annotations

from dataclasses import dataclass

from contraport.options import Options, option
from contraport.verbs import BEGIN, Verb


@dataclass(frozen=True)
class DocsOptions(Options):
    """What is to be read."""

    page: str | None = option(None, "a page, such as photos; default: which pages there are.")
    section: str | None = option(None, "a section of it, its heading in small letters with hyphens; default: all.")


VERB = Verb(
    DocsOptions,
    "contraport.cli.docs:docs",
    "Print a page of the documentation, or the list of pages.",
    examples=("contraport docs", "contraport docs photos", "contraport docs troubleshooting out-of-memory"),
    show="contraport.cli.docs:print_page",
    group=BEGIN,
)
