"""Databases that tests leave behind."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pymysql

DIRECTORY_NOT_EMPTY = 1010


def drop_database(server: Any, name: str) -> None:
    """Drops a database, if it exists, with all of its tables.

    MariaDB 11.4 now and then leaves a file `t.TRG-` of a trigger in the directory of a database; it drops all of the
    tables, but then says that the directory is not empty, and keeps the empty database.
    """
    with closing(server.connect(autocommit=True)) as connection, connection.cursor() as cursor:
        try:
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")
        except pymysql.err.OperationalError as error:
            if error.args[0] != DIRECTORY_NOT_EMPTY:
                raise
            cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", [name])
            assert not cursor.fetchall()
