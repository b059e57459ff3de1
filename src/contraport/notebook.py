"""What a notebook shows of an object: a small table."""

from __future__ import annotations

import html
from collections.abc import Mapping


def html_table(title: str, rows: Mapping[str, object], note: str = "") -> str:
    """Return a table of names and values as HTML, in the notebook's own colours, whatever the values say.

    Args:
        title: the first line.
        rows: by name.
        note: the last line; empty for none.

    >>> html_table("x < y", {"x": 1})
    '<table><caption ...>x &lt; y</caption><tr><th ...>x</th><td ...>1</td></tr></table>'
    """
    cell = 'style="text-align: left; vertical-align: top; overflow-wrap: break-word"'
    lines = [
        f"<tr><th {cell}>{html.escape(name)}</th><td {cell}>{html.escape(str(value))}</td></tr>"
        for name, value in rows.items()
    ]
    end = f'<tr><td colspan="2" {cell}><small>{html.escape(note)}</small></td></tr>' if note else ""
    caption = f'<caption style="text-align: left; font-weight: bold">{html.escape(title)}</caption>'
    return f"<table>{caption}{''.join(lines)}{end}</table>"
