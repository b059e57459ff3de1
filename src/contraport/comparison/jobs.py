"""The cells trained and judged: several at once, within a budget, and going on where they were stopped."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, Literal

import torch

from contraport._utils.files import write_json
from contraport._utils.formatting import format_flags
from contraport._utils.locks import lock_folder
from contraport.comparison.grid import Cell, Grid
from contraport.data.split_record import SplitRecord
from contraport.errors import FolderInUseError, UsageError, out_of_memory_message
from contraport.evaluation.evaluate import evaluate
from contraport.options import get_options, to_config_value
from contraport.runs import Run
from contraport.training.components import build_dataset, build_held_out_dataset
from contraport.training.config import DataSettings, ReadingSettings
from contraport.training.resolve import resolve_settings
from contraport.training.train import train

Found = dict[str, Any]

_KEPT = "epoch "
"""So begin the names of models that `keep_every` kept, among what was judged."""


@dataclass(frozen=True)
class CellJob:
    """A cell that is to be trained and judged.

    Attributes:
        path: its run folder.
        options: of `contraport.train`, that say what it is.
        machine: further ones, that say where it is computed.
        measures: what is measured.
        with_references: whether the encoder before training and the raw inputs are measured too.
    """

    path: Path
    options: Mapping[str, Any]
    machine: Mapping[str, Any]
    measures: Sequence[str]
    with_references: bool = False

    @property
    def result_path(self) -> Path:
        """The file that says that it is finished, and what was found."""
        return self.path.with_name(f"{self.path.name}.json")

    @property
    def checkpoints(self) -> Literal["last", "all"]:
        """Which of its models are judged: all, where it keeps some on its way, and is long enough for one."""
        asked = resolve_settings(self.options)
        return "all" if asked.keep_every and asked.keep_every <= asked.epochs else "last"

    @property
    def found(self) -> Found | None:
        """What was found, or none where it is not finished; of other measures it is judged again."""
        try:
            values = json.loads(self.result_path.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(values, dict) or values.get("measures") != list(self.measures):
            return None
        lacks = self.with_references and not values.get("references") and "failed" not in values
        return None if lacks else values

    @property
    def reading(self) -> dict[str, Any]:
        """The options that say which items are trained on and which are held out."""
        names = {*get_options(DataSettings), *get_options(ReadingSettings)} - {"mismatch"}
        return {name: value for name, value in {**self.machine, **self.options}.items() if name in names}

    @property
    def command(self) -> str:
        """The command lines that train and judge it by themselves."""
        where = {name: self.machine[name] for name in ("root", "decoded") if self.machine[name] is not None}
        trained = format_flags({**self.options, **where, "out": str(self.path)})
        asked = {"metrics": list(self.measures), "checkpoints": self.checkpoints, "alone": True}
        judged = format_flags({name: value for name, value in asked.items() if value != "last"})
        return f"contraport train {trained}\ncontraport evaluate {shlex.quote(str(self.path))} {judged}"


def check_data(jobs: Iterable[CellJob]) -> None:
    """Raise `UsageError` where a cell that is finished was trained on other items than its data have now."""
    digests: dict[str, str | None] = {}
    for job in jobs:
        found, reading = job.found, json.dumps(job.reading, sort_keys=True)
        if found is None or "data" not in found:
            continue
        if reading not in digests:
            settings = resolve_settings(job.reading)
            record = SplitRecord.of(build_dataset(settings), build_held_out_dataset(settings))
            digests[reading] = None if record is None else record.digest
        if found["data"] != digests[reading]:
            raise UsageError(
                f"data: {job.options['data']!r} has changed since {job.path} was trained on it; restore it, or compare "
                "in a new folder (--out)."
            )


def build_cell_job(grid: Grid, cell: Cell) -> CellJob:
    """Return what is to be done for a cell."""
    first = cell.trial is None and cell.seed == 0 and cell.row.name in grid.references
    path = grid.out / "cells" / cell.folder
    return CellJob(path, to_config_value(cell.options), grid.machine, tuple(grid.asked.metrics), first)


def run_cell_job(job: CellJob) -> Found | None:
    """Train and judge a cell, or go on with it, unless it is finished; return what was found, and write it.

    A training that diverged is finished too: ``failed`` says why. Of one that refuses its settings or its data, or has
    too little memory, nothing is written, as these may be mended. Of one that another process is at nothing is
    returned.

    Raises:
        KeyboardInterrupt: it was stopped; it goes on when it is carried out again.
    """
    cells, name = job.path.parent, f"{job.path.name}.lock.json"
    try:
        with lock_folder(cells, "compare", name=name):  # the run's own lock ends with its training, before it is judged
            return job.found or _carried_out(job)
    except FolderInUseError:
        return None


def _carried_out(job: CellJob) -> Found:
    run, machine = Run(job.path), {**job.machine, "progress": False}
    found: Found = {"measures": list(job.measures), "options": dict(job.options)}
    started = time.perf_counter()
    try:
        if run.last_checkpoint.exists():
            train(resume=True, out=run.path, **machine)
        else:
            train(**job.options, out=run.path, overwrite=True, **machine)
        judged = evaluate(
            run,
            metrics=list(job.measures),
            checkpoints=job.checkpoints,
            alone=not job.with_references,
            device=job.machine["device"],
            num_workers=job.machine["num_workers"],
            progress=False,
        )
    except FolderInUseError:
        raise
    except (UsageError, MemoryError, RuntimeError) as error:
        told = f"{error}" if isinstance(error, UsageError) else out_of_memory_message(error)
        if told is None:
            raise
        return {**found, "failed": told, "refused": True, "took": round(time.perf_counter() - started, 2)}
    except FloatingPointError as error:
        found |= {"failed": f"{error}"}
    else:
        rows, trained = run.metrics(), judged["rows"].pop("trained")
        kept = {name: values for name, values in judged["rows"].items() if name.startswith(_KEPT)}
        found |= {
            "values": trained,
            "not_measured": judged["not_measured"],
            "references": {name: values for name, values in judged["rows"].items() if name not in kept},
            **({"course": {**kept, f"{_KEPT}{judged['epochs']}": trained}} if kept else {}),
            "data": None if (record := run.split()) is None else record.digest,
            "train_items": judged["train_items"],
            "test_items": judged["test_items"],
            "seconds": {"training": round(rows[-1]["seconds"], 2) if rows else None, "judging": judged["seconds"]},
        }
    found["took"] = round(time.perf_counter() - started, 2)
    write_json(job.result_path, found)
    return found


class TimeBudget:
    """Tells whether a training may begin: one that takes as long as those before must end within the budget.

    Attributes:
        took: how many seconds each took that is done.
        expected: how many the first is expected to take, if that is known.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self.took: list[float] = []
        self.expected: float | None = None

    def begins(self) -> bool:
        """Return whether another one may begin."""
        expected = sum(self.took) / len(self.took) if self.took else self.expected or 0.0
        return self._end is None or time.monotonic() + expected <= self._end


def run_cell_jobs(jobs: Sequence[CellJob], *, processes: int, clock: TimeBudget) -> Iterator[tuple[CellJob, Found]]:
    """Yield what was found of each job, as they end.

    Those that no budget is left for are left out, and those that another process is still at when all others are done.
    """
    waiting = []
    for job in jobs:
        if (found := job.found) is not None:
            yield job, found
        else:
            waiting.append(job)
    for _ in range(2):  # what another process is at comes again once all others are done
        several, passed_over = min(processes, len(waiting)), []
        for job, result in _in_turn(waiting, clock) if several < 2 else _at_once(waiting, several, clock):
            if result is None:
                passed_over.append(job)
            else:
                clock.took.append(result["took"])
                yield job, result
        waiting = passed_over


def _in_turn(jobs: Sequence[CellJob], clock: TimeBudget) -> Iterator[tuple[CellJob, Found | None]]:
    for job in jobs:
        if not clock.begins():
            return
        yield job, run_cell_job(job)


def _at_once(jobs: Sequence[CellJob], processes: int, clock: TimeBudget) -> Iterator[tuple[CellJob, Found | None]]:
    context = get_context("spawn")
    number = context.Value("i", 0)
    threads = max(1, torch.get_num_threads() // processes)
    waiting, running = list(reversed(jobs)), dict[Future[Found | None], CellJob]()
    pool = ProcessPoolExecutor(
        processes, context, initializer=_begin, initargs=(number, torch.cuda.device_count(), threads)
    )
    try:
        while waiting or running:
            while waiting and len(running) < processes and clock.begins():
                job = waiting.pop()
                running[pool.submit(run_cell_job, job)] = job
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(done), done.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(number: Synchronized[int], devices: int, threads: int) -> None:
    """Give a process its share of the cores, and a GPU of its own where there are several."""
    with number.get_lock():
        mine, number.value = number.value, number.value + 1
    torch.set_num_threads(threads)
    if devices > 1:
        of_all = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")  # which ones this user may take, if that is told
        names = of_all if len(of_all) >= devices else [str(device) for device in range(devices)]
        os.environ["CUDA_VISIBLE_DEVICES"] = names[mine % devices]
