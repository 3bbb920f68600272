"""Rows that were there before the pipeline, copied by `lockstep snapshot` beside writes that go on."""

from __future__ import annotations

from typing import Any

import pytest


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
    lockstep.environ["SHOP"] = source_database.server.url
    lockstep("init", "shop", "--source", "env:SHOP", "--include", rf"{name}\..*")
    lockstep("extract", "shop.yaml")
    source_database.execute(
        "UPDATE orders SET status = 'new' WHERE order_id = 2", "DELETE FROM orders WHERE order_id = 3",
        "INSERT INTO orders VALUES (4, 'new')",
    )  # fmt: skip
    planned = lockstep("snapshot", "shop.yaml", "--dry-run").document
    assert [one["table"] for one in planned["tables"]] == [f"{name}.orders"]
    done = lockstep("snapshot", "shop.yaml").document["sources"][0]
    assert (done["tables"], done["rows"], done["waiting_for"]) == ([f"{name}.orders"], 3, None)
    assert state(lockstep, f"{name}.orders") == [[1, "old"], [2, "new"], [4, "new"]]
    assert lockstep("snapshot", "shop.yaml").document["sources"] == []
    source_database.execute("DELETE FROM orders WHERE order_id = 1")
    lockstep("extract", "shop.yaml")
    assert state(lockstep, f"{name}.orders") == [[2, "new"], [4, "new"]]
    assert lockstep("stage", "verify", "shop.yaml").document["problems"] == []
    assert lockstep("status", "shop.yaml").document["problems"] == []
