"""A source whose foreign keys change rows that it does not log, read by an account that may only SELECT."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.databases import drop_database

pytestmark = pytest.mark.spark
TARGETS = """[{{name: copy, connections: [env:TARGET], on_missing_table: create,
  tables: {{'*': {{database: {name}, table: '{{logical}}'}}}}}}]"""


@pytest.fixture
def name(lockstep: Any, mariadb: Any, mariadb_target: Any) -> Iterator[str]:
    found = f"cascade_{uuid.uuid4().hex[:8]}"
    mariadb.run(
        f"CREATE DATABASE {found}",
        f"CREATE TABLE {found}.orders (id INT PRIMARY KEY)",
        f"CREATE TABLE {found}.items (id INT PRIMARY KEY, order_id INT, "
        "FOREIGN KEY (order_id) REFERENCES orders (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        f"INSERT INTO {found}.orders VALUES (1), (2), (3)",
        f"INSERT INTO {found}.items VALUES (1, 1), (2, 2), (3, 2), (4, 3)",
        f"CREATE USER {found} IDENTIFIED BY 'Reader-1x'",
        f"GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO {found}",
        f"GRANT SELECT ON {found}.* TO {found}",
    )
    mariadb_target.run(f"CREATE DATABASE {found}")
    lockstep.environ |= {
        "SHOP": f"mysql://{found}:Reader-1x@{mariadb.host}:{mariadb.port}", "TARGET": mariadb_target.url,
    }  # fmt: skip
    yield found
    mariadb.run(f"DROP USER {found}")
    for server in (mariadb, mariadb_target):
        drop_database(server, found)


def write(lockstep: Any, name: str, tables: str, policy: str) -> None:
    lockstep.write(
        "shop",
        name,
        tables=rf"include: ['{name}\.({tables})'], on_unlogged_change: {policy}",
        targets=TARGETS.format(name=name),
        snapshot="mode: initial",
    )


@pytest.mark.timeout(600)
def test_rows_that_go_with_their_parents_go_at_the_target_with_the_next_run(
    lockstep: Any, mariadb: Any, mariadb_target: Any, name: str
) -> None:
    def items(server: Any) -> list[tuple[int, int]]:
        return server.run("SELECT id, order_id FROM items ORDER BY 1", database=name)

    write(lockstep, name, "orders|items", "stop")
    refused = json.loads(lockstep("extract", "shop.yaml", code=3).out)["error"]
    assert (refused["code"], "resync" in refused["remedy"]) == ("source.unlogged_cascades", True)
    write(lockstep, name, "orders|items", "resync")
    lockstep("run", "shop.yaml")
    mariadb.run(f"DELETE FROM {name}.orders WHERE id = 2", f"UPDATE {name}.orders SET id = 9 WHERE id = 3")
    lockstep("extract", "shop.yaml")
    assert "by a foreign key" in lockstep("status", "shop.yaml").out
    lockstep("run", "shop.yaml")
    assert items(mariadb_target) == items(mariadb) == [(1, 1), (4, 9)]
    lockstep("verify", "shop.yaml")
    assert "by a foreign key" not in lockstep("status", "shop.yaml").out
