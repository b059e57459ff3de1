"""A run: what is in its folder, read and written."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from contraport._utils.files import atomic_write_folder, write_arrays, write_text
from contraport._utils.html_repr import format_html_mapping
from contraport.errors import UsageError, check, report_write_errors
from contraport.options import accept_deprecated, is_object_placeholder, replace_deprecated_names
from contraport.runs.run_files import AGAIN, MetricsRow, read, read_arrays, read_evaluation, read_rows
from contraport.runs.run_folder import RunFolder
from contraport.training.config import KEPT, Settings, check_kept

if TYPE_CHECKING:
    from contraport.data.split_record import SplitRecord
    from contraport.encoders import Model
    from contraport.encoders.model import Encoders

_MAIN = ("data", "objective", "epochs", "batch_size")
"""The settings that a notebook shows even where they are the defaults."""


@dataclass
class _Config:
    """Contents of `config.yaml`, and the settings that they are once these were asked for."""

    version: tuple[int, int, int] | None
    values: dict[str, Any]
    settings: Settings | None = None


class Run(RunFolder):
    """One training, by what its folder holds.

    Making a `Run` touches no file; the methods that read raise `UsageError` where a file is missing or corrupt.

    Args:
        path: the folder.
        encoder: where the run trained a module of your own rather than a named encoder, this module as it was given to
            `contraport.train`, or one per view: the folder holds no code. The run that `contraport.train` returns has
            it.

    >>> Run("runs/demo/nt-xent").name
    'nt-xent'
    """

    def __init__(self, path: str | Path, encoder: Encoders = None) -> None:
        super().__init__(path)
        self.encoder = encoder
        self._read: _Config | None = None

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return as a table, for a notebook, the main settings, the others that are no defaults, and the last metrics.

        Of a folder that is no run it says so.
        """
        try:
            given = {name: value for name, value in self.config().items() if value is not None}
            settings = {name: value for name, value in given.items() if name in _MAIN or not _default(name, value)}
            rows = self.metrics() if self.metrics_path.exists() else []
        except UsageError as error:
            return format_html_mapping(repr(self), {}, str(error))
        last = {f"last {name}": _short(value) for name, value in (rows[-1] if rows else {}).items()}
        note = "Settings that are not shown are the defaults." if rows else "It has no metrics yet."
        return format_html_mapping(repr(self), settings | last, note)

    @property
    def resuming(self) -> str:
        """What goes on with the training; it trusts the code that the run itself was given as encoder.

        A command; or a call, where the run was given objects, which the folder does not hold and a command cannot name.
        """
        # Here, not above, as in `model`.
        from contraport.encoders.factory import custom_code_names

        config: dict[str, Any] = {}
        with suppress(UsageError):  # another file is what is told of
            config = self.config()
        objects = [name for name, value in config.items() if is_object_placeholder(value)]
        trusting = bool(custom_code_names(config.get("encoder"))) and "encoder" not in objects
        if not objects:
            flags = "--resume --trust_remote_code" if trusting else "--resume"
            return f"contraport train {flags} --out {shlex.quote(str(self.path))}"
        given = [
            f"out={str(self.path)!r}",
            *["trust_remote_code=True"] * trusting,
            *(f"{name}=..." for name in objects),
        ]
        return f"contraport.train(resume=True, {', '.join(given)}) in Python, with the objects that the run was given"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Say of a file that cannot be written what is left and what to do.

        Raises:
            UsageError: it cannot: the disk is full, or the folder not to be written to.
        """

        def remedy() -> str:
            kept = self.last_checkpoint.exists()
            return f" What was saved before is whole: mend it, and go on with: {self.resuming}" if kept else ""

        with report_write_errors("out", self.path, remedy):
            yield

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, Any], *, overwrite: bool = False) -> Run:
        """Start a run folder that holds `config.yaml` and an empty `checkpoints/`.

        With `overwrite` the files of an older run are kept as the `replaced` one; a file that is not a run's own is
        never touched.

        Raises:
            UsageError: `path` is a file; or is not empty and `overwrite` is false, or what it holds is no run.
        """
        run = cls(path)
        run.check_free(overwrite=overwrite)
        run.replaced.settle()
        if run.config_path.exists():
            run.replaced.create_backup()
        run.checkpoints.mkdir(parents=True, exist_ok=True)  # one that is there is empty
        write_text(run.config_path, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
        return run

    def config(self) -> dict[str, Any]:
        """Return the keyword arguments of the training.

        Raises:
            UsageError: the folder is missing or no run, or its `config.yaml` is corrupt.
        """
        return copy.deepcopy(self._config().values)

    def settings(self, **given: Any) -> Settings:
        """Return the settings of the training, with some that are given in place of its own.

        Raises:
            UsageError: the folder is missing or no run, or its `config.yaml` is corrupt.
        """
        config = self._config()
        if config.settings is None:
            own = {name: config.values[name] for name in KEPT.keys() & config.values.keys()}
            try:
                config.settings = Settings(**own)
            except UsageError as error:
                raise UsageError(f"run: {self.config_path} is corrupt: {error}") from error
        return replace(config.settings, **given) if given else config.settings

    def _config(self) -> _Config:
        """Return what `config.yaml` holds; it is read and checked again only if the file changed."""
        version = _version(self.config_path)
        if self._read is None or version is None or self._read.version != version:
            self.check_is_run()
            values = read(self.config_path, lambda path: yaml.safe_load(path.read_text("utf-8")))
            check(isinstance(values, dict), f"run: {self.config_path} is corrupt: expected keys and values.")
            values = replace_deprecated_names(KEPT, values, warn=False)  # runs of earlier versions
            check_kept(values, self.config_path)
            self._read = _Config(version, values)
        return self._read

    def metrics(self) -> list[MetricsRow]:
        """Return one row per logged step; a last line that was cut off while it was written is left out.

        Raises:
            UsageError: the folder is no run, has no `metrics.jsonl`, or a line of it is corrupt.
        """
        self.check_is_run()
        rows: list[MetricsRow] = read(self.metrics_path, read_rows)
        return rows

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add one row to `metrics.jsonl`."""
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def write_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace all rows of `metrics.jsonl`, as a resumed training does with those after its checkpoint."""
        write_text(self.metrics_path, "".join(json.dumps(row) + "\n" for row in rows))

    @accept_deprecated(trust_remote_code="trust")
    def model(self, *, trust_remote_code: bool = False) -> Model:
        """Return the trained model, in evaluation mode, on the CPU.

        Args:
            trust_remote_code: import and run an encoder that the run names as ``module:attribute``.

        Raises:
            UsageError: the folder is no run, or its model is missing or corrupt, or names code to run.
        """
        # Here, not above: to read a run's numbers neither an encoder nor the hub's client is needed.
        from contraport.encoders import Model

        self.check_is_run()
        model: Model = read(
            self.model_path,
            lambda path: Model.from_pretrained(path, trust_remote_code=trust_remote_code, encoder=self.encoder),
        )
        return model.eval()

    def save_model(self, model: Model, *, epochs: int) -> None:
        """Write the model, each file as a whole, and its number of epochs; what was measured of another one goes.

        Raises:
            UsageError: it cannot be written.
        """
        told = json.dumps({"epochs": epochs})
        with self.writing():
            if not self.trained_path.exists() or self.trained_path.read_text("utf-8", errors="replace") != told:
                for outdated in (self.evaluation_path, self.samples_path, self.items_path, self.trained_path):
                    outdated.unlink(missing_ok=True)
            _save(model, self.model_path)
            write_text(self.trained_path, told)

    def save_initial(self, model: Model, *, drawn: bool = False) -> None:
        """Write the model as the training begins with it, so that it can go on where that was is gone.

        Of weights that are drawn nothing is written but what encoders of transformers are built of.

        Raises:
            UsageError: it cannot be written.
        """
        with self.writing():
            if drawn:
                model.save_encoder_files(self.initial_path)
            else:
                _save(model, self.initial_path)

    @accept_deprecated(trust_remote_code="trust")
    def initial_model(self, *, trust_remote_code: bool = False) -> Model | None:
        """Return the model as the training began with it, or none where its weights were drawn.

        Args:
            trust_remote_code: as of `model`.

        Raises:
            UsageError: it is corrupt, or refused without `trust_remote_code`.
        """
        # Here, not above, as in `model`.
        from contraport.encoders import Model
        from contraport.encoders.model import CONFIG_FILE

        if not (self.initial_path / CONFIG_FILE).exists():
            return None
        model: Model = read(
            self.initial_path,
            lambda path: Model.from_pretrained(path, trust_remote_code=trust_remote_code, encoder=self.encoder),
        )
        return model.eval()

    def model_epochs(self) -> int | None:
        """Return after how many epochs the model was saved, or none where that is not told.

        Raises:
            UsageError: what tells it is corrupt.
        """
        if not self.trained_path.exists():
            return None
        epochs: int = read(self.trained_path, lambda path: int(json.loads(path.read_text("utf-8"))["epochs"]))
        return epochs

    def caveat(self, settings: Settings | None = None) -> str | None:
        """Say which model the folder holds where it is not known to be that of the training's end.

        Args:
            settings: of the run, where they were read before.
        """
        epochs, asked = self.model_epochs(), (settings or self.settings()).epochs
        if epochs is None:
            return f"It is not told after how many epochs the model in {self.model_path} was saved."
        if epochs >= asked:
            return None
        return (
            f"The model in {self.model_path} is that after epoch {epochs}: the training was then extended to {asked}, "
            "and that has not ended."
        )

    def model_config(self) -> dict[str, Any]:
        """Return what the trained model was built with: its encoder, shape, projection and standardisation.

        Raises:
            UsageError: the folder is no run, or its model is missing or corrupt.
        """
        self.check_is_run()
        config = read(self.model_path / "config.json", lambda path: json.loads(path.read_text("utf-8")))
        check(isinstance(config, dict), f"run: {self.model_path}/config.json is corrupt: expected an object.")
        return dict(config)

    def evaluation(self) -> dict[str, Any]:
        """Return what `contraport.evaluate` measured.

        Raises:
            UsageError: the folder is no run, was not evaluated, or its `evaluation.json` is corrupt.
        """
        self.check_is_run()
        evaluation: dict[str, Any] = read(self.evaluation_path, read_evaluation, AGAIN)
        return evaluation

    def samples(self) -> dict[str, np.ndarray]:
        """Return the arrays that `contraport.evaluate` kept for the page, by name.

        Raises:
            UsageError: the folder is no run, was not evaluated, or its `samples.npz` is corrupt.
        """
        self.check_is_run()
        samples: dict[str, np.ndarray] = read(self.samples_path, read_arrays, AGAIN)
        return samples

    def items(self) -> dict[str, np.ndarray]:
        """Return by measure what it says of each test item, ``(n,)`` or ``(n, k)``, where the number is their mean.

        Raises:
            UsageError: the folder is no run, was not evaluated, or its `items.npz` is corrupt.
        """
        self.check_is_run()
        found: dict[str, np.ndarray] = read(self.items_path, read_arrays, AGAIN)
        return found

    def save_pairs(self, found: Mapping[str, np.ndarray]) -> None:
        """Write what a training found of its pairs."""
        write_arrays(self.pairs_path, found)

    def pairs(self) -> dict[str, np.ndarray]:
        """Return what a training with `audit` found of its `n` pairs at its last look.

        `scores`, `fdr`, `kept`, and of a training that is done `partners` and `partner_scores`, each ``(n,)``;
        `mismatched`, the scores of known mismatches; `epoch`, `rate`, `low`, `high` and `remembered`,
        without dimensions. See `contraport.auditing.Audit`.

        Raises:
            UsageError: the folder is no run, was not trained so, or its `pairs.npz` is corrupt.
        """
        self.check_is_run()
        found: dict[str, np.ndarray] = read(self.pairs_path, read_arrays)
        return found

    def save_split(self, record: SplitRecord) -> None:
        """Write which items are trained on and which are held out."""
        with self.writing():
            write_arrays(self.split_path, record.arrays())

    def split(self) -> SplitRecord | None:
        """Return which items the run was trained on and which it held out.

        None of a stream, and of a run of an earlier version, which kept no record.

        Raises:
            UsageError: the folder is no run, or its `split.npz` is corrupt.
        """
        # Here, not above, as in `model`.
        from contraport.data.split_record import SplitRecord

        self.check_is_run()
        if not self.split_path.exists():
            return None
        record: SplitRecord = read(self.split_path, lambda path: SplitRecord.from_arrays(read_arrays(path)))
        return record

    def save_partners(self, partners: np.ndarray) -> None:
        """Write which item each is paired with, where pairs were mismatched on purpose."""
        with self.writing():
            write_arrays(self.mismatched_path, {"partners": partners})

    def partners(self) -> np.ndarray:
        """Return which item each of `n` training items is paired with, ``(n,)``: with itself where the pair is right.

        Raises:
            UsageError: the folder is no run, was not trained with `mismatch`, or its `mismatched.npz` is corrupt.
        """
        self.check_is_run()
        found: np.ndarray = read(self.mismatched_path, read_arrays)["partners"]
        return found


def _version(path: Path) -> tuple[int, int, int] | None:
    """Return what differs between two versions of a file, or None if there is no file.

    The inode too: a file is replaced as a whole, maybe within one tick of the clock.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _save(model: Model, place: Path) -> None:
    """Write a model, each file as a whole."""
    # Here, not above, as in `Run.model`.
    from safetensors import SafetensorError

    try:
        with atomic_write_folder(place) as folder:
            model.save_pretrained(folder)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def _default(name: str, value: object) -> bool:
    return name in KEPT and value == KEPT[name].serialize(KEPT[name].default)


def _short(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value
