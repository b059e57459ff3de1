"""One training at a time in a run folder: a file says who trains there, and is touched as a sign of life.

Locks of the operating system are not used: many shared folders do not pass them on to other machines.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from contraport.distributed import is_first, together
from contraport.errors import InUseError, UsageError, check, check_regular, explained
from contraport.runs import Run

BEAT = 20.0
"""Seconds between two signs of life."""

STALE = 300.0
"""Seconds without one after which a lock of another machine no longer counts; shared folders tell late of changes."""


@contextmanager
def locked(run: Run) -> Iterator[None]:
    """Keep other trainings out of a run's folder, which is made if need be; of several processes the first locks it.

    A lock that a killed process left is taken over: at once where the process ran on this machine, otherwise when it
    has given no sign of life for `STALE` seconds.

    Raises:
        InUseError: another training is at work there.
    """
    lock = _Lock(run)
    with together():
        if is_first():
            with run.writing():
                run.path.mkdir(parents=True, exist_ok=True)
                lock.take()
    try:
        yield
    finally:
        lock.release()


class _Lock:
    """The lock file of a run: taken by making it, which only one process can."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._path = run.lock_path
        self._text = json.dumps(_this_process())
        self._released = threading.Event()
        self._beating: threading.Thread | None = None

    def take(self) -> None:
        while True:
            try:
                file = self._path.open("x", encoding="utf-8")
                break
            except (FileExistsError, IsADirectoryError):
                self._clear()
        try:
            with file:
                file.write(self._text)
        except OSError:
            self._path.unlink()
            raise
        self._beating = threading.Thread(target=self._beat, name="contraport lock", daemon=True)
        self._beating.start()

    def release(self) -> None:
        if self._beating is None:
            return
        self._released.set()
        self._beating.join()
        with suppress(OSError, UsageError):  # what cannot be removed ends with this process
            if _read(self._path) == self._text:
                self._path.unlink()

    def _beat(self) -> None:
        while not self._released.wait(BEAT):
            try:
                os.utime(self._path)
            except OSError:
                continue  # the shared folder is away; if it stays so, the training fails by itself

    @explained("contraport docs troubleshooting resume-is-refused")
    def _clear(self) -> None:
        """Put a lock aside that nobody holds any more.

        Raises:
            InUseError: it is held.
            UsageError: it is no file.
        """
        text = _read(self._path)
        if text is None:
            return
        owner = _parsed(text)
        lives = _lives(owner)
        if lives or (lives is None and self._silence() < STALE):
            who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')} since {owner.get('since', '?')}"
            told = f"out: {self._run.path} is being trained by {who}; wait for its end, or stop it."
            unknown = f" If it was killed, its lock ends {STALE / 60:.0f} minutes after its last sign of life."
            raise InUseError(told if lives else told + unknown)
        aside = self._path.with_name(f".lock-{uuid.uuid4().hex}.json")
        try:
            self._path.rename(aside)
        except FileNotFoundError:
            return
        if _read(aside) == text:
            aside.unlink()
        else:  # another process was faster, and this is its lock
            aside.rename(self._path)

    def _silence(self) -> float:
        """Return the seconds since the last sign of life, by the clock of the disk, which all machines share."""
        with tempfile.TemporaryFile(dir=self._run.path) as file:
            now = os.fstat(file.fileno()).st_mtime
        try:
            return now - self._path.stat().st_mtime
        except FileNotFoundError:
            return STALE


def _this_process() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": datetime.now().astimezone().isoformat(" ", "seconds"),
        "machine": _machine(),
        "started": _started(os.getpid()),
        "token": uuid.uuid4().hex,
    }


def _lives(owner: dict[str, Any]) -> bool | None:
    """Return whether the process is at work, or none where this machine cannot tell."""
    pid, machine = owner.get("pid"), owner.get("machine")
    if not isinstance(pid, int) or machine is None or machine != _machine():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return None  # somebody else's, who may have been given the number since
    return _started(pid) == owner.get("started")


def _machine() -> str | None:
    """Return what tells this boot of this machine, and this container's numbers of processes, from all others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no Linux: its locks are judged by their signs of life alone
        return None


def _started(pid: int) -> str | None:
    """Return when a process of this machine started, in the kernel's ticks, or none where it has ended.

    Numbers of processes are given again, so that the number alone does not tell one from another.
    """
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else rest[18]


def _read(path: Path) -> str | None:
    try:
        check_regular("out", path)
        return path.read_text("utf-8", errors="replace")
    except FileNotFoundError:
        check(not path.is_symlink(), f"out: {path} is a link to nothing; remove it.")
        return None


def _parsed(text: str) -> dict[str, Any]:
    try:
        owner = json.loads(text)
    except ValueError:  # it is just being written, or its disk was full
        return {}
    return owner if isinstance(owner, dict) else {}
