"""Pages on moving from other libraries: their code runs, and defaults in their tables are those of both."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch

import contraport
from contraport import integrations

PAGES = Path(__file__).parents[2] / "docs" / "moving"
PEERS = {
    "sentence-transformers": ["sentence_transformers.losses"],
    "transformers": ["transformers"],
    "open_clip": ["open_clip.loss"],
    "lightly": ["lightly.loss"],
    "pytorch-metric-learning": ["pytorch_metric_learning.losses"],
}
NOT_COMPARED = {"solo-learn", "cebra", "cleanlab"}  # their code is run in tests/docs
ROW = re.compile(r"\| `(\w+)\((\w+)\)`[^|]*\|([^|]*)\| (?:`(\w+)\((\w+)\)`)?[^|]*\|([^|]*)\|")


def modules(name):
    pytest.importorskip(PEERS[name][0].partition(".")[0], reason=f"{name} is not installed")
    return [importlib.import_module(module) for module in PEERS[name]]


def text_of(name):
    return (PAGES / f"{name}.md").read_text()


def test_all_pages_are_tested_and_listed():
    assert {page.stem for page in PAGES.glob("*.md")} == {"README", *PEERS, *NOT_COMPARED}
    assert all(f"({name}.md)" in text_of("README") for name in {*PEERS, *NOT_COMPARED})


@pytest.mark.parametrize("name", PEERS)
def test_code_of_pages_runs(name):
    modules(name)
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", text_of(name), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, f"{name}.md", "exec"), {})


@pytest.mark.parametrize("name", PEERS)
def test_defaults_of_pages_match_both_libraries(name):
    rows = [match.groups() for match in ROW.finditer(text_of(name))]
    assert len(rows) == sum(line.startswith("| `") for line in text_of(name).splitlines()) > 0
    for other_name, argument, default, *replacement in rows:
        peer = next(getattr(module, other_name) for module in modules(name) if hasattr(module, other_name))
        check_default(peer, argument, default)
        if replacement[0] is not None:
            owner = contraport if hasattr(contraport, replacement[0]) else integrations
            check_default(getattr(owner, replacement[0]), replacement[1], replacement[2])


def check_default(owner, argument, written):
    result = default_of(owner, argument)
    if written.strip():
        assert result == pytest.approx(ast.literal_eval(written.strip())), (owner, argument)
    else:
        assert result is inspect.Parameter.empty, (owner, argument)


def default_of(owner, argument):
    """Return the default of an argument of a constructor, or of the constructors that receive its keywords."""
    for kind in [owner, *(owner.__mro__ if isinstance(owner, type) else [])]:
        parameters = inspect.signature(kind).parameters
        if argument in parameters:
            return parameters[argument].default
        if hasattr(kind, argument):
            return getattr(kind, argument)
    raise AssertionError(f"{owner} has no {argument}")
