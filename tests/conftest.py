"""Real servers for the tests, each started once, when the first test asks for it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from examples.sandbox import browser
from examples.sandbox.cache import SandboxError
from examples.sandbox.debian import Tree
from examples.sandbox.mariadb import MariaDb, NewestMariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.postgres import Postgres
from examples.sandbox.s3 import S3Server
from examples.sandbox.setup_browser import BROWSER
from examples.sandbox.setup_mariadb import NEWEST_MARIADB
from examples.sandbox.setup_mysql import MYSQL
from tests.lab.databases import own_database
from tests.lab.forked_commands import ForkedCommands
from tests.lab.shell import shell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No test asserts a time, a property neither: a busy machine is slow, not wrong.
settings.register_profile("lockstep", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lockstep")
# For `make mutants`, which asks whether anything fails: the search for the smallest example that does takes minutes.
settings.register_profile(
    "any_failure", settings.get_profile("lockstep"), phases=set(Phase) - {Phase.shrink, Phase.explain}
)


LONGEST = (
    "tests/dags/test_scheduler.py",
    "tests/dags/test_browser.py",
    "tests/acceptance/test_lake.py",
    "tests/acceptance/test_lake_changes.py",
    "tests/crash/test_lake_crashes.py",
    "tests/spark/test_apply.py",
    "tests/acceptance/test_cutover_ends.py",
    "tests/acceptance/test_cutover.py",
    "tests/acceptance/test_reshard.py",
    "tests/integration/test_repair.py",
    "tests/integration/test_resync.py",
    "tests/integration/test_log_identity.py",
    "tests/integration/test_meta.py",
    "tests/integration/test_hostile_s3.py",
    "tests/integration/test_snapshot.py",
    "tests/integration/test_memory.py",
    "tests/unit/operations/copy/test_copies_beside_writes.py",
    "tests/acceptance/test_cutover_kills.py",
    "tests/acceptance/test_cli.py",
)
"""The files that take most of a processor."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first. Processes side by side each take a file when they have finished one: a long file
    that is taken late would keep one of them busy when the others have nothing left."""
    order = {file: place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))


def set_up(tree: Tree) -> None:
    """Sets it up when absent; skips only where that can't be done: pytest's last lines say why."""
    try:
        tree.setup()
    except SandboxError as error:
        pytest.skip(f"not tested: {tree.name}: {error}")


@pytest.fixture(autouse=True)
def as_before_a_command_line() -> Iterator[None]:
    """One that runs in this process sets up logging for itself, on streams that its test closes, and --debug for its
    children, by the environment."""
    root = logging.getLogger()
    handlers, level, debug = list(root.handlers), root.level, os.environ.get("LOCKSTEP_DEBUG")
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    if debug is None:
        os.environ.pop("LOCKSTEP_DEBUG", None)


@pytest.fixture(autouse=True)
def as_before_it_exported() -> Iterator[None]:
    yield
    shell.undo()


@pytest.fixture(scope="session")
def shared_servers() -> list[MariaDb | MySql]:
    """Those that have been started."""
    return []


@pytest.fixture(scope="session")
def mariadb(shared_servers: list[MariaDb | MySql]) -> Iterator[MariaDb]:
    """A MariaDB source: server id 1, binlog ROW with FULL metadata and images."""
    with MariaDb.start(server_id=1) as server:
        shared_servers.append(server)
        yield server


@pytest.fixture(scope="session")
def mariadb_target(shared_servers: list[MariaDb | MySql]) -> Iterator[MariaDb]:
    """A second MariaDB, to write to."""
    with MariaDb.start(server_id=2) as server:
        shared_servers.append(server)
        yield server


@pytest.fixture(scope="session")
def newest_mariadb(shared_servers: list[MariaDb | MySql]) -> Iterator[MariaDb]:
    """A source of the newest release that can be had."""
    set_up(NEWEST_MARIADB)
    with NewestMariaDb.start(server_id=5) as server:
        shared_servers.append(server)
        yield server


@pytest.fixture(scope="session")
def mysql9(shared_servers: list[MariaDb | MySql]) -> Iterator[MySql]:
    """A MySQL 9 source with GTIDs."""
    set_up(MYSQL)
    with MySql.start(server_id=3) as server:
        shared_servers.append(server)
        yield server


@pytest.fixture(scope="session")
def chromium() -> browser.Browser:
    """A headless Chromium."""
    set_up(BROWSER)
    return browser.find()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 server without buckets: `s3_server.create_bucket(name)`."""
    with S3Server.start() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL: `postgres.url()` is a SQLAlchemy URL."""
    with Postgres.start() as server:
        yield server


@pytest.fixture(scope="session")
def commands() -> Iterator[ForkedCommands]:
    """Runs `lockstep` without loading it each time, nor the libraries of a run."""
    with ForkedCommands() as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all tests, with the settings of a job on this machine: a JVM costs seconds."""
    from pyspark.sql import SparkSession

    from cdc_core.operations.apply.jobs import ANYWHERE, LOCAL_CONF
    from spark_jobs.spark_session import EXACT

    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Its connections log their end when they are collected: after pytest has closed what the handlers write to.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    builder = SparkSession.builder.master("local[2]").appName("tests")
    conf = {**ANYWHERE, **LOCAL_CONF, **EXACT, "spark.sql.shuffle.partitions": "2"}
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@dataclass(frozen=True)
class SourceDatabase:
    """A database of one test on a shared server."""

    server: MariaDb | MySql
    name: str

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Runs the statements in the database, each committed by itself; the rows of the last one."""
        return self.server.run(*statements, database=self.name)


def new_database(server: MariaDb | MySql, name: str = "") -> Iterator[SourceDatabase]:
    """An empty database, by default with a new name, dropped in the end."""
    with own_database(server, name) as made:
        yield SourceDatabase(server, made)


@pytest.fixture
def source_database(mariadb: MariaDb) -> Iterator[SourceDatabase]:
    """On `mariadb`."""
    yield from new_database(mariadb)


@pytest.fixture
def target_database(mariadb_target: MariaDb, source_database: SourceDatabase) -> Iterator[SourceDatabase]:
    """On `mariadb_target`, with the name of `source_database`."""
    yield from new_database(mariadb_target, source_database.name)
