"""Pages of the documentation and their blocks of code."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = {
    str(page.relative_to(ROOT)): page
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "docs/reference/" not in str(page.relative_to(ROOT))
}
BLOCK = re.compile(r"(?:<!-- not run: ([^>]+) -->\n)?^```(python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """Block of code of a page, with the reason if it is not run."""

    reason: str
    language: str
    code: str


def code_blocks(page: Path, language: str) -> list[Block]:
    """Return the blocks of a page in a language, in their order."""
    return [
        block for block in (Block(*result) for result in BLOCK.findall(page.read_text())) if block.language == language
    ]
