"""`neighbors`: the items whose features are nearest to those of one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contraport._utils.formatting import format_options
from contraport._utils.html_repr import format_html_rows
from contraport.errors import UsageError
from contraport.evaluation.split_loading import resolve_device
from contraport.features import Features, as_features
from contraport.runs import Run
from contraport.searching.block_search import find_most_similar
from contraport.searching.config import NEIGHBORS, NeighborsOptions
from contraport.searching.index import load_or_build_index, suggest_index
from contraport.searching.page import CardGroup, Contents, ItemCard, prepare_page
from contraport.searching.query import embedded, is_file, resolve_position, unknown_query_error


class Neighbor(NamedTuple):
    """An item that is near.

    Attributes:
        position: where it is among the features, from 0.
        name: its key, or its split and its row in the source.
        similarity: the cosine of its features and those of the query.
        class_name: its class, or None.
    """

    position: int
    name: str
    similarity: float
    class_name: str | None


class Nearest(list[Neighbor]):
    """The items that are nearest to something, the nearest first; a notebook shows them as a table.

    Attributes:
        to: what they are near to: a name, a text or a file.
    """

    def __init__(self, found: Iterable[Neighbor], to: str) -> None:
        super().__init__(found)
        self.to = to

    def rows(self) -> list[dict[str, str]]:
        """Return what is known of each as texts."""
        with_class = any(near.class_name is not None for near in self)
        return [
            {"similarity": f"{near.similarity:.4f}", "position": str(near.position), "item": near.name}
            | ({"class": near.class_name or "-"} if with_class else {})
            for near in self
        ]

    def _repr_html_(self) -> str:
        rows = self.rows()
        return format_html_rows(f"nearest to {self.to}", rows) if rows else "there is no other item"


@NEIGHBORS.with_signature
def neighbors(given: dict[str, Any]) -> Nearest:
    """Return the items whose features have the largest cosine with those of a query, the nearest first.

    Raises:
        UsageError: a wrong argument, features that cannot be read, or a file that cannot be embedded.

    >>> import numpy as np
    >>> features = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1]])
    >>> [near.position for near in neighbors(features, query=0, top=2)]
    [2, 1]
    """
    asked = NeighborsOptions(**given)
    features, device = as_features(asked.features), resolve_device(asked.device)
    page = prepare_page(asked.page, features, overwrite=asked.overwrite)
    position = resolve_position(asked.query, features)
    if position is None:
        folder = asked.run if asked.run is not None else features.run
        if folder is None:
            if not is_file(asked.query):
                raise unknown_query_error(asked.query, features)
            raise UsageError(
                f"run: the features do not say which run embedded them; pass {format_options(run=...)} to embed a file."
            )
        run = folder if isinstance(folder, Run) else Run(folder)
        query = embedded(str(asked.query), features, run, view=features.view, trust=asked.trust, device=device)
    else:
        query = torch.tensor(features.features[position], dtype=torch.float32, device=device)
    name = called(asked.query) if position is None else features.item_name(position)
    found = Nearest(find_nearest_items(query, features, asked.top, asked.index, but=position), name)
    if page is not None:
        page.write(_shown(found, Path(str(asked.query)) if position is None else position, len(features)))
    return found


def find_nearest_items(
    query: Tensor, features: Features, top: int, index: str | Path | None, *, but: int | None = None
) -> list[Neighbor]:
    """Return the nearest items to a query ``(F,)``, but for the one at a position, by an index where one is given."""
    among = None
    if index is None:
        suggest_index(features.features)
    else:
        among = load_or_build_index(features.features, Path(index)).candidates(query, top + 1)
    similarities, places = find_most_similar(query, features.features, top + 1, among=among)
    found = [
        Neighbor(place, features.item_name(place), similarity, features.class_name_of(place))
        for similarity, place in zip(similarities.tolist(), places.tolist(), strict=True)
        if place != but
    ]
    return found[:top]


def called(query: int | str | Path) -> str:
    """Return what a query is called: a file by its name, anything else as it is."""
    return Path(str(query)).name if is_file(query) else str(query)


def _shown(found: Nearest, query: Path | int, items: int) -> Contents:
    asked = ItemCard(query, found.to)
    cards = [ItemCard(near.position, near.name, f"{near.similarity:.3f}", near.class_name or "") for near in found]
    groups = [CardGroup("What was looked for", "", "", [asked]), CardGroup("The nearest", "", "", cards)]
    told = f"Of {items:,} items, those with the largest cosine, which stands below each."
    return Contents(f"What is nearest to {called(found.to)}", told, groups)
