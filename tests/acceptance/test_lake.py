"""A lake beside a source: the mirrors equal the source's tables after each run, by the driver and by Spark."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import sqlite3
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import StaticTable

from cdc_core.config import load
from cdc_core.lake.lake_schema import DELETED, DELETED_AT
from cdc_core.model.run_plan import RunPlan, quality_report
from cdc_core.model.version import decode
from cdc_core.operations.apply.jobs import SparkJob
from cdc_core.stage.cuts import newest_first
from cdc_core.stage.stores import open_stage, open_store
from spark_jobs.driver import Driver
from tests.lab.forked_commands import ROOT
from tests.lab.iceberg_spark import by_spark
from tests.lab.lake_changes import require_every_change_once
from tests.lab.rest_catalog import RestCatalogServer

DATABASE = "laked"
DOCUMENT = (ROOT / "docs" / "analysts.md").read_text(encoding="utf-8")


def lake(folder: Path, kind: str, rules: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    catalog = {"type": kind, "uri": "env:LAKE_CATALOG", "warehouse": (folder / "warehouse").as_uri()}
    tables = {table: {"on_truncate": "apply", **rule} for table, rule in rules.items()}
    return {"name": "lake", "kind": "iceberg", "catalog": catalog, "namespace": "shop", "tables": tables}


class Shop:
    """A source with tables, and the lake that mirrors them."""

    def __init__(self, lockstep: Any, server: Any, *, rest: str = "", **sections: Any) -> None:
        """rest: the address of a REST catalog, instead of one in SQLite."""
        self.lockstep, self.server, folder = lockstep, server, lockstep.directory
        self.uri, self.kind = rest or f"sqlite:///{folder}/catalog.db", "rest" if rest else "sql"
        lockstep.environ |= {"SHOP": server.url, "LAKE_CATALOG": self.uri}
        self.sections, self.rule, self.rules = sections, dict[str, str](), dict[str, dict[str, str]]()
        self.configure()
        (folder / "warehouse").mkdir(exist_ok=True)
        self.warehouse = (folder / "warehouse").as_uri()

    def configure(self, *, copies: str = "initial", **tables: str) -> None:
        self.file = self.lockstep.write(
            "shop",
            DATABASE,
            targets=[lake(self.lockstep.directory, self.kind, {"*": self.rule, **self.rules})],
            source={"start": "latest"},
            snapshot={"mode": copies},
            tables={"on_truncate": "stage", **tables},
            routes=[],
            **self.sections,
        )

    def follow(self, **rule: str) -> None:
        """From now on, the lake has this rule for every table that has none of its own (`rules`)."""
        self.rule = rule
        self.configure()

    def run(self, *options: str, code: int = 0) -> Mapping[str, Any]:
        done = self.lockstep("run", self.file, *options, code=code)
        return dict(done.document if not code else done.error)

    def sql(self, *statements: str) -> None:
        with self.server.connect(DATABASE, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    @property
    def catalog(self) -> Catalog:
        return load_catalog("lake", type=self.kind, uri=self.uri, warehouse=self.warehouse)

    def locations(self, *tables: str) -> list[str]:
        """Where the metadata of these tables are, all at one moment."""
        names = ", ".join(f"'{table}'" for table in tables)
        with sqlite3.connect(self.uri.removeprefix("sqlite:///"), timeout=30) as catalog:
            query = f"SELECT metadata_location FROM iceberg_tables WHERE table_name IN ({names})"
            return [where for (where,) in catalog.execute(query)]

    def mirror(self, table: str, *, tombstones: bool = False) -> pa.Table:
        rows = self.catalog.load_table(f"shop.{table}{'__deleted' if tombstones else ''}").scan().to_arrow()
        return rows.sort_by(rows.column_names[0])

    def require_equal(self, *tables: str) -> None:
        for table in tables:
            rows = self.mirror(table)
            if DELETED in rows.column_names:
                rows = rows.filter(pc.invert(rows[DELETED]))
            columns = [name for (name, *_) in self.server.run(f"SHOW COLUMNS FROM {DATABASE}.{table}")]
            expected = self.server.run(f"SELECT {', '.join(columns)} FROM {DATABASE}.{table} ORDER BY 1")
            assert [tuple(row[name] for name in columns) for row in rows.to_pylist()] == list(expected), table


@pytest.fixture
def shop(lockstep: Any, mariadb: Any) -> Shop:
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    return Shop(lockstep, mariadb)


def test_the_lake_equals_the_source_after_each_run(shop: Shop, spark_section: dict[str, Any]) -> None:
    shop.sections = {"spark": spark_section}
    shop.rules = {f"{DATABASE}.orders": {"changes": "table"}, f"{DATABASE}.few": {"deletes": "flag"}}
    shop.configure()
    shop.sql(
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer VARCHAR(40), amount DECIMAL(12,2))",
        "CREATE TABLE items (o INT, line INT, text TEXT, PRIMARY KEY (line, o))",
        "CREATE TABLE few (id INT PRIMARY KEY, v INT)",
        "INSERT INTO orders SELECT seq, CONCAT('c', seq), seq / 3 FROM seq_1_to_3000",
        "INSERT INTO items SELECT seq, seq % 7, 'x' FROM seq_1_to_3000",
        "INSERT INTO few VALUES (1, 1), (2, 2)",
    )
    assert [finding["status"] for finding in shop.lockstep("check", shop.file).document["findings"]].count("fail") == 0
    shop.run()
    shop.require_equal("orders", "items", "few")
    shop.sql(
        "UPDATE orders SET amount = amount + 1 WHERE id % 5 = 0",
        "DELETE FROM orders WHERE id % 100 = 0",
        "INSERT INTO orders VALUES (5000, 'new', 1)",
        "UPDATE orders SET id = id + 10000 WHERE id < 5",
        "UPDATE items SET text = 'y' WHERE line = 3",
        "ALTER TABLE few ADD COLUMN w VARCHAR(10)",
        "UPDATE few SET w = 'w'",
    )
    shop.run()
    shop.require_equal("orders", "items", "few")
    shop.sql(
        "INSERT INTO orders VALUES (100, 'back', 2)",
        "TRUNCATE items",
        "INSERT INTO items VALUES (1, 1, 'again')",
        "DELETE FROM few",
    )
    shop.run()
    shop.require_equal("orders", "items", "few")
    assert deleted(shop, "few") == {1: (1, "w"), 2: (2, "w")}
    tombstones = shop.mirror("orders", tombstones=True)["id"].to_pylist()
    assert tombstones == [1, 2, 3, 4, *range(200, 3001, 100)]
    changes = shop.catalog.load_table("shop.orders__changes")
    stage = shop.lockstep.directory / "stage"
    assert require_every_change_once(changes, stage, f"{DATABASE}.orders") == 3000 + 600 + 30 + 1 + 2 * 4 + 1
    shop.run("--replay", "--target", "lake")
    shop.require_equal("orders", "items", "few")
    assert shop.catalog.load_table("shop.orders__changes").current_snapshot() == changes.current_snapshot()
    assert shop.lockstep("status", shop.file).document["targets"]


def test_values_that_the_log_lacks_come_from_the_mirror(lockstep: Any, mariadb: Any) -> None:
    """binlog_row_image = MINIMAL, also where the key changes, several times, within a run and between runs."""
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    shop = Shop(lockstep, mariadb)
    shop.sql(
        "CREATE TABLE orders (id INT PRIMARY KEY, a VARCHAR(20), b DECIMAL(8,2), c DATE)",
        "INSERT INTO orders SELECT seq, CONCAT('a', seq), seq / 2, '2020-02-29' FROM seq_1_to_200",
    )
    shop.run()
    shop.sql(
        "SET SESSION binlog_row_image = 'MINIMAL'",
        "UPDATE orders SET a = 'new' WHERE id % 3 = 0",
        "UPDATE orders SET id = id + 1000 WHERE id BETWEEN 10 AND 20",
        "UPDATE orders SET b = 7, id = id + 1000 WHERE id BETWEEN 1015 AND 1020",
        "DELETE FROM orders WHERE id BETWEEN 50 AND 60",
    )
    shop.run()
    shop.require_equal("orders")
    shop.sql(
        "SET SESSION binlog_row_image = 'MINIMAL'",
        "UPDATE orders SET id = 12 WHERE id = 1012",
        "UPDATE orders SET c = NULL WHERE id IN (12, 2016)",
        "INSERT INTO orders (id) VALUES (50)",
    )
    shop.run()
    shop.require_equal("orders")


def deleted(shop: Shop, table: str) -> dict[int, Any]:
    """The rows of a mirror that are flagged, by their first column: their other values. Each says when it was deleted:
    at the commit that its version is of."""
    found = {}
    for row in shop.mirror(table).to_pylist():
        key, flag, at, version = row.pop("id"), row.pop(DELETED), row.pop(DELETED_AT), row.pop("_cdc_version")
        assert flag == (at is not None)
        if flag:
            assert int(at.timestamp() * 1e6) == decode(version).commit_ts_us
            found[key] = tuple(row.values())
    return found


def test_deleted_rows_stay_and_say_so_where_the_rule_keeps_them(shop: Shop) -> None:
    shop.follow(deletes="flag")
    shop.sql(
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer VARCHAR(40), amount INT)",
        "CREATE TABLE items (id INT PRIMARY KEY, text TEXT)",
        "INSERT INTO orders SELECT seq, CONCAT('c', seq), seq FROM seq_1_to_3000",
        "INSERT INTO items SELECT seq, 'x' FROM seq_1_to_100",
    )
    shop.run()
    assert deleted(shop, "orders") == {}
    shop.sql(
        "UPDATE orders SET amount = amount + 1 WHERE id = 100",
        "DELETE FROM orders WHERE id IN (100, 200)",
        "UPDATE orders SET id = 10001 WHERE id = 1",
        "INSERT INTO orders VALUES (5000, 'short', 5)",
        "DELETE FROM orders WHERE id = 5000",
        "SET SESSION binlog_row_image = 'MINIMAL'",
        "DELETE FROM orders WHERE id = 300",
        "DELETE FROM items WHERE id = 7",
    )
    shop.run()
    shop.require_equal("orders", "items")
    gone = {1: ("c1", 1), 100: ("c100", 101), 200: ("c200", 200), 300: ("c300", 300), 5000: ("short", 5)}
    assert deleted(shop, "orders") == gone
    shop.sql(
        "INSERT INTO orders VALUES (100, 'back', 2)",
        "UPDATE orders SET amount = 3 WHERE id = 100",
        "TRUNCATE items",
        "INSERT INTO items VALUES (9, 'again')",
    )
    shop.run()
    shop.require_equal("orders", "items")
    assert deleted(shop, "orders") == {key: values for key, values in gone.items() if key != 100}
    assert deleted(shop, "items") == {key: ("x",) for key in range(1, 101) if key != 9}
    assert shop.mirror("orders", tombstones=True).num_rows == 0
    before = {name: shop.mirror(name) for name in ("orders", "items")}
    shop.run("--replay", "--target", "lake")
    assert {name: shop.mirror(name) for name in ("orders", "items")} == before
    tables = shop.lockstep("verify", shop.file, "--target", "lake").document["tables"]
    assert [(table["verdict"], table["target_rows"]) for table in tables] == [("equal", 1), ("equal", 2998)]


@pytest.mark.parametrize(("was", "now"), [("remove", "flag"), ("flag", "remove")])
def test_what_a_mirror_does_with_deleted_rows_is_decided_when_it_is_made(
    was: str, now: str, lockstep: Any, mariadb: Any
) -> None:
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    shop = Shop(lockstep, mariadb)
    shop.follow(deletes=was)
    shop.sql("CREATE TABLE orders (id INT PRIMARY KEY, v INT)", "INSERT INTO orders VALUES (1, 1), (2, 2), (3, 3)")
    shop.run()
    shop.sql("DELETE FROM orders WHERE id = 1")
    shop.run()
    shop.sql("DELETE FROM orders WHERE id = 2")
    shop.follow(deletes=now)
    assert [finding["status"] for finding in lockstep("check", shop.file, code=3).document["findings"]].count(
        "fail"
    ) == 1
    refused = shop.run(code=3)
    assert (refused["code"], f"set deletes: {was}" in refused["remedy"]) == ("target.definition", True)
    shop.follow(deletes=was)
    shop.run()
    shop.require_equal("orders")
    shop.follow(deletes=now, table="new_{table}")
    lockstep("snapshot", shop.file, f"{DATABASE}.orders")
    shop.run("--replay", "--target", "lake")
    shop.run()
    shop.sql("DELETE FROM orders WHERE id = 3", "INSERT INTO orders VALUES (4, 4)")
    shop.run()
    assert shop.mirror("new_orders")["id"].to_pylist() == ([3, 4] if now == "flag" else [4])
    assert [table["verdict"] for table in lockstep("verify", shop.file, "--target", "lake").document["tables"]] == [
        "equal"
    ]


def test_every_cut_is_the_database_at_one_position(lockstep: Any, mariadb: Any) -> None:
    """Money moves between two tables while runs publish: no reader finds some of it twice, or not at all."""
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    shop = Shop(lockstep, mariadb)
    shop.sql(
        "CREATE TABLE here (id INT PRIMARY KEY, amount INT)", "CREATE TABLE there (id INT PRIMARY KEY, amount INT)",
        "INSERT INTO here SELECT seq, 100 FROM seq_1_to_50", "INSERT INTO there SELECT seq, 0 FROM seq_1_to_50",
    )  # fmt: skip
    shop.run()
    stopped, sums, readings = threading.Event(), set[int](), []

    def move() -> None:
        with mariadb.connect(DATABASE, autocommit=False) as connection, connection.cursor() as cursor:
            for number in itertools.count(1):
                if stopped.wait(0.005):
                    return
                cursor.execute("UPDATE here SET amount = amount - 1 WHERE id = %s", [number % 50 + 1])
                cursor.execute("UPDATE there SET amount = amount + 1 WHERE id = %s", [number * 7 % 50 + 1])
                connection.commit()

    def read() -> None:
        while not stopped.wait(0.002):
            sums.add(sum(total(StaticTable.from_metadata(where)) for where in shop.locations("here", "there")))
            readings.append(1)

    threads = [threading.Thread(target=work) for work in (move, read)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        shop.run()
    stopped.set()
    for thread in threads:
        thread.join()
    assert sums == {5000}
    assert len(readings) >= 100
    cuts = [cut for _, cut in newest_first(open_store((lockstep.directory / "stage").as_uri()), "lake")]
    assert len(cuts) == 5
    for cut in cuts:
        place = f"{cut.sources['shop'].position}"
        found = lockstep("lake", "at", shop.file, "--position", place).document
        assert found["run"] == cut.run_id
        amounts = 0
        for listed in found["tables"]:
            table = shop.catalog.load_table(listed["mirror"])
            rows = table.scan(snapshot_id=listed["snapshot"]).to_arrow().sort_by("id").drop_columns(["_cdc_version"])
            staged = lockstep.exported(listed["table"], "--as-of", place, file=str(shop.file)).sort_by("id")
            assert rows.to_pylist() == staged.select(rows.column_names).to_pylist()
            amounts += sum(rows["amount"].to_pylist())
        assert amounts == 5000
    rows = shop.catalog.load_table("shop.lockstep_cuts").scan().to_arrow()
    assert set(rows["run"].to_pylist()) == {cut.run_id for cut in cuts}
    assert rows.num_rows == 2 * len(cuts)
    early = lockstep("lake", "at", shop.file, "--position", "binlog.000001:4", code=3)
    assert early.error["code"] == "stage.as_of"


def test_a_cut_says_which_tables_had_not_all_of_their_rows(lockstep: Any, mariadb: Any) -> None:
    """By the rule by which `stage export --as-of` refuses them, and for ever: a later copy completes later cuts."""
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    shop = Shop(lockstep, mariadb)
    shop.configure(copies="none")
    shop.sql("CREATE TABLE old (id INT PRIMARY KEY, v INT)", "INSERT INTO old SELECT seq, 0 FROM seq_1_to_9")
    lockstep("extract", shop.file)
    shop.sql(
        "CREATE TABLE fresh (id INT PRIMARY KEY)", "INSERT INTO fresh VALUES (1)", "UPDATE old SET v = 1 WHERE id = 1"
    )
    shop.run()

    def cut(*options: str) -> dict[str, dict[str, Any]]:
        return {table["mirror"]: table for table in lockstep("lake", "at", shop.file, *options).document["tables"]}

    found = cut()
    assert found["shop.fresh"]["lacks"] == []
    assert "are not captured" in " ".join(found["shop.old"]["lacks"])
    assert found["shop.old"]["sql"] is None
    assert found["shop.fresh"]["sql"]
    assert cut("--partial")["shop.old"]["sql"]
    script = lockstep("lake", "at", shop.file, "--views", "v").document["script"]
    assert script[0].startswith("-- shop.old is partial: ")
    assert [line.split()[4] for line in script if line.startswith("CREATE OR REPLACE VIEW")] == ["v.fresh"]
    (first,) = [published for _, published in newest_first(open_store((lockstep.directory / "stage").as_uri()), "lake")]
    place = str(first.sources["shop"].position)
    refused = lockstep("stage", "export", shop.file, f"{DATABASE}.old", "--as-of", place, "-o", "x", code=3)
    assert refused.error["code"] == "stage.partial"
    shop.sql("INSERT INTO fresh VALUES (3)")
    lockstep("snapshot", shop.file)
    shop.run()
    shop.require_equal("old", "fresh")
    assert [table["lacks"] for table in cut().values()] == [[], []]
    assert cut("--position", place)["shop.old"]["lacks"] == found["shop.old"]["lacks"]
    rows = shop.catalog.load_table("shop.lockstep_cuts").scan().to_arrow().to_pylist()
    assert [row["mirror"] for row in rows if row["lacks"]] == ["shop.old"]
    shop.sql("INSERT INTO fresh VALUES (2)", "UPDATE old SET v = 2")
    lockstep("extract", shop.file)
    shop.run("--replay", "--target", "lake", "--table", f"{DATABASE}.fresh")
    ahead = cut()
    assert ahead["shop.fresh"]["lacks"] == []
    assert "1 batch with changes" in " ".join(ahead["shop.old"]["lacks"])
    shop.run()
    shop.require_equal("old", "fresh")
    assert [table["lacks"] for table in cut().values()] == [[], []]


def test_a_cut_has_captured_tables_that_no_run_has_had_rows_of(lockstep: Any, mariadb: Any) -> None:
    """As empty ones, where the mirror is there, and else with what they lack; until a run has rows of them."""
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    shop = Shop(lockstep, mariadb)
    shop.sql("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")

    def cut(*options: str) -> dict[str, dict[str, Any]]:
        return {table["mirror"]: table for table in lockstep("lake", "at", shop.file, *options).document["tables"]}

    for number in (2, 3):
        shop.run()
        found = cut("--partial")["shop.b"]
        assert (found["snapshot"], found["sql"], len(found["lacks"])) == (None, None, 1)
        assert "target create" in found["lacks"][0]
        shop.sql(f"INSERT INTO a VALUES ({number})")
    lockstep("lake", "maintain", shop.file)
    lockstep("dbt", "sources", shop.file)
    lockstep("target", "create", shop.file)
    shop.run()
    found = cut()["shop.b"]
    assert (found["snapshot"], found["lacks"]) == (None, [])
    assert found["sql"] == "SELECT * FROM lake.shop.b WHERE false"
    shop.sql("INSERT INTO b VALUES (7)")
    shop.run()
    assert cut()["shop.b"]["snapshot"] is not None
    shop.sql("INSERT INTO a VALUES (9)")
    before = cut()["shop.b"]
    shop.run()
    assert cut()["shop.b"] == before
    shop.sql("DROP TABLE b", "CREATE TABLE c (id INT PRIMARY KEY)", "DROP TABLE c", "INSERT INTO a VALUES (10)")
    shop.run()
    assert set(cut()) == {"shop.a", "shop.b"}


def total(table: StaticTable) -> int:
    return sum(table.scan(selected_fields=("amount",)).to_arrow()["amount"].to_pylist())


@pytest.mark.parametrize("transactions", [True, False], ids=["one request", "one by one"])
def test_a_rest_catalog_publishes_all_tables_or_is_completed_later(
    lockstep: Any, mariadb: Any, transactions: bool
) -> None:
    """Also where an answer is lost: after the tables were published, or before."""
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    with RestCatalogServer(lockstep.directory, transactions=transactions) as server:
        shop = Shop(lockstep, mariadb, rest=server.uri)
        shop.sql("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "CREATE TABLE b (id INT PRIMARY KEY, v INT)")
        shop.sql("INSERT INTO a VALUES (1, 1), (2, 2)", "INSERT INTO b VALUES (1, 1)")
        said = [finding["what"] for finding in lockstep("check", shop.file).document["findings"]]
        words = "all tables of a run in one request" if transactions else "one table of a run after the other"
        assert f"it publishes {words}" in said
        shop.run()
        shop.require_equal("a", "b")
        before = server.commits
        shop.sql("UPDATE a SET v = 5", "DELETE FROM b", "INSERT INTO b VALUES (7, 7)")
        shop.run()
        commits = server.commits - before
        shop.require_equal("a", "b")
        for number in range(0, commits, 3):
            for fault in ("refuse", "forget"):
                shop.sql(f"UPDATE a SET v = v + {number}", "UPDATE b SET v = v + 1", "DELETE FROM a WHERE id = 2")
                server.faults.extend([*[""] * number, fault])
                failed = lockstep("run", shop.file, code=None)
                server.faults.clear()
                if failed.code:
                    assert (failed.code, failed.error["code"]) == (75, "connection.unreachable"), failed.error
                shop.run()
                shop.require_equal("a", "b")


def test_each_program_for_a_lake_prints_what_the_document_shows(lockstep: Any, mariadb: Any) -> None:
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    shop = Shop(lockstep, mariadb)
    shop.follow(changes="table")
    shop.sql(
        "CREATE TABLE orders (id INT PRIMARY KEY, customer INT, status VARCHAR(20), amount DECIMAL(12,2))",
        "CREATE TABLE customers (number INT PRIMARY KEY, name VARCHAR(20))",
        "INSERT INTO orders VALUES (1, 1, 'new', 10), (2, 2, 'paid', 20), (3, 2, 'paid', 30), (4, 1, 'paid', 99)",
        "INSERT INTO customers VALUES (1, 'Ada'), (2, 'Bo')",
    )
    shop.run()
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
    while datetime.now(UTC) < moment + timedelta(seconds=1):  # a source's clock may have whole seconds alone
        time.sleep(0.1)
    shop.sql("UPDATE orders SET status = 'sent' WHERE id = 1", "DELETE FROM orders WHERE id = 4")
    shop.run()
    place = {
        "sqlite:////srv/lake/catalog.db": shop.uri,
        "file:///srv/lake": shop.warehouse,
        "2026-11-21T04:00:00Z": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    blocks = re.findall(
        r"^```(python lake|sql lake)\n(.*?)^```\n(?:^```text\n(.*?)^```$)?", DOCUMENT, re.MULTILINE | re.DOTALL
    )
    assert [kind for kind, _, _ in blocks] == ["python lake"] * 5 + ["sql lake", "python lake"]
    names: dict[str, Any] = {}
    for _, program, expected in [block for block in blocks if block[0] == "python lake"]:
        for shown, real in place.items():
            program = program.replace(shown, real)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(program, names)
        assert printed.getvalue() == expected
    _, query, expected = blocks[-2]
    for table in lockstep("lake", "at", shop.file, "--time", moment.isoformat()).document["tables"]:
        version = f"lake.{table['mirror']} VERSION AS OF"
        assert table["sql"] == f"SELECT * FROM {version} {table['snapshot']}"
        query = re.sub(rf"{version} \d+", f"{version} {table['snapshot']}", query)
    rows = by_spark(
        lockstep.directory, [shop.catalog.load_table(f"shop.{name}") for name in ("orders", "customers")], query
    )
    assert [" ".join(map(str, row.values())) for row in rows.to_pylist()] == expected.splitlines()


def test_a_pipeline_with_a_lake_is_drafted_from_the_source_and_runs_as_it_is(lockstep: Any, mariadb: Any) -> None:
    mariadb.run(
        f"CREATE DATABASE {DATABASE}", f"CREATE TABLE {DATABASE}.t (id INT PRIMARY KEY)",
        f"CREATE TABLE {DATABASE}.keyless (id INT)", f"INSERT INTO {DATABASE}.t VALUES (1), (2)",
    )  # fmt: skip
    folder = lockstep.directory
    lockstep.environ["LAKE_CATALOG"] = uri = f"sqlite:///{folder}/catalog.db"
    options = "--lake", "env:LAKE_CATALOG", "--warehouse", folder.as_uri()
    lockstep.init(mariadb, DATABASE, None, *options)
    lockstep("check", "shop.yaml")
    lockstep("run", "shop.yaml")
    rows = load_catalog("lake", type="sql", uri=uri).load_table("shop.t").scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == [1, 2]
    half = lockstep("init", "x", "--source", "env:SHOP", "--include", ".*", *options[:2], code=2)
    assert half.error["code"] == "usage.argument"


def test_a_run_says_that_a_file_of_the_lake_is_gone(shop: Shop, spark_section: dict[str, Any]) -> None:
    """Another attempt would not help."""
    shop.sections = {"spark": spark_section}
    shop.configure()
    shop.sql("CREATE TABLE orders (id BIGINT PRIMARY KEY, v INT)", "INSERT INTO orders VALUES (1, 1), (2, 2)")
    shop.run()
    (file,) = (shop.lockstep.directory / "warehouse" / "shop").glob("orders-*/data/*.parquet")
    file.rename(file.with_suffix(".away"))
    shop.sql("UPDATE orders SET v = 3 WHERE id = 1")
    error = shop.run(code=4)
    assert (error["code"], file.name in error["what"]) == ("lake.files_lost", True)
    file.with_suffix(".away").rename(file)
    shop.run()
    shop.require_equal("orders")


def test_a_table_without_a_key_is_refused_with_what_helps(lockstep: Any, mariadb: Any) -> None:
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    shop = Shop(lockstep, mariadb)
    shop.sql("CREATE TABLE log (id INT, v INT)", "INSERT INTO log VALUES (1, 1)")
    refused = shop.run(code=3)
    assert (refused["code"], "no_key" in refused["remedy"]) == ("config.table_rule", False)
    shop.rule = {"key": ["id"]}
    shop.configure()
    shop.run()
    shop.require_equal("log")


def test_a_key_that_becomes_wider_is_followed_by_rows_and_tombstones(shop: Shop) -> None:
    shop.configure(on_unlogged_change="resync")
    shop.sql(
        "CREATE TABLE orders (id INT PRIMARY KEY, v INT)",
        "INSERT INTO orders SELECT seq, seq FROM seq_1_to_50",
        "CREATE TABLE items (a INT, b VARCHAR(5), v INT, PRIMARY KEY (b, a))",
        "INSERT INTO items VALUES (1, 'x', 1), (2, 'y', 2)",
    )
    shop.run()
    shop.sql("DELETE FROM orders WHERE id = 7")
    shop.run()
    shop.sql(
        "ALTER TABLE orders MODIFY id BIGINT",
        "ALTER TABLE items MODIFY a BIGINT",
        "INSERT INTO orders VALUES (5000000000, 1), (7, 70)",
        "DELETE FROM orders WHERE id = 3",
        "UPDATE items SET a = a + 5000000000",
    )
    shop.run()
    shop.require_equal("orders", "items")
    shop.sql("DELETE FROM orders WHERE id = 5000000000")
    shop.run()
    shop.require_equal("orders", "items")
    # The copy after the ALTER TABLE took the place of all older rows and tombstones, as a TRUNCATE does.
    assert shop.mirror("orders", tombstones=True)["id"].to_pylist() == [5000000000, None]


def test_rows_that_fail_their_suite_are_never_visible_and_the_next_run_publishes(lockstep: Any, mariadb: Any) -> None:
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    suite = lockstep.directory / "orders.yaml"
    shop = Shop(lockstep, mariadb, quality={"suites": [{"table": f"{DATABASE}.orders", "path": str(suite)}]})
    between = {"type": "expect_column_values_to_be_between", "severity": "critical"}
    suite.write_text(
        yaml.safe_dump({"expectations": [{**between, "kwargs": {"column": "v", "min_value": 0, "max_value": 9}}]})
    )
    shop.sql("CREATE TABLE orders (id INT PRIMARY KEY, v INT)", "CREATE TABLE other (id INT PRIMARY KEY)")
    shop.sql("INSERT INTO orders VALUES (1, 1), (2, 2)", "INSERT INTO other VALUES (1)")
    shop.run()
    shop.sql("UPDATE orders SET v = 99 WHERE id = 1", "INSERT INTO other VALUES (2)")
    failed = shop.run(code=4)
    assert failed["code"] == "quality.failed"
    assert [row["v"] for row in shop.mirror("orders").to_pylist()] == [1, 2]
    assert shop.mirror("other")["id"].to_pylist() == [1]
    table = shop.catalog.load_table("shop.orders")
    (branch,) = [name for name in table.metadata.refs if name.startswith("lockstep_")]
    on_branch = table.scan().use_ref(branch).to_arrow().sort_by("id")
    assert on_branch["v"].to_pylist() == [99, 2]
    written_again(shop)
    shop.sql("UPDATE orders SET v = 3 WHERE id = 1")
    shop.run()
    shop.require_equal("orders", "other")


def written_again(shop: Shop) -> None:
    """The last run's write, by itself: what judged its former snapshots judges the new ones no more."""
    pipeline = load(Path(shop.file))
    store = open_stage(pipeline.stage)
    found = sorted(info.path for info in store.list("") if info.path.endswith("/plan.json"))
    plan = max((RunPlan.from_bytes(store.get(path)) for path in found), key=lambda run_plan: run_plan.run_id)
    report = quality_report(plan.quality_folder("lake"))
    assert store.stat(report)
    with pytest.MonkeyPatch.context() as environ, Driver(pipeline, store, master="local[1]") as driver:
        environ.setenv("LAKE_CATALOG", shop.uri)
        driver.submit(SparkJob("write", plan, target="lake"))
    assert not store.stat(report)


def test_a_key_column_that_is_renamed_is_followed_by_rows_and_tombstones(lockstep: Any, mariadb: Any) -> None:
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    shop = Shop(lockstep, mariadb)
    shop.rule = {"changes": "table"}
    shop.configure(on_unlogged_change="resync")
    shop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    shop.run()
    shop.sql("DELETE FROM t WHERE id = 1")
    shop.run()
    shop.sql("ALTER TABLE t RENAME COLUMN id TO number", "UPDATE t SET v = 20 WHERE number = 2")
    for command in (["check"], ["target", "create"]):
        lockstep(*command, shop.file)
    assert "follows a column that was renamed" in lockstep("verify", shop.file, "--target", "lake", code=3).out
    shop.run()
    shop.run()
    shop.require_equal("t")
    shop.sql("INSERT INTO t VALUES (1, 10)", "DELETE FROM t WHERE number = 3")
    shop.run()
    shop.require_equal("t")
    assert shop.mirror("t", tombstones=True)["number"].to_pylist() == [3, None]
    tables = lockstep("verify", shop.file, "--target", "lake").document["tables"]
    assert [table["verdict"] for table in tables] == ["equal"]
    changes = shop.catalog.load_table("shop.t__changes").scan().to_arrow().sort_by("_cdc_seq").to_pylist()
    assert [row["number"] for row in changes if row["_cdc_op"] in "cud"] == [1, 2, 1, 3]


def test_check_says_whether_the_next_run_follows_columns(lockstep: Any, mariadb: Any) -> None:
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    shop = Shop(lockstep, mariadb)
    shop.sql("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    shop.run()
    for change, statement in (
        ("ADD COLUMN v INT", "UPDATE t SET v = 7"), ("RENAME COLUMN id TO number", "UPDATE t SET v = 8"),
    ):  # fmt: skip
        shop.sql(f"ALTER TABLE t {change}", statement)
        shop.rule["on_new_column"] = "stop"
        shop.configure(on_unlogged_change="resync")
        lockstep("check", shop.file, code=3)
        assert "set on_new_column: add" in shop.run(code=3)["remedy"]
        shop.rule["on_new_column"] = "add"
        shop.configure(on_unlogged_change="resync")
        lockstep("check", shop.file)
        shop.run()
        shop.require_equal("t")


@pytest.mark.parametrize("change", ["DROP PRIMARY KEY, ADD PRIMARY KEY (v)", "MODIFY v VARCHAR(20) NOT NULL"])
def test_what_a_mirror_cannot_become_is_another_one_as_the_remedy_says(
    lockstep: Any, mariadb: Any, change: str
) -> None:
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    shop = Shop(lockstep, mariadb)
    shop.rule = {"changes": "table"}
    shop.configure(on_unlogged_change="resync")
    shop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT NOT NULL)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    shop.run()
    shop.sql("DELETE FROM t WHERE id = 1", f"ALTER TABLE t {change}", "INSERT INTO t VALUES (4, 4)")
    shop.run()
    refused = shop.run(code=3)
    assert refused["code"] == "target.definition"
    shop.rule["table"] = "new_{table}"
    shop.configure(on_unlogged_change="resync")
    for command in re.findall(r"`lockstep ([^`]*)`", refused["remedy"]):
        lockstep(*command.replace("TABLE", f"{DATABASE}.t").replace("TARGET", "lake").split())
    shop.run()
    expected = mariadb.run(f"SELECT id, v FROM {DATABASE}.t ORDER BY id")
    assert [(row["id"], row["v"]) for row in shop.mirror("new_t").to_pylist()] == list(expected)
    assert [table["verdict"] for table in lockstep("verify", shop.file, "--target", "lake").document["tables"]] == [
        "equal"
    ]
    assert [table["lacks"] for table in lockstep("lake", "at", shop.file).document["tables"]] == [[]]


def test_a_renamed_key_is_followed_also_where_a_run_has_rows_under_a_former_name_of_another_column(
    lockstep: Any, mariadb: Any
) -> None:
    mariadb.run(f"CREATE DATABASE {DATABASE}")
    shop = Shop(lockstep, mariadb)
    shop.configure(on_unlogged_change="resync")
    shop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    shop.run()
    shop.sql(
        "ALTER TABLE t RENAME COLUMN id TO number", "UPDATE t SET v = 20 WHERE number = 2",
        "ALTER TABLE t RENAME COLUMN v TO w", "DELETE FROM t WHERE number = 1", "UPDATE t SET w = 30 WHERE number = 3",
    )  # fmt: skip
    shop.run()
    shop.run()
    shop.require_equal("t")
    assert "id" not in shop.mirror("t").column_names


@pytest.mark.parametrize("source", ["mariadb", "newest_mariadb"])
def test_a_lake_has_no_column_whose_values_the_log_may_lack(
    source: str, lockstep: Any, request: pytest.FixtureRequest
) -> None:
    """MariaDB's virtual columns, and since 11.8 all that are generated."""
    server = request.getfixturevalue(source)
    server.run(f"CREATE DATABASE {DATABASE}")
    shop = Shop(lockstep, server)
    shop.follow(changes="table")
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, s INT AS (a + 1) STORED, v INT AS (a + 2) VIRTUAL)",
        "INSERT INTO t (id, a) VALUES (1, 1), (2, 2)",
    )
    shop.run()
    shop.sql("UPDATE t SET a = 10 WHERE id = 1")
    shop.run()
    shop.sql(
        "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE t SET a = 20 WHERE id = 2", "INSERT INTO t (id) VALUES (3)"
    )
    shop.run()
    names = ["id", "a", "s"] if source == "mariadb" else ["id", "a"]
    assert shop.mirror("t").select(names).to_pylist() == [
        dict(zip(names, row, strict=False)) for row in server.run(f"SELECT id, a, s FROM {DATABASE}.t ORDER BY id")
    ]
    changes = shop.catalog.load_table("shop.t__changes").scan().to_arrow()
    for rows in (shop.mirror("t"), changes):
        assert {"s", "v"}.intersection(rows.column_names) == set(names) - {"id", "a"}
    shop.lockstep("verify", shop.file, "--target", "lake")
