"""Data of function names and docstrings, from a library written by the test and from the standard library."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.errors import raises_usage_error

from contraport._utils.text_bytes import tensor_to_texts
from contraport.data import Dataset, load
from contraport.data.sources import benchmark_data as source

MODULE = '''
class HTTPThing:
    async def do_GET(self, path2):
        """Answer a request
        of thing {0}. More of it.

        And more.
        """
        def within(): """Said of a function within another {0}."""

    def short(self): "{0}."

    def silent(self): pass

def shared(): """Said of all alike."""
'''


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    source.list_stdlib_names_and_docstrings.cache_clear()
    yield tmp_path
    source.list_stdlib_names_and_docstrings.cache_clear()


def texts_of_view(dataset: Dataset, view: int) -> list[str]:
    return tensor_to_texts(dataset.__getitems__(list(range(len(dataset)))).views[view])


def test_items_pair_function_names_with_first_sentences(library: Path) -> None:
    for folder, files in (
        ("rare", source.MIN_FUNCTIONS_PER_MODULE - 1),
        ("often", source.MIN_FUNCTIONS_PER_MODULE),
        ("test", 30),
    ):
        (library / folder).mkdir()
        for number in range(files):
            (library / folder / f"{folder}{number}.py").write_text(MODULE.format(f"{folder} {number}"))
    (library / "broken.py").write_text("def (")
    (library / "binary.py").write_bytes(b"\0\xff")
    train, test = load("docstrings"), load("docstrings", "test")
    assert train.view_names == ("name", "docstring")
    assert train.class_names == test.class_names == ("often",)
    assert (len(train), len(test)) == (16, 4)
    names, sentences = ([*texts_of_view(train, view), *texts_of_view(test, view)] for view in (0, 1))
    assert sorted(names) == sorted(f"often {number} do get path 2" for number in range(20))
    assert all(
        sentence == f"Answer a request of thing often {name.split()[1]}"
        for name, sentence in zip(names, sentences, strict=True)
    )


def test_rejects_a_library_without_sources(library: Path) -> None:
    with raises_usage_error("data.not_found", library):
        load("docstrings")


def test_standard_library_gives_pairs_of_many_modules() -> None:
    train = load("docstrings")
    assert len(train) > 1000
    assert train.class_names is not None
    assert {"asyncio", "email", "logging"} < set(train.class_names)
    assert len(set(texts_of_view(train, 1))) == len(train)
