"""`embed`: the features of some data, written to a file."""

from __future__ import annotations

import logging
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset as AnyDataset

from contraport._utils.progress import ProgressBars
from contraport._utils.text_tensors import is_text_shape, tensor_to_texts
from contraport.data import Batch, Dataset
from contraport.data.sources.load import is_stream
from contraport.data.streams import Stream
from contraport.embedding import LoaderConfig, embed_batches
from contraport.encoders import Model
from contraport.errors import check, check_new_file, report_write_errors
from contraport.evaluation.config import EMBED, EmbedOptions
from contraport.evaluation.process_share import current_process
from contraport.evaluation.split_loading import (
    Reading,
    find_view,
    is_training_data,
    load_training_splits,
    resolve_device,
)
from contraport.features import (
    FeatureBuffer,
    conflicting_files,
    gathering,
    remove,
    suffixes,
    write_features,
    write_shards,
)
from contraport.runs import Run
from contraport.training.components import build_plain_views

log = logging.getLogger("contraport.evaluation")

LETTERS = 80
"""A text is called by at most so many of its letters."""


@EMBED.with_signature
@torch.random.fork_rng(devices=[])
def embed(given: dict[str, Any]) -> Path:
    """Write the frozen features of every item of some data to a file, with what each row is, and return its path.

    Raises:
        UsageError: a wrong argument, or a run that is corrupt or not trained to its end; nothing was written.
    """
    asked = EmbedOptions(**given)
    share = current_process()
    path = share.path(Path(asked.out))
    check(path.suffix in suffixes(), f"out: expected a name that ends in {', '.join(suffixes())}, got {path.name!r}.")
    check_new_file("out", path, overwrite=asked.overwrite)
    check(asked.shard_items is None or share.of == 1, "shard_items: several processes write a shard each; give none.")
    in_shards = share.of > 1 or asked.shard_items is not None
    older = conflicting_files(Path(asked.out), share.of if share.of > 1 else None) if in_shards else []
    for file in older:
        check_new_file("out", file, overwrite=asked.overwrite)
    run = asked.run if isinstance(asked.run, Run) else Run(asked.run)
    settings, model = run.settings(), run.model(trust=asked.trust)
    if caveat := run.caveat(settings):
        log.warning("%s", caveat)
    wanted: tuple[str, ...] = ("train", "test") if asked.split == "all" else (asked.split,)
    is_one_split = isinstance(asked.data, AnyDataset) or is_stream(asked.data)
    if is_one_split:
        wanted = wanted[:1]
    whole, view = model, None
    if asked.view is not None:
        model = whole.of_view(asked.view)
        (view,) = model.view_names
    sized = whole if is_stream(asked.data) else model  # images are read with each of its items, whatever the view
    reading = Reading(settings, sized, asked.columns, asked.root)
    if "test" in wanted and not is_one_split:
        splits = load_training_splits(run, reading, asked.data, leave_out=False)
        datasets = [getattr(splits, part) for part in wanted]
    else:
        datasets = [reading.load(asked.data, part) for part in wanted]
    if asked.view is not None:
        datasets = [_of_view(dataset, whole, asked.view) for dataset in datasets]
    reader = LoaderConfig(
        asked.batch_size, resolve_device(asked.device), asked.workers, ProgressBars(shown=asked.progress)
    )
    with gathering(path) as gathered:
        for dataset in share.part(datasets):
            for features, batch in embed_batches(model, dataset, build_plain_views(settings, dataset), reader):
                with report_write_errors("out", path):
                    _add(gathered, dataset, batch, features.numpy(), by_text=view is not None)
        data = str(settings.data) if is_training_data(settings, asked.data) else datasets[0].name
        found = replace(gathered.features(_class_names(datasets[0]), str(run.path)), view=view, data=data)
        written = [path]
        with report_write_errors("out", path):
            if asked.shard_items is None:
                write_features(path, found)
            else:
                written = write_shards(path, found, asked.shard_items)
        if asked.shard_items is not None:
            log.info("%d items are in %d shards, %s to %s", len(found), len(written), written[0], written[-1].name)
    for file in set(older) - set(written):
        remove(file)
    return path


def _of_view(dataset: Dataset, model: Model, called: object) -> Dataset:
    """Return the items with one of the views of a model alone; what several of them show there is there once.

    Of a stream it is there as often as it comes, as nobody knows what is the same.

    Raises:
        UsageError: the data have no such view.
    """
    return dataset.of_views([find_view(dataset, model, called)]).drop_duplicates()


def _add(gathered: FeatureBuffer, dataset: Dataset, batch: Batch, features: np.ndarray, *, by_text: bool) -> None:
    rows, keys = batch.ids, batch.keys
    if not isinstance(dataset, Stream):
        rows = dataset.rows[batch.ids]
        keys = None if dataset.keys is None else tuple(dataset.keys[position] for position in batch.ids.tolist())
    beginnings = _beginnings(batch, dataset.shapes)
    gathered.add(
        features,
        rows=rows.numpy(),
        split=dataset.split,
        keys=beginnings if by_text and beginnings else keys or beginnings,
        labels=None if batch.labels is None else batch.labels.numpy(),
    )


def _beginnings(batch: Batch, shapes: tuple[tuple[int, ...], ...]) -> list[str] | None:
    """Return how the first view of each item begins that is a text, by which it is called; None where none is."""
    texts = [view for view, shape in enumerate(shapes) if is_text_shape(shape)]
    if not texts:
        return None
    read = tensor_to_texts(batch.views[texts[0]])
    return [textwrap.shorten(text, LETTERS, placeholder=" ...") or text[:LETTERS] for text in read]


def _class_names(dataset: Dataset) -> tuple[str, ...] | None:
    """Return the names of the classes; of a stream, whose later classes nobody knows, none: they are numbers."""
    return None if isinstance(dataset, Stream) else dataset.class_names
