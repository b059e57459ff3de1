"""Jobs of a comparison, each of which trains and evaluates one run.

Interrupted training runs are resumed, and finished ones are not repeated.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import takewhile
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, Literal

import torch

from contraport._utils.files import write_json
from contraport._utils.formatting import format_flags, format_keyword_or_flag
from contraport._utils.locks import lock_folder
from contraport.comparison.grid import Grid, TrainingCell
from contraport.data.split_digests import SplitDigests
from contraport.errors import FolderInUseError, UsageError, check, message_if_out_of_memory
from contraport.evaluation.evaluate import evaluate
from contraport.options import get_declared_options, to_config_value
from contraport.runs import WritableRun
from contraport.training.components.data_builder import build_dataset, load_test_set_or_none
from contraport.training.config import DataPreparationSettings, DataSettings
from contraport.training.settings_and_run_folder import resolve_settings
from contraport.training.train import train

JobResult = dict[str, Any]
"""Result of a job, as stored in its JSON file: metric values, or the reason of the failure."""


@dataclass(frozen=True)
class CellJob:
    """Job that trains and evaluates one run of a comparison.

    Attributes:
        options: options of `contraport.train` that determine the training result.
        machine_options: options of `contraport.train` that select where the job runs, such as device and data folder.
        evaluates_references: whether the untrained encoder and the raw inputs are evaluated too.
    """

    run_folder: Path
    options: Mapping[str, Any]
    machine_options: Mapping[str, Any]
    metric_names: Sequence[str]
    evaluates_references: bool = False

    @property
    def result_path(self) -> Path:
        """Path of the result's JSON file, which exists once the job is done."""
        return self.run_folder.with_name(f"{self.run_folder.name}.json")

    @property
    def checkpoints_to_evaluate(self) -> Literal["last", "all"]:
        """Checkpoints to evaluate, "all" if training keeps intermediate models, else "last"."""
        settings = resolve_settings(self.options)
        return "all" if settings.keep_every and settings.keep_every <= settings.epochs else "last"

    @property
    def reusable_result(self) -> JobResult | None:
        """Saved result, or None if missing or evaluated with other metrics."""
        try:
            values = json.loads(self.result_path.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(values, dict) or values.get("measures") != list(self.metric_names):
            return None
        lacks_references = self.evaluates_references and not values.get("references") and "failed" not in values
        return None if lacks_references else values

    @property
    def data_options(self) -> dict[str, Any]:
        """Options of `contraport.train` that determine the training and test items."""
        names = {*get_declared_options(DataSettings), *get_declared_options(DataPreparationSettings)} - {"mismatch"}
        return {name: value for name, value in {**self.machine_options, **self.options}.items() if name in names}

    @property
    def shell_script(self) -> str:
        """Shell commands that train and evaluate this run on its own, outside the comparison."""
        folders = {
            name: self.machine_options[name] for name in ("root", "decoded") if self.machine_options[name] is not None
        }
        training = format_flags({**self.options, **folders, "out": str(self.run_folder)})
        options = {"metrics": list(self.metric_names), "checkpoints": self.checkpoints_to_evaluate, "alone": True}
        evaluation = format_flags({name: value for name, value in options.items() if value != "last"})
        return f"contraport train {training}\ncontraport evaluate {shlex.quote(str(self.run_folder))} {evaluation}"


def check_data_unchanged(jobs: Iterable[CellJob]) -> None:
    """Raise `UsageError` if the data of a finished job have changed."""
    digests: dict[str, str | None] = {}
    for job in jobs:
        result, key = job.reusable_result, json.dumps(job.data_options, sort_keys=True)
        if result is None or "data" not in result:
            continue
        if key not in digests:
            settings = resolve_settings(job.data_options)
            record = SplitDigests.from_datasets_unless_stream(build_dataset(settings), load_test_set_or_none(settings))
            digests[key] = None if record is None else record.digest_of_both_splits
        message = f"data: {job.options['data']!r} changed since {job.run_folder} was trained on it. "
        check(
            result["data"] == digests[key],
            f"{message}Restore it, or use a new folder ({format_keyword_or_flag('out')}).",
            "changed",
        )


def build_cell_job(grid: Grid, cell: TrainingCell) -> CellJob:
    """Build the job that trains and evaluates one run of the comparison."""
    is_first = cell.trial_number is None and cell.seed == 0
    return CellJob(
        grid.output_folder / "cells" / cell.run_folder_name,
        to_config_value(cell.options),
        grid.machine_options,
        tuple(grid.compare_options.metrics),
        evaluates_references=is_first and cell.row.name in grid.untrained_encoder_changes_by_row,
    )


def run_job_unless_running(job: CellJob) -> JobResult | None:
    """Train and evaluate a run, or return None if another process is running it.

    A saved result is returned without training, and an interrupted training is resumed.
    A diverged training counts as done, with the reason in ``failed``. Nothing is written if the settings or data are
    refused or memory runs out, since these can be fixed.

    Raises:
        KeyboardInterrupt: it was interrupted; the next call resumes.
    """
    try:
        # The lock of the run itself is released after its training, before the evaluation.
        with lock_folder(job.run_folder.parent, "compare", name=f"{job.run_folder.name}.lock.json"):
            if (saved := job.reusable_result) is not None:
                return saved
            result = _train_and_evaluate(job)
            if not result.get("refused"):
                write_json(job.result_path, result)
            return result
    except FolderInUseError:
        return None


def _train_and_evaluate(job: CellJob) -> JobResult:
    """Train or resume a run, evaluate it, and return the result."""
    run, machine = WritableRun(job.run_folder), {**job.machine_options, "progress": False}
    result: JobResult = {"measures": list(job.metric_names), "options": dict(job.options)}
    started = time.perf_counter()
    try:
        if run.last_checkpoint.exists():
            train(resume=True, out=run.path, **machine)
        else:
            train(**job.options, out=run.path, overwrite=True, **machine)
        evaluation = evaluate(
            run,
            metrics=list(job.metric_names),
            checkpoints=job.checkpoints_to_evaluate,
            alone=not job.evaluates_references,
            device=job.machine_options["device"],
            num_workers=job.machine_options["num_workers"],
            progress=False,
        )
    except FolderInUseError:
        raise
    except (UsageError, MemoryError, RuntimeError) as error:
        message = f"{error}" if isinstance(error, UsageError) else message_if_out_of_memory(error)
        if message is None:
            raise
        return {**result, "failed": message, "refused": True, "took": round(time.perf_counter() - started, 2)}
    except FloatingPointError as error:
        result |= {"failed": f"{error}"}
    else:
        history, trained = run.metrics_rows(), evaluation["rows"].pop("trained")
        epochs = {name: values for name, values in evaluation["rows"].items() if name.startswith("epoch ")}
        seconds = round(history[-1]["seconds"], 2) if history else None
        result |= {
            "values": trained,
            "not_measured": evaluation["not_measured"],
            "references": {name: values for name, values in evaluation["rows"].items() if name not in epochs},
            **({"course": {**epochs, f"epoch {evaluation['epochs']}": trained}} if epochs else {}),
            "data": None if (record := run.find_split_digests()) is None else record.digest_of_both_splits,
            "train_items": evaluation["train_items"],
            "test_items": evaluation["test_items"],
            "seconds": {"training": seconds, "judging": evaluation["seconds"]},
        }
    return {**result, "took": round(time.perf_counter() - started, 2)}


class TimeBudget:
    """Time budget in which a job starts only if it is expected to finish in time.

    Attributes:
        finished_job_seconds: durations of the finished jobs in seconds.
        first_job_seconds: estimated duration of the first job in seconds, or None if there is no estimate.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self.finished_job_seconds: list[float] = []
        self.first_job_seconds: float | None = None

    def allows_next_job(self) -> bool:
        """Return whether the budget allows another job to start."""
        seconds = self.finished_job_seconds or [self.first_job_seconds or 0.0]
        return self._end is None or time.monotonic() + sum(seconds) / len(seconds) <= self._end


def run_jobs_yielding_results(
    jobs: Sequence[CellJob], *, processes: int, budget: TimeBudget
) -> Iterator[tuple[CellJob, JobResult]]:
    """Run jobs and yield each with its result as soon as it finishes.

    Jobs beyond the time budget are skipped. So are jobs that another process still runs when all others are done.
    """
    waiting = []
    for job in jobs:
        if (result := job.reusable_result) is not None:
            yield job, result
        else:
            waiting.append(job)
    for _ in range(2):  # a second round for jobs that another process was running
        workers, skipped = min(processes, len(waiting)), []
        sequential = (
            (job, run_job_unless_running(job)) for job in takewhile(lambda _: budget.allows_next_job(), waiting)
        )
        for job, result in sequential if workers < 2 else _run_parallel_unless_running(waiting, workers, budget):
            if result is None:
                skipped.append(job)
            else:
                budget.finished_job_seconds.append(result["took"])
                yield job, result
        waiting = skipped


def _run_parallel_unless_running(
    jobs: Sequence[CellJob], processes: int, budget: TimeBudget
) -> Iterator[tuple[CellJob, JobResult | None]]:
    """Run jobs in worker processes and yield each with its result.

    The result is None for a job that another process is running.
    """
    context = get_context("spawn")
    counter = context.Value("i", 0)
    threads = max(1, torch.get_num_threads() // processes)
    waiting, running = list(reversed(jobs)), dict[Future[JobResult | None], CellJob]()
    pool = ProcessPoolExecutor(
        processes, context, initializer=_init_worker_process, initargs=(counter, torch.cuda.device_count(), threads)
    )
    try:
        while waiting or running:
            while waiting and len(running) < processes and budget.allows_next_job():
                job = waiting.pop()
                running[pool.submit(run_job_unless_running, job)] = job
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(done), done.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _init_worker_process(counter: Synchronized[int], num_devices: int, num_threads: int) -> None:
    """Set the number of threads and the GPU of a worker process."""
    with counter.get_lock():
        index, counter.value = counter.value, counter.value + 1
    torch.set_num_threads(num_threads)
    if num_devices > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")  # the GPUs that this user may use, if set
        names = visible if len(visible) >= num_devices else [str(device) for device in range(num_devices)]
        os.environ["CUDA_VISIBLE_DEVICES"] = names[index % num_devices]
