"""The error by which a call is refused, as a value to look at."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cdc_core.errors import LockstepError


def refusal(call: Callable[[], object]) -> LockstepError:
    """What the call raises; fails the test when it raises nothing of ours."""
    with pytest.raises(LockstepError) as caught:
        call()
    return caught.value
