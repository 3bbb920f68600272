"""Target tables that nobody has made: made by the first run, by one whose source has new columns and tables, by a
replay."""

from __future__ import annotations

from typing import Any

import pytest

from cdc_core.errors import DataAtRisk, LockstepError, parts_of
from cdc_core.meta.meta_rows import LastWrite, Renewal
from cdc_core.operations.apply.plan import load, plan
from cdc_core.operations.target_tables import require_any_ready


@pytest.fixture(params=["mariadb mysql9", "mysql9 mariadb_target"])
def servers(request: pytest.FixtureRequest, lockstep: Any) -> tuple[Any, Any]:
    """A source and a target, with the database `grown` on the source only."""
    source, target = (request.getfixturevalue(name) for name in request.param.split())
    source.run("CREATE DATABASE grown CHARACTER SET utf8mb4")
    return source, target


def rows(server: Any, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    return server.run(f"SELECT {columns} FROM {table} ORDER BY 1")


@pytest.mark.matrix
@pytest.mark.spark
def test_on_an_existing_database_a_run_needs_no_table_made_by_hand(servers: tuple[Any, Any], lockstep: Any) -> None:
    source, target = servers
    source.run(
        "CREATE TABLE grown.orders (id INT AUTO_INCREMENT PRIMARY KEY, status VARCHAR(9) NOT NULL DEFAULT 'new', "
        "code VARCHAR(9) UNIQUE)",
        "INSERT INTO grown.orders VALUES (1, 'old', 'a'), (2, 'old', 'b')",
        "CREATE TABLE grown.nothing (id INT PRIMARY KEY)",
        "CREATE TABLE grown.keyless (n INT)",
    )
    lockstep.init(source, "grown", target)
    planned = lockstep("target", "create", "shop.yaml", "--dry-run").document["targets"]["shop"]
    assert {table["state"] for table in planned} == {"missing"}
    assert target.run("SHOW DATABASES LIKE 'grown'") == []
    checked = lockstep("check", "shop.yaml", code=None).document["findings"]
    assert [finding for finding in checked if finding["status"] == "fail"] == []
    assert sum("to create with the next run" in finding["what"] for finding in checked) == 3

    lockstep("run", "shop.yaml")
    assert rows(target, "grown.orders") == rows(source, "grown.orders") == [(1, "old", "a"), (2, "old", "b")]
    assert rows(target, "grown.nothing") == []

    source.run(
        "ALTER TABLE grown.orders ADD COLUMN note VARCHAR(20) NULL COMMENT 'why' AFTER status",
        "INSERT INTO grown.orders (code, note) VALUES ('c', 'it''s')",
        "UPDATE grown.orders SET code = IF(id = 1, 'b', 'x') WHERE id < 3 ORDER BY id DESC",
        "CREATE TABLE grown.later (id INT PRIMARY KEY, at DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3))",
        "INSERT INTO grown.later (id) VALUES (1), (2)",
    )
    checked = lockstep("check", "shop.yaml").document["findings"]
    assert sum("1 table to extend by columns with the next run" in finding["what"] for finding in checked) == 1
    lockstep("run", "shop.yaml")
    wanted = rows(source, "grown.orders")
    assert rows(target, "grown.orders") == wanted  # its columns are in the same order
    assert wanted[2] == (3, "new", "it's", "c")
    assert rows(target, "grown.later") == rows(source, "grown.later")
    made = lockstep("target", "create", "shop.yaml").document["targets"]["shop"]
    assert {table["state"] for table in made} == {"exists"}
    assert [table["differences"] for table in made] == [[]] * 4

    # A replay needs the staged files alone.
    file = lockstep.directory / "shop.yaml"
    file.write_text(
        file.read_text()
        + "  - {name: again, connections: [env:COPY], on_missing_table: create,\n"
        + "     tables: {'*': {database: again, no_key: rows, on_new_column: add}}}\n"
    )
    lockstep.environ["SHOP"] = "mysql://nobody:nothing@127.0.0.1:1"
    lockstep("run", "shop.yaml", "--replay", "--target", "again")
    assert rows(target, "again.orders") == wanted
    assert rows(target, "again.later") == rows(source, "grown.later")


def made_ready(lockstep: Any, number: int) -> None:
    """What the plan of a run does before Spark starts."""
    with lockstep.opened() as opened:
        planned = plan(opened, window=None, run_id=f"shop-{number}", targets=["shop"])
        assert require_any_ready(opened, planned) == {}


def written(lockstep: Any, tables: dict[str, str]) -> None:
    """As if closed ledgers counted rows that were written to these tables, by logical table."""
    with lockstep.opened() as opened:
        former = Renewal(None, LastWrite("former", 1))
        opened.meta.writes.accept("shop", {table: {name: former} for table, name in tables.items()})


def applied(lockstep: Any, number: int) -> None:
    """As if the run had written what it planned."""
    run_id = f"shop-{number}"
    with lockstep.opened() as opened:
        batches = load(opened.meta, opened.store, run_id).target("shop").batches
        opened.meta.runs.mark_applied(run_id, "shop", batches)
        opened.meta.runs.commit(run_id, "shop", batches, [], [])


def test_a_plan_makes_the_tables_and_columns_that_it_needs(mariadb: Any, mysql9: Any, lockstep: Any) -> None:
    mariadb.run("CREATE DATABASE planned", "CREATE TABLE planned.a (id INT PRIMARY KEY, s VARCHAR(9) DEFAULT 'x')")
    lockstep.init(mariadb, "planned", mysql9)
    mariadb.run("INSERT INTO planned.a VALUES (1, 'a')")
    lockstep("extract", "shop.yaml")
    made_ready(lockstep, 1)
    mysql9.run("INSERT INTO planned.a (id) VALUES (7)")
    assert rows(mysql9, "planned.a", "id, s") == [(7, "x")]
    mariadb.run(
        "ALTER TABLE planned.a ADD COLUMN n BIGINT NULL COMMENT 'why'",
        "INSERT INTO planned.a VALUES (2, 'b', 1)",
        "CREATE TABLE planned.later (id INT PRIMARY KEY)",
        "INSERT INTO planned.later VALUES (1)",
    )
    lockstep("extract", "shop.yaml")
    for number in (2, 3):
        made_ready(lockstep, number)
        assert rows(mysql9, "planned.a", "id, s, n") == [(7, "x", None)]
        assert rows(mysql9, "planned.later") == []
    # The staged definition is enough where the source does not answer.
    mysql9.run("DROP DATABASE planned")
    lockstep.environ["SHOP"] = "mysql://nobody:nothing@127.0.0.1:1"
    made_ready(lockstep, 4)
    assert rows(mysql9, "planned.a", "id, s, n") == []
    # Rows that were written under another name are not continued in a new table.
    mysql9.run("DROP TABLE planned.later")
    written(lockstep, {"planned.later": "planned.former"})
    with pytest.raises(DataAtRisk) as moved:
        made_ready(lockstep, 5)
    assert moved.value.code == "target.layout"
    assert mysql9.run("SHOW TABLES FROM planned LIKE 'later'") == []
    file = lockstep.directory / "shop.yaml"
    file.write_text(file.read_text().replace("on_missing_table: create", "on_missing_table: stop"))
    with pytest.raises(DataAtRisk) as caught:
        made_ready(lockstep, 6)
    assert {error.code for error in parts_of(caught.value)} == {"target.lost_writes", "target.table"}


def test_columns_of_a_target_follow_statements_of_the_source_whether_or_not_rows_come_after_them(
    mariadb: Any, mysql9: Any, lockstep: Any
) -> None:
    mariadb.run("CREATE DATABASE followed")
    lockstep.init(mariadb, "followed", mysql9)
    mariadb.run(
        "CREATE TABLE followed.b (code INT PRIMARY KEY, gone INT NOT NULL, old INT NOT NULL)",
        "CREATE TABLE followed.quiet (id INT PRIMARY KEY, old INT NOT NULL)",
        "INSERT INTO followed.b VALUES (1, 2, 3)",
        "INSERT INTO followed.quiet VALUES (1, 2)",
    )
    lockstep("extract", "shop.yaml")
    made_ready(lockstep, 1)
    mysql9.run("INSERT INTO followed.b VALUES (1, 2, 3)", "INSERT INTO followed.quiet VALUES (1, 2)")
    mariadb.run(
        "ALTER TABLE followed.b DROP COLUMN gone, CHANGE old new INT NOT NULL",
        "ALTER TABLE followed.b RENAME COLUMN code TO number",
        "INSERT INTO followed.b VALUES (4, 5)",
        "ALTER TABLE followed.quiet ADD COLUMN note INT NULL",
    )
    lockstep("extract", "shop.yaml")
    made_ready(lockstep, 2)
    assert rows(mysql9, "followed.quiet", "id, old, note") == [(1, 2, None)]
    assert rows(mysql9, "followed.b", "code, gone, old") == [(1, 2, 3)], "the key's new name ends the run before it"
    applied(lockstep, 2)
    # As a run leaves it that was killed amid the renames.
    mysql9.run("ALTER TABLE followed._lockstep_tombstone_b RENAME COLUMN code TO number")
    made_ready(lockstep, 3)
    mysql9.run("INSERT INTO followed.b (number, new) VALUES (4, 5)")
    assert rows(mysql9, "followed.b", "number, gone, new") == [(1, 2, 3), (4, None, 5)]
    mysql9.run("INSERT INTO followed._lockstep_tombstone_b VALUES (9, 'v')")
    assert rows(mysql9, "followed._lockstep_tombstone_b", "number") == [(9,)]
    mariadb.run("ALTER TABLE followed.quiet RENAME COLUMN old TO new, DROP COLUMN note")
    lockstep("extract", "shop.yaml")
    made_ready(lockstep, 4)
    assert rows(mysql9, "followed.quiet", "id, new, note") == [(1, 2, None)]


def test_a_run_says_why_a_table_of_its_target_cannot_be_made(mariadb: Any, mysql9: Any, lockstep: Any) -> None:
    mariadb.run("CREATE DATABASE unmade", "CREATE TABLE unmade.t (a TEXT NOT NULL, PRIMARY KEY (a(9)))")
    lockstep.init(mariadb, "unmade", mysql9)
    mariadb.run("INSERT INTO unmade.t VALUES ('a')")
    lockstep("extract", "shop.yaml")
    with pytest.raises(LockstepError) as refused:
        made_ready(lockstep, 1)
    assert refused.value.code == "target.definition"
