"""Local copies of files at URLs, downloaded again when the originals change."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from contraport._utils.files import atomic_write, read_json_or_none, write_json
from contraport._utils.formatting import pluralize
from contraport._utils.progress import ProgressBars
from contraport.data.formats.shards import expand_braces
from contraport.errors import UsageError, check, import_optional, one_line_reason

BYTES_PER_MEGABYTE = 1_000_000

log = logging.getLogger("contraport.data")


def is_remote(data: str) -> bool:
    """Return whether a string is a URL, including fsspec's chained URLs.

    >>> is_remote("s3://bucket/train-{000..003}.tar"), is_remote("photos"), is_remote("C://photos")
    (True, False, False)
    """
    return re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]+(::[A-Za-z][A-Za-z0-9+.-]*)*://.+", data) is not None


class _RemoteFile(NamedTuple):
    """File at a URL, and its copy in the cache.

    Attributes:
        file_system: the file system of fsspec.
        path: path on the file system.
        local_path: path of the copy in the cache.
        url: the URL as messages state it.
        state: path and a checksum or date that changes with the file, recorded with its copy.
    """

    file_system: Any
    path: str
    local_path: Path
    url: str
    state: dict[str, str]


def download_if_new_or_changed(url: str, cache_folder: Path) -> str:
    """Download the data at a URL unless an unchanged copy is cached; return its path.

    The URL is that of a file, of several files by braces in its last part as in ``s3://bucket/train-{000..003}.tar``,
    or of a folder, which is downloaded with all its content. A cached copy is used if the data have not changed, and
    also, with a warning, if the URL cannot be reached.

    Args:
        url: of any protocol that fsspec supports; some need a further package, such as s3fs.
        cache_folder: folder of the downloads.

    Raises:
        UsageError: an unknown protocol, or data that are neither at the URL nor in the cache.
    """
    fsspec = import_optional("fsspec", "remote", f"data: {url}")
    parent, _, last = url.rstrip("/").rpartition("/")
    check("{" not in parent, f"data: {url} must have braces in its last part only.", "braces")
    folder = cache_folder / hashlib.sha256(parent.encode()).hexdigest()[:16]
    files: list[_RemoteFile] = []
    for one in expand_braces(f"{parent}/{last}"):
        local = folder / one.rpartition("/")[2]
        try:
            system, path = fsspec.core.url_to_fs(one)
            paths = _get_paths_by_relative_path(system, path)
            check(len(paths) > 0, f"data: there is nothing at {one}.", "not_found")
            outside = [path for inside, path in paths.items() if ".." in inside.split("/")]
            message = f"data: {one}: must have paths within the folder, got {''.join(outside[:1])}."
            check(not outside, message, "outside_folder")
            states = {inside: {"file": file, "key": str(system.ukey(file))} for inside, file in paths.items()}
        except UsageError:
            raise
        except Exception as error:  # each protocol raises its own errors
            if not local.exists():
                package = f"fsspec[{one.partition('://')[0].replace('https', 'http')}]"
                install = f": pip install {package!r}" if isinstance(error, ImportError) else ""
                message = f"data: {one} cannot be read: {one_line_reason(error)}{install}"
                raise UsageError(message, kind="unreadable") from error
            log.warning("%s cannot be reached (%s): its copy in %s is used", one, one_line_reason(error), folder)
            continue
        _remove_stale_files(local, {local / inside for inside in paths}, one)
        files += [
            _RemoteFile(system, path, local / inside if inside else local, one, states[inside])
            for inside, path in paths.items()
        ]
    missing = []
    for file in files:
        record = _get_download_record_path(file.local_path)
        has_copy = file.local_path.exists() and record.exists()
        if not has_copy or read_json_or_none(record) != file.state:
            missing.append(file)
            if has_copy:
                log.warning("%s has changed, and is downloaded again: %s", file.url, file.path)
    if missing:  # a warning, so that it shows before the log of a run is set up: this may take long
        log.warning("downloading %s of %s to %s", pluralize(len(missing), "file"), url, folder)
        bars = ProgressBars(shown=True)
        for file in bars.track(missing, f"files of {url}", total=len(missing)):
            _download_and_record(file, bars)
    return str(folder / last)


def _get_paths_by_relative_path(system: Any, path: str) -> dict[str, str]:
    """Map relative paths of remote files under `path` to full paths."""
    if not system.isdir(path):
        return {"": path} if system.exists(path) else {}
    paths = {}
    for file in sorted(system.find(path)):
        inside = file[len(path) :].lstrip("/") if file.startswith(path) else file.rpartition("/")[2]
        paths[inside] = file
    return paths


def _remove_stale_files(folder: Path, current: Collection[Path], url: str) -> None:
    """Remove cached files that no longer exist at the URL."""
    records = [file for file in folder.rglob(".*.json") if (read_json_or_none(file) or {}).keys() == {"file", "key"}]
    stale = [file for record in records if (file := record.with_name(record.name[1:-5])) not in current]
    for file in stale:
        file.unlink(missing_ok=True)
        _get_download_record_path(file).unlink(missing_ok=True)
    if stale:
        log.warning("removed %s from %s that %s no longer has", pluralize(len(stale), "file"), folder, url)


def _download_and_record(file: _RemoteFile, bars: ProgressBars) -> None:
    """Download one file into the cache, and record its checksum or date."""
    local, name, shown = file.local_path, f"MB of {file.local_path.name}", 0
    try:
        local.parent.mkdir(parents=True, exist_ok=True)
        size = file.file_system.size(file.path)
        with atomic_write(local) as temporary, bars.open_step_bar(size and size // BYTES_PER_MEGABYTE, name) as begin:

            def advance(size: int | None, value: int, **_: Any) -> None:
                nonlocal shown
                for _number in range(shown, value // BYTES_PER_MEGABYTE):
                    begin(name)
                shown = max(shown, value // BYTES_PER_MEGABYTE)

            callback = import_optional("fsspec", "remote", "data: a URL").callbacks.Callback(hooks={"bar": advance})
            file.file_system.get_file(file.path, str(temporary), callback=callback)
        write_json(_get_download_record_path(local), file.state)
    except Exception as error:
        message = f"data: {file.url}: {file.path} cannot be downloaded to {local.parent}: {one_line_reason(error)}"
        raise UsageError(message, kind="unreadable") from error
    log.info("downloaded %s to %s: %.1f MB", file.path, local.parent, local.stat().st_size / 1e6)


def _get_download_record_path(local: Path) -> Path:
    """Return the path of the record of a file's last download."""
    return local.with_name(f".{local.name}.json")
