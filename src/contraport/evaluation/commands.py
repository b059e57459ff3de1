"""`evaluate` and `embed`: what can be asked of a run folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as AnyDataset

from contraport.data import Dataset
from contraport.encoders import Model
from contraport.errors import UsageError, check
from contraport.evaluation.embedding import (
    Embeddings,
    RawInputs,
    Reader,
    check_shapes,
    embed_dataset,
    represent,
    represent_views,
)
from contraport.evaluation.measures import UNIFORMITY_ITEMS, alignment, effective_rank, uniformity
from contraport.evaluation.probes import check_neighbors, knn, linear_probe
from contraport.evaluation.samples import plans, points
from contraport.evaluation.shards import this_process
from contraport.files import replacing, write_arrays, write_json
from contraport.objectives import Loss
from contraport.results import MEASURES
from contraport.runs import Run
from contraport.runs.options import is_object
from contraport.runs.settings import Settings
from contraport.training.build import build_dataset, build_objective, build_schedules, build_untrained, build_views

log = logging.getLogger("contraport.evaluation")


@torch.random.fork_rng(devices=[])
def evaluate(
    run: str | Path | Run,
    *,
    data: str | Path | tuple[AnyDataset[Any], AnyDataset[Any]] | None = None,
    columns: dict[str, Any] | None = None,
    root: str | Path | None = None,
    neighbors: int = 20,
    batch_size: int = 512,
    workers: int | None = None,
    device: str = "auto",
    trust: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Measure a run's frozen encoder beside the same encoder untrained and the raw inputs.

    Every row is about the representation, not the projection: the accuracy of the linear probe and of kNN on the test
    split (with labels), the alignment of two random views of the test items (where they share an encoder), and the
    uniformity and effective rank of their features. What could not be measured is told in `notes`, as is which
    epoch's model it is where the training was extended and has not ended. The result is also written to the run's
    `evaluation.json`, and what the page draws to its `samples.npz`. The caller's random state stays as it is.

    Args:
        run: the run folder.
        data: what to measure on: as in `contraport.train`, or a pair of datasets (train, test); default: the run's own.
        columns: what the columns of a table are for, as in `contraport.data.load`; default: the run's own of its data.
        root: folder of named data; default: the run's own.
        neighbors: how many vote in kNN.
        batch_size: items fetched at a time, rounded up to whole blocks of 64, in which they are embedded; it changes no
            number.
        workers: processes that fetch data; default: none for data in memory, else one per core but one.
        device: auto, cpu, cuda or another of torch's devices.
        trust: import and run the encoder that the run names as ``module:attribute``; your own, or one you looked at.
        progress: show progress bars on a terminal.

    Raises:
        UsageError: a wrong argument, or a run that is corrupt or not trained to its end; nothing was written.
    """
    started = time.perf_counter()
    run = run if isinstance(run, Run) else Run(run)
    settings, model = run.settings(), run.model(trust=trust)
    epochs, caveat = run.model_epochs(), run.caveat()
    reader = Reader(batch_size, _device(device), workers, progress)
    train, test = _splits(settings, model, data, columns, root)
    notes = _notes(train, test)
    labelled = not notes
    if caveat is not None:
        notes.append(caveat)
    if labelled:
        check_neighbors(neighbors, len(train))
    views = build_views(settings, train)
    check_shapes(model, train, views)
    raw = RawInputs(model.shapes)
    if raw.side is not None:
        notes.append(f"Raw inputs: the images shrunk to {raw.side} × {raw.side} pixels.")
    alignable = len(model.towers) == 1
    if not alignable:
        notes.append("Each view has an encoder of its own, so no alignment of their features.")

    rows: dict[str, dict[str, float]] = {}
    features = torch.empty(0)
    untrained = build_untrained(settings, model, run.encoder)
    encoders: dict[str, Model | RawInputs] = {"raw": raw, "untrained": untrained, "trained": model}
    for name, encoder in encoders.items():
        features = represent(encoder, test, views, reader, name)
        rows[name] = {"uniformity": uniformity(features), "effective_rank": effective_rank(features)}
        if alignable:
            rows[name]["alignment"] = alignment(*represent_views(encoder, test, views, reader, name))
        if labelled:
            memory = represent(encoder, train, views, reader, name)
            rows[name] |= _accuracies(memory, _labels(train), features, _labels(test), neighbors, reader.device)

    notes += worsened(rows)
    samples = points(test, features)
    criterion = _objective(run, settings, epochs)
    if isinstance(criterion, str):
        notes.append(criterion)
    else:
        samples |= plans(model, criterion, test, views, reader)
    result = {
        "data": test.name,
        "epochs": epochs,
        "train_items": len(train),
        "test_items": len(test),
        "uniformity_items": min(len(test), UNIFORMITY_ITEMS),
        "classes": len(train.class_names) if train.class_names is not None else None,
        "neighbors": neighbors,
        "seconds": round(time.perf_counter() - started, 3),
        "notes": notes,
        "rows": rows,
    }
    check(run.model_epochs() == epochs, f"run: {run.path} got another model meanwhile; evaluate it again.")
    write_arrays(run.samples_path, samples)
    write_json(run.evaluation_path, result)
    return result


@torch.random.fork_rng(devices=[])
def embed(
    run: str | Path | Run,
    *,
    data: str | Path | AnyDataset[Any] | None = None,
    out: str | Path,
    split: str = "all",
    columns: dict[str, Any] | None = None,
    root: str | Path | None = None,
    batch_size: int = 512,
    workers: int | None = None,
    device: str = "auto",
    overwrite: bool = False,
    trust: bool = False,
    progress: bool = True,
) -> Path:
    """Write the frozen features of every item of some data to an `.npz` or `.parquet` file, and return its path.

    An `.npz` file has the arrays `features` `(n, F)` float32, `ids` `(n,)` (positions in their split) and `splits`
    `(n,)`, and where there are labels `labels` `(n,)` and `class_names`. A `.parquet` file has the columns `f0`, `f1`
    and so on, `id`, `split`, and where there are labels `label` and `class_name`.

    Under `torchrun` each process embeds its share of the items and writes it beside `out`, as `NAME.00000-of-00002.npz`
    and so on; the shards in the order of their numbers are the items in their order.

    Args:
        run: the run folder.
        data: what to embed: as in `contraport.train`; default: the run's own.
        out: the file to write.
        split: train, test, or all: both, one after the other; a Dataset is one split, and all of it is embedded.
        columns: what the columns of a table are for, as in `contraport.data.load`; default: the run's own of its data.
        root: folder of named data; default: the run's own.
        batch_size: items fetched at a time, rounded up to whole blocks of 64, in which they are embedded; it changes no
            number.
        workers: processes that fetch data; default: none for data in memory, else one per core but one.
        device: auto, cpu, cuda or another of torch's devices.
        overwrite: replace `out` where it exists.
        trust: import and run the encoder that the run names as ``module:attribute``; your own, or one you looked at.
        progress: show progress bars on a terminal.

    Raises:
        UsageError: a wrong argument, or a run that is corrupt or not trained to its end; nothing was written.
    """
    share = this_process()
    path = share.path(Path(out))
    check(path.suffix in _WRITERS, f"out: expected a name that ends in .npz or .parquet, got {path.name!r}.")
    check(not path.is_dir(), f"out: {path} is a folder; expected a file.")
    check(overwrite or not path.exists(), f"out: {path} exists; pass overwrite=True (--overwrite) to replace it.")
    check(path.absolute().parent.is_dir(), f"out: the folder {path.parent} does not exist.")
    check(split in ("train", "test", "all"), f"split: expected 'train', 'test' or 'all', got {split!r}.")
    run = run if isinstance(run, Run) else Run(run)
    settings, model = run.settings(), run.model(trust=trust)
    if caveat := run.caveat():
        log.warning("%s", caveat)
    wanted = ("train", "test") if split == "all" else (split,)
    if isinstance(data, AnyDataset):
        wanted = wanted[:1]
    datasets = [_load(settings, model, data, part, columns, root) for part in wanted]
    parts = share.part(datasets)
    embedded = [
        embed_dataset(
            model,
            dataset,
            views=build_views(settings, dataset),
            batch_size=batch_size,
            device=_device(device),
            workers=workers,
            progress=progress,
        )
        for dataset, _ in parts
    ]
    with replacing(path) as temporary:
        _WRITERS[path.suffix](temporary, _columns(parts, embedded))
    return path


def _splits(
    settings: Settings,
    model: Model,
    data: str | Path | tuple[AnyDataset[Any], AnyDataset[Any]] | None,
    columns: dict[str, Any] | None,
    root: str | Path | None,
) -> tuple[Dataset, Dataset]:
    check(
        not isinstance(data, AnyDataset),
        "data: a Dataset is one split; pass the pair (train, test), or a name, folder or file that has both.",
    )
    given = data if isinstance(data, tuple) else (data, data)
    train, test = (
        _load(settings, model, part, split, columns, root) for part, split in zip(given, ("train", "test"), strict=True)
    )
    check(
        train.shapes == test.shapes,
        f"data: expected splits of equal shapes, {train.name!r} has {train.shapes}, {test.name!r} {test.shapes}.",
    )
    check(len(test) > 1, f"data: expected two test items or more, {test.name!r} has {len(test)}.")
    return train, test


def _load(
    settings: Settings,
    model: Model,
    data: str | Path | AnyDataset[Any] | None,
    split: str,
    columns: dict[str, Any] | None,
    root: str | Path | None,
) -> Dataset:
    """Load what was asked for, or else what the run was trained on, in the size that the model takes."""
    asked = replace(settings, root=root or settings.root, image_size=_image_size(model))
    if data is None or (isinstance(data, str | Path) and str(data) == settings.data):
        if settings.data is None:
            raise UsageError("data: the run's config.yaml does not say on what it was trained; pass data=.")
        check(
            not is_object(settings.data),
            f"data: the run was trained on the object {settings.data}, which is not in its folder; pass data=.",
        )
        return build_dataset(replace(asked, columns=columns or settings.columns), split)
    return build_dataset(replace(asked, data=data, columns=columns, test_fraction=None), split)


def _image_size(model: Model) -> int | None:
    """Return the side of the square images that the model takes, or none where it takes none."""
    sizes = {shape[1:] for shape in model.shapes if len(shape) == 3}
    sides = {side for size in sizes for side in size}
    return sides.pop() if len(sides) == 1 else None


def _objective(run: Run, settings: Settings, epochs: int | None) -> Loss | str:
    """Build the run's objective as it was after some epochs (default: all), or say why its plan cannot be drawn."""
    if settings.objective is None:
        return "The views were decoded and nothing was compared, so there is no plan."
    if is_object(settings.objective):
        return "The objective was given as an object, so its plan cannot be drawn from the folder."
    if settings.prototypes is not None:
        return "Items were compared with prototypes, which the folder does not hold, so their plan cannot be drawn."
    done = settings.epochs if epochs is None else epochs
    compared = build_objective(settings)
    assert isinstance(compared, Loss)
    # As if an epoch had two steps, at the second of the last one: there a temperature has come to its end.
    for schedule in build_schedules(settings, compared, steps=1, epoch=2):
        schedule.apply(compared, 2 * max(done, 1) - 1)
    rows = [row for row in run.metrics() if row.get("epoch", 0) <= done]
    if rows and rows[-1].get("temperature") is not None:  # where it was learned, that is where it ended
        compared.temperature = rows[-1]["temperature"]
    return compared


def _notes(train: Dataset, test: Dataset) -> list[str]:
    """Say why the accuracies cannot be measured, if they cannot."""
    if train.labels is None or test.labels is None:
        return ["No labels, so no linear probe and no kNN."]
    if len(train.labels.unique()) < 2:
        return ["One class only, so no linear probe and no kNN."]
    return []


def worsened(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Say in words which measures of the trained encoder are worse than before, and what may help."""
    told = []
    for row, name, advice in (
        ("untrained", "the untrained encoder", "more epochs, another --augment or another --temperature may help"),
        ("raw", "the raw inputs", "train for longer or a larger encoder, or use the inputs as they are"),
    ):
        if worse := _compared(rows, row, {"linear_probe", "knn"}, worse=True):
            told.append(f"Training left the features worse than {name} by {worse}; {advice}.")
    if worse := _compared(rows, "untrained", {"alignment", "uniformity"}, worse=True):
        gained = _compared(rows, "untrained", {"alignment", "uniformity"}, worse=False)
        why = f"which is the price of {gained}" if gained else "and nothing was gained for it"
        told.append(f"Training made worse {worse}, {why}.")
    return told


def _compared(rows: Mapping[str, Mapping[str, float]], row: str, keys: Set[str], *, worse: bool) -> str:
    """Return those of some measures that are worse, or better, of the trained encoder than of a baseline, in words."""
    after, before = rows["trained"], rows[row]
    asked = [measure for measure in MEASURES if measure.key in keys & after.keys()]
    pairs = {measure: (after[measure.key], before[measure.key]) for measure in asked}
    return " and ".join(
        f"{measure.title} ({measure.pattern.format(value)} after {measure.pattern.format(other)})"
        for measure, (value, other) in pairs.items()
        if (measure.is_worse(value, other) if worse else measure.is_worse(other, value))
    )


def _labels(dataset: Dataset) -> Tensor:
    assert dataset.labels is not None
    return dataset.labels


def _accuracies(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, neighbors: int, device: torch.device
) -> dict[str, float]:
    return {
        "linear_probe": linear_probe(train_x, train_y, test_x, test_y),
        "knn": knn(train_x.to(device), train_y, test_x.to(device), test_y, neighbors=neighbors),
    }


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda", this_process().local) if torch.cuda.is_available() else torch.device("cpu")
    try:
        there = torch.empty(0, device=name)
        there.cpu()  # "meta" has shapes but no numbers
        return there.device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"device: {name!r} cannot be used here: {str(error).splitlines()[0]}") from error


def _write_npz(path: Path, columns: dict[str, Any]) -> None:
    np.savez(path, **columns)


def _write_parquet(path: Path, columns: dict[str, Any]) -> None:
    # Here, not above: only this format needs it, and it takes a while to import.
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = {f"f{number}": column for number, column in enumerate(columns["features"].T)}
    table |= {"id": columns["ids"], "split": columns["splits"]}
    if "labels" in columns:
        table["label"] = columns["labels"]
        if "class_names" in columns:
            table["class_name"] = columns["class_names"][columns["labels"]]
    pq.write_table(pa.table(table), path)


_WRITERS = {".npz": _write_npz, ".parquet": _write_parquet}


def _columns(parts: list[tuple[Dataset, int]], embedded: list[Embeddings]) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "features": torch.cat([part.features for part in embedded]).numpy(),
        "ids": np.concatenate([np.arange(first, first + len(dataset)) for dataset, first in parts]),
        "splits": np.concatenate([np.full(len(dataset), dataset.split) for dataset, _ in parts]),
    }
    if all(part.labels is not None for part in embedded):
        columns["labels"] = torch.cat([part.labels for part in embedded if part.labels is not None]).numpy()
        class_names = parts[0][0].class_names
        if class_names is not None:
            columns["class_names"] = np.array(class_names, dtype=np.str_)
    return columns
