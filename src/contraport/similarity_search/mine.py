"""Implements `contraport mine`, which writes hard negatives for paired items to a file."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from contraport._utils.files import atomic_write
from contraport._utils.progress import ProgressBars
from contraport._utils.text_bytes import TEXT_SHAPE, tensor_to_texts
from contraport.data import Dataset, from_arrays, load, load_split_or_all_items
from contraport.data.formats.tables import write_table
from contraport.data.streams import check_no_stream
from contraport.embedding import LoaderConfig
from contraport.encoders import resolve_view_index
from contraport.errors import UsageError, check, check_existing_file, check_output_file, translate_write_errors
from contraport.evaluation.split_loading import SplitLoader, resolve_device
from contraport.hard_negatives import MinedNegatives, mine_hard_negatives
from contraport.runs import Run, as_run_folder
from contraport.similarity_search.command_options import MINE_COMMAND_SPEC, MiningOptions
from contraport.training.components.teacher_features import get_teacher_features


@MINE_COMMAND_SPEC.with_option_parameters
def mine(arguments: dict[str, Any]) -> MinedNegatives:
    """Mine hard negatives for paired items, and write them to a file.

    Raises:
        UsageError: an invalid argument, or data, an encoder or an audit that cannot be read or do not fit together.

    >>> from tempfile import TemporaryDirectory
    >>> views = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], dtype=np.float32)
    >>> with TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/features.npy", views)
    ...     mine(f"{folder}/features.npy", data=(views, views), k=2, out=f"{folder}/negatives.npy").positions.tolist()
    [[1, 2], [0, 2], [1, 0]]
    """
    options = MiningOptions(**arguments)
    out = Path(options.out)
    check_output_file("out", out, overwrite=options.overwrite)
    if not isinstance(options.encoder, Run) and not Path(options.encoder).is_dir():
        check_existing_file("encoder", options.encoder)
    dataset = _load_dataset(options, whole=out.suffix != ".npy")
    views, ids = len(dataset.shapes), dataset.view_content_ids_if_repeated
    resolve = partial(resolve_view_index, names=dataset.view_names, shapes=dataset.shapes)
    anchor = 0 if options.anchor is None else resolve("anchor", options.anchor)
    other = int(anchor == 0 and views > 1)  # the first other view
    positive = other if options.positive is None else resolve("positive", options.positive)
    check(views == 1 or anchor != positive, f"positive: must differ from anchor, got {options.positive!r}.", "conflict")
    loader_config = LoaderConfig(device=resolve_device(options.device), bars=ProgressBars(shown=options.progress))
    features = get_teacher_features(
        "encoder", options.encoder, dataset, loader_config, views=views, trust_remote_code=options.trust_remote_code
    )
    by_view = features.unsqueeze(1).expand(-1, views, -1) if features.ndim == 2 else features
    trusted_item_mask, better_partners = _read_trusted_mask_and_partners(options.audit, dataset)
    mined = mine_hard_negatives(
        by_view[:, anchor].to(loader_config.device),
        by_view[:, positive].to(loader_config.device),
        options.rule,
        anchor_content_ids=None if ids is None else ids[:, anchor],
        candidate_content_ids=None if ids is None else ids[:, positive],
        trusted_item_mask=trusted_item_mask,
        excluded_partners=better_partners,
        seed=options.seed,
    )
    found = mined.positions >= 0
    written = found.all(1) if options.layout == "n-tuple" and out.suffix != ".npy" else found.any(1)
    message = f"k: no pair has {options.k} negatives, so that no row of {options.layout} can be written"
    message = f"{message}. Choose a smaller k, or loosen the margins, scores and ranges."
    check(bool(found.any()), "k: no pair has a negative. Loosen the margins, scores and ranges.", "no_negatives")
    check(bool(written.any()), message, "no_negatives")
    with translate_write_errors("out", out):
        if out.suffix == ".npy":
            with atomic_write(out) as temporary:
                np.save(temporary, mined.positions.numpy())
        else:
            write_table(_build_negatives_table(mined.positions, dataset, anchor, positive, layout=options.layout), out)
    return mined


def _load_dataset(options: MiningOptions, *, whole: bool) -> Dataset:
    """Load the dataset whose hard negatives are mined, all items or the training split."""
    folder, data = Path(str(options.encoder)), options.data
    if isinstance(options.encoder, Run) or (folder / "config.yaml").exists():
        run = as_run_folder(options.encoder)
        model = run.model(trust_remote_code=options.trust_remote_code)
        loader = SplitLoader(run.settings(), model, options.columns, options.root)
        dataset = loader.load(data, "train", whole=whole and data is not None)
    elif data is None:
        raise UsageError("data: required unless the encoder is a run, not given.", kind="missing")
    elif isinstance(data, tuple | dict | np.ndarray | Tensor):
        dataset = from_arrays(data, argument="data")
    else:
        dataset = (load_split_or_all_items if whole else load)(data, root=options.root, columns=options.columns)
    check_no_stream(dataset)
    lacking = 0 if dataset.present is None else int((~dataset.present.all(1)).sum())
    check(lacking == 0, f"data: {lacking} items of {dataset.name!r} lack a view; leave them out.", "missing_views")
    return dataset


def _read_trusted_mask_and_partners(
    folder: str | Path | None, dataset: Dataset
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Read which pairs an audit trusts, and better partners for the others."""
    if folder is None:
        return None, None
    file = Path(folder) / "pairs.csv"
    check_existing_file("audit", file)
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    try:
        source = [int(row["row"]) for row in rows]
        flagged = [row["flagged"] == "true" for row in rows]
        partners = [int(row["partner"]) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"audit: {file} must be the pairs.csv of an audit of two views.", kind="unreadable") from error
    position = {row: place for place, row in enumerate(dataset.source_rows.tolist())}
    missing = sum(row not in position for row in source)
    message = f"audit: {folder} has {missing} of {len(source)} pairs that are not in {dataset.name!r}."
    check(missing < len(source) and len(position) == len(dataset), message, "other_data")
    trusted, better = torch.ones(len(dataset), dtype=torch.bool), torch.full((len(dataset),), -1)
    for row, is_flagged, partner in zip(source, flagged, partners, strict=True):
        if row in position:
            trusted[position[row]] = not is_flagged
            if partner >= 0 and is_flagged:
                better[position[row]] = position.get(source[partner], -1)
    return trusted, better


def _build_negatives_table(positions: Tensor, dataset: Dataset, anchor: int, positive: int, *, layout: str) -> pa.Table:
    """Build a table of anchors, positives and negatives for other libraries."""
    anchors, positives = (_build_text_or_key_column(dataset, view) for view in (anchor, positive))
    names = [dataset.view_names[anchor], dataset.view_names[positive]]
    names = names if anchor != positive else ["anchor", "positive"]
    if layout == "triplet":
        items, places = (positions >= 0).nonzero().unbind(1)
        columns = {"negative": positions[items, places]}
    else:
        items = (positions >= 0).all(1).nonzero()[:, 0]
        columns = {f"negative_{number + 1}": column for number, column in enumerate(positions[items].T)}
    taken = sorted(columns.keys() & names)
    message = f"data: views must not have names of the columns of negatives, got {', '.join(taken)}. Rename them."
    check(not taken, message, "name_conflict")
    table = {names[0]: anchors.take(pa.array(items.numpy())), names[1]: positives.take(pa.array(items.numpy()))}
    return pa.table(table | {name: positives.take(pa.array(column.numpy())) for name, column in columns.items()})


def _build_text_or_key_column(dataset: Dataset, view: int) -> pa.Array:
    """Build a table column of a view's texts, keys or row numbers."""
    if dataset.shapes[view] != TEXT_SHAPE:
        if dataset.entity_ids is not None and dataset.entity_keys is not None:  # a key of a coupling names the pair
            keys = dataset.entity_keys[view]
            return pa.array([str(keys[number]) for number in dataset.entity_ids[:, view].tolist()])
        return pa.array(dataset.source_rows.tolist() if dataset.keys is None else list(map(str, dataset.keys)))
    texts: list[str] = []
    for block in torch.arange(len(dataset)).split(4_096):
        texts += tensor_to_texts(dataset.store.fetch_views(block)[view])
    return pa.array(texts)
