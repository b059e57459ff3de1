"""Locks of folders: one process fills a folder at a time, and its lock file names it.

The file is touched as a sign of life. Locks of the operating system are not used: many shared folders do not pass them
on to other machines.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from contraport.errors import FolderInUseError, UsageError, check, check_regular_file, explained, writing

LOCK = "lock.json"

BEAT = 20.0
"""Seconds between two signs of life."""

STALE = 300.0
"""Seconds without one after which a lock of another machine no longer counts; shared folders tell late of changes."""

LOOKS = 0.5
"""Seconds between two looks at a lock that is waited for."""

log = logging.getLogger("contraport")


@contextmanager
def locked(folder: Path, work: str, *, argument: str = "out", name: str = LOCK, wait: bool = False) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if need be, and goes again where nothing came into it.

    A lock that a killed process left is taken over: at once where the process ran on this machine, otherwise when it
    has given no sign of life for `STALE` seconds.

    Args:
        folder: what this process fills.
        work: the command that fills it, for the message of the other process.
        argument: the option that names the folder.
        name: of the lock file in the folder.
        wait: wait for the end of the other process.

    Raises:
        FolderInUseError: another process is at work there, and `wait` is false.
        UsageError: the folder cannot be written to.
    """
    lock = _Lock(folder, name, work, argument)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with writing(argument, folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock.take(wait=wait)
    try:
        yield
    finally:
        lock.release()
        with suppress(OSError):  # it is not empty
            for path in made:
                path.rmdir()


class _Lock:
    """A lock file: taken by making it, which only one process can."""

    def __init__(self, folder: Path, name: str, work: str, argument: str) -> None:
        self._folder, self._path, self._argument = folder, folder / name, argument
        self._text = json.dumps({"work": work, **_this_process()})
        self._released = threading.Event()

    def take(self, *, wait: bool) -> None:
        told = ""
        while True:
            try:
                file = self._path.open("x", encoding="utf-8")
                break
            except (FileExistsError, IsADirectoryError):
                try:
                    self._clear()
                except FolderInUseError as error:
                    if not wait:
                        raise
                    if told != (told := str(error)):
                        log.info("%s", told)
                    time.sleep(LOOKS)
        try:
            with file:
                file.write(self._text)
        except OSError:
            self._path.unlink()
            raise
        self._beating = threading.Thread(target=self._beat, name="contraport lock", daemon=True)
        self._beating.start()

    def release(self) -> None:
        self._released.set()
        self._beating.join()
        with suppress(OSError, UsageError):  # what cannot be removed ends with this process
            if _read(self._path, self._argument) == self._text:
                self._path.unlink()

    def _beat(self) -> None:
        while not self._released.wait(BEAT):
            try:
                os.utime(self._path)
            except OSError:
                continue  # the shared folder is away; if it stays so, the work in it fails by itself

    @explained("contraport docs troubleshooting resume-is-refused")
    def _clear(self) -> None:
        """Put a lock aside that nobody holds any more.

        Raises:
            FolderInUseError: it is held.
            UsageError: it is no file.
        """
        text = _read(self._path, self._argument)
        if text is None:
            return
        owner = _parsed(text)
        lives = _lives(owner)
        if lives or (lives is None and self._silence() < STALE):
            who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')} since {owner.get('since', '?')}"
            work = f"contraport {owner.get('work', 'train')}"
            told = f"{self._argument}: {self._folder} is in use by {work}, {who}; wait for its end, or stop it."
            unknown = f" If it was killed, its lock ends {STALE / 60:.0f} minutes after its last sign of life."
            raise FolderInUseError(told if lives else told + unknown)
        aside = self._path.with_name(f".{self._path.stem}-{uuid.uuid4().hex}.json")
        try:
            self._path.rename(aside)
        except FileNotFoundError:
            return
        if _read(aside, self._argument) == text:
            aside.unlink()
        else:  # another process was faster, and this is its lock
            aside.rename(self._path)

    def _silence(self) -> float:
        """Return the seconds since the last sign of life, by the clock of the disk, which all machines share."""
        with tempfile.TemporaryFile(dir=self._folder) as file:
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


def _read(path: Path, argument: str) -> str | None:
    try:
        check_regular_file(argument, path)
        return path.read_text("utf-8", errors="replace")
    except FileNotFoundError:
        check(not path.is_symlink(), f"{argument}: {path} is a link to nothing; remove it.")
        return None


def _parsed(text: str) -> dict[str, Any]:
    try:
        owner = json.loads(text)
    except ValueError:  # it is just being written, or its disk was full
        return {}
    return owner if isinstance(owner, dict) else {}
