"""Resolves the settings of a training run and prepares its folder.

Settings: explicit option > resumed run > recipe > default.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml

from contraport._utils.files import delete_paths, list_leftovers, write_text
from contraport.catalog import apply_recipe
from contraport.data.split_digests import SplitDigests
from contraport.distributed import is_main_process
from contraport.encoders import check_saved_encoder_trusted
from contraport.errors import check, hint_on_error
from contraport.options import merge_resumed_options
from contraport.runs import WritableRun
from contraport.runs.run import check_run_folder
from contraport.training.callbacks.checkpoints import read_resume_position_or_zero
from contraport.training.config import RECORDED_OPTIONS_BY_NAME, Settings
from contraport.training.loop import Position

log = logging.getLogger("contraport.training")


def resolve_settings(explicit_options: Mapping[str, Any]) -> Settings:
    """Resolve settings: explicit options before resumed run, recipe and defaults.

    Raises:
        UsageError: an invalid setting, an unknown recipe, or a change of an option that is fixed on resume.

    >>> resolve_settings({"recipe": "byol", "momentum": 0.9}).predictor
    True
    """
    options = explicit_options
    if options.get("resume"):
        with hint_on_error("contraport docs troubleshooting resume-is-refused"):
            out = options.get("out")
            check(out is not None, "out: required with resume, not given.", "missing")
            run = WritableRun(str(out))
            check_run_folder(run.path, "out")
            trust = options.get("trust_remote_code", False) or "encoder" in options
            options = merge_resumed_options(RECORDED_OPTIONS_BY_NAME, run.config(), options, run.config_path)
            check_saved_encoder_trusted(run.settings().encoder, f"{out}/config.yaml", trust_remote_code=trust)
    return Settings(**apply_recipe(options))


def create_run_folder(run: WritableRun, settings: Settings, digests: SplitDigests | None) -> None:
    """Create the folder of a new run, with settings and item digests.

    Raises:
        UsageError: the folder is occupied or not writable; nothing was changed.
    """
    with run.translate_write_errors():
        _delete_temporary_files(run)
        WritableRun.create(run.path, settings.to_config(), overwrite=settings.overwrite)
        if digests is not None:
            run.save_arrays(run.split_path, digests.to_arrays())


@hint_on_error("contraport docs troubleshooting resume-is-refused")
def reset_to_last_checkpoint(run: WritableRun, settings: Settings, digests: SplitDigests | None) -> Position:
    """Reset a run folder to its last checkpoint, and return its epoch and step.

    `digests` are those of the items, which must not change; None for a stream.

    Raises:
        UsageError: the folder is not writable, or the checkpoint is corrupt or of other items; nothing was changed.
    """
    with run.translate_write_errors():
        run.backup.undo_or_delete_stale_backup()
    position, saved = read_resume_position_or_zero(run), run.find_split_digests()
    if digests is not None and saved is None:
        log.warning("%s has no record of its items (version 0.1.0): they are not checked for changes", run.path)
        run.save_arrays(run.split_path, digests.to_arrays())
    message = f"data: must be the items that the run in {run.path} was trained on."
    check(digests is None or saved is None or digests.train_fingerprint == saved.train_fingerprint, message, "changed")
    done = position.completed_epochs
    message = f"epochs: must be at least {done}, the epochs done in {run.last_checkpoint}, got {settings.epochs}."
    check(done <= settings.epochs, message, "below_checkpoint")
    # Below all checks: a refused resume changes nothing. Rows after the checkpoint go, since their steps run again.
    with run.translate_write_errors():
        _delete_temporary_files(run)
        drop_metrics_after(run, position)
        if done < settings.epochs:
            # An evaluation of the shorter training run would be taken for one of the longer.
            for outdated in (run.evaluation_path, run.samples_path, run.items_path):
                outdated.unlink(missing_ok=True)
        write_text(run.config_path, yaml.safe_dump(settings.to_config(), sort_keys=False, allow_unicode=True))
    return position


def drop_metrics_after(run: WritableRun, position: Position) -> None:
    """Delete the rows of `metrics.jsonl` logged after a training step."""
    if run.metrics_path.exists():
        run.replace_metrics(row for row in run.metrics_rows() if row["step"] <= position.step)


@contextmanager
def restore_backup_on_failure_before_checkpoint(run: WritableRun) -> Iterator[None]:
    """Context manager that restores a replaced run if the new one fails early.

    After a stop or a loss that is not finite both are kept: the new run holds the cause, and can be resumed.
    """
    try:
        yield
    except FloatingPointError:
        raise
    except Exception:
        if is_main_process():
            with run.translate_write_errors():
                run.backup.restore_unless_checkpointed()
        raise


def _delete_temporary_files(run: WritableRun) -> None:
    """Delete temporary files that a killed process left in a run folder."""
    for folder in (run.path, run.checkpoints, run.model_path):
        delete_paths(list_leftovers(folder))
