"""The `embed` command, which writes the frozen features of a dataset."""

from __future__ import annotations

import logging
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset as AnyDataset

from contraport._utils.formatting import join_names
from contraport._utils.progress import ProgressBars
from contraport._utils.text_bytes import TEXT_SHAPE, tensor_to_texts
from contraport.data import Batch, Dataset
from contraport.data.sources.torch_datasets_and_streams import is_stream
from contraport.data.streams import Stream
from contraport.data.views.views import COLOR_SPLIT_VIEWS_NAMES
from contraport.embedding import LoaderConfig, check_views_fit_model, extract_item_features, iter_embedded_batches
from contraport.encoders import Model
from contraport.errors import UsageError, check, check_output_file, rename_argument, translate_write_errors
from contraport.evaluation.command_options import EMBED_COMMAND_SPEC, EmbedOptions
from contraport.evaluation.split_loading import (
    SplitLoader,
    is_training_data,
    load_splits,
    resolve_dataset_view_index,
    resolve_device,
)
from contraport.feature_files import (
    SUPPORTED_SUFFIXES,
    Features,
    TemporaryFeatureBuffer,
    list_conflicting_files,
    open_temporary_feature_buffer,
    read_features,
    remove_features_and_items_table,
    shard_path,
    write_feature_shards,
    write_features,
)
from contraport.runs import WritableRun, as_run_folder
from contraport.seeding import fork_rng_locked_at_ends
from contraport.training.components.data_builder import build_unaugmented_views
from contraport.training.config import Settings

log = logging.getLogger("contraport.evaluation")


@EMBED_COMMAND_SPEC.with_option_parameters
@fork_rng_locked_at_ends([])
def embed(arguments: dict[str, Any]) -> Path | Features:
    """Write the features of a dataset to a file, and return its path.

    The file has the row, split and label of each item too. With `out=None` nothing is written, and the features are
    returned as `contraport.feature_files.Features`.

    Raises:
        UsageError: a wrong argument, or a run that is corrupt or not trained to its end; nothing is written.
    """
    options = EmbedOptions(**arguments)
    if options.out is not None:
        return _embed_to_file(options, Path(options.out))
    check(options.shard_items is None, "shard_items: requires out, got None.", "no_out")
    return embed_to_features(options)


@fork_rng_locked_at_ends([])
def embed_to_features(options: EmbedOptions, compute_output: Callable[..., Tensor] | None = None) -> Features:
    """Embed the items that the options select, and return their features.

    With `compute_output` they are the values ``(b, F)`` of ``compute_output(model, *inputs)`` for each block of
    items, where `model` is that of ``options.view``. Only the values of all items are in memory.
    """
    with TemporaryDirectory() as folder:
        return read_features(_embed_to_file(options, Path(folder) / "features.npz", compute_output))


@fork_rng_locked_at_ends([])
def encode_items(
    model: Model,
    settings: Settings,
    items: Any,
    *,
    view: str | int | None,
    dims: int | None,
    normalize: bool,
    batch_size: int,
    num_workers: int | None,
    device: str,
    progress: bool,
) -> np.ndarray:
    """Return the features ``(n, d)`` of items in memory, in their order."""
    message = f"items: must be several items in memory, got {items!r}. For one text or path pass a list: "
    message += "encode([item]). `contraport.embed` reads files of data."
    check(not isinstance(items, str | Path | None), message, "not_in_memory")
    message = "items: must be several items, got one image. Pass a list: encode([item])."
    check(not isinstance(items, Image.Image), message, "single_item")
    whole = model
    if view is not None:
        model = whole.to_single_view(view)
    elif len(whole.shapes) > 1 and settings.views not in COLOR_SPLIT_VIEWS_NAMES:  # color views are made of images
        names = whole.view_names
        message = f"items: must have the views {join_names(names)}, as a tuple of arrays or a dict of them by name. "
        message += f"Items of one view need its name, as in view={names[0]!r}."
        is_dict = isinstance(items, Mapping)
        good = set(names) <= set(items) if is_dict else not isinstance(items, list | np.ndarray | Tensor)
        check(good, message, "views")
        items = {name: items[name] for name in names} if is_dict else items
    model = model if dims is None else model.truncate(dims)
    with rename_argument("items", "data"), _suggest_list_for_single_item(model, items):
        dataset = SplitLoader(settings, model).load(items, "train", whole=True)
        if view is not None:
            dataset = dataset.select_views([resolve_dataset_view_index(dataset, whole, view)])
        views = build_unaugmented_views(settings, dataset)
        check_views_fit_model(model, dataset, views)
    columns = [*items.values()] if isinstance(items, Mapping) else items if isinstance(items, tuple) else [items]
    gap = next((item for item, row in enumerate(dataset.source_rows.tolist()) if item != row), len(dataset))
    file = f", {columns[0][gap]}" if dataset.unreadable_files and isinstance(columns[0], list) else ""
    message = f"items: must each have a row of features, got {len(dataset)} rows for {len(columns[0])} items, without "
    message += f"one for item {gap}{file}. Leave out what cannot be read."
    check(len(dataset) == len(columns[0]), message, "unreadable")
    loader_config = LoaderConfig(batch_size, resolve_device(device), num_workers, ProgressBars(shown=progress))
    features = extract_item_features(model, dataset, views, loader_config)
    return (torch.nn.functional.normalize(features) if normalize else features).numpy()


@contextmanager
def _suggest_list_for_single_item(model: Model, items: Any) -> Iterator[None]:
    """Context manager that adds "pass a list" to errors about a single item."""
    try:
        yield
    except UsageError as error:
        is_array = isinstance(items, np.ndarray | Tensor) and len(model.shapes) == 1
        if not is_array or items.ndim == 0 or items.ndim != len(model.shapes[0]):
            raise
        message = f"{error} If this array of shape {tuple(items.shape)} is one item, pass a list: encode([item])."
        raise UsageError(message, kind=error.code.removeprefix(f"{error.argument}.")) from error


def _embed_to_file(options: EmbedOptions, out: Path, compute_output: Callable[..., Tensor] | None = None) -> Path:
    """Write features to a file or this process's shard, and return its path.

    `compute_output` is that of `embed_to_features`.
    """
    rank, num_processes = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    path = out if num_processes == 1 else shard_path(out, rank, num_processes)
    _check_output_path(options, path, num_processes)
    has_shards = num_processes > 1 or options.shard_items is not None
    older = list_conflicting_files(out, num_processes if num_processes > 1 else None) if has_shards else []
    for file in older:
        check_output_file("out", file, overwrite=options.overwrite)
    run = as_run_folder(options.run)
    settings, model = run.settings(), run.model(trust_remote_code=options.trust_remote_code)
    if warning := run.outdated_model_warning():
        log.warning("%s", warning)
    whole, view = model, None
    if options.view is not None:
        model = whole.to_single_view(options.view)
        (view,) = model.view_names
    model = model if options.dims is None else model.truncate(options.dims)
    # A stream decodes the images of all views together, so the whole model determines their size.
    loader = SplitLoader(settings, whole if is_stream(options.data) else model, options.columns, options.root)
    datasets = _load_datasets(run, loader, options)
    # Each row of a coupling, or item of data with one view alone, has its own key; a view of several has that of all.
    has_own_keys = all(dataset.items_are_entity_pairs or len(dataset.shapes) == 1 for dataset in datasets)
    if view is not None:
        positions = [resolve_dataset_view_index(dataset, whole, options.view) for dataset in datasets]
        datasets = _select_view_of_distinct_items(datasets, positions, view)
    device, bars = resolve_device(options.device), ProgressBars(shown=options.progress)
    loader_config = LoaderConfig(options.batch_size, device, options.num_workers, bars)
    model_output = None if compute_output is None else partial(compute_output, model)
    with open_temporary_feature_buffer(path) as buffer:
        for dataset in _slice_concatenated_datasets_for_rank(datasets, rank, num_processes):
            for features, batch in iter_embedded_batches(
                model, dataset, build_unaugmented_views(settings, dataset), loader_config, model_output
            ):
                with translate_write_errors("out", path):
                    prefers_texts = view is not None and not has_own_keys
                    _add_batch_to_buffer(buffer, dataset, batch, features.numpy(), use_texts_as_keys=prefers_texts)
        data = str(settings.data) if is_training_data(settings, options.data) else datasets[0].name
        # A stream may have further classes later.
        class_names = None if isinstance(datasets[0], Stream) else datasets[0].class_names
        dims = None if options.dims is None else str(options.dims)
        embedded = replace(buffer.to_features(class_names, str(run.path)), view=view, dims=dims, data_name=data)
        written = [path]
        with translate_write_errors("out", path):
            if options.shard_items is None:
                write_features(path, embedded)
            else:
                written = write_feature_shards(path, embedded, options.shard_items)
        if options.shard_items is not None:
            log.info("wrote %d items to %d shards, %s to %s", len(embedded), len(written), written[0], written[-1].name)
    for file in set(older) - set(written):
        remove_features_and_items_table(file)
    return path


def _check_output_path(options: EmbedOptions, path: Path, num_processes: int) -> None:
    """Raise `UsageError` if the output cannot be written as requested."""
    suffixes = join_names(SUPPORTED_SUFFIXES, "or")
    check(path.suffix in SUPPORTED_SUFFIXES, f"out: must end in {suffixes}, got {path.name!r}.", "suffix")
    check_output_file("out", path, overwrite=options.overwrite)
    message = "shard_items: cannot be combined with several processes, each of which writes one shard."
    check(options.shard_items is None or num_processes == 1, message, "conflict")


def _load_datasets(run: WritableRun, loader: SplitLoader, options: EmbedOptions) -> list[Dataset]:
    """Load one dataset for each split to embed."""
    splits: tuple[str, ...] = ("train", "test") if options.split == "all" else (options.split,)
    if isinstance(options.data, AnyDataset) or is_stream(options.data):
        splits = splits[:1]
    elif "test" in splits:
        loaded = load_splits(run, loader, options.data, drop_trained_items=False)
        return [getattr(loaded, split) for split in splits]
    return [loader.load(options.data, split) for split in splits]


def _select_view_of_distinct_items(
    datasets: Sequence[Dataset], view_positions: Sequence[int], view_name: str
) -> list[Dataset]:
    """Reduce each dataset to one view, without repeated items.

    In a stream all are kept, as duplicates are unknown.
    """
    repeated = [dataset.select_views([position]) for dataset, position in zip(datasets, view_positions, strict=True)]
    distinct = [dataset.drop_duplicates() for dataset in repeated]
    seen, ids = distinct[0].entity_ids, distinct[-1].entity_ids
    if len(distinct) > 1 and seen is not None and ids is not None:  # a side of a coupling has pairs in both splits
        new = (~torch.isin(ids[:, 0], seen[:, 0])).nonzero()[:, 0]
        distinct = distinct[:1] if len(new) == 0 else [distinct[0], distinct[1].subset(new)]
    is_any_stream = any(isinstance(dataset, Stream) for dataset in datasets)
    if not is_any_stream and (count := sum(map(len, repeated)) - sum(map(len, distinct))) > 0:
        log.info("items left out, as an earlier one has the same %s: %d", view_name, count)
    return distinct


def _slice_concatenated_datasets_for_rank(datasets: Sequence[Dataset], rank: int, num_processes: int) -> list[Dataset]:
    """Return the slices of the datasets that process `rank` embeds."""
    if num_processes == 1:
        return list(datasets)
    is_stream = any(isinstance(dataset, Stream) for dataset in datasets)
    check(not is_stream, f"data: a stream cannot be divided among {num_processes} processes.", "stream")
    items = sum(len(dataset) for dataset in datasets)
    message = f"data: {items} items cannot be divided among {num_processes} processes."
    check(items >= num_processes, message, "too_few_items")
    start, stop = items * rank // num_processes, items * (rank + 1) // num_processes
    parts, offset = [], 0
    for dataset in datasets:
        first, last = max(start - offset, 0), min(stop - offset, len(dataset))
        if first < last:
            parts.append(dataset.subset(torch.arange(first, last)))
        offset += len(dataset)
    return parts


def _add_batch_to_buffer(
    buffer: TemporaryFeatureBuffer, dataset: Dataset, batch: Batch, features: np.ndarray, *, use_texts_as_keys: bool
) -> None:
    """Append a batch's features and item texts to the buffer.

    Texts describe items that have keys; without keys in the data, or with `use_texts_as_keys`, they are the keys.
    """
    rows, keys = batch.ids, batch.keys
    if not isinstance(dataset, Stream):
        rows = dataset.source_rows[batch.ids]
        keys = None if dataset.keys is None else tuple(dataset.keys[position] for position in batch.ids.tolist())
    beginnings = None
    if TEXT_SHAPE in dataset.shapes:
        texts = batch.views[dataset.shapes.index(TEXT_SHAPE)]
        beginnings = [textwrap.shorten(text, 80, placeholder=" ...") or text[:80] for text in tensor_to_texts(texts)]
    names = beginnings if use_texts_as_keys and beginnings else keys or beginnings
    buffer.add(
        features,
        rows=rows.numpy(),
        split=dataset.split,
        keys=names,
        descriptions=None if names is beginnings else beginnings,
        labels=None if batch.labels is None else batch.labels.numpy(),
    )
