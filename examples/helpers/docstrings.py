"""The functions of Python's own library and what their docstrings say: texts that every machine has."""

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Function(NamedTuple):
    """A function that has a docstring of some words.

    Attributes:
        place: the file that it is in, within the library.
        name: of the function.
        arguments: the names of what it takes.
        said: the first sentence of its docstring.
    """

    place: Path
    name: str
    arguments: list[str]
    said: str


def functions() -> Iterator[Function]:
    """Yield the functions of Python's library, file by file."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(library.rglob("*.py")):
        place = file.relative_to(library)
        if {"test", "tests", "site-packages", "idlelib"} & set(place.parts):
            continue
        try:
            tree = ast.parse(file.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (told := ast.get_docstring(node)):
                said = " ".join(told.split("\n\n")[0].split()).split(". ")[0]
                if len(said.split()) > 2:
                    arguments = [argument.arg for argument in node.args.args if argument.arg != "self"]
                    yield Function(place, node.name, arguments, said)
