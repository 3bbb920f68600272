"""Events that steer a stream, parsed from the logs of real servers and compared with what the servers say."""

from __future__ import annotations

import math
import random
import struct
import time
from collections.abc import Iterator

import pytest

from cdc_core.binlog.event_headers import (
    Event,
    EventType,
    parse_rotate,
)
from cdc_core.binlog.gtid import (
    Gtid,
    parse_gtid,
    parse_mariadb_gtid,
    parse_mariadb_gtid_list,
    parse_previous_gtids,
)
from cdc_core.binlog.row_columns import decode_rows
from cdc_core.binlog.row_definition import schema_of
from cdc_core.binlog.row_images import RowImages
from cdc_core.errors import Refused
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.sql_server import SqlServer
from tests.lab.databases import own_database
from tests.lab.refusals import raises
from tests.unit.binlog.reading import (
    Mark,
    decoded,
    events_since,
    known_schema,
    mark,
    row_groups,
    rows_of,
    rows_per_event,
)


@pytest.fixture
def database(mysql9: MySql) -> Iterator[str]:
    with own_database(mysql9) as name:
        yield name


@pytest.fixture
def maria_database(mariadb: MariaDb) -> Iterator[str]:
    with own_database(mariadb) as name:
        yield name


def _of(events: list[Event], *types: EventType) -> list[Event]:
    return [event for event in events if event.header.type in types]


def _logged(server: SqlServer, *statements: str) -> list[Event]:
    since = mark(server)
    server.run(*statements)
    return events_since(server, since)


def test_a_tagged_gtid_is_read_from_its_serialised_form(mysql9: MySql, database: str) -> None:
    events = _logged(
        mysql9, f"CREATE TABLE {database}.t (id INT PRIMARY KEY)", "SET gtid_next = 'AUTOMATIC:tag_1'",
        f"INSERT INTO {database}.t VALUES (1)", "SET gtid_next = 'AUTOMATIC'",
    )  # fmt: skip
    (event,) = _of(events, EventType.GTID_TAGGED)
    (server_uuid, executed) = mysql9.run("SELECT @@server_uuid, @@gtid_executed")[0]
    gtid = parse_gtid(event)
    assert (gtid.sid, gtid.tag) == (server_uuid, "tag_1")
    assert f":{gtid.tag}:1" in str(executed)
    assert gtid.text == f"{server_uuid}:tag_1:{gtid.gno}"
    assert abs(gtid.immediate_commit_ts_us - time.time_ns() // 1000) < 60_000_000


def test_the_set_of_previous_gtids_is_what_the_server_had_executed(mysql9: MySql, database: str) -> None:
    mysql9.run(
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY)",
        "SET gtid_next = 'AUTOMATIC:zebra'",
        f"INSERT INTO {database}.t VALUES (1)",
        "SET gtid_next = 'AUTOMATIC'",
    )
    (executed,) = mysql9.run("SELECT @@gtid_executed")[0]
    before = mark(mysql9)
    mysql9.run("FLUSH BINARY LOGS")
    (rotate,) = _of(events_since(mysql9, before), EventType.ROTATE)
    after = mark(mysql9)
    assert (parse_rotate(rotate).file, parse_rotate(rotate).offset) == (after.file, 4)
    (previous,) = _of(events_since(mysql9, Mark(after.file, 4)), EventType.PREVIOUS_GTIDS)
    assert parse_previous_gtids(previous) == str(executed).replace("\n", "")


def test_json_doubles_of_all_sizes_print_as_the_server_prints_them(mysql9: MySql, database: str) -> None:
    chance = random.Random(3)
    values = [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(1500)]
    values += [chance.uniform(-1, 1) * 10 ** chance.randint(-20, 20) for _ in range(1500)]
    values += [float(f"{chance.randint(1, 99)}e{exponent}") for exponent in range(-20, 25)]
    numbers = ",".join(f"CAST({value!r} AS DOUBLE)" for value in values if math.isfinite(value))
    mysql9.run(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, j JSON)")
    events = _logged(mysql9, f"INSERT INTO {database}.t VALUES (1, JSON_ARRAY({numbers}))")
    (said,) = mysql9.run(f"SELECT CAST(j AS CHAR) FROM {database}.t")[0]
    schema, rows = decoded(events, None, mariadb=False)
    assert rows_of(schema, rows.after)[0]["j"] == said


def test_an_insert_of_defaults_only_is_one_row_of_no_bytes(mysql9: MySql, database: str) -> None:
    mysql9.run(f"CREATE TABLE {database}.t (n INT DEFAULT 5)")
    events = _logged(mysql9, "SET binlog_row_image = MINIMAL", f"INSERT INTO {database}.t VALUES ()")
    ((table, rows),) = row_groups(events, mariadb=False)
    assert rows[0].images == b""
    assert rows_per_event(table, RowImages.from_events(rows)) == [1]
    found = decode_rows(
        schema_of(table, None), table, RowImages.from_events(rows), lambda names: dict.fromkeys(names, "5")
    )
    assert [array.to_pylist() for array in found.after] == [[5]]


_PAD = "'pad', REPEAT('x', 2000)"
_DOCUMENT = f"""JSON_OBJECT({_PAD}, 'n', 1, 'list', JSON_ARRAY(1, 'zwei', JSON_OBJECT('k', 1.50), NULL, TRUE),
  'o', JSON_OBJECT('bb', 1, 'a', 2, 'sp ace', 3, 'q"uo\\\\te', 4, 'é😀', 5, '', 6, 'last', 7),
  'd', CAST('12.340' AS DECIMAL(10,3)), 'at', TIMESTAMP'2024-02-29 01:02:03.000004', 'bin', X'00FF')"""
_PATHS = (
    "$.n",
    "$.o",
    "$.o.bb",
    "$.o.a",
    '$.o."sp ace"',
    '$.o."q\\\\"uo\\\\\\\\te"',
    '$.o."é😀"',
    '$.o.""',
    "$.o.new",
    "$.o.newer",
    "$.list",
    "$.list[0]",
    "$.list[1]",
    "$.list[2].k",
    "$.list[2].j",
    "$.list[last]",
    "$.list[last-1]",
    "$.list[last-20]",
    "$.list[9]",
    "$.d",
    "$.at",
    "$.pad",
    "$.zz",
    '$."a.b"',
    '$."[1]"',
)
_VALUES = (
    "1",
    "-2.5e300",
    "'text \"ü\\\\n'",
    "NULL",
    "FALSE",
    "JSON_ARRAY()",
    "JSON_OBJECT('x', JSON_ARRAY(1, 2))",
    "18446744073709551615",
    "CAST('-0.10' AS DECIMAL(5,2))",
    "DATE'2020-01-01'",
    "TIME'-10:11:12.13'",
    "X'CAFE'",
    "REPEAT('y', 3000)",
    "CAST('1e15' AS JSON)",
)


def test_differences_of_json_lead_to_the_servers_own_text(mysql9: MySql, database: str) -> None:
    """Every document that random JSON_SET, JSON_REPLACE and JSON_REMOVE make, row by row, against SELECT."""
    mysql9.run(
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, a JSON, z INT, b JSON, c JSON)",
        f"INSERT INTO {database}.t VALUES (1, {_DOCUMENT}, 0, {_DOCUMENT}, '1'), (2, {_DOCUMENT}, 0, NULL, NULL)",
    )
    draw, since, said = random.Random(11), mark(mysql9), []
    with mysql9.connect(database, autocommit=True, charset="utf8mb4") as connection, connection.cursor() as cursor:
        cursor.execute("SET binlog_row_value_options = PARTIAL_JSON")
        for n in range(300):
            name, call = draw.choice("aab"), draw.choice(["JSON_SET", "JSON_SET", "JSON_REPLACE", "JSON_REMOVE"])
            terms = []
            for _ in range(draw.randint(1, 3)):
                value = "" if call == "JSON_REMOVE" else f", {draw.choice(_VALUES)}"
                terms.append(f"'{draw.choice(_PATHS)}'{value}")
            more = draw.choice(["", ", b = JSON_SET(b, '$.n', z)", ", c = '[]'", f", {name} = {_DOCUMENT}"])
            if n % 7 == 0:
                cursor.execute(f"SET binlog_row_value_options = {draw.choice(['PARTIAL_JSON', chr(39) * 2])}")
            cursor.execute(f"UPDATE {database}.t SET z = {n}, {name} = {call}({name}, {', '.join(terms)}){more}")
            cursor.execute(f"SELECT CAST(a AS CHAR), CAST(b AS CHAR), CAST(c AS CHAR) FROM {database}.t ORDER BY id")
            said += cursor.fetchall()
    ((table, rows),) = row_groups(events_since(mysql9, since), mariadb=False)
    assert {event.partial for event in rows} == {True, False}
    images = RowImages.from_events(rows)
    assert sum(rows_per_event(table, images)) == len(said)
    found = decode_rows(schema_of(table, None), table, images)
    assert list(zip(*(found.after[i].to_pylist() for i in (1, 3, 4)), strict=True)) == said
    before = [(row["a"], row["b"], row["c"]) for row in found.before.to_pylist()]
    assert before[2:] == said[:-2]
    assert found.absent.null_count == len(said)


def test_a_difference_from_a_value_that_the_log_lacks_stops_with_the_options_to_set(
    mysql9: MySql, database: str
) -> None:
    mysql9.run(
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, a JSON)", f"INSERT INTO {database}.t VALUES (1, {_DOCUMENT})"
    )
    events = _logged(
        mysql9, "SET binlog_row_value_options = PARTIAL_JSON, binlog_row_image = MINIMAL",
        f"UPDATE {database}.t SET a = JSON_SET(a, '$.n', 2)",
    )  # fmt: skip
    ((table, rows),) = row_groups(events, mariadb=False)
    with raises(Refused, "source.incomplete_rows") as stopped:
        decode_rows(schema_of(table, None), table, RowImages.from_events(rows))
    assert "binlog_row_value_options" in stopped.value.remedy
    assert "on_unreadable: isolate" in stopped.value.remedy


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_mysql_definitions_from_the_log_and_from_information_schema_agree(
    mysql9: MySql, database: str, metadata: str
) -> None:
    vector = "VECTOR(2)" if MySql.version() >= (9,) else "VARBINARY(8)"
    _definitions_agree(mysql9, database, metadata, vector=vector)


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL", "NO_LOG"])
def test_mariadb_definitions_from_the_log_and_from_information_schema_agree(
    mariadb: MariaDb, maria_database: str, metadata: str
) -> None:
    _definitions_agree(mariadb, maria_database, metadata, vector="VARBINARY(8)")


def _definitions_agree(server: SqlServer, database: str, metadata: str, *, vector: str) -> None:
    """Character columns around a VECTOR and a GEOMETRY, which one server counts among them and the other does not."""
    server.run(
        f"CREATE TABLE {database}.t (a VARCHAR(20) CHARACTER SET latin1, g GEOMETRY, b INT UNSIGNED NOT NULL, "
        f"w {vector}, c CHAR(9) CHARACTER SET cp1251 NOT NULL, d VARBINARY(7), e ENUM('x','ä') CHARACTER SET latin1, "
        "f SET('p','q'), h DECIMAL(10,3) UNSIGNED, i TEXT CHARACTER SET utf8mb3, j DATETIME(3), k BIT(7), l YEAR, "
        "m BIGINT GENERATED ALWAYS AS (b + 1) STORED, n POINT, o MEDIUMBLOB, p BINARY(16), q FLOAT, r TINYINT(1), "
        "s ENUM('a','b''c'), t JSON, u BIT(5), v BIGINT UNSIGNED, "
        "PRIMARY KEY (c, b), KEY (i(5)))"
    )
    before = server.run("SELECT @@GLOBAL.binlog_row_metadata")[0][0]
    server.run(f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        events = _logged(server, f"INSERT INTO {database}.t (b, c, a, e, i) VALUES (4294967295, 'Я', 'ä', 'ä', 'é')")
    finally:
        server.run(f"SET GLOBAL binlog_row_metadata = {before}")
    known = known_schema(server, database, "t")
    mariadb = server.mariadb
    schema, rows = decoded(events, known, mariadb=mariadb)
    assert schema == known
    row = rows_of(schema, rows.after)[0]
    assert (row["a"], row["b"], row["c"], row["e"], row["i"]) == ("ä", 4294967295, "Я", "ä", "é")
    if metadata == "FULL":
        alone, _ = decoded(events, None, mariadb=mariadb)
        assert [(c.name, c.type.arrow, c.nullable, c.key_part) for c in alone.columns] == [
            (c.name, c.type.arrow, c.nullable, c.key_part) for c in known.columns
        ]
    else:
        with raises(Refused, "source.incomplete_rows"):
            decoded(events, None, mariadb=mariadb)


def test_a_definition_that_contradicts_the_log_is_refused(mysql9: MySql, database: str) -> None:
    mysql9.run(
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(10))", "SET GLOBAL binlog_row_metadata = MINIMAL"
    )
    try:
        events = _logged(mysql9, f"INSERT INTO {database}.t VALUES (1, 'a')")
    finally:
        mysql9.run("SET GLOBAL binlog_row_metadata = FULL")
    for change in ("MODIFY v VARCHAR(20)", "MODIFY v INT", "MODIFY id INT UNSIGNED", "ADD w INT"):
        mysql9.run(f"DELETE FROM {database}.t", f"ALTER TABLE {database}.t {change}")
        with raises(Refused, "source.incomplete_rows") as refused:
            decoded(events, known_schema(mysql9, database, "t"), mariadb=False)
        assert "binlog_row_metadata = FULL" in refused.value.remedy
        mysql9.run(f"DROP TABLE {database}.t", f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(10))")


def test_a_two_phase_alter_of_mariadb_says_which_phase_it_is(mariadb: MariaDb, maria_database: str) -> None:
    if not mariadb.run("SHOW VARIABLES LIKE 'binlog_alter_two_phase'"):
        pytest.skip("came with MariaDB 10.8")
    mariadb.run(f"CREATE TABLE {maria_database}.t (id INT PRIMARY KEY)")
    events = _logged(mariadb, "SET binlog_alter_two_phase = ON", f"ALTER TABLE {maria_database}.t ADD v INT")
    start, commit = (parse_mariadb_gtid(event) for event in _of(events, EventType.MARIADB_GTID))
    assert (start.start_alter, commit.start_alter) == (True, False)


def test_the_gtid_list_is_what_mariadb_had_logged(mariadb: MariaDb, maria_database: str) -> None:
    (state,) = mariadb.run(f"CREATE TABLE {maria_database}.t (id INT)", "SELECT @@gtid_binlog_state")[0]
    mariadb.run("FLUSH BINARY LOGS")
    (event,) = _of(events_since(mariadb, Mark(mark(mariadb).file, 4)), EventType.MARIADB_GTID_LIST)
    assert sorted(parse_mariadb_gtid_list(event)) == sorted(str(state).split(","))


def test_gtid_text_of_an_anonymous_transaction_is_empty() -> None:
    assert Gtid("", 0, "", 0, 0).text == ""
