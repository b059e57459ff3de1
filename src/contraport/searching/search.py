"""`search`: items of one view of a run that are nearest to something of another view, such as images by a text."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from contraport._utils.formatting import format_options
from contraport.encoders import Model, kind_from_shape
from contraport.errors import UsageError, check
from contraport.evaluation.embed import embed
from contraport.evaluation.split_loading import resolve_device
from contraport.features import Features, read_features
from contraport.runs import Run
from contraport.searching.config import SEARCH, SearchOptions
from contraport.searching.neighbors import Nearest, called, find_nearest_items
from contraport.searching.page import CardGroup, Contents, ItemCard, prepare_page
from contraport.searching.query import embedded


@SEARCH.with_signature
def search(given: dict[str, Any]) -> Nearest:
    """Return the items whose features have the largest cosine with those of a query of another view, the nearest first.

    Raises:
        UsageError: a wrong argument, a run of one view, or features that cannot be read or are of no single view.
    """
    asked = SearchOptions(**given)
    run, features = _opened(asked)
    model = run.model(trust=asked.trust)
    check(
        len(model.shapes) > 1,
        f"run: {run.path} has one view, {model.view_names[0]!r}; expected one that was trained on several.",
    )
    predicts = run.settings().predict
    check(
        predicts is None,
        f"run: {run.path} was trained with {format_options(predict=predicts)}; expected one of an "
        f"objective, which makes "
        f"its views {' and '.join(model.view_names)} comparable.",
    )
    query_view = _view_of(asked, model)
    if features is None:
        features = _of_run(run, asked, _looked_at(model, query_view, asked.view))
    page = prepare_page(asked.page, features, overwrite=asked.overwrite)
    device = resolve_device(asked.device)
    query = embedded(asked.query, features, run, view=query_view, trust=asked.trust, device=device)
    found = Nearest(find_nearest_items(query, features, asked.top, asked.index), called(asked.query))
    if page is not None:
        page.write(_shown(found, len(features)))
    return found


def _opened(asked: SearchOptions) -> tuple[Run, Features | None]:
    """Return the run whose encoders are taken, and the features where they are in a file."""
    where = asked.features
    if isinstance(where, Run) or (isinstance(where, str | Path) and Path(where).is_dir()):
        run = where if isinstance(where, Run) else Run(where)
        check(asked.run is None, f"run: expected nothing beside the run {run.path}, got {asked.run}.")
        return run, None
    check(asked.view is None, f"view: the features are of one already; expected nothing, got {asked.view!r}.")
    features = where if isinstance(where, Features) else read_features(where)
    if features.view is None:
        raise UsageError(
            "features: expected those of one view, which `contraport embed RUN --view NAME` writes, or a run folder; "
            "these are of items as a whole."
        )
    folder = asked.run if asked.run is not None else features.run
    if folder is None:
        raise UsageError(f"run: the features do not say which run embedded them; pass {format_options(run=...)}.")
    return folder if isinstance(folder, Run) else Run(folder), features


def _view_of(asked: SearchOptions, model: Model) -> str:
    """Return the view that the query is of: the one that is asked for, or the one of its kind."""
    if asked.query_view is not None:
        return model.view_names[model.view_index(asked.query_view, "query_view")]
    path = Path(asked.query)
    is_file = isinstance(asked.query, Path) or (len(str(asked.query)) < 256 and path.is_file())
    kinds = [kind_from_shape(shape) for shape in model.shapes]
    wanted = "text" if not is_file else "image" if path.suffix != ".npy" else None
    fitting = [name for name, kind in zip(model.view_names, kinds, strict=True) if kind == wanted or wanted is None]
    views = ", ".join(f"{name} ({kind})" for name, kind in zip(model.view_names, kinds, strict=True))
    check(
        len(fitting) > 0,
        f"query: {str(asked.query)!r} is {'a text' if wanted == 'text' else 'an image'}, and none of the run's views "
        f"is: {views}.",
    )
    check(len(fitting) == 1, f"query_view: expected one of the run's views, which {str(asked.query)!r} is: {views}.")
    return fitting[0]


def _looked_at(model: Model, query_view: str, view: object) -> str:
    if view is not None:
        return model.view_names[model.view_index(view)]
    return next(name for name in model.view_names if name != query_view)


def _of_run(run: Run, asked: SearchOptions, view: str) -> Features:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "features.npz"
        embed(run, view=view, split=asked.split, out=out, device=asked.device, trust=asked.trust)
        return read_features(out)


def _shown(found: Nearest, items: int) -> Contents:
    cards = [ItemCard(near.position, near.name, f"{near.similarity:.3f}", near.class_name or "") for near in found]
    told = f"Of {items:,} items, those with the largest cosine, which stands below each."
    return Contents(f"What is nearest to {found.to}", told, [CardGroup("The nearest", "", "", cards)])
