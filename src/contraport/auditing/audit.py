"""`audit`: from data of two views to which of its pairs seem wrong."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from contraport._utils.files import leftover_files
from contraport._utils.formatting import format_options
from contraport._utils.locks import LOCK_FILE, lock_folder
from contraport._utils.progress import make_console
from contraport.auditing.config import AUDIT, AuditOptions
from contraport.auditing.crossfit import CrossFitScores, Round, crossfit
from contraport.auditing.export_clean import write_clean_data
from contraport.auditing.frozen_vectors import score_frozen_vectors
from contraport.auditing.page import write_page
from contraport.auditing.pairs import (
    PairedFeatures,
    check_paired_dataset,
    find_better_partners,
    select_partner_candidates,
)
from contraport.auditing.pairs.pair_filter import max_audited_batch_size
from contraport.auditing.result import Audit, audit_from_arrays
from contraport.data import Dataset, from_arrays, load_unsplit
from contraport.data.split_record import fingerprint
from contraport.data.streams import check_no_stream
from contraport.errors import UsageError, check, report_write_errors, unknown_name_error
from contraport.options import get_options
from contraport.training.config import Settings
from contraport.training.run_logging import console_logging
from contraport.training.train import train

log = logging.getLogger("contraport.auditing")

JUDGEMENTS = "judgements.npz"
"""What a cross-fit that was stopped goes on from."""

PAGE = "audit.html"

_TRAINING = ("encoder", "objective", "temperature", "projection", "epochs", "lr", "weight_decay", "seed", "workers")


@AUDIT.with_signature
def audit(given: dict[str, Any]) -> Audit:
    """Find the pairs of data of two views that do not belong together.

    Raises:
        UsageError: a wrong argument, fewer than 50 pairs, or data of another number of views than two; nothing was
            written.
        FloatingPointError: the loss of the training was not finite.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the message says how to go on.

    >>> rng = np.random.default_rng(0)
    >>> first = rng.normal(size=(300, 4))
    >>> second = first @ rng.normal(size=(4, 6))
    >>> second[:60] = second[rng.permutation(60)]
    >>> found = audit(data=(first, second), method="frozen")
    >>> 0.1 < found.noise_rate < 0.3, int((found.flagged(count=40) < 60).sum()) > 30
    (True, True)
    """
    asked = AuditOptions(**given)
    whole = _dataset(asked)
    views = tuple(_number(whole, view) for view in asked.views or range(len(whole.shapes)))
    check(len(set(views)) == len(views), f"views: expected two different ones, got {list(asked.views)}, which are one.")
    dataset = whole.of_views(views) if asked.views else whole
    check_paired_dataset(dataset)
    with _folder(asked) as folder:
        found = _online(asked, dataset, folder) if asked.method == "online" else _judged(asked, dataset, folder)
        found = replace(found, rows=dataset.rows.numpy(), keys=dataset.keys)
        if asked.out is not None:
            with report_write_errors("out", folder), console_logging(progress=asked.progress):
                found.save(folder)
                write_page(found, dataset, folder / PAGE)
                for way in asked.cleaned:
                    told = write_clean_data(
                        found, way, folder, data=asked.data, dataset=whole, second=views[1], columns=asked.columns
                    )
                    log.info("%s: %s", way, told)
                log.info("the worst pairs, side by side, are in %s", folder / PAGE)
    return found


def _online(asked: AuditOptions, dataset: Dataset, folder: Path) -> Audit:
    settings = _training(asked, dataset) | {"audit": True, "device": asked.device}
    run = train(data=dataset, out=folder / "training", resume=asked.resume, progress=asked.progress, **settings)
    return audit_from_arrays(dataset.name, run.pairs())


def _judged(asked: AuditOptions, dataset: Dataset, folder: Path) -> Audit:
    rounds: Iterator[tuple[Round, PairedFeatures | None]]
    if asked.method == "frozen":
        rounds = score_frozen_vectors(dataset, statistic=asked.statistic_name, rounds=asked.rounds, seed=asked.seed)
    else:
        settings = Settings(data=dataset, device=_device(asked.device), **_training(asked, dataset))
        path = None if asked.out is None else folder / JUDGEMENTS
        shape = asked.rounds, asked.repeats, len(dataset)
        judgements = CrossFitScores(path, _kept(asked, dataset), shape, fingerprint(dataset))
        rounds = crossfit(dataset, settings, judgements, statistic=asked.statistic_name, folds=asked.folds)
    judged, sides = _last(rounds, asked)
    assert sides is not None
    free = select_partner_candidates(torch.from_numpy(judged.scores), judged.noise.rate)
    partners, partner_scores = find_better_partners(sides, torch.arange(len(dataset)), asked.statistic_name, free=free)
    return Audit(
        dataset.name,
        asked.method,
        asked.statistic_name,
        judged.scores,
        judged.mismatched,
        judged.noise.rate,
        judged.noise.interval,
        partners.numpy(),
        partner_scores.numpy(),
    )


def _kept(asked: AuditOptions, dataset: Dataset) -> dict[str, Any]:
    """Return what an audit was asked, as plain values, by which one that goes on is told from another."""
    own = {name: getattr(asked, name) for name, known in get_options(AuditOptions).items() if known.scope == "run"}
    return own | {"data": dataset.name, "pairs": len(dataset), "views": list(dataset.view_names)}


def _last(
    rounds: Iterator[tuple[Round, PairedFeatures | None]], asked: AuditOptions
) -> tuple[Round, PairedFeatures | None]:
    """Return what the last round found, and show that it goes on."""
    console = make_console(stderr=True, quiet=not (asked.progress and make_console(stderr=True).is_terminal))
    *_, last = track(rounds, "rounds", total=asked.rounds, console=console, transient=True)
    return last


def _training(asked: AuditOptions, dataset: Dataset) -> dict[str, Any]:
    """Return what a training is told."""
    told = {name: getattr(asked, name) for name in _TRAINING}
    return told | {"batch_size": min(asked.batch_size, max_audited_batch_size(len(dataset))), "augment": "none"}


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


@contextmanager
def _folder(asked: AuditOptions) -> Iterator[Path]:
    """Give the folder that is asked for, or one that goes when the audit is done.

    Raises:
        UsageError: it is in the way.
    """
    if asked.out is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    path = Path(asked.out)
    _check_folder(path, resume=asked.resume)
    with lock_folder(path, "audit"):
        _check_folder(path, resume=asked.resume)  # another audit may have filled it meanwhile
        yield path


def _check_folder(path: Path, *, resume: bool) -> None:
    """Raise `UsageError` unless an audit may begin or go on in a folder; a lock is no content of it."""
    check(not path.exists() or path.is_dir(), f"out: {path} is a file; expected a folder or a new path.")
    used = path.exists() and not {path / LOCK_FILE, *leftover_files(path)}.issuperset(path.iterdir())
    check(resume or not used, f"out: {path} is not empty; expected a new folder, or {format_options(resume=True)}.")
    check(not resume or used, f"out: there is no audit in {path} to go on with.")


def _dataset(asked: AuditOptions) -> Dataset:
    """Return the pairs that are asked for.

    Raises:
        UsageError: there are no such data, or they are a stream.
    """
    data = asked.data
    if data is None:
        raise UsageError("data: expected a name, a folder, a file, a Dataset or two arrays, got nothing.")
    if isinstance(data, tuple | Mapping | np.ndarray | Tensor):
        dataset = from_arrays(data, argument="data")
    else:
        dataset = load_unsplit(data, root=asked.root, image_size=asked.image_size, columns=asked.columns)
    check_no_stream(dataset)
    return dataset


def _number(dataset: Dataset, view: int | str) -> int:
    """Return the number of a view, which is given by its number or its name."""
    names = dataset.view_names
    if str(view).isdigit() and str(view) not in names:
        known = f"{dataset.name!r} has {len(names)}, numbered from 0: {', '.join(names)}"
        check(int(view) < len(names), f"views: {known}; got {view}.")
        return int(view)
    if view not in names:
        raise unknown_name_error(f"views: view of {dataset.name!r}", str(view), names)
    return names.index(str(view))
