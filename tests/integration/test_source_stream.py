"""The stream on real servers: what it hands on is what the tables hold, whatever was done to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from cdc_core.errors import DataAtRisk
from cdc_core.model.block import Block, EntryKind
from cdc_core.model.coverage import Happened
from cdc_core.model.position import Checkpoint, Position
from cdc_core.source.host import source_server as server
from cdc_core.source.host.gtid_sets import GtidSet, advanced, set_of
from cdc_core.source.host.server_facts import binlog_files, facts
from cdc_core.source.host.start_position import Search
from cdc_core.source.wire import log_reader as dump
from examples.sandbox.mariadb import MariaDb
from tests.lab.origin import (
    TABLES,
    Origin,
    assert_partition,
    changes_in,
    changes_of,
    in_order,
    own_origin,
    replay,
    rows_in,
    workload,
)


def test_a_mixed_workload_replayed_is_what_the_tables_hold(origin: Origin) -> None:
    start = origin.end()
    origin.execute(*TABLES, "CREATE TABLE left_out (id INT PRIMARY KEY)", "INSERT INTO left_out VALUES (1), (2)")
    workload(origin, 120)
    origin.execute("FLUSH BINARY LOGS", "DELETE FROM customer WHERE id < 10", "INSERT INTO left_out VALUES (3)")
    end = origin.end().position
    blocks = origin.drain(start, include=[rf"{origin.name}\.(customer|item)"])
    assert_partition(blocks, start.position, end)
    tables = replay(blocks)
    for table in ("customer", "item"):
        assert in_order(tables[table]) == in_order(origin.rows(table))
    assert sum(block.left_out.get("table not included", 0) for block in blocks) == 2
    assert {part.schema.table for block in blocks for part in block.tables} == {"customer", "item"}


def test_the_same_range_gives_the_same_rows_and_keys_however_blocks_are_cut(origin: Origin) -> None:
    start = origin.end()
    origin.execute(*TABLES)
    workload(origin, 60)
    origin.execute("INSERT INTO item SELECT id, 50, 'bulk' FROM customer")
    whole = origin.drain(start)
    for block_bytes in (1000, 7000):
        cut = origin.drain(start, block_bytes=block_bytes)
        assert len(cut) > len(whole)
        assert changes_of(cut) == changes_of(whole)


def test_reading_on_from_every_block_gives_what_reading_through_gives(origin: Origin) -> None:
    start = origin.end()
    origin.execute(*TABLES)
    workload(origin, 25)
    items = ", ".join(f"({n}, 900, REPEAT('m', 50))" for n in range(200))
    many = f"INSERT INTO item VALUES {items}"
    with origin.session() as run:
        run(f"XA START '{origin.name}'", many, f"XA END '{origin.name}'", f"XA PREPARE '{origin.name}'")
        origin.execute("REPLACE INTO customer VALUES (77, 'between', 1, NULL)")
        run(f"XA COMMIT '{origin.name}'")
        if not origin.mariadb:
            run("SET binlog_transaction_compression = ON")
        run("BEGIN", "SAVEPOINT a", many.replace("900", "901"), "SAVEPOINT b", "DELETE FROM item WHERE line = 901")
        run("ROLLBACK TO b", "COMMIT")
    end = origin.end().position
    whole = origin.drain(start, until=end)
    pieces = []
    position = start.position
    while position < end:
        with origin.stream(Checkpoint(position), block_bytes=4000) as stream:
            block = next(stream.blocks(lambda: False))
            while block.entries.kind[-1] == EntryKind.PART:
                pieces.append(block)
                block = next(stream.blocks(lambda: False))
        pieces.append(block)
        position = block.end
    assert_partition(pieces, start.position, end)
    assert changes_of(pieces) == changes_of(whole)


def test_a_row_larger_than_a_packet_of_the_protocol_arrives_whole(origin: Origin) -> None:
    origin.execute("CREATE TABLE wide (id INT PRIMARY KEY, body LONGBLOB)")
    start = origin.end()
    origin.execute("INSERT INTO wide VALUES (1, REPEAT('0123456789abcdef', 1150000)), (2, 'small')")
    rows = replay(origin.drain(start))["wide"]
    assert rows[1,]["body"] == b"0123456789abcdef" * 1_150_000
    assert rows[2,]["body"] == b"small"


def test_a_column_added_while_the_reader_lags_is_read_on_both_sides(origin: Origin) -> None:
    start = origin.end()
    origin.execute(*TABLES, "INSERT INTO customer VALUES (1, 'a', 1, NULL), (2, 'b', 2, NULL)")
    origin.execute("ALTER TABLE customer ADD COLUMN mail VARCHAR(50) NULL AFTER name")
    origin.execute(
        "UPDATE customer SET mail = 'a@b' WHERE id = 1", "INSERT INTO customer VALUES (3, 'c', NULL, 3, NULL)"
    )
    origin.execute("ALTER TABLE customer DROP COLUMN credit", "UPDATE customer SET name = 'bb' WHERE id = 2")
    blocks = origin.drain(start)
    shapes = [
        tuple(column.name for column in part.schema.columns)
        for block in blocks
        for part in block.tables
        if part.schema.table == "customer"
    ]
    assert shapes == [
        ("id", "name", "credit", "seen"), ("id", "name", "mail", "credit", "seen"), ("id", "name", "mail", "seen"),
    ]  # fmt: skip
    assert all(part.schema.key == ("id",) for b in blocks for part in b.tables if part.schema.table == "customer")
    assert [EntryKind.DDL in list(block.entries.kind) for block in blocks].count(True) == 4
    last = {row["id"]: row for row in rows_in(blocks) if "mail" in row}
    assert (last[1]["mail"], last[2]["name"], last[3]["credit"]) == ("a@b", "bb", Decimal("3.00"))


def test_xa_transactions_come_when_they_are_committed_and_not_when_they_are_not(origin: Origin) -> None:
    origin.execute(*TABLES)
    start = origin.end()
    for xid, ending in (("a", "XA COMMIT"), ("b", "XA ROLLBACK")):
        origin.execute(
            f"XA START '{origin.name}{xid}'", f"INSERT INTO customer VALUES ({ord(xid)}, '{xid}', 1, NULL)",
            f"XA END '{origin.name}{xid}'", f"XA PREPARE '{origin.name}{xid}'",
        )  # fmt: skip
        origin.execute(f"REPLACE INTO item VALUES ({ord(xid)}, 1, 'between')")
        origin.execute(f"{ending} '{origin.name}{xid}'")
    origin.execute(
        f"XA START '{origin.name}c'", "INSERT INTO customer VALUES (1, 'one phase', 1, NULL)",
        f"XA END '{origin.name}c'", f"XA COMMIT '{origin.name}c' ONE PHASE",
    )  # fmt: skip
    blocks = origin.drain(start)
    assert changes_of(origin.drain(start, block_bytes=100)) == changes_of(blocks)
    assert in_order(replay(blocks)["customer"]) == in_order(origin.rows("customer"))
    assert {row["name"] for row in origin.rows("customer")} == {"a", "one phase"}
    rows = rows_in(blocks)
    between = next(row for row in rows if row.get("text") == "between")
    committed = next(row for row in rows if row.get("name") == "a")
    assert committed["_cdc_seq"] > between["_cdc_seq"]
    assert committed["_cdc_pos"] < between["_cdc_pos"]


def test_an_xa_transaction_prepared_before_the_stream_began_is_found_in_the_log(origin: Origin) -> None:
    origin.execute("FLUSH BINARY LOGS", *TABLES, "INSERT INTO customer VALUES (7, 'before', 1, NULL)")
    whole_from = origin.end()
    origin.purge_to(whole_from.position.file)  # what other tests have logged is not searched, too
    origin.execute(
        f"XA START '{origin.name}'", "UPDATE customer SET name = 'xa' WHERE id = 7", f"XA END '{origin.name}'",
        f"XA PREPARE '{origin.name}'",
    )  # fmt: skip
    origin.execute("FLUSH BINARY LOGS")
    start = origin.end()
    origin.execute(f"XA COMMIT '{origin.name}'")
    late, whole = origin.drain(start), origin.drain(whole_from)
    assert changes_of(late) == changes_of(whole) == changes_of(origin.drain(start, block_bytes=100))
    assert [row["name"] for row in rows_in(late)] == ["xa"]


def test_commit_times_are_those_of_the_servers_clock(origin: Origin) -> None:
    origin.execute(*TABLES)
    before_us, start = server.now_us(origin.control), origin.end()
    origin.execute("INSERT INTO customer VALUES (1, 'a', 1, NULL)")
    after_us = server.now_us(origin.control)
    (block,) = [block for block in origin.drain(start) if block.tables]
    (moment_us,) = block.tables[0].rows.column("_cdc_ts").cast("int64").to_pylist()
    # MariaDB's log knows whole seconds only.
    assert before_us - (before_us % 1_000_000 if origin.mariadb else 0) <= moment_us <= after_us
    assert moment_us in block.entries.commit_ts_us


def test_tables_without_transactions_and_loads_from_files_are_read(origin: Origin, tmp_path: Path) -> None:
    origin.execute("CREATE TABLE plain (id INT PRIMARY KEY, v INT) ENGINE=MyISAM")
    start = origin.end()
    origin.execute(
        "INSERT INTO plain VALUES (1, 1), (2, 2)", "UPDATE plain SET v = 3", "DELETE FROM plain WHERE id = 2"
    )
    lines = tmp_path / "lines"
    lines.write_text("10\t1\n11\t2\n")
    with origin.sql.connect(origin.name, autocommit=True, local_infile=True) as loading, loading.cursor() as cursor:
        cursor.execute(f"LOAD DATA LOCAL INFILE '{lines}' INTO TABLE plain")
    assert in_order(replay(origin.drain(start))["plain"]) == in_order(origin.rows("plain"))
    assert len(origin.rows("plain")) == 3


def test_create_table_select_and_temporary_tables_are_read_right(origin: Origin) -> None:
    start = origin.end()
    origin.execute(
        *TABLES, "INSERT INTO customer VALUES (1, 'a', 1, NULL)", "CREATE TABLE twin AS SELECT id FROM customer"
    )
    with origin.session() as run:
        run("CREATE TEMPORARY TABLE hidden (id INT)", "INSERT INTO hidden VALUES (1)", "BEGIN")
        run("INSERT INTO customer VALUES (2, 'b', 1, NULL)", "DROP TEMPORARY TABLE hidden", "ROLLBACK", "BEGIN")
        run("INSERT INTO customer VALUES (3, 'c', 1, NULL)", "CREATE TEMPORARY TABLE two (id INT)", "SAVEPOINT s")
        run("INSERT INTO customer VALUES (4, 'd', 1, NULL)", "ROLLBACK TO s", "COMMIT")
    blocks = origin.drain(start)
    assert in_order(replay(blocks)["customer"]) == in_order(origin.rows("customer"))
    assert [row["id"] for schema, row in changes_in(blocks) if schema.table == "twin"] == [1]


def truncates(blocks: Sequence[Block]) -> list[str]:
    return [schema.table for schema, row in changes_in(blocks) if row["_cdc_op"] == "t"]


def test_a_truncate_of_a_temporary_table_with_the_name_of_a_captured_one_empties_nothing(origin: Origin) -> None:
    """The log does not say which of both it was: the captured one is copied again."""
    origin.execute(*TABLES, "INSERT INTO customer VALUES (1, 'a', 1, NULL)")
    stages = {"on_truncate": "stage"}
    start = origin.end()
    with origin.session() as run:
        run("SET SESSION binlog_format = STATEMENT", "CREATE TEMPORARY TABLE customer (id INT)", "TRUNCATE customer")
        with pytest.raises(DataAtRisk) as caught:
            origin.drain(start, **stages)
        assert (caught.value.code, "temporary table" in caught.value.what) == ("source.unlogged_change", True)
        blocks = origin.drain(start, **stages, on_unlogged_change="resync")
        assert truncates(blocks) == []
        assert [(event.table, event.what) for block in blocks for event in block.happened] == [
            (f"{origin.name}.customer", Happened.UNLOGGED)
        ]
        run("DROP TEMPORARY TABLE customer")
        start = origin.end()
        run("TRUNCATE customer")
    assert truncates(origin.drain(start, **stages)) == ["customer"]


def test_a_truncate_in_a_procedure_that_used_a_temporary_table_is_staged(origin: Origin) -> None:
    origin.execute(
        *TABLES, "CREATE PROCEDURE fill() BEGIN CREATE TEMPORARY TABLE w (id INT); INSERT INTO w VALUES (1); "
        "TRUNCATE customer; INSERT INTO customer SELECT id, 'a', 1, NULL FROM w; END",
    )  # fmt: skip
    start = origin.end()
    origin.execute("CALL fill()")
    assert truncates(origin.drain(start, on_truncate="stage")) == ["customer"]


def test_gtids_of_the_entries_advance_a_checkpoint_to_what_the_server_has_executed(origin: Origin) -> None:
    start = origin.start("latest")
    origin.execute(*TABLES)
    workload(origin, 15)
    blocks = origin.drain(start, include=[rf"{origin.name}\.item"])
    latest = origin.start("latest")
    reached = start.gtid_set
    for block in blocks:
        reached = advanced(reached, set_of(block.entries.gtids))
    assert reached == latest.gtid_set


def test_a_checkpoint_after_numbers_that_go_back_is_what_the_server_says_and_is_resumed(mariadb: MariaDb) -> None:
    """MariaDB without gtid_strict_mode: the last transaction of a domain counts, not the largest number."""
    domain = 7_001  # no other test of this server uses it
    with own_origin(mariadb) as origin:
        origin.execute(*TABLES)
        start = origin.start("latest")
        with origin.session() as run:
            for n, (server, number) in enumerate([(9, 100), (8, 50), (8, 40), (7, 60), (9, 20)]):
                run(f"SET server_id = {server}", f"SET gtid_domain_id = {domain}", f"SET gtid_seq_no = {number}")
                run(f"INSERT INTO item VALUES ({n}, {n}, 'a')")
                reached = GtidSet.parse(start.gtid_set)
                for block in origin.drain(start):
                    reached = reached.union(set_of(block.entries.gtids))
                latest = origin.start("latest")
                assert reached == GtidSet.parse(latest.gtid_set)
                stored = replace(latest, gtid_set=str(reached))
                assert origin.start(stored=stored) == stored
                if n == 3:
                    origin.execute_on_server("FLUSH BINARY LOGS")
            head = Search(
                origin.source(), origin.control, origin.address(), binlog_files(origin.control), facts(origin.control)
            ).head(origin.end().position.file)
        assert (domain, (7, 60)) in GtidSet.parse(head.previous).domains
        assert (domain, (9, 100)) in GtidSet.highest(head.previous).domains


def test_a_compressed_transaction_gives_the_rows_that_a_plain_one_gives(origin: Origin) -> None:
    origin.execute(*TABLES)
    setting = "log_bin_compress" if origin.mariadb else "binlog_transaction_compression"
    start = origin.end()
    scope = "GLOBAL" if origin.mariadb else "SESSION"
    try:
        with origin.session() as run:
            run(f"SET {scope} {setting} = ON", *["SET GLOBAL log_bin_compress_min_len = 10"] * origin.mariadb, "BEGIN")
            for n in range(20):
                run(f"INSERT INTO customer VALUES ({n}, REPEAT('compress me ', 3), {n}, NULL)")
            run("UPDATE customer SET credit = credit + 1", "DELETE FROM customer WHERE id < 3", "COMMIT")
            events = run(f"SHOW BINLOG EVENTS IN '{start.position.file}' FROM {start.position.offset}")
    finally:
        origin.execute(f"SET {scope} {setting} = OFF", *["SET GLOBAL log_bin_compress_min_len = 256"] * origin.mariadb)
    rows_events = {f"{verb}_rows_compressed_v1" for verb in ("Write", "Update", "Delete")}
    assert {event[2] for event in events} >= (rows_events if origin.mariadb else {"Transaction_payload"})
    blocks = origin.drain(start)
    rows = replay(blocks)["customer"]
    assert in_order(rows) == in_order(origin.rows("customer"))
    assert len(rows) == 17
    end = origin.end().position
    cut = origin.drain(start, block_bytes=1000)
    assert_partition(cut, start.position, end)
    assert len(cut) > 5
    assert changes_of(cut) == changes_of(blocks)


def test_a_position_that_the_dump_command_cannot_name_is_reached_from_the_begin_of_its_file(
    origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin.execute(*TABLES)
    workload(origin, 5)
    start = origin.end()
    workload(origin, 5, seed=3)
    plain = origin.drain(start)
    # Behind 4 GiB COM_BINLOG_DUMP has no bits left; here the limit is lowered instead of writing 4 GiB.
    assert start.position.offset > 200
    monkeypatch.setattr(dump.LogReader.__init__, "__kwdefaults__", {
        **dump.LogReader.__init__.__kwdefaults__, "max_dump_offset": 200,
    })  # fmt: skip
    long_way = origin.drain(start)
    assert changes_of(long_way) == changes_of(plain)
    assert long_way[0].begin == start.position == plain[0].begin
    assert isinstance(long_way[-1].end, Position)


def test_an_isolated_table_leaves_its_neighbours_in_the_same_compressed_transactions_whole(origin: Origin) -> None:
    origin.execute(*TABLES, "CREATE TABLE odd (id INT PRIMARY KEY, _cdc_op TEXT)")
    setting = "log_bin_compress" if origin.mariadb else "binlog_transaction_compression"
    scope = "GLOBAL" if origin.mariadb else "SESSION"
    start = origin.end()
    try:
        with origin.session() as run:
            run(f"SET {scope} {setting} = 1")
            for n in range(30):
                run("BEGIN", f"INSERT INTO customer VALUES ({n}, REPEAT('compress me ', 3), {n}, NULL)")
                run(f"INSERT INTO odd VALUES ({n}, REPEAT('compress me ', 30))" if n > 4 else "DO 0")
                run(f"REPLACE INTO item VALUES ({n % 7}, 1, 'x')", "COMMIT")
    finally:
        origin.execute(f"SET {scope} {setting} = 0" if origin.mariadb else "DO 0")
    blocks = origin.drain(start, on_unreadable="isolate")
    tables = replay(blocks)
    assert set(tables) == {"customer", "item"}
    for table in ("customer", "item"):
        assert in_order(tables[table]) == in_order(origin.rows(table))
    assert sum(block.left_out.get("table isolated", 0) for block in blocks) == 25
    assert list(blocks[-1].isolated) == [f"{origin.name}.odd"]
    assert_partition(blocks, start.position, origin.end().position)


def test_the_error_value_of_an_enum_is_told_from_the_label_without_text(origin: Origin) -> None:
    origin.execute("CREATE TABLE t (id INT PRIMARY KEY, e ENUM('a', ''), f ENUM('a', 'b'))")
    start = origin.end()
    origin.execute(
        "INSERT INTO t VALUES (1, 'a', 'a'), (2, '', 'b'), (4, NULL, NULL)", "SET sql_mode = ''",
        "INSERT INTO t VALUES (3, 0, 0)", "UPDATE t SET e = '' WHERE id = 3", "UPDATE t SET e = 0 WHERE id = 2",
    )  # fmt: skip
    rows = rows_in(origin.drain(start))
    assert [(row["id"], row["e"], dict(row["_cdc_literal"] or ())) for row in rows] == [
        (1, "a", {}), (2, "", {}), (4, None, {}), (3, "", {"e": ""}), (3, "", {"_before.e": ""}), (2, "", {"e": ""}),
    ]  # fmt: skip
    assert [row["f"] for row in rows] == ["a", "b", None, "", "", "b"]
