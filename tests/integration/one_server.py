"""For tests of what does not depend on the server, or hardly."""

from __future__ import annotations

import pytest

FIRST_MARIADB = pytest.mark.parametrize(
    "any_server", ["mariadb", pytest.param("mysql9", marks=pytest.mark.matrix)], indirect=True
)
"""One kind in the usual run, the other in the matrix."""
FIRST_MYSQL = pytest.mark.parametrize(
    "any_server", [pytest.param("mariadb", marks=pytest.mark.matrix), "mysql9"], indirect=True
)
ON_MARIADB = pytest.mark.parametrize("any_server", ["mariadb"], indirect=True)
ON_MYSQL = pytest.mark.parametrize("any_server", ["mysql9"], indirect=True)
"""One kind: the other has no such thing, or no line of the product that the test is about knows the kind."""
STORES = [("mariadb_target", "row"), ("mysql9", "table")]
"""Each kind of target and each guard.store once: no statement of a write depends on both."""
EACH_STORE = pytest.mark.parametrize(("server", "store"), STORES, indirect=["server"])
