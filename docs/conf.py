"""Configuration of Sphinx for `make site`: the pages of this folder, and the reference generated from the code."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.docutils import nodes

sys.path.insert(0, str(Path(__file__).parent))

import reference

import contraport

project = "contraport"
author = "The contraport developers"
version = release = contraport.__version__
html_title = f"contraport {version}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["Thumbs.db", ".DS_Store"]

default_role = "py:obj"  # of docstrings: a name in single backticks is a link where there is such a thing
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5a8f", "color-brand-content": "#0b5a8f"},
    "dark_css_variables": {"color-brand-primary": "#6cb8ee", "color-brand-content": "#6cb8ee"},
}
pygments_style = "a11y-high-contrast-light"  # of the package that furo brings: every color is easy to read
pygments_dark_style = "a11y-high-contrast-dark"
smartquotes_action = "qe"  # not of dashes: --audit in a sentence is an option, not a dash


FIELD = re.compile(r"(\s*(?::\w+[^:`]*:)?)(.*)")
"""A line of a docstring: the name of a field, and what is said."""

ANCHOR = re.compile(r'<a id="([^"]+)"')


def mathml(formula: str, display: str) -> str:
    """Return a formula as MathML.

    Raises:
        ValueError: it has a command that the converter does not know, which it would print as it stands.
    """
    result: str = convert(formula.replace(r"\arg", r"\operatorname{arg}"), display=display)
    if "\\" in result:
        raise ValueError(f"formula: expected commands that latex2mathml knows, got {formula!r}.")
    return result


def visit_inline(translator, node: nodes.math) -> None:  # type: ignore[no-untyped-def]
    """Write an inline formula as MathML, which browsers draw without a script or a network."""
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_block(translator, node: nodes.math_block) -> None:  # type: ignore[no-untyped-def]
    """Write a displayed formula as MathML."""
    formula = mathml(node.astext(), "block")
    label = html.escape(node.astext(), quote=True)
    translator.body.append(f'<div class="formula" role="math" tabindex="0" aria-label="{label}">{formula}</div>\n')
    raise nodes.SkipNode


def escape(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Escape bars, stars and underscores in docstrings, which are not markup there."""
    code = False
    for number, line in enumerate(lines):
        code = line.lstrip().startswith(">>>") or (code and bool(line.strip()))
        if code:
            continue
        marked, text = FIELD.match(line).groups()  # type: ignore[union-attr]
        lines[number] = marked + reference.escape_markup(text)


def leave_out(app: Sphinx, what: str, name: str, thing: object, skip: bool, options: object) -> bool | None:
    """Leave out the methods that scikit-learn adds to every estimator, which link to its own pages."""
    return True if re.fullmatch(r"set_\w+_request|get_metadata_routing", name) else None


def keep_anchors(app: Sphinx, doctree: nodes.document) -> None:
    """Resolve links to anchors `<a id="...">` of a page, as to its headings."""
    slugs = app.env.metadata[app.env.docname].setdefault("myst_slugs", {})
    for raw in doctree.findall(nodes.raw):
        for name in ANCHOR.findall(raw.astext()):
            slugs[name] = (raw.line or 0, name, name)


def setup(app: Sphinx) -> None:
    """Register the formula writers and the generated pages with Sphinx."""
    app.connect("autodoc-process-docstring", escape, priority=600)  # after napoleon
    app.connect("autodoc-skip-member", leave_out)
    app.connect("doctree-read", keep_anchors)
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("builder-inited", lambda app: reference.write(Path(app.srcdir) / "reference"))
