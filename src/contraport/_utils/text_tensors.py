"""Texts as tensors: the bytes of their UTF-8, one row each, zeros behind the shorter ones.

An item that is a text has the shape ``()``, as each is one value; a batch of them is uint8 ``(b, bytes)``, as long as
its longest. So all that fetches, shuffles, shares and moves numbers does so with texts.
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

TEXT: tuple[int, ...] = ()
"""The shape of a text."""

LONGEST = 32_768
"""Bytes at most of a text; what is longer is cut there, and said."""

_log = logging.getLogger(__name__)


def is_text(shape: Sequence[int]) -> bool:
    """Return whether items of a shape are texts.

    >>> is_text(()), is_text((3,))
    (True, False)
    """
    return len(shape) == 0


def channels(shape: Sequence[int]) -> int:
    """Return of how many channels or features an item of a shape has a mean: none of a text.

    >>> channels((3, 8, 8)), channels(())
    (3, 0)
    """
    return shape[0] if len(shape) > 0 else 0


def is_text_batch(items: Tensor) -> bool:
    """Return whether a batch is one of texts.

    >>> images = torch.zeros(3, 1, 8, 8).byte()
    >>> is_text_batch(encoded(["a text"])), is_text_batch(torch.zeros(3, 2)), is_text_batch(images)
    (True, False, False)
    """
    return items.dtype == torch.uint8 and items.ndim == 2


def item_shape(items: Tensor) -> tuple[int, ...]:
    """Return the shape of one item of a batch.

    >>> item_shape(encoded(["a", "b"])), item_shape(torch.zeros(3, 2))
    ((), (2,))
    """
    return TEXT if is_text_batch(items) else tuple(items.shape[1:])


def as_string_list(argument: str, values: Any) -> list[str] | None:
    """Return a list or an array of strings as a list, or None where it is one of something else.

    What stands for no text, None or NaN, becomes an empty one.

    Raises:
        UsageError: some of the values are texts, and others are something else.

    >>> as_string_list("views", np.array(["a", "b"])), as_string_list("views", np.ones(3))
    (['a', 'b'], None)
    >>> as_string_list("views", ["a", 3])
    Traceback (most recent call last):
    contraport.errors.UsageError: views: expected texts throughout, got 3 in row 1.
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
    texts = ["" if value is None or value != value else value for value in values]
    wrong = next((row for row, text in enumerate(texts) if not isinstance(text, str)), None)
    check(wrong is None, f"{argument}: expected texts throughout, got {texts[wrong or 0]!r} in row {wrong}.")
    return texts


def check_nonempty_texts(argument: str, texts: Sequence[str]) -> None:
    """Raise `UsageError` where a text is empty, or nothing but white space.

    >>> check_nonempty_texts("views", ["a", " "])
    Traceback (most recent call last):
    contraport.errors.UsageError: views: expected a text in each row, got an empty one in 1 of 2 rows, first in row 1.
    """
    empty = [row for row, text in enumerate(texts) if not text.strip()]
    check(
        not empty,
        f"{argument}: expected a text in each row, got an empty one in {len(empty)} of {len(texts)} rows, first in row "
        f"{empty[0] if empty else None}.",
    )


def encode_utf8(texts: Sequence[str], argument: str = "texts") -> list[bytes]:
    """Return the UTF-8 of texts, of which those that are too long are cut, and said.

    Raises:
        UsageError: a text holds a character that is none of Unicode's, or the one that stands behind texts.
    """
    content, cut = [], []
    for row, text in enumerate(texts):
        try:
            own = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"{argument}: expected texts of Unicode, got {text[:40]!r} in row {row}.") from error
        check(b"\0" not in own, f"{argument}: expected texts without a null character, got one in row {row}.")
        if len(own) > LONGEST:
            cut.append(row)
            own = own[:LONGEST].decode("utf-8", "ignore").encode("utf-8")
        content.append(own)
    if cut:
        told = "%s: %d of %d texts are longer than %d bytes, and are cut there, first in row %d"
        _log.warning(told, argument, len(cut), len(texts), LONGEST, cut[0])
    return content


def encoded(texts: Sequence[str], argument: str = "texts") -> Tensor:
    """Return texts as a batch.

    Raises:
        UsageError: they hold what is no text.

    >>> encoded(["a", "bc"])
    tensor([[97,  0],
            [98, 99]], dtype=torch.uint8)
    """
    content = encode_utf8(texts, argument)
    longest = max([1, *map(len, content)])
    padded = b"".join(own.ljust(longest, b"\0") for own in content)
    return torch.frombuffer(bytearray(padded), dtype=torch.uint8).view(len(content), longest)


def decoded(items: Tensor) -> list[str]:
    """Return a batch as texts.

    >>> decoded(encoded(["a", "größer"]))
    ['a', 'größer']
    """
    return [bytes(row).rstrip(b"\0").decode("utf-8", "replace") for row in items.cpu().numpy()]


def concatenated(parts: Sequence[Tensor]) -> Tensor:
    """Return batches one after the other, texts with zeros behind the shorter ones.

    >>> concatenated([encoded(["a"]), encoded(["bc", "d"])]).shape
    torch.Size([3, 2])
    """
    if not is_text_batch(parts[0]):
        return torch.cat(list(parts))
    longest = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (0, longest - part.shape[1])) for part in parts])


def blank(items: int, shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Return items of a shape in which there is nothing.

    >>> blank(2, (3,)).shape, blank(2, ()).dtype
    (torch.Size([2, 3]), torch.uint8)
    """
    if is_text(shape):
        return torch.zeros(items, 1, dtype=torch.uint8, device=device)
    return torch.zeros(items, *shape, device=device)
