"""What is looked for: an item of the features, or a file or a text that the run's own encoder embeds."""

from __future__ import annotations

import difflib
from pathlib import Path, PurePath

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from contraport._utils.text_tensors import is_text_shape
from contraport.data import Dataset, from_arrays
from contraport.data.decoding import ImageFiles, ImageStore, decoding_error
from contraport.embedding import embed_dataset
from contraport.encoders import Model
from contraport.errors import UsageError, check, check_regular_file, unreadable_error
from contraport.evaluation.split_loading import image_size_of
from contraport.features import Features
from contraport.runs import Run
from contraport.training.components import build_plain_views


def resolve_position(query: int | str | Path, features: Features) -> int | None:
    """Return the position of the item that a query names, by its position or its key; None where it names none.

    Raises:
        UsageError: it is a number that is no position.
    """
    if isinstance(query, int):
        there = -len(features) <= query < len(features)
        check(there, f"query: expected a position among {len(features)}, got {query}.")
        return query % len(features)
    keys = [] if features.keys is None else features.keys.tolist()
    if str(query) in keys:
        return keys.index(str(query))
    if str(query).removeprefix("-").isdecimal() and not is_file(query):
        return resolve_position(int(str(query)), features)
    return None


NAMES_COMPARED = 100_000
"""Among so many keys the nearest to a query is looked for."""


def unknown_query_error(query: object, features: Features) -> UsageError:
    """Return the error for a query that names no item and no file, with the nearest key of an item."""
    keys = [] if features.keys is None else features.keys[:NAMES_COMPARED].tolist()
    ends = {PurePath(key).name: key for key in reversed(keys)}  # people type the last part of a path
    near = difflib.get_close_matches(PurePath(str(query)).name, ends, n=1)
    hint = f"; did you mean {ends[near[0]]!r}?" if near else "."
    told = f"query: expected a position among {len(features)}, a key of theirs or a file, got {str(query)!r}"
    return UsageError(f"{told}{hint}")


def is_file(query: object) -> bool:
    """Return whether a query names a file."""
    try:
        return Path(str(query)).exists()
    except OSError:  # a text is longer than any name may be
        return False


def embedded(
    query: str | Path, features: Features, run: Run, *, view: str | None, trust: bool, device: torch.device
) -> Tensor:
    """Return the features ``(F,)`` of a text, or of the item in a file, an image or an array in `.npy`, by a run.

    Args:
        query: the file; or where the view is one of texts, the text.
        features: that it will be compared with.
        run: whose encoder is taken.
        view: which of the run's views it is; None: an item as a whole.
        trust: import and run an encoder that the run names as ``module:attribute``.
        device: where to compute.

    Raises:
        UsageError: the file cannot be read, or is none that the encoder takes; or the features are of another encoder.
    """
    settings, model = run.settings(), run.model(trust=trust)
    model = model if view is None else model.single_view(view)
    check(
        model.num_features == features.features.shape[1],
        f"run: {run.path} gives {model.num_features} features of an item, got {features.features.shape[1]} of each.",
    )
    texts = len(model.shapes) == 1 and is_text_shape(model.shapes[0])
    if not texts and not is_file(query):
        raise unknown_query_error(query, features)
    item = from_arrays([str(query)], name="query", argument="query") if texts else _item(Path(query), model)
    found, _ = embed_dataset(model, item, views=build_plain_views(settings, item), device=device, workers=0)
    return found[0].to(device)


def _item(path: Path, model: Model) -> Dataset:
    check_regular_file("query", path)
    if path.suffix == ".npy":
        try:
            return from_arrays(np.load(path, allow_pickle=False)[None], name=str(path), argument="query")
        except UsageError:
            raise
        except Exception as error:  # on hostile bytes the parser raises whatever it likes
            raise unreadable_error(f"query: {path}", "an array", error) from error
    size = image_size_of(model)
    if size is None:
        raise UsageError(f"query: the encoder takes items of shape {model.shapes}, no square images; got {path}.")
    images = ImageFiles((str(path),))
    broken = decoding_error(images, 0)
    check(broken is None, f"query: {path} cannot be read as an image: {broken}.")
    item = Dataset(ImageStore(images, size), name=str(path), split="test")
    if model.shapes != ((1, size, size),):
        return item
    (pixels,) = item.store.fetch(torch.tensor([0]))
    return from_arrays(transforms.rgb_to_grayscale(pixels), name=str(path))
