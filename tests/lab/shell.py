"""What a test exports: variables of this process's environment, where Lockstep looks for logins and salts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

shell = pytest.MonkeyPatch()
"""Each test ends with the environment that it began with (tests/conftest.py)."""


def export(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        shell.setenv(name, value)
