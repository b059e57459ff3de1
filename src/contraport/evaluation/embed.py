"""`embed`: the features of some data, written to a file."""

from __future__ import annotations

import logging
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset as AnyDataset

from contraport.data import Dataset
from contraport.embedding import Embeddings, embed_dataset
from contraport.errors import check, check_new_file
from contraport.evaluation.opening import load_asked, open_device
from contraport.evaluation.shards import this_process
from contraport.features import Features, suffixes, write_features
from contraport.runs import Run
from contraport.texts import decoded, is_text
from contraport.training.build import build_views
from contraport.verbs.embed import VERB, EmbedOptions

log = logging.getLogger("contraport.evaluation")

LETTERS = 80
"""A text is called by at most so many of its letters."""

_READ = 4_096


@VERB.keywords
@torch.random.fork_rng(devices=[])
def embed(given: dict[str, Any]) -> Path:
    """Write the frozen features of every item of some data to a file, with what each row is, and return its path.

    Raises:
        UsageError: a wrong argument, or a run that is corrupt or not trained to its end; nothing was written.
    """
    asked = EmbedOptions(**given)
    share = this_process()
    path = share.path(Path(asked.out))
    check(path.suffix in suffixes(), f"out: expected a name that ends in {', '.join(suffixes())}, got {path.name!r}.")
    check_new_file("out", path, overwrite=asked.overwrite)
    run = asked.run if isinstance(asked.run, Run) else Run(asked.run)
    settings, model = run.settings(), run.model(trust=asked.trust)
    if caveat := run.caveat():
        log.warning("%s", caveat)
    wanted: tuple[str, ...] = ("train", "test") if asked.split == "all" else (asked.split,)
    if isinstance(asked.data, AnyDataset):
        wanted = wanted[:1]
    datasets = [load_asked(settings, model, asked.data, part, asked.columns, asked.root) for part in wanted]
    parts = share.part(datasets)
    embedded = [
        embed_dataset(
            model,
            dataset,
            views=build_views(settings, dataset),
            batch_size=asked.batch_size,
            device=open_device(asked.device),
            workers=asked.workers,
            progress=asked.progress,
        )
        for dataset, _ in parts
    ]
    write_features(path, _features(parts, embedded, run))
    return path


def _features(parts: list[tuple[Dataset, int]], embedded: list[Embeddings], run: Run) -> Features:
    datasets = [dataset for dataset, _ in parts]
    keys = [dataset.keys or _beginnings(dataset) for dataset in datasets]
    labels = [part.labels for part in embedded]
    class_names = datasets[0].class_names
    return Features(
        torch.cat([part.features for part in embedded]).numpy(),
        torch.cat([dataset.rows for dataset in datasets]).numpy(),
        np.concatenate([np.full(len(dataset), dataset.split) for dataset in datasets]),
        None if None in keys else np.array([key for some in keys if some is not None for key in some], dtype=np.str_),
        None if None in labels else torch.cat([some for some in labels if some is not None]).numpy(),
        None if None in labels or class_names is None else np.array(class_names, dtype=np.str_),
        str(run.path),
    )


def _beginnings(dataset: Dataset) -> list[str] | None:
    """Return how the first view of each item begins that is a text, by which it is called; None where none is."""
    texts = [view for view, shape in enumerate(dataset.shapes) if is_text(shape)]
    if not texts:
        return None
    positions = torch.arange(len(dataset)).split(_READ)
    read = (text for some in positions for text in decoded(dataset.store.fetch(some)[texts[0]]))
    return [textwrap.shorten(text, LETTERS, placeholder=" ...") or text[:LETTERS] for text in read]
