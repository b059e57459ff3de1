"""The parent of the worker: bounds its time, starts it again when it was lost, and judges what each case came to."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
START_SECONDS = 180.0
CASES_OF_A_WORKER = 400
STATUSES = {0: "done", 2: "refused", 1: "stopped", 130: "stopped"}


@dataclass
class Result:
    """What came of a case: done, refused, stopped, or what is wrong with it."""

    kind: str
    number: int
    row: str = "?"
    argv: list[str] = field(default_factory=list)
    outcome: str = ""
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    memory: int = 0

    def __str__(self) -> str:
        again = f"python -m tests.fuzz --kind {self.kind!r} --only {self.number}"
        return f"{again}  # {self.row}\n  {self.argv}\n  " + "\n  ".join(self.wrong)


def run_cases(cases: Sequence[tuple[str, int]], seed: int = 0) -> Iterator[Result]:
    """Yield what came of each case."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        worker: _Worker | None = None
        try:
            for position, (kind, number) in enumerate(cases):
                if worker is None or position % CASES_OF_A_WORKER == 0:
                    if worker is not None:
                        worker.end()
                    worker = _Worker(folder)
                result = worker.bear(kind, number, seed)
                yield result
                if worker.lost:
                    worker.end()
                    worker = None
        finally:
            if worker is not None:
                worker.end()


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Return how many cases of each row came to what."""
    table: dict[str, Counter[str]] = {}
    for result in results:
        row = table.setdefault(result.row, Counter())
        row["tried"] += 1
        row["wrong" if result.wrong else result.outcome] += 1
    return {
        "rows": {name: dict(row) for name, row in sorted(table.items())},
        "wrong": [str(result) for result in results if result.wrong],
        "longest_seconds": round(max(result.seconds for result in results), 1),
        "memory_mib": round(max(result.memory for result in results) / 2**20),
    }


class _Worker:
    """A process of its own session, so that what it starts ends with it."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._answers, given = os.pipe()
        self._rest = b""
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", folder, str(given)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=None,
            text=True,
            pass_fds=(given,),
            start_new_session=True,
        )
        os.close(given)
        self.lost = False
        if self._answer(START_SECONDS) != ["ready"]:
            self.end()
            raise RuntimeError("the worker did not start")

    def bear(self, kind: str, number: int, seed: int) -> Result:
        """Return what came of one case; the worker may be lost by it."""
        result = Result(kind, number)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([kind, number, seed]) + "\n")
        self._process.stdin.flush()
        begun = self._answer(SECONDS)
        if begun is None:
            result.wrong = [f"the case could not be made: {self._last_words()}"]
            self.lost = True
            return result
        _, result.argv, result.row = begun
        start = time.monotonic()
        ended = self._answer(SECONDS)
        result.seconds = time.monotonic() - start
        if ended is None:
            self.lost = True
            died = self._process.poll()
            result.wrong = [f"hung for {SECONDS:.0f} s" if died is None else f"crashed ({died}): {self._last_words()}"]
        else:
            judge(result, ended[1])
        return result

    def end(self) -> None:
        """End the process and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._answers)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _answer(self, seconds: float) -> Any:
        """Return the next line of the worker, or None where it does not come in time."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                return None
            if not (read := os.read(self._answers, 65_536)):
                self._process.wait()  # it has closed its end
                return None
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def _last_words(self) -> str:
        file = self._folder / "err"
        return file.read_text(errors="replace")[-1_500:] if file.exists() else ""


def _faults(status: int | str, err: str) -> list[str]:
    """Return what is wrong with how a command ended: a success, or one line of a mistake, is good."""
    lines = err.splitlines()
    told = [line for line in lines if line.startswith("contraport: ")]
    faults = []
    if status not in STATUSES:
        faults.append(f"status {status}")
    elif status != 0 and not (len(told) == 1 and lines[-1] == told[0]):
        faults.append(f"expected one line, got {err[-1_500:]!r}")
    if "Traceback" in err or "Exception ignored" in err:
        faults.append(f"a traceback: {err[-1_500:]!r}")
    return faults


def judge(result: Result, report: dict[str, Any]) -> None:
    """Note what is wrong: an outcome is good if it is success, or one line that tells a mistake and nothing lost."""
    status = report["status"]
    result.memory = report["memory"]
    result.outcome = STATUSES.get(status, "wrong")
    result.wrong += _faults(status, report["err"])
    if report.get("expected") not in (None, status):
        result.wrong.append(f"expected status {report['expected']}, got {status}")
    if report.get("beside"):
        result.wrong += [f"the command beside it: {fault}" for fault in _faults(*report["beside"])]
    if report.get("after") and (report["after"][0] != 0 or _faults(*report["after"])):
        result.wrong.append(f"the command after it: status {report['after'][0]}, {report['after'][1][-1_500:]!r}")
    if status == 2 and report["lost"]:
        result.wrong.append(f"changed or lost: {report['lost']}")
    if report["half"]:
        result.wrong.append(f"left half-written: {report['half']}")
    if report["children"]:
        result.wrong.append(f"{report['children']} processes are left")
