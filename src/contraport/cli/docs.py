"""`contraport docs`, which prints pages of the installed documentation."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import contraport
from contraport.cli.utility_command_options import DOCS_COMMAND_SPEC, DocsOptions
from contraport.errors import UsageError, check_name, unknown_name_error

# Of Markdown.
_CODE_BLOCK_PATTERN = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LIST_ITEM_PATTERN = re.compile(r"^( *(?:[-*]|\d+\.) )", re.MULTILINE)
_PAGE_AND_SECTION_BY_OLD_NAME: dict[str, tuple[str, str]] = {
    "comparing": ("evaluating", "comparing"),
    "domains": ("targets", "domains"),
    "evidence": ("choosing", ""),
    "image-text": ("captions", ""),
    "own-target": ("targets", ""),
    "paired-tables": ("tables", ""),
    "text": ("texts", ""),
}
"""Current page, and section or "", of each page that was moved, by its old name."""


@DOCS_COMMAND_SPEC.with_option_parameters
def docs(arguments: dict[str, Any]) -> str:
    """Return a documentation page or section as Markdown, or a list of pages.

    Raises:
        UsageError: there is no such page or section; the message offers the nearest.
    """
    options, paths = DocsOptions(**arguments), page_paths_by_name()
    if options.page is None:
        lines, width = ["usage: contraport docs PAGE [SECTION]"], max(map(len, paths))
        for caption, pages in _page_paths_by_caption().items():
            lines += ["", f"{caption.lower()}:"]
            for page, page_path in pages.items():
                title = page_path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
                lines.append(f"  {page:{width}}  {title}")
        return "\n".join(lines)
    path, _, anchor = options.page.partition("#")  # the form of links between pages
    name, section = _page_name(path.removesuffix(".md")), options.section or anchor
    if name in _PAGE_AND_SECTION_BY_OLD_NAME:
        name, moved_section = _PAGE_AND_SECTION_BY_OLD_NAME[name]
        section = section or moved_section
    if name not in paths:
        raise unknown_name_error("page", name, paths, list_command="contraport docs")
    text = re.sub(r"^<!--.*?-->\n", "", paths[name].read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)  # no comments
    return (extract_section(text, section) if section else text).rstrip()


def print_wrapped_markdown(text: str) -> None:
    """Print a page, wrapped to the width if output is a terminal."""
    print(wrap_markdown(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text)


def wrap_markdown(text: str, width: int) -> str:
    """Wrap the paragraphs and list items of a Markdown text.

    Tables and code stay unchanged.

    >>> print(wrap_markdown("# A heading\\n\\nsome\\nprose\\n\\n- an item of a list\\n- another", 12))
    # A heading
    <BLANKLINE>
    some prose
    <BLANKLINE>
    - an item of
      a list
    - another
    """
    blocks, start = [], 0
    for code in [*_CODE_BLOCK_PATTERN.finditer(text), None]:
        prose = text[start : code.start() if code else len(text)]
        blocks.append("\n\n".join(_wrap_markdown_block(block, width) for block in prose.split("\n\n")))
        if code:
            blocks.append(code[0])
            start = code.end()
    return "".join(blocks)


def _wrap_markdown_block(block: str, width: int) -> str:
    """Wrap a paragraph or list, and return other blocks unchanged."""
    inside = block.strip("\n")
    if not inside or inside.startswith(("#", "|", "<", "    ")):  # a heading, table, directive or code
        return block
    _, *parts = _LIST_ITEM_PATTERN.split("\n" + inside) if _LIST_ITEM_PATTERN.match(inside) else ("", "", inside)
    items = [
        textwrap.fill(
            " ".join(words.split()), width, initial_indent=mark, subsequent_indent=" " * len(mark),
            break_long_words=False, break_on_hyphens=False,
        )
        for mark, words in zip(parts[::2], parts[1::2], strict=True)
    ]  # fmt: skip
    return block.replace(inside, "\n".join(items))


def page_paths_by_name() -> Mapping[str, Path]:
    """Return the paths of all documentation pages, in the order of `index.md`.

    The API reference is not included.
    """
    return {name: path for names in _page_paths_by_caption().values() for name, path in names.items()}


def extract_section(text: str, anchor: str) -> str:
    """Extract the section at an anchor, with its subsections, from a Markdown page.

    >>> print(extract_section("# A\\n\\n## Out of memory\\n\\nless\\n\\n### On a GPU\\n\\n## B\\n", "out-of-memory"))
    ## Out of memory
    <BLANKLINE>
    less
    <BLANKLINE>
    ### On a GPU
    """
    # Comments in code are not headings.
    plain = _CODE_BLOCK_PATTERN.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)
    headings = {  # by anchor, as on GitHub; of equal headings the first
        re.sub(r"[^\w\- ]", "", match[2].lower()).replace(" ", "-"): match
        for match in reversed([*re.finditer(r"^(#+) (.+)$", plain, re.MULTILINE)])
    }
    check_name("section", anchor, headings)
    start, depth = headings[anchor].start(), len(headings[anchor][1])
    ends = [match.start() for match in headings.values() if match.start() > start and len(match[1]) <= depth]
    return text[start : min(ends, default=len(text))].rstrip()


def _page_paths_by_caption() -> dict[str, dict[str, Path]]:
    """Return the paths of documentation pages by name, under each caption of `index.md`."""
    package = Path(contraport.__file__).parent
    # An editable install has the pages in the project.
    folder = package / "docs" if (package / "docs").is_dir() else package.parents[1] / "docs"
    index = folder / "index.md"
    if not index.is_file():
        raise UsageError(f"docs: {index} is missing; reinstall the package.", kind="not_found")
    parts: dict[str, dict[str, Path]] = {}
    for block in re.findall(r"```\{toctree\}\n(.*?)```", index.read_text("utf-8"), re.DOTALL):
        lines = [line.partition("<")[2].rstrip(">") or line for line in block.splitlines() if line]
        caption = next(line.removeprefix(":caption: ") for line in lines if line.startswith(":caption:"))
        entries = [line for line in lines if not line.startswith((":", "reference/"))]
        parts[caption] = {_page_name(line): folder / f"{line}.md" for line in entries}
    return parts


def _page_name(path: str) -> str:
    """Return the file name of a page, or its folder's name for a README."""
    return path.removesuffix("/README").rpartition("/")[2]
