"""Pages for users of other libraries: each begins with a line of code to replace and its replacement."""

import ast
import re
import shlex
from functools import reduce
from importlib import import_module

import pytest

from contraport.cli.commands import get_command
from contraport.cli.parsing import parse_command_line
from tests.docs.pages import PAGES

MOVING = [name for name in PAGES if name.startswith("docs/moving/") and not name.endswith("README.md")]


@pytest.mark.parametrize("name", MOVING)
def test_replacement_lines_run(name):
    result = re.match(r"# [^\n]+\n\n```diff\n-([^\n]+)\n\+([^\n]+)\n```\n", PAGES[name].read_text())
    assert result, "expected a removed and an added line below the heading"
    removed, added = result.groups()
    assert "contraport" not in removed
    if added.startswith("contraport "):
        _, verb, *args = shlex.split(added)
        assert parse_command_line(get_command(verb), args, prog="contraport")
        return
    calls = [node for node in ast.walk(ast.parse(added)) if isinstance(node, ast.Call)]
    names = [ast.unparse(call.func) for call in calls if re.fullmatch(r"contraport[.\w]+", ast.unparse(call.func))]
    assert names
    for one in names:
        assert callable(reduce(getattr, one.split(".")[1:], import_module("contraport"))), one
