"""Contrastive learning as transport: say which plan you want between two sets of embeddings.

The losses need torch and numpy only. The verbs (`train`, `evaluate`, `embed`, `neighbors`, ...) are the
command line's commands as functions with the same keywords; they and the estimators (`ContrastiveEncoder`, `SNE`,
`TSNE`, `InverseOT`) need the extras. What there is lists `__init__.pyi`; everything is imported when first used.
"""

from typing import Any

from contraport._utils import public_names


def __getattr__(name: str) -> Any:
    found = public_names.public_names() if name == "__all__" else public_names.load_public_name(name)
    globals()[name] = found  # the next time it is there
    return found


def __dir__() -> list[str]:
    return public_names.public_names()
