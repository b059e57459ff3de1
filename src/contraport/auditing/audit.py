"""Runs an audit: scores the pairs of two-view data and writes the results."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contraport._utils.files import find_leftover_files, read_json, write_json
from contraport._utils.formatting import format_options
from contraport._utils.locks import LOCK_FILE, lock_folder
from contraport._utils.progress import ProgressBars
from contraport.auditing.config import AUDIT, AuditOptions
from contraport.auditing.crossfit import CrossFitScores, RoundResult, score_by_crossfit, score_frozen_vectors
from contraport.auditing.export_clean import write_clean_data
from contraport.auditing.page import write_audit_page
from contraport.auditing.pairs.online_audit import max_audited_batch_size
from contraport.auditing.pairs.paired_features import PairedFeatures
from contraport.auditing.pairs.partner_plan import get_partner_content_ids, propose_partners, select_exchangeable_items
from contraport.auditing.pairs.synthetic_mismatches import check_paired_dataset
from contraport.auditing.result import Audit, audit_from_arrays
from contraport.auditing.view_audit import ViewAudit, check_views_can_be_blanked
from contraport.data import Dataset, from_arrays, load_unsplit
from contraport.data.formats import tables
from contraport.data.split_record import fingerprint_dataset
from contraport.data.streams import check_no_stream
from contraport.encoders import resolve_view
from contraport.errors import UsageError, check, report_write_errors
from contraport.options import get_declared_options
from contraport.training.config import Settings
from contraport.training.run_logging import console_logging
from contraport.training.train import train_from_options

log = logging.getLogger("contraport.auditing")

CROSS_FIT_FILE = "judgements.npz"
"""Scores of the finished folds of a cross-fit, from which a stopped audit resumes."""

OPTIONS_FILE = "audit_options.json"
"""Views, method and number of items of an audit of several views, which must be the same to resume it."""

PAGE = "audit.html"

_TRAINING = ("encoder", "objective", "temperature", "projection", "epochs", "lr", "weight_decay", "seed", "num_workers")


@AUDIT.with_option_parameters
def audit(values: dict[str, Any]) -> Audit | ViewAudit:
    """Find mismatched pairs in data of two views, or in data of more views the view of an item that does not belong.

    Raises:
        UsageError: an invalid argument, fewer than 50 items, or data of a single view; nothing was written.
        FloatingPointError: the training loss was not finite.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the message explains how to resume.

    >>> rng = np.random.default_rng(0)
    >>> first = rng.normal(size=(300, 4))
    >>> second = first @ rng.normal(size=(4, 6))
    >>> second[:60] = second[rng.permutation(60)]
    >>> result = audit(data=(first, second), method="frozen")
    >>> 0.1 < result.noise_rate < 0.3, int((result.flagged(count=40) < 60).sum()) > 30
    (True, True)
    """
    options = AuditOptions(**values)
    full = _load_dataset(options)
    chosen, names = options.given_views, full.view_names
    views = tuple(resolve_view("given_views", view, names, full.shapes) for view in chosen or range(len(names)))
    check(len(set(views)) == len(views), f"given_views: must be different views, got {list(chosen)}.", "same")
    dataset = full.select_views(views) if chosen else full
    try:
        return _audit_pair(options, full, views) if len(views) <= 2 else _audit_all_views(options, dataset)
    except KeyboardInterrupt as interrupt:
        if options.out is None or options.method == "frozen":
            raise
        # The training's own message names `train`, which would not finish the audit.
        message = f"stopped; the same call with {format_options(resume=True)} continues the audit in {options.out}"
        raise KeyboardInterrupt(message) from interrupt


def _audit_pair(options: AuditOptions, full: Dataset, views: tuple[int, ...]) -> Audit:
    """Audit two views of a dataset."""
    dataset = full.select_views(views) if options.given_views else full
    check_paired_dataset(dataset, one_view_hint=_one_view_hint(options) if len(dataset.shapes) == 1 else "")
    with _open_output_folder(options) as folder:
        if options.method == "online":
            own = {"data": dataset, "out": folder / "training", "audit": True, "device": options.device}
            own |= {"resume": options.resume, "progress": options.progress} | _training_settings(options, dataset)
            run = train_from_options(own, log_hints=False)
            result = audit_from_arrays(dataset.name, run.pair_scores())
        else:
            result = _audit_in_rounds(options, dataset, folder)
        result = replace(result, source_rows=dataset.rows.numpy(), keys=dataset.keys)
        if options.out is not None:
            with report_write_errors("out", folder), console_logging(progress=options.progress):
                result.save(folder)
                write_audit_page(result, dataset, folder / PAGE)
                for form in options.requested_exports:
                    path = write_clean_data(
                        result, form, folder, data=options.data, dataset=full, second=views[1], columns=options.columns
                    )
                    log.info("%s: wrote %s.", form, path)
                log.info("page of the worst pairs: %s", folder / PAGE)
    return result


def _one_view_hint(options: AuditOptions) -> str:
    data = options.data
    if not isinstance(data, str | Path) or Path(data).suffix not in tables.SUFFIXES or not Path(data).is_file():
        return ""
    return f" {tables.suggest_views(data, options.columns)}"


def _audit_all_views(options: AuditOptions, dataset: Dataset) -> ViewAudit:
    """Audit each pair of views, each in its own folder, and combine the scores."""
    unsupported = [form for form in options.requested_exports if form != "drop"]
    if unsupported:
        message = f"{unsupported[0]}: requires two views, got {len(dataset.shapes)}; choose two with given_views."
        raise UsageError(message, kind="views")
    if options.drop:
        check_views_can_be_blanked(dataset)
    audits, names = {}, dataset.view_names
    lacking = 0 if dataset.present is None else int((~dataset.present.all(dim=1)).sum())
    message = f"data: must have all views of every item for an audit, got {lacking} items that lack a view."
    check(lacking == 0, message, "missing_views")
    with _open_output_folder(options) as folder:
        record = {"views": list(names), "method": options.method, "items": len(dataset)}
        saved = read_json(folder / OPTIONS_FILE)
        message = f"resume: the audit in {folder} is of {saved}, got {record}. Repeat its options, or use a new folder."
        check(saved in (None, record), message, "other_options")
        if options.out is not None:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / OPTIONS_FILE, record)
        for pair in combinations(range(len(names)), 2):
            first, second = (names[view] for view in pair)
            log.info("audit of %s and %s", first, second)
            out = None if options.out is None else folder / f"{first}-{second}"
            resume = options.resume and out is not None and out.exists()
            own = replace(options, data=dataset, given_views=pair, out=out, resume=resume, drop=False)
            audits[first, second] = _audit_pair(own, dataset, pair)
        result = ViewAudit.from_pair_audits(dataset, audits)
        if options.out is not None:
            with report_write_errors("out", folder):
                result.save(folder)
                if options.drop:
                    result.write_without_flagged(dataset, folder)
    return result


def _audit_in_rounds(options: AuditOptions, dataset: Dataset, folder: Path) -> Audit:
    rounds: Iterator[tuple[RoundResult, PairedFeatures | None]]
    statistic = options.statistic_name
    if options.method == "frozen":
        rounds = score_frozen_vectors(dataset, statistic=statistic, rounds=options.rounds, seed=options.seed)
    else:
        device = options.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        settings = Settings(data=dataset, device=device, **_training_settings(options, dataset))
        path = None if options.out is None else folder / CROSS_FIT_FILE
        # What must be unchanged for an audit to resume.
        declared = get_declared_options(AuditOptions).items()
        fixed = {name: getattr(options, name) for name, option in declared if option.lifetime == "run"}
        fixed |= {"data": dataset.name, "pairs": len(dataset), "views": list(dataset.view_names)}
        shape = options.rounds, options.repeats, len(dataset)
        saved = CrossFitScores(path, fixed, shape, fingerprint_dataset(dataset))
        rounds = score_by_crossfit(dataset, settings, saved, statistic=statistic, folds=options.folds)
    *_, (result, paired) = ProgressBars(shown=options.progress).track(rounds, "rounds", options.rounds)
    assert paired is not None
    free = select_exchangeable_items(torch.from_numpy(result.scores), result.noise.rate)
    proposals = propose_partners(paired, free, statistic, content_ids=get_partner_content_ids(dataset))
    return Audit(
        dataset.name,
        options.method,
        statistic,
        result.scores,
        result.mismatch_scores,
        result.noise.rate,
        result.noise.interval,
        proposals.partners.numpy(),
        proposals.scores.numpy(),
        partner_confidences=proposals.confidences.numpy(),
    )


def _training_settings(options: AuditOptions, dataset: Dataset) -> dict[str, Any]:
    settings = {name: getattr(options, name) for name in _TRAINING}
    return settings | {"batch_size": min(options.batch_size, max_audited_batch_size(len(dataset))), "augment": "none"}


@contextmanager
def _open_output_folder(options: AuditOptions) -> Iterator[Path]:
    """Lock the output folder and yield its path; without the option `out`, yield a temporary folder."""
    if options.out is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    path = Path(options.out)
    _check_output_folder(path, resume=options.resume)
    with lock_folder(path, "audit"):
        _check_output_folder(path, resume=options.resume)  # another audit may have filled it meanwhile
        yield path


def _check_output_folder(path: Path, *, resume: bool) -> None:
    """Raise `UsageError` unless an audit may start in an empty folder, or resume in one that has an audit.

    Lock files and the leftovers of interrupted writes do not count as contents.
    """
    check(not path.exists() or path.is_dir(), f"out: {path} is a file; expected a folder or a new path.", "exists")
    used = path.exists() and not {path / LOCK_FILE, *find_leftover_files(path)}.issuperset(path.iterdir())
    message = f"out: {path} is not empty. Choose a new folder, or pass {format_options(resume=True)}."
    check(resume or not used, message, "exists")
    check(not resume or used, f"out: {path} has no audit to resume.", "not_found")


def _load_dataset(options: AuditOptions) -> Dataset:
    """Load the dataset that the option `data` names."""
    data = options.data
    if data is None:
        raise UsageError(
            "data: required, got none. Pass a name, a folder, a file, a Dataset or two arrays.", kind="missing"
        )
    if isinstance(data, tuple | Mapping | np.ndarray | Tensor):
        dataset = from_arrays(data, argument="data")
    else:
        dataset = load_unsplit(data, root=options.root, image_size=options.image_size, columns=options.columns)
    check_no_stream(dataset)
    return dataset
