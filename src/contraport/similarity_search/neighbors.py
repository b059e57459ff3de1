"""Implements `contraport neighbors` and `contraport search`: items nearest to a query."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contraport._utils.files import read_npy_array
from contraport._utils.formatting import format_options, join_names
from contraport._utils.notebook_tables import format_html_rows
from contraport._utils.text_bytes import TEXT_SHAPE
from contraport.data import Dataset, from_arrays
from contraport.data.image_decoding import IMAGE_SUFFIXES, ImageFilePaths, decode_images, find_decoding_error_message
from contraport.data.stores import DecodingStore
from contraport.embedding import LoaderConfig, check_views_fit_model, embed_items_as_vectors, extract_item_features
from contraport.encoders import Model, kind_from_shape
from contraport.engine import LateInteraction
from contraport.errors import UsageError, check, check_regular_file, rename_argument, translate_read_errors
from contraport.evaluation.command_options import EmbedOptions
from contraport.evaluation.embed import embed_to_features
from contraport.evaluation.split_loading import (
    SplitLoader,
    find_model_image_size,
    is_training_data,
    load_splits,
    resolve_device,
)
from contraport.feature_files import Features, as_features, read_features
from contraport.options import keep_deprecated_attributes
from contraport.runs import Run, WritableRun, as_run_folder
from contraport.runs.run import check_run_folder
from contraport.similarity_search.command_options import (
    NEIGHBORS_COMMAND_SPEC,
    SEARCH_COMMAND_SPEC,
    ItemSearchOptions,
    NeighborSearchOptions,
)
from contraport.similarity_search.nearest_rows import (
    find_late_interaction,
    load_or_build_index,
    top_scores_and_indices,
    warn_of_pooled_features,
    warn_of_slow_search,
)
from contraport.similarity_search.output_files import (
    PAGE_SUFFIXES,
    CardSection,
    ItemCard,
    check_output_path,
    write_cards_page,
)
from contraport.training.components.data_builder import build_unaugmented_views

log = logging.getLogger("contraport.similarity_search")

_AnySearchOptions = NeighborSearchOptions | ItemSearchOptions


class Neighbor(NamedTuple):
    """Item found by a search, with its similarity to the query.

    Attributes:
        position: position of the item among the features, from 0.
        name: key of the item, or else its split and row in the source.
        similarity: cosine similarity between the item and the query, or their similarity by a kernel of sets; plus the
            bonus for popularity, if the search has one.
        class_name: name of the class of the item; None if it has no class.
        description: beginning of the text of the item; None if it has none, or the text is its name.
        row: row of the item in its data, from 0, as stored with the features; for an array the position.
    """

    position: int
    name: str
    similarity: float
    class_name: str | None
    description: str | None = None
    row: int | None = None


@keep_deprecated_attributes(query="query_name")
class NearestItems(list[Neighbor]):
    """Items nearest to a query, nearest first, displayed as a table in notebooks.

    Attributes:
        query_name: name of the query item or file, or the text of the query.
    """

    def __init__(self, neighbors: Iterable[Neighbor], query_name: str) -> None:
        super().__init__(neighbors)
        self.query_name = query_name

    def format_rows(self) -> list[dict[str, str]]:
        """Format the nearest items as rows of a table."""
        with_class = any(near.class_name is not None for near in self)
        with_row = any(near.row is not None for near in self)
        with_description = any(near.description is not None for near in self)
        return [
            {"similarity": f"{near.similarity:.4f}", "position": str(near.position)}
            | ({"row": "-" if near.row is None else str(near.row)} if with_row else {})
            | {"item": near.name}
            | ({"description": near.description or "-"} if with_description else {})
            | ({"class": near.class_name or "-"} if with_class else {})
            for near in self
        ]

    def _repr_html_(self) -> str:
        """HTML table of the items for notebooks."""
        rows = self.format_rows()
        return format_html_rows(f"nearest to {self.query_name!r}", rows) if rows else "no other items"


@NEIGHBORS_COMMAND_SPEC.with_option_parameters
def neighbors(arguments: dict[str, Any]) -> NearestItems:
    """Find the items nearest to a query by cosine similarity, nearest first.

    Raises:
        UsageError: an invalid argument, features that cannot be read, or a file that cannot be embedded.

    >>> import numpy as np
    >>> features = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1]])
    >>> [near.position for near in neighbors(features, query=0, top=2)]
    [2, 1]
    """
    options = NeighborSearchOptions(**arguments)
    features, device = as_features(options.features), resolve_device(options.device)
    warn_of_pooled_features(features.run)
    check_output_path("page", options.page, PAGE_SUFFIXES, overwrite=options.overwrite)
    position = _find_query_position(options.query, features)
    if position is not None:
        if options.run is not None:  # it has no effect, but a mistyped one is an error
            check_run_folder(as_run_folder(options.run).path)
        card = ItemCard(position, features.item_name_and_description(position))
        query = torch.from_numpy(np.array(features.features[position], dtype=np.float32)).to(device)
    else:
        card = ItemCard(Path(str(options.query)), _format_query_title(options.query))
        if options.run is None and features.run is None and not _is_existing_path(options.query):
            raise _unknown_query_error(options.query, features)
        query = _embed_query(options, features, _resolve_query_run(options, features), features.view, device)
    result = NearestItems(_find_nearest_items(options, features, query, exclude=position), card.name)
    _write_page_if_set(options.page, features, result, CardSection("Query", [card]))
    return result


@SEARCH_COMMAND_SPEC.with_option_parameters
def search(arguments: dict[str, Any]) -> NearestItems:
    """Find items across views, such as images by text.

    The nearest come first. If the run was trained with a kernel of sets of vectors (`LateInteraction`), the run's own
    items are compared by this kernel, all of them.

    Raises:
        UsageError: an invalid argument, a run of one view, or features that cannot be read or are not of one view.
    """
    options = ItemSearchOptions(**arguments)
    check_output_path("page", options.page, PAGE_SUFFIXES, overwrite=options.overwrite)
    message = "index: cannot be combined with popularity, which an index of features does not contain."
    check(options.index is None or options.popularity == 0, message, "conflict")
    features = _read_features_unless_run(options)
    run = as_run_folder(options.features) if features is None else _resolve_query_run(options, features)
    model = run.model(trust_remote_code=options.trust_remote_code)
    message = f"run: must have several views, and {run.path} has one, {model.view_names[0]!r}."
    check(len(model.shapes) > 1, message, "one_view")
    target = run.settings().predict
    message = f"run: {run.path} was trained with {format_options(predict=target)}, so its views cannot be compared."
    check(target is None, message, "not_comparable")
    query_view, kernel = _resolve_query_view(options, model), find_late_interaction(run)
    if features is None:
        others = [name for name in model.view_names if name != query_view]
        view = others[0] if options.view is None else model.view_names[model.view_index(options.view)]
        if kernel is not None:
            return _find_nearest_items_by_sets(options, run, model, kernel, query_view, view)
        features = _embed_run_items(run, options, view)
    else:
        warn_of_pooled_features(run.path)
    query = _embed_query(options, features, run, query_view, resolve_device(options.device))
    bonuses = _compute_popularity_bonuses(options.popularity, run, model, features)
    nearest = _find_nearest_items(options, features, query, bonuses=bonuses)
    result = NearestItems(nearest, _format_query_title(options.query))
    _write_page_if_set(
        options.page, features, result, measure="cosine similarity" if bonuses is None else "similarity and popularity"
    )
    return result


def _compute_popularity_bonuses(popularity: float, run: WritableRun, model: Model, features: Features) -> Tensor | None:
    """Return each item's score bonus for popularity, or None if the option is not set."""
    if popularity == 0:
        return None
    settings, loader = run.settings(), SplitLoader(run.settings(), model)
    splits = load_splits(run, loader, None, drop_trained_items=False)
    message = f"popularity: requires a run trained on a coupling of two sets, got one trained on {splits.train.name!r}."
    check(splits.train.items_are_entity_pairs, message, "no_coupling")
    side = model.view_index(features.view, "features")
    pairs = [part.entity_ids[:, side] for part in splits[:2] if part.entity_ids is not None]
    rows, ids = torch.cat([splits.train.source_rows, splits.test.source_rows]), torch.cat(pairs)
    counts = pairs[0].bincount(minlength=int(ids.max()) + 1)
    if not is_training_data(settings, features.data_name):
        message = f"popularity: requires items of the run's own data, {settings.data}, got {features.data_name}."
        is_own = features.data_name is not None and Path(features.data_name).parent == Path(str(settings.data))
        check(is_own, message, "other_data")
        # A table of one side: its items have the numbers that the pairs name them by.
        rows = loader.load(features.data_name, "train", whole=True).source_rows
        ids = torch.arange(len(rows))
        counts = torch.cat([counts, counts.new_zeros(max(0, len(rows) - len(counts)))])
    entities = torch.zeros(int(rows.max()) + 1, dtype=torch.int64).index_put((rows,), ids)
    bonuses: Tensor = popularity * counts[entities[torch.from_numpy(features.source_rows)]].log1p()
    return bonuses


def _find_nearest_items_by_sets(
    options: ItemSearchOptions, run: WritableRun, model: Model, kernel: LateInteraction, query_view: str, view: str
) -> NearestItems:
    """Find the items whose vector sets are most similar to the query's.

    Sets are compared as soon as they are embedded, block by block: those of all items would not fit into memory.
    """
    message = f"index: not supported for {run.path}, which compares sets of vectors; without it all items are compared."
    check(options.index is None, message, "sets")
    device, encoder = resolve_device(options.device), model.to_single_view(query_view)
    item = _load_text_or_file_query(options, encoder)
    with rename_argument("query", "data"):
        views, loader_config = build_unaugmented_views(run.settings(), item), LoaderConfig(device=device, num_workers=0)
        check_views_fit_model(encoder, item, views)
    encode_query = partial(_embed_as_vector_sets, encoder)
    query = extract_item_features(encoder, item, views, loader_config, "query", function=encode_query).to(device)
    is_query_first = model.view_index(query_view) <= model.view_index(view)

    def compare(encoder: Model, items: Tensor) -> Tensor:
        sets = _embed_as_vector_sets(encoder, items)
        # As in the loss, where the vectors of the earlier view look for their match in those of the later one.
        return kernel.similarities(query, sets).T if is_query_first else kernel.similarities(sets, query)

    compared = _embed_run_items(run, options, view, compare)
    bonuses = _compute_popularity_bonuses(options.popularity, run, model, compared)
    scores = torch.from_numpy(compared.features[:, 0])
    similarities, places = (scores if bonuses is None else scores + bonuses).sort(descending=True, stable=True)
    nearest = _build_neighbors(compared, similarities[: options.top], places[: options.top])
    result = NearestItems(nearest, _format_query_title(options.query))
    _write_page_if_set(options.page, compared, result, measure="similarity by their sets of vectors")
    return result


def _embed_as_vector_sets(model: Model, items: Tensor) -> Tensor:
    """Encode items of a single view as sets of projected vectors, ``(b, t, d)``."""
    (sets,) = model.project(model.encode([items], pooled=False))
    return sets


def _find_nearest_items(
    options: _AnySearchOptions,
    features: Features,
    query_vector: Tensor,
    *,
    exclude: int | None = None,
    bonuses: Tensor | None = None,
) -> list[Neighbor]:
    """Return the items nearest to a query, except the one at `exclude`."""
    candidate_rows, count = None, options.top + 1
    if options.index is None:
        warn_of_slow_search(features.features)
    else:
        index = load_or_build_index(features.features, Path(options.index))
        candidate_rows = index.find_candidate_rows(query_vector, count)
    similarities, places = top_scores_and_indices(
        query_vector, features.features, count, candidate_rows=candidate_rows, bonuses=bonuses
    )
    nearest = _build_neighbors(features, similarities, places)
    return [near for near in nearest if near.position != exclude][: options.top]


def _build_neighbors(features: Features, similarities: Tensor, positions: Tensor) -> list[Neighbor]:
    """Build a `Neighbor` for each position, with its similarity."""
    return [
        Neighbor(
            position,
            features.item_name(position),
            similarity,
            features.class_name_at(position),
            features.item_description(position),
            int(features.source_rows[position]),
        )
        for similarity, position in zip(similarities.tolist(), positions.tolist(), strict=True)
    ]


def _write_page_if_set(
    page: str | Path | None,
    features: Features,
    result: NearestItems,
    *sections: CardSection,
    measure: str = "cosine similarity",
) -> None:
    """Write the HTML page of the nearest items if `page` is set."""
    if page is not None:
        cards = [
            ItemCard(
                one.position,
                features.item_name_and_description(one.position),
                f"{one.similarity:.3f}",
                one.class_name or "",
            )
            for one in result
        ]
        title = f"Nearest to {_format_query_title(result.query_name)}"
        lead = f"The nearest of {len(features):,} items, with their {measure} to the query."
        write_cards_page(page, features, title, lead, [*sections, CardSection("Nearest items", cards)])


def _find_query_position(query: int | str | Path, features: Features) -> int | None:
    """Return the position of the item that the query names, else None."""
    if isinstance(query, int):
        items = len(features)
        check(0 <= query < items, f"query: must be a position from 0 to {items - 1}, got {query}.", "out_of_range")
        return query
    keys = [] if features.keys is None else features.keys.tolist()
    if str(query) in keys:
        position = keys.index(str(query))
        if (count := keys.count(str(query))) > 1:
            message = "query: %d items have the key %s; the first is taken, position %d. Others: query by position."
            log.warning(message, count, query, position)
        return position
    if str(query).removeprefix("-").isdecimal() and not _is_existing_path(query):
        return _find_query_position(int(str(query)), features)
    return None


def _unknown_query_error(query: object, features: Features | None) -> UsageError:
    """Build the error for an unknown query, with the most similar key."""
    if features is None:
        return UsageError(f"query: must be a file of the view that is searched by, got {str(query)!r}.", kind="unknown")
    keys = [] if features.keys is None else features.keys[:100_000].tolist()  # for a fast answer
    by_name = {PurePath(key).name: key for key in reversed(keys)}  # users type the last part of a path
    near = difflib.get_close_matches(PurePath(str(query)).name, by_name, n=1)
    hint = f" Did you mean {by_name[near[0]]!r}?" if near else ""
    message = f"query: no item has the key {str(query)!r}, and no file this name; a position is below {len(features)}."
    return UsageError(f"{message}{hint}", kind="unknown")


def _is_existing_path(query: object) -> bool:
    """Return whether a query is the path of an existing file or folder."""
    try:
        return Path(str(query)).exists()
    except OSError:  # a text is longer than any file name may be
        return False


def _has_image_or_npy_suffix(query: str) -> bool:
    """Return whether a query has the suffix of an image or `.npy` file."""
    return Path(query).suffix.lower() in {*IMAGE_SUFFIXES, ".npy"}


def _format_query_title(query: int | str | Path) -> str:
    """Return a query's text, or the base name of its file, as its title."""
    return Path(str(query)).name if _is_existing_path(query) else str(query)


def _resolve_query_run(options: _AnySearchOptions, features: Features) -> WritableRun:
    """Return the run that embeds the query, by default the features' run."""
    if options.run is not None:
        return as_run_folder(options.run)
    if features.run is None:
        message = f"run: required to embed the query, as the features name no run; pass {format_options(run='FOLDER')}."
        raise UsageError(message, kind="missing")
    message = f"run: {features.run}, which embedded the features, does not exist; pass {format_options(run='FOLDER')}."
    check(Path(features.run).is_dir(), message, "not_found")
    return as_run_folder(features.run)


def _embed_query(
    options: _AnySearchOptions, features: Features, run: WritableRun, view: str | None, device: torch.device
) -> Tensor:
    """Embed the query, ``(F,)``, by one view's encoder or the whole model."""
    query, model = str(options.query), run.model(trust_remote_code=options.trust_remote_code)
    model = model if view is None else model.to_single_view(view)
    model = model if features.dims is None else model.truncate(int(features.dims))
    width = features.features.shape[1]
    if len(model.shapes) > 1 and TEXT_SHAPE in model.shapes and not _is_existing_path(options.query):
        message = f"{_unknown_query_error(query, features)} A text needs features of one view, of "
        message += f"{' or '.join(model.view_names)}: `contraport embed {run.path} --view {model.view_names[0]}`, then "
        raise UsageError(f"{message}`contraport search FEATURES TEXT`.", kind="unknown")
    message = f"run: {run.path} embeds items in {model.num_features} features, got {width} features for each item."
    check(model.num_features == width, message, "width")
    item = _load_text_or_file_query(options, model, features)
    with rename_argument("query", "data"):
        views = build_unaugmented_views(run.settings(), item)
        embedded = embed_items_as_vectors(model, item, views=views, device=device, num_workers=0)
    return embedded[0].to(device)


def _load_text_or_file_query(
    options: _AnySearchOptions, model: Model, features_for_error: Features | None = None
) -> Dataset:
    """Load the query, a text or a file, as a one-item dataset."""
    query, is_chosen = str(options.query), isinstance(options, ItemSearchOptions) and options.query_view is not None
    if len(model.shapes) == 1 and model.shapes[0] == TEXT_SHAPE and (is_chosen or not _has_image_or_npy_suffix(query)):
        return from_arrays([query], name="query", argument="query")
    if _is_existing_path(query):
        return _load_single_item_file(Path(query), model)
    raise _unknown_query_error(query, features_for_error)


def _load_single_item_file(path: Path, model: Model) -> Dataset:
    """Load an image or `.npy` file as a dataset of one item."""
    check_regular_file("query", path)
    if path.suffix == ".npy":
        with translate_read_errors(f"query: {path}", "an array"):
            return from_arrays(read_npy_array(path)[None], name=str(path), argument="query")
    size = find_model_image_size(model)
    if size is None:
        message = f"query: the encoder takes items of shape {model.shapes}, not square images; got {path}."
        raise UsageError(message, kind="shape")
    images = ImageFilePaths((str(path),))
    problem = find_decoding_error_message(images, 0)
    check(problem is None, f"query: {path} cannot be read as an image: {problem}.", "unreadable")
    item = Dataset(DecodingStore(images, (3, size, size), decode_images), name=str(path), split="test")
    if model.shapes != ((1, size, size),):
        return item
    (pixels,) = item.store.fetch_views(torch.tensor([0]))
    from torchvision.transforms.v2 import functional as transforms

    return from_arrays(transforms.rgb_to_grayscale(pixels), name=str(path))


def _read_features_unless_run(options: ItemSearchOptions) -> Features | None:
    """Return the features to search, or None if the option `features` names a run."""
    source = options.features
    if isinstance(source, Run) or (isinstance(source, str | Path) and Path(source).is_dir()):
        path = as_run_folder(source).path
        check(options.run is None, f"run: cannot be combined with a run as features, {path}.", "conflict")
        return None
    check(options.view is None, "view: cannot be combined with a feature file, which is of one view.", "conflict")
    features = source if isinstance(source, Features) else read_features(source)
    if features.view is None:
        message = "features: must be of one view, as `contraport embed RUN --view NAME` writes them, or a run folder."
        raise UsageError(message, kind="whole_items")
    return features


def _resolve_query_view(options: ItemSearchOptions, model: Model) -> str:
    """Return the name of the query's view, as given or inferred."""
    if options.query_view is not None:
        return model.view_names[model.view_index(options.query_view, "query_view")]
    is_file = isinstance(options.query, Path) or _has_image_or_npy_suffix(options.query)
    is_file = is_file or (_is_existing_path(options.query) and Path(options.query).is_file())
    if is_file:
        hint = f"To search it as a text, add {format_options(query_view=...)}."
        check(_is_existing_path(options.query), f"query: there is no file {str(options.query)!r}. {hint}", "not_found")
    kind = "text" if not is_file else "image" if Path(options.query).suffix != ".npy" else None
    kinds = dict(zip(model.view_names, map(kind_from_shape, model.shapes), strict=True))
    fitting = [name for name in kinds if kind in (kinds[name], None)]
    query, views = repr(str(options.query)), ", ".join(f"{name} ({kinds[name]})" for name in kinds)
    forms = [form for one, form in (("image", "an image file"), ("text", "a text")) if one in kinds.values()]
    message = f"query: must be {join_names([*forms, 'an .npy file of one item'], 'or')}, as the run's views are {views}"
    check(len(fitting) > 0, f"{message}; got the {kind} {query}.", "kind")
    choices = " or ".join(format_options(query_view=name) for name in fitting)
    message = f"query_view: required, as {query} may be of several views: {views}; add {choices}."
    check(len(fitting) == 1, message, "ambiguous")
    return fitting[0]


def _embed_run_items(
    run: WritableRun, options: ItemSearchOptions, view: str, compute_features: Callable[..., Tensor] | None = None
) -> Features:
    """Return features of one view of the run's items."""
    trusts = options.trust_remote_code
    embed_options = EmbedOptions(
        run, view=view, split=options.split, out=None, device=options.device, trust_remote_code=trusts
    )
    return embed_to_features(embed_options, compute_features)
