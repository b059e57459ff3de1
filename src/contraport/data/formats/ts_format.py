"""The ``.ts`` format of time series with classes, as aeon and sktime write it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from contraport.errors import UsageError, check, check_regular_file, unreadable_error


class LabelledSeries(NamedTuple):
    """Series ``(C, T)``, whose lengths may differ, and the class of each."""

    series: list[np.ndarray]
    labels: list[str]


def read_ts(path: Path) -> LabelledSeries:
    """Return the series in a ``.ts`` file.

    After the header, which ends in ``@data``, a line is a series: its channels and then its class, with colons between
    and commas between the values of a channel.

    Raises:
        UsageError: the file is missing or is not of this format, or a value is missing.
    """
    try:
        check_regular_file("data", path)
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable_error(f"data: {path}", "text", error) from error
    header = [line.strip().lower() for line in lines]
    check("@data" in header, f"data: {path}: expected a line @data before the series, found none.")
    first = header.index("@data") + 1
    labelled = any(line.split()[:2] == ["@classlabel", "true"] for line in header[:first])
    check(labelled, f"data: {path}: expected '@classLabel true' in its header, found none.")
    series, labels = [], []
    for number, line in enumerate(lines[first:], start=first + 1):
        if line.strip():
            *channels, label = line.strip().split(":")
            series.append(_parsed(channels, f"data: {path}, line {number}"))
            labels.append(label)
    check(len(series) > 0, f"data: {path} has no series.")
    channels_of = [len(one) for one in series]
    check(
        len(set(channels_of)) == 1, f"data: {path}: expected equal numbers of channels, got {sorted(set(channels_of))}."
    )
    return LabelledSeries(series, labels)


def padded(series: list[np.ndarray]) -> np.ndarray:
    """Return series of unequal lengths as one array, each going on with its last values to the length of the longest.

    >>> padded([np.array([[1.0, 2.0]]), np.array([[3.0, 4.0, 5.0]])]).tolist()
    [[[1.0, 2.0, 2.0]], [[3.0, 4.0, 5.0]]]
    """
    longest = max(one.shape[1] for one in series)
    return np.stack([np.pad(one, ((0, 0), (0, longest - one.shape[1])), mode="edge") for one in series])


def _parsed(channels: list[str], where: str) -> np.ndarray:
    check(len(channels) > 0, f"{where}: expected channels and a class with colons between, found no colon.")
    try:
        values = [np.array(channel.split(","), dtype=np.float64) for channel in channels]
    except ValueError as error:
        raise UsageError(f"{where}: expected numbers, with none missing: {error}") from error
    lengths = sorted({len(channel) for channel in values})
    check(len(lengths) == 1, f"{where}: expected channels of one length, got {lengths}.")
    return np.stack(values)
