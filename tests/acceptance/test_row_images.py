"""A source whose log leaves out what did not change, through the whole line: stage, export, Spark, shards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.databases import is_newest

TABLE = """
CREATE TABLE {database}.items (
  id INT PRIMARY KEY, name VARCHAR(40) CHARACTER SET latin1 DEFAULT 'naïve', n INT, amount DECIMAL(12,2) DEFAULT 1.5,
  note TEXT, day DATE, raw VARBINARY(9) DEFAULT X'00FF', at DATETIME(3)"""
_ODD_DEFAULT = " DEFAULT '2020-02-31 00:00:00.5'"
TABLE += f"""{_ODD_DEFAULT},
  twice INT AS (n * 2) STORED, ratio FLOAT DEFAULT 0.1, bits BIT(9) DEFAULT b'101', born YEAR DEFAULT 2020,
  kind ENUM('a', 'ß') DEFAULT 'ß', spot POINT
)"""  # fmt: skip
ODD = ("CAST(at AS CHAR)", "twice", "ratio", "CAST(bits AS UNSIGNED)", "kind", "HEX(spot)")
COLUMNS = ("id", "name", "n", "amount", "note", "day", "raw", "born")
SIXTH = "INSERT INTO {} (id, n, note, at) VALUES (6, 6, 'x', NULL)"
FIRST = (
    SIXTH.format("items"),
    "INSERT INTO items (id, n) VALUES (1, 1), (2, 2), (3, 3), (4, 4)",
    "INSERT INTO items (id, name, n, amount, note, day, raw, at) "
    "VALUES (5, 'ü', 5, NULL, REPEAT('long ', 99), '2026-01-01', '', NULL)",
    "UPDATE items SET spot = POINT(1, 2), bits = 256 WHERE id IN (1, 4)",
    "UPDATE items SET note = 'first' WHERE id IN (1, 2)",
    "UPDATE items SET n = 22 WHERE id = 2",
    "DELETE FROM items WHERE id = 3",
)
LATER = (
    "UPDATE items SET amount = amount + 1, day = '2026-02-03' WHERE id IN (1, 5)",
    "UPDATE items SET note = NULL, at = '2020-02-30 01:02:03.004' WHERE id = 1",
    "DELETE FROM items WHERE id = 2",
    "INSERT INTO items (id, note) VALUES (2, 'again')",
    "UPDATE items SET name = 'é' WHERE id IN (2, 4)",
    "UPDATE items SET n = 7 WHERE id = 6",
)
KEYS = (
    "UPDATE items SET id = id + 10 WHERE id IN (1, 4)",
    "UPDATE items SET id = 99 WHERE id = 5",
    "UPDATE items SET id = 5 WHERE id = 2",
    "UPDATE items SET id = 2, n = 55 WHERE id = 99",
    "UPDATE items SET id = id + 1 WHERE id = 11",
    "UPDATE items SET note = 'moved' WHERE id = 12",
)


@pytest.fixture(params=[pytest.param("mariadb", marks=pytest.mark.matrix), "mysql9"])
def source(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def line(source: Any, mariadb_target: Any, lockstep: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A source of minimal images, two databases of two shards, and `shop.yaml` between them."""
    shards = [f"img{d}.items_{t}" for d in (0, 1) for t in (0, 1)]
    lockstep.environ |= {"SHOP": source.url, "COPY": mariadb_target.url}
    rule = "{database: 'img{d}', table: '{table}_{t}', sharding: {key: id, databases: 2, tables: 2}}"
    targets = f"[{{name: shards, connections: [env:COPY], tables: {{'*': {rule}}}}}]"
    lockstep.write("shop", "img", routes="[]", targets=targets)
    with (
        source.connect(autocommit=True, charset="utf8mb4") as connection,
        connection.cursor() as cursor,
        mariadb_target.connect(autocommit=True, charset="utf8mb4") as target,
        target.cursor() as there,
    ):
        for one in (cursor, there):
            one.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute("CREATE DATABASE img")
        cursor.execute(TABLE.format(database="img"))
        cursor.execute("USE img")
        cursor.execute("SET GLOBAL binlog_row_image = MINIMAL")
        cursor.execute("SET SESSION binlog_row_image = MINIMAL")
        for d in (0, 1):
            there.execute(f"CREATE DATABASE img{d}")
        for shard in shards:
            there.execute(TABLE.replace("{database}.items", shard).replace(_ODD_DEFAULT, ""))
        lockstep("extract", "shop.yaml")  # begins here
        yield cursor, there, shards
        cursor.execute("SET GLOBAL binlog_row_image = FULL")


@pytest.mark.matrix
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_minimal_images_end_in_an_export_and_shards_equal_to_the_source(line: Any, lockstep: Any) -> None:
    """Also where the target lost a row: the run stops, and goes on once the row is there."""
    source, target, shards = line
    source_columns = ", ".join([*COLUMNS, *ODD])
    checked = lockstep("check", "shop.yaml").document
    assert checked["ok"] is True
    assert any(finding["status"] == "warn" and "MINIMAL" in str(finding) for finding in checked["findings"])
    for statements in (FIRST, (*LATER, *KEYS)):
        for statement in statements:
            source.execute(statement)
        if statements is not FIRST:
            assert target.execute(f"DELETE FROM {shards[2]} WHERE id = 6") == 1
            stopped = lockstep("run", "shop.yaml", "--until", "now", code=4).error
            assert stopped["code"] == "target.absent_values"
            assert "copy the whole table" in stopped["remedy"]
            target.execute(SIXTH.format(shards[2]))
        ran = lockstep("run", "shop.yaml", "--until", "now").document
        assert [entry["problems"] for entry in ran["ledgers"]] == [[]]
        source.execute(f"SELECT {source_columns} FROM items ORDER BY id")
        rows = list(source.fetchall())
        found = []
        for shard in shards:
            target.execute(f"SELECT {source_columns} FROM {shard}")
            found += target.fetchall()
        assert sorted(found) == rows
        state = lockstep.exported("img.items").to_pylist()
        assert [tuple(row[name] for name in COLUMNS) for row in state] == [row[: len(COLUMNS)] for row in rows]
        assert {row["_cdc_absent"] for row in state} == {None}
        shown = [dict(row["_cdc_literal"] or []).get("at", str(row["at"])) for row in state]
        assert shown == [str(row[len(COLUMNS)]) for row in rows]


KINDS = """
CREATE TABLE {table} (
  id INT PRIMARY KEY, a INT DEFAULT 7, at TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  kept INT AS (a * 2) STORED, chained INT AS (kept + 1) STORED, shown INT AS (a * 3) VIRTUAL,
  note TEXT, of_note TEXT AS (CONCAT(note, 'x')) STORED, doc JSON, of_doc INT AS (JSON_VALUE(doc, '$.n')) STORED,
  hidden INT INVISIBLE DEFAULT 4, of_hidden INT AS (hidden + 1) STORED INVISIBLE,
  made VARCHAR(20) DEFAULT (CONCAT('x', 'y')), of_made INT AS (LENGTH(made)) STORED, steps INT,
  of_steps INT AS (steps + 1) STORED, n INT, kind ENUM('a', 'b') DEFAULT 'b', day DATE DEFAULT '2020-01-01'
)"""
KIND_CHANGES = (
    "INSERT INTO {table} (id) VALUES (1), (2), (3)",
    """INSERT INTO {table} (id, a, note, doc, hidden, made) VALUES (5, 50, 'b', '{{"n": 5}}', 55, 'abcde'),
       (6, 60, 'c', '{{"n": 6}}', 66, 'q'), (7, 7, NULL, NULL, 77, NULL)""",
    "UPDATE {table} SET n = 1",
    "UPDATE {table} SET n = 5, kind = 'a', day = NULL WHERE id = 3",
    "UPDATE {table} SET a = a + 1, hidden = 9 WHERE id IN (1, 5)",
    "UPDATE {table} SET note = 'new' WHERE id IN (5, 7)",
    "UPDATE {table} SET doc = JSON_SET(doc, '$.n', 77), made = 'zzz' WHERE id = 6",
    "UPDATE {table} SET n = 8 WHERE id IN (5, 6)",
    "UPDATE {table} SET id = id + 10 WHERE id = 6",
    "UPDATE {table} SET n = 9, note = NULL WHERE id IN (16, 7)",
)


GENERATED = {"kept", "chained", "shown", "of_note", "of_doc", "of_hidden", "of_made", "of_steps"}


@pytest.mark.parametrize("source", ["mariadb", "mysql9", "newest_mariadb"], indirect=True)
def test_what_no_row_image_carries_is_never_null_in_the_state_or_the_target(
    source: Any, mariadb_target: Any, lockstep: Any
) -> None:
    """Columns of each kind under images of each kind: the state has the source's value, or lacks the column."""
    lockstep.environ |= {"SHOP": source.url, "COPY": mariadb_target.url}
    rule = {"database": "kinds_copy", "table": "{table}"}
    targets = [{"name": "copy", "connections": ["env:COPY"], "tables": {"*": rule}}]
    lockstep.write("shop", "kinds", routes="[]", targets=targets)
    (release,) = source.run("SELECT VERSION()")[0]
    tables = {f"kinds.of_{image.lower()}": image for image in ("FULL", "MINIMAL", "NOBLOB")}
    with (
        source.connect(autocommit=True, charset="utf8mb4") as connection, connection.cursor() as cursor,
        mariadb_target.connect(autocommit=True, charset="utf8mb4") as target, target.cursor() as there,
    ):  # fmt: skip
        cursor.execute("CREATE DATABASE kinds")
        there.execute("CREATE DATABASE kinds_copy")
        for table in tables:
            cursor.execute(KINDS.format(table=table))
            database, name = table.split(".")
            body = "FOR EACH ROW SET NEW.steps = COALESCE(OLD.steps, 0) + 1"
            cursor.execute(f"CREATE TRIGGER {database}.steps_{name} BEFORE UPDATE ON {table} {body}")
        lockstep("extract", "shop.yaml")
        lockstep("target", "create", "shop.yaml")
        for table, image in tables.items():
            cursor.execute(f"SET SESSION binlog_row_image = {image}")
            for change in KIND_CHANGES:
                cursor.execute(change.format(table=table))
        lockstep("run", "shop.yaml", "--until", "now")
        for table, image in tables.items():
            rows = _rows(cursor, table)
            assert _rows(there, table.replace("kinds.", "kinds_copy.")) == rows
            state = lockstep.exported(table).to_pylist()
            unlogged = {"shown"} if image != "FULL" and "MariaDB" in release else set()
            unlogged = GENERATED if is_newest(source) else unlogged
            assert len(state) == len(rows)
            for row in state:
                row["at"] = row["at"].replace(tzinfo=None)
                known = {name: value for name, value in rows[row["id"]].items() if name not in unlogged}
                assert {name: value for name, value in row.items() if not name.startswith("_cdc")} == known


def _rows(cursor: Any, table: str) -> dict[int, dict[str, Any]]:
    """The rows by id, invisible columns included."""
    cursor.execute("SET SESSION time_zone = '+00:00'")
    cursor.execute(f"SHOW COLUMNS FROM {table} WHERE Field NOT LIKE '\\_%'")
    names = [row[0] for row in cursor.fetchall()]
    cursor.execute(f"SELECT {', '.join(names)} FROM {table}")
    return {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}
