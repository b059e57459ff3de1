"""Declaration of commands: options, help texts, and the location of the function.

A command is declared in the `config` module of the package that implements it. The command line lists, explains and
parses it from this declaration alone, and the Python function of the same name takes its options as keywords. So
a `config` module imports nothing heavy: what a command needs is imported when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from contraport.errors import hint_on_error
from contraport.options import Option, get_declared_options, with_options_as_parameters

P = ParamSpec("P")
T = TypeVar("T")

GETTING_STARTED = "getting started"
TRAIN_AND_EVALUATE = "train and evaluate"
USE_ENCODER = "use a trained encoder"
PAIRS = "pairs"
GROUPS = (GETTING_STARTED, TRAIN_AND_EVALUATE, USE_ENCODER, PAIRS)
"""Headings of this package's commands in `contraport --help`, in order."""

EXTRA = "train,report"
"""Extras with the packages that the commands of this package need."""


@dataclass(frozen=True)
class Command(Generic[P]):
    """Declaration of a command.

    Attributes:
        options_class: Dataclass of the options of the command.
        function_path: Location of the function, ``module:function``, imported when the command runs.
        summary: One sentence on what the command does.
        details: Further text for the help and the docstring of the function.
        examples: Example command lines for the help.
        printer_path: Location of the function that prints the result unless `--json` is passed; empty for none.
        failure_check_path: Location of a function that raises if the result is a failure, called after printing; empty
            for none.
        resolve_options: Function that adds options that follow from others, such as the settings of a recipe.
        required_extra: Extra of contraport that installs the required packages; empty for none.
        group: Heading of the command in `contraport --help`.
        short_help_options: Options shown by `--help`; all if empty. `--help_all` always shows all.
        docs_page: Documentation page about the command, as in `contraport docs PAGE`; empty for none.
    """

    options_class: Callable[P, object]
    function_path: str
    summary: str
    details: str = ""
    examples: tuple[str, ...] = ()
    printer_path: str = ""
    failure_check_path: str = ""
    resolve_options: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    required_extra: str = ""
    group: str = ""
    short_help_options: tuple[str, ...] = ()
    docs_page: str = ""

    @property
    def options(self) -> Mapping[str, Option]:
        """Declared options of the command, by name."""
        return get_declared_options(self.options_class)

    def with_option_parameters(self, function: Callable[[dict[str, Any]], T]) -> Callable[P, T]:
        """Decorator: turn a function that takes a dict of options into one that takes them as documented keywords.

        Errors get a note with the documentation page of the command; see `options.with_options_as_parameters`.
        """
        hinted = hint_on_error(f"contraport docs {self.docs_page}")(function) if self.docs_page else function
        return with_options_as_parameters(self.options_class, self.details)(hinted)
