"""A column that was dropped and added again, from the source to the state that exports and queries show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

DATABASE = "former"
STEPS = (
    "INSERT INTO keyed (id, c, d, e) VALUES (1, 5, '0000-00-00', 1), (2, 6, '2026-01-01', 2), (3, 7, NULL, 3)",
    "INSERT INTO bag (id, c, d, e) VALUES (1, 5, '0000-00-00', 1), (1, 5, '0000-00-00', 1), (2, 6, '2026-01-01', 2)",
    "extract",
    "ALTER TABLE keyed DROP c, DROP d",
    "extract",
    "UPDATE keyed SET e = 20 WHERE id = 2",
    "ALTER TABLE keyed ADD C INT NULL, ADD d DATE NULL",
    "ALTER TABLE bag DROP c, DROP d, ADD c INT NULL, ADD d DATE NULL",
    "extract",
    "UPDATE keyed SET e = 30 WHERE id = 3",
    "UPDATE bag SET e = 4 WHERE id = 1 LIMIT 1",
    "extract",
    "UPDATE keyed SET c = 9 WHERE id = 2",
    "DELETE FROM bag WHERE id = 2",
)


@pytest.fixture
def cursor(request: pytest.FixtureRequest, lockstep: Any) -> Iterator[Any]:
    server = request.getfixturevalue(request.param)
    lockstep.environ["SHOP"] = server.url
    lockstep.write("shop", DATABASE, tables="on_unlogged_change: record", routes="[]")
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE}")
        cursor.execute(f"USE {DATABASE}")
        cursor.execute("SET sql_mode = ''")
        cursor.execute("CREATE TABLE keyed (id INT PRIMARY KEY, c INT, d DATE, e INT)")
        cursor.execute("CREATE TABLE bag (id INT, c INT, d DATE, e INT)")
        lockstep("extract", "shop.yaml")  # begins here
        yield cursor


@pytest.mark.parametrize(
    ("cursor", "image"),
    [
        ("mariadb", "FULL"),
        ("mysql9", "MINIMAL"),
        pytest.param("mariadb", "MINIMAL", marks=pytest.mark.matrix),
        pytest.param("mysql9", "FULL", marks=pytest.mark.matrix),
    ],
    indirect=["cursor"],
)
def test_the_state_shows_no_value_from_before_the_column_was_dropped(cursor: Any, lockstep: Any, image: str) -> None:
    cursor.execute(f"SET SESSION binlog_row_image = {image}")
    for step in STEPS:
        if step == "extract":
            lockstep("extract", "shop.yaml")
        else:
            cursor.execute(step)
    lockstep("extract", "shop.yaml")
    for table in ("keyed", "bag"):
        cursor.execute(f"SELECT id, c, CAST(d AS CHAR), e FROM {table} ORDER BY id, e")
        rows = [list(row) for row in cursor.fetchall()]
        query = f"SELECT id, c, coalesce(_cdc_literal['d'], d::VARCHAR), e, _cdc_absent FROM \"former.{table}\""
        state = lockstep("stage", "sql", "shop.yaml", f"{query} ORDER BY id, e").document["rows"]
        assert state == [[*row, None] for row in rows]
        exported = lockstep.exported(f"former.{table}").sort_by([("id", "ascending"), ("e", "ascending")])
        assert exported["e"].to_pylist() == [row[3] for row in rows]
    query = 'SELECT c FROM "former.keyed_changes" WHERE id = 1'
    assert lockstep("stage", "sql", "shop.yaml", query).document["rows"] == [[5]]


@pytest.mark.parametrize("cursor", ["mariadb"], indirect=True)
def test_a_moment_before_the_column_was_dropped_still_has_its_values(cursor: Any, lockstep: Any) -> None:
    cursor.execute("INSERT INTO keyed (id, c) VALUES (1, 5)")
    lockstep("extract", "shop.yaml")
    cursor.execute("SHOW BINARY LOGS")
    place = "{}:{}".format(*cursor.fetchall()[-1][:2])
    cursor.execute("ALTER TABLE keyed DROP c, ADD c INT NULL")
    cursor.execute("INSERT INTO keyed (id, c) VALUES (2, 6)")
    lockstep("extract", "shop.yaml")
    query = 'SELECT id, c FROM "former.keyed" ORDER BY id'
    assert lockstep("stage", "sql", "shop.yaml", query).document["rows"] == [[1, None], [2, 6]]
    assert lockstep("stage", "sql", "shop.yaml", query, "--as-of", place).document["rows"] == [[1, 5]]
