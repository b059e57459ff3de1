"""Only regular files are opened: to read from a pipe, a socket or a device may take for ever."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from contraport.errors import check


def check_regular(path: str | Path) -> None:
    """Raise `UsageError` unless a path is a regular file, or a link to one.

    Raises:
        OSError: there is nothing at the path.
    """
    check(stat.S_ISREG(os.stat(path).st_mode), f"data: {path} is no regular file, so it is not opened.")
