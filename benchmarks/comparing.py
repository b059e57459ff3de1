"""Runs suites of benchmarks/suites one after the other and saves their results: python -m benchmarks.comparing.

Other options are passed to `contraport compare`: `--quick`, `--data fashion-mnist`, `--budget 30m`.
`benchmarks/results/suites/NAME-DATA.json` is the `results.json` of the comparison, from which `make docs` writes
docs/accuracy.md and docs/choosing.md; with `--tune` it is `NAME-DATA-tuned.json`, and of a suite's full number of items
`NAME-DATA-10000.json`, so that neither writes over its small form. A suite that was stopped, or that the budget was too
short for, goes on.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import ImageFont
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from contraport import embed, train
from contraport._utils.files import write_npz
from contraport.cli import main as contraport
from contraport.comparison.grid_builder import get_suites_folder, load_suite
from contraport.data import load

RESULTS = Path("benchmarks/results/suites")
MADE = Path("runs/suites")
LANGUAGES = ("en", "de", "fr", "es", "it", "pt")
"""Languages of the names of emoji."""
HALVES = {"train": 2_000, "test": 1_000}
"""Largest number of images of the suite `halves`, by split."""


def write_teacher(path: Path) -> None:
    """Write the teacher file of the suite `teacher`: edge features of its training images."""
    with tempfile.TemporaryDirectory() as folder:
        args = {key: load_suite("teacher")[key] for key in ("max_items", "data")}
        run = train(
            data=args["data"][0],
            max_items=args["max_items"],
            encoder="gradients",
            freeze=True,
            epochs=1,
            out=f"{folder}/run",
        )
        embed(run, split="train", out=path)


def write_halves(data: str, path: Path) -> None:
    """Write the data of the suite `halves`: each half of an image as a view, in vectors.

    Digits are cut into left and right. Clothes look much alike on both sides: they are cut into top and bottom.
    """
    arrays: dict[str, np.ndarray] = {}
    for split, items in HALVES.items():
        dataset, across = load(data, split), 2
        batch = dataset.__getitems__(np.random.default_rng(0).permutation(len(dataset))[:items].tolist())
        images = batch.views[0][:, 0].float() / 255
        if data == "fashion-mnist":
            images, across = torch.nn.functional.avg_pool2d(images, 2), 1
        parts = images.chunk(2, dim=across)
        end = "_test" * (split == "test")
        arrays |= {f"view{number}{end}": part.flatten(1).numpy() for number, part in enumerate(parts)}
        arrays[f"labels{end}"] = batch.labels.numpy()
    write_npz(path, arrays)


def write_emoji(path: Path) -> None:
    """Write the data of the suite `emoji`: a vector of each emoji's picture, and one of its name in each language.

    Needs the package `emoji` and the font of `examples/emoji_table.py`. Pictures are 16 x 16 pixels in color, names
    are tf-idf of 2 to 4 letters, both reduced to 128 numbers.
    """
    from examples.emoji_table import BITMAP, FONT, JOINER, load_names, render

    font, pictures, names = ImageFont.truetype(FONT, BITMAP), [], []
    seen: set[bytes] = set()
    for character, of_languages in load_names().items():
        picture = None if JOINER in character else render(character, font, 16)
        if picture is None or picture.tobytes() in seen or not set(LANGUAGES) <= of_languages.keys():
            continue
        seen.add(picture.tobytes())
        pictures.append(np.asarray(picture).reshape(-1) / 255)
        names.append(of_languages)
    vectors = {"picture": PCA(128, random_state=0).fit_transform(np.stack(pictures))}
    for language in LANGUAGES:
        letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True, min_df=2)
        counts = letters.fit_transform([name[language] for name in names])
        vectors[language] = TruncatedSVD(128, random_state=0).fit_transform(counts)
    write_npz(path, {name: (values / values.std()).astype(np.float32) for name, values in vectors.items()})


FILES: dict[str, dict[str, Callable[[Path], None]]] = {
    "teacher": {"teacher.npz": write_teacher},
    "emoji": {"emoji.npz": write_emoji},
    "halves": {f"{data}-halves.npz": functools.partial(write_halves, data) for data in ("digits", "fashion-mnist")},
}
"""Functions that write the data files of a suite, in `runs/suites`, by suite and file name."""


def save_results(folder: Path) -> Path:
    """Save the results of a comparison, without the locations of its trainings, and return the path."""
    result = json.loads((folder / "results.json").read_text())
    result["cells"] = [{key: cell[key] for key in cell if key != "options"} for cell in result["cells"]]
    args = result["asked"]
    parts = [result["suite"], *(Path(data).stem for data in args["data"])]
    parts += [str(args["max_items"])] * (args["max_items"] is not None and not args["quick"])
    parts += ["tuned"] * bool(result["trials"])
    path = RESULTS / f"{'-'.join(parts)}.json"
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return path


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=__doc__.split("\n\n")[1])
    runnable = [file.stem for file in sorted(get_suites_folder().glob("*.yaml")) if "not_run" not in load_suite(file)]
    parser.add_argument("suites", nargs="*", help=f"by name, of {', '.join(runnable)}; default: all")
    parser.add_argument("--out", type=Path, default=Path("runs/suites"))
    args, options = parser.parse_known_args(arguments)
    for name in args.suites or runnable:
        for file, write in FILES.get(name, {}).items():
            if not (MADE / file).exists():
                MADE.mkdir(parents=True, exist_ok=True)
                write(MADE / file)
        folder = args.out / name
        if code := contraport(["compare", "--suite", name, *options, "--out", str(folder)]):
            raise SystemExit(code)
        print(f"written: {save_results(folder)}")


if __name__ == "__main__":
    main()
