"""The folder of a run: which file of it is where.

```
DIR/config.yaml        the keyword arguments of `contraport.train`
    metrics.jsonl      one JSON object a line, in the order of the steps
    checkpoints/       what a resumed training needs
    model/             config.json and model.safetensors, readable by `contraport.encoders.Model.from_pretrained`;
                       training.json, after how many epochs that was; encoder0/ and so on, what tokenizer a
                       model of transformers has, and how it is built
    initial/           the model as the training began with it, where its weights were not drawn; else of a model
                       of transformers its encoder0/, as in model/
    features/          what a frozen encoder made of each item, where that is kept
    decoded/           images as pixels, where they are decoded once
    evaluation.json    the numbers of `contraport.evaluate`
    items.npz          what a measure says of each test item
    samples.npz        the points, thumbnails and plans that the page draws
    pairs.npz          what a training with `audit` found of its pairs
    mismatched.npz     who is paired with whom, where pairs were mismatched on purpose
    split.npz          digests of the items that are trained on and of those that are held out
    train.log          what the training said
    profile/           where the time of some steps went, where that was asked for
    loggers/           what TensorBoard, MLflow or Weights & Biases keep, where they were asked for
    nonfinite.json     where the loss stopped being a number, if it did
    lock.json          which process trains, while one does; evaluation.lock.json, which evaluates
    .replaced/         the run that this one replaces, until this one has a checkpoint
```
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from contraport._utils.files import leftover_files
from contraport._utils.formatting import format_options
from contraport._utils.locks import LOCK_FILE
from contraport.errors import UsageError, check, check_regular_file
from contraport.features import is_feature_file
from contraport.runs.run_backup import RunBackup

_KEPT_ENCODER = re.compile(r"encoder\d+")
_NOT_IN_NAMES = re.compile(r"(?:[^\w.]|\.{2,})+")


class RunFolder:
    """The folder of one training, by the names of its files; to make one touches none of them.

    Args:
        path: the folder.
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
        self.mismatched_path = self.path / "mismatched.npz"
        self.split_path = self.path / "split.npz"
        self.log_path = self.path / "train.log"
        self.loggers_path = self.path / "loggers"
        self.nonfinite_path = self.path / "nonfinite.json"
        self.nonfinite_checkpoint = self.checkpoints / "nonfinite.ckpt"
        self.nonfinite_items = self.checkpoints / "nonfinite.npz"
        self.lock_path = self.path / LOCK_FILE
        self.evaluation_lock_path = self.path / f"evaluation.{LOCK_FILE}"
        self.replaced = RunBackup(self)

    @property
    def name(self) -> str:
        """The last part of the folder's path."""
        return self.path.resolve().name

    @property
    def folders(self) -> tuple[Path, ...]:
        """Its folders, all of which belong to one training."""
        kept = (self.features_path, self.decoded_path, self.profile_path)
        return (self.checkpoints, self.model_path, self.initial_path, *kept, self.loggers_path)

    @property
    def written(self) -> tuple[Path, ...]:
        """All that belongs to one training, but `config.yaml`."""
        measured = (self.metrics_path, self.evaluation_path, self.samples_path, self.items_path, self.pairs_path)
        files = (*measured, self.mismatched_path, self.split_path, self.log_path, self.nonfinite_path)
        return (*self.folders, *files)

    def check_free(self, *, overwrite: bool = False) -> None:
        """Raise `UsageError` unless a run may start here, as `create` says.

        A lock is no content of the folder, nor is what a process leaves that is killed before `config.yaml` is there.
        """
        if not self.path.exists():
            return
        check(self.path.is_dir(), f"out: {self.path} is a file; expected a folder or a new path.")
        begun = {self.lock_path, *leftover_files(self.path)}
        if self.checkpoints.is_dir() and not any(self.checkpoints.iterdir()):
            begun.add(self.checkpoints)
        empty = begun.issuperset(self.path.iterdir())
        check(empty or overwrite, f"out: {self.path} is not empty; {format_options(overwrite=True)} replaces it.")
        check(
            empty or self.config_path.is_file(),
            f"out: {self.path} is not empty and is no run (no config.yaml), so it is not overwritten.",
        )

    def check_is_run(self) -> None:
        """Raise `UsageError` unless the folder holds a run, each file and folder of it where it should be."""
        if self.path.is_file():
            of_features = " of features, which neighbors, search, duplicates and cluster take,"
            told = f"a file{of_features if is_feature_file(self.path) else ''}"
            raise UsageError(f"run: {self.path} is {told} and no run; expected a run folder.")
        check(self.path.is_dir(), f"run: no such folder: {self.path}.")
        check(self.config_path.is_file(), f"run: {self.path} is no run: it has no config.yaml.")
        for path in self.path.rglob("*"):
            if path.is_dir():
                of_model = path.parent == self.model_path and _KEPT_ENCODER.fullmatch(path.name)
                if not of_model and path.parent in (self.checkpoints, self.model_path):
                    raise UsageError(f"run: {path} is a folder, where a run has only files.")
            elif not path.is_file():
                with suppress(OSError):  # what a training writes may be gone by now, and a link may lead nowhere
                    check_regular_file("run", path)


def default_path(data: str, method: str) -> Path:
    """Return the folder of a run that was given none, named after its data and its method.

    Of what the data are called only letters, digits, ``_`` and single dots are kept, joined by ``-``.

    >>> default_path("shards/train-{000..009}.tar", "gca-uot").as_posix()
    'runs/train-000-009-gca-uot'
    """
    place = Path(os.path.abspath(data))  # "." has no name of its own
    name = _NOT_IN_NAMES.sub("-", place.name if place.is_dir() else place.stem).strip("-.")
    return Path("runs", f"{name or 'data'}-{method}")
