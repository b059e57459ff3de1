"""`contraport docs`: the pages of the documentation, which the package has with it."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import contraport
from contraport.cli.config import DOCS, DocsOptions
from contraport.errors import UsageError, unknown_name_error

_TREE = re.compile(r"```\{toctree\}\n(.*?)```", re.DOTALL)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_COMMENT = re.compile(r"^<!--.*?-->\n", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_ITEM = re.compile(r"^( *(?:[-*]|\d+\.) )", re.MULTILINE)
_UNTOUCHED = ("#", "|", "<", "    ")
"""What headings, tables, marks of the page and code begin with."""


@DOCS.with_signature
def docs(given: dict[str, Any]) -> str:
    """Return a page of the documentation or a section of one as Markdown, or which pages there are.

    Raises:
        UsageError: there is no such page or section; the nearest is offered.
    """
    asked = DocsOptions(**given)
    known = pages()
    if asked.page is None:
        return _listed(known)
    path, _, place = asked.page.partition("#")  # as the links of a page name another
    page, part = _name(path.removesuffix(".md")), asked.section or place
    if page not in known:
        raise unknown_name_error("page", asked.page, known)
    text = _COMMENT.sub("", known[page].read_text("utf-8"))
    return (section(text, part) if part else text).rstrip()


def print_page(text: str) -> None:
    """Print a page: on a terminal in lines of its width, else as it is written."""
    print(flowed(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text)


def flowed(text: str, width: int) -> str:
    """Return Markdown with paragraphs and items of lists in lines of a width; tables and code keep theirs.

    >>> print(flowed("# A heading\\n\\nsome\\nprose\\n\\n- an item of a list\\n- another", 12))
    # A heading
    <BLANKLINE>
    some prose
    <BLANKLINE>
    - an item of
      a list
    - another
    """
    blocks, start = [], 0
    for code in [*_CODE.finditer(text), None]:
        prose = text[start : code.start() if code else len(text)]
        blocks.append("\n\n".join(_filled(block, width) for block in prose.split("\n\n")))
        if code:
            blocks.append(code[0])
            start = code.end()
    return "".join(blocks)


def _filled(block: str, width: int) -> str:
    inside = block.strip("\n")
    if not inside or inside.startswith(_UNTOUCHED):
        return block
    _, *parts = _ITEM.split("\n" + inside) if _ITEM.match(inside) else ("", "", inside)
    items = [
        textwrap.fill(
            " ".join(words.split()), width, initial_indent=mark, subsequent_indent=" " * len(mark),
            break_long_words=False, break_on_hyphens=False,
        )
        for mark, words in zip(parts[::2], parts[1::2], strict=True)
    ]  # fmt: skip
    return block.replace(inside, "\n".join(items))


def folder() -> Path:
    """Return where the pages are: in the package, or in the project that it is installed from."""
    package = Path(contraport.__file__).parent
    inside = package / "docs"
    return inside if inside.is_dir() else package.parents[1] / "docs"


def pages() -> Mapping[str, Path]:
    """Return the pages by their names, those of `index.md` in its order; the reference is made with the site alone."""
    return {name: path for _, names in _parts() for name, path in names.items()}


def section(text: str, name: str) -> str:
    """Return a section of a page, with what lies below it.

    Raises:
        UsageError: there is none of this name.

    >>> print(section("# A\\n\\n## Out of memory\\n\\nless\\n\\n### On a GPU\\n\\n## B\\n", "out-of-memory"))
    ## Out of memory
    <BLANKLINE>
    less
    <BLANKLINE>
    ### On a GPU
    """
    plain = _CODE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)  # a comment of a script is no heading
    headings = {_anchor(found[2]): found for found in reversed([*_HEADING.finditer(plain)])}
    if name not in headings:
        raise unknown_name_error("section", name, headings)
    start, depth = headings[name].start(), len(headings[name][1])
    ends = [found.start() for found in headings.values() if found.start() > start and len(found[1]) <= depth]
    return text[start : min(ends, default=len(text))].rstrip()


def _anchor(heading: str) -> str:
    """Return a heading as links on GitHub and on the site name it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _parts() -> list[tuple[str, dict[str, Path]]]:
    """Return the parts of the documentation, each with its pages by their names."""
    index = folder() / "index.md"
    if not index.is_file():
        raise UsageError(f"docs: {index} is not there; install the package anew.")
    parts = []
    for block in _TREE.findall(index.read_text("utf-8")):
        lines = [line.partition("<")[2].rstrip(">") or line for line in block.splitlines() if line]
        caption = next(line.removeprefix(":caption: ") for line in lines if line.startswith(":caption:"))
        written = [line for line in lines if not line.startswith((":", "reference/"))]
        parts.append((caption, {_name(line): folder() / f"{line}.md" for line in written}))
    return parts


def _name(page: str) -> str:
    """Return what a page is called: its file, or of what begins a folder that."""
    return page.removesuffix("/README").rpartition("/")[2]


def _listed(known: Mapping[str, Path]) -> str:
    width = max(map(len, known))
    lines = ["contraport docs PAGE prints one of these; contraport docs PAGE SECTION a part of it."]
    for caption, names in _parts():
        lines += ["", f"{caption.lower()}:"]
        lines += [f"  {name:{width}}  {_title(path)}" for name, path in names.items()]
    return "\n".join(lines)


def _title(path: Path) -> str:
    return path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
