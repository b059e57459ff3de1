"""Implements `contraport neighbors`: finds the items whose features are nearest to a query."""

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
from contraport.options import keep_deprecated_attributes
from contraport.runs import Run
from contraport.similarity_search.block_search import find_most_similar
from contraport.similarity_search.config import NEIGHBORS, NeighborSearchOptions
from contraport.similarity_search.index import load_or_build_index, log_index_recommendation
from contraport.similarity_search.page import CardSection, ItemCard, PageContents, resolve_page
from contraport.similarity_search.query import (
    embed_query,
    format_query_title,
    is_existing_path,
    resolve_position,
    unknown_query_error,
)


class Neighbor(NamedTuple):
    """Item found by a search, with its similarity to the query.

    Attributes:
        position: position of the item among the features, from 0.
        name: key of the item, or else its split and row in the source.
        similarity: cosine similarity between the item and the query.
        class_name: name of the class of the item; None if it has no class.
    """

    position: int
    name: str
    similarity: float
    class_name: str | None


@keep_deprecated_attributes(query="query_name")
class NearestItems(list[Neighbor]):
    """List of the items nearest to a query, the nearest first; notebooks display it as a table.

    Attributes:
        query_name: name of the query item or file, or the text of the query.
    """

    def __init__(self, neighbors: Iterable[Neighbor], query: str) -> None:
        super().__init__(neighbors)
        self.query_name = query

    def format_rows(self) -> list[dict[str, str]]:
        """Format the nearest items as rows of a table, one for each item."""
        with_class = any(near.class_name is not None for near in self)
        return [
            {"similarity": f"{near.similarity:.4f}", "position": str(near.position), "item": near.name}
            | ({"class": near.class_name or "-"} if with_class else {})
            for near in self
        ]

    def build_page_contents(self, items: int, *groups: CardSection) -> PageContents:
        """Build the contents of an HTML page: the given groups, then the nearest of `items` searched items."""
        cards = [ItemCard(near.position, near.name, f"{near.similarity:.3f}", near.class_name or "") for near in self]
        lead = f"The nearest of {items:,} items, with their cosine similarity to the query."
        return PageContents(
            f"Nearest to {format_query_title(self.query_name)}", lead, [*groups, CardSection("Nearest items", cards)]
        )

    def _repr_html_(self) -> str:
        rows = self.format_rows()
        return format_html_rows(f"nearest to {self.query_name}", rows) if rows else "no other items"


@NEIGHBORS.with_option_parameters
def neighbors(values: dict[str, Any]) -> NearestItems:
    """Find the items most similar to a query by cosine similarity, the nearest first.

    Raises:
        UsageError: an invalid argument, features that cannot be read, or a file that cannot be embedded.

    >>> import numpy as np
    >>> features = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1]])
    >>> [near.position for near in neighbors(features, query=0, top=2)]
    [2, 1]
    """
    options = NeighborSearchOptions(**values)
    features, device = as_features(options.features), resolve_device(options.device)
    page = resolve_page(options.page, features, overwrite=options.overwrite)
    position = resolve_position(options.query, features)
    shown: int | Path
    if position is None:
        shown, name = Path(str(options.query)), format_query_title(options.query)
        folder = options.run if options.run is not None else features.run
        if folder is None:
            if not is_existing_path(options.query):
                raise unknown_query_error(options.query, features)
            message = f"run: required to embed a file, as the features name no run; pass {format_options(run=...)}."
            raise UsageError(message, kind="missing")
        run = folder if isinstance(folder, Run) else Run(folder)
        query = embed_query(
            str(options.query),
            features,
            run,
            view=features.view,
            trust_remote_code=options.trust_remote_code,
            device=device,
        )
    else:
        shown, name = position, features.item_name(position)
        query = torch.tensor(features.features[position], dtype=torch.float32, device=device)
    result = NearestItems(find_nearest_items(query, features, options.top, options.index, exclude=position), name)
    if page is not None:
        page.write(result.build_page_contents(len(features), CardSection("Query", [ItemCard(shown, name)])))
    return result


def find_nearest_items(
    query: Tensor, features: Features, top: int, index: str | Path | None, *, exclude: int | None = None
) -> list[Neighbor]:
    """Find the `top` items nearest to a query ``(F,)``, exactly or by an index, except the item at `exclude`."""
    candidates = None
    if index is None:
        log_index_recommendation(features.features)
    else:
        candidates = load_or_build_index(features.features, Path(index)).find_candidates(query, top + 1)
    similarities, places = find_most_similar(query, features.features, top + 1, candidates=candidates)
    nearest = [
        Neighbor(place, features.item_name(place), similarity, features.class_name_at(place))
        for similarity, place in zip(similarities.tolist(), places.tolist(), strict=True)
        if place != exclude
    ]
    return nearest[:top]
