"""Declarations of commands: options, documentation and functions agree."""

from __future__ import annotations

import inspect
import logging

import docstring_parser
import pytest

import contraport
from contraport._utils.lazy_imports import import_object
from contraport.cli import main
from contraport.cli.commands import BUILTIN_COMMANDS, _log_to_terminal, get_command
from tests.errors import raises_usage_error


@pytest.mark.parametrize("name", BUILTIN_COMMANDS)
def test_function_has_and_documents_all_options(name: str) -> None:
    verb = get_command(name)
    function = import_object(verb.function_path)
    parameters = inspect.signature(function).parameters
    assert list(parameters) == list(verb.options_by_name)
    for key, option in verb.options_by_name.items():
        assert parameters[key].default == option.default
        assert (parameters[key].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD) == option.is_python_positional
        assert option.help.endswith(".")
        if not option.required:
            option.check_value(option.default)
    docstring = docstring_parser.parse(inspect.getdoc(function) or "")
    assert {one.arg_name: " ".join((one.description or "").split()) for one in docstring.params} == {
        key: option.help for key, option in verb.options_by_name.items()
    }
    assert "UsageError" in {one.type_name for one in docstring.raises}
    assert inspect.cleandoc(verb.details) in (inspect.getdoc(function) or "")
    if name not in ("list", "docs"):
        assert getattr(contraport, name.replace("-", "_")) is function


def test_commands_are_found_in_the_config_modules() -> None:
    assert {"audit", "compare", "embed", "list", "report", "search", "train"} <= BUILTIN_COMMANDS.keys()


@pytest.mark.parametrize("name", BUILTIN_COMMANDS)
def test_referenced_names_exist(name: str) -> None:
    verb = get_command(name)
    assert callable(import_object(verb.printer_path or verb.function_path))
    assert callable(import_object(verb.failure_check_path or verb.function_path))
    assert verb.summary.endswith(".")
    assert verb.examples
    assert all(f"contraport {name}" in example for example in verb.examples)


def test_rejects_a_value_of_another_type_from_python() -> None:
    with raises_usage_error("neighbors.invalid", "'many'"):
        contraport.evaluate("run", neighbors="many")  # type: ignore[arg-type]
    with raises_usage_error("overwrite.invalid", "'yes'"):
        contraport.export("run", out="model.onnx", overwrite="yes")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="run"):
        contraport.evaluate()  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["train", "audit"])
def test_data_are_positional_in_python_and_an_option_in_a_command(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with raises_usage_error("data.unknown", "'digitz'"):
        import_object(get_command(name).function_path)("digitz")
    assert main([name, "digitz"]) == 2
    assert "'digitz'" in capsys.readouterr().err


def test_log_lines_are_printed_once_and_left_to_another_handler(capsys) -> None:
    log, other = logging.getLogger("contraport"), logging.NullHandler()
    with _log_to_terminal(only_warnings=False):
        log.info("first line")
        log.info("first line")
        log.addHandler(other)
        log.info("second line")
        log.removeHandler(other)
    assert capsys.readouterr().err == "first line\n"
