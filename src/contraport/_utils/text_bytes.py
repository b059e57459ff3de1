"""Conversion of texts to tensors of zero-padded UTF-8 bytes and back.

A text item has the shape ``()``. A batch of texts is uint8 ``(b, bytes)``, as wide as its longest text. So the code
that loads, shuffles, shares and moves tensors handles texts without special cases.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.errors import UsageError, check

TEXT_SHAPE: tuple[()] = ()  # shape of a text item
MAX_TEXT_BYTES = 32_768  # maximum length of a text; longer texts are cut, with a warning
_log = logging.getLogger(__name__)


def is_text_batch(items: Tensor) -> bool:
    """Return whether a batch holds texts."""
    return items.dtype == torch.uint8 and items.ndim == 2


def item_shape(items: Tensor) -> tuple[int, ...]:
    """Return the shape of one item of a batch, which is ``()`` for a text."""
    return TEXT_SHAPE if is_text_batch(items) else tuple(items.shape[1:])


def texts_or_none_if_no_strings(argument: str, values: Any) -> list[str] | None:
    """Return the values as a list if they are strings, else None.

    Missing values, None, NaN or those of pandas, become empty texts.

    Raises:
        UsageError: only some of the values are texts.
    """
    if not isinstance(values, list):
        kind = getattr(values, "dtype", None)
        if isinstance(values, Tensor) or kind is None or np.ndim(values) != 1:
            return None
        values = np.asarray(values)
        if values.dtype.kind not in "UOT":
            return None
        values = values.tolist()
    if not any(isinstance(value, str) for value in values):
        return None
    texts: list[str] = []
    for row, value in enumerate(values):
        if isinstance(value, str):
            texts.append(value)
            continue
        is_nan = isinstance(value, float | np.floating) and bool(np.isnan(value))
        # By the names of their types, as pandas need not be installed; NA cannot be compared with itself.
        if value is not None and not is_nan and type(value).__name__ not in ("NAType", "NaTType"):
            raise UsageError(f"{argument}: must be texts in all rows, got {value!r} in row {row}.", kind="mixed")
        texts.append("")
    return texts


def check_nonblank_texts(argument: str, texts: Sequence[str]) -> None:
    """Raise `UsageError` if any text is empty or only white space."""
    empty = [row for row, text in enumerate(texts) if not text.strip()]
    check(
        not empty,
        f"{argument}: must not be empty texts, got {len(empty)} of {len(texts)} empty, the first in row "
        f"{empty[0] if empty else None}.",
        "empty_text",
    )


def encode_truncated_utf8(texts: Sequence[str], argument: str = "texts") -> list[bytes]:
    """Encode texts as UTF-8, cut to `MAX_TEXT_BYTES` with a warning.

    Raises:
        UsageError: a text contains a surrogate or a null character (the padding).
    """
    encoded, cut = [], []
    for row, text in enumerate(texts):
        try:
            content = text.encode("utf-8")
        except UnicodeEncodeError as error:
            message = f"{argument}: must be valid Unicode texts, got {text[:40]!r} in row {row}."
            raise UsageError(message, kind="not_unicode") from error
        null = f"{argument}: must be texts without null characters, got one in row {row}."
        check(b"\0" not in content, null, "null_character")
        if len(content) > MAX_TEXT_BYTES:
            cut.append(row)
            content = content[:MAX_TEXT_BYTES].decode("utf-8", "ignore").encode("utf-8")
        encoded.append(content)
    if cut:
        message = "%s: %d of %d texts are longer than %d bytes and were cut, first in row %d"
        _log.warning(message, argument, len(cut), len(texts), MAX_TEXT_BYTES, cut[0])
    return encoded


def texts_to_tensor(texts: Sequence[str], argument: str = "texts") -> Tensor:
    """Convert texts to a uint8 tensor of UTF-8 bytes, ``(b, bytes)``."""
    encoded = encode_truncated_utf8(texts, argument)
    longest = max([1, *map(len, encoded)])
    padded = b"".join(content.ljust(longest, b"\0") for content in encoded)
    return torch.frombuffer(bytearray(padded), dtype=torch.uint8).view(len(encoded), longest)


def tensor_to_texts(items: Tensor) -> list[str]:
    """Convert a tensor of UTF-8 bytes to texts."""
    return [bytes(row).rstrip(b"\0").decode("utf-8", "replace") for row in items.cpu().numpy()]


def concatenate_batches(batches: Sequence[Tensor]) -> Tensor:
    """Concatenate batches of any items, padding texts to the longest."""
    if not is_text_batch(batches[0]):
        return torch.cat(list(batches))
    longest = max(batch.shape[1] for batch in batches)
    return torch.cat([F.pad(batch, (0, longest - batch.shape[1])) for batch in batches])
