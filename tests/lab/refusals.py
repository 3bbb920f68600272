"""The error by which a call is refused, as a value to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cdc_core.errors import LockstepError


def refusal(call: Callable[[], object]) -> LockstepError:
    """What the call raises; fails the test when it raises nothing of ours."""
    with pytest.raises(LockstepError) as caught:
        call()
    return caught.value


@contextmanager
def raises(
    kind: type[LockstepError], code: str, *, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[LockstepError]]:
    """The block ends in an error of this kind and code, whose text has the pattern."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert caught.value.code == code
