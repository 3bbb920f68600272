"""Databases of one test, and what MariaDB leaves of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pymysql

from examples.sandbox.mariadb import NEWEST
from examples.sandbox.sql_server import SqlServer

DIRECTORY_NOT_EMPTY = 1010


def is_newest(server: SqlServer) -> bool:
    """Whether the server is a MariaDB 11.8, which has no negative zero, and logs generated columns of inserts only."""
    return str(server.run("SELECT VERSION()")[0][0]).startswith(f"{NEWEST}.")


def fresh_name() -> str:
    return f"s_{uuid.uuid4().hex[:12]}"


@contextmanager
def own_database(server: SqlServer, name: str = "") -> Iterator[str]:
    """The name of an empty database, by default a new one, which is dropped in the end."""
    name = name or fresh_name()
    server.run(f"CREATE DATABASE `{name}`")
    try:
        yield name
    finally:
        drop_database(server, name)


def drop_database(server: SqlServer, name: str) -> None:
    """Drops a database, if it exists, with all of its tables. A test that failed may have left a transaction open.

    MariaDB 11.4 now and then leaves a file `t.TRG-` of a trigger in the directory of a database; it drops all of the
    tables, but then says that the directory is not empty, and keeps the empty database.
    """
    try:
        server.run("SET SESSION lock_wait_timeout = 20", f"DROP DATABASE IF EXISTS `{name}`")
    except pymysql.err.OperationalError as error:
        if error.args[0] != DIRECTORY_NOT_EMPTY:
            raise
        assert not server.run(f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{name}'")
