"""Definitions as the server has them now: what can be captured, what cannot, and why; equal to what the log says."""

from __future__ import annotations

import re
from typing import Any

import pymysql
import pytest

from cdc_core.model.coverage import Happened
from cdc_core.model.position import Position
from cdc_core.mysql.connections import connect
from cdc_core.operations.check.check_sources import check_tables
from cdc_core.operations.check.findings import Findings
from cdc_core.source.host import source_server as server
from cdc_core.source.host.server_facts import Grants, query
from cdc_core.source.host.table_survey import engine_advice, find_tables, survey_tables
from cdc_core.source.schemas.captured_definitions import table_schema, table_schemas
from cdc_core.source.schemas.cascades import logs_cascades
from examples.sandbox.mysql import MySql
from tests.lab.databases import fresh_name, own_database
from tests.lab.origin import Origin
from tests.lab.pipeline_file import NOWHERE, made_pipeline
from tests.lab.refusals import refusal


def test_the_survey_tells_what_can_be_captured_from_what_cannot_and_why(origin: Origin) -> None:
    origin.execute(
        "CREATE TABLE good (b INT, a VARCHAR(9), c INT AS (b + 1), PRIMARY KEY (a, b))",
        "CREATE TABLE by_unique (a INT NULL UNIQUE, b INT NOT NULL UNIQUE)",
        "CREATE TABLE keyless (a INT, UNIQUE (a))",
        "CREATE TABLE by_prefix (a VARCHAR(50) NOT NULL, UNIQUE (a(5)))",
        "CREATE TABLE taken (id INT PRIMARY KEY, _cdc_seq INT)",
        "CREATE VIEW seen AS SELECT 1 AS one",
    )
    found = {
        find_table.table: find_table
        for find_table in find_tables(origin.control, lambda database, table: database == origin.name)
    }
    assert sorted(found) == ["by_prefix", "by_unique", "good", "keyless", "seen", "taken"]
    assert [name for name, table in found.items() if not table.problem] == ["by_prefix", "by_unique", "good", "keyless"]
    good = found["good"].schema
    assert good is not None
    assert good.key == ("a", "b")
    assert [column.name for column in good.columns if column.generated] == ["c"]
    mariadb = "MariaDB" in origin.control.get_server_info()
    assert [column.name for column in good.columns if not column.logged] == (["c"] if mariadb else [])
    unique = found["by_unique"].schema
    assert unique is not None
    assert unique.key == ("b",)
    assert [found[name].schema.key for name in ("keyless", "by_prefix")] == [(), ()]  # type: ignore[union-attr]
    assert "_cdc_seq" in found["taken"].problem
    assert (found["seen"].kind, found["seen"].schema) == ("view", None)
    names = [schema.table for schema in table_schemas(origin.control, lambda database, _: database == origin.name)]
    assert names == ["by_prefix", "by_unique", "good", "keyless", "taken"]


def test_a_generated_primary_key_is_in_the_definition_whether_the_server_shows_it_or_not(origin: Origin) -> None:
    if origin.mariadb:
        return
    origin.execute_on_server("SET GLOBAL show_gipk_in_create_table_and_information_schema = OFF")
    try:
        start = origin.end()
        origin.execute(
            "SET SESSION sql_generate_invisible_primary_key = ON", "CREATE TABLE t (a INT)", "INSERT INTO t VALUES (7)"
        )
        (block,) = [block for block in origin.drain(start) if block.tables]
        with connect(origin.address(), where="test") as fresh:
            assert block.tables[0].schema == table_schema(fresh, origin.name, "t")
        assert block.tables[0].schema.key == ("my_row_id",)
    finally:
        origin.execute_on_server("SET GLOBAL show_gipk_in_create_table_and_information_schema = ON")


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_the_steps_of_a_sequence_are_no_rows_of_a_table(origin: Origin, metadata: str) -> None:
    if not origin.mariadb:
        return
    origin.execute_on_server(f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        start = origin.end()
        origin.execute("CREATE SEQUENCE s", "CREATE TABLE t (id INT PRIMARY KEY)")
        origin.execute("BEGIN", "INSERT INTO t SELECT NEXTVAL(s)", "COMMIT", "SELECT NEXTVAL(s)")
        blocks = origin.drain(start)
        assert [part.schema.table for block in blocks for part in block.tables] == ["t"]
        assert {event.table for block in blocks for event in block.happened} == {f"{origin.name}.t"}
    finally:
        origin.execute_on_server("SET GLOBAL binlog_row_metadata = FULL")


@pytest.mark.parametrize(
    ("later", "keys"),
    [
        ("ALTER TABLE t ADD UNIQUE (id)", [(), ("id",)]),
        ("CREATE UNIQUE INDEX u ON t (id)", [(), ("id",)]),
        ("ALTER TABLE o ADD INDEX (v)", [("id",), ("id",)]),
    ],
)
def test_rows_that_are_read_late_have_no_unique_key_that_came_after_them(
    origin: Origin, later: str, keys: list[tuple[str, ...]]
) -> None:
    """Rows that differ in other columns alone are then one row, by a key that they never had."""
    origin.execute(
        "CREATE TABLE t (id INT NOT NULL, v INT)", "CREATE TABLE o (id INT NOT NULL, v INT, UNIQUE (id))",
        "INSERT INTO o VALUES (0, 0)",
    )  # fmt: skip
    start, table = origin.end(), later.partition(" TABLE ")[2][:1] or "t"
    origin.execute(f"INSERT INTO {table} VALUES (1, 1)", later, f"INSERT INTO {table} VALUES (2, 2)")
    blocks = origin.drain(start)
    assert [part.schema.key for block in blocks for part in block.tables] == keys


KEYS = {
    "(b INT NOT NULL, a INT NOT NULL, v INT, UNIQUE KEY z_first (a), UNIQUE KEY a_second (b))": "a",
    "(a INT NOT NULL, b VARCHAR(20) NOT NULL, UNIQUE KEY a_short (b(5)), UNIQUE KEY z_whole (a))": "a",
    "(a INT NOT NULL, b INT, UNIQUE KEY a_null (b), UNIQUE KEY z_there (a))": "a",
    "(a INT NOT NULL, b INT NOT NULL, UNIQUE KEY (b), PRIMARY KEY (a))": "a",
    "(a INT NOT NULL, UNIQUE KEY (a)) ENGINE=MEMORY": "a",
    "(b INT NOT NULL, v INT AS (b + 1) VIRTUAL {}, UNIQUE KEY (v))": "",
    "(b INT NOT NULL, v INT AS (b + 1) VIRTUAL {}, a INT NOT NULL, UNIQUE KEY z (v), UNIQUE KEY y (a))": "a",
}
HASHED = {
    "(a TEXT NOT NULL, v INT, UNIQUE KEY (a))": "",
    "(a VARCHAR(3000), v INT, UNIQUE KEY (a), UNIQUE KEY (v) USING HASH)": "",
    "(b TEXT NOT NULL, a INT NOT NULL, UNIQUE KEY (b), UNIQUE KEY (a))": "a",
    "(a INT NOT NULL, v BIGINT UNSIGNED, UNIQUE KEY (a) USING HASH)": "",
    "(a INT NOT NULL, DB_ROW_HASH_1 BIGINT UNSIGNED, b TEXT, UNIQUE KEY (b))": "",
    "(a INT NOT NULL PRIMARY KEY, DB_ROW_HASH_1 BIGINT UNSIGNED)": "a",
}


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL", "NO_LOG"])
def test_key_and_columns_are_the_ones_that_the_server_itself_takes(origin: Origin, metadata: str) -> None:
    """Which the log of full metadata names, all but those that MariaDB hides. Copies and others ask for the same."""
    if metadata == "NO_LOG" and not origin.mariadb:
        metadata = "FULL"
    tables = {**KEYS, **(HASHED if origin.mariadb else {})}
    origin.execute_on_server(f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        for number, shape in enumerate(tables):
            origin.execute(f"CREATE TABLE t{number} {shape.format('' if origin.mariadb else 'NOT NULL')}")
        start = origin.end()
        for number in range(len(tables)):
            schema = table_schema(origin.control, origin.name, f"t{number}")
            assert schema is not None
            plain = [column.name for column in schema.columns if not column.generated]
            changes = (
                f"INSERT INTO t{number} ({', '.join(plain)}) VALUES ({', '.join(['1'] * len(plain))})",
                f"UPDATE t{number} SET {plain[0]} = 2", f"DELETE FROM t{number}",
            )  # fmt: skip
            origin.execute(*changes, "SET SESSION binlog_row_image = MINIMAL", *changes)
        logged = {part.schema.table: part for block in origin.drain(start) for part in block.tables}
        for number, (shape, key) in enumerate(tables.items()):
            part, schema = logged[f"t{number}"], table_schema(origin.control, origin.name, f"t{number}")
            assert schema is not None
            assert (part.schema.key, schema.key) == ((key,) if key else (),) * 2, shape
            assert [column.name for column in part.schema.columns] == [column.name for column in schema.columns], shape
            assert part.rows.num_rows == 6
    finally:
        origin.execute_on_server("SET GLOBAL binlog_row_metadata = FULL")


def test_a_table_that_is_not_there_has_no_definition(origin: Origin) -> None:
    assert table_schema(origin.control, origin.name, "nothing") is None


KEYED = "FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE"
CASCADES = {
    "added and dropped": (
        f"ALTER TABLE child ADD CONSTRAINT k {KEYED}", "DELETE FROM parent WHERE id = 1",
        "ALTER TABLE child DROP FOREIGN KEY k",
    ),
    "of a new table": (
        f"CREATE TABLE other (id INT PRIMARY KEY, p INT, {KEYED})", "INSERT INTO other VALUES (1, 1)",
        "DELETE FROM parent WHERE id = 1", "DROP TABLE other",
    ),
}  # fmt: skip


def play_cascades(origin: Origin, steps: tuple[str, ...]) -> None:
    """Rows of `child` go with their parent by a key that nobody finds in INFORMATION_SCHEMA afterwards."""
    origin.execute("CREATE TABLE parent (id INT PRIMARY KEY)", "CREATE TABLE child (id INT PRIMARY KEY, p INT)")
    origin.execute("INSERT INTO parent VALUES (1), (2)", "INSERT INTO child VALUES (1, 1), (2, 2)")
    start = origin.end()
    origin.execute(*steps)
    logs = logs_cascades(origin.control)
    if logs:
        rows = [(part.schema.table, part.rows.num_rows) for block in origin.drain(start) for part in block.tables]
        assert ("parent", 1) in rows
        assert len(rows) > 1
        return
    error = refusal(lambda: origin.drain(start))
    assert (error.code, "foreign key" in error.what) == ("source.unlogged_change", True)
    for policy in ("record", "resync"):
        for on_truncate in ("unlogged", "stage"):
            blocks = origin.drain(start, on_unlogged_change=policy, on_truncate=on_truncate)
            happened = [event.table for block in blocks for event in block.happened if event.what is Happened.CASCADED]
            assert set(happened) == {f"{origin.name}.{'other' if 'other' in steps[0] else 'child'}"}


@pytest.mark.parametrize("steps", CASCADES.values(), ids=CASCADES)
def test_a_foreign_key_that_came_and_went_unseen_stops_where_its_changes_are_not_logged(
    origin: Origin, steps: tuple[str, ...]
) -> None:
    assert logs_cascades(origin.control) != origin.mariadb
    play_cascades(origin, steps)


def test_a_look_at_the_tables_hides_no_emptied_memory_table_from_the_log(mysql9: MySql) -> None:
    """MySQL logs a TRUNCATE when a statement opens a MEMORY table after a restart, but INFORMATION_SCHEMA does not."""
    with own_database(mysql9) as m:
        mysql9.run(f"CREATE TABLE {m}.t (id INT PRIMARY KEY) ENGINE = MEMORY", f"INSERT INTO {m}.t VALUES (1)")
        mysql9.stop()
        mysql9.restart()
        with mysql9.connect(autocommit=True) as connection, connection.cursor() as cursor:
            assert [table.rows for table in find_tables(connection, lambda database, _: database == m)] == [0]
            survey_tables(
                connection, lambda database, _: database == m, known={f"{m}.t"}, grants=Grants(frozenset(), ()),
                end_of_log=lambda: Position(0, "binlog.000001", 4),
            )  # fmt: skip
            cursor.execute(f"INSERT INTO {m}.t VALUES (2)")
            cursor.execute("SHOW BINARY LOGS")
            cursor.execute(f"SHOW BINLOG EVENTS IN '{cursor.fetchall()[-1][0]}'")
            assert any("TRUNCATE" in event[5] for event in cursor.fetchall())


def test_rows_of_every_engine_are_staged_as_they_are_and_check_warns_where_a_select_shows_others(
    origin: Origin,
) -> None:
    engines = {str(row[0]).upper() for row in query(origin.control, "SHOW ENGINES") if row[1] in ("YES", "DEFAULT")}
    used = sorted(engines & {"ARIA", "MYISAM", "MEMORY", "CSV", "ARCHIVE", "BLACKHOLE", "INNODB"})
    assert {"INNODB", "MYISAM", "MEMORY", "CSV"} <= set(used)
    start = origin.end()
    for engine in used:
        origin.execute(f"CREATE TABLE {engine} (id INT NOT NULL) ENGINE={engine}", f"INSERT INTO {engine} VALUES (1)")
    parts = [part for block in origin.drain(start) for part in block.tables]
    assert sorted((part.schema.table, part.rows["id"].to_pylist()) for part in parts) == [(name, [1]) for name in used]
    shown = {table: [row["id"] for row in origin.rows(table)] for table in used}
    assert shown == {table: [] if table == "BLACKHOLE" else [1] for table in used}
    warned = [finding.what for finding in checked(origin).made if "SELECT" in finding.what]
    assert [f"{origin.name}.BLACKHOLE" in text for text in warned] == [True] * ("BLACKHOLE" in engines)


def checked(origin: Origin, connection: Any = None, **sections: str) -> Findings:
    findings, pipeline = Findings(), made_pipeline(NOWHERE, origin.name, **sections)
    check_tables(pipeline, pipeline.sources[0], connection or origin.control, findings)
    return findings


def test_check_takes_letters_of_a_pattern_as_the_server_takes_names(
    origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    monkeypatch.setattr("cdc_core.operations.check.check_sources.lower_case_names", lambda connection: True)
    findings, pipeline = Findings(), made_pipeline(NOWHERE, origin.name.upper())
    checked_tables = check_tables(pipeline, pipeline.sources[0], origin.control, findings)
    assert [schema.table for schemas in checked_tables.logical.values() for schema in schemas] == ["t"]
    assert [finding.what for finding in findings.made if "no table matches" in finding.what] == []


def test_check_names_the_tables_that_a_copy_must_lock_and_the_grant_that_allows_it(origin: Origin) -> None:
    origin.execute(
        "CREATE TABLE keyed (id INT PRIMARY KEY)",
        "CREATE TABLE keyless (id INT)",
        "CREATE TABLE plain (id INT PRIMARY KEY) ENGINE=MyISAM",
        "CREATE TABLE no_rows (id INT)",
        *(f"INSERT INTO {name} VALUES (1)" for name in ("keyed", "keyless", "plain")),
    )
    facts = server.facts(origin.control)
    needed = ["plain"] if facts.mariadb else ["keyless"] if facts.gtid_mode == "ON" else ["keyed", "keyless", "plain"]
    user = fresh_name()
    origin.execute(f"CREATE USER {user} IDENTIFIED BY 'x'", f"GRANT SELECT, PROCESS ON *.* TO {user}")
    origin.execute(f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}")
    resync = {"tables": "on_unreadable: resync"}

    def warned(**sections: str) -> list[tuple[str, str]]:
        with pymysql.connect(host="127.0.0.1", port=origin.control.port, user=user, password="x") as connection:
            found = checked(origin, connection, **sections).made
        return [(finding.what, finding.remedy) for finding in found if finding.subject.endswith("locks for copies")]

    def names(what: str) -> list[str]:
        return re.findall(rf"{origin.name}\.(\w+)", what)

    try:
        assert warned() == []
        ((what, remedy),) = warned(snapshot="mode: initial")
        assert names(what) == needed
        ((what, _),) = warned(**resync)
        assert set(names(what)) - {"no_rows"} == set(needed)
        (grant,) = re.findall(r"GRANT LOCK TABLES ON \S+ TO ", remedy)
        origin.execute(f"{grant}{user}")
        assert warned(**resync) == []
    finally:
        origin.execute(f"DROP USER {user}")


def test_check_names_sets_whose_texts_do_not_show_a_label(origin: Origin) -> None:
    """Not even a statement that copies the column keeps it."""
    origin.execute(
        "CREATE TABLE t (s SET('a','') PRIMARY KEY, other SET('a','b'), e ENUM('a',''), more SET('','x'))",
        "INSERT INTO t VALUES (0, 'a', 'a', 3), (2, 'a', 'a', 2)",
        "CREATE TABLE u (s SET('a',''), more SET('','x'))",
        "INSERT INTO u SELECT s, more FROM t",
    )
    for name in ("s", "more"):
        text, number = f"CONCAT({name})", f"CAST({name} AS UNSIGNED)"
        shown = query(origin.control, f"SELECT COUNT(DISTINCT {text}), COUNT(DISTINCT {number}) FROM {origin.name}.t")
        kept = query(origin.control, f"SELECT COUNT(DISTINCT {number}) FROM {origin.name}.u")
        assert (list(shown), list(kept)) == ([(1, 2)], [(1,)])
    warned = [finding.what for finding in checked(origin).made if "the label ''" in finding.what]
    assert [said.split()[0].partition(".")[2] for said in warned] == ["t.s", "t.more", "u.s", "u.more"]
    assert ["rows whose keys" in said for said in warned] == [True, False, False, False]


def test_engines_whose_rows_are_elsewhere_are_named() -> None:
    assert "keeps its rows elsewhere (CONNECT)" in engine_advice("CONNECT")
    assert [engine_advice(name) for name in ("InnoDB", "MyISAM", "Aria", "MEMORY", "")] == [""] * 5
