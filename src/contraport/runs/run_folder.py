"""Layout of a run folder: the path of each of its files.

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

import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from contraport._utils.files import atomic_write, find_leftover_files
from contraport._utils.formatting import format_options, to_file_name
from contraport._utils.locks import LOCK_FILE
from contraport.errors import UsageError, check, check_regular_file


class RunBackup:
    """Backup of the replaced run, in the subfolder `.replaced` of the run folder.

    The backup is complete exactly if it has a `config.yaml`, which is copied last and moved back first. The run folder
    itself has a `config.yaml` at any moment. This makes every state after a kill recognizable.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self.path = run.path / ".replaced"

    def move_to_backup(self) -> None:
        """Move the files of the run to the backup; if there is one of an earlier run, delete the files instead."""
        run = self._run
        for path in (*run.paths_besides_config, self.path):  # all checks before the first move
            folder = path in run.subfolders or path == self.path
            good = not path.exists() or (path.is_dir() and not path.is_symlink()) == folder
            check(good, f"out: {path} is not a file of a run, so the run is not overwritten.", "foreign_file")
        if self._is_complete():  # an earlier replacement has no checkpoint yet: the backup is worth more than it
            _delete_paths(run.paths_besides_config)
            return
        self.path.mkdir()
        for path in run.paths_besides_config:
            if os.path.lexists(path):
                path.rename(self.path / path.name)
        with atomic_write(self.path / run.config_path.name) as copy:
            shutil.copyfile(run.config_path, copy)

    def finish_interrupted_operation(self) -> None:
        """Complete the move or deletion of a backup that a killed process left unfinished."""
        if self._is_complete() and self._run.last_checkpoint.exists():
            self.delete_backup()
        elif not self._is_complete() and self.path.exists():
            for path in self._run.paths_besides_config:
                if os.path.lexists(self.path / path.name):
                    (self.path / path.name).rename(path)
            shutil.rmtree(self.path)

    def roll_back(self) -> None:
        """Restore the replaced run from the backup, unless the new run has a checkpoint."""
        if self._is_complete() and not self._run.last_checkpoint.exists():
            _delete_paths(self._run.paths_besides_config)
            os.replace(self.path / self._run.config_path.name, self._run.config_path)
        self.finish_interrupted_operation()

    def delete_backup(self) -> None:
        """Delete the backup of the replaced run, if there is one."""
        if not self._is_complete():
            return
        _delete_paths(self.path / path.name for path in self._run.paths_besides_config)
        shutil.rmtree(self.path)

    def _is_complete(self) -> bool:
        return (self.path / self._run.config_path.name).exists()


def _delete_paths(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


_ENCODER_FOLDER = re.compile(r"encoder\d+")


class RunFolder:
    """Paths of all files of a run folder.

    Creating the object does not touch the file system.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
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
        self.backup = RunBackup(self)

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self.path.resolve().name

    @property
    def subfolders(self) -> tuple[Path, ...]:
        """Paths of all subfolders of a run folder."""
        caches = (self.features_path, self.decoded_path)
        return (self.checkpoints, self.model_path, self.initial_path, *caches, self.profile_path, self.loggers_path)

    @property
    def paths_besides_config(self) -> tuple[Path, ...]:
        """Paths of all files and subfolders of a run folder except `config.yaml`."""
        results = (self.metrics_path, self.evaluation_path, self.samples_path, self.items_path, self.pairs_path)
        records = (self.view_scores_path, self.mismatched_path, self.split_path, self.log_path, self.nonfinite_path)
        return (*self.subfolders, *results, *records)

    def check_accepts_new_run(self, *, overwrite: bool = False) -> None:
        """Raise `UsageError` unless a new run may be written to this folder; see `Run.create`.

        A lock does not count as content, nor do the leftovers of a process killed before it wrote `config.yaml`.
        """
        if not self.path.exists():
            return
        check(self.path.is_dir(), f"out: must be a folder or a new path, got the file {self.path}.", "not_a_folder")
        leftovers = {self.lock_path, *find_leftover_files(self.path)}
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

    def check_is_run(self, argument: str = "run") -> None:
        """Raise `UsageError` unless the path is a run folder whose entries are regular files and folders."""
        if self.path.is_file():
            raise UsageError(f"{argument}: must be a run folder, got the file {self.path}.", kind="not_a_folder")
        check(self.path.is_dir(), f"{argument}: there is no folder {str(self.path)!r}.", "not_found")
        check(self.config_path.is_file(), f"{argument}: {self.path} is not a run folder: no config.yaml.", "not_a_run")
        for path in self.path.rglob("*"):
            if path.is_dir():
                of_model = path.parent == self.model_path and _ENCODER_FOLDER.fullmatch(path.name)
                if not of_model and path.parent in (self.checkpoints, self.model_path):
                    raise UsageError(f"{argument}: {path} must be a file, got a folder.", kind="not_a_file")
            elif not path.is_file():
                with suppress(OSError):  # a running training may have deleted it by now; a link may be dangling
                    check_regular_file(argument, path)


def default_path(data: str, method: str) -> Path:
    """Return the default run folder, named after data and method.

    Letters, digits, ``_`` and single dots of the name of the data are kept; other characters become ``-``.

    >>> default_path("shards/train-{000..009}.tar", "gca-uot").as_posix()
    'runs/train-000-009-gca-uot'
    """
    path = Path(os.path.abspath(data))  # absolute, since "." has an empty name
    name = to_file_name(path.name if path.is_dir() else path.stem)
    return Path("runs", f"{name or 'data'}-{method}")
