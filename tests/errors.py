"""Expected errors, by their codes rather than their wording."""

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase

import pytest

from contraport.errors import UsageError


@contextmanager
def raises_usage_error(code: str, *values: object) -> Iterator[pytest.ExceptionInfo[UsageError]]:
    """Expect a `UsageError` with this code whose message contains the values, such as the invalid one.

    The code may be a pattern, such as `data.*` for an error of another package.
    """
    with pytest.raises(UsageError) as caught:
        yield caught
    assert fnmatchcase(caught.value.code, code), f"[{caught.value.code}] {caught.value}"
    for value in values:
        assert str(value) in str(caught.value)
