"""The run that another one replaces in its folder: whole at any moment, until the other has something of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from contraport._utils.files import atomic_write
from contraport.errors import check

if TYPE_CHECKING:
    from contraport.runs.run_folder import RunFolder


class RunBackup:
    """What was in the folder of a run before it, kept in `.replaced` until the run has a checkpoint.

    It is whole once its `config.yaml` is there: that is the last to come and the first to go back, and the folder
    itself has one at any moment. So a process may be killed between any two lines of this.

    Args:
        run: the folder of the one that replaces it.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self.path = run.path / ".replaced"

    def create_backup(self) -> None:
        """Move the run that is in the folder here; where one is here already, remove what came after it.

        Raises:
            UsageError: a folder stands where a run has a file, or a file where it has a folder.
        """
        run = self._run
        for path in (*run.written, self.path):  # before any goes
            folder = path in run.folders or path == self.path
            good = not path.exists() or (path.is_dir() and not path.is_symlink()) == folder
            check(good, f"out: {path} is not what a run has there, so that the run is not overwritten.")
        if self._whole():  # another has begun to replace it, and has no checkpoint
            self._remove_newer()
            return
        self.path.mkdir()
        for path in run.written:
            if os.path.lexists(path):
                path.rename(self.path / path.name)
        with atomic_write(self.path / run.config_path.name) as copy:
            shutil.copyfile(run.config_path, copy)

    def settle(self) -> None:
        """Finish what a killed process left, where it had begun to move or to remove files."""
        if self._whole() and self._run.last_checkpoint.exists():
            self.delete_backup()
        elif not self._whole() and self.path.exists():
            self._move_back()

    def roll_back(self) -> None:
        """Put it in its place again, unless the run that replaces it has a checkpoint."""
        if self._whole() and not self._run.last_checkpoint.exists():
            self._remove_newer()
            os.replace(self.path / self._run.config_path.name, self._run.config_path)
        self.settle()

    def delete_backup(self) -> None:
        """Remove it, if there is one."""
        if not self._whole():
            return
        for path in self._run.written:
            _remove(self.path / path.name)
        shutil.rmtree(self.path)

    def _whole(self) -> bool:
        return (self.path / self._run.config_path.name).exists()

    def _move_back(self) -> None:
        for path in self._run.written:
            kept = self.path / path.name
            if os.path.lexists(kept):
                kept.rename(path)
        shutil.rmtree(self.path)

    def _remove_newer(self) -> None:
        for path in self._run.written:
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
