"""What the tests of a source share: a database of their own, on each kind of server in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.databases import drop_database
from tests.integration.line import Line
from tests.integration.source_origin import Origin, fresh_name


@pytest.fixture(scope="module", params=["mariadb", "mysql9"])
def any_server(request: pytest.FixtureRequest) -> object:
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
def make_line(origin: Origin, tmp_path: Path) -> Callable[..., Line]:
    return lambda **options: Line(origin, tmp_path, **options)
