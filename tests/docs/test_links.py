"""Links and lengths of pages: links lead to existing files and headings, pages and cells are short."""

import re

import pytest

from tests.docs.pages import PAGES, ROOT

LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
GENERATED = ("docs/reference/",)  # by `make site`


@pytest.mark.parametrize("name", PAGES)
def test_links_resolve(name):
    page = PAGES[name]
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for path, place in LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
        target = (page.parent / path).resolve() if path else page
        if str(target).startswith(str(ROOT / GENERATED[0])):
            continue
        assert target.exists(), f"{name}: {path}"
        assert not place or place in link_targets(target.read_text()), f"{name}: {path}#{place}"


def link_targets(text: str) -> set[str]:
    """Return the link targets of a page: headings as GitHub names them, and anchors."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    named = {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings}
    return named | set(re.findall(r'<a id="([^"]+)"', text))


def test_pictures_are_small():
    sizes = {path.name: path.stat().st_size for path in (ROOT / "docs" / "images").iterdir()}
    assert {name: size for name, size in sizes.items() if size > 150_000} == {}


def test_every_page_is_in_the_site():
    index = (ROOT / "docs" / "index.md").read_text()
    listed = {
        line for block in re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL) for line in block.splitlines()
    }
    listed = {line.partition("<")[2].rstrip(">") or line for line in listed}
    pages = {name.removeprefix("docs/").removesuffix(".md") for name in PAGES if name.startswith("docs/")}
    assert pages - listed == {"index"}


@pytest.mark.parametrize("name", sorted(set(PAGES) - {"docs/methods.md"}))
def test_pages_have_at_most_3000_words_and_cells_40(name):
    text = PAGES[name].read_text()
    assert len(text.split()) <= 3000
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(len(cell.split()) <= 40 for line in rows for cell in re.split(r"(?<!\\)\|", line))
