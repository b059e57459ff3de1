"""What a shell asks when somebody presses Tab: verbs, options, and the names that an option takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from contraport.catalog import DATASETS, ENCODERS, OBJECTIVES, RECIPES
from contraport.cli.commands import BUILTIN_COMMANDS, command_summaries, find_command
from contraport.errors import UsageError, unknown_name_error
from contraport.options import Option

# Each asks `contraport --complete` for the words before the cursor, the last one maybe unfinished; where nothing is
# offered the shell completes files.
SCRIPTS = {
    "bash": """\
_contraport() {
    local IFS=$'\\n'
    COMPREPLY=($(contraport --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -o bashdefault -F _contraport contraport
# to keep it: contraport --print_completion bash > ~/.local/share/bash-completion/completions/contraport""",
    "zsh": """\
#compdef contraport
_contraport() {
    local -a offered
    offered=(${(f)"$(contraport --complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ${#offered} )); then compadd -a offered; else _files; fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _contraport "$@"; else compdef _contraport contraport; fi
# to keep it: contraport --print_completion zsh > FOLDER/_contraport, a folder of $fpath""",
    "fish": """\
function __contraport_complete
    set -l words (commandline -opc) (commandline -ct)
    contraport --complete $words[2..-1] 2>/dev/null
end
complete -c contraport -a '(__contraport_complete)'
# to keep it: contraport --print_completion fish > ~/.config/fish/completions/contraport.fish""",
}

NAMES: Mapping[str, Iterable[str]] = {
    "data": DATASETS,
    "encoder": ENCODERS,
    "objective": OBJECTIVES,
    "recipe": RECIPES,
}
"""The names that an option takes, beside what else it may be."""

FIRST = ("--help", "--version", "--print_completion")


def completion_script(arguments: Sequence[str]) -> str:
    """Return what a shell reads to complete command lines.

    Raises:
        UsageError: not one name of a shell, or one that is unknown.
    """
    if len(arguments) != 1:
        came = " ".join(arguments) or "nothing"
        raise UsageError(f"print_completion: expected one of {', '.join(SCRIPTS)}, got {came}.")
    if arguments[0] not in SCRIPTS:
        raise unknown_name_error("print_completion", arguments[0], SCRIPTS)
    return SCRIPTS[arguments[0]]


def complete(words: Sequence[str]) -> list[str]:
    """Return what the last of the words may become; an empty one is the place of a new word.

    >>> complete(["tr"]), complete(["train", "--freeze_"]), complete(["train", "--objective", "gca"])
    (['train'], ['--freeze_epochs'], ['gca-ince', 'gca-rince', 'gca-uot'])
    """
    *before, begun = words or [""]
    return sorted(word for word in _offered(before, begun) if word.startswith(begun))


def _offered(before: Sequence[str], begun: str) -> Iterable[str]:
    if not before:
        return FIRST if begun.startswith("-") else [name for names in command_summaries().values() for name in names]
    if before == ["--print_completion"]:
        return SCRIPTS
    if before[0] not in BUILTIN_COMMANDS:  # those of other packages would have to be imported
        return ()
    verb = find_command(before[0])
    if begun.startswith("-"):
        further = ("help", "help_all", "config", "print_config", *(("json",) if verb.printer else ()))
        return (
            f"--{name}" for name in (*(n for n, option in verb.options.items() if not option.cli_positional), *further)
        )
    option = verb.options.get(before[-1].removeprefix("--")) if before[-1].startswith("--") else None
    if option is None and len(before) == 1:
        option = next((option for option in verb.options.values() if option.cli_positional), None)
    return _values(option) if option is not None else ()


def _values(option: Option) -> Iterable[str]:
    return NAMES.get(option.name) or _words(option.type)


def _words(kind: Any) -> Iterable[str]:
    """Return the words of a type, those of the types that it is made of among them."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is bool:
        return ("true", "false")
    if origin is Literal:
        return map(str, parts)
    return (word for part in parts for word in _words(part)) if origin in (Union, UnionType) else ()
