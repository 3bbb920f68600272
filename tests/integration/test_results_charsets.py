"""Every character set of the servers: its texts are read as the log has them, also bytes that are not text."""

from __future__ import annotations

import pytest

from cdc_core.binlog import charsets as text
from examples.sandbox.charsets import charsets_of
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.sql_server import SqlServer
from tests.integration.test_results_types import opened, read, require_equal, streamed
from tests.unit.binlog.reading import mark

_COLUMNS = "v VARCHAR(80), c CHAR(60), t MEDIUMTEXT"
_UNIT = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}


def _texts(charset: str) -> list[bytes]:
    """Bytes of every value in every place of a character of up to four bytes, whether they are characters or not."""
    unit = _UNIT.get(charset, 1)
    short = [bytes([n]) for n in range(256)]
    pairs = [bytes([high, low]) for high in range(0, 256, 5) for low in range(0, 256, 11)]
    long = [bytes([0x8F, n, 255 - n]) for n in range(256)]
    long += [bytes([0x81 + n % 126, 0x30 + n % 10, 0x81, 0x30]) for n in range(256)]
    long += [chr(n).encode("utf-32-be") for n in range(0, 0x110000, 997) if not 0xD800 <= n < 0xE000]
    spaced = [b"a  ", "é \u3000".encode(), b" \0 ", b"\t ", "😀 ".encode()]
    return [raw for raw in (*short, *pairs, *long, *spaced) if len(raw) % unit == 0]


def _check(server: SqlServer, *, mariadb: bool) -> None:
    database = f"readsets_{'a' if mariadb else 'y'}"
    names = [name for name in charsets_of(server) if name != text.BINARY]
    assert len(names) > 30
    since = mark(server)
    with server.connect(autocommit=True, charset="utf8mb4") as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database}")
        cursor.execute("SET SESSION sql_mode = ''")
        for charset in names:
            cursor.execute(
                f"CREATE TABLE {database}.{charset} (id INT PRIMARY KEY, {_COLUMNS}) CHARACTER SET {charset}"
            )
            raw = ",".join(f"({n},X'{one.hex()}')" for n, one in enumerate(_texts(charset)))
            cursor.execute(f"CREATE TEMPORARY TABLE {database}.raw (n INT PRIMARY KEY, b VARBINARY(80))")
            cursor.execute(f"INSERT INTO {database}.raw VALUES {raw}")
            # The rest is changed by the server on its way in.
            text_ = f"CONVERT(b USING {charset})"
            cursor.execute(
                f"INSERT INTO {database}.{charset} SELECT n, {text_}, {text_}, {text_} FROM {database}.raw "
                f"WHERE CAST({text_} AS BINARY) = b"
            )
            cursor.execute(f"DROP TEMPORARY TABLE {database}.raw")
        logged = streamed(server, since, database, mariadb=mariadb)
        connected = opened(server)
        literals = 0
        for charset in names:
            found = read(server, database, charset, connected)
            require_equal(found, logged[charset])
            assert found.num_rows > 100
            literals += found.num_rows - found.column("_cdc_literal").null_count
        cursor.execute(f"DROP DATABASE {database}")
    assert literals > 0


@pytest.mark.matrix
def test_texts_of_every_character_set_of_mariadb_are_read_as_its_log_has_them(mariadb: MariaDb) -> None:
    _check(mariadb, mariadb=True)


def test_texts_of_every_character_set_of_mysql_are_read_as_its_log_has_them(mysql9: MySql) -> None:
    _check(mysql9, mariadb=False)
