"""What is written does not depend on a target server's own settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from cdc_core.config import MysqlTable, MysqlTarget
from cdc_core.errors import DataAtRisk, Refused, RetryLater
from cdc_core.model.schema import Column, TableSchema, parse_column_type
from cdc_core.mysql.connections import connect, parse_url
from cdc_core.mysql.session_settings import READING, WRITING, Setting
from cdc_core.targets.reading.destination import Destination
from cdc_core.targets.reading.table_facts import require_server
from cdc_core.targets.writing.load import open_session
from tests.lab.refusals import raises
from tests.lab.target_rows import Table, Winner, opened_destination, shop, target_table

HOSTILE = {
    "sql_mode": "'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,NO_ZERO_DATE,PAD_CHAR_TO_FULL_LENGTH'",
    "time_zone": "'+09:00'",
    "unique_checks": "0",
    "foreign_key_checks": "1",
    "sql_auto_is_null": "1",
    "auto_increment_increment": "7",
    "auto_increment_offset": "3",
    "max_error_count": "0",
    "sql_safe_updates": "1",
    "sql_select_limit": "1",
    "max_join_size": "1",
    "lock_wait_timeout": "1",
    "explicit_defaults_for_timestamp": "0",
    "transaction_isolation": "'SERIALIZABLE'",
    "collation_connection": "utf8mb4_general_ci",
    "sql_require_primary_key": "1",
    "check_constraint_checks": "0",
    "innodb_lock_wait_timeout": "1",
    "lc_messages": "'de_DE'",
    "alter_algorithm": "'NOCOPY'",
    "character_set_filesystem": "utf16",
    "completion_type": "2",
    "group_concat_max_len": "4",
    "big_tables": "1",
    "autocommit": "0",
    "max_sort_length": "64",
    "sort_buffer_size": "32768",
    "wait_timeout": "5",
    "div_precision_increment": "0",
    "default_week_format": "3",
    "lc_time_names": "'de_DE'",
    "system_versioning_asof": "'2001-01-01 00:00:00'",
    "sql_if_exists": "1",
    "old_mode": "''",
}
INIT_CONNECT = (
    "\"SET autocommit = 0, sql_select_limit = 3, max_sort_length = 64, time_zone = '+09:00', "
    "sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'; SET NAMES latin1; SET SESSION TRANSACTION READ ONLY; START TRANSACTION\""
)


@contextmanager
def with_globals(server: Any, values: dict[str, str]) -> Iterator[set[str]]:
    """The server's settings for new sessions, restored at the end; the names of those that it has."""
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_select_limit = DEFAULT")
        cursor.execute("SHOW GLOBAL VARIABLES")
        old = {name: value for name, value in cursor.fetchall() if name in values}
        try:
            for name in old:
                cursor.execute(f"SET GLOBAL {name} = {values[name]}")
            yield set(old)
        finally:
            for name, value in old.items():
                text = {"ON": "1", "OFF": "0"}.get(value, value)
                bare = text.isdigit() or text == "DEFAULT"
                cursor.execute(f"SET GLOBAL {name} = {text if bare else repr(text)}")


def test_a_hostile_server_gets_the_same_rows(server: Any) -> None:
    definition = (
        "CREATE TABLE {name} (id BIGINT NOT NULL PRIMARY KEY, code VARCHAR(20) COLLATE utf8mb4_bin NOT NULL, n INT, "
        "kept VARCHAR(10) NULL, UNIQUE KEY code (code))"
    )
    with target_table(server, definition) as table, with_globals(server, HOSTILE) as set_names:
        assert len(set_names) >= 14
        first = [shop("u", number, f"c\\{number}", number, 1) for number in range(1, 6)]
        assert table.write(first).written == 5
        swapped = [shop("u", 1, "c\\2", 1, 2), shop("u", 2, "c\\1", 2, 2), shop("d", 5, None, None, 2)]
        assert table.write(swapped).written == 3
        assert table.write(first[4:]).stale == 1
        too_long = [shop("u", 6, "much too long for this column", 6, 3), shop("u", 7, "c7", 7, 3)]
        with raises(DataAtRisk, "target.row_error"):  # though the server keeps no warnings
            table.write(too_long)
        counts = table.write(too_long, quarantine=True)
        assert (counts.written, counts.quarantined) == (1, 1)
        assert table.rows() == [(1, "c\\2", 1), (2, "c\\1", 2), (3, "c\\3", 3), (4, "c\\4", 4), (7, "c7", 7)]
        with open_session(table.server, table.facts.database, where="test") as session, session.cursor() as cursor:
            cursor.execute("SELECT @@unique_checks, @@foreign_key_checks, @@time_zone, @@lock_wait_timeout")
            assert cursor.fetchone() == (1, 0, "+00:00", 60)


def test_rows_are_set_aside_by_an_account_without_privileges_of_an_administrator(server: Any) -> None:
    with target_table(server) as table:
        table.query("CREATE USER lean IDENTIFIED BY 'x'")
        try:
            table.query(
                "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, CREATE TEMPORARY TABLES "
                f"ON {table.facts.database}.* TO lean"
            )
            lean = replace(table, server=replace(table.server, user="lean", password="x"))
            rows = [shop("u", 1, "much too long for this column", 1, 1), shop("u", 2, "b", 2, 1)]
            counts = lean.write(rows, quarantine=True)
            assert (counts.written, counts.quarantined) == (1, 1)
            assert table.rows() == [(2, "b", 2)]
        finally:
            table.query("DROP USER lean")


def test_a_table_whose_own_defaults_the_server_would_refuse_today_is_prepared(server: Any) -> None:
    strict = "'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO'"
    definition = (
        "CREATE TABLE {name} (id INT PRIMARY KEY, ts TIMESTAMP NOT NULL DEFAULT 0, d DATE DEFAULT '2024-00-00')"
    )
    with target_table(server, definition) as table, with_globals(server, {"sql_mode": strict}):
        table.query(f"ALTER TABLE {table.facts.name} DROP COLUMN _cdc_version")
        columns = {"id": "int", "ts": "timestamp", "d": "date"}
        schema = TableSchema(
            "s",
            "t",
            tuple(
                Column(name, parse_column_type(kind), nullable=name == "d", key_part=1 if name == "id" else None)
                for name, kind in columns.items()
            ),
        )
        assert opened(table, schema, server.url).shards[0].facts.versioned


def opened(table: Table, schema: TableSchema, url: str, *, ready: bool = True) -> Destination:
    rule = MysqlTable(database=table.facts.database)
    target = MysqlTarget(name="copy", connections=["env:COPY"], tables={schema.name: rule})
    return opened_destination(target, schema.name, [schema], ready=ready, environ={"COPY": url})


def test_a_server_that_takes_no_writes_now_is_tried_again_and_written_when_it_does(server: Any) -> None:
    schema = TableSchema("s", "t", (Column("id", parse_column_type("int"), nullable=False, key_part=1),))
    with target_table(server, "CREATE TABLE {name} (id INT PRIMARY KEY)") as table:
        table.query("CREATE USER lean IDENTIFIED BY 'x'")
        table.query("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, CREATE TEMPORARY TABLES ON *.* TO lean")
        table.query(f"ALTER TABLE {table.facts.name} DROP COLUMN _cdc_version")
        lean = f"mysql://lean:x@{server.host}:{server.port}"
        try:
            for setting, url in (("read_only", lean), ("super_read_only", server.url)):
                with with_globals(server, {setting: "1"}) as known:
                    for ready in (False, True) if known else ():
                        with raises(RetryLater, "connection.unreachable"):
                            opened(table, schema, url, ready=ready)
                table.query("SET GLOBAL read_only = 0")  # the one switches the other on
            assert opened(table, schema, lean).shards[0].facts.versioned
        finally:
            table.query("SET GLOBAL read_only = 0")
            table.query("DROP USER lean")


def test_a_target_that_logs_statements_is_refused(server: Any) -> None:
    with with_globals(server, {"binlog_format": "STATEMENT"}), server.connect() as connection:
        with raises(Refused, "connection.setting") as caught:
            require_server(connection, where="here")
        assert "binlog_format = ROW" in caught.value.remedy


def test_null_never_becomes_the_present_time_on_mysql(mysql9: Any) -> None:
    """MariaDB has no setting for it: there the column is refused before (test_target_pairs)."""
    definition = "CREATE TABLE {name} (id INT PRIMARY KEY, ts TIMESTAMP NOT NULL DEFAULT '2020-01-01 00:00:00')"
    columns = {"id": pa.int32(), "ts": pa.timestamp("us", tz="UTC")}
    with target_table(mysql9, definition, columns) as table:
        with with_globals(mysql9, {"explicit_defaults_for_timestamp": "0"}), pytest.raises(DataAtRisk):
            table.write([Winner("u", {"id": 1, "ts": None}, (1, 1, 0, "one"))])
        assert table.rows("id") == []


@pytest.mark.parametrize("settings", [READING, WRITING], ids=["reading", "writing"])
def test_a_session_has_its_settings_whatever_the_server_and_its_init_connect_say(server: Any, settings: Any) -> None:
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE USER IF NOT EXISTS lean IDENTIFIED BY 'x'")
        with with_globals(server, {**HOSTILE, "init_connect": INIT_CONNECT}):
            lean = replace(parse_url(server.url, where="test"), user="lean", password="x")
            with connect(lean, where="test", settings=settings) as session, session.cursor() as asked:
                for _ in range(2):
                    asked.execute("SELECT @@max_sort_length, @@sql_select_limit, @@time_zone, @@autocommit, 'ä'")
                    assert asked.fetchone() == (131072, 2**64 - 1, "+00:00", 1, "ä")
                    session.close()
                    session.ping(reconnect=True)
        cursor.execute("DROP USER lean")


def test_a_session_that_does_not_keep_a_setting_is_refused(server: Any) -> None:
    with raises(Refused, "connection.answer") as caught:
        connect(parse_url(server.url, where="test"), where="test", settings=(Setting("max_sort_length", 1 << 40),))
    assert "max_sort_length = 8388608" in str(caught.value)


def test_a_variable_that_a_server_lacks_keeps_no_session_from_its_other_settings(server: Any) -> None:
    settings = (Setting("no_such_variable", 1), Setting("sql_select_limit", 5))
    with (
        connect(parse_url(server.url, where="test"), where="test", settings=settings) as session,
        session.cursor() as cursor,
    ):
        cursor.execute("SELECT @@sql_select_limit")
        assert cursor.fetchone() == (5,)
