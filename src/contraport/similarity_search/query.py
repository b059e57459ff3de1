"""Queries of a similarity search: an item among the features, or a file or text that an encoder embeds."""

from __future__ import annotations

import difflib
from pathlib import Path, PurePath

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from contraport._utils.text_bytes import is_text_shape
from contraport.data import Dataset, from_arrays
from contraport.data.image_decoding import ImageFiles, ImageStore, get_decoding_error
from contraport.embedding import embed_dataset
from contraport.encoders import Model
from contraport.errors import UsageError, check, check_regular_file, unreadable_error
from contraport.evaluation.split_loading import model_image_size
from contraport.features import Features
from contraport.runs import Run
from contraport.training.components import build_unaugmented_views

MAX_COMPARED_KEYS = 100_000
"""Keys among which the nearest to an unknown query is looked up."""


def resolve_position(query: int | str | Path, features: Features) -> int | None:
    """Return the position of the item that a query denotes by its position or key; None if it is no item.

    Raises:
        UsageError: a position out of range.
    """
    if isinstance(query, int):
        items = len(features)
        check(-items <= query < items, f"query: must be a position among {items} items, got {query}.", "out_of_range")
        return query % items
    keys = [] if features.keys is None else features.keys.tolist()
    if str(query) in keys:
        return keys.index(str(query))
    if str(query).removeprefix("-").isdecimal() and not is_existing_path(query):
        return resolve_position(int(str(query)), features)
    return None


def unknown_query_error(query: object, features: Features) -> UsageError:
    """Build the error for a query that is neither an item nor a file, with the most similar key as a hint."""
    keys = [] if features.keys is None else features.keys[:MAX_COMPARED_KEYS].tolist()
    by_name = {PurePath(key).name: key for key in reversed(keys)}  # users type the last part of a path
    near = difflib.get_close_matches(PurePath(str(query)).name, by_name, n=1)
    hint = f" Did you mean {by_name[near[0]]!r}?" if near else ""
    message = f"query: must be a position among {len(features)} items, a key or a file, got {str(query)!r}.{hint}"
    return UsageError(message, kind="unknown")


def is_existing_path(query: object) -> bool:
    """Return whether a query is the path of a file or folder."""
    try:
        return Path(str(query)).exists()
    except OSError:  # a text is longer than any file name may be
        return False


def format_query_title(query: int | str | Path) -> str:
    """Return a query as text for titles: the base name if it is a file, otherwise the query unchanged."""
    return Path(str(query)).name if is_existing_path(query) else str(query)


def embed_query(
    query: str | Path, features: Features, run: Run, *, view: str | None, trust_remote_code: bool, device: torch.device
) -> Tensor:
    """Embed a query text, or an image or `.npy` file, by the encoder of a run; return its features, ``(F,)``.

    Args:
        query: the file, or the text if the view is one of texts.
        features: the features that it will be compared with.
        run: the run of the encoder.
        view: the view of the run that the query is; None: a whole item.
        trust_remote_code: import and run an encoder that the run names as ``module:attribute``.
        device: the device that computes.

    Raises:
        UsageError: the file cannot be read or does not fit the encoder, or the features are of another encoder.
    """
    settings, model = run.settings(), run.model(trust_remote_code=trust_remote_code)
    model = model if view is None else model.single_view(view)
    width = features.features.shape[1]
    message = f"run: {run.path} embeds items in {model.num_features} features, got {width} features for each item."
    check(model.num_features == width, message, "width")
    texts = len(model.shapes) == 1 and is_text_shape(model.shapes[0])
    if not texts and not is_existing_path(query):
        raise unknown_query_error(query, features)
    item = from_arrays([str(query)], name="query", argument="query") if texts else _load_item(Path(query), model)
    embedded, _ = embed_dataset(
        model, item, views=build_unaugmented_views(settings, item), device=device, num_workers=0
    )
    return embedded[0].to(device)


def _load_item(path: Path, model: Model) -> Dataset:
    check_regular_file("query", path)
    if path.suffix == ".npy":
        try:
            return from_arrays(np.load(path, allow_pickle=False)[None], name=str(path), argument="query")
        except UsageError:
            raise
        except Exception as error:  # parsers raise errors of any class on damaged files
            raise unreadable_error(f"query: {path}", "an array", error) from error
    size = model_image_size(model)
    if size is None:
        message = f"query: the encoder takes items of shape {model.shapes}, not square images; got {path}."
        raise UsageError(message, kind="shape")
    images = ImageFiles((str(path),))
    problem = get_decoding_error(images, 0)
    check(problem is None, f"query: {path} cannot be read as an image: {problem}.", "unreadable")
    item = Dataset(ImageStore(images, size), name=str(path), split="test")
    if model.shapes != ((1, size, size),):
        return item
    (pixels,) = item.store.fetch(torch.tensor([0]))
    return from_arrays(transforms.rgb_to_grayscale(pixels), name=str(path))
