"""What the tests of a source share: a database of their own, on each kind of server in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab.databases import drop_database
from tests.lab.lab import Lab
from tests.lab.origin import Origin, fresh_name


@pytest.fixture(scope="module", params=["mariadb", "mysql9"])
def any_server(request: pytest.FixtureRequest) -> object:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["mariadb_target", "mysql9"])
def server(request: pytest.FixtureRequest) -> object:
    """A server to write to, of each kind in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def origin(any_server: object) -> Iterator[Origin]:
    """An empty database, dropped after the test."""
    name = fresh_name()
    made = Origin(any_server, name)  # type: ignore[arg-type]
    made.execute_on_server(f"CREATE DATABASE {name}")
    yield made
    made.control.close()
    drop_database(made.sql, name)


@pytest.fixture
def make_line(origin: Origin, tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    with ExitStack() as labs:
        yield lambda **sections: labs.enter_context(Lab(tmp_path, origin, **sections))
