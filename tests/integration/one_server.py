"""For tests of what does not depend on the server: one kind in the usual run, the other in the matrix."""

from __future__ import annotations

import pytest

ONE_SERVER = pytest.mark.parametrize(
    "any_server", ["mariadb", pytest.param("mysql9", marks=pytest.mark.matrix)], indirect=True
)
