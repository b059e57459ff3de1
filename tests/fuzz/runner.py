"""Runner of fuzz cases: sends them to a worker process, limits their time, and judges the results."""

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

from tests import TIMEOUT

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
CASES_PER_WORKER = 400
STATUSES = {0: "done", 2: "refused", 1: "stopped", 130: "stopped"}


@dataclass
class Result:
    """Result of a fuzz case: its outcome (done, refused or stopped) and its faults."""

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


def run_cases(cases: Sequence[tuple[str, int]], seed: int = 0, seconds: float = SECONDS) -> Iterator[Result]:
    """Run cases and yield their results; a worker that crashes, or takes too long for a case, is replaced."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        worker: _Worker | None = None
        try:
            for position, (kind, number) in enumerate(cases):
                if worker is None or position % CASES_PER_WORKER == 0:
                    if worker is not None:
                        worker.stop()
                    worker = _Worker(folder)
                result = worker.run_case(kind, number, seed, seconds)
                yield result
                if worker.lost:
                    worker.stop()
                    worker = None
        finally:
            if worker is not None:
                worker.stop()


def summarize(results: Sequence[Result]) -> dict[str, Any]:
    """Count the outcomes of the cases in each row of the table."""
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
    """Worker process in its own session, so that its child processes can be killed with it."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._pipe, write_end = os.pipe()
        self._unread = b""
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", folder, str(write_end)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=None,
            text=True,
            pass_fds=(write_end,),
            start_new_session=True,
        )
        os.close(write_end)
        self.lost = False
        if self._read_line(TIMEOUT) != ["ready"]:
            self.stop()
            raise RuntimeError("the worker did not start")

    def run_case(self, kind: str, number: int, seed: int, seconds: float) -> Result:
        """Run one case and return its result; sets `lost` if the worker hangs or crashes."""
        result = Result(kind, number)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([kind, number, seed]) + "\n")
        self._process.stdin.flush()
        started = self._read_line(seconds)
        if started is None:
            result.wrong = [f"the case could not be prepared: {self._error_output()}"]
            self.lost = True
            return result
        _, result.argv, result.row = started
        start = time.monotonic()
        report_line = self._read_line(seconds)
        result.seconds = time.monotonic() - start
        if report_line is None:
            self.lost = True
            died = self._process.poll()
            result.wrong = [
                f"hung for {seconds:.0f} s" if died is None else f"crashed ({died}): {self._error_output()}"
            ]
        else:
            judge(result, report_line[1])
        return result

    def stop(self) -> None:
        """Kill the process and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._pipe)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _read_line(self, seconds: float) -> Any:
        """Read the next line of the worker; return None if it does not come in time."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._pipe], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                return None
            if not (read := os.read(self._pipe, 65_536)):
                self._process.wait()  # the worker has closed the pipe
                return None
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def _error_output(self) -> str:
        file = self._folder / "err"
        return file.read_text(errors="replace")[-1_500:] if file.exists() else ""


def _faults(status: int | str, err: str) -> list[str]:
    """Return the faults of an exit: neither a success nor a failure with one error line, or a traceback."""
    lines = err.splitlines()
    error_lines = [line for line in lines if line.startswith("contraport: ")]
    faults = []
    if status not in STATUSES:
        faults.append(f"status {status}")
    elif status != 0 and not (len(error_lines) == 1 and lines[-1] == error_lines[0]):
        faults.append(f"expected one line, got {err[-1_500:]!r}")
    if "Traceback" in err or "Exception ignored" in err:
        faults.append(f"a traceback: {err[-1_500:]!r}")
    return faults


def judge(result: Result, report: dict[str, Any]) -> None:
    """Fill in the outcome and faults of a result: a rejected command must print one line and change no file."""
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
