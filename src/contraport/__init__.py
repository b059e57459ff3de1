"""Contrastive learning as optimal transport between two sets of embeddings.

The losses need torch and numpy only. The commands of the command line are functions with the same keywords (`train`,
`evaluate`, `embed`, `neighbors`, ...). They and the estimators (`ContrastiveEncoder`, `SNE`, `TSNE`, `InverseOT`) need
the extras. `__init__.pyi` lists all public names; each is imported on first use.
"""

from typing import Any

from contraport._utils import lazy_imports


def __getattr__(name: str) -> Any:
    value = __dir__() if name == "__all__" else lazy_imports.load_public_name(name)
    globals()[name] = value  # so that the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted(lazy_imports.map_public_names_to_modules())
