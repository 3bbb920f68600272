"""Events that steer a stream, parsed from the logs of real servers and compared with what the servers say."""

from __future__ import annotations

import math
import random
import struct
import time
import uuid
from collections.abc import Iterator

import pytest

from cdc_core.binlog.compressed import MARIADB_COMPRESSED
from cdc_core.binlog.event_headers import (
    Event,
    EventType,
    parse_query,
    parse_rotate,
    parse_rows_query,
    parse_xa_prepare,
    parse_xid,
)
from cdc_core.binlog.gtid import (
    Gtid,
    parse_gtid,
    parse_mariadb_gtid,
    parse_mariadb_gtid_list,
    parse_previous_gtids,
)
from cdc_core.binlog.image_shapes import count_rows
from cdc_core.binlog.row_columns import decode_rows
from cdc_core.binlog.row_definition import schema_of
from cdc_core.binlog.row_images import RowImages
from cdc_core.errors import Refused
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.sql_server import SqlServer
from tests.unit.binlog.reading import (
    Mark,
    decoded,
    events_since,
    known_schema,
    mark,
    raw_events,
    row_groups,
    rows_of,
)


@pytest.fixture
def database(mysql9: MySql) -> Iterator[str]:
    yield from _database(mysql9)


@pytest.fixture
def maria_database(mariadb: MariaDb) -> Iterator[str]:
    yield from _database(mariadb)


def _database(server: SqlServer) -> Iterator[str]:
    name = f"e_{uuid.uuid4().hex[:12]}"
    _run(server, f"CREATE DATABASE {name}")
    yield name
    _run(server, f"DROP DATABASE {name}")


def _run(server: SqlServer, *statements: str) -> list[tuple[object, ...]]:
    """All in one session; the rows of the last."""
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def _of(events: list[Event], *types: EventType) -> list[Event]:
    return [event for event in events if event.header.type in types]


def _logged(server: SqlServer, *statements: str) -> list[Event]:
    since = mark(server)
    _run(server, *statements)
    return events_since(server, since)


def test_a_mysql_transaction_begins_with_its_gtid_and_its_commit_time(mysql9: MySql, database: str) -> None:
    before_us = time.time_ns() // 1000
    events = _logged(
        mysql9, f"CREATE TABLE {database}.t (id INT PRIMARY KEY)", f"INSERT INTO {database}.t VALUES (1), (2)"
    )
    after_us = time.time_ns() // 1000
    (executed,) = _run(mysql9, "SELECT @@gtid_executed")[0]
    gtids = [parse_gtid(event) for event in _of(events, EventType.GTID)]
    assert len(gtids) == 2
    assert [str(executed).startswith(gtid.sid) for gtid in gtids] == [True, True]
    assert gtids[1].gno == gtids[0].gno + 1
    assert before_us - 1_000_000 <= gtids[0].immediate_commit_ts_us <= gtids[1].immediate_commit_ts_us
    assert gtids[1].immediate_commit_ts_us <= after_us + 1_000_000
    assert gtids[1].original_commit_ts_us == gtids[1].immediate_commit_ts_us
    second = events.index(_of(events, EventType.GTID)[1])
    assert gtids[1].transaction_length == sum(event.header.length for event in events[second:])
    parse_xid(events[-1])


def test_a_tagged_gtid_is_read_from_its_serialised_form(mysql9: MySql, database: str) -> None:
    events = _logged(
        mysql9, f"CREATE TABLE {database}.t (id INT PRIMARY KEY)", "SET gtid_next = 'AUTOMATIC:tag_1'",
        f"INSERT INTO {database}.t VALUES (1)", "SET gtid_next = 'AUTOMATIC'",
    )  # fmt: skip
    (event,) = _of(events, EventType.GTID_TAGGED)
    (server_uuid, executed) = _run(mysql9, "SELECT @@server_uuid, @@gtid_executed")[0]
    gtid = parse_gtid(event)
    assert (gtid.sid, gtid.tag) == (server_uuid, "tag_1")
    assert f":{gtid.tag}:1" in str(executed)
    assert gtid.text == f"{server_uuid}:tag_1:{gtid.gno}"
    assert abs(gtid.immediate_commit_ts_us - time.time_ns() // 1000) < 60_000_000
    assert gtid.transaction_length == sum(inner.header.length for inner in events[events.index(event) :])
    assert gtid.immediate_server_version // 10000 >= 9
    assert gtid.sequence_number > gtid.last_committed >= 0


def test_the_set_of_previous_gtids_is_what_the_server_had_executed(mysql9: MySql, database: str) -> None:
    _run(
        mysql9, f"CREATE TABLE {database}.t (id INT PRIMARY KEY)", "SET gtid_next = 'AUTOMATIC:zebra'",
        f"INSERT INTO {database}.t VALUES (1)", "SET gtid_next = 'AUTOMATIC'",
    )  # fmt: skip
    (executed,) = _run(mysql9, "SELECT @@gtid_executed")[0]
    before = mark(mysql9)
    _run(mysql9, "FLUSH BINARY LOGS")
    (rotate,) = _of(events_since(mysql9, before), EventType.ROTATE)
    after = mark(mysql9)
    assert (parse_rotate(rotate).file, parse_rotate(rotate).offset) == (after.file, 4)
    (previous,) = _of(events_since(mysql9, Mark(after.file, 4)), EventType.PREVIOUS_GTIDS)
    assert parse_previous_gtids(previous) == str(executed).replace("\n", "")


def test_a_compressed_transaction_holds_the_rows_of_a_plain_one(mysql9: MySql, database: str) -> None:
    _run(mysql9, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(1000))")
    insert = f"INSERT INTO {database}.t VALUES (1, REPEAT('abc', 300)), (2, 'é')"
    plain = _logged(mysql9, insert)
    _run(mysql9, f"DELETE FROM {database}.t")
    packed = _logged(mysql9, "SET binlog_transaction_compression = ON", insert)
    (payload,) = _of(packed, EventType.TRANSACTION_PAYLOAD)
    assert [event.start for event in packed[packed.index(payload) + 1 :]] == [payload.start] * 4
    rows = [rows_of(schema, got.after) for schema, got in (decoded(e, None, mariadb=False) for e in (plain, packed))]
    assert rows[0] == rows[1] == [{"id": 1, "v": "abc" * 300}, {"id": 2, "v": "é"}]


def test_json_doubles_of_all_sizes_print_as_the_server_prints_them(mysql9: MySql, database: str) -> None:
    chance = random.Random(3)
    values = [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(1500)]
    values += [chance.uniform(-1, 1) * 10 ** chance.randint(-20, 20) for _ in range(1500)]
    values += [float(f"{chance.randint(1, 99)}e{exponent}") for exponent in range(-20, 25)]
    numbers = ",".join(f"CAST({value!r} AS DOUBLE)" for value in values if math.isfinite(value))
    _run(mysql9, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, j JSON)")
    events = _logged(mysql9, f"INSERT INTO {database}.t VALUES (1, JSON_ARRAY({numbers}))")
    (said,) = _run(mysql9, f"SELECT CAST(j AS CHAR) FROM {database}.t")[0]
    schema, rows = decoded(events, None, mariadb=False)
    assert rows_of(schema, rows.after)[0]["j"] == said


def test_an_xa_transaction_has_one_name_in_its_start_and_its_prepare(mysql9: MySql, database: str) -> None:
    events = _logged(
        mysql9, f"CREATE TABLE {database}.t (id INT PRIMARY KEY)", "XA START 'gt','bq',7",
        f"INSERT INTO {database}.t VALUES (1)", "XA END 'gt','bq',7", "XA PREPARE 'gt','bq',7", "XA COMMIT 'gt','bq',7",
    )  # fmt: skip
    (prepare,) = _of(events, EventType.XA_PREPARE)
    xid = parse_xa_prepare(prepare).xid
    assert (xid.gtrid, xid.bqual, xid.format) == (b"gt", b"bq", 7)
    statements = [parse_query(event).sql.decode() for event in _of(events, EventType.QUERY)]
    for verb in ("XA START", "XA END", "XA COMMIT"):
        assert f"{verb} {xid.text}" in statements


def test_a_statement_comes_with_its_database_charset_and_microseconds(mysql9: MySql, database: str) -> None:
    events = _logged(
        mysql9, f"USE {database}", "SET NAMES latin1", "CREATE TABLE t (at DATETIME(6))",
        "SET SESSION binlog_format = STATEMENT", "SET timestamp = 1700000000.123456", "INSERT INTO t VALUES (NOW(6))",
    )  # fmt: skip
    queries = {parse_query(event).sql.split()[0]: event for event in _of(events, EventType.QUERY)}
    query = parse_query(queries[b"CREATE"])
    assert (query.database, query.sql) == (database, b"CREATE TABLE t (at DATETIME(6))")
    assert query.client_collation == 8
    assert query.ddl_xid > 0
    assert query.sql_mode is not None
    insert = queries[b"INSERT"]
    assert (insert.header.timestamp, parse_query(insert).microseconds) == (1700000000, 123456)


def test_the_statement_behind_rows_is_told_where_the_server_logs_it(mysql9: MySql, database: str) -> None:
    insert = f"INSERT INTO {database}.t VALUES (1) /* {'x' * 300} */"
    events = _logged(
        mysql9, f"CREATE TABLE {database}.t (id INT PRIMARY KEY)", "SET binlog_rows_query_log_events = ON", insert
    )
    assert [parse_rows_query(event).decode() for event in _of(events, EventType.ROWS_QUERY)] == [insert]


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_rows_without_all_columns_are_counted(mysql9: MySql, database: str, image: str) -> None:
    _run(mysql9, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, n INT DEFAULT 5, v TEXT)")
    events = _logged(
        mysql9, f"SET binlog_row_image = {image}", f"INSERT INTO {database}.t (id) VALUES (1), (2), (3)",
        f"UPDATE {database}.t SET n = 6", f"DELETE FROM {database}.t",
    )  # fmt: skip
    ((table, rows),) = row_groups(events, mariadb=False)
    images = RowImages.from_events(rows)
    assert count_rows(table, images).tolist() == [3, 3, 3]


def test_an_insert_of_defaults_only_is_one_row_of_no_bytes(mysql9: MySql, database: str) -> None:
    _run(mysql9, f"CREATE TABLE {database}.t (n INT DEFAULT 5)")
    events = _logged(mysql9, "SET binlog_row_image = MINIMAL", f"INSERT INTO {database}.t VALUES ()")
    ((table, rows),) = row_groups(events, mariadb=False)
    assert rows[0].images == b""
    assert count_rows(table, RowImages.from_events(rows)).tolist() == [1]
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
    _run(
        mysql9, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, a JSON, z INT, b JSON, c JSON)",
        f"INSERT INTO {database}.t VALUES (1, {_DOCUMENT}, 0, {_DOCUMENT}, '1'), (2, {_DOCUMENT}, 0, NULL, NULL)",
    )  # fmt: skip
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
    assert count_rows(table, images).sum() == len(said)
    found = decode_rows(schema_of(table, None), table, images)
    assert list(zip(*(found.after[i].to_pylist() for i in (1, 3, 4)), strict=True)) == said
    before = [(row["a"], row["b"], row["c"]) for row in found.before.to_pylist()]
    assert before[2:] == said[:-2]
    assert found.absent.null_count == len(said)


def test_a_difference_from_a_value_that_the_log_lacks_stops_with_the_options_to_set(
    mysql9: MySql, database: str
) -> None:
    _run(
        mysql9, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, a JSON)",
        f"INSERT INTO {database}.t VALUES (1, {_DOCUMENT})",
    )  # fmt: skip
    events = _logged(
        mysql9, "SET binlog_row_value_options = PARTIAL_JSON, binlog_row_image = MINIMAL",
        f"UPDATE {database}.t SET a = JSON_SET(a, '$.n', 2)",
    )  # fmt: skip
    ((table, rows),) = row_groups(events, mariadb=False)
    with pytest.raises(Refused) as stopped:
        decode_rows(schema_of(table, None), table, RowImages.from_events(rows))
    assert stopped.value.code == "source.incomplete_rows"
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
    _run(
        server,
        f"CREATE TABLE {database}.t (a VARCHAR(20) CHARACTER SET latin1, g GEOMETRY, b INT UNSIGNED NOT NULL, "
        f"w {vector}, c CHAR(9) CHARACTER SET cp1251 NOT NULL, d VARBINARY(7), e ENUM('x','ä') CHARACTER SET latin1, "
        "f SET('p','q'), h DECIMAL(10,3) UNSIGNED, i TEXT CHARACTER SET utf8mb3, j DATETIME(3), k BIT(7), l YEAR, "
        "m BIGINT GENERATED ALWAYS AS (b + 1) STORED, n POINT, o MEDIUMBLOB, p BINARY(16), q FLOAT, "
        "PRIMARY KEY (c, b), KEY (i(5)))",
    )
    before = _run(server, "SELECT @@GLOBAL.binlog_row_metadata")[0][0]
    _run(server, f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        events = _logged(server, f"INSERT INTO {database}.t (b, c, a, e, i) VALUES (4294967295, 'Я', 'ä', 'ä', 'é')")
    finally:
        _run(server, f"SET GLOBAL binlog_row_metadata = {before}")
    known = known_schema(server, database, "t")
    mariadb = isinstance(server, MariaDb)
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
        with pytest.raises(Refused) as refused:
            decoded(events, None, mariadb=mariadb)
        assert refused.value.code == "source.incomplete_rows"


def test_a_definition_that_contradicts_the_log_is_refused(mysql9: MySql, database: str) -> None:
    _run(
        mysql9,
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(10))",
        "SET GLOBAL binlog_row_metadata = MINIMAL",
    )
    try:
        events = _logged(mysql9, f"INSERT INTO {database}.t VALUES (1, 'a')")
    finally:
        _run(mysql9, "SET GLOBAL binlog_row_metadata = FULL")
    for change in ("MODIFY v VARCHAR(20)", "MODIFY v INT", "MODIFY id INT UNSIGNED", "ADD w INT"):
        _run(mysql9, f"DELETE FROM {database}.t", f"ALTER TABLE {database}.t {change}")
        with pytest.raises(Refused) as refused:
            decoded(events, known_schema(mysql9, database, "t"), mariadb=False)
        assert refused.value.code == "source.incomplete_rows"
        assert "binlog_row_metadata = FULL" in refused.value.remedy
        _run(mysql9, f"DROP TABLE {database}.t", f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(10))")


def test_a_mariadb_group_begins_with_its_gtid(mariadb: MariaDb, maria_database: str) -> None:
    events = _logged(
        mariadb, f"CREATE TABLE {maria_database}.t (id INT PRIMARY KEY)", f"INSERT INTO {maria_database}.t VALUES (1)"
    )
    (position,) = _run(mariadb, "SELECT @@gtid_binlog_pos")[0]
    ddl, dml = (parse_mariadb_gtid(event) for event in _of(events, EventType.MARIADB_GTID))
    assert (ddl.standalone, ddl.ddl, dml.standalone, dml.ddl) == (True, True, False, False)
    assert (dml.text, dml.seq_no) == (position, ddl.seq_no + 1)
    (annotate,) = _of(events, EventType.MARIADB_ANNOTATE_ROWS)
    assert parse_rows_query(annotate).decode() == f"INSERT INTO {maria_database}.t VALUES (1)"


def test_a_mariadb_xa_group_carries_its_name(mariadb: MariaDb, maria_database: str) -> None:
    events = _logged(
        mariadb, f"CREATE TABLE {maria_database}.t (id INT PRIMARY KEY)", "XA START 'gt','bq',7",
        f"INSERT INTO {maria_database}.t VALUES (1)", "XA END 'gt','bq',7", "XA PREPARE 'gt','bq',7",
        "XA COMMIT 'gt','bq',7",
    )  # fmt: skip
    _, prepared, completed = (parse_mariadb_gtid(event) for event in _of(events, EventType.MARIADB_GTID))
    assert (prepared.xa_prepared, completed.xa_completed) == (True, True)
    assert prepared.xid == completed.xid
    assert prepared.xid is not None
    assert prepared.xid.text == "X'6774',X'6271',7"
    (event,) = _of(events, EventType.XA_PREPARE)
    assert parse_xa_prepare(event).xid == prepared.xid


def test_a_two_phase_alter_of_mariadb_says_which_phase_it_is(mariadb: MariaDb, maria_database: str) -> None:
    if not _run(mariadb, "SHOW VARIABLES LIKE 'binlog_alter_two_phase'"):
        pytest.skip("came with MariaDB 10.8")
    _run(mariadb, f"CREATE TABLE {maria_database}.t (id INT PRIMARY KEY)")
    events = _logged(mariadb, "SET binlog_alter_two_phase = ON", f"ALTER TABLE {maria_database}.t ADD v INT")
    start, commit = (parse_mariadb_gtid(event) for event in _of(events, EventType.MARIADB_GTID))
    assert (start.start_alter, start.commit_alter, commit.start_alter, commit.commit_alter) == (
        True, False, False, True,
    )  # fmt: skip


def test_the_gtid_list_is_what_mariadb_had_logged(mariadb: MariaDb, maria_database: str) -> None:
    (state,) = _run(mariadb, f"CREATE TABLE {maria_database}.t (id INT)", "SELECT @@gtid_binlog_state")[0]
    _run(mariadb, "FLUSH BINARY LOGS")
    (event,) = _of(events_since(mariadb, Mark(mark(mariadb).file, 4)), EventType.MARIADB_GTID_LIST)
    assert sorted(parse_mariadb_gtid_list(event)) == sorted(str(state).split(","))


def test_compressed_events_of_mariadb_hold_what_plain_ones_do(mariadb: MariaDb, maria_database: str) -> None:
    _run(mariadb, f"CREATE TABLE {maria_database}.t (id INT PRIMARY KEY, v VARCHAR(2000))")
    work = (
        f"INSERT INTO {maria_database}.t VALUES (1, REPEAT('abc', 600)), (2, 'é')",
        f"UPDATE {maria_database}.t SET v = CONCAT(v, REPEAT('d', 100))",
        f"DELETE FROM {maria_database}.t",
    )
    plain = _logged(mariadb, *work)
    _run(mariadb, "SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
    since = mark(mariadb)
    try:
        _run(mariadb, *work, f"CREATE TABLE {maria_database}.u (id INT) COMMENT '{'c' * 300}'")
    finally:
        _run(mariadb, "SET GLOBAL log_bin_compress = OFF", "SET GLOBAL log_bin_compress_min_len = DEFAULT")
    packed = events_since(mariadb, since)
    data = (mariadb.directory / "data" / since.file).read_bytes()
    found = {event.header.type for event in raw_events(data, since.file, since.offset)}
    assert {165, 166, 167, 168} <= found
    assert not {event.header.type for event in packed} & set(MARIADB_COMPRESSED)
    for a, b in zip(decoded(plain, None, mariadb=True), decoded(packed, None, mariadb=True), strict=True):
        if hasattr(a, "after"):
            assert (a.after, a.before, a.op) == (b.after, b.before, b.op)
    assert parse_query(_of(packed, EventType.QUERY)[-1]).sql.endswith(b"'" + b"c" * 300 + b"'")


def test_gtid_text_of_an_anonymous_transaction_is_empty() -> None:
    assert Gtid("", 0, "", 0, 0, 0, 0, 0, 0, 0).text == ""
