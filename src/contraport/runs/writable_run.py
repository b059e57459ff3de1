"""Writable run folders, with the paths of their files.

```
DIR/config.yaml        keyword arguments of `contraport.train`
    metrics.jsonl      one JSON object per line, in the order of the steps
    checkpoints/       state for resuming
    model/             config.json and model.safetensors, for `contraport.encoders.Model.from_pretrained`;
                       training.json, the number of epochs trained; encoder0/ and so on, tokenizer and
                       architecture of transformers models
    initial/           initial model, if its weights are not random; else encoder0/ of transformers models
    features/          cached features of a frozen encoder
    decoded/           cached decoded images
    evaluation.json    results of `contraport.evaluate`
    items.npz          metric values per test item
    samples.npz        points, thumbnails and plans for the HTML page
    pairs.npz          scores of the online audit of two views
    view_scores.npz    scores of the online audit of three or more views
    mismatched.npz     partners of the items, if pairs were mismatched on purpose
    split.npz          digests of the training and held-out items
    train.log          log of the training
    profile/           profile of some steps
    loggers/           files of TensorBoard, MLflow or Weights & Biases
    nonfinite.json     step at which the loss or its gradient was not finite
    lock.json          the process that trains; evaluation.lock.json, the process that evaluates
    .replaced/         backup of the replaced run, until this one has a checkpoint
```
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from contraport._utils.files import atomic_write, delete_paths, list_leftovers, stage_files, write_npz, write_text
from contraport._utils.formatting import format_options, to_file_name
from contraport._utils.locks import LOCK_FILE
from contraport.errors import check, check_writable, translate_write_errors
from contraport.options import keep_deprecated_module_names
from contraport.runs.run import (
    REEVALUATE_REMEDY,
    Run,
    check_run_folder,
    read_page_arrays,
    read_run_arrays,
    read_run_file,
)
from contraport.training.config import RECORDED_OPTIONS_BY_NAME

if TYPE_CHECKING:
    from contraport.data.split_digests import SplitDigests
    from contraport.encoders import Model
    from contraport.encoders.model import Encoders

__getattr__ = keep_deprecated_module_names(__name__, RunFolder="WritableRun")


class ReplacedRunBackup:
    """Backup of a replaced run, in the subfolder `.replaced` of the run folder.

    The backup is complete exactly if it has a `config.yaml`, which is copied last and moved back first. The run folder
    itself has a `config.yaml` at any moment. This makes every state after a kill recognizable.
    """

    def __init__(self, run: WritableRun) -> None:
        self._run = run
        self.path = run.path / ".replaced"

    def check_run_path_kinds(self) -> None:
        """Raise `UsageError` if a file of the run is a folder, or the reverse."""
        run = self._run
        for path in (*run.possible_paths_besides_config, self.path):
            folder = path in run.possible_subfolders or path == self.path
            good = not path.exists() or (path.is_dir() and not path.is_symlink()) == folder
            check(good, f"out: {path} is not a file of a run, so the run is not overwritten.", "foreign_file")

    def move_run_files_here(self) -> None:
        """Move the run's files to the backup, and copy its `config.yaml` last."""
        run = self._run
        self.path.mkdir()
        for path in run.possible_paths_besides_config:
            if os.path.lexists(path):
                path.rename(self.path / path.name)
        with atomic_write(self.path / run.config_path.name) as copy:
            shutil.copyfile(run.config_path, copy)

    def undo_or_delete_stale_backup(self) -> None:
        """Move the files of an incomplete backup back, or delete an obsolete backup."""
        if self.is_complete() and self._run.last_checkpoint.exists():
            self.delete()
        elif not self.is_complete() and self.path.exists():
            for path in self._run.possible_paths_besides_config:
                if os.path.lexists(self.path / path.name):
                    (self.path / path.name).rename(path)
            shutil.rmtree(self.path)

    def restore_unless_checkpointed(self) -> None:
        """Restore the replaced run unless the new run has a checkpoint."""
        if self.is_complete() and not self._run.last_checkpoint.exists():
            delete_paths(self._run.possible_paths_besides_config)
            os.replace(self.path / self._run.config_path.name, self._run.config_path)
        self.undo_or_delete_stale_backup()

    def delete(self) -> None:
        """Delete the whole backup of the replaced run."""
        delete_paths(self.path / path.name for path in self._run.possible_paths_besides_config)
        shutil.rmtree(self.path)

    def is_complete(self) -> bool:
        """Return whether the backup has a `config.yaml`, which is copied last."""
        return (self.path / self._run.config_path.name).exists()


class WritableRun(Run):
    """Writable run folder, with the paths of all its files.

    Methods that write raise `UsageError` if the folder is not writable or the disk is full.

    Args:
        path: the run folder.
        encoder: as in `Run`.
        parent_command: command that the training is a part of, such as "audit", which resumes it; empty for none.
    """

    def __init__(self, path: str | Path, encoder: Encoders = None, *, parent_command: str = "") -> None:
        super().__init__(path, encoder)
        self.parent_command = parent_command
        self.config_path = self.path / "config.yaml"
        self.metrics_path = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.last_checkpoint = self.checkpoints / "last.ckpt"
        self.model_path = self.path / "model"
        self.initial_path = self.path / "initial"
        self.features_path = self.path / "features"
        self.decoded_path = self.path / "decoded"
        self.profile_path = self.path / "profile"
        self.trained_path = self.model_path / "training.json"
        self.evaluation_path = self.path / "evaluation.json"
        self.samples_path = self.path / "samples.npz"
        self.items_path = self.path / "items.npz"
        self.pairs_path = self.path / "pairs.npz"
        self.view_scores_path = self.path / "view_scores.npz"
        self.mismatched_path = self.path / "mismatched.npz"
        self.split_path = self.path / "split.npz"
        self.log_path = self.path / "train.log"
        self.loggers_path = self.path / "loggers"
        self.nonfinite_path = self.path / "nonfinite.json"
        self.nonfinite_checkpoint = self.checkpoints / "nonfinite.ckpt"
        self.nonfinite_items = self.checkpoints / "nonfinite.npz"
        self.lock_path = self.path / LOCK_FILE
        self.evaluation_lock_path = self.path / f"evaluation.{LOCK_FILE}"
        self.backup = ReplacedRunBackup(self)

    @property
    def possible_subfolders(self) -> tuple[Path, ...]:
        """Paths of all subfolders that a run folder can have."""
        caches = (self.features_path, self.decoded_path)
        return (self.checkpoints, self.model_path, self.initial_path, *caches, self.profile_path, self.loggers_path)

    @property
    def possible_paths_besides_config(self) -> tuple[Path, ...]:
        """Paths of all files and subfolders that a run folder can have, except `config.yaml`."""
        results = (self.metrics_path, self.evaluation_path, self.samples_path, self.items_path, self.pairs_path)
        records = (self.view_scores_path, self.mismatched_path, self.split_path, self.log_path, self.nonfinite_path)
        return (*self.possible_subfolders, *results, *records)

    def check_accepts_new_run(self, *, overwrite: bool = False) -> None:
        """Raise `UsageError` unless a new run may be written to the folder.

        A lock does not count as content, nor do the leftovers of a process killed before it wrote `config.yaml`. A
        folder to replace must have the options of a run in its `config.yaml`, and checkpoints or metrics: a user or
        another tool may have written such a file too.
        """
        if not self.path.exists():
            check_writable("out", self.path / "file")
            return
        check(self.path.is_dir(), f"out: must be a folder or a new path, got the file {self.path}.", "not_a_folder")
        leftovers = {self.lock_path, *list_leftovers(self.path)}
        if self.checkpoints.is_dir() and not any(self.checkpoints.iterdir()):
            leftovers.add(self.checkpoints)
        empty = leftovers.issuperset(self.path.iterdir())
        message = (
            f"out: {self.path} is not empty. Choose another folder, continue the run in it with "
            f"{format_options(resume=True)}, or replace it with {format_options(overwrite=True)}."
        )
        if not self.config_path.is_file():
            message = f"out: {self.path} is not empty and not a run folder (no config.yaml). Choose another folder."
        check(empty or overwrite, message, "exists")
        check(empty or self.config_path.is_file(), message, "not_a_run")
        if self.config_path.exists():
            names = self.config().keys()
            message = f"out: {self.config_path} is not that of a run, so {self.path} is not replaced. Choose another."
            marks = (self.checkpoints, self.metrics_path, self.backup.path)
            is_own = bool(names) and names <= RECORDED_OPTIONS_BY_NAME.keys() and any(path.exists() for path in marks)
            check(is_own, message, "not_a_run")

    @property
    def resume_advice(self) -> str:
        """Advice for error messages on how to resume the training."""
        if self.parent_command:
            return f"repeat the {self.parent_command} with {format_options(resume=True)}"
        return self.resume_command

    @contextmanager
    def translate_write_errors(self) -> Iterator[None]:
        """Context manager that raises an `OSError` as a `UsageError` with advice on resuming."""

        def remedy() -> str:
            if not self.last_checkpoint.exists():
                return ""
            return f" The last checkpoint is intact. Fix the cause, then resume: {self.resume_advice}"

        with translate_write_errors("out", self.path, remedy):
            yield

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, Any], *, overwrite: bool = False) -> WritableRun:
        """Create a run folder with `config.yaml` and an empty folder `checkpoints/`.

        With `overwrite` the files of an older run are moved to a backup; files that do not belong to a run are never
        touched.

        Raises:
            UsageError: `path` is a file; or it is not empty, and `overwrite` is false or it is not a run folder.
        """
        run = cls(path)
        run.check_accepts_new_run(overwrite=overwrite)
        run.backup.undo_or_delete_stale_backup()
        if run.config_path.exists():
            run.backup.check_run_path_kinds()
            if run.backup.is_complete():  # the earlier replacement has no checkpoint: the backup is worth more than it
                delete_paths(run.possible_paths_besides_config)
            else:
                run.backup.move_run_files_here()
        run.checkpoints.mkdir(parents=True, exist_ok=True)  # an existing one is empty: checked above
        write_text(run.config_path, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
        return run

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Append one row to `metrics.jsonl`."""
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def replace_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace all rows of `metrics.jsonl`."""
        write_text(self.metrics_path, "".join(json.dumps(row) + "\n" for row in rows))

    def save_model_and_delete_stale_evaluations(
        self, model: Model, *, epochs: int, planned_epochs: int | None = None
    ) -> None:
        """Write the trained model and its number of epochs, and delete outdated evaluations.

        `planned_epochs` is larger than `epochs` after early stopping; default: the same.
        """
        stopped_early = planned_epochs is not None and epochs < planned_epochs
        record = json.dumps({"epochs": epochs} | ({"planned": planned_epochs} if stopped_early else {}))
        with self.translate_write_errors():
            if not self.trained_path.exists() or self.trained_path.read_text("utf-8", errors="replace") != record:
                for outdated in (self.evaluation_path, self.samples_path, self.items_path, self.trained_path):
                    outdated.unlink(missing_ok=True)
            _save_model_files(model, self.model_path)
            write_text(self.trained_path, record)

    def save_initial_model(self, model: Model, *, configs_only: bool = False) -> None:
        """Write the initial model, so that resuming does not load pretrained weights again.

        With `configs_only`, for random weights, only tokenizer and architecture of transformers models are written.
        """
        with self.translate_write_errors():
            if configs_only:
                model.save_transformers_configs(self.initial_path)
            else:
                _save_model_files(model, self.initial_path)

    def find_pretrained_initial_model(self, *, trust_remote_code: bool = False) -> Model | None:
        """Load the initial model, or return None if it had random weights."""
        from contraport.encoders.model import CONFIG_FILE

        if not (self.initial_path / CONFIG_FILE).exists():
            return None
        return self._load_model(self.initial_path, trust_remote_code=trust_remote_code)

    def saved_model_epoch(self) -> int | None:
        """Return the epoch of the saved model, or None if unrecorded."""
        return self._read_trained_and_planned_epochs()[0]

    def _read_trained_and_planned_epochs(self) -> tuple[int | None, int | None]:
        """Read the saved model's numbers of trained and planned epochs, None if unrecorded."""
        if not self.trained_path.exists():
            return None, None

        def read(path: Path) -> tuple[int, int]:
            record = json.loads(path.read_text("utf-8"))
            return int(record["epochs"]), int(record.get("planned", record["epochs"]))

        return read_run_file(self.trained_path, read)

    def outdated_model_warning(self) -> str | None:
        """Return a warning if the saved model is outdated or its epoch unknown.

        It is outdated if the training was extended after saving.
        """
        (epochs, planned_before), planned = self._read_trained_and_planned_epochs(), self.settings().epochs
        if epochs is None or planned_before is None:
            return f"The epoch of the model in {self.model_path} is not recorded."
        if planned_before >= planned:
            return None
        return (
            f"The model in {self.model_path} is that of epoch {epochs}; the training was extended to {planned} epochs "
            "and is not complete."
        )

    def read_model_config(self) -> dict[str, Any]:
        """Read the encoder, shapes, projection and normalization of the trained model."""
        config = self._read_file(self.model_path / "config.json", lambda path: json.loads(path.read_text("utf-8")))
        check(isinstance(config, dict), f"run: {self.model_path}/config.json is corrupt: must be an object.", "corrupt")
        return dict(config)

    def save_arrays(self, path: Path, arrays: Mapping[str, np.ndarray]) -> None:
        """Write an .npz file of the run, such as online audit scores."""
        with self.translate_write_errors():
            write_npz(path, arrays)

    def page_arrays(self) -> dict[str, np.ndarray]:
        """Read the dictionary of arrays that `contraport.evaluate` saved for the HTML page."""
        return self._read_file(self.samples_path, read_page_arrays, REEVALUATE_REMEDY)

    def test_item_metric_values(self) -> dict[str, np.ndarray]:
        """Read the metric values of each test item, ``(n,)`` or ``(n, k)``, by key."""
        return self._read_file(self.items_path, read_run_arrays, REEVALUATE_REMEDY)

    def find_split_digests(self) -> SplitDigests | None:
        """Return the digests of training and held-out items, or None for streamed data."""
        from contraport.data.split_digests import SplitDigests

        check_run_folder(self.path)
        if not self.split_path.exists():
            return None
        return read_run_file(self.split_path, lambda path: SplitDigests.from_arrays(read_run_arrays(path)))

    def partners_after_mismatch(self) -> np.ndarray:
        """Read the partner index of each training item, ``(n,)``, after deliberate mismatching.

        The partner is the item itself if its pair is correct.
        """
        return self._read_file(self.mismatched_path, read_run_arrays)["partners"]


def as_run_folder(folder: str | Path | Run) -> WritableRun:
    """Convert a path or a `Run` to a `WritableRun`."""
    if isinstance(folder, WritableRun):
        return folder
    message = f"run: must be a run folder or a Run, got an object of type {type(folder).__name__}."
    check(isinstance(folder, str | Path | Run), message, "type")
    return WritableRun(folder.path, folder.encoder) if isinstance(folder, Run) else WritableRun(folder)


def as_different_run_folders(argument: str, folders: Sequence[str | Path | Run]) -> list[WritableRun]:
    """Return the `WritableRun` of each path, checking that none repeats."""
    check(len(folders) > 0, f"{argument}: must name at least one run folder, got none.", "missing")
    runs = [as_run_folder(folder) for folder in folders]
    counts = Counter(run.path.resolve() for run in runs)
    repeated = dict.fromkeys(str(run.path) for run in runs if counts[run.path.resolve()] > 1)
    check(not repeated, f"{argument}: names the same run twice: {', '.join(repeated)}.", "repeated")
    return runs


def default_run_path(data: str, method: str) -> Path:
    """Return the default run folder, named after data and method.

    Letters, digits, ``_`` and single dots of the name of the data are kept; other characters become ``-``.

    >>> default_run_path("shards/train-{000..009}.tar", "gca-uot").as_posix()
    'runs/train-000-009-gca-uot'
    """
    path = Path(os.path.abspath(data))  # absolute, since "." has an empty name
    name = to_file_name(path.name if path.is_dir() else path.stem)
    return Path("runs", f"{name or 'data'}-{method}")


def _save_model_files(model: Model, target: Path) -> None:
    """Write the files of a model, each replaced atomically."""
    from safetensors import SafetensorError

    try:
        with stage_files(target) as folder:
            model.save_pretrained(folder)
    except SafetensorError as error:
        raise OSError(str(error)) from error
