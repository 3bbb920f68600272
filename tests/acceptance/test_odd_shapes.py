"""Odd names, a thousand columns and a row of 32 MB, through the whole line: files, export, Spark, target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("a.b it's quo\"te naïve ☂", "tick`s sla/sh back\\slash per%cent", "CASE", "case")
WIDE = [f"c{n}" for n in range(1000)]
HALF_BYTES = 16 << 20
TARGETS = "[{name: copy, connections: [env:COPY], tables: {'*': {database: odd_copy}}}]"


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


TABLES = {
    **{name: f"id INT PRIMARY KEY, {quoted(name)} VARCHAR(20), {quoted('x' + name)} INT" for name in NAMES},
    "wide": "id INT PRIMARY KEY, " + ", ".join(f"{name} SMALLINT" for name in WIDE),
    "large": "id INT PRIMARY KEY, b LONGBLOB, t LONGTEXT",
}


@pytest.fixture
def line(mariadb: Any, mariadb_target: Any, lockstep: Any) -> Iterator[tuple[Any, Any]]:
    """Cursors on source and target, with the tables in `odd` and `odd_copy`."""
    lockstep.environ |= {"SHOP": mariadb.url, "COPY": mariadb_target.url}
    lockstep.write("odd", "odd", targets=TARGETS, routes="[]")
    for server in (mariadb, mariadb_target):
        server.run("SET GLOBAL max_allowed_packet = 134217728")
    with (
        mariadb.connect(autocommit=True, charset="utf8mb4") as connection,
        mariadb_target.connect(autocommit=True, charset="utf8mb4") as other,
        connection.cursor() as cursor,
        other.cursor() as there,
    ):
        for at, database in ((cursor, "odd"), (there, "odd_copy")):
            at.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
            at.execute(f"USE {database}")
            for name, columns in TABLES.items():
                at.execute(f"CREATE TABLE {quoted(name)} ({columns})")
        lockstep("extract", "odd.yaml")  # begins here
        yield cursor, there


def shown(cursor: Any, name: str) -> list[tuple[Any, ...]]:
    columns = "id, SHA2(b, 256), SHA2(t, 256), LENGTH(b)" if name == "large" else "*"
    cursor.execute(f"SELECT {columns} FROM {quoted(name)} ORDER BY id")
    return list(cursor.fetchall())


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_odd_names_wide_tables_and_large_rows_arrive_as_they_are(line: tuple[Any, Any], lockstep: Any) -> None:
    source, target = line
    for name in NAMES:
        source.execute(f"INSERT INTO {quoted(name)} VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
        source.execute(f"UPDATE {quoted(name)} SET {quoted(name)} = 'changed ☂' WHERE id = 2")
        source.execute(f"DELETE FROM {quoted(name)} WHERE id = 3")
    source.execute(f"INSERT INTO wide VALUES ({', '.join(str(n) for n in range(len(WIDE) + 1))})")
    source.execute("UPDATE wide SET c999 = -1, c7 = NULL")
    source.execute(
        "INSERT INTO large VALUES (1, REPEAT(X'00FF', %s), REPEAT('é', %s))", (HALF_BYTES // 2, HALF_BYTES // 2)
    )
    source.execute("INSERT INTO large VALUES (2, 'small', 'small')")
    assert lockstep("check", "odd.yaml").document["ok"] is True
    ran = lockstep("run", "odd.yaml", "--until", "now").document
    assert [entry["problems"] for entry in ran["ledgers"]] == [[]] * len(TABLES)
    for name in TABLES:
        rows = shown(source, name)
        assert rows
        assert shown(target, name) == rows, name
        exported = lockstep.exported(f"odd.{name}", file="odd.yaml")
        if name != "large":
            assert [tuple(row.values())[: len(rows[0])] for row in exported.to_pylist()] == rows, name
    source.execute("SELECT LENGTH(b), LENGTH(t) FROM large WHERE id = 1")
    assert source.fetchone() == (HALF_BYTES, HALF_BYTES)
