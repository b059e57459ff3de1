"""Documentation in the terminal, and pages that errors and commands refer to."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import contraport
from contraport.cli.commands import BUILTIN_COMMANDS, get_command
from contraport.cli.docs import docs, extract_section, page_paths_by_name, wrap_markdown
from contraport.errors import UsageError
from tests.errors import raises_usage_error

from .conftest import Outcome

Command = Callable[..., Outcome]

PAGE = r'(?:hint_on_error\(|add_hint_if_missing\(\w+, )"contraport docs ([^"{]+)"\)|More: contraport docs ([^"{]+)"'

REFERENCED_PAGES = {
    *(
        result
        for file in Path(contraport.__file__).parent.rglob("*.py")
        for result in re.findall(PAGE, file.read_text())
    ),
    *((get_command(verb).docs_page, "") for verb in BUILTIN_COMMANDS if get_command(verb).docs_page),
}


@pytest.mark.parametrize("where", sorted(" ".join(filter(None, result)) for result in REFERENCED_PAGES))
def test_referenced_pages_exist(command: Command, where: str) -> None:
    outcome = command("docs", *where.split())
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("#")
    assert len(outcome.out.splitlines()) > 2


def test_references_to_pages_are_found() -> None:
    assert {("data", ""), ("calls", ""), ("troubleshooting resume-is-refused", "")} <= REFERENCED_PAGES
    assert ("", "troubleshooting out-of-memory") in REFERENCED_PAGES


def test_every_page_is_listed(command: Command) -> None:
    text = command("docs").out
    assert all(f"  {name} " in text for name in page_paths_by_name())
    assert all(path.is_file() for path in page_paths_by_name().values())
    assert {"photos", "troubleshooting", "moving", "lightly", "audit"} <= set(page_paths_by_name())


def test_accepts_links_as_pages(command: Command) -> None:
    assert command("docs", "guides/photos.md").out == command("docs", "photos").out
    assert command("docs", "../moving/README.md").out == command("docs", "moving").out
    section = command("docs", "troubleshooting", "out-of-memory").out
    assert command("docs", "troubleshooting.md#out-of-memory").out == section


def test_name_of_a_merged_page_leads_to_its_section(command: Command) -> None:
    assert command("docs", "comparing").out == command("docs", "evaluating", "comparing").out
    assert command("docs", "text").out == command("docs", "texts").out


def test_a_page_is_printed_without_comments(command: Command) -> None:
    assert "<!--" in page_paths_by_name()["photos"].read_text("utf-8")
    assert "<!--" not in command("docs", "photos").out


def test_rejects_unknown_pages_and_sections(command: Command) -> None:
    for words, argument, nearest in (
        (["fotos"], "page", "'photos'"),
        (["troubleshooting", "memory"], "section", "'out-of-memory'"),
    ):
        error = command("docs", *words).err
        assert error.startswith(f"contraport: {argument}: ")
        assert nearest in error


def test_comments_in_code_are_not_headings() -> None:
    text = "# A\n\n## B\n\n```sh\n# C\n```\n\nafter\n"
    assert extract_section(text, "b").endswith("after")
    with raises_usage_error("section.unknown", "'c'"):
        extract_section(text, "c")


@pytest.mark.parametrize(
    ("argv", "page"),
    [
        ("train --data missing.npz", "contraport docs data"),
        ("train --epochs many", "contraport train --help"),
        ("train --grad_accum_steps=0", "contraport train --help_all"),
        ("train --queue 5", "contraport train --help_all"),
        ("train --dims 64", "contraport train --help_all"),
        ("train --epoch 5", "contraport train --help"),
        ("train --resume --out nowhere", "contraport docs troubleshooting resume-is-refused"),
        ("evaluate nowhere", "contraport docs evaluating"),
        ("audit --data digits", "contraport docs audit"),
    ],
)
def test_error_references_its_page(command: Command, argv: str, page: str) -> None:
    outcome = command(*argv.split())
    assert outcome.status == 2
    assert outcome.err.endswith(f" More: {page}\n")


def test_message_of_another_library_ends_before_the_reference(command: Command, tmp_path: Path) -> None:
    (tmp_path / "photos.npz").write_bytes(b"junk")
    outcome = command("train", "--data", str(tmp_path / "photos.npz"))
    assert re.search(r"cannot be read as .*[^.]\. More: contraport docs data\n$", outcome.err)


def test_error_of_a_loss_references_calls() -> None:
    with pytest.raises(UsageError) as caught:
        contraport.nt_xent()()
    assert caught.value.__notes__ == ["More: contraport docs calls"]


CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", page_paths_by_name())
def test_wrapped_page_fits_and_loses_nothing(name: str) -> None:
    text = docs(page=name)
    wrapped = wrap_markdown(text, 72)
    assert wrapped.split() == text.split()
    assert CODE.findall(wrapped) == CODE.findall(text)
    prose = [line for line in CODE.sub("", wrapped).splitlines() if not line.startswith(("|", "#", "<"))]
    assert all(len(line) <= 72 or " " not in line.lstrip("-* ") for line in prose)


def test_output_to_a_file_is_not_wrapped(command: Command) -> None:
    assert command("docs", "start").out.rstrip("\n") == docs(page="start")
