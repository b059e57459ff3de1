"""Cases of the fuzz tests: changes of the template folder, and the command that runs on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from contraport.catalog import OBJECTIVES, RECIPES
from contraport.cli import main as contraport
from contraport.cli.commands import BUILTIN_COMMANDS, get_command
from contraport.feature_files import read_features, write_features

from .mutations import mutate
from .template import DATA


class Case(NamedTuple):
    """Command of a fuzz case, with its row in the table of results.

    Attributes:
        argv: arguments of the command.
        row: row of the table of results.
        max_file_bytes: largest size that a file can be written with, as on a full disk; None for no limit.
        concurrent: second command, which runs at the same time.
        next_command: command that must succeed afterwards.
        changes: file or folder that a rejected command may change, as it had started to work on it.
        status: expected exit status; None for any status of a success or a usage error.
    """

    argv: list[str]
    row: str
    max_file_bytes: int | None = None
    concurrent: list[str] | None = None
    next_command: list[str] | None = None
    changes: str | None = None
    status: int | None = None


def make_case(kind: str, number: int, seed: int) -> Case:
    """Prepare a case in the working folder, a copy of the template."""
    return KINDS[kind](Random(f"{seed} {kind} {number}"))


JUNK = (
    "", " ", "x", "-1", "0", "1", "2.5", "nan", "inf", "1e999", "9" * 40, "9" * 5_000, "null", "true", "[]", "{a: 1}",
    "é\u202e\U0001f600", "../../..", "/dev/zero", "a:b", "%s", "*x", "&x", "'", "1:0.1", "notes.txt", "run", "~",
)  # fmt: skip

# Values that are likely to be accepted, or to be rejected late. All options also get values of JUNK.
PLAUSIBLE_VALUES = {
    "data": (*DATA, *DATA, "digitz", "run", "missing.npz", "{a,b}.tar", "notes.txt"),
    "recipe": tuple(RECIPES),
    "objective": tuple(OBJECTIVES),
    "temperature": ("0.1", "0.5", "1e-30", "0.5:0.1", "1:0.1:linear", "0.1:0:cosine", "a:b:c"),
    "constraint": ("tighten:every=1", "relax:every=2", "tighten:every=0", "tighten"),
    "target": (
        "pairs", "labels", "domains:alpha=0.1", "neighbors:k=2", "neighbors:k=0", "soft:f.npz", "soft:data.npz",
        "soft:missing.npy", "matrix:data.npz", "matrix:notes.txt", "soft:/dev/zero", "neighbors:features=run",
    ),
    "negatives": ("in-batch", "queue", "bank", "bag"),
    "queue_size": ("1", "8", "64", "999999999999"),
    "bank_negatives": ("1", "8", "64", "999999999999"),
    "momentum": ("0.9", "0.99:1:cosine", "1", "0:0"),
    "predictor": ("true", "false", "maybe"),
    "prototypes": ("2", "8", "1"),
    "predict": ("l1", "l2", "l3"),
    "views": ("1", "2", "3", "color", "multi-crop", "frames", "frames:3", "2+1", "0+6", "99999999999"),
    "augment": ("none", "weak", "standard", "strong", "noise", "mixup", "wild", "noise:0.2", "mixup:2", "noise:"),
    "encoder": ("small-cnn", "mlp", "small-tcn", "linear", "resnet81", "os:getcwd", "nowhere:x"),
    "shared_encoder": ("true", "false"),
    "projection": ("0", "8", "128", "99999999999"),
    "projection_layers": ("0", "1", "2", "3", "4"),
    "representation": ("concatenate", "0", "1", "9"),
    "epochs": ("1", "2", "0", "2.0"),
    "batch_size": ("2", "4", "8", "19", "1", "25", "99999999999"),
    "cache_chunk": ("2", "3", "99"),
    "grad_accum_steps": ("1", "2", "99"),
    "optimizer": ("adamw", "sgd", "lars", "lamb", "adafactor", "lion", "adan"),
    "lr": ("0.001", "1e30", "1e-30", "0"),
    "weight_decay": ("0", "0.1", "1e30"),
    "lr_scheduler": ("cosine", "linear", "constant", "step"),
    "warmup_epochs": ("0", "0.5", "1", "99"),
    "image_size": ("1", "8", "12", "99999999999"),
    "columns": ('{"labels": "label"}', '{"views": ["vector"]}', '{"views": 3}', '{"lables": "x"}'),
    "sample_weight": ("label", "vector", "wieghts", "missing.npy", "data.npz", "/dev/zero", "run"),
    "num_workers": ("0", "1", "99999", "100000"),
    "device": ("auto", "cpu", "meta", "cuda:99", "abacus"),
    "seed": ("0", "7", "18446744073709551615", "18446744073709551616"),
    "log_every": ("1", "10", "99999999999"),
    "logger": ("tensorboard", "wandbb"),
    "checkpoint_minutes": ("0", "1", "1e30"),
    "keep_every": ("1", "0"),
    "online_metrics": ("knn", "uniformity:every=2", "knn:every=0", "geometry", "kn", "regression"),
    "metrics": ("knn", "geometry", "recall@3", "recall@0", "few_shot@2", "noise@3", "noise@9", "regression", "kn"),
    "checkpoints": ("last", "all", "some"),
    "test_data": ("data.npz", "photos", "table.csv", "digits", "missing", "notes.txt"),
    "out": (
        "new", "new/deep", "run", "photos", "notes.txt", "f.npz", "f.parquet", "page.html", "data.npz", "no/where.npz",
        "m.pt", "m.onnx", "/dev/full", "/proc/x",
    ),
    "resume": ("true", "false"),
    "overwrite": ("true", "false"),
    "run": ("run", "seen", "run", "seen", "photos", "missing", "notes.txt", "run/model"),
    "runs": ("run", "seen", "photos", "missing"),
    "neighbors": ("1", "3", "19", "20", "999"),
    "split": ("all", "train", "test", "valid"),
    "format": ("torchscript", "safetensors", "safetensors", "torchscript", "pickle"),
    "query": ("0", "23", "24", "photos/class0/0.png", "missing.png", "notes.txt"),
    "top": ("1", "5", "999"),
    "threshold": ("0.9", "0.5", "1", "2"),
    "k": ("1", "2", "24", "25", "999999999999"),
    "method": ("online", "crossfit", "frozen", "frozen", "guess"),
    "statistic": ("cosine", "neighbors", "csls", "rank", "nothing"),
    "folds": ("2", "5", "999"),
    "repeats": ("1", "2"),
    "rounds": ("1", "2", "99"),
    "what": ("recipes", "objectives", "encoders", "data", "metrics", "nothing"),
}  # fmt: skip
OBJECTIVE_SETTINGS = (
    "temperature",
    "iterations",
    "q",
    "alpha",
    "target",
    "plan",
    "symmetric",
    "margin",
    "nothing",
    "rho",
)
# A demo takes twenty times as long as the other commands, so only invalid options of it are tried.
REQUIRED_OPTIONS = {
    "train": {"data": "data.npz", "out": "new", "epochs": "1", "batch_size": "8", "num_workers": "0"},
    "evaluate": {"run": "run", "neighbors": "3", "num_workers": "0"},
    "embed": {"run": "run", "out": "f.npz", "num_workers": "0"},
    "export": {"run": "run", "out": "m.pt", "format": "torchscript"},
    "report": {"runs": "run", "out": "page.html"},
    "list": {"what": "recipes"},
    "demo": {"epochs": "0"},
    "audit": {"data": "many.npz", "out": "audited", "epochs": "2", "batch_size": "16", "num_workers": "0"},
    "neighbors": {"features": "seen.npz", "query": "0"},
    "duplicates": {"features": "seen.npz"},
    "cluster": {"features": "seen.npz", "k": "2"},
}
COMMANDS = (
    *["train"] * 8, "evaluate", "evaluate", "embed", "embed", "export", "report", "report", "list", "demo", "",
)  # fmt: skip
"""Commands of random options; `train` is the most frequent, and an empty name stands for none."""


def _random_options_case(random: Random) -> Case:
    """Build a command with random options, mostly plausible ones, on the command line or in a YAML file."""
    command = random.choice(COMMANDS)
    if not command:
        words = random.choices(
            (*JUNK, *BUILTIN_COMMANDS, "--help", "--version", "--config", "-h"), k=random.randrange(4)
        )
        return Case([word for word in words if word not in ("train", "demo")] or ["-h"], "no command")
    options = _choose_options(command, random)
    if command == "train" and random.random() < 0.15:
        options[f"objective_settings.{random.choice(OBJECTIVE_SETTINGS)}"] = random.choice(("1", "3", "0.5", *JUNK))
    if command == "train" and random.random() < 0.1:
        options |= {"resume": "true", "out": random.choice(("run", "seen", "photos", "missing"))}
        for name in ("data", "batch_size"):
            options.pop(name, None)
        options["epochs"] = "2"
    if command == "demo":
        options["epochs"] = random.choice(("0", "-1", "x", "2.5"))
    if options.get("epochs", "1").startswith("9"):
        del options["epochs"]  # a training with so many epochs is valid, but takes too long
    return Case(_command_words(command, options, random), command)


def _choose_options(command: str, random: Random) -> dict[str, str]:
    """Choose random values for some options of a command."""
    options, names = dict(REQUIRED_OPTIONS[command]), _option_names(command)
    for name in random.sample(names, k=min(len(names), random.choice((0, 1, 1, 2, 2, 3, 4, 6)))):
        pool = PLAUSIBLE_VALUES.get(name, JUNK) if random.random() < 0.85 else JUNK
        options[name] = random.choice(pool)
    return options


def _option_names(command: str) -> list[str]:
    return [name for name in get_command(command).options_by_name if name not in ("progress", "trust_remote_code")]


def _command_words(command: str, options: dict[str, str], random: Random) -> list[str]:
    argv = [command]
    declared = get_command(command).options_by_name
    argv += [options.pop(name) for name in [*options] if name in declared and declared[name].is_cli_positional]
    if "progress" in declared:
        options["progress"] = "false"
    if options and random.random() < 0.2:
        in_file = {name: value for name, value in options.items() if "." not in name and random.random() < 0.5}
        values = {name: random.choice((value, _parse_yaml(value))) for name, value in in_file.items()}
        Path("mine.yaml").write_text(yaml.safe_dump(values, allow_unicode=True))
        argv += ["--config", "mine.yaml"]
        options = {name: value for name, value in options.items() if name not in in_file}
    for name, value in options.items():
        argv += [f"--{name}={value}"] if random.random() < 0.5 else [f"--{name}", value]
    if random.random() < 0.03:
        argv.insert(
            random.randrange(len(argv) + 1), random.choice(("--print_config", "--help", "--epoch", "stray", "--"))
        )
    if random.random() < 0.03:
        argv.append(random.choice(argv))
    return argv


def _parse_yaml(value: str) -> object:
    try:
        return yaml.safe_load(value)
    except (yaml.YAMLError, ValueError):
        return value


def _run_folder_case(random: Random) -> Case:
    """Build a command on a run folder with one mutated file."""
    run = Path(random.choice(("run", "run", "seen")))
    files = sorted(file for file in run.rglob("*") if file.is_file() and file.stat().st_size > 0)
    file = random.choice(files)
    mutate(file, random)
    data = "data.npz" if run.name == "run" else "photos"
    again = ["train", "--out", str(run), "--progress", "false"]
    argv = random.choice(
        (
            [*again, "--resume", "--epochs", "2", "--num_workers", "0"],
            [*again, "--overwrite", "--data", data, "--batch_size", "8", "--epochs", "1", "--num_workers", "0"],
            ["evaluate", str(run), "--neighbors", "3", "--progress", "false", "--num_workers", "0"],
            ["embed", str(run), "--out", "f.npz", "--progress", "false", "--num_workers", "0"],
            ["export", str(run), "--out", "m", "--format", "safetensors"],
            ["report", "run", "seen", "--out", "page.html"],
        )
    )
    return Case(argv, str(file.relative_to(run)))


def _data_case(random: Random) -> Case:
    """Build a training on data, or an embedding of data, with one mutated file."""
    source = Path(random.choice(DATA))
    files = sorted(file for file in source.rglob("*") if file.is_file()) if source.is_dir() else [source]
    mutate(random.choice(files), random)
    train = ["train", "--data", str(source), "--out", "new", "--epochs", "1", "--batch_size", "4"]
    embed = ["embed", "run", "--data", str(source), "--out", "f.npz"]
    argv = [*random.choice((train, train, train, embed)), "--progress", "false"]
    if random.random() < 0.95:
        argv += ["--num_workers", "0"]
    if source.name in ("table.parquet", "hub") and random.random() < 0.7:
        argv.append(f'--columns={{"views": ["{random.choice(("vector", "image"))}"]}}')
    return Case(argv, _ROWS.get(source.name, source.suffix))


def _pairs_and_features_case(random: Random) -> Case:
    """Build a command on pairs or on embedded features; their file is mutated in some cases."""
    command = random.choice(("audit", "neighbors", "neighbors", "duplicates", "cluster"))
    options = _choose_options(command, random)
    file = Path(options.get("features", options.get("data", "")))
    if random.random() < 0.4 and os.path.isfile(file) and file.suffix in (".npz", ".npy", ".parquet"):
        mutate(file, random)
    return Case(_command_words(command, options, random), command)


_QUIET = ["--progress", "false", "--num_workers", "0"]
_TRAIN = ["train", "--out", "new", "--data", "data.npz", "--epochs", "2", "--batch_size", "8", *_QUIET]
_RESUME = ["train", "--out", "run", "--resume", "--epochs", "3", *_QUIET]
_EVALUATE = ["evaluate", "run", "--neighbors", "3", *_QUIET]
_EMBED = ["embed", "run", "--overwrite", *_QUIET]
_FROZEN = ["audit", "--data", "related.npz", "--out", "audited", "--method", "frozen", *_QUIET]
_AUDIT = ["audit", "--data", "related.npz", "--out", "audited", "--epochs", "2", "--batch_size", "16", *_QUIET]
_COMPARE = [
    *("compare", "--data", "data.npz", "--objectives", "info-nce,gca-ince", "--seeds", "1", "--epochs", "1"),
    *("--metrics", "uniformity", "--train.batch_size", "8", "--out", "compared", "--progress", "false"),
]
_CLUSTER = ["cluster", "seen.npz", "--k", "3", "--overwrite", "--out", "clusters.csv", "--page", "clusters.html"]


def _write_related_pairs() -> None:
    """Write pairs of related vectors, which an audit can score."""
    random = np.random.default_rng(0)
    views = random.normal(size=(64, 5))
    np.savez("related.npz", view0=views, view1=views[:, :3] + 0.1 * random.normal(size=(64, 3)))


def _full_disk_case(random: Random) -> Case:
    """Build a command that meets a full disk at one of its files, and succeeds when there is space again."""
    _write_related_pairs()
    suffix, crossfit = random.choice((".npz", ".npy", ".parquet")), ["--method", "crossfit", "--folds", "2"]
    features = [*_EMBED, "--out", f"f{suffix}"]
    argv, next_command, changes = random.choice(
        (
            (_TRAIN, [*_TRAIN, "--overwrite"], "new"),
            ([*_TRAIN, "--init", "run", "--freeze", "true"], [*_TRAIN, "--overwrite"], "new"),
            (_RESUME, _RESUME, "run"),
            (_EVALUATE, _EVALUATE, None),
            (features, features, None),
            ([*features, "--shard_items", "7"], features, None),
            (["export", "run", "--out", "m", "--format", "safetensors"], None, None),
            (["report", "run", "seen", "--out", "page.html"], None, None),
            (_CLUSTER, _CLUSTER, None),
            (_FROZEN, None, None),
            ([*_AUDIT, *crossfit], [*_AUDIT, *crossfit, "--resume"], "audited"),
            (_COMPARE, _COMPARE, "compared"),
        )
    )
    if argv[0] == "embed" and random.random() < 0.5:  # older features, which must not be lost
        assert contraport(features) == 0
    if argv[0] == "audit" and next_command is not None:
        assert contraport(argv) == 0  # an audit that was rejected before its first part has nothing to resume
        Path("audited", "judgements.npz").unlink()
        Path("audited", "notes.txt").write_text("ten years of work\n")
        argv = next_command
    return Case(
        argv,
        f"{argv[0]} on a full disk",
        round(4_000 * 500 ** random.random()),
        next_command=next_command,
        changes=changes,
    )


def _two_commands_case(random: Random) -> Case:
    """Build two commands that write to one folder at the same time, and a command that must succeed afterwards."""
    _write_related_pairs()
    overwrite, crossfit = [*_TRAIN, "--overwrite"], [*_AUDIT, "--method", "crossfit", "--folds", "2"]
    evaluated = ["evaluate", "new", "--neighbors", "3", *_QUIET]
    argv, concurrent, next_command, changes = random.choice(
        (
            (_TRAIN, _TRAIN, evaluated, "new"),
            (_TRAIN, overwrite, evaluated, "new"),
            (overwrite, overwrite, evaluated, "new"),
            (_RESUME, _RESUME, _EVALUATE, "run"),
            (_RESUME, _EVALUATE, _EVALUATE, "run"),
            (_EVALUATE, _EVALUATE, ["report", "run", "--out", "page.html"], "run"),
            ([*_EMBED, "--out", "f.npy"], [*_EMBED, "--out", "f.npy"], ["cluster", "f.npy", "--k", "2"], "f.npy"),
            (_AUDIT, _AUDIT, [*_AUDIT, "--resume"], "audited"),
            (crossfit, crossfit, [*crossfit, "--resume"], "audited"),
            (_COMPARE, _COMPARE, _COMPARE, "compared"),
            (_CLUSTER, _CLUSTER, _CLUSTER, "clusters"),
        )
    )
    return Case(
        argv, f"{argv[0]} and {concurrent[0]}", concurrent=concurrent, next_command=next_command, changes=changes
    )


SPECIAL_NAMES = (
    "[/x]1", "[red]x", "[link=file:///]y", ":cat:", "=1+1", "+1", "-x", "@x", "$x$", "a$b", "{x}", "{{ 7 * 7 }}", "%s",
    "%(a)s", "<script>alert(1)</script>", "</script>", "a&b", '"', "'", "a,b", "a;b", "a\tb", "a\rb", "a\nb", "\\",
    "\x1b[31mred", "é\u202e\U0001f600", "x" * 300, " ", "None", "nan", "0", "../x", "~",
)  # fmt: skip


def _names_case(random: Random) -> Case:
    """Build a command on items, classes or columns with special characters in their names."""

    def draw_names(number: int) -> list[str]:
        return [f"{random.choice(SPECIAL_NAMES)}{place if random.random() < 0.9 else ''}" for place in range(number)]

    kind = random.choice(("features", "features", "pairs", "photos", "classes"))
    if kind == "features":
        features = read_features("seen.npz")
        classes = np.array(draw_names(2))
        keys = np.array(draw_names(len(features)))
        write_features(Path("draw_names.npz"), replace(features, keys=keys, class_names=classes))
        command = random.choice(("neighbors", "duplicates", "cluster"))
        own = {"neighbors": ["--query", "0"], "duplicates": ["--threshold", "0.5"], "cluster": ["--k", "3"]}[command]
        out = ["--out", "clusters.csv"] if command == "cluster" else []
        return Case([command, "draw_names.npz", *own, *out, "--page", "page.html"], f"{command}: names of items")
    if kind == "pairs":
        _write_related_pairs()
        with np.load("related.npz") as views:
            columns = {"id": draw_names(64), **{name: views[name].tolist() for name in views.files}}
        pq.write_table(pa.table(columns), "draw_names.parquet")
        argv = [*_FROZEN, "--columns", '{"views": ["view0", "view1"]}']
        argv[argv.index("related.npz")] = "draw_names.parquet"
        return Case(argv, "audit: names of pairs")
    if kind == "classes":
        with np.load("data.npz") as data:
            np.savez("draw_names.npz", x=data["x"], labels=np.array(draw_names(3))[data["labels"]])
        argv = ["train", "--data", "draw_names.npz", *_TRAIN[1:3], *_TRAIN[5:]]
        return Case(argv, "names of classes", next_command=["evaluate", "new", "--neighbors", "3", *_QUIET])
    for place, file in enumerate(sorted(Path("photos").rglob("*.*"))):
        name = random.choice(SPECIAL_NAMES).replace("/", "|")[:100]
        file.rename(file.with_name(f"{name}{place}{file.suffix}"))
    for place, folder in enumerate(sorted(Path("photos").iterdir())):
        folder.rename(folder.with_name(f"{random.choice(SPECIAL_NAMES).replace('/', '|')[:100]}{place}"))
    argv = ["train", "--data", "photos", *_TRAIN[1:3], *_TRAIN[5:]]
    next_command = ["evaluate", "new", "--neighbors", "3", *_QUIET]
    return Case(
        argv, "names of files", next_command=random.choice((next_command, ["embed", "new", "--out", "f.npz", *_QUIET]))
    )


def _changed_data_case(random: Random) -> Case:
    """Build a command that resumes earlier work on changed data, which must be rejected."""
    change = random.choice(("fewer", "more", "one value", "other labels"))
    crossfit = [*_AUDIT, "--method", "crossfit", "--folds", "2"]
    commands = []
    if change != "one value":  # a training does not read held-out items, one of which may have this value
        commands += [([*_RESUME, "--data", "data.npz"], "data.npz", "run")]
    if change != "other labels":  # an encoder is not trained on labels
        embed = [*_EMBED, "--split", "test", "--out", "f.npz"]
        commands += [(_EVALUATE, "data.npz", None), (embed, "data.npz", None)]
        commands += [([*crossfit, "--resume"], "related.npz", "audited")]
    commands += [([*_COMPARE, "--seeds", "2"], "data.npz", "compared")]
    argv, file, changes = random.choice(commands)
    if argv[0] == "audit":
        _write_related_pairs()
        assert contraport(crossfit) == 0
    if argv[0] == "compare":
        assert contraport(_COMPARE) == 0
    with np.load(file) as data:
        arrays = dict(data)
    for name, values in arrays.items():
        if change == "fewer":
            arrays[name] = values[random.randrange(1, 4) :]
        elif change == "more":
            arrays[name] = np.concatenate([values, values[:1] + (0 if name == "labels" else 1)])
    if change == "one value":
        views = arrays["x" if "x" in arrays else "view1"]
        views[random.randrange(len(views)), 0] += 1
    if change == "other labels":
        arrays["labels"] = arrays["labels"][::-1]
    np.savez(file, **arrays)
    return Case(argv, f"{argv[0]}: {change}", changes=changes, status=2)


def _repeated_items_case(random: Random) -> Case:
    """Build a training on data with copies of items, none of which may be split between training and test items."""
    times, kind = random.randrange(2, 5), random.choice(("rows", "pairs", "photos"))
    if kind == "photos":
        for file in sorted(Path("photos").rglob("*.*")):
            for copy in range(1, times):
                file.with_name(f"{file.stem}-{copy}{file.suffix}").write_bytes(file.read_bytes())
        source = "photos"
    else:
        source = {"rows": "data.npz", "pairs": "pairs.npz"}[kind]
        with np.load(source) as data:
            repeated = {name: np.repeat(values, times, axis=0) for name, values in data.items()}
        if kind == "pairs":  # one view repeats, the other differs
            repeated["view1"] = np.random.default_rng(times).normal(size=repeated["view1"].shape)
        np.savez(source, **repeated)
    argv = ["train", "--data", source, *_TRAIN[1:3], *_TRAIN[5:]]
    return Case(
        argv, f"train: copies of {kind}", next_command=["evaluate", "new", "--neighbors", "3", *_QUIET], status=0
    )


_ROWS = {"photos": "folder of images", "hub": "folder of Hugging Face"}
KINDS: dict[str, Callable[[Random], Case]] = {
    "configurations": _random_options_case,
    "run folders": _run_folder_case,
    "data": _data_case,
    "pairs and features": _pairs_and_features_case,
    "full disk": _full_disk_case,
    "two commands": _two_commands_case,
    "names": _names_case,
    "changed data": _changed_data_case,
    "repeated items": _repeated_items_case,
}
