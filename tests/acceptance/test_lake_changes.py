"""The changes table of a lake: every change of the source once, with its values, whatever runs and replays bring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.acceptance.test_lake import DATABASE, DOCUMENT, Shop
from tests.lab.iceberg_spark import by_spark
from tests.lab.lake_changes import of_operation, require_every_change_once


@pytest.fixture
def shop(lockstep: Any, mariadb: Any) -> Shop:
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    made = Shop(lockstep, mariadb)
    made.follow(changes="table")
    return made


def changes_of(shop: Shop, table: str) -> int:
    changes = shop.catalog.load_table(f"shop.{table}__changes")
    return require_every_change_once(changes, shop.lockstep.directory / "stage", f"{DATABASE}.{table}")


def versions() -> str:
    """The query of the document."""
    (query,) = DOCUMENT.split('versions = """\n')[1:]
    return query.partition('"""')[0]


def test_every_change_is_a_row_once_after_runs_replays_and_copies(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer VARCHAR(40), amount DECIMAL(12,2))",
        "CREATE TABLE items (o INT, line INT, text TEXT, PRIMARY KEY (line, o))",
        "INSERT INTO orders SELECT seq, CONCAT('c', seq), seq / 3 FROM seq_1_to_3000",
        "INSERT INTO items SELECT seq, seq % 7, 'x' FROM seq_1_to_30",
    )
    shop.run()
    assert changes_of(shop, "orders") == 3000
    shop.sql(
        "UPDATE orders SET amount = amount + 1 WHERE id % 5 = 0",
        "UPDATE orders SET amount = amount + 1 WHERE id % 5 = 0",
        "DELETE FROM orders WHERE id % 100 = 0",
        "UPDATE orders SET id = id + 10000 WHERE id < 5",
        "SET SESSION binlog_row_image = 'MINIMAL'",
        "UPDATE orders SET customer = 'm' WHERE id = 7",
        "TRUNCATE items",
        "INSERT INTO items VALUES (1, 1, 'again')",
    )
    shop.run()
    total = changes_of(shop, "orders")
    assert total == 3000 + 2 * 600 + 30 + 2 * 4 + 1
    assert changes_of(shop, "items") == 32
    shop.require_equal("orders", "items")
    shop.run("--replay", "--target", "lake")
    assert changes_of(shop, "orders") == total
    shop.lockstep("snapshot", shop.file, f"{DATABASE}.items")
    shop.sql("UPDATE orders SET amount = 0 WHERE id = 8")
    shop.run()
    assert changes_of(shop, "orders") == total + 1
    assert changes_of(shop, "items") > 32
    shop.require_equal("orders", "items")
    tables = shop.lockstep("verify", shop.file, "--target", "lake").document["tables"]
    assert [table["verdict"] for table in tables] == ["equal", "equal"]
    shop.lockstep("lake", "maintain", shop.file)
    assert changes_of(shop, "orders") == total + 1


def test_a_changes_table_follows_the_columns_of_its_source(shop: Shop) -> None:
    shop.configure(on_unlogged_change="resync")
    shop.sql("CREATE TABLE orders (id INT PRIMARY KEY, a INT, b VARCHAR(9))")
    shop.run()
    shop.sql("INSERT INTO orders VALUES (1, 1, 'b')")
    shop.run()
    shop.sql("ALTER TABLE orders ADD COLUMN c INT", "UPDATE orders SET c = 3")
    shop.run()
    shop.sql("ALTER TABLE orders RENAME COLUMN a TO aa", "UPDATE orders SET aa = 2")
    shop.run()
    shop.sql("ALTER TABLE orders MODIFY aa BIGINT", "UPDATE orders SET aa = 5000000000")
    shop.run()
    shop.sql("ALTER TABLE orders DROP COLUMN b", "UPDATE orders SET c = 4")
    shop.run()
    # A column that comes and goes within a run.
    shop.sql(
        "ALTER TABLE orders ADD COLUMN d INT", "UPDATE orders SET d = 6", "ALTER TABLE orders DROP COLUMN d",
        "UPDATE orders SET c = 5",
    )  # fmt: skip
    shop.run()
    rows = shop.catalog.load_table("shop.orders__changes").scan().to_arrow()
    rows = rows.filter(~of_operation("r")).sort_by([("_cdc_seq", "ascending"), ("_cdc_row", "ascending")])
    found = [tuple(row[name] for name in ("id", "aa", "b", "c", "d")) for row in rows.to_pylist() if row["id"]]
    assert found == [
        (1, 1, "b", None, None),
        (1, 1, "b", 3, None),
        (1, 2, "b", 3, None),
        (1, 5000000000, "b", 3, None),
        (1, 5000000000, None, 4, None),
        (1, 5000000000, None, 4, 6),
        (1, 5000000000, None, 5, None),
    ]


def test_a_table_with_a_history_of_its_own_is_not_left_behind(shop: Shop) -> None:
    """changes: table begins with the next run, a replay brings what the stage has, and it is not turned off unseen."""
    shop.follow(changes="off")
    shop.sql("CREATE TABLE orders (id INT PRIMARY KEY, v INT)", "INSERT INTO orders VALUES (1, 1), (2, 2)")
    shop.run()
    shop.follow(changes="table")
    shop.lockstep("check", shop.file)
    shop.sql("UPDATE orders SET v = 3 WHERE id = 1")
    shop.run()
    changes = shop.catalog.load_table("shop.orders__changes")
    assert changes.scan().to_arrow()["v"].to_pylist() == [3]
    shop.run("--replay", "--target", "lake")
    assert changes_of(shop, "orders") == 3
    shop.follow(changes="off")
    shop.sql("UPDATE orders SET v = 4 WHERE id = 1")
    assert shop.lockstep("check", shop.file, code=3).document["findings"][-1]["status"] == "fail"
    refused = shop.run(code=3)
    assert (refused["code"], "set changes: table" in refused["remedy"]) == ("target.definition", True)
    shop.follow(changes="table")
    shop.run()
    assert changes_of(shop, "orders") == 4


def test_the_query_of_the_document_gives_every_past_state(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE orders (id INT PRIMARY KEY, customer INT, status VARCHAR(20), amount DECIMAL(12,2))",
        "INSERT INTO orders VALUES (1, 1, 'new', 10), (2, 2, 'new', 20)",
    )
    steps = [
        ["UPDATE orders SET status = 'paid'", "INSERT INTO orders VALUES (3, 1, 'new', 30)"],
        ["DELETE FROM orders WHERE id = 2", "UPDATE orders SET id = 20 WHERE id = 1"],
        ["TRUNCATE orders", "INSERT INTO orders VALUES (3, 3, 'again', 1)"],
        ["INSERT INTO orders VALUES (1, 1, 'back', 2)", "DELETE FROM orders WHERE id = 3"],
    ]
    for statements in steps:
        shop.run()
        shop.sql(*statements)
    shop.run()
    orders__changes = shop.catalog.load_table("shop.orders__changes").scan().to_arrow()
    found = duckdb.sql(f"SELECT id, status, amount FROM ({versions()}) WHERE valid_to IS NULL").fetchall()
    assert found == [(1, "back", 2)]
    del orders__changes
    for cut in shop.lockstep("lake", "at", shop.file).document["tables"]:
        assert cut["lacks"] == []
    rows = by_spark(
        shop.lockstep.directory,
        [shop.catalog.load_table("shop.orders__changes")],
        versions().replace("orders__changes", "lake.shop.orders__changes"),
    )
    assert [(row["id"], row["status"]) for row in rows.to_pylist() if row["valid_to"] is None] == [(1, "back")]


def test_runs_go_on_after_spark_has_deleted_old_changes(shop: Shop) -> None:
    shop.sql("CREATE TABLE orders (id INT PRIMARY KEY, v INT)")
    shop.run()
    for statement in ("INSERT INTO orders SELECT seq, 1 FROM seq_1_to_100", "UPDATE orders SET v = 2"):
        shop.sql(statement)
        shop.run()
    table = shop.catalog.load_table("shop.orders__changes")
    by_spark(shop.lockstep.directory, [table], "DELETE FROM lake.shop.orders__changes WHERE _cdc_op = 'c' OR id = 7")
    written = Path(table.location().removeprefix("file://")) / "metadata" / "v2.metadata.json"
    shop.catalog.drop_table("shop.orders__changes")
    shop.catalog.register_table("shop.orders__changes", written.as_uri())
    assert "has 99 changes" in str(shop.lockstep("check", shop.file).document)
    shop.sql("DELETE FROM orders WHERE id < 10")
    shop.run()
    rows = shop.catalog.load_table("shop.orders__changes").scan().to_arrow()
    assert (rows.filter(of_operation("u")).num_rows, rows.filter(of_operation("d")).num_rows) == (99, 9)
    assert rows.num_rows == 108
    shop.run("--replay", "--target", "lake")
    assert changes_of(shop, "orders") == 209
