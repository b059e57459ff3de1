"""Commands: the options of each, and where its function is.

A command is declared in the `config` module of the package that carries it out. The command line lists, explains and
parses it by this alone, and the function of the same name in Python takes its options as keywords. So nothing heavy is
imported there: what a command needs is imported when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from contraport.errors import explained
from contraport.options import Option, get_options, with_signature_of

P = ParamSpec("P")
T = TypeVar("T")

BEGIN, LEARN, USE = "to begin with", "learn, and see what it is worth", "use what was learned"
"""Groups of the commands of this package."""

EXTRA = "train,report"
"""Extras with the packages that the commands of this package need."""


@dataclass(frozen=True)
class Command(Generic[P]):
    """Declaration of a command, known before it runs.

    Attributes:
        asks: the dataclass of its options.
        function: where the function is that does it, ``module:function``, imported when it runs.
        summary: what it does, in a few words.
        about: what else there is to say of it, to its help and to the function's docstring.
        examples: command lines to start from.
        show: where the function is that prints its result, in place of which `--json` may; nothing where a command
            prints none.
        judge: where the function is that raises for a result that is a failure, once it was shown; nothing where none
            is.
        resolve: returns what follows from what is given, if something does.
        extra: which extra of contraport brings what it needs; nothing where none does.
        group: its heading in the help of all commands.
        usual: the options that its short help tells; all where none are named.
        page: the page of the documentation that explains it, as `contraport docs` takes it; nothing where none does.
    """

    asks: Callable[P, object]
    function: str
    summary: str
    about: str = ""
    examples: tuple[str, ...] = ()
    show: str = ""
    judge: str = ""
    resolve: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    extra: str = ""
    group: str = ""
    usual: tuple[str, ...] = ()
    page: str = ""

    @property
    def options(self) -> Mapping[str, Option]:
        """What is known of each option, by its name."""
        return get_options(self.asks)

    def keywords(self, function: Callable[[dict[str, Any]], T]) -> Callable[P, T]:
        """Give a function of a dict of options the command's options as keywords, documented one by one.

        Errors name the page that explains the command. See `contraport.options.with_signature_of`.
        """
        told = explained(f"contraport docs {self.page}")(function) if self.page else function
        return with_signature_of(self.asks, self.about)(told)
