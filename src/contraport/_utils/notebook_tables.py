"""HTML tables that represent objects in notebooks."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence


def format_html_mapping(title: str, rows: Mapping[str, object], note: str = "") -> str:
    """Format a mapping as an HTML table of two columns.

    >>> format_html_mapping("x < y", {"x": 1})
    '<table><caption ...>x &lt; y</caption><tr><th ...>x</th><td ...>1</td></tr></table>'
    """
    lines = [f"<tr>{_build_html_cell('th', name)}{_build_html_cell('td', value)}</tr>" for name, value in rows.items()]
    return _build_html_table(title, lines, [note] if note else [], columns=2)


def format_html_rows(title: str, rows: Sequence[Mapping[str, object]], notes: Sequence[str] = ()) -> str:
    """Format mappings as an HTML table with the keys as column headings.

    >>> format_html_rows("digits", [{"measure": "kNN", "trained": "97%"}])
    '<table>...<th ...>measure</th><th ...>trained</th></tr><tr><th ...>kNN</th><td ...>97%</td></tr></table>'
    """
    lines = ["".join(_build_html_cell("th", heading) for heading in rows[0])]
    for first, *others in (list(row.values()) for row in rows):
        lines.append(_build_html_cell("th", first) + "".join(_build_html_cell("td", value) for value in others))
    return _build_html_table(title, [f"<tr>{line}</tr>" for line in lines], notes, columns=len(rows[0]))


def _build_html_cell(tag: str, value: object, columns: int = 1) -> str:
    """Build an HTML table cell from a value, over one or more columns."""
    span = f' colspan="{columns}"' if columns > 1 else ""
    style = 'style="text-align: left; vertical-align: top; overflow-wrap: break-word"'
    return f"<{tag}{span} {style}>{html.escape(str(value))}</{tag}>"


def _build_html_table(title: str, html_rows: Sequence[str], notes: Sequence[str], *, columns: int) -> str:
    """Build a captioned HTML table from HTML rows, followed by notes."""
    ends = [f"<tr>{_build_html_cell('td', note, columns)}</tr>" for note in notes]
    caption = f'<caption style="text-align: left; font-weight: bold">{html.escape(title)}</caption>'
    return f"<table>{caption}{''.join(html_rows)}{''.join(ends)}</table>"
