"""Data behind a URL: fetched once by fsspec into a folder of this machine, and again where they have changed."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from contraport._utils.files import atomic_write, read_json, write_json
from contraport._utils.formatting import pluralize
from contraport._utils.progress import ProgressBars, StepCallback
from contraport.data.formats.shards import expanded
from contraport.errors import UsageError, check, import_optional, one_line_reason

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(::[A-Za-z][A-Za-z0-9+.-]*)*://.+")

MEGABYTE = 1_000_000

log = logging.getLogger("contraport.data")


def is_remote(data: str) -> bool:
    """Return whether data are named by a URL.

    >>> is_remote("s3://bucket/train-{000..003}.tar"), is_remote("photos"), is_remote("C://photos")
    (True, False, False)
    """
    return _URL.fullmatch(data) is not None


def fetched(url: str, cache: Path) -> str:
    """Return where on this machine the data behind a URL are, after they were fetched.

    A file, several by braces in the last part of the URL, as in ``s3://bucket/train-{000..003}.tar``, or a folder with
    all that is in it. What was fetched before and has not changed since is taken from the cache; where it cannot be
    known the copy is taken too, and the log says so.

    Args:
        url: of any protocol that fsspec knows; some ask for a package, such as s3fs.
        cache: the folder that keeps what was fetched.

    Raises:
        UsageError: a protocol that is not known, or what can be found neither there nor in the cache.
    """
    fsspec = import_optional("fsspec", "remote", f"data: {url}")
    parent, _, last = url.rstrip("/").rpartition("/")
    told = f"data: {url}: expected braces in its last part only."
    check("{" not in parent, told)
    place = cache / hashlib.sha256(parent.encode()).hexdigest()[:16]
    found: list[tuple[Any, str, Path, str]] = []
    for one in expanded(f"{parent}/{last}"):
        name = one.rpartition("/")[2]
        try:
            system, path = fsspec.core.url_to_fs(one)
            files = dict(_files(system, path))
        except Exception as error:  # as many kinds as there are protocols
            if not (place / name).exists():
                raise UsageError(f"data: {one} cannot be had: {one_line_reason(error)}") from error
            log.warning("%s cannot be reached (%s): its copy in %s is taken", one, one_line_reason(error), place)
            continue
        check(len(files) > 0, f"data: {one}: there is nothing.")
        local = place / name
        _forget(local, {local / inside for inside in files}, one)
        found += [(system, file, local / inside if inside else local, one) for inside, file in files.items()]
    lacking = [file for file in found if not _is_there(*file)]
    if lacking:  # a warning, as it is seen before a run speaks, and may take long
        log.warning("fetching %s of %s into %s, where it is kept", pluralize(len(lacking), "file"), url, place)
        bars = ProgressBars(shown=True)
        for file in bars.track(lacking, f"files of {url}", total=len(lacking)):
            _fetch(*file, bars)
    return str(place / last)


def _files(system: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the files of a path: by the way to each within a folder, or by nothing where it is a file itself."""
    if not system.isdir(path):
        if system.exists(path):
            yield "", path
        return
    for file in sorted(system.find(path)):
        inside = file[len(path) :].lstrip("/") if file.startswith(path) else file.rpartition("/")[2]
        check(".." not in inside.split("/"), f"data: {file}: expected a name within its folder.")
        yield inside, file


def _forget(folder: Path, there: Collection[Path], url: str) -> None:
    """Remove what was fetched into a folder and is no more behind its URL, such as an image that changed its class."""
    told = [file for file in folder.rglob(".*.json") if (read_json(file) or {}).keys() == {"file", "key"}]
    gone = [file for beside in told if (file := beside.with_name(beside.name[1:-5])) not in there]
    for file in gone:
        file.unlink(missing_ok=True)
        _beside(file).unlink(missing_ok=True)
    if gone:
        log.warning("removed from %s what is no more behind %s: %s", folder, url, pluralize(len(gone), "file"))


def _is_there(system: Any, file: str, local: Path, url: str) -> bool:
    """Return whether a file was fetched to its place before and has not changed since."""
    beside = _beside(local)
    if not (local.exists() and beside.exists()):
        return False
    if read_json(beside) == _state(system, file):
        return True
    log.warning("%s has changed, and is fetched again: %s", url, file)
    return False


def _fetch(system: Any, file: str, local: Path, url: str, bars: ProgressBars) -> None:
    """Put a file in its place, and show how much of it is there."""
    now = _state(system, file)
    try:
        local.parent.mkdir(parents=True, exist_ok=True)
        size = system.size(file)
        with atomic_write(local) as temporary, bars.steps(size and size // MEGABYTE, f"MB of {local.name}") as step:
            system.get_file(file, str(temporary), callback=_megabytes(step, f"MB of {local.name}"))
        write_json(_beside(local), now)
    except Exception as error:
        raise UsageError(
            f"data: {url}: {file} cannot be fetched to {local.parent}: {one_line_reason(error)}"
        ) from error
    log.info("fetched %s into %s: %.1f MB", file, local.parent, local.stat().st_size / 1e6)


def _megabytes(step: StepCallback, told: str) -> Any:
    """Return what fsspec is to call as bytes come, which makes a step of each megabyte."""
    seen = 0

    def come(size: int | None, value: int, **_: Any) -> None:
        nonlocal seen
        for _number in range(seen, value // MEGABYTE):
            step(told)
        seen = max(seen, value // MEGABYTE)

    return import_optional("fsspec", "remote", "data: a URL").callbacks.Callback(hooks={"megabytes": come})


def _beside(local: Path) -> Path:
    """Return the file that tells what was fetched to a place."""
    return local.with_name(f".{local.name}.json")


def _state(system: Any, file: str) -> dict[str, str]:
    return {"file": file, "key": str(system.ukey(file))}
