"""Folder locks that let only one process write to a folder.

The process touches the lock file regularly (heartbeat). Locks of the operating system are not used, as many network
file systems do not propagate them to other machines.
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

from contraport.errors import (
    FolderInUseError,
    UsageError,
    check,
    check_regular_file,
    check_writable,
    hint_on_error,
    translate_write_errors,
)

LOCK_FILE = "lock.json"  # default name of the lock file in a locked folder
HEARTBEAT_SECONDS = 20.0  # interval of the heartbeat, seconds

STALE_SECONDS = 300.0
"""Seconds without a heartbeat after which a lock of another machine expires; network file systems delay heartbeats."""

POLL_SECONDS = 0.5  # interval between two checks of a lock while waiting for it, seconds
log = logging.getLogger("contraport")


@contextmanager
def lock_folder(
    folder: Path, command: str, *, argument: str = "out", name: str = LOCK_FILE, wait: bool = False
) -> Iterator[None]:
    """Context manager that locks a folder against other processes.

    The folder is created if it is missing. A folder created by this call is removed if it is empty at the end. The lock
    of a killed process is taken over: at once if it ran on this machine, else `STALE_SECONDS` after its last heartbeat.

    Args:
        folder: folder that this process writes to.
        command: name of the command, for the message of another process.
        argument: name of the option that gives the folder, for errors.
        name: name of the lock file.
        wait: wait for the other process to end.

    Raises:
        FolderInUseError: another process holds the lock, and `wait` is false.
        UsageError: the folder cannot be written to.
    """
    lock = _Lock(folder, name, command, argument)
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    check_writable(argument, folder / name)
    with translate_write_errors(argument, folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(wait=wait)
    try:
        yield
    finally:
        lock.release()
        with suppress(OSError):  # not empty
            for path in created:
                path.rmdir()


class _Lock:
    """Lock file of a folder, acquired by exclusive file creation."""

    def __init__(self, folder: Path, name: str, command: str, argument: str) -> None:
        self._folder, self._path, self._argument = folder, folder / name, argument
        self._text = json.dumps({"work": command, **_build_process_record()})
        self._released = threading.Event()

    @hint_on_error("contraport docs troubleshooting resume-is-refused")
    def acquire(self, *, wait: bool) -> None:
        """Create the lock file and start the heartbeat.

        Raises:
            FolderInUseError: another process holds the lock, and `wait` is false.
            UsageError: the lock is not a regular file.
        """
        logged = ""
        while True:
            try:
                file = self._path.open("x", encoding="utf-8")
                break
            except (FileExistsError, IsADirectoryError):
                text = _read_lock_text(self._path, self._argument)
            if text is None:
                continue
            message = self._find_in_use_message(text)
            if message is None:
                self._remove_stale_lock(text)
                continue
            if not wait:
                raise FolderInUseError(message, kind="in_use")
            if message != logged:
                log.info("%s", message)
                logged = message
            time.sleep(POLL_SECONDS)
        try:
            with file:
                file.write(self._text)
        except OSError:
            self._path.unlink()
            raise
        self._heartbeat = threading.Thread(target=self._send_heartbeats, name="contraport lock", daemon=True)
        self._heartbeat.start()

    def release(self) -> None:
        """Stop the heartbeat and remove this process's lock file."""
        self._released.set()
        self._heartbeat.join()
        with suppress(OSError, UsageError):  # a lock that cannot be removed expires with this process
            if _read_lock_text(self._path, self._argument) == self._text:
                self._path.unlink()

    def _send_heartbeats(self) -> None:
        """Touch the lock file at regular intervals until the lock is released."""
        while not self._released.wait(HEARTBEAT_SECONDS):
            try:
                os.utime(self._path)
            except OSError:
                continue  # the network file system is unavailable; if it stays so, the work in it fails anyway

    def _find_in_use_message(self, lock_text: str) -> str | None:
        """Return the error message if the lock is held, or None if stale."""
        try:
            owner = json.loads(lock_text)
        except ValueError:  # being written, or cut short by a full disk
            owner = {}
        owner = owner if isinstance(owner, dict) else {}
        running = _is_running_or_none(owner)
        if running is False or (running is None and self._seconds_since_heartbeat() >= STALE_SECONDS):
            return None
        process = f"process {owner.get('pid', '?')} on {owner.get('host', '?')} since {owner.get('since', '?')}"
        work = f"contraport {owner.get('work', 'train')}"
        message = f"{self._argument}: {self._folder} is in use by {work}, {process}; wait for its end, or stop it."
        if not running:
            message += f" If it was killed, its lock expires {STALE_SECONDS / 60:.0f} minutes after it stopped."
        return message

    def _remove_stale_lock(self, lock_text: str) -> None:
        """Remove a stale lock file unless another process has replaced it."""
        # Renamed first and read again: another process may have replaced the lock since it was read.
        aside = self._path.with_name(f".{self._path.stem}-{uuid.uuid4().hex}.json")
        try:
            self._path.rename(aside)
        except FileNotFoundError:
            return
        if _read_lock_text(aside, self._argument) == lock_text:
            aside.unlink()
        else:  # the new lock of another process
            aside.rename(self._path)

    def _seconds_since_heartbeat(self) -> float:
        """Return the lock file's age in seconds, by the file system's clock."""
        with tempfile.TemporaryFile(dir=self._folder) as file:
            now = os.fstat(file.fileno()).st_mtime
        try:
            return now - self._path.stat().st_mtime
        except FileNotFoundError:
            return STALE_SECONDS


def _build_process_record() -> dict[str, Any]:
    """Build the record of this process for its lock file."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": datetime.now().astimezone().isoformat(" ", "seconds"),
        "machine": _boot_and_container_id(),
        "started": _process_start_time(os.getpid()),
        "token": uuid.uuid4().hex,
    }


def _is_running_or_none(process_record: dict[str, Any]) -> bool | None:
    """Return whether the lock's owner is running, or None if unknown."""
    pid, machine = process_record.get("pid"), process_record.get("machine")
    if not isinstance(pid, int) or machine is None or machine != _boot_and_container_id():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return None  # a process of another user, maybe with a reused number
    return _process_start_time(pid) == process_record.get("started")


def _boot_and_container_id() -> str | None:
    """Return an identifier of this boot and container, or None outside Linux."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux: only the heartbeat counts
        return None


def _process_start_time(pid: int) -> str | None:
    """Return a process's start time in kernel ticks, or None if it ended.

    It distinguishes a process from an earlier one with the same, reused number.
    """
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else rest[18]


def _read_lock_text(path: Path, argument: str) -> str | None:
    """Return the text of a lock file, or None if there is none."""
    try:
        check_regular_file(argument, path)
        return path.read_text("utf-8", errors="replace")
    except FileNotFoundError:
        check(not path.is_symlink(), f"{argument}: {path} is a broken link; remove it.", "broken_link")
        return None
