"""Run: a run folder, with methods that read and write its files."""

from __future__ import annotations

import copy
import json
import shlex
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import yaml

from contraport._utils.files import atomic_write_folder, write_arrays, write_text
from contraport._utils.formatting import format_options
from contraport._utils.html_repr import format_html_mapping
from contraport.errors import UsageError, check, one_line_reason, report_write_errors
from contraport.options import (
    accept_deprecated_keywords,
    has_object_placeholder,
    keep_deprecated_attributes,
    replace_deprecated_options,
)
from contraport.runs.run_folder import RunFolder
from contraport.training.config import RECORDED_OPTIONS, Settings, check_config_types

if TYPE_CHECKING:
    from contraport.data.split_record import SplitRecord
    from contraport.encoders import Model
    from contraport.encoders.model import Encoders

T = TypeVar("T")

MetricsRow = dict[str, Any]


REEVALUATE = "; run `contraport evaluate` on the run again."

_MAIN_SETTINGS = ("data", "objective", "epochs", "batch_size")
"""Settings that the HTML table in notebooks shows even if they have their default values."""


@dataclass
class _CachedConfig:
    """Cached content of `config.yaml`; `settings` are validated at first use."""

    version: tuple[int, int, int] | None
    values: dict[str, Any]
    settings: Settings | None = None


@keep_deprecated_attributes(
    items="item_metric_values",
    item_values="item_metric_values",
    model_epochs="num_trained_epochs",
    model_warning="earlier_epoch_warning",
    pairs="pair_scores",
    partners="mismatched_partners",
    samples="page_arrays",
    split="split_record",
)
class Run(RunFolder):
    """Run folder of one training, with methods that read and write its files.

    Creating a `Run` touches no file. Methods that read raise `UsageError` if the folder is not a run, or the file is
    missing or corrupt; methods that write raise it if the folder is not writable or the disk is full.

    Args:
        path: the run folder.
        encoder: the encoder module that was passed to `contraport.train`, or one per view, if it was not a named
            encoder; the folder stores no code. Runs returned by `contraport.train` have it.
        owner: command that the training is a part of, such as "audit", which resumes it; empty for none.

    >>> Run("runs/demo/nt-xent").name
    'nt-xent'
    """

    def __init__(self, path: str | Path, encoder: Encoders = None, *, owner: str = "") -> None:
        super().__init__(path)
        self.encoder = encoder
        self.owner = owner
        self._cached_config: _CachedConfig | None = None

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}{'' if self.path.exists() else ', missing'})"

    def _repr_html_(self) -> str:
        """Return an HTML table of the main settings, the non-default settings and the last metrics."""
        try:
            config = {name: value for name, value in self.config().items() if value is not None}
            settings = {
                name: value for name, value in config.items() if name in _MAIN_SETTINGS or not _is_default(name, value)
            }
            rows = self.metrics() if self.metrics_path.exists() else []
        except UsageError as error:
            return format_html_mapping(repr(self), {}, str(error))
        last = {f"last {name}": _format_value(value) for name, value in (rows[-1] if rows else {}).items()}
        note = "Settings not shown have their default values." if rows else "No metrics yet."
        return format_html_mapping(repr(self), settings | last, note)

    @property
    def resume_command(self) -> str:
        """Command line that resumes the training; a Python call if some options were Python objects.

        It trusts the encoder code that the run itself was given.
        """
        from contraport.encoders.factory import list_custom_code_encoders

        if self.owner:
            return f"repeat the {self.owner} with {format_options(resume=True)}"
        config: dict[str, Any] = {}
        with suppress(UsageError):  # this text is part of a message about another file
            config = self.config()
        objects = [name for name, value in config.items() if has_object_placeholder(value)]
        trusting = bool(list_custom_code_encoders(config.get("encoder"))) and "encoder" not in objects
        if not objects:
            flags = "--resume --trust_remote_code" if trusting else "--resume"
            return f"contraport train {flags} --out {shlex.quote(str(self.path))}"
        arguments = [f"out={str(self.path)!r}", *["trust_remote_code=True"] * trusting]
        arguments += [f"{name}=..." for name in objects]
        return f"contraport.train(resume=True, {', '.join(arguments)}) in Python, with the same objects"

    @contextmanager
    def translate_write_errors(self) -> Iterator[None]:
        """Context manager that turns an `OSError` into a `UsageError`; its message has the command to resume."""

        def remedy() -> str:
            if not self.last_checkpoint.exists():
                return ""
            return f" The last checkpoint is intact. Fix the cause, then resume: {self.resume_command}"

        with report_write_errors("out", self.path, remedy):
            yield

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, Any], *, overwrite: bool = False) -> Run:
        """Create a run folder with a `config.yaml` and an empty folder `checkpoints/`.

        With `overwrite` the files of an older run are moved to a backup; files that do not belong to a run are never
        touched.

        Raises:
            UsageError: `path` is a file; or it is not empty, and `overwrite` is false or it is not a run folder.
        """
        run = cls(path)
        run.check_accepts_new_run(overwrite=overwrite)
        run.backup.finish_interrupted_operation()
        if run.config_path.exists():
            run.backup.move_to_backup()
        run.checkpoints.mkdir(parents=True, exist_ok=True)  # an existing one is empty: checked above
        write_text(run.config_path, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
        return run

    def check_accepts_new_run(self, *, overwrite: bool = False) -> None:
        """Raise `UsageError` unless a new run may be written to this folder; see `create`.

        A folder to replace must have the options of a run in its `config.yaml`, and checkpoints or metrics: a user or
        another tool may have written such a file too.
        """
        super().check_accepts_new_run(overwrite=overwrite)
        if self.config_path.exists():
            names = self.config().keys()
            message = f"out: {self.config_path} is not that of a run, so {self.path} is not replaced. Choose another."
            marks = (self.checkpoints, self.metrics_path, self.backup.path)
            is_own = bool(names) and names <= RECORDED_OPTIONS.keys() and any(path.exists() for path in marks)
            check(is_own, message, "not_a_run")

    def config(self) -> dict[str, Any]:
        """Read the keyword arguments of the training from `config.yaml`."""
        return copy.deepcopy(self._load_config().values)

    def settings(self, **changes: Any) -> Settings:
        """Read the settings of the training; `changes` replace some of them."""
        config = self._load_config()
        if config.settings is None:
            try:
                names = RECORDED_OPTIONS.keys() & config.values.keys()
                config.settings = Settings(**{name: config.values[name] for name in names})
            except UsageError as error:
                raise UsageError(f"run: {self.config_path} is corrupt: {error}", kind="corrupt") from error
        return replace(config.settings, **changes) if changes else config.settings

    def _load_config(self) -> _CachedConfig:
        """Return the content of `config.yaml` from a cache; the file is read again only if it changed.

        Evaluation and reports use the settings many times; reading and checking them each time dominated their start.
        """
        version = _file_fingerprint(self.config_path)
        if self._cached_config is None or version is None or self._cached_config.version != version:
            self.check_is_run()
            values = read_run_file(self.config_path, lambda path: yaml.safe_load(path.read_text("utf-8")))
            check(isinstance(values, dict), f"run: {self.config_path} is corrupt: must be a mapping.", "corrupt")
            values = replace_deprecated_options(RECORDED_OPTIONS, values, warn=False)  # names of earlier versions
            check_config_types(values, self.config_path)
            self._cached_config = _CachedConfig(version, values)
        return self._cached_config

    def metrics(self) -> list[MetricsRow]:
        """Read the rows of `metrics.jsonl`, one per logged step; an incomplete last line is ignored."""
        return self._read_file(self.metrics_path, read_metrics_rows)

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Append one row to `metrics.jsonl`."""
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def write_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace all rows of `metrics.jsonl`."""
        write_text(self.metrics_path, "".join(json.dumps(row) + "\n" for row in rows))

    @accept_deprecated_keywords(trust_remote_code="trust")
    def model(self, *, trust_remote_code: bool = False) -> Model:
        """Load the trained model, in evaluation mode, on the CPU.

        Args:
            trust_remote_code: import and run an encoder that the run names as ``module:attribute``.
        """
        return self._load_model(self.model_path, trust_remote_code=trust_remote_code)

    def save_model(self, model: Model, *, epochs: int, planned_epochs: int | None = None) -> None:
        """Write the trained model and its number of epochs, and delete the evaluation of an earlier model.

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

    def save_initial_model(self, model: Model, *, has_random_weights: bool = False) -> None:
        """Write the initial model, so that the training can resume without the source of its weights.

        If its weights are random, only tokenizer and architecture of transformers models are written.
        """
        with self.translate_write_errors():
            if has_random_weights:
                model.save_encoder_configs(self.initial_path)
            else:
                _save_model_files(model, self.initial_path)

    @accept_deprecated_keywords(trust_remote_code="trust")
    def initial_model(self, *, trust_remote_code: bool = False) -> Model | None:
        """Load the initial model; None if its weights were random."""
        from contraport.encoders.model import CONFIG_FILE

        if not (self.initial_path / CONFIG_FILE).exists():
            return None
        return self._load_model(self.initial_path, trust_remote_code=trust_remote_code)

    def num_trained_epochs(self) -> int | None:
        """Return the number of epochs that the saved model was trained for; None if it is not recorded."""
        return self._read_epoch_counts()[0]

    def _read_epoch_counts(self) -> tuple[int | None, int | None]:
        """Read the numbers of trained and of planned epochs of the saved model; (None, None) if not recorded."""
        if not self.trained_path.exists():
            return None, None

        def read(path: Path) -> tuple[int, int]:
            record = json.loads(path.read_text("utf-8"))
            return int(record["epochs"]), int(record.get("planned", record["epochs"]))

        return read_run_file(self.trained_path, read)

    def earlier_epoch_warning(self) -> str | None:
        """Return a warning if the saved model is not that of the last epoch, else None."""
        (epochs, planned_before), planned = self._read_epoch_counts(), self.settings().epochs
        if epochs is None or planned_before is None:
            return f"The epoch of the model in {self.model_path} is not recorded."
        if planned_before >= planned:
            return None
        return (
            f"The model in {self.model_path} is that of epoch {epochs}; the training was extended to {planned} epochs "
            "and is not complete."
        )

    def model_config(self) -> dict[str, Any]:
        """Read the configuration of the trained model: encoder, shapes, projection and normalization."""
        config = self._read_file(self.model_path / "config.json", lambda path: json.loads(path.read_text("utf-8")))
        check(isinstance(config, dict), f"run: {self.model_path}/config.json is corrupt: must be an object.", "corrupt")
        return dict(config)

    def evaluation(self) -> dict[str, Any]:
        """Read the results of `contraport.evaluate` from `evaluation.json`."""
        return self._read_file(self.evaluation_path, read_evaluation, REEVALUATE)

    def page_arrays(self) -> dict[str, np.ndarray]:
        """Read the arrays that `contraport.evaluate` wrote for the HTML page, by name."""
        return self._read_file(self.samples_path, read_arrays, REEVALUATE)

    def item_metric_values(self) -> dict[str, np.ndarray]:
        """Read the values per test item, ``(n,)`` or ``(n, k)``, of each metric that is a mean over items."""
        return self._read_file(self.items_path, read_arrays, REEVALUATE)

    def save_pair_scores(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the pair scores of the online audit."""
        with self.translate_write_errors():
            write_arrays(self.pairs_path, arrays)

    def pair_scores(self) -> dict[str, np.ndarray]:
        """Read the last pair scores of the online audit of `n` pairs.

        Per pair, ``(n,)``: `scores`, `fdr`, `kept`, and after the last epoch `partners`, `partner_scores` and
        `partner_confidences`. Scores of the decoys: `mismatched`. Without dimensions: `epoch`, `rate`, `low`, `high`
        and `remembered`. See `contraport.auditing.Audit`.
        """
        return self._read_file(self.pairs_path, read_arrays)

    def save_view_scores(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the scores of the online audit of three or more views."""
        with self.translate_write_errors():
            write_arrays(self.view_scores_path, arrays)

    def view_scores(self) -> dict[str, np.ndarray]:
        """Read the last scores of the online audit of `n` items in three or more views.

        Per item and view, ``(n, k)``: `view_scores`, the log odds that the view belongs to the item, and `kept_views`,
        whether it is trained on. Per item and pair of views, ``(n, pairs)``: `pair_scores`. Estimated shares:
        `view_rates` of wrong views, ``(k,)``, and `pair_rates` of mismatches. Without dimensions: `epoch` and
        `remembered`. The views are in the order of `view_names`.
        """
        return self._read_file(self.view_scores_path, read_arrays)

    def save_split_record(self, record: SplitRecord) -> None:
        """Write the digests of the training and held-out items."""
        with self.translate_write_errors():
            write_arrays(self.split_path, record.to_arrays())

    def split_record(self) -> SplitRecord | None:
        """Read the digests of the training and held-out items; None for a stream or a run of version 0.1.0."""
        from contraport.data.split_record import SplitRecord

        self.check_is_run()
        if not self.split_path.exists():
            return None
        return read_run_file(self.split_path, lambda path: SplitRecord.from_arrays(read_arrays(path)))

    def save_mismatched_partners(self, partners: np.ndarray) -> None:
        """Write the partner of each training item, if pairs are mismatched on purpose."""
        with self.translate_write_errors():
            write_arrays(self.mismatched_path, {"partners": partners})

    def mismatched_partners(self) -> np.ndarray:
        """Read the partner of each training item, ``(n,)``, if pairs are mismatched on purpose.

        The partner is the item itself if its pair is correct.
        """
        return self._read_file(self.mismatched_path, read_arrays)["partners"]

    def _read_file(self, path: Path, reader: Callable[[Path], T], remedy: str = ".") -> T:
        self.check_is_run()
        return read_run_file(path, reader, remedy)

    def _load_model(self, path: Path, *, trust_remote_code: bool) -> Model:
        # Imported here: reading metrics requires neither encoders nor the client of the Hugging Face hub.
        from contraport.encoders import Model

        return self._read_file(
            path, lambda path: Model.from_pretrained(path, trust_remote_code=trust_remote_code, encoder=self.encoder)
        ).eval()


def as_run(folder: str | Path | Run) -> Run:
    """Return the `Run` of a folder; a `Run` is returned unchanged."""
    return folder if isinstance(folder, Run) else Run(folder)


def as_different_runs(argument: str, folders: Sequence[str | Path | Run]) -> list[Run]:
    """Return the `Run` of each run folder; raise `UsageError` if there is none, or one is named twice."""
    check(len(folders) > 0, f"{argument}: must name at least one run folder, got none.", "missing")
    runs = [as_run(folder) for folder in folders]
    counts = Counter(run.path.resolve() for run in runs)
    repeated = dict.fromkeys(str(run.path) for run in runs if counts[run.path.resolve()] > 1)
    check(not repeated, f"{argument}: names the same run twice: {', '.join(repeated)}.", "repeated")
    return runs


def read_run_file(path: Path, reader: Callable[[Path], T], remedy: str = ".") -> T:
    """Read a file of a run folder with a reader; errors become a `UsageError`.

    Any exception of the reader means that the file is corrupt; `remedy` ends the message.
    """
    if not path.exists():
        remedies = {
            **dict.fromkeys(("evaluation.json", "samples.npz", "items.npz"), ": run `contraport evaluate` first"),
            "pairs.npz": f": only a training on two views with {format_options(audit=True)} writes it",
            "view_scores.npz": f": only a training on more than two views with {format_options(audit=True)} writes it",
            "mismatched.npz": f": only a training with {format_options(mismatch=...)} writes it",
            "model": f": its training is not complete; continue it with {format_options(resume=True)}",
        }
        message = f"run: {path.parent} has no {path.name}{remedies.get(path.name, '')}."
        raise UsageError(message, kind="missing_file")
    try:
        return reader(path)
    except UsageError:
        raise
    except Exception as error:  # on corrupt bytes the parsers raise arbitrary exceptions
        raise UsageError(f"run: {path} is corrupt: {one_line_reason(error)}{remedy}", kind="corrupt") from error


def read_metrics_rows(path: Path) -> list[MetricsRow]:
    """Read the rows of a `metrics.jsonl`; an incomplete last line is ignored."""
    rows = []
    for number, line in enumerate(path.read_text("utf-8").split("\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"run: {path} is corrupt: line {number} is not JSON.", kind="corrupt") from error
        good = is_nested_number_mapping(row, depth=1) and type(row.get("step")) is int
        check(good, f"run: {path} is corrupt: line {number} must be an object of numbers with a step.", "corrupt")
        rows.append(row)
    return rows


def is_nested_number_mapping(values: Any, *, depth: int) -> bool:
    """Return whether a JSON value is a mapping, or nested mappings of the given depth, of numbers or null.

    >>> is_nested_number_mapping({"raw": {"knn": 0.5}}, depth=2), is_nested_number_mapping({"raw": 0.5}, depth=2)
    (True, False)
    """
    if not isinstance(values, dict):
        return False
    for each in values.values():
        is_number = each is None or (isinstance(each, int | float) and not isinstance(each, bool))
        if not (is_number if depth == 1 else is_nested_number_mapping(each, depth=depth - 1)):
            return False
    return True


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read an `evaluation.json`: metrics by encoder, intervals and notes."""
    values = json.loads(path.read_text("utf-8"))
    good = isinstance(values, dict) and is_nested_number_mapping(values.get("rows"), depth=2)
    check(good, f"run: {path} is corrupt: expected an object with 'rows' of numbers{REEVALUATE}", "corrupt")
    for name, value in values.items():
        if name in ("intervals", "differences", "directions"):
            good = is_nested_number_mapping(value, depth=3)
        elif name in ("data", "notes", "not_measured"):
            good = isinstance(value, str if name == "data" else list)
        elif name in ("train_items", "test_items", "uniformity_items", "pairs_of_runs", "epochs"):
            good = type(value) is int or (name == "epochs" and value is None)
        check(good, f"run: {path} is corrupt: {name}{REEVALUATE}", "corrupt")
    return dict(values)


_ARRAY_NAMES_BY_TYPE = {
    (0, "f"): ("rate", "low", "high", "remembered"),
    (0, "iu"): ("plan_items", "epoch"),
    (0, "U"): ("projection", "fingerprint"),
    (1, "b"): ("kept",),
    (2, "b"): ("kept_views",),
    (1, "f"): (
        "spectrum",
        "losses",
        "suspicion",
        "scores",
        "mismatched",
        "fdr",
        "partner_scores",
        "partner_confidences",
        "view_rates",
        "pair_rates",
    ),
    (1, "iu"): ("labels", "plan_labels", "cosine_labels", "plan_epochs", "ids", "domains", "partners", "train", "test"),
    (1, "U"): ("class_names", "domain_names", "texts", "view_names"),
    (2, "f"): ("points", "plan", "target", "cosines", "view_scores", "pair_scores"),
    (2, "iu"): ("neighbors", "confusion"),
    (3, "f"): ("plans", "targets"),
    (4, "u"): ("thumbnails", "plan_view_1", "plan_view_2"),
}
"""Names of the arrays in the .npz files of a run, by expected number of dimensions and NumPy type codes."""


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file of a run; nothing is unpickled, and their dimensions and types are checked."""
    if not zipfile.is_zipfile(path):
        raise ValueError("not an .npz file")
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("it has entries that are not arrays")
    for (dimensions, kinds), names in _ARRAY_NAMES_BY_TYPE.items():
        for name, array in ((name, arrays[name]) for name in names if name in arrays):
            if array.ndim != dimensions or array.dtype.kind not in kinds:
                raise ValueError(f"{name!r} is not an array of {dimensions} dimensions and type {kinds}")
    return arrays


def _file_fingerprint(path: Path) -> tuple[int, int, int] | None:
    """Return inode, modification time and size of a file, which change with its content; None if it does not exist.

    The inode, since a file is replaced as a whole, possibly within the resolution of the modification time.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _save_model_files(model: Model, target: Path) -> None:
    """Write the files of a model; each file is replaced atomically."""
    from safetensors import SafetensorError

    try:
        with atomic_write_folder(target) as folder:
            model.save_pretrained(folder)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def _is_default(name: str, value: object) -> bool:
    return name in RECORDED_OPTIONS and value == RECORDED_OPTIONS[name].serialize(RECORDED_OPTIONS[name].default)


def _format_value(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value
