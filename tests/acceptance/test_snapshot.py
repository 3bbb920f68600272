"""Rows that were there before the pipeline, copied by `lockstep snapshot` beside writes that go on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from cdc_core.errors import Refused
from cdc_core.stage.public import open as open_stage
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql


def state(lockstep: Any, table: str) -> list[list[Any]]:
    found = lockstep("stage", "sql", "shop.yaml", f'SELECT order_id, status FROM "{table}" ORDER BY 1').document
    return list(found["rows"])


def test_existing_rows_are_copied_beside_the_stream_and_the_stage_has_the_table(
    source_database: Any, lockstep: Any
) -> None:
    name = source_database.name
    source_database.execute(
        "CREATE TABLE orders (order_id INT PRIMARY KEY, status VARCHAR(9))",
        "INSERT INTO orders VALUES (1, 'old'), (2, 'old'), (3, 'old')",
        "CREATE TABLE empty_one (id INT PRIMARY KEY)",
    )
    lockstep.init(source_database.server, source_database.name)
    lockstep("extract", "shop.yaml")
    source_database.execute(
        "UPDATE orders SET status = 'new' WHERE order_id = 2", "DELETE FROM orders WHERE order_id = 3",
        "INSERT INTO orders VALUES (4, 'new')",
    )  # fmt: skip
    planned = lockstep("snapshot", "shop.yaml", "--dry-run").document
    assert [table["table"] for table in planned["tables"]] == [f"{name}.orders"]
    done = lockstep("snapshot", "shop.yaml").document["sources"][0]
    assert (done["tables"], done["rows"], done["waiting_for"]) == ([f"{name}.orders"], 3, None)
    assert state(lockstep, f"{name}.orders") == [[1, "old"], [2, "new"], [4, "new"]]
    assert lockstep("snapshot", "shop.yaml").document["sources"] == []
    source_database.execute("DELETE FROM orders WHERE order_id = 1")
    lockstep("extract", "shop.yaml")
    assert state(lockstep, f"{name}.orders") == [[2, "new"], [4, "new"]]
    assert lockstep("stage", "verify", "shop.yaml").document["problems"] == []
    assert lockstep("status", "shop.yaml").document["problems"] == []


def test_a_copy_feeds_the_routes_that_match_as_the_server_compares_names(lockstep: Any) -> None:
    with MariaDb.start(options={"lower_case_table_names": "1"}) as server:
        lockstep.environ["SHOP"] = server.url
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE TABLE shop.orders (order_id INT PRIMARY KEY, status VARCHAR(9))")
            cursor.execute("INSERT INTO shop.orders VALUES (1, 'old')")
            lockstep.write("shop", "shop", routes="[{match: 'Shop[.](.*)', to: 'x_\\1'}]")
            lockstep("extract", "shop.yaml")
        lockstep("snapshot", "shop.yaml")
    assert state(lockstep, "x_orders") == [[1, "old"]]
    with lockstep.opened() as ready:
        assert ready.meta.coverages.find("shop").tables["shop.orders"].feeds == ("x_orders",)


@pytest.fixture(params=["mariadb", pytest.param("mysql9", marks=pytest.mark.matrix)])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """A source and a target of one kind."""
    if request.param == "mariadb":
        yield request.getfixturevalue("mariadb"), request.getfixturevalue("mariadb_target")
        return
    with MySql.start(server_id=5) as target:
        yield request.getfixturevalue("mysql9"), target


def rows(server: Any, table: str) -> list[tuple[Any, ...]]:
    return server.run(f"SELECT id, v FROM {table} ORDER BY id")


@pytest.mark.spark
def test_a_run_copies_what_is_pending_and_a_replay_of_the_stage_makes_the_same_target(
    servers: tuple[Any, Any], lockstep: Any
) -> None:
    source, target = servers
    definition = "(id INT PRIMARY KEY, v VARCHAR(20))"
    parts = "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (3), PARTITION p1 VALUES LESS THAN MAXVALUE)"
    source.run("CREATE DATABASE old", f"CREATE TABLE old.t {definition} {parts}",
               "INSERT INTO old.t VALUES (1, 'a'), (2, 'b'), (3, 'c')", f"CREATE TABLE old.u {definition}",
               "INSERT INTO old.u VALUES (1, 'a'), (2, 'b')")  # fmt: skip
    target.run(*(statement for name in ("old", "again") for statement in (
        f"CREATE DATABASE {name}", f"CREATE TABLE {name}.t {definition}", f"CREATE TABLE {name}.u {definition}"
    )))  # fmt: skip
    lockstep.init(source, "old", target)
    file = lockstep.directory / "shop.yaml"
    text = file.read_text()
    assert "mode: initial" in text
    source.run("UPDATE old.t SET v = 'new' WHERE id = 2", "DELETE FROM old.t WHERE id = 3")
    lockstep("run", "shop.yaml")
    assert rows(target, "old.t") == rows(source, "old.t") == [(1, "a"), (2, "new")]
    # No row event says that rows of t are gone; those of u cannot be known from a statement.
    source.run("UPDATE old.t SET v = 'newer' WHERE id = 1", "INSERT INTO old.t VALUES (4, 'd'), (5, 'e')",
               "ALTER TABLE old.t TRUNCATE PARTITION p0", "UPDATE old.t SET v = 'dd' WHERE id = 4",
               "SET binlog_format = STATEMENT", "DELETE FROM old.u WHERE id = 1", "SET binlog_format = ROW",
               "INSERT INTO old.u VALUES (3, 'c')")  # fmt: skip
    lockstep("run", "shop.yaml")
    assert rows(target, "old.t") == rows(source, "old.t") == [(4, "dd"), (5, "e")]
    assert rows(target, "old.u") == rows(source, "old.u") == [(2, "b"), (3, "c")]
    source.run("INSERT INTO old.t VALUES (2, 'back')", "DELETE FROM old.t WHERE id = 5")
    lockstep("extract", "shop.yaml")
    (lockstep.directory / ".lockstep" / "shop" / "meta.db").unlink()
    lockstep("meta", "rebuild", "shop.yaml")
    file.write_text(
        f"{text}  - name: rebuilt\n    connections: ['env:COPY']\n"
        "    tables: {'old.t': {database: again, table: t}, 'old.u': {database: again, table: u}}\n"
    )
    lockstep("run", "shop.yaml", "--replay", "--target", "rebuilt")
    assert rows(target, "again.t") == rows(source, "old.t") == [(2, "back"), (4, "dd")]
    assert rows(target, "again.u") == rows(source, "old.u")
    status = lockstep("status", "shop.yaml", code=None).document
    assert [problem for problem in status["problems"] if problem["code"] == "stage.partial"] == []


def test_a_table_whose_column_got_another_type_is_read_as_it_is_now_and_as_it_was(
    source_database: Any, lockstep: Any
) -> None:
    name = source_database.name
    source_database.execute("CREATE TABLE orders (order_id INT PRIMARY KEY, status INT)")
    lockstep.init(source_database.server, source_database.name)
    lockstep("extract", "shop.yaml")
    source_database.execute("INSERT INTO orders VALUES (1, 10), (2, 20)")
    lockstep("extract", "shop.yaml")
    before = "{}:{}".format(*source_database.execute("SHOW MASTER STATUS")[0][:2])
    source_database.execute(
        "UPDATE orders SET status = 21 WHERE order_id = 2", "ALTER TABLE orders MODIFY status VARCHAR(9)",
        "INSERT INTO orders VALUES (3, 'x')",
    )  # fmt: skip
    lockstep("extract", "shop.yaml")
    read = ("stage", "sql", "shop.yaml", f'SELECT order_id, status FROM "{name}.orders" ORDER BY 1')
    assert lockstep(*read, code=3).error["code"] in ("stage.partial", "stage.schema_conflict")
    lockstep("snapshot", "shop.yaml")
    assert state(lockstep, f"{name}.orders") == [[1, "10"], [2, "21"], [3, "x"]]
    assert lockstep(*read, "--as-of", before).document["rows"] == [[1, 10], [2, 20]]
    history = ("stage", "sql", "shop.yaml", f'SELECT count(*) FROM "{name}.orders_changes"')
    assert lockstep(*history, code=3).error["code"] == "stage.schema_conflict"
    orders = open_stage(lockstep.directory / "shop.yaml")[f"{name}.orders"]
    with pytest.raises(Refused) as refused:
        orders.changes().to_arrow()
    (place,) = re.findall(r"since='(.*?)'", refused.value.remedy)
    assert orders.changes(until=place).to_arrow()["status"].to_pylist() == [10, 20, 21]
    assert orders.changes(since=place).to_arrow()["status"].to_pylist()[0] == "x"
    lockstep("stage", "export", "shop.yaml", f"{name}.orders", "-o", lockstep.directory / "orders.parquet")
    assert lockstep("stage", "verify", "shop.yaml").document["problems"] == []


def test_two_copies_of_a_pipeline_at_once_copy_each_row_once(source_database: Any, lockstep: Any) -> None:
    name = source_database.name
    source_database.execute(
        "CREATE TABLE orders (order_id INT PRIMARY KEY, status VARCHAR(9), filler VARCHAR(400))",
        "INSERT INTO orders VALUES (1, 'old', REPEAT('f', 400))",
        *(
            f"INSERT INTO orders SELECT order_id + {1 << n}, status, filler FROM orders WHERE order_id <= {1 << n}"
            for n in range(13)
        ),
    )
    lockstep.init(source_database.server, source_database.name)
    lockstep("extract", "shop.yaml")
    with lockstep.started("snapshot", "shop.yaml", log="1") as one, lockstep.started("snapshot", "shop.yaml") as other:
        codes = sorted((one.wait(), other.wait()))
    assert codes in ([0, 0], [0, 75]), (one.document, other.document)
    if codes == [0, 75]:
        assert "lease.held" in one.log.read_text() + other.log.read_text()
    assert lockstep("snapshot", "shop.yaml").document["sources"] == []
    counted = f'SELECT count(*), count(DISTINCT order_id) FROM "{name}.orders"'
    assert lockstep("stage", "sql", "shop.yaml", counted).document["rows"] == [[8192, 8192]]
    staged = f'SELECT count(*) FROM "{name}.orders_changes"'
    assert lockstep("stage", "sql", "shop.yaml", staged).document["rows"] == [[8192]]
    assert lockstep("stage", "verify", "shop.yaml").document["problems"] == []


@pytest.mark.matrix
def test_a_target_that_is_down_at_the_beginning_of_a_run_gets_everything_from_a_later_one(
    source_database: Any, lockstep: Any
) -> None:
    """Its rows are copied and staged meanwhile; of two targets the other one is written."""
    name = source_database.name
    source_database.execute(
        "CREATE TABLE orders (order_id INT PRIMARY KEY, status VARCHAR(9))", "INSERT INTO orders VALUES (1, 'old')"
    )
    with MySql.start(server_id=62) as down, MySql.start(server_id=63) as up:
        lockstep.environ |= {"SHOP": source_database.server.url, "DOWN": down.url, "UP": up.url}
        init = ("--source", "env:SHOP", "--include", rf"{name}\..*", "--target", "env:DOWN", "--target", "env:UP")
        lockstep("init", "shop", *init)

        def rows(server: MySql) -> list[tuple[Any, ...]]:
            return server.run(f"SELECT order_id, status FROM {name}.orders ORDER BY 1")

        down.stop()
        failed = lockstep("run", "shop.yaml", code=75)
        assert failed.error["code"] == "connection.unreachable"
        assert state(lockstep, f"{name}.orders") == [[1, "old"]]
        source_database.execute("INSERT INTO orders VALUES (2, 'new')")
        assert lockstep("run", "shop.yaml", code=75).error["code"] == "connection.unreachable"
        assert rows(up) == [(1, "old"), (2, "new")]
        down.restart()
        lockstep("run", "shop.yaml")
        assert rows(down) == rows(up) == [(1, "old"), (2, "new")]
        lockstep("verify", "shop.yaml", "--target", "shop1")


def test_a_copy_of_all_tables_leaves_those_that_are_not_captured_and_says_so(
    source_database: Any, lockstep: Any
) -> None:
    name = source_database.name
    source_database.execute(*(f"CREATE TABLE {table} (id INT PRIMARY KEY)" for table in ("orders", "former", "gone")))
    source_database.execute(*(f"INSERT INTO {table} VALUES (1)" for table in ("orders", "former", "gone")))
    lockstep.init(source_database.server, source_database.name)
    lockstep("extract", "shop.yaml")
    file = lockstep.directory / "shop.yaml"
    text = file.read_text()
    assert "exclude: []" in text
    file.write_text(text.replace("exclude: []", f"exclude: ['{name}[.]former']"))
    source_database.execute("DROP TABLE gone")
    lockstep("extract", "shop.yaml")
    planned = lockstep("snapshot", "shop.yaml", "--all", "--dry-run").document
    assert [table["table"] for table in planned["tables"]] == [f"{name}.orders"]
    left = [(table["source"], table["table"]) for table in planned["left_out"]]
    assert left == [("shop", f"{name}.former"), ("shop", f"{name}.gone")]
    done = lockstep("snapshot", "shop.yaml", "--all").document
    assert ([source["tables"] for source in done["sources"]], done["left_out"]) == (
        [[f"{name}.orders"]], planned["left_out"],
    )  # fmt: skip


def test_a_copy_that_is_not_staged_and_a_table_that_is_gone_are_no_success(source_database: Any, lockstep: Any) -> None:
    name = source_database.name
    source_database.execute("CREATE TABLE visits (n INT)", "INSERT INTO visits VALUES (1), (1)")
    source_database.execute("CREATE TABLE gone (id INT PRIMARY KEY)", "INSERT INTO gone VALUES (1)")
    lockstep.init(source_database.server, source_database.name)
    lockstep("snapshot", "shop.yaml", f"{name}.visits")
    # Nothing was logged since, so that the two copies of a table without a key would have one place.
    (done,) = lockstep("snapshot", "shop.yaml", f"{name}.visits", code=75).document["sources"]
    assert (done["tables"], [table["table"] for table in done["dropped"]]) == ([], [f"{name}.visits"])
    source_database.execute("DROP TABLE gone")
    extracted = lockstep("extract", "shop.yaml")
    assert f"partial: rows of {name}.gone (source shop) from before its capture are not captured" in extracted.err
    assert "the source has the table no more" in extracted.err
    assert "`lockstep snapshot` copies" not in extracted.err
    refused = lockstep("snapshot", "shop.yaml", f"{name}.gone", code=2).error
    assert refused["code"] == "usage.unknown_name"
    assert f"{name}.gone" not in refused["remedy"]


def test_tables_that_cannot_be_copied_are_left_out_and_said_and_a_dry_run_lists_what_is_tried(
    source_database: Any, lockstep: Any
) -> None:
    name = source_database.name
    source_database.execute(
        "CREATE TABLE orders (order_id INT PRIMARY KEY)",
        "CREATE TABLE visits (at DATETIME)",
        "CREATE TABLE heap (n INT) ENGINE=MyISAM",  # without key and transactions: no view of one place of the log
        *(f"CREATE TABLE all_{letter} (id INT PRIMARY KEY)" for letter in "ab"),
    )
    source_database.execute("INSERT INTO orders VALUES (1)", "INSERT INTO visits VALUES (NOW()), (NOW())")
    source_database.execute(*(f"INSERT INTO {table} VALUES (1)" for table in ("heap", "all_a", "all_b")))
    lockstep.environ |= {"SHOP": source_database.server.url}
    lockstep("init", "shop", "--source", "env:SHOP", "--include", rf"{name}\..*")
    file = lockstep.directory / "shop.yaml"
    target = (
        "\nroutes: [{match: '.*[.]all_.*', to: all}]\n"
        "targets: [{name: copy, connections: [env:SHOP], tables: {'*': {database: other, table: '{table}'}, "
        "all: {database: other, table: all, shared_keys: newest}}}]\n"
    )
    file.write_text(file.read_text() + target)
    planned = lockstep("snapshot", "shop.yaml", "--dry-run").document  # nothing was extracted before
    of = {table["table"].partition(".")[2]: table for table in planned["tables"]}
    assert of.keys() == {"orders", "visits", "heap", "all_a", "all_b"}
    assert of["visits"].keys() == {"source", "table", "rows_estimated", "why"}
    assert "from before its capture" in of["visits"]["why"]
    done = lockstep("snapshot", "shop.yaml", code=3).document
    status = lockstep("status", "shop.yaml", code=None).document
    refused = {copy["table"] for copy in status["sources"][0]["copies"] if copy["state"] == "refused"}
    assert refused == {f"{name}.{table}" for table in ("heap", "all_a", "all_b")}
    assert sorted(done["sources"][0]["tables"]) == [f"{name}.orders", f"{name}.visits"]
    assert done["error"]["code"] == "snapshot.not_copyable"
    alone = lockstep("snapshot", "shop.yaml", code=3).document
    assert (alone["error"]["code"], "sources" in alone) == ("snapshot.not_copyable", False)
