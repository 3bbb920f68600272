"""Two logical tables that a target's rules lead to one table: refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest


def write(lockstep: Any, rules: str) -> None:
    lockstep.write(
        "two",
        "(one|other)_db",
        routes="[]",
        targets=f"[{{name: copy, connections: [env:COPY], tables: {{{rules}}}}}]",
    )


@pytest.mark.spark
def test_two_tables_that_the_rules_make_one_are_refused(cursors: tuple[Any, Any], lockstep: Any) -> None:
    source, copy = cursors
    write(lockstep, "'*': {database: warehouse}")
    copy.execute("CREATE DATABASE warehouse")
    copy.execute("CREATE TABLE warehouse.users (id INT PRIMARY KEY, name VARCHAR(20))")
    for database in ("one_db", "other_db"):
        source.execute(f"CREATE DATABASE {database}")
        source.execute(f"CREATE TABLE {database}.users (id INT PRIMARY KEY, name VARCHAR(20))")
    lockstep("extract", "two.yaml")
    source.execute("INSERT INTO one_db.users VALUES (1, 'Ada'), (2, 'Bo')")
    checked = lockstep("check", "two.yaml", code=3)
    assert "config.table_rule" in checked.out
    refused = lockstep("run", "two.yaml", "--until", "now", code=3)  # also if it has rows of one of them alone
    assert refused.error["code"] == "config.table_rule"
    copy.execute("SELECT * FROM warehouse.users")
    assert copy.fetchall() == ()
    source.execute("INSERT INTO other_db.users VALUES (2, 'Xi')")
    rules = "'*': {database: warehouse}, other_db.users: {database: warehouse, table: others}"
    write(lockstep, rules)
    copy.execute("CREATE TABLE warehouse.others LIKE warehouse.users")
    lockstep("check", "two.yaml")
    lockstep("run", "two.yaml", "--until", "now")
    copy.execute("SELECT * FROM warehouse.users")
    assert copy.fetchall() == ((1, "Ada"), (2, "Bo"))
