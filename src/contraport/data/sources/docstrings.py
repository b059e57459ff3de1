"""Named data `docstrings`: names and docstrings of the functions in Python's standard library, as two texts each."""

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

from contraport.data.arrays import copy_subset, from_arrays
from contraport.data.dataset import Dataset
from contraport.data.splits import draw_stratified_split
from contraport.errors import check

MIN_WORDS = 3
MIN_FUNCTIONS = 20
"""Functions that a module needs to be a class, so that a tenth of a class is at least some."""
_EXCLUDED = {"test", "tests", "idlelib", "lib2to3", "distutils", "turtledemo", "site-packages", "dist-packages"}
"""Folders outside the library proper, or missing from some versions of Python."""


class DocumentedFunction(NamedTuple):
    """Function of Python's standard library, with its name and docstring as texts.

    Attributes:
        module: top-level module or package that defines the function.
        name_words: words of the names of the file, the function and its arguments.
        sentence: first sentence of the docstring.
    """

    module: str
    name_words: str
    sentence: str


def load_stdlib_docstrings(split: str, root: Path | None) -> Dataset:
    """Load functions of the standard library as two texts each, ``name`` and ``docstring``; a fifth is held out.

    Labels are the modules with at least 20 functions. Sentences that several functions share are left out. The data
    depend on the version of Python.

    Raises:
        UsageError: this Python has no sources of its library.
    """
    functions = select_unique_functions()
    modules = [function.module for function in functions]
    texts = {
        "name": [function.name_words for function in functions],
        "docstring": [function.sentence for function in functions],
    }
    positions = draw_stratified_split(np.unique(modules, return_inverse=True)[1], split)
    return copy_subset(from_arrays(texts, modules, name="docstrings"), positions, split)


@lru_cache(maxsize=1)
def select_unique_functions() -> tuple[DocumentedFunction, ...]:
    """Return the functions with a unique name and docstring sentence, from modules with at least 20 such functions."""
    library = Path(sysconfig.get_paths()["stdlib"])
    by_name = {function.name_words: function for function in _functions(library)}
    uses = Counter(function.sentence for function in by_name.values())
    unique = [function for function in by_name.values() if uses[function.sentence] == 1]
    sizes = Counter(function.module for function in unique)
    chosen = tuple(function for function in unique if sizes[function.module] >= MIN_FUNCTIONS)
    check(bool(chosen), f"data: docstrings requires the sources of Python's library in {library}.", "not_found")
    return chosen


def _functions(library: Path) -> Iterator[DocumentedFunction]:
    """Yield the functions that have a docstring, file by file."""
    for file in sorted(library.rglob("*.py")):
        place = file.relative_to(library)
        if _EXCLUDED.intersection(place.parts):
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, OSError):  # some files are samples of invalid syntax
            continue
        for node in _definitions(tree):
            sentence = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()).split(". ")[0]
            if len(sentence.split()) >= MIN_WORDS:
                arguments = [argument.arg for argument in node.args.args if argument.arg != "self"]
                name = _split_words(" ".join((place.stem, node.name, *arguments)))
                yield DocumentedFunction(place.parts[0].removesuffix(".py"), name, sentence)


def _definitions(node: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions and methods of a module, without nested functions."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            yield part
        elif isinstance(part, ast.ClassDef):
            yield from _definitions(part)


def _split_words(name: str) -> str:
    """Split Python names into lower-case words.

    >>> _split_words("HTTPServer.do_GET path2")
    'http server do get path 2'
    """
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)).lower()
