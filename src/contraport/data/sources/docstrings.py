"""What the functions of Python's own library are called and what is said of them: texts that every machine has."""

from __future__ import annotations

import ast
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from contraport.data.arrays import from_arrays, take
from contraport.data.dataset import Dataset
from contraport.data.splits import split_positions
from contraport.errors import check

FEWEST_WORDS = 3
FEWEST_FUNCTIONS = 20
"""Of a module, below which it is no class: a tenth of a class held out should be some."""
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "distutils", "turtledemo", "site-packages", "dist-packages"}
"""Folders that are no library, or that not all versions of Python have."""


class Function(NamedTuple):
    """A function that has a docstring of some words.

    Attributes:
        module: the part of the library that it is in.
        called: the words that the names of its file, itself and its arguments are made of.
        said: the first sentence of its docstring.
    """

    module: str
    called: str
    said: str


def docstrings(split: str, root: Path | None) -> Dataset:
    """Return functions of Python's library as two texts each, ``name`` and ``docstring``; a fifth is held out.

    Labels are the modules, those of at least 20 functions. A sentence that is said of several functions is left out. Of
    another version of Python they are others.

    Raises:
        UsageError: this Python has its library without sources.
    """
    functions = unique_functions()
    modules = [function.module for function in functions]
    texts = {
        "name": [function.called for function in functions],
        "docstring": [function.said for function in functions],
    }
    positions = split_positions(np.unique(modules, return_inverse=True)[1], split)
    return take(from_arrays(texts, modules, name="docstrings"), positions, split)


@lru_cache(maxsize=1)
def unique_functions() -> tuple[Function, ...]:
    """Return the functions of which each is told by its name, and by its sentence, of modules that have many."""
    library = Path(sysconfig.get_paths()["stdlib"])
    found = {function.called: function for function in _functions(library)}
    often = Counter(function.said for function in found.values())
    single = [function for function in found.values() if often[function.said] == 1]
    large = Counter(function.module for function in single)
    kept = tuple(function for function in single if large[function.module] >= FEWEST_FUNCTIONS)
    check(bool(kept), f"data: docstrings: expected the sources of Python's library in {library}, found none.")
    return kept


def _functions(library: Path) -> Iterator[Function]:
    """Yield the functions that have a docstring, file by file."""
    for file in sorted(library.rglob("*.py")):
        place = file.relative_to(library)
        if _LEFT_OUT.intersection(place.parts):
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, OSError):  # a few are samples of what Python refuses
            continue
        for node in _defined(tree):
            said = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()).split(". ")[0]
            if len(said.split()) >= FEWEST_WORDS:
                arguments = [argument.arg for argument in node.args.args if argument.arg != "self"]
                called = _words(" ".join((place.stem, node.name, *arguments)))
                yield Function(place.parts[0].removesuffix(".py"), called, said)


def _defined(node: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions and methods of a module, not those within functions: a walk of all nodes takes far longer."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            yield part
        elif isinstance(part, ast.ClassDef):
            yield from _defined(part)


def _words(name: str) -> str:
    """Return the words that names of Python are made of.

    >>> _words("HTTPServer.do_GET path2")
    'http server do get path 2'
    """
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)).lower()
