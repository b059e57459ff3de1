"""Runs an audit of paired views and writes the results."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contraport._utils.files import delete_paths, list_leftovers, read_json_or_none, write_json
from contraport._utils.formatting import format_flags, format_options, is_flag_style_active, to_file_name
from contraport._utils.locks import LOCK_FILE, lock_folder
from contraport._utils.progress import ProgressBars
from contraport.auditing.command_options import AUDIT_COMMAND_SPEC, TRAINING_OPTION_NAMES, AuditOptions
from contraport.auditing.export_clean import write_clean_data
from contraport.auditing.multi_view_audit_result import ViewAudit, check_views_accept_nan
from contraport.auditing.page import write_audit_page
from contraport.auditing.pairs.canonical_maps import find_width_reduction_note
from contraport.auditing.pairs.mismatch_dropping_callback import max_audited_batch_size
from contraport.auditing.pairs.partner_proposals import (
    lowest_scoring_indices,
    propose_partners,
    second_view_content_ids_if_repeated,
)
from contraport.auditing.pairs.synthetic_mismatches import check_auditable_dataset, format_incomplete_items
from contraport.auditing.result import Audit, build_online_audit
from contraport.auditing.rounds_excluding_suspects import (
    CrossFitPairAndMismatchScores,
    RoundResult,
    score_frozen_rounds,
    train_crossfit_rounds,
)
from contraport.auditing.training_commands import compose_next_commands
from contraport.data import Dataset, from_arrays, load_split_or_all_items
from contraport.data.split_digests import fingerprint_dataset
from contraport.data.streams import check_no_stream
from contraport.encoders import check_saved_encoder_trusted, resolve_view_index
from contraport.encoders.model import list_encoders_per_view
from contraport.errors import UsageError, check, hint_on_error, translate_write_errors
from contraport.options import merge_resumed_options
from contraport.runs import WritableRun
from contraport.training.config import Settings
from contraport.training.data_parallelism import resolve_available_device
from contraport.training.run_logging import console_logging
from contraport.training.train import train_from_options

log = logging.getLogger("contraport.auditing")

OPTIONS_FILE = "audit_options.json"
"""Name of the file of audit options, which also has the fingerprint of the items; a stopped audit resumes by it."""


@AUDIT_COMMAND_SPEC.with_option_parameters
def audit(arguments: dict[str, Any]) -> Audit | Any:
    """Find mismatched pairs in data of two or more views.

    Items that lack a view are left out, with a line in the log. Returns an `Audit`; for three or more views a
    `ViewAudit` of the mismatched views of each item, which type checkers see as Any because the number of views is
    known from the data only.

    Raises:
        UsageError: an invalid argument, fewer than 50 items, or data of a single view; nothing was written.
        FloatingPointError: the training loss was not finite.
        KeyboardInterrupt: Ctrl-C, or SIGTERM in an online audit; the message explains how to resume.

    >>> rng = np.random.default_rng(0)
    >>> first = rng.normal(size=(300, 4))
    >>> second = first @ rng.normal(size=(4, 6))
    >>> second[:60] = second[rng.permutation(60)]
    >>> result = audit(data=(first, second), method="frozen")
    >>> 0.1 < result.noise_rate < 0.3, int((result.flagged(count=40) < 60).sum()) > 30
    (True, True)
    """
    options = AuditOptions(**(_merge_resumed_audit_options(arguments) if arguments.get("resume") else arguments))
    full = _load_without_random_split(options)
    chosen, names = options.given_views, full.view_names
    views = tuple(resolve_view_index("given_views", view, names, full.shapes) for view in chosen or range(len(names)))
    check(len(set(views)) == len(views), f"given_views: must be different views, got {list(chosen)}.", "same")
    selected = full.select_views(views) if chosen else full
    dataset = selected.drop_incomplete()
    audited = np.arange(len(full)) if selected.present is None else np.flatnonzero(selected.present.all(1))
    if len(dataset) < len(full):
        log.warning("left out %s", format_incomplete_items(selected))
    check_auditable_dataset(dataset, data=options.data, declared_roles=options.columns)
    _check_cleanings(options, dataset)
    try:
        with _lock_folder_and_record_options(options, dataset) as folder:
            result: Audit | ViewAudit
            if len(views) > 2:
                result = _audit_all_views(options, dataset, folder)
            else:
                result = _audit_two_views(options, dataset, folder)
                if options.out is not None:
                    _save_audit_and_page(result, dataset, folder, logs_to_console=options.progress)
            with translate_write_errors("out", folder), console_logging(shown=options.progress):
                for cleaning in options.requested_cleanings:
                    if isinstance(result, ViewAudit):
                        path = result.write_npz_without_flagged_views(dataset, folder, data=options.data)
                    else:
                        path = write_clean_data(
                            result, cleaning, folder, data=options.data, dataset=full, repaired_view=views[1],
                            columns=options.columns, audited_items=audited,
                        )  # fmt: skip
                    log.info("%s: wrote %s.", cleaning, path)
                    result = replace(result, clean_files=(*result.clean_files, path))
        commands = compose_next_commands(result, options, selected, view_indices=list(views))
        result = replace(result, next_commands=commands)
    except KeyboardInterrupt as interrupt:
        # The training's own message names `train`, which would not finish the audit.
        message = "stopped."
        if options.out is not None and (Path(options.out) / OPTIONS_FILE).exists():
            command = f"contraport audit --resume {format_flags({'out': str(options.out)})}"
            again = command if is_flag_style_active() else f"the same call with {format_options(resume=True)}"
            message = f"stopped; the audit in {options.out} is kept. Resume: {again}"
        raise KeyboardInterrupt(message) from interrupt
    return result


@hint_on_error("contraport docs troubleshooting resume-is-refused")
def _merge_resumed_audit_options(explicit_options: dict[str, Any]) -> dict[str, Any]:
    """Return the recorded options of an audit, updated by `explicit_options`."""
    out = explicit_options.get("out")
    check(out is not None, "out: required with resume, not given.", "missing")
    file = Path(str(out)) / OPTIONS_FILE
    record = read_json_or_none(file)
    recorded = record.get("options") if isinstance(record, dict) else None
    check(file.parent.exists(), f"out: there is no folder {str(out)!r}.", "not_found")
    if not isinstance(recorded, dict):
        raise UsageError(f"out: {out} has no audit to resume (no {OPTIONS_FILE}).", kind="not_found")
    options = merge_resumed_options(AUDIT_COMMAND_SPEC.options_by_name, recorded, explicit_options, file)
    check_saved_encoder_trusted(recorded.get("encoder"), str(file), trust_remote_code="encoder" in explicit_options)
    return options


def _check_cleanings(options: AuditOptions, dataset: Dataset) -> None:
    """Raise `UsageError` if a requested cleaned copy of the data cannot be written."""
    edited = [cleaning for cleaning in options.requested_cleanings if cleaning != "weigh"]
    if edited and dataset.items_are_entity_pairs and not isinstance(options.data, str | Path):
        message = f"{edited[0]}: requires the folder of a coupling, got a dataset in memory; select its pairs by "
        raise UsageError(f"{message}Audit.flagged(), and build it again by from_coupling.", kind="coupling")
    if len(dataset.shapes) == 2:
        return
    unsupported = [cleaning for cleaning in options.requested_cleanings if cleaning != "drop"]
    if unsupported:
        message = f"{unsupported[0]}: requires two views, got {len(dataset.shapes)}; choose two with given_views."
        raise UsageError(message, kind="views")
    if options.drop:
        check_views_accept_nan(dataset)


def _audit_two_views(options: AuditOptions, dataset: Dataset, folder: Path) -> Audit:
    """Run an audit of two-view data, or resume it from `folder`."""
    source_rows = dataset.source_rows.numpy()
    if options.method == "online":
        run = WritableRun(folder / "training")
        own = _build_unaugmented_training_options(options, dataset) | {"data": dataset, "out": run.path, "audit": True}
        own |= {name: getattr(options, name) for name in ("device", "progress")}
        own["resume"] = options.resume and run.config_path.exists()
        arrays = train_from_options(own, parent_command="audit").pair_scores()
        return replace(build_online_audit(dataset.name, arrays), source_rows=source_rows, keys=dataset.keys)
    rounds: Iterator[RoundResult]
    statistic = options.statistic or "combined"
    if options.method == "frozen":
        rounds = score_frozen_rounds(dataset, statistic=statistic, rounds=options.rounds, seed=options.seed)
    else:
        device = resolve_available_device(options.device).type
        settings = Settings(data=dataset, device=device, **_build_unaugmented_training_options(options, dataset))
        path = None if options.out is None else folder / "judgements.npz"
        saved = CrossFitPairAndMismatchScores(
            path, num_rounds=options.rounds, num_repeats=options.repeats, num_pairs=len(dataset)
        )
        rounds = train_crossfit_rounds(dataset, settings, saved, statistic=statistic, folds=options.folds)
    *_, result = ProgressBars(shown=options.progress).track(rounds, "rounds", options.rounds)
    paired = result.last_computed_features
    assert paired is not None
    if statistic in ("canonical", "combined") and (projection := find_width_reduction_note(paired.features)):
        log.info("%s", projection)
    free = lowest_scoring_indices(torch.from_numpy(result.scores), result.noise_rate.rate)
    proposals = propose_partners(
        paired, free, statistic, second_view_content_ids=second_view_content_ids_if_repeated(dataset)
    )
    return Audit(
        dataset.name,
        options.method,
        statistic,
        result.scores,
        result.known_mismatch_scores,
        result.noise_rate.rate,
        result.noise_rate.interval,
        proposals.partners_or_minus_one.numpy(),
        proposals.best_scores.numpy(),
        source_rows=source_rows,
        keys=dataset.keys,
        partner_confidences=proposals.confidences.numpy(),
    )


def _save_audit_and_page(result: Audit, dataset: Dataset, folder: Path, *, logs_to_console: bool) -> None:
    """Write the audit of two views and its HTML page to `folder`."""
    with translate_write_errors("out", folder), console_logging(shown=logs_to_console):
        folder.mkdir(exist_ok=True)
        result.save(folder)
        page = folder / "audit.html"
        write_audit_page(result, dataset, page)
        log.info("page of the worst pairs: %s", page)


def _audit_all_views(options: AuditOptions, dataset: Dataset, folder: Path) -> ViewAudit:
    """Audit each pair of views in its own folder, and combine the audits."""
    audits, names, encoders = {}, dataset.view_names, None
    if isinstance(options.encoder, Mapping | list | tuple):
        encoders = list_encoders_per_view(options.encoder, names, dataset.shapes)
    folders = dict(zip(combinations(range(len(names)), 2), _list_pair_folder_names(names), strict=True))
    for pair, name in folders.items():
        first, second = (names[view] for view in pair)
        log.info("audit of %s and %s", first, second)
        # A single encoder is for all views.
        encoder = options.encoder if encoders is None else {names[view]: encoders[view] for view in pair}
        own = options.replace_unchecked(encoder=encoder)
        audits[first, second] = _audit_two_views(own, dataset.select_views(pair), folder / name)
    result = ViewAudit.from_pair_audits(dataset, audits)
    if options.out is not None:
        for (pair, name), audit in zip(folders.items(), audits.values(), strict=True):
            _save_audit_and_page(audit, dataset.select_views(pair), folder / name, logs_to_console=options.progress)
        with translate_write_errors("out", folder):
            result.save(folder)
    return result


def _list_pair_folder_names(view_names: Sequence[str]) -> list[str]:
    """Return a folder name for each pair of views, such as `ear-hand`.

    >>> _list_pair_folder_names(("ear", "right eye", "../hand")), _list_pair_folder_names(("a", "A", "b"))
    (['ear-right-eye', 'ear-hand', 'right-eye-hand'], ['0-1', '0-2', '1-2'])
    """
    named = ["-".join(pair) for pair in combinations(map(to_file_name, view_names), 2)]
    are_distinct = len({name.casefold() for name in named}) == len(named)
    are_short = max(map(len, named)) <= 60  # file systems allow 255 bytes, and a character takes up to four
    return (
        named
        if are_distinct and are_short
        else [f"{first}-{second}" for first, second in combinations(range(len(view_names)), 2)]
    )


def _build_unaugmented_training_options(options: AuditOptions, dataset: Dataset) -> dict[str, Any]:
    """Return training options without augmentation, with a batch size that fits the data."""
    settings = {name: getattr(options, name) for name in (*TRAINING_OPTION_NAMES, "seed", "num_workers")}
    if options.objective == "info-nce" and options.temperature is None:
        settings["temperature"] = 0.2
    return settings | {"batch_size": min(options.batch_size, max_audited_batch_size(len(dataset))), "augment": "none"}


@contextmanager
def _lock_folder_and_record_options(options: AuditOptions, dataset: Dataset) -> Iterator[Path]:
    """Context manager that locks the output folder and records the audit's options.

    Without `out`, yield a temporary folder. The record is removed if nothing else was written, as there is no audit to
    resume.
    """
    if options.out is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    path = Path(options.out)
    record = path / OPTIONS_FILE
    lasting = {name: one for name, one in AUDIT_COMMAND_SPEC.options_by_name.items() if one.lifetime != "call"}
    recorded = {name: one.serialize(getattr(options, name)) for name, one in lasting.items()}
    if not options.resume:
        _check_new_or_empty(path)
    with lock_folder(path, "audit"):
        if not options.resume:
            _check_new_or_empty(path)  # another audit may have filled it meanwhile
        saved, fingerprint = read_json_or_none(record) or {}, fingerprint_dataset(dataset)
        message = f"data: must be the items of the audit in {path}."
        check(not options.resume or saved.get("items") == fingerprint, message, "changed")
        with translate_write_errors("out", path):
            for part in (path, *filter(Path.is_dir, path.iterdir())):
                delete_paths(list_leftovers(part))
            write_json(record, {"options": recorded, "items": fingerprint})
        try:
            yield path
        finally:
            if {*path.iterdir()} == {record, path / LOCK_FILE}:
                record.unlink()


def _check_new_or_empty(path: Path) -> None:
    """Raise `UsageError` unless a folder is new or empty."""
    is_folder_path = not path.exists() or path.is_dir()
    check(is_folder_path, f"out: must be a folder or a new path, got the file {path}.", "exists")
    is_empty = not path.exists() or {path / LOCK_FILE, *list_leftovers(path)}.issuperset(path.iterdir())
    resume = format_options(resume=True)
    message = f"out: {path} is not empty. Choose a new folder, or continue the audit in it with {resume}."
    check(is_empty, message, "exists")


def _load_without_random_split(options: AuditOptions) -> Dataset:
    """Load the data to audit, without a random test split."""
    data = options.data
    if data is None:
        raise UsageError(
            "data: required, not given. Pass a name, a folder or a file; in Python also two arrays.", kind="missing"
        )
    if isinstance(data, tuple | np.ndarray | Tensor):
        dataset = from_arrays(data, argument="data")
    else:
        dataset = load_split_or_all_items(
            data, root=options.root, image_size=options.image_size, columns=options.columns
        )
    check_no_stream(dataset)
    return dataset
