"""Training run read from its folder, with settings, metrics, model and evaluation."""

from __future__ import annotations

import copy
import json
import math
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import yaml

from contraport._utils.files import read_npz_arrays
from contraport._utils.formatting import format_options, pluralize
from contraport._utils.lazy_imports import import_object
from contraport._utils.notebook_tables import format_html_mapping
from contraport.errors import UsageError, check, check_regular_file, one_line_reason
from contraport.options import (
    accept_deprecated_keywords,
    has_object_placeholder,
    keep_deprecated_attributes,
    replace_deprecated_options,
)
from contraport.training.config import RECORDED_OPTIONS_BY_NAME, Settings, check_config_types

if TYPE_CHECKING:
    from contraport.encoders import Model
    from contraport.encoders.model import Encoders
    from contraport.evaluation.evaluation_results import Evaluation

FileContentT = TypeVar("FileContentT")

MetricsRow = dict[str, Any]
"""Row of `metrics.jsonl`: step, epoch, seconds, loss and other values, by name."""

REEVALUATE_REMEDY = "; run `contraport evaluate` on the run again."
"""End of the error messages about a corrupt evaluation."""


@dataclass
class _CachedConfig:
    """Cached content of `config.yaml`, and settings built at first use."""

    file_version: tuple[int, int, int] | None
    values: dict[str, Any]
    settings: Settings | None = None


@keep_deprecated_attributes(metrics="metrics_rows", pairs="pair_scores")
class Run:
    """Training run in a folder, with its settings, metrics, model and evaluation.

    Creating a `Run` touches no file. Methods raise `UsageError` if the folder is not a run, or the file is missing or
    corrupt.

    Args:
        path: the run folder.
        encoder: the encoder module that was passed to `contraport.train`, or one per view, if it was not a named
            encoder; the folder stores no code. Runs returned by `contraport.train` have it.

    >>> Run("runs/demo/nt-xent").name
    'nt-xent'
    """

    def __init__(self, path: str | Path, encoder: Encoders = None) -> None:
        self.path = Path(path)
        self.encoder = encoder
        self._trust_remote_code = False
        self._cached_config: _CachedConfig | None = None
        self._cached_model: tuple[tuple[int, int, int] | None, Model] | None = None

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self.path.resolve().name

    def __repr__(self) -> str:
        state = "trained" if (self.path / "model").exists() else "not complete"
        try:
            settings = self.settings()
            epochs = pluralize(settings.epochs, "epoch")
            state = f"{settings.recipe_or_objective_name} on {settings.data}, {epochs}, {state}"
        except UsageError:
            if not self.path.exists():
                state = "missing"
            else:
                state = "unreadable" if (self.path / "config.yaml").exists() else "not a run folder"
        return f"Run({str(self.path)!r}, {state})"

    def _repr_html_(self) -> str:
        """Return an HTML table of the main settings and the last metrics."""
        try:
            defaults = {name: option.serialize(option.default) for name, option in RECORDED_OPTIONS_BY_NAME.items()}
            defaults |= dict.fromkeys(("data", "objective", "epochs", "batch_size"))  # always shown
            settings = {
                name: value
                for name, value in self.config().items()
                if value is not None and (name not in defaults or value != defaults[name])
            }
            rows = self.metrics_rows() if (self.path / "metrics.jsonl").exists() else []
        except UsageError as error:
            return format_html_mapping(repr(self), {}, str(error))
        numbers = (rows[-1] if rows else {}).items()
        last = {f"last {name}": f"{value:.6g}" if isinstance(value, float) else value for name, value in numbers}
        note = "Settings not shown have their default values." if rows else "No metrics yet."
        return format_html_mapping(repr(self), settings | last, note)

    @property
    def resume_command(self) -> str:
        """Command line, or Python call, that resumes the training.

        It is a call if options are objects. It trusts the encoder code that the run itself was given.
        """
        from contraport.encoders.factory import list_import_path_encoders

        config: dict[str, Any] = {}
        with suppress(UsageError):  # this text is part of a message about another file
            config = self.config()
        objects = [name for name, value in config.items() if has_object_placeholder(value)]
        trusting = bool(list_import_path_encoders(config.get("encoder"))) and "encoder" not in objects
        if not objects:
            flags = "--resume --trust_remote_code" if trusting else "--resume"
            return f"contraport train {flags} --out {shlex.quote(str(self.path))}"
        arguments = [f"out={str(self.path)!r}", *["trust_remote_code=True"] * trusting]
        arguments += [f"{name}=..." for name in objects]
        return f"contraport.train(resume=True, {', '.join(arguments)}) in Python, with the same objects"

    def config(self) -> dict[str, Any]:
        """Read the options from `config.yaml`, as keyword arguments of `contraport.train`."""
        return copy.deepcopy(self._get_cached_config().values)

    def settings(self, **changes: Any) -> Settings:
        """Return the run's training settings, updated with `changes`."""
        config = self._get_cached_config()
        if config.settings is None:
            try:
                names = RECORDED_OPTIONS_BY_NAME.keys() & config.values.keys()
                config.settings = Settings(**{name: config.values[name] for name in names})
            except UsageError as error:
                raise UsageError(f"run: {self.path / 'config.yaml'} is corrupt: {error}", kind="corrupt") from error
        return replace(config.settings, **changes) if changes else config.settings

    def _get_cached_config(self) -> _CachedConfig:
        """Return the content of `config.yaml`, cached until the file changes.

        Evaluation and reports use the settings many times; reading and checking them each time dominated their start.
        """
        file = self.path / "config.yaml"
        version = _find_file_version(file)
        if self._cached_config is None or version is None or self._cached_config.file_version != version:
            check_run_folder(self.path)
            values = read_run_file(file, lambda path: yaml.safe_load(path.read_text("utf-8")))
            check(isinstance(values, dict), f"run: {file} is corrupt: must be a mapping.", "corrupt")
            values = replace_deprecated_options(
                RECORDED_OPTIONS_BY_NAME, values, warn=False
            )  # names of earlier versions
            check_config_types(values, file)
            self._cached_config = _CachedConfig(version, values)
        return self._cached_config

    def metrics_rows(self) -> list[MetricsRow]:
        """Read `metrics.jsonl`, one row per logged step, ignoring an incomplete last line."""
        return self._read_file(self.path / "metrics.jsonl", read_metrics_rows)

    @accept_deprecated_keywords(trust="trust_remote_code")
    def model(self, *, trust_remote_code: bool = False) -> Model:
        """Load the trained model, in evaluation mode, on the CPU.

        Args:
            trust_remote_code: import and run an encoder that the run names as ``module:attribute``.
        """
        return self._load_model(self.path / "model", trust_remote_code=trust_remote_code)

    def encode(
        self,
        items: Any,
        *,
        view: str | int | None = None,
        dims: int | None = None,
        normalize: bool = False,
        batch_size: int = 512,
        num_workers: int | None = None,
        device: str = "auto",
        progress: bool = True,
    ) -> np.ndarray:
        """Encode items by the trained model into features ``(n, d)``, float32.

        There is one row per item, in the order of `items`.

        The rows are those of `contraport.embed`. The model is loaded at the first call and kept.

        Args:
            items: items of the kind that the run was trained on: an array ``(n, ...)`` of vectors, images or time
                series; a list of texts, image files or PIL images; a data frame or a `contraport.data.Dataset`. With
                several views: a tuple of one array per view, or a dict of them by name.
            view: encode `items` as this view of the run, given by its name, number or kind, such as "image".
            dims: number of first coordinates of each view's representation to use; default: all.
            normalize: divide each row by its length, so that products of rows are cosine similarities.
            batch_size: number of items loaded at a time. Results do not depend on it.
            num_workers: number of processes that decode images; default: 0 for data in memory, else the number of cores
                minus one.
            device: "auto" (the fastest available), "cpu", "cuda" or another torch device.
            progress: show a progress bar on a terminal.

        Raises:
            UsageError: an invalid argument, items that are not of the run's kind or cannot be read, or a run that is
                not trained to its end.
        """
        options = {"view": view, "dims": dims, "normalize": normalize, "batch_size": batch_size}
        options |= {"num_workers": num_workers, "device": device, "progress": progress}
        encode_items = import_object("contraport.evaluation.embed:encode_items")
        features: np.ndarray = encode_items(self._get_cached_model(), self.settings(), items, **options)
        return features

    def _get_cached_model(self) -> Model:
        """Return the cached trained model, loaded again if its file changed."""
        version = _find_file_version(self.path / "model" / "model.safetensors")
        if self._cached_model is None or version is None or self._cached_model[0] != version:
            self._cached_model = version, self.model(trust_remote_code=self._trust_remote_code)
        return self._cached_model[1]

    def evaluation(self) -> Evaluation:
        """Read the results of `contraport.evaluate` from `evaluation.json`."""
        values = self._read_file(self.path / "evaluation.json", read_evaluation, REEVALUATE_REMEDY)
        evaluation: Evaluation = import_object("contraport.evaluation.evaluation_results:Evaluation")(values)
        return evaluation

    def pair_scores(self) -> dict[str, np.ndarray]:
        """Read the pair scores of the latest audit during training.

        The number of pairs is `n`.

        Per pair, ``(n,)``: `scores`, `fdr`, `kept`, and after the last epoch `partners`, `partner_scores` and
        `partner_confidences`. To join them with the data: `rows`, the row of each pair in the source, from 0, counting
        all splits and skipped rows, and `keys`, if the pairs have names; runs of earlier versions lack both. Scores of
        the decoys: `mismatched`. Without dimensions: `epoch`, `rate`, `low`, `high` and `remembered`. See
        `contraport.auditing.Audit`.
        """
        return self._read_file(self.path / "pairs.npz", read_run_arrays)

    def view_scores(self) -> dict[str, np.ndarray]:
        """Read the view scores of the latest audit during training.

        Only runs with three or more views have them. The number of items is `n`, that of views `k`.

        Per item and view, ``(n, k)``: `view_scores`, the log odds that the view belongs to the item, and `kept_views`,
        whether it is trained on. Per item and pair of views, ``(n, pairs)``: `pair_scores`. Per item: `rows` and
        `keys`, as of `pair_scores`. Estimated shares: `view_rates` of wrong views, ``(k,)``, and `pair_rates` of
        mismatches. Without dimensions: `epoch` and `remembered`. The views are in the order of `view_names`.
        """
        return self._read_file(self.path / "view_scores.npz", read_run_arrays)

    def _read_file(
        self, path: Path, reader: Callable[[Path], FileContentT], corruption_remedy: str = "."
    ) -> FileContentT:
        """Check the run folder, and read one of its files."""
        check_run_folder(self.path)
        return read_run_file(path, reader, corruption_remedy)

    def _load_model(self, path: Path, *, trust_remote_code: bool) -> Model:
        """Load a model of the run in evaluation mode on the CPU."""
        # Imported here: reading metrics requires neither encoders nor the client of the Hugging Face hub.
        from contraport.encoders import Model

        return self._read_file(
            path, lambda path: Model.from_pretrained(path, trust_remote_code=trust_remote_code, encoder=self.encoder)
        ).eval()


def load(run: str | Path | Run, *, encoder: Encoders = None, trust_remote_code: bool = False) -> Run:
    """Load a trained run, as in ``contraport.load("runs/first").encode(images)``.

    Args:
        run: the run folder.
        encoder: the encoder module that was passed to `contraport.train`, as in `Run`.
        trust_remote_code: import and run an encoder that the run names as ``module:attribute``.

    Raises:
        UsageError: the folder is not a run, or its model is missing or corrupt.
    """
    loaded = Run(run.path if isinstance(run, Run) else run, run.encoder if isinstance(run, Run) else encoder)
    loaded._trust_remote_code = trust_remote_code
    loaded._get_cached_model()
    return loaded


def check_run_folder(folder: Path, argument: str = "run") -> None:
    """Raise `UsageError` unless a path is a run folder.

    Its entries must be regular files and folders.
    """
    if folder.is_file():
        raise UsageError(f"{argument}: must be a run folder, got the file {folder}.", kind="not_a_folder")
    check(folder.is_dir(), f"{argument}: there is no folder {str(folder)!r}.", "not_found")
    message = f"{argument}: {folder} is not a run folder of contraport train: it has no config.yaml."
    check((folder / "config.yaml").is_file(), message, "not_a_run")
    for path in folder.rglob("*"):
        if path.is_dir():
            of_transformers = path.parent == folder / "model" and re.fullmatch(r"encoder\d+", path.name)
            if not of_transformers and path.parent in (folder / "checkpoints", folder / "model"):
                raise UsageError(f"{argument}: {path} must be a file, got a folder.", kind="not_a_file")
        elif not path.is_file():
            with suppress(OSError):  # a running training may have deleted it by now; a link may be dangling
                check_regular_file(argument, path)


def read_run_file(path: Path, reader: Callable[[Path], FileContentT], corruption_remedy: str = ".") -> FileContentT:
    """Call `reader` on a run's file, and explain missing or corrupt files.

    A missing or corrupt file raises `UsageError`. Any exception of the reader means that the file is corrupt; the
    message then ends with `corruption_remedy`.
    """
    if not path.exists():
        resume = f"contraport train --resume --out {shlex.quote(str(path.parent))}"
        remedies = {
            **dict.fromkeys(("evaluation.json", "samples.npz", "items.npz"), ": run `contraport evaluate` first"),
            "pairs.npz": f": only a training on two views with {format_options(audit=True)} writes it",
            "view_scores.npz": f": only a training on more than two views with {format_options(audit=True)} writes it",
            "mismatched.npz": f": only a training with {format_options(mismatch=...)} writes it",
            "model": f", as its training is not complete; run {resume}",
        }
        raise UsageError(f"run: {path.parent} has no {path.name}{remedies.get(path.name, '')}.", kind="missing_file")
    try:
        return reader(path)
    except UsageError:
        raise
    except Exception as error:  # on corrupt bytes the parsers raise arbitrary exceptions
        raise UsageError(
            f"run: {path} is corrupt: {one_line_reason(error)}{corruption_remedy}", kind="corrupt"
        ) from error


def read_metrics_rows(path: Path) -> list[MetricsRow]:
    """Read the rows of a `metrics.jsonl`, ignoring an incomplete last line."""
    rows = []
    for number, line in enumerate(path.read_text("utf-8").split("\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"run: {path} is corrupt: line {number}: no JSON; delete it.", kind="corrupt") from error
        good = is_nested_number_mapping(row, depth=1) and type(row.get("step")) is int
        good = good and all(math.isfinite(row.get(name) or 0) for name in ("seconds", "epoch"))
        check(good, f"run: {path} is corrupt: line {number} is no object of numbers with a step; delete it.", "corrupt")
        rows.append(row)
    return rows


def is_nested_number_mapping(values: Any, *, depth: int) -> bool:
    """Return whether a value is a mapping, `depth` levels deep, of numbers or null.

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
    """Read metric values, confidence intervals and notes from an `evaluation.json`."""
    values = json.loads(path.read_text("utf-8"))
    good = isinstance(values, dict) and is_nested_number_mapping(values.get("rows"), depth=2)
    check(good, f"run: {path} is corrupt: expected an object with 'rows' of numbers{REEVALUATE_REMEDY}", "corrupt")
    for name, value in values.items():
        if name in ("intervals", "differences", "directions"):
            good = is_nested_number_mapping(value, depth=3)
            if good and name != "directions":
                keys = {"low", "high"} if name == "intervals" else {"value", "low", "high"}
                entries = [entry for by_metric in value.values() for entry in by_metric.values()]
                good = all(set(entry) == keys and None not in entry.values() for entry in entries)
        elif name in ("data", "notes", "not_measured"):
            good = isinstance(value, str if name == "data" else list)
        elif name in ("train_items", "test_items", "uniformity_items", "pairs_of_runs", "epochs"):
            good = type(value) is int or (name == "epochs" and value is None)
        check(good, f"run: {path} is corrupt: {name}{REEVALUATE_REMEDY}", "corrupt")
    return dict(values)


_ARRAY_NAMES_BY_EXPECTED_NDIM_AND_KIND = {
    (0, "f"): ("rate", "low", "high", "remembered"),
    (0, "iu"): ("plan_items", "epoch"),
    (0, "U"): ("projection", "fingerprint"),
    (1, "b"): ("kept",),
    (2, "b"): ("kept_views",),
    (1, "f"): (
        "spectrum", "losses", "suspicion", "scores", "mismatched", "fdr", "partner_scores", "partner_confidences",
        "view_rates", "pair_rates", "mistaken_sure",
    ),
    (1, "iu"): (
        "labels", "plan_labels", "cosine_labels", "plan_epochs", "ids", "domains", "partners", "train", "test",
        "mistaken", "mistaken_true", "mistaken_told", "worst",
    ),
    (1, "U"): (
        "class_names", "domain_names", "texts", "view_names", "plan_view_names", "mistaken_keys", "mistaken_views",
        "worst_views",
    ),
    (2, "f"): ("points", "plan", "target", "cosines", "view_scores", "pair_scores"),
    (2, "iu"): ("neighbors", "confusion"),
    (3, "f"): ("plans", "targets"),
    (4, "u"): ("thumbnails", "plan_view_1", "plan_view_2"),
}  # fmt: skip
"""Names of the arrays in the .npz files of a run, by expected number of dimensions and NumPy type codes."""


def read_run_arrays(npz_path: Path) -> dict[str, np.ndarray]:
    """Read an .npz file of a run, checking dimensions and types.

    Nothing is unpickled.
    """
    arrays = read_npz_arrays(npz_path)
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("it has entries that are not arrays")
    for (dimensions, kinds), names in _ARRAY_NAMES_BY_EXPECTED_NDIM_AND_KIND.items():
        for name, array in ((name, arrays[name]) for name in names if name in arrays):
            if array.ndim != dimensions or array.dtype.kind not in kinds:
                raise ValueError(f"{name!r} is not an array of {dimensions} dimensions and type {kinds}")
    return arrays


_EQUAL_LENGTH_PAGE_ARRAY_GROUPS = (
    ("points", "ids", "neighbors", "labels", "domains", "thumbnails", "texts", "losses", "suspicion"),
    ("cosines", "cosine_labels"),
    ("plan_labels", "plan_view_1", "plan_view_2"),
    ("plan_epochs", "plans", "targets"),
    ("mistaken", "mistaken_true", "mistaken_told", "mistaken_sure", "mistaken_keys", "mistaken_0", "mistaken_1"),
    ("worst", "worst_1", "worst_2", "worst_better"),
)
"""Groups of arrays of `samples.npz`, by name, that have the same length."""


def read_page_arrays(samples_path: Path) -> dict[str, np.ndarray]:
    """Read a `samples.npz` and check that the report page can show it."""
    arrays = read_run_arrays(samples_path)

    def require(condition: object, name: str, expected: str) -> None:
        if not condition:
            raise ValueError(f"{name!r} must be {expected}")

    for names in _EQUAL_LENGTH_PAGE_ARRAY_GROUPS:
        sizes = {len(arrays[name]) for name in names if name in arrays}
        require(len(sizes) <= 1 and 0 not in sizes, names[0], f"as long as {', '.join(names[1:])}, and not empty")
    for name in ("points", "cosines", "spectrum", "plan", "target", "plans", "targets", "mistaken_sure"):
        require(name not in arrays or np.isfinite(arrays[name]).all(), name, "finite")
    for name in ("cosines", "confusion"):
        require(name not in arrays or len(set(arrays[name].shape)) == 1, name, "a square matrix")
    for name, other in (("plan", "target"), ("plans", "targets")):
        shapes = {arrays[key].shape if key in arrays else None for key in (name, other)}
        require(len(shapes) == 1, name, f"of the shape of {other!r}")
    classes = len(arrays["class_names"]) if "class_names" in arrays else np.inf
    limits = {"labels": classes, "plan_labels": classes, "cosine_labels": classes}
    limits |= {"domains": len(arrays.get("domain_names", ())), "neighbors": len(arrays.get("points", ()))}
    limits |= dict.fromkeys(("mistaken_true", "mistaken_told"), len(arrays.get("confusion", ())))
    for name, limit in limits.items():
        values = arrays.get(name, np.zeros(0))
        require(((values >= 0) & (values < limit)).all(), name, f"from 0 to below {limit}")
    if "plan" in arrays:
        items = int(arrays.get("plan_items", 0))
        require(items > 0, "plan_items", "positive")
        for name in ("plan_labels", "plan_view_1", "plan_view_2"):
            require(len(arrays.get(name, range(items))) == items, name, f"of {items} items")
    if "mistaken" in arrays:
        views = [f"mistaken_{number}" for number in range(len(arrays.get("mistaken_views", ())))]
        needed = {"mistaken_true", "mistaken_told", "mistaken_sure", "mistaken_views", *views}
        require(views and needed <= arrays.keys(), "mistaken", f"with {', '.join(sorted(needed))}")
    require("labels" in arrays or not {"plan_labels", "cosine_labels"} & arrays.keys(), "labels", "among the arrays")
    return arrays


def _find_file_version(path: Path) -> tuple[int, int, int] | None:
    """Return a file's inode, modification time and size, or None if missing.

    The inode, since a file is replaced as a whole, possibly within the resolution of the modification time.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
