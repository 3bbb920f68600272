"""A lake is verified as other targets are: beside writers, against the source, and repaired by claims."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.snapshots import Operation, Summary

from cdc_core.lake.data_files import write_rows
from cdc_core.lake.lake_schema import DELETED
from cdc_core.lake.snapshots import MAIN, FileChange, LiveFiles, head, on_branch, snapshot_of, table_files
from cdc_core.model.places import in_order
from cdc_core.model.version import VERSION_COLUMN
from tests.acceptance.test_lake import DATABASE, Shop

ODD = """
CREATE TABLE odd (
  u BIGINT UNSIGNED, at DATETIME(3), b VARBINARY(8), d DATE, z DATETIME, ts TIMESTAMP(2) NULL, t TIME(3), y YEAR,
  bits BIT(12), one BIT(1), e ENUM('', 'x', 'y'), s SET('p', 'q', 'r'), j JSON, f FLOAT, big DECIMAL(50, 3),
  small DECIMAL(9, 4), tiny TINYINT UNSIGNED, blobs BLOB, PRIMARY KEY (u, at, b)
)"""


@pytest.fixture
def shop(lockstep: Any, mariadb: Any) -> Shop:
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    return Shop(lockstep, mariadb)


def tampered(shop: Shop, table: str, change: Callable[[pa.Table], pa.Table], key: tuple[str, ...] = ()) -> None:
    """Somebody else writes the rows of a mirror, in a snapshot that claims to be a compaction."""
    opened = SqlCatalog("lake", uri=shop.uri, warehouse=shop.warehouse).load_table(f"shop.{table}")
    schema = opened.schema()
    key = key or tuple(schema.find_column_name(field_id) or "" for field_id in schema.identifier_field_ids)
    live, files = LiveFiles(opened, head(opened), key), table_files(opened, schema, key)
    rows = change(opened.scan().to_arrow().cast(files.columns))
    added = FileChange(tuple(write_rows(files, in_order(rows, key))), frozenset(live.data))
    made = snapshot_of(live, added, schema, {})
    on_branch(replace(made, summary=Summary(Operation.REPLACE)), MAIN)


def wrong_rows(rows: pa.Table) -> pa.Table:
    """One row changed, one removed, one added."""
    place = rows.schema.get_field_index("customer")
    ids = rows.column("id")
    names = pc.if_else(pc.equal(ids, 7), pa.scalar("nobody"), rows.column("customer"))
    changed = rows.set_column(place, rows.schema.field(place), names).filter(pc.not_equal(ids, 1500))
    new = {
        "id": 100_000,
        "customer": "invented",
        "amount": None,
        VERSION_COLUMN: ids and rows[VERSION_COLUMN][0].as_py(),
    }
    return pa.concat_tables([changed, pa.Table.from_pylist([new], schema=rows.schema)])


@contextmanager
def writing(shop: Shop) -> Iterator[None]:
    """Somebody writes to the source all the time."""
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            shop.sql(
                f"UPDATE orders SET amount = {number} WHERE id = {number % 3000 + 1}",
                f"INSERT INTO orders VALUES ({50_000 + number}, 'n', 1)",
                f"DELETE FROM orders WHERE id = {50_000 + number // 2}",
            )

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def orders(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer VARCHAR(40), amount DECIMAL(12,2))",
        "INSERT INTO orders SELECT seq, CONCAT('c', seq), seq / 3 FROM seq_1_to_3000",
    )


def verified(shop: Shop, *options: str, code: int = 0) -> dict[str, Any]:
    """By table."""
    document = shop.lockstep("verify", shop.file, "--target", "lake", *options, code=code).document
    with open(document["evidence"].removeprefix("file://")) as file:
        assert json.load(file)["target"] == "lake"
    return {table["table"].rpartition(".")[2]: table for table in document["tables"]}


def test_the_lake_is_equal_beside_a_writer_and_a_lag_is_not_a_difference(shop: Shop) -> None:
    orders(shop)
    shop.run()
    assert verified(shop)["orders"]["verdict"] == "equal"
    with writing(shop):
        found = verified(shop)["orders"]
        assert (found["differences"], found["unsettled"]) == ({}, 0)
        with shop.lockstep.started("run", shop.file) as running:
            while not running.ended:
                found = verified(shop)["orders"]
                assert (found["differences"], found["unsettled"]) == ({}, 0)
            assert running.wait() == 0
        found = verified(shop)["orders"]
        assert (found["differences"], found["unsettled"]) == ({}, 0)
    shop.sql("UPDATE orders SET amount = -1 WHERE id < 100", "DELETE FROM orders WHERE id = 200")
    found = verified(shop)["orders"]
    assert (found["verdict"], found["moving"] >= 100) == ("equal so far", True)
    assert verified(shop, "--mode", "count")["orders"]["verdict"] == "as many as changes allow"
    shop.run()
    found = verified(shop)["orders"]
    assert (found["verdict"], found["source_rows"]) == ("equal", found["target_rows"])
    for mode in ("count", "max-id"):
        assert verified(shop, "--mode", mode)["orders"]["verdict"] == "as many"
    assert verified(shop, "--mode", "random", "--sample", "100")["orders"]["verdict"] == "no difference in the sample"


def test_rows_that_somebody_else_wrote_are_found_and_repaired(shop: Shop) -> None:
    orders(shop)
    shop.run()
    tampered(shop, "orders", wrong_rows)
    found = verified(shop, code=4)["orders"]
    expected = {("differs", "target", "7"), ("missing", "target", "1500"), ("surplus", "target", "100000")}
    assert {(finding["kind"], finding["wrong"], finding["key"]["id"]) for finding in found["findings"]} == expected
    (differs,) = (finding for finding in found["findings"] if finding["kind"] == "differs")
    assert (differs["columns"], differs["at"]) == (
        {"customer": {"source": "c7", "target": "nobody"}},
        ["shop.orders"],
    )
    assert verified(shop, "--mode", "max-id", code=4)["orders"]["greatest_differs"]
    shop.sql("UPDATE orders SET amount = 5 WHERE id = 7", "INSERT INTO orders VALUES (4000, 'late', 1)")
    done = shop.lockstep("repair", shop.file, "--target", "lake").document
    assert (done["rows"], done["deletes"]) == (2, 1)
    shop.require_equal("orders")
    assert verified(shop)["orders"]["verdict"] == "equal"


def test_values_that_iceberg_does_not_hold_are_no_differences(shop: Shop) -> None:
    shop.sql(
        ODD,
        "CREATE TABLE named (name VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, v INT)",
        "INSERT INTO named SELECT CONCAT(IF(seq % 2, 'Ä', 'a'), seq), seq FROM seq_1_to_200",
        "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'",
        """INSERT INTO odd SELECT 18446744073709551615 - seq * 9, '2024-01-01' + INTERVAL seq * 333333 MICROSECOND,
             CONCAT(CHAR(seq), 'k'), IF(seq % 3, '0000-00-00', '2024-02-31'), IF(seq % 2, '2024-00-10', NULL),
             '2020-02-02 02:02:02.5', '-101:00:00.25', 1901 + seq, seq * 7, seq % 2, IF(seq % 5, 'x', ''), 'r,p',
             '{"a": [1, 2.50]}', seq / 7, 12345678901234567890123456789012345678901.5, -0.001, 255 - seq, 'blob'
           FROM seq_1_to_250""",
        "INSERT INTO odd (u, at, b, e) VALUES (5, '1000-01-01', '', 'z'), (6, '9999-12-31 23:59:59.999', 'x', NULL)",
    )
    shop.run()
    found = verified(shop)
    assert {name: table["verdict"] for name, table in found.items()} == {"odd": "equal", "named": "equal"}
    assert found["odd"]["left_out"] == {}
    assert shop.mirror("odd")["d"].null_count == 252

    def changed(rows: pa.Table) -> pa.Table:
        at = rows.schema.get_field_index("d")
        dates = pc.if_else(pc.equal(rows.column("tiny"), 5), pa.scalar(3, pa.date32()), rows.column("d"))
        return rows.set_column(at, rows.schema.field(at), dates)

    tampered(shop, "odd", changed)
    (finding,) = verified(shop, code=4)["odd"]["findings"]
    assert finding["columns"] == {"d": {"source": None, "target": "1970-01-04"}}
    tampered(shop, "named", lambda rows: rows.slice(1))
    assert len(verified(shop, code=4)["named"]["findings"]) == 1
    shop.lockstep("repair", shop.file, "--target", "lake")
    assert {table["verdict"] for table in verified(shop).values()} == {"equal"}


def test_rows_and_tombstones_with_newer_versions_give_way_when_asked(shop: Shop) -> None:
    orders(shop)
    shop.run()
    newer = b"\xff" * 24 + b"somebody"

    def renewed(rows: pa.Table) -> pa.Table:
        rows = wrong_rows(rows)
        versions = pc.if_else(pc.is_in(rows["id"], pa.array([7, 100_000])), newer, rows[VERSION_COLUMN])
        return rows.set_column(rows.schema.get_field_index(VERSION_COLUMN), rows.schema.field(VERSION_COLUMN), versions)

    def buried(rows: pa.Table) -> pa.Table:
        return pa.concat_tables([rows, pa.Table.from_pylist([{"id": 1500, VERSION_COLUMN: newer}], schema=rows.schema)])

    tampered(shop, "orders", renewed)
    tampered(shop, "orders__deleted", buried, key=("id",))
    assert len(verified(shop, code=4)["orders"]["findings"]) == 3
    left = shop.lockstep("repair", shop.file, "--target", "lake", code=4).document["after"][0]
    assert sum(left["differences"].values()) == 3
    done = shop.lockstep("repair", shop.file, "--target", "lake", "--authoritative").document
    assert done["forgotten_versions"] == 3
    shop.require_equal("orders")
    assert verified(shop)["orders"]["verdict"] == "equal"


def test_a_row_that_is_flagged_as_deleted_counts_as_none(shop: Shop) -> None:
    shop.follow(deletes="flag")
    orders(shop)
    shop.run()
    shop.sql("DELETE FROM orders WHERE id = 3")
    shop.run()
    assert verified(shop)["orders"]["target_rows"] == 2999

    def flagged(rows: pa.Table) -> pa.Table:
        """Row 1500 is deleted by a newer change than all, row 3 is back, and row 100,000 is there."""
        of_1500, of_3 = (np.asarray(rows["id"]) == number for number in (1500, 3))
        versions = pc.if_else(pa.array(of_1500), b"\xff" * 24 + b"somebody", rows[VERSION_COLUMN])
        rows = rows.set_column(rows.schema.get_field_index(VERSION_COLUMN), VERSION_COLUMN, versions)
        flags = pa.array((np.asarray(rows[DELETED]) | of_1500) & ~of_3)
        rows = rows.set_column(rows.schema.get_field_index(DELETED), DELETED, flags)
        new = rows.slice(0, 1).to_pylist()[0] | {"id": 100_000, "customer": "invented"}
        return pa.concat_tables([rows, pa.Table.from_pylist([new], schema=rows.schema)])

    tampered(shop, "orders", flagged)
    found = verified(shop, code=4)["orders"]
    expected = {("surplus", "3"), ("missing", "1500"), ("surplus", "100000")}
    assert {(finding["kind"], finding["key"]["id"]) for finding in found["findings"]} == expected
    left = shop.lockstep("repair", shop.file, "--target", "lake", code=4).document["after"][0]
    assert left["differences"] == {"target": 1}
    shop.lockstep("repair", shop.file, "--target", "lake", "--authoritative")
    shop.require_equal("orders")
    assert verified(shop)["orders"]["verdict"] == "equal"
    rows = shop.mirror("orders").select(["id", "customer", DELETED]).to_pylist()
    assert [tuple(row.values()) for row in rows if row["id"] in (3, 1500, 100_000)] == [
        (3, "c3", True),
        (1500, "c1500", False),
        (100_000, "invented", True),
    ]


def test_a_source_table_that_is_gone_leaves_its_mirror_uncompared(shop: Shop) -> None:
    orders(shop)
    shop.run()
    shop.sql("DROP TABLE orders")
    done = shop.lockstep("verify", shop.file, "--target", "lake", code=3)
    assert done.error["code"] == "verify.source_gone"


def peak_mib(shop: Shop, table: str) -> int:
    """Of the process that finds a table equal."""
    command = [str(Path(sys.executable).with_name("lockstep")), "verify", str(shop.file), table, "--target", "lake"]
    quiet = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    pid = os.posix_spawn(command[0], command, {**os.environ, **shop.lockstep.environment}, file_actions=[quiet])
    _, status, usage = os.wait4(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return usage.ru_maxrss >> 10


def test_memory_does_not_grow_with_the_table(lockstep: Any, mariadb: Any) -> None:
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    shop = Shop(lockstep, mariadb)
    document = yaml.safe_load(shop.file.read_text())
    shop.file.write_text(yaml.safe_dump({**document, "snapshot": {"mode": "initial", "chunk_mib": 4}}))
    for table, rows in (("large", 300_000), ("small", 3_000)):
        shop.sql(
            f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, note VARCHAR(300))",
            f"INSERT INTO {table} SELECT seq, REPEAT(MD5(seq), 8) FROM seq_1_to_{rows}",
        )
    shop.run()
    shop.sql("UPDATE large SET note = 'x' WHERE id % 99 = 7", "DELETE FROM large WHERE id % 100 = 8")
    shop.run()
    found = verified(shop)["large"]
    assert (found["verdict"], found["target_rows"], found["ranges"] > 60) == ("equal", 297_000, True)
    small, large = (peak_mib(shop, f"{DATABASE}.{table}") for table in ("small", "large"))
    assert large - small < 200, (small, large)
