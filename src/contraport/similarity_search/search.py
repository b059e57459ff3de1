"""Implements `contraport search`: finds items of one view by a query of another view."""

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
from contraport.similarity_search.config import SEARCH, ItemSearchOptions
from contraport.similarity_search.neighbors import NearestItems, find_nearest_items
from contraport.similarity_search.page import resolve_page
from contraport.similarity_search.query import embed_query, format_query_title, is_existing_path


@SEARCH.with_option_parameters
def search(values: dict[str, Any]) -> NearestItems:
    """Find items by a query of another view, such as images by a text, the nearest first.

    Raises:
        UsageError: an invalid argument, a run of one view, or features that cannot be read or are not of one view.
    """
    options = ItemSearchOptions(**values)
    run, features = _resolve_run_and_features(options)
    model = run.model(trust_remote_code=options.trust_remote_code)
    message = f"run: must have several views, and {run.path} has one, {model.view_names[0]!r}."
    check(len(model.shapes) > 1, message, "one_view")
    target = run.settings().predict
    message = f"run: {run.path} was trained with {format_options(predict=target)}, so its views cannot be compared."
    check(target is None, message, "not_comparable")
    query_view = _resolve_query_view(options, model)
    if features is None:
        if options.view is not None:
            view = model.view_names[model.view_index(options.view)]
        else:
            view = next(name for name in model.view_names if name != query_view)
        features = _embed_items(run, options, view)
    page = resolve_page(options.page, features, overwrite=options.overwrite)
    device = resolve_device(options.device)
    query = embed_query(
        options.query, features, run, view=query_view, trust_remote_code=options.trust_remote_code, device=device
    )
    nearest = find_nearest_items(query, features, options.top, options.index)
    result = NearestItems(nearest, format_query_title(options.query))
    if page is not None:
        page.write(result.build_page_contents(len(features)))
    return result


def _resolve_run_and_features(options: ItemSearchOptions) -> tuple[Run, Features | None]:
    """Return the run whose encoders embed items and query, and the features if they come from a file."""
    source = options.features
    if isinstance(source, Run) or (isinstance(source, str | Path) and Path(source).is_dir()):
        run = source if isinstance(source, Run) else Run(source)
        check(options.run is None, f"run: excluded by features, which is the run {run.path}.", "conflict")
        return run, None
    check(options.view is None, "view: excluded by features in a file, which are of one view.", "conflict")
    features = source if isinstance(source, Features) else read_features(source)
    if features.view is None:
        message = "features: must be of one view, as `contraport embed RUN --view NAME` writes them, or a run folder."
        raise UsageError(message, kind="whole_items")
    folder = options.run if options.run is not None else features.run
    if folder is None:
        message = f"run: required, as the features name no run; pass {format_options(run=...)}."
        raise UsageError(message, kind="missing")
    return folder if isinstance(folder, Run) else Run(folder), features


def _resolve_query_view(options: ItemSearchOptions, model: Model) -> str:
    """Return the view of the query: the option `query_view`, or else the only view of the query's kind."""
    if options.query_view is not None:
        return model.view_names[model.view_index(options.query_view, "query_view")]
    is_file = isinstance(options.query, Path) or (is_existing_path(options.query) and Path(options.query).is_file())
    kind = "text" if not is_file else "image" if Path(options.query).suffix != ".npy" else None
    kinds = dict(zip(model.view_names, map(kind_from_shape, model.shapes), strict=True))
    fitting = [name for name in kinds if kind in (kinds[name], None)]
    query, views = repr(str(options.query)), ", ".join(f"{name} ({kinds[name]})" for name in kinds)
    check(len(fitting) > 0, f"query: {query} is of kind {kind}, and the run's views are {views}.", "kind")
    check(len(fitting) == 1, f"query_view: required, as {query} may be of several views: {views}.", "ambiguous")
    return fitting[0]


def _embed_items(run: Run, options: ItemSearchOptions, view: str) -> Features:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "features.npz"
        embed(
            run,
            view=view,
            split=options.split,
            out=out,
            device=options.device,
            trust_remote_code=options.trust_remote_code,
        )
        return read_features(out)
