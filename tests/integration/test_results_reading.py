"""Reading rows from real servers: definitions, large rows, and what may end an answer before its last row."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from cdc_core.errors import InternalError, LockstepError, Refused, RetryLater
from cdc_core.mysql import connections
from cdc_core.results import TableReader, read_columns
from examples.sandbox.sql_server import SqlServer
from tests.integration.selected_rows import logged, opened, read, require_equal
from tests.lab.refusals import raises
from tests.lab.tcp_proxy import TcpProxy
from tests.unit.binlog.reading import known_schema, mark


def run(server: SqlServer, *statements: str) -> Any:
    return server.run("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'", *statements)


def filled(server: SqlServer, database: str, rows: int = 20_000) -> TableReader:
    """A table of some megabytes, and a reader of it on a connection of its own."""
    run(
        server,
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, s VARCHAR(300), d DECIMAL(9,2), at DATETIME(3))",
        "SET SESSION cte_max_recursion_depth = 100000" if not server.mariadb else
        "SET SESSION max_recursive_iterations = 100000",
        f"INSERT INTO {database}.t WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {rows - 1})"
        " SELECT i, REPEAT(CHAR(97 + i % 26), 250), i / 4, '2024-02-29 01:02:03.004' FROM n",
    )  # fmt: skip
    return TableReader(opened(server), known_schema(server, database, "t"))


def refused(kind: type[LockstepError], code: str, call: Callable[[], object]) -> LockstepError:
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.code == code, str(caught.value)
    return caught.value


# Definitions

ODD = (
    "id INT PRIMARY KEY, `a?b` INT, `tick``s` INT UNSIGNED ZEROFILL, `per%s` DECIMAL(20,3) UNSIGNED ZEROFILL, "
    '`two words` DECIMAL(60,2) UNSIGNED ZEROFILL, `é` FLOAT(7,2), `"` DOUBLE(12,3) UNSIGNED ZEROFILL, '
    "small TINYINT UNSIGNED ZEROFILL, year_ YEAR, flag BOOLEAN, n NATIONAL CHAR(4), nv NATIONAL VARCHAR(4), "
    "bytes CHAR(4) BYTE, c0 CHAR(0), v0 VARCHAR(0), b0 BINARY(0), bt TEXT CHARACTER SET binary, t5 TEXT(5), "
    "gen INT GENERATED ALWAYS AS (id + 1) VIRTUAL, gst VARCHAR(9) GENERATED ALWAYS AS (CONCAT('g', id)) STORED, "
    "inv INT {invisible} DEFAULT 5, eb ENUM('a','b') CHARACTER SET binary, sb SET('x','y') CHARACTER SET binary, "
    "ee ENUM('','b'), es ENUM('x  ','y'), se SET('','b'), nn INT NOT NULL DEFAULT 7, m MEDIUMINT UNSIGNED, "
    "ge GEOMETRYCOLLECTION, mp MULTIPOINT"
)


def test_any_definition_is_read_as_it_is_streamed(any_server: SqlServer, database: str) -> None:
    run(any_server, f"CREATE TABLE {database}.t ({ODD.format(invisible='INVISIBLE')})")
    since = mark(any_server)
    run(
        any_server,
        f'INSERT INTO {database}.t (id, `a?b`, `tick``s`, `per%s`, `two words`, `é`, `"`, small, year_, flag, n, nv, '
        "bytes, c0, v0, b0, bt, t5, inv, eb, sb, ee, es, se, m) VALUES (1, -1, 42, 7.5, 7.5, 12345.678, 3.14159, 7, "
        "1999, TRUE, 'é', 'ü ', 'ab', '', '', '', 'bt', 't5', 9, 'b', 'x,y', '', 'x', 'b', 16777215), "
        "(2, 1, 0, 0, 0, -0.01, 0, 0, 0, 5, '', '', '', '', '', '', '', '', NULL, 1, 3, 'b', 'y', '', 0)",
        "SET SESSION sql_mode = ''",
        f"INSERT INTO {database}.t (id, ee, es, eb, se, year_) VALUES (3, 'zz', 'zz', 'zz', 1, '69')",
        f"INSERT INTO {database}.t (id, ee, se) VALUES (4, 0, 3)",
        f"INSERT INTO {database}.t (id, ge, mp) VALUES (5, ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2))'), "
        "ST_GeomFromText('MULTIPOINT((1 2),(3 4))'))",
    )
    wanted = logged(any_server, since, database)["t"]
    found = read(any_server, database, "t", opened(any_server))
    require_equal(found, wanted)
    assert found.num_rows == 5
    assert found.column("inv").to_pylist() == [9, None, 5, 5, 5]


def test_a_primary_key_of_any_type_gives_rows_in_the_order_asked_for(any_server: SqlServer, database: str) -> None:
    run(
        any_server,
        f"CREATE TABLE {database}.t (k VARCHAR(5) CHARACTER SET latin1 PRIMARY KEY, v INT)",
        f"INSERT INTO {database}.t VALUES ('b', 1), ('Ä', 2), ('?', 3), ('c', 4)",
    )
    reader = TableReader(opened(any_server), known_schema(any_server, database, "t"))
    tail = f"FROM `{database}`.`t` FORCE INDEX (PRIMARY) WHERE `k` > '?' ORDER BY `k` DESC LIMIT 2"
    (batch,) = reader.batches(tail)
    assert batch.column("v").to_pylist() == [2, 4]
    assert list(reader.batches(f"FROM `{database}`.`t` WHERE k = 'none'")) == []


def test_the_types_of_a_query_are_its_own(any_server: SqlServer, database: str) -> None:
    run(
        any_server,
        f"CREATE TABLE {database}.t (id BIGINT UNSIGNED, l VARCHAR(9) CHARACTER SET latin1, d DECIMAL(9,2),"
        " e ENUM('ä'))",
        f"INSERT INTO {database}.t VALUES (18446744073709551615, 'Äé', 1.5, 'ä'), (2, NULL, -2.25, NULL)",
    )
    connection = opened(any_server)
    sql = (
        "SELECT id, l, e, d AS m, SUM(d) OVER () AS s, COUNT(*) OVER () AS n, NULL AS z, d / 3 AS q, "
        "MAX(d) OVER () AS h, 'é' AS t, CAST('2024-02-29 01:02:03.5' AS DATETIME(1)) AS at, X'FF00' AS x "
        f"FROM {database}.t ORDER BY id DESC"
    )
    table = pa.Table.from_batches(read_columns(connection, sql))
    first = table.to_pylist()[0]
    assert {name: first[name] for name in ("id", "l", "e", "t", "x", "n", "z")} == {
        "id": 18446744073709551615, "l": "Äé", "e": "ä", "t": "é", "x": b"\xff\x00", "n": 2, "z": None,
    }  # fmt: skip
    assert [str(first[name]) for name in ("m", "s", "q", "h")] == ["1.50", "-0.75", "0.500000", "1.50"]
    assert first["at"].isoformat() == "2024-02-29T01:02:03.500000"
    (none,) = read_columns(connection, f"SELECT id, l FROM {database}.t WHERE FALSE")
    assert (none.num_rows, none.schema.types[:2]) == (0, [pa.uint64(), pa.string()])


# Sizes


def test_rows_are_whole_at_the_edge_of_a_packet_and_far_beyond_it(any_server: SqlServer, database: str) -> None:
    """A row of exactly 2^24 - 1 bytes is followed by an empty packet."""
    run(any_server, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, b LONGBLOB)")
    head = 1 + 1 + 4 + 4  # 0x00, nulls, id, length
    edge = (1 << 24) - 1
    sizes = [3, edge - head - 1, edge - head, edge - head + 1, 2 * edge - head, 40_000_000, 2 * edge - head - 1, 0]
    for i, size in enumerate(sizes):
        run(any_server, f"INSERT INTO {database}.t SELECT {i}, CONCAT(REPEAT('x', {size} - 1), '{i}')" if size else
            f"INSERT INTO {database}.t VALUES ({i}, '')")  # fmt: skip
    reader = TableReader(opened(any_server), known_schema(any_server, database, "t"))
    for size_bytes in (1 << 12, 16 << 20):
        found = {
            row["id"]: row["b"]
            for batch in reader.batches(f"FROM {database}.t ORDER BY id", size_bytes=size_bytes)
            for row in batch.to_pylist()
        }
        assert [len(found[i]) for i in range(len(sizes))] == sizes
        for i, size in enumerate(sizes):
            assert found[i] == b"x" * (size - 1) + (str(i).encode() if size else b"")


def test_batches_are_as_small_as_asked_for_and_together_the_whole(any_server: SqlServer, database: str) -> None:
    reader = filled(any_server, database)
    whole = list(reader.batches(f"FROM {database}.t ORDER BY id"))
    assert sum(batch.num_rows for batch in whole) == 20_000
    for rows, size_bytes in ((1000, 16 << 20), (1 << 16, 100_000), (1, 1 << 20), (7, 5000)):
        tail = f"FROM {database}.t WHERE id < {rows * 300} ORDER BY id"
        parts = list(reader.batches(tail, rows=rows, size_bytes=size_bytes))
        assert all(0 < batch.num_rows <= rows for batch in parts)
        assert all(batch.num_rows <= size_bytes / 260 + 1 for batch in parts)
        count = min(20_000, rows * 300)
        together = pa.Table.from_batches(parts, reader.arrow)
        assert together.equals(pa.Table.from_batches(whole, reader.arrow)[:count], check_metadata=True)


def test_a_table_with_many_columns(any_server: SqlServer, database: str) -> None:
    count = 1000
    columns = ", ".join(f"c{n} TINYINT" for n in range(count))
    values = ",".join("NULL" if n % 7 == 0 else str(n % 100) for n in range(count))
    run(any_server, f"CREATE TABLE {database}.t ({columns})", f"INSERT INTO {database}.t VALUES ({values})")
    (batch,) = TableReader(opened(any_server), known_schema(any_server, database, "t")).batches(f"FROM {database}.t")
    assert list(batch.to_pylist()[0].values())[:-1] == [None if n % 7 == 0 else n % 100 for n in range(count)]


# Ends


def test_whatever_ends_the_statement_is_an_error_and_never_a_short_result(any_server: SqlServer, database: str) -> None:
    reader = filled(any_server, database)
    connection = reader._connection
    for kill in ("KILL QUERY", "KILL"):
        rows = reader.batches(f"FROM {database}.t a, (SELECT 1 FROM {database}.t LIMIT 100) b", size_bytes=100_000)
        assert next(rows).num_rows
        run(any_server, f"{kill} {connection.thread_id()}")
        refused(RetryLater, "connection.unreachable", lambda rows=rows: list(rows))
        if kill == "KILL QUERY":
            assert [batch.num_rows for batch in reader.batches(f"FROM {database}.t WHERE id < 5")] == [5]
    refused(RetryLater, "connection.unreachable", lambda: list(reader.batches(f"FROM {database}.t")))


def test_after_an_error_of_the_server_the_connection_reads_on(any_server: SqlServer, database: str) -> None:
    run(any_server, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(10) CHARACTER SET latin1)",
        f"INSERT INTO {database}.t VALUES (1, 'ä'), (2, '<')")  # fmt: skip
    reader = TableReader(opened(any_server), known_schema(any_server, database, "t"))
    refused(RetryLater, "table.redefined", lambda: list(reader.batches(f"FROM {database}.gone")))
    refused(Refused, "connection.statement", lambda: list(reader.batches("FROM FROM")))
    refused(InternalError, "internal.defect", lambda: list(reader.batches(f"FROM {database}.t WHERE id = ?")))
    # An error while rows come: the second row overflows.
    bad = f"FROM {database}.t WHERE id = 1 OR EXP(id * 400) > 0 ORDER BY id"
    with pytest.raises(LockstepError):
        list(reader.batches(bad))
    assert [batch.num_rows for batch in reader.batches(f"FROM {database}.t")] == [2]
    with reader._connection.cursor() as cursor:
        cursor.execute(f"SELECT v FROM {database}.t ORDER BY id")
        assert cursor.fetchall() == (("ä",), ("<",))
    statements = "SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'"
    assert int(run(any_server, statements)[0][1]) == 0


def test_an_iterator_that_is_dropped_closes_the_connection(any_server: SqlServer, database: str) -> None:
    reader = filled(any_server, database)
    rows = reader.batches(f"FROM {database}.t", rows=10)
    next(rows)
    rows.close()
    assert not reader._connection.open
    refused(RetryLater, "connection.unreachable", lambda: list(reader.batches(f"FROM {database}.t")))


def test_no_statement_is_mixed_with_an_answer_that_is_being_read(any_server: SqlServer, database: str) -> None:
    reader = filled(any_server, database)
    rows = reader.batches(f"FROM {database}.t", rows=10)
    next(rows)
    with raises(InternalError, "internal.defect"), reader._connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    refused(RetryLater, "connection.unreachable", lambda: list(rows))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("MODIFY id BIGINT", "type LONGLONG, not int"),
        ("MODIFY id INT UNSIGNED", "another sign"),
        ("MODIFY s VARCHAR(300) CHARACTER SET latin1", "character set latin1, not utf8mb4"),
        ("MODIFY s VARBINARY(300)", "character set binary, not utf8mb4"),
        ("MODIFY d DECIMAL(9,3)", "3 digits after the point"),
        ("MODIFY d DOUBLE", "type DOUBLE, not decimal"),
        ("MODIFY at DATETIME(6)", "6 fractional digits, not 3"),
        ("MODIFY at TIMESTAMP(3) NULL", "type TIMESTAMP, not datetime"),
        ("DROP COLUMN s", "Unknown column"),
    ],
)
def test_a_table_that_was_altered_since_its_definition_was_read_is_not_read(
    any_server: SqlServer, database: str, change: str, says: str
) -> None:
    reader = filled(any_server, database, rows=3)
    run(any_server, f"ALTER TABLE {database}.t {change}")
    error = refused(RetryLater, "table.redefined", lambda: list(reader.batches(f"FROM {database}.t ORDER BY id")))
    assert says in str(error)


def test_labels_that_were_altered_are_noticed_or_read_right(any_server: SqlServer, database: str) -> None:
    run(
        any_server,
        f"CREATE TABLE {database}.t (id INT, e ENUM('a','b'), n ENUM('','b'))",
        f"INSERT INTO {database}.t VALUES (1, 'a', ''), (2, 'b', 'b')",
    )
    reader = TableReader(opened(any_server), known_schema(any_server, database, "t"))
    run(any_server, f"ALTER TABLE {database}.t MODIFY e ENUM('b','a')")
    (batch,) = reader.batches(f"FROM {database}.t ORDER BY id")
    assert batch.column("e").to_pylist() == ["a", "b"]
    run(
        any_server,
        f"ALTER TABLE {database}.t MODIFY e ENUM('b','c','a')",
        f"INSERT INTO {database}.t VALUES (3, 'c', '')",
    )
    refused(RetryLater, "table.redefined", lambda: list(reader.batches(f"FROM {database}.t")))
    reader = TableReader(opened(any_server), known_schema(any_server, database, "t"))
    run(
        any_server,
        f"ALTER TABLE {database}.t MODIFY n ENUM('','b','c')",
        f"INSERT INTO {database}.t VALUES (4, 'a', 'c')",
    )
    refused(RetryLater, "table.redefined", lambda: list(reader.batches(f"FROM {database}.t")))


def test_a_connection_that_is_cut_anywhere_is_never_a_short_result(any_server: SqlServer, database: str) -> None:
    filled(any_server, database, rows=400)
    schema = known_schema(any_server, database, "t")
    tail = f"FROM {database}.t ORDER BY id"
    outcomes = []
    with TcpProxy(any_server.port) as proxy:
        address = connections.parse_url(any_server.url.replace(f":{any_server.port}", f":{proxy.port}"), where="proxy")

        def count() -> int:
            with connections.connect(address, where="proxy") as connection:
                reader = TableReader(connection, schema)
                return sum(batch.num_rows for batch in reader.batches(tail, rows=50))

        assert count() == 400
        total = proxy.passed
        for size in [*range(1, total, total // 40), total - 1, total - 20, total - 60]:
            proxy.cut_after(size)
            try:
                outcomes.append(count())
            except RetryLater:
                outcomes.append(0)
    assert set(outcomes) <= {0, 400}
    assert outcomes.count(0) > 30


def test_a_server_that_goes_silent_is_given_up_after_the_read_timeout(any_server: SqlServer, database: str) -> None:
    filled(any_server, database)
    with TcpProxy(any_server.port) as proxy:
        address = connections.parse_url(any_server.url.replace(f":{any_server.port}", f":{proxy.port}"), where="proxy")
        with connections.connect(address, where="proxy", read_timeout=1.0) as connection:
            reader = TableReader(connection, known_schema(any_server, database, "t"))
            tail = f"FROM {database}.t, (SELECT 1 FROM {database}.t LIMIT 100) b"
            rows = reader.batches(tail, size_bytes=1 << 16)
            next(rows)
            proxy.stall()
            error = refused(RetryLater, "connection.unreachable", lambda: list(rows))
            assert "timed out" in str(error)
            assert not connection.open


def test_time_that_the_caller_takes_does_not_count_as_the_servers(any_server: SqlServer, database: str) -> None:
    filled(any_server, database)
    connection = opened(any_server, statement_timeout_s=1.5)
    reader = TableReader(connection, known_schema(any_server, database, "t"))
    seen = 0
    for number, batch in enumerate(reader.batches(f"FROM {database}.t", rows=5000)):
        seen += batch.num_rows
        if number < 2:
            time.sleep(1)
    assert seen == 20_000


def test_an_account_needs_select_and_nothing_else(any_server: SqlServer, database: str) -> None:
    run(
        any_server,
        f"CREATE TABLE {database}.t (id INT, v INT)",
        f"INSERT INTO {database}.t VALUES (1, 2)",
        f"CREATE USER {database}@'%' IDENTIFIED BY 'secret'",
        f"GRANT SELECT (id) ON {database}.t TO {database}@'%'",
    )
    address = connections.Server(any_server.host, any_server.port, database, "secret")
    try:
        with connections.connect(address, where="reader") as connection:
            reader = TableReader(connection, known_schema(any_server, database, "t"))
            refused(Refused, "connection.grant", lambda: list(reader.batches(f"FROM {database}.t")))
            run(any_server, f"GRANT SELECT ON {database}.t TO {database}@'%'")
            (batch,) = reader.batches(f"FROM {database}.t")
            assert batch.to_pylist() == [{"id": 1, "v": 2, "_cdc_literal": None}]
    finally:
        run(any_server, f"DROP USER {database}@'%'")


def test_a_document_that_the_server_does_not_print_is_refused_and_not_read_as_an_empty_text(
    any_server: SqlServer, database: str
) -> None:
    """MySQL sends an empty text for one that is longer than max_allowed_packet, and a warning."""
    run(
        any_server,
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, doc JSON)",
        f"INSERT INTO {database}.t VALUES (1, '{{}}'), (2, CONCAT('[\"', REPEAT('x', 3 << 20), '\"]'))",
    )
    schema = known_schema(any_server, database, "t")
    ((limit,),) = run(any_server, "SELECT @@GLOBAL.max_allowed_packet")
    run(any_server, f"SET GLOBAL max_allowed_packet = {1 << 20}")
    try:
        reader = TableReader(opened(any_server), schema)

        def documents(number: int) -> list[str]:
            (batch,) = reader.batches(f"FROM {database}.t WHERE id = {number}")
            found: list[str] = batch.column("doc").to_pylist()
            return found

        assert documents(1) == ["{}"]
        if any_server.mariadb:
            assert [len(document) for document in documents(2)] == [(3 << 20) + 4]
        else:
            error = refused(Refused, "source.too_large", lambda: documents(2))
            assert "max_allowed_packet" in error.remedy
    finally:
        run(any_server, f"SET GLOBAL max_allowed_packet = {limit}")
