"""The frame of a page: its head, its style, its heading and its foot; templates extend it."""

from __future__ import annotations

import datetime
from typing import Any

import jinja2

from contraport._version import __version__


def render(template: str, package: str, **values: Any) -> str:
    """Return a page as HTML, of a template of a package, which extends ``frame.html.j2``.

    All values are escaped unless they are `markupsafe.Markup`; one that a template asks for and is not given is an
    error.
    """
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader("contraport.pages")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    known = {"version": __version__, "date": datetime.date.today().isoformat()}
    return str(environment.get_template(template).render(values | known))
