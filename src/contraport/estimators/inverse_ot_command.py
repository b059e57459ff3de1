"""Implements `contraport inverse-ot`, which learns a cost from an observed coupling."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from contraport._utils.files import read_npy_array, stage_files, write_npz
from contraport._utils.formatting import pluralize
from contraport.data import Dataset
from contraport.data.array_datasets import as_array
from contraport.data.coupling_datasets import EntityPairStore
from contraport.data.formats.coupling_folder import looks_like_coupling_folder
from contraport.data.sources.load import load_split_or_all_items
from contraport.embedding import LoaderConfig, extract_raw_input_features
from contraport.errors import (
    UsageError,
    check,
    check_existing_file,
    check_new_or_empty_folder,
    rename_argument,
    translate_write_errors,
    unreadable_error,
)
from contraport.estimators.command_options import INVERSE_OT_COMMAND_SPEC, InverseOTOptions
from contraport.estimators.inverse_ot import InverseOT
from contraport.feature_files import as_features
from contraport.plots import couplings as draw_couplings

log = logging.getLogger("contraport.estimators")

MAX_COUPLING_ENTRIES = 25_000_000
"""Maximum number of entries of a coupling, rows times columns, as its plan is a dense matrix."""

FEATURE_OPTION_NAMES = ("row_features", "column_features")  # options with the features of the two sides of a coupling


class LearnedCost(NamedTuple):
    """Result of `contraport inverse-ot`, with the learned cost and its transport plan.

    Attributes:
        cost: learned cost, ``(n, m)``, with row and column means subtracted because the plan does not determine them.
        plan: transport plan of the cost, ``(n, m)``, of total mass 1.
        affinity: affinity matrix A of the features, ``(p, q)``.
        row_positions: index in the given coupling of each row that has mass, ``(n,)``.
        column_positions: index in the given coupling of each column that has mass, ``(m,)``.
        kl_divergence: divergence of the observed coupling from the plan, nats.
        independent_kl: divergence of the observed coupling from the product of its masses, nats.
        direction_shares: share of each singular value of the affinity matrix in the sum of its singular values,
            the largest first.
        iterations: number of L-BFGS iterations.
        folder: folder of the files, or None.
    """

    cost: np.ndarray
    plan: np.ndarray
    affinity: np.ndarray
    row_positions: np.ndarray
    column_positions: np.ndarray
    kl_divergence: float
    independent_kl: float
    direction_shares: np.ndarray
    iterations: int
    folder: Path | None

    @property
    def explained_share(self) -> float:
        """Share of the mutual information of rows and columns that the cost explains."""
        return 1 - self.kl_divergence / self.independent_kl if self.independent_kl > 1e-12 else 0.0  # 1e-12: rounding

    def __str__(self) -> str:
        n, m = self.plan.shape
        sides = f"{pluralize(n, 'row')} and {pluralize(m, 'column')}"
        kl = f"KL divergence {self.kl_divergence:z.4f} nats, independent {self.independent_kl:z.4f}"
        return f"cost of {sides}: {kl}, explained share {self.explained_share:.1%}"


@INVERSE_OT_COMMAND_SPEC.with_option_parameters
def inverse_ot(arguments: dict[str, Any]) -> LearnedCost:
    """Learn the cost whose entropic transport plan fits an observed coupling.

    Raises:
        UsageError: an invalid argument, features that do not fit the coupling, or a coupling without mass.

    >>> learned = inverse_ot([[0.4, 0.1], [0.1, 0.4]])
    >>> learned.plan.round(4).tolist(), round(learned.explained_share, 3)
    ([[0.4, 0.1], [0.1, 0.4]], 1.0)
    """
    options = InverseOTOptions(**arguments)
    if options.out is not None:
        check_new_or_empty_folder("out", Path(options.out))
    observed, *features = _load_coupling_and_features(options)
    positions = [np.flatnonzero(observed.sum(axis) > 0) for axis in (1, 0)]
    check(len(positions[0]) > 0, "coupling: must have positive mass, got none.", "empty")
    observed = observed[np.ix_(*positions)] / observed.sum()
    x, y = (
        np.eye(len(indices)) if rows is None else _standardize_or_whiten(option, rows[indices], options.components)
        for option, rows, indices in zip(FEATURE_OPTION_NAMES, features, positions, strict=True)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the warning names another argument; see the log below
        estimator = InverseOT(ridge=options.ridge, max_iter=options.iterations).fit(x, y, observed)
    if estimator.n_iter_ == options.iterations:
        log.warning(
            "Stopped after %s iterations; the total error of the row masses is %.3g. To reduce it, increase "
            "iterations or ridge.", f"{options.iterations:,}", estimator.marginal_error_,
        )  # fmt: skip
    affinity: np.ndarray = next(iter(estimator.module_.parameters())).detach().numpy()
    strengths = np.linalg.svd(affinity, compute_uv=False)
    product = np.outer(observed.sum(1), observed.sum(0))
    positive = observed > 0
    result = LearnedCost(
        estimator.cost_,
        estimator.coupling_,
        affinity,
        positions[0],
        positions[1],
        estimator.kl_divergence_,
        float((observed[positive] * np.log(observed[positive] / product[positive])).sum()),
        strengths / (strengths.sum() or 1.0),
        estimator.n_iter_,
        None if options.out is None else Path(options.out),
    )
    if result.folder is not None:
        with translate_write_errors("out", result.folder), stage_files(result.folder) as folder:
            _write_cost_arrays_and_plot(folder, result, observed, x, y)
    return result


def _load_coupling_and_features(options: InverseOTOptions) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Load the coupling matrix, and optional features of its rows and columns."""
    source = options.coupling
    features: dict[str, np.ndarray | None] = dict.fromkeys(FEATURE_OPTION_NAMES)
    if isinstance(source, str | Path) and Path(source).is_dir():
        message = f"coupling: must be a folder with the tables rows, columns and pairs, got {str(source)!r}."
        check(looks_like_coupling_folder(str(source)), message, "no_coupling")
        with rename_argument("coupling", "data"):
            dataset = load_split_or_all_items(source)
        store = dataset.store
        assert isinstance(store, EntityPairStore)
        assert dataset.entity_ids is not None
        shape = (len(store.side_stores[0]), len(store.side_stores[1]))
        _check_matrix_size(*shape)
        observed = np.zeros(shape)
        weights = 1.0 if dataset.weights is None else dataset.weights.numpy()
        np.add.at(observed, tuple(dataset.entity_ids.numpy().T), weights)
        for name, side in zip(FEATURE_OPTION_NAMES, store.side_stores, strict=True):
            if getattr(options, name) is None:
                features[name] = extract_raw_input_features(
                    Dataset(side, name=name, split="train"), LoaderConfig()
                ).numpy()
    else:
        observed = _read_matrix(source)
    bad = np.argwhere(~(np.isfinite(observed) & (observed >= 0)))
    for row, column in bad[:1]:
        count = pluralize(len(bad), "wrong entry", "wrong entries")
        got = f"{observed[row, column]:.4g} in row {row}, column {column}"
        raise UsageError(f"coupling: must be finite and nonnegative, got {got}; {count}.")
    for name, items in zip(FEATURE_OPTION_NAMES, observed.shape, strict=True):
        if (source := getattr(options, name)) is not None:
            with rename_argument(name, "features"):
                loaded = as_features(source)
            message = f"{name}: must have {items} items, as the coupling has, got {len(loaded)}."
            check(len(loaded) == items, message, "shape")
            # `embed` writes training items before test items; row numbers that repeat are those of several sources.
            has_row_order = len(np.unique(loaded.source_rows)) == items
            features[name] = loaded.features[np.argsort(loaded.source_rows)] if has_row_order else loaded.features
    return observed, features["row_features"], features["column_features"]


def _read_matrix(source: Any) -> np.ndarray:
    """Return a matrix from a `.csv` or `.npy` file or an array."""
    matrix = source
    if isinstance(source, str | Path):
        check(Path(source).exists(), f"coupling: there is no file or folder {str(source)!r}.", "not_found")
        check_existing_file("coupling", source)
        suffix = Path(source).suffix
        message = f"coupling: a file must end in .csv or .npy, got {str(source)!r}; write the matrix in one of these."
        check(suffix in (".csv", ".npy"), message, "suffix")
        check(Path(source).stat().st_size > 0, f"coupling: {source} is empty.", "shape")
        if suffix == ".csv":
            _check_no_column_number_heading(Path(source))
        try:
            matrix = np.loadtxt(source, delimiter=",", ndmin=2) if suffix == ".csv" else read_npy_array(source)
        except (ValueError, EOFError, OSError) as error:
            raise unreadable_error(f"coupling: {source}", "a matrix of numbers without a heading", error) from error
    message = f"coupling: must be a dense matrix, got {type(matrix).__name__}; use its method toarray()."
    check(not hasattr(matrix, "toarray"), message, "sparse")
    matrix = as_array("coupling", matrix)
    good = matrix.ndim == 2 and matrix.size > 0 and matrix.dtype.kind in "fiub"
    check(good, f"coupling: must be a matrix of numbers, got {matrix.dtype} of shape {matrix.shape}.", "shape")
    _check_matrix_size(*matrix.shape)
    result: np.ndarray = matrix.astype(np.float64)
    return result


def _check_no_column_number_heading(file: Path) -> None:
    """Raise `UsageError` if the first line is a heading of column numbers: 0,1,2 ..."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        words = [word.strip() for word in lines.readline().split(",")]
    message = f"coupling: {file} must be numbers without a heading, got the first line {','.join(words[:3])}, which "
    message += "numbers the columns. Remove it (header=False in pandas); if it is data, write decimals, as in 0.0."
    check(words != [str(column) for column in range(len(words))], message, "heading")


def _check_matrix_size(num_rows: int, num_columns: int) -> None:
    """Raise `UsageError` for a coupling of more than `MAX_COUPLING_ENTRIES` entries."""
    message = f"coupling: must have at most {MAX_COUPLING_ENTRIES:,} pairs, got {num_rows:,} x {num_columns:,}."
    check(num_rows * num_columns <= MAX_COUPLING_ENTRIES, f"{message} Leave out rare rows and columns.", "too_large")


def _standardize_or_whiten(argument: str, features: np.ndarray, max_components: int) -> np.ndarray:
    """Standardize features, or whiten them to `max_components` dimensions if they are wide."""
    features = np.asarray(features, dtype=np.float64)
    check(bool(np.isfinite(features).all()), f"{argument}: features must be finite.", "not_finite")
    features = features - features.mean(0)
    deviations = features.std(0)
    varying = deviations > 1e-9 * (deviations.max() or 1.0)
    check(bool(varying.any()), f"{argument}: all items have equal features.", "constant")
    features = np.asarray(features[:, varying] / deviations[varying])
    if features.shape[1] <= max_components:
        return features
    left, values, _ = np.linalg.svd(features, full_matrices=False)
    scores: np.ndarray = left[:, :max_components][:, values[:max_components] > 1e-9 * values[0]]
    whitened: np.ndarray = scores * np.sqrt(len(features))
    return whitened


def _write_cost_arrays_and_plot(
    folder: Path, result: LearnedCost, observed: np.ndarray, row_features: np.ndarray, column_features: np.ndarray
) -> None:
    """Write the learned cost to `inverse_ot.npz`, and a plot of the plans to `plans.png`."""
    arrays = {name: getattr(result, name) for name in ("cost", "plan", "affinity", "row_positions", "column_positions")}
    write_npz(folder / "inverse_ot.npz", arrays | {"row_features": row_features, "column_features": column_features})
    left, _, right = np.linalg.svd(result.affinity)
    order = np.ix_(
        np.argsort(row_features @ left[:, 0], kind="stable"), np.argsort(column_features @ right[0], kind="stable")
    )
    plans = {"observed": observed[order], "plan of the learned cost": result.plan[order]}
    figure = draw_couplings(plans, common_scale=True)
    figure.savefig(folder / "plans.png", dpi=200, bbox_inches="tight")
