"""Statements of both grammars on real servers: what passes has changed no captured row unseen, and the rest stops.

The statements are in statements.yaml. Each is run, the captured rows are compared with those that the extractor has
read, and what the extractor made of it with what the file expects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pymysql
import pytest
import yaml

from cdc_core.errors import LockstepError
from cdc_core.model.block import Block
from tests.lab.databases import fresh_name
from tests.lab.origin import Origin, changes_in, rows_in

CORPUS = Path(__file__).with_name("statements.yaml")
CODES = {"unlogged": "source.unlogged_change", "versioned": "source.unsupported_table"}
NUMBERS = count(1000)

SETUP = (
    "CREATE TABLE {c}.t (id INT PRIMARY KEY, v INT)",
    "INSERT INTO {c}.t VALUES (1, 1), (2, 2), (3, 3)",
    "CREATE TABLE {c}.gone (id INT PRIMARY KEY)",
    "CREATE TABLE plain (id INT)",
    "CREATE TABLE counted (id INT AUTO_INCREMENT PRIMARY KEY, num DOUBLE)",
    "CREATE TABLE other2 (id INT)",
    "CREATE TABLE tr (id INT)",
    "CREATE TABLE calls (id INT)",
    "CREATE TABLE par (id INT PRIMARY KEY)",
    "INSERT INTO par VALUES (1), (2), (3)",
    "CREATE TABLE {c}.ch (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {o}.par (id) ON DELETE CASCADE)",
    "INSERT INTO {c}.ch VALUES (1, 1), (2, 2), (3, 3)",
    "CREATE VIEW v AS SELECT id, v FROM {c}.t",
    "CREATE VIEW ownview AS SELECT id FROM plain",
    "CREATE FUNCTION f(a INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA "
    "BEGIN INSERT INTO {c}.t (id, v) VALUES (a, a) ON DUPLICATE KEY UPDATE v = v + 1; RETURN a; END",
    "CREATE FUNCTION own(a INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA "
    "BEGIN INSERT INTO other2 VALUES (a); RETURN a; END",
    "CREATE VIEW vf AS SELECT f(77) AS z",
    "CREATE PROCEDURE p(a INT) BEGIN INSERT INTO v VALUES (a, a); END",
    "CREATE PROCEDURE bare() INSERT INTO {c}.t (id) SELECT MAX(id) + 1 FROM plain",
    "CREATE TRIGGER writes AFTER INSERT ON tr FOR EACH ROW INSERT INTO {c}.t (id, v) VALUES (new.id, 1) "
    "ON DUPLICATE KEY UPDATE v = 0",
    "CREATE TABLE {c}.part (id INT PRIMARY KEY) "
    "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)",
    "INSERT INTO {c}.part VALUES (1), (20)",
    "CREATE TABLE {c}.gone2 (id INT PRIMARY KEY)",
    "CREATE TABLE loose (id INT PRIMARY KEY)",
    "CREATE TRIGGER deeper AFTER INSERT ON calls FOR EACH ROW CALL p(new.id)",
)


ONLY_MARIADB = (
    "CREATE TABLE {c}.ver (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING",
    "INSERT INTO {c}.ver VALUES (1, 1)",
    "UPDATE {c}.ver SET v = 2",
    "CREATE TABLE {c}.per (id INT, a DATE, b DATE, v INT, PERIOD FOR p (a, b), PRIMARY KEY (id, a))",
    "INSERT INTO {c}.per VALUES (1, '2019-01-01', '2022-01-01', 1)",
)


@dataclass(frozen=True)
class Pair:
    """The captured database `c` and the other one `o` on a server. file: a row to be loaded."""

    origin: Origin
    o: str
    file: Path

    @property
    def server(self) -> str:
        return "mariadb" if self.origin.mariadb else "mysql"

    def text(self, sql: str, number: int) -> str:
        return sql.format(
            c=self.origin.name, o=self.o, n=number, u=self.o[:10], file=self.file, password=self.origin.sql.password
        )

    def run(self, *statements: str, log_format: str = "ROW") -> None:
        number = next(NUMBERS)
        with self.origin.sql.connect(self.o, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET SESSION binlog_format = {log_format}")
            for statement in statements:
                cursor.execute(self.text(statement, number))
                cursor.fetchall()

    def rows(self) -> dict[str, dict[Any, Any]]:
        """Of all captured tables, by key."""
        found = {}
        with self.origin.sql.connect(self.origin.name) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = DATABASE()")
            for (table,) in cursor.fetchall():
                with connection.cursor(pymysql.cursors.DictCursor) as asked:
                    asked.execute(f"SELECT * FROM `{table}`")
                    found[table] = {next(iter(row.values())): row for row in asked.fetchall()}
        return found


@pytest.fixture(scope="module")
def pair(any_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    file = tmp_path_factory.mktemp("loaded") / "rows.txt"
    file.write_text("424242\t1\n")
    file.chmod(0o644)
    for folder in list(file.parents)[:3]:
        folder.chmod(0o755)
    origin, other = Origin(any_server, fresh_name()), fresh_name()
    origin.execute_on_server(f"CREATE DATABASE {origin.name}", f"CREATE DATABASE {other}")
    origin.execute_on_server("SET GLOBAL log_bin_trust_function_creators = 1")
    made = Pair(origin, other, file)
    made.run(*SETUP, *(ONLY_MARIADB if origin.mariadb else ()))
    yield made
    origin.execute_on_server(f"DROP DATABASE {origin.name}", f"DROP DATABASE {other}")
    origin.control.close()


def corpus(server: str) -> list[dict[str, Any]]:
    entries = yaml.safe_load(CORPUS.read_text())
    return [entry for entry in entries if entry["servers"] in ("both", server)]


def applied(before: dict[str, dict[Any, Any]], blocks: list[Block]) -> dict[str, dict[Any, Any]]:
    """What the rows that were read make of the tables, a column that they do not have left as it was."""
    tables = {name: {key: dict(row) for key, row in rows.items()} for name, rows in before.items()}
    for schema, row in changes_in(blocks):
        table = tables.setdefault(schema.table, {})
        values = {column.name: row[column.name] for column in schema.columns}
        key = schema.columns[0].name
        old = (row["_before"] or values)[key]
        if row["_cdc_op"] != "c":
            table.pop(old, None)
        if row["_cdc_op"] != "d":
            table[values[key]] = values
    return tables


def same(one: dict[str, dict[Any, Any]], other: dict[str, dict[Any, Any]]) -> bool:
    """Tables without rows count as none, and columns that are NULL as absent."""

    def plain(tables: dict[str, dict[Any, Any]]) -> dict[str, Any]:
        return {
            name: {key: {k: v for k, v in row.items() if v is not None} for key, row in rows.items()}
            for name, rows in tables.items()
            if rows
        }

    return plain(one) == plain(other)


def test_each_statement_of_the_corpus_passes_or_stops_as_it_should_and_none_changes_rows_unseen(pair: Pair) -> None:
    wrong: list[str] = []
    for entry in corpus(pair.server):
        statements = [entry["sql"]] if isinstance(entry["sql"], str) else entry["sql"]
        before, start = pair.rows(), pair.origin.end()
        try:
            pair.run(*statements, log_format=entry.get("format", "ROW"))
        except pymysql.err.MySQLError as error:
            wrong.append(f"{statements}: the server refuses it: {error}")
            continue
        after = pair.rows()
        blocks: list[Block] = []
        try:
            blocks = pair.origin.drain(start)
            came = "passes"
        except LockstepError as error:
            came = next((short for short, code in CODES.items() if code == error.code), error.code)
            if came != "versioned" and f"--accept {start.position.file}:" not in str(error):
                wrong.append(f"{statements}: the way past it is not named: {error}")
        if came != entry["expect"]:
            wrong.append(f"{statements}: {came}, not {entry['expect']}")
        if (noted := entry.get("notes")) and not any(noted in note for block in blocks for note in block.notes):
            wrong.append(f"{statements}: no note says {noted!r}")
        if came == "passes" and not same(applied(before, blocks), after):
            wrong.append(f"{statements}: rows changed that were not read")
    assert not wrong, "\n".join(wrong)


def test_a_captured_database_that_is_replaced_is_never_passed_in_silence(mariadb: Any) -> None:
    """Also where the patterns name single tables, and nobody has seen one of them."""
    origin = Origin(mariadb, fresh_name())
    origin.execute_on_server(f"CREATE DATABASE {origin.name}", f"CREATE TABLE {origin.name}.t (id INT PRIMARY KEY)")
    start = origin.end()
    origin.execute("INSERT INTO t VALUES (1)")
    origin.execute_on_server(f"CREATE OR REPLACE DATABASE {origin.name}")
    for include in (rf"{origin.name}\..*", rf"{origin.name}\.(t|x)"):
        with pytest.raises(LockstepError) as raised:
            origin.drain(start, include=[include])
        assert raised.value.code == CODES["unlogged"]
        blocks = origin.drain(start, include=[include], on_unlogged_change="record")
        assert any(note.startswith(f"needs re-sync of table {origin.name}.") for b in blocks for note in b.notes)
    start = origin.end()
    origin.execute_on_server(f"CREATE OR REPLACE DATABASE {origin.name}")
    (note,) = [note for b in origin.drain(start, include=[rf"{origin.name}\.(t|x)"]) for note in b.notes]
    assert note.startswith(f"CREATE OR REPLACE DATABASE {origin.name} at ")
    origin.execute_on_server(f"DROP DATABASE {origin.name}")
    origin.control.close()


def test_a_table_that_a_query_fills_is_never_staged_as_empty(mariadb: Any) -> None:
    origin = Origin(mariadb, fresh_name())
    origin.execute_on_server(f"CREATE DATABASE {origin.name}")
    origin.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    replace = "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY) SELECT 5 AS id"
    for log_format, expected in (("ROW", [("c", 4), ("t", None), ("c", 5)]), ("STATEMENT", [("c", 4)])):
        origin.execute("DELETE FROM t")
        start = origin.end()
        with origin.session() as run:
            run("INSERT INTO t VALUES (4)", f"SET SESSION binlog_format = {log_format}", replace)
        if log_format == "STATEMENT":
            with pytest.raises(LockstepError) as raised:
                origin.drain(start, on_truncate="stage")
            assert raised.value.code == CODES["unlogged"]
        blocks = origin.drain(start, on_truncate="stage", on_unlogged_change="record")
        rows = rows_in(blocks)
        rows.sort(key=lambda row: (row["_cdc_seq"], row["_cdc_row"]))
        assert [(row["_cdc_op"], row["id"]) for row in rows] == expected
        assert any("needs re-sync" in note for b in blocks for note in b.notes) == (log_format == "STATEMENT")
    origin.execute_on_server(f"DROP DATABASE {origin.name}")
    origin.control.close()
