"""What the tests of a source share: a database of their own, on each kind of server in turn."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from cdc_core.targets.writing import direct
from examples.sandbox.s3 import S3Server
from examples.sandbox.sql_server import SqlServer
from tests.integration.one_server import STORES
from tests.integration.replicated import Pair, start
from tests.lab.databases import own_database
from tests.lab.lab import Lab
from tests.lab.origin import Origin, own_origin
from tests.lab.target_rows import Table, target_table
from tests.lab.verified import Verified


@pytest.fixture(scope="module", params=["mariadb", "mysql9"])
def any_server(request: pytest.FixtureRequest) -> SqlServer:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["mariadb_target", "mysql9"])
def server(request: pytest.FixtureRequest) -> SqlServer:
    """A server to write to, of each kind in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=STORES, ids=" ".join)
def table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    """A table to write to. TARGET is the URL of its server."""
    server, store = request.param
    sandbox = request.getfixturevalue(server)
    monkeypatch.setenv("TARGET", sandbox.url)
    with target_table(sandbox, store=store) as made:
        yield made


@pytest.fixture
def origin(any_server: SqlServer) -> Iterator[Origin]:
    with own_origin(any_server) as origin:
        yield origin


@pytest.fixture
def database(any_server: SqlServer) -> Iterator[str]:
    with own_database(any_server) as name:
        yield name


@pytest.fixture
def make_line(origin: Origin, tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    with ExitStack() as labs:
        yield lambda **sections: labs.enter_context(Lab(tmp_path, origin, **sections))


@pytest.fixture
def verified(origin: Origin, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Verified]]:
    """Makes labs with a target, of these arguments."""
    with ExitStack() as labs:
        commands = partial(request.getfixturevalue, "commands")
        yield lambda *rule, **sections: labs.enter_context(Verified(tmp_path, origin, commands, *rule, **sections))


@pytest.fixture
def shop(verified: Callable[..., Verified]) -> Verified:
    """With the table `number`, the same at both ends."""
    run = verified()
    run.numbers()
    return run


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What became of each direct load of a table."""
    done: list[bool] = []

    def noted(*arguments: Any, of: Callable[..., bool] = direct.load_empty) -> bool:
        done.append(False)
        done[-1] = of(*arguments)
        return done[-1]

    monkeypatch.setattr(direct, "load_empty", noted)
    return done


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of its own, whose keys are in the environment."""
    for name, value in s3_server.keys.items():
        monkeypatch.setenv(name, value)
    return s3_server.create_bucket(f"stage-{uuid.uuid4().hex}")


@pytest.fixture(scope="module")
def pairs(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Pair]]:
    """A primary and its replica of each kind (replicated.py), started once."""
    with ExitStack() as started:

        @cache
        def pair(kind: str) -> Pair:
            return started.enter_context(closing(start(request, kind)))

        yield pair
