"""Bytes that are not text of their column's character set: no target gets another text for them."""

from __future__ import annotations

from typing import Any

import pytest


def write(lockstep: Any, rule: str) -> None:
    tables = {"*": {"database": "odd_copy", "on_row_error": rule}}
    lockstep.write("odd", "odd", targets=[{"name": "copy", "connections": ["env:COPY"], "tables": tables}])


@pytest.mark.spark
def test_bytes_that_are_not_text_reach_no_target_as_their_digits(cursors: tuple[Any, Any], lockstep: Any) -> None:
    source, copy = cursors
    write(lockstep, "stop")
    table = "t (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET greek)"
    source.execute("CREATE DATABASE odd")
    copy.execute("CREATE DATABASE odd_copy")
    source.execute(f"CREATE TABLE odd.{table}")
    copy.execute(f"CREATE TABLE odd_copy.{table}")
    lockstep("extract", "odd.yaml")
    source.execute("INSERT INTO odd.t VALUES (1, X'D2'), (2, '0xd2'), (3, X'E1')")
    stopped = lockstep("run", "odd.yaml", "--until", "now", code=4)
    assert stopped.error["code"] == "target.row_error"
    assert "v" in stopped.error["what"]
    copy.execute("SELECT COUNT(*) FROM odd_copy.t")
    assert copy.fetchall() == ((0,),)
    write(lockstep, "quarantine")
    (ledger,) = lockstep("run", "odd.yaml", "--until", "now").document["ledgers"]
    assert (ledger["written"], ledger["quarantined"]) == (2, 1)
    assert lockstep("verify", "odd.yaml", code=4).document["tables"][0]["findings"]
    source.execute("UPDATE odd.t SET v = 'a' WHERE id = 1")
    lockstep("run", "odd.yaml", "--until", "now")
    copy.execute("SELECT id, HEX(v) FROM odd_copy.t ORDER BY id")
    assert copy.fetchall() == ((1, "61"), (2, "30786432"), (3, "E1"))
    copy.execute("UPDATE odd_copy.t SET v = X'D2' WHERE id = 2")
    assert lockstep("verify", "odd.yaml", code=4).document["equal"] is False
