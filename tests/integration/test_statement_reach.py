"""What a statement may have changed, asked of real servers: what they no longer have, may not show, or do not know."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdc_core.binlog.event_headers import Event
from cdc_core.errors import DataAtRisk
from cdc_core.model.coverage import ANY_TABLE, Happened
from cdc_core.model.position import Position
from cdc_core.source.sql.log_ahead import LaterStatements, LogAhead, Statements
from cdc_core.source.sql.logged_statement import ServerDialect, read_statement
from cdc_core.source.sql.statement_classes import Statement, classify
from tests.lab.databases import fresh_name
from tests.lab.origin import Origin, account


@pytest.fixture
def other(origin: Origin) -> Iterator[str]:
    """A database that is not captured, beside the captured one with the table t."""
    name = fresh_name()
    origin.execute_on_server(f"CREATE DATABASE {name}", "SET GLOBAL log_bin_trust_function_creators = 1")
    origin.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    origin.execute_on_server(f"CREATE TABLE {name}.plain (id INT)")
    yield name
    origin.execute_on_server(f"DROP DATABASE {name}")


def as_statements(origin: Origin, database: str, *statements: str) -> None:
    """Runs them in a session that logs its changes as statements."""
    origin.sql.run("SET SESSION binlog_format = STATEMENT", *statements, database=database)


def stops(origin: Origin, start: object, **options: object) -> bool:
    code = ""
    try:
        origin.drain(start, **options)  # type: ignore[arg-type]
    except DataAtRisk as error:
        code = error.code
    assert code in ("", "source.unlogged_change")
    return bool(code)


REACHES = {
    "a view": (["CREATE VIEW {o}.v AS SELECT id FROM {c}.t"], "INSERT INTO v VALUES (1)", "DROP VIEW {o}.v"),
    "a view that is another now": (
        ["CREATE VIEW {o}.v AS SELECT id FROM {c}.t"], "INSERT INTO v VALUES (1)",
        "CREATE OR REPLACE VIEW {o}.v AS SELECT id FROM {o}.plain",
    ),
    "a trigger": (
        ["CREATE TRIGGER {o}.x AFTER INSERT ON {o}.plain FOR EACH ROW INSERT INTO {c}.t (id) VALUES (new.id)"],
        "INSERT INTO plain VALUES (1)", "DROP TRIGGER {o}.x",
    ),
    "a function": (
        ["CREATE FUNCTION {o}.f() RETURNS INT DETERMINISTIC BEGIN INSERT INTO {c}.t (id) VALUES (1); RETURN 1; END"],
        "INSERT INTO plain VALUES (f())", "DROP FUNCTION {o}.f",
    ),
    "a foreign key": (
        ["CREATE TABLE {o}.par (id INT PRIMARY KEY)",
         "CREATE TABLE {c}.ch (id INT PRIMARY KEY, CONSTRAINT fk FOREIGN KEY (id) REFERENCES {o}.par (id) "
         "ON DELETE CASCADE)",
         "INSERT INTO {o}.par VALUES (1)", "INSERT INTO {c}.ch VALUES (1)"],
        "DELETE FROM par", "ALTER TABLE {c}.ch DROP FOREIGN KEY fk",
    ),
    "a foreign key of a table that is gone": (
        ["CREATE TABLE {o}.former (id INT PRIMARY KEY)",
         "CREATE TABLE {c}.child (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES {o}.former (id) ON DELETE CASCADE)",
         "INSERT INTO {o}.former VALUES (1)", "INSERT INTO {c}.child VALUES (1)"],
        "DELETE FROM former", "DROP TABLE {c}.child",
    ),
    "a table that is gone": (
        ["CREATE TABLE {o}.gone (id INT)",
         "CREATE TRIGGER {o}.x AFTER INSERT ON {o}.gone FOR EACH ROW INSERT INTO {c}.t (id) VALUES (new.id)"],
        "INSERT INTO gone VALUES (1)", "DROP TABLE {o}.gone",
    ),
    "a MERGE table": (
        ["CREATE TABLE {o}.u (id INT) ENGINE=MyISAM", "CREATE TABLE {o}.m (id INT) ENGINE=MERGE UNION=({o}.u) "
         "INSERT_METHOD=LAST"],
        "INSERT INTO m VALUES (1)", "DROP TABLE {o}.m",
    ),
}  # fmt: skip


@pytest.mark.parametrize("gone", [False, True])
def test_what_a_statement_went_through_may_be_gone_when_it_is_read(origin: Origin, other: str, gone: bool) -> None:
    def run(*statements: str) -> None:
        origin.execute_on_server(*(sql.format(c=origin.name, o=other) for sql in statements))

    for what, (setup, statement, removal) in REACHES.items():
        run("DELETE FROM {c}.t", *setup)
        start = origin.end()
        as_statements(origin, other, statement)
        if gone:
            run(removal)
        # MySQL says that what was written through the MERGE table stayed in the other database.
        assert stops(origin, start) == (origin.mariadb or what != "a MERGE table"), what
        if not gone:
            run(removal)


def test_what_is_defined_further_on_elsewhere_does_not_matter(origin: Origin, other: str) -> None:
    third = fresh_name()
    origin.execute_on_server(f"CREATE DATABASE {third}", f"CREATE TABLE {third}.x (id INT)")
    start = origin.end()
    as_statements(origin, other, "INSERT INTO plain VALUES (1)")
    origin.execute_on_server(
        f"CREATE VIEW {third}.v AS SELECT 1 AS one", f"DROP VIEW {third}.v", f"DROP TABLE {third}.x",
        f"CREATE TABLE {other}.later (id INT)", f"ALTER TABLE {other}.later ADD v INT", f"DROP DATABASE {third}",
    )  # fmt: skip
    as_statements(origin, other, "INSERT INTO plain VALUES (2)", "DELETE FROM plain")
    assert not stops(origin, start)


def test_mysql_says_itself_that_no_captured_database_was_changed_and_mariadb_needs_the_grant(
    origin: Origin, other: str
) -> None:
    monitor = "BINLOG MONITOR" if origin.mariadb else "REPLICATION CLIENT"
    with account(origin, "REPLICATION SLAVE", monitor, "SELECT") as address:
        start = origin.end()
        as_statements(origin, other, "INSERT INTO plain VALUES (1)")
        assert stops(origin, start, address=address) == origin.mariadb
    with account(origin, "REPLICATION SLAVE", monitor, "SELECT", "TRIGGER") as address:
        assert not stops(origin, start, address=address)


def test_what_a_statement_may_have_changed_is_due_for_a_copy_and_nothing_else(origin: Origin, other: str) -> None:
    origin.execute("CREATE TABLE kept (id INT PRIMARY KEY)")
    origin.execute_on_server(f"CREATE VIEW {other}.v AS SELECT id FROM {origin.name}.t")
    for statement, tables in (
        (f"INSERT INTO {origin.name}.t (id) VALUES (1)", [f"{origin.name}.t"]),
        ("INSERT INTO v VALUES (2)", [ANY_TABLE] if origin.mariadb else [f"{origin.name}.*"]),
        ("INSERT INTO plain VALUES (3)", []),
    ):
        start = origin.end()
        as_statements(origin, other, statement)
        origin.execute("INSERT INTO kept VALUES (3)", "DELETE FROM kept")
        blocks = origin.drain(start, on_unlogged_change="resync")
        assert [(event.table, event.what) for block in blocks for event in block.happened] == [
            (table, Happened.UNLOGGED) for table in tables
        ]
        assert [part.schema.table for block in blocks for part in block.tables] == ["kept"]
        assert bool([note for block in blocks for note in block.notes]) == bool(tables)


UNKNOWN = (
    ("FROBNICATE TABLE {o}.plain", []),
    ("FROBNICATE plain WITH (x = 'y')", []),
    ("FROBNICATE TABLE {c}.t", ["{c}.*", "{c}.t"]),
    ("FROBNICATE DATABASE {c}, plain", ["{c}.*"]),
    ("FROBNICATE v", [ANY_TABLE]),
    ("FROBNICATE tr", [ANY_TABLE]),
    ("FROBNICATE (SELECT f() FROM plain)", [ANY_TABLE]),
    ("FROBNICATE ALL", [ANY_TABLE]),
    ("FROBNICATE FROM 'file'", [ANY_TABLE]),
    ("FROBNICATE {o}.gone", [ANY_TABLE]),
    ("FROBNICATE plain, t\xff", [ANY_TABLE]),
    ("", [ANY_TABLE]),
)


def test_an_unknown_statement_concerns_what_it_names_and_all_where_it_names_nothing(origin: Origin, other: str) -> None:
    c, o = origin.name, other
    origin.execute_on_server(
        f"CREATE VIEW {o}.v AS SELECT id FROM {c}.t", f"CREATE TABLE {o}.tr (id INT)",
        f"CREATE TRIGGER {o}.x AFTER INSERT ON {o}.tr FOR EACH ROW INSERT INTO {c}.t (id) VALUES (new.id)",
        f"CREATE FUNCTION {o}.f() RETURNS INT DETERMINISTIC BEGIN DELETE FROM {c}.t; RETURN 1; END",
    )  # fmt: skip
    here = origin.end()
    with origin.stream(here) as stream:
        for sql, tables in UNKNOWN:
            statement = classify(sql.format(c=c, o=o).encode("latin-1"), o)
            reach = stream._reach.of(statement, None, here.position)
            assert list(reach.tables) == [table.format(c=c) for table in tables], sql
            assert bool(reach.why) == (ANY_TABLE in tables), sql


def test_the_log_is_read_ahead_through_several_files(origin: Origin, other: str) -> None:
    begin = origin.end()
    origin.execute("FLUSH BINARY LOGS", "ALTER TABLE t ADD w INT", "INSERT INTO t VALUES (1, 2, 3)")
    origin.execute("FLUSH BINARY LOGS", "FLUSH BINARY LOGS", "ALTER TABLE t DROP w")
    read: list[Position] = []
    kept = [""]

    def ahead_of(after: Position) -> Statements:
        read.append(after)
        return origin.stream(begin)._glance.statements_after(after)

    def verbs() -> list[str]:
        ahead = LaterStatements(LogAhead(ahead_of, kept[-1], kept.append), _statement)
        return [statement.verb for statement in ahead.of(begin.position)]

    assert verbs() == ["ALTER TABLE"] * 2
    end = origin.end().position
    origin.execute("FLUSH BINARY LOGS", "ALTER TABLE t ADD w INT")
    assert verbs() == ["ALTER TABLE"] * 3
    assert read == [begin.position, end], "what an earlier reader has found was read again"


def _statement(event: Event) -> Statement | None:
    statement = read_statement(event, ServerDialect()).statement
    return statement if statement.tables else None
