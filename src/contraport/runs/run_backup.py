"""Backup of a run that `overwrite` replaces, kept until the new run has a checkpoint.

A process may be killed between any two operations, and either the old or the new run is complete.
"""

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
    """Backup of the replaced run, in the subfolder `.replaced` of the run folder.

    The backup is complete exactly if it has a `config.yaml`, which is copied last and moved back first. The run folder
    itself has a `config.yaml` at any moment. This makes every state after a kill recognizable.

    Args:
        run: the run folder.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self.path = run.path / ".replaced"

    def move_to_backup(self) -> None:
        """Move the files of the current run to the backup; if a backup exists, delete the current run instead.

        Raises:
            UsageError: a folder has the name of a file of a run, or a file that of a folder.
        """
        run = self._run
        for path in (*run.paths_besides_config, self.path):  # all checks before the first move
            folder = path in run.subfolders or path == self.path
            good = not path.exists() or (path.is_dir() and not path.is_symlink()) == folder
            check(good, f"out: {path} is not a file of a run, so the run is not overwritten.", "foreign_file")
        if self._is_complete():  # an earlier replacement has no checkpoint yet: the backup is worth more than it
            self._delete_current_run()
            return
        self.path.mkdir()
        for path in run.paths_besides_config:
            if os.path.lexists(path):
                path.rename(self.path / path.name)
        with atomic_write(self.path / run.config_path.name) as copy:
            shutil.copyfile(run.config_path, copy)

    def finish_interrupted_operation(self) -> None:
        """Complete the move or deletion of a backup that a killed process left unfinished."""
        if self._is_complete() and self._run.last_checkpoint.exists():
            self.delete_backup()
        elif not self._is_complete() and self.path.exists():
            self._move_back()

    def roll_back(self) -> None:
        """Restore the replaced run from the backup, unless the new run has a checkpoint."""
        if self._is_complete() and not self._run.last_checkpoint.exists():
            self._delete_current_run()
            os.replace(self.path / self._run.config_path.name, self._run.config_path)
        self.finish_interrupted_operation()

    def delete_backup(self) -> None:
        """Delete the backup of the replaced run, if there is one."""
        if not self._is_complete():
            return
        for path in self._run.paths_besides_config:
            _delete(self.path / path.name)
        shutil.rmtree(self.path)

    def _is_complete(self) -> bool:
        return (self.path / self._run.config_path.name).exists()

    def _move_back(self) -> None:
        for path in self._run.paths_besides_config:
            saved = self.path / path.name
            if os.path.lexists(saved):
                saved.rename(path)
        shutil.rmtree(self.path)

    def _delete_current_run(self) -> None:
        for path in self._run.paths_besides_config:
            _delete(path)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
