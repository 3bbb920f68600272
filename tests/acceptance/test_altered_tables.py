"""Tables whose definition changes at the source: the tables that Lockstep has made at a target follow by themselves, or
the run ends in errors whose statements, executed as they are, end them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pymysql
import pytest

ALONE = {
    "with_default": "ADD COLUMN c INT NOT NULL DEFAULT 5",
    "without_default": "ADD COLUMN c INT NOT NULL",
    "a_text": "ADD COLUMN c TEXT NOT NULL",
    "an_enum": "ADD COLUMN c ENUM('a', 'b') NOT NULL",
    "nullable": "ADD COLUMN c INT NULL DEFAULT 5",
    "now": "ADD COLUMN c DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)",
    "expression": "ADD COLUMN c VARCHAR(40) NOT NULL DEFAULT (CONCAT('x', 'y'))",
    "at_first": "ADD COLUMN c INT NOT NULL DEFAULT 5 FIRST",
    "stored": "ADD COLUMN c INT AS (v + 1) STORED",
    "computed": "ADD COLUMN c INT AS (v + 1) VIRTUAL",
    "unique_key": "ADD UNIQUE (s)",
    "unique_column": "ADD COLUMN c INT NULL UNIQUE",
    "narrower": "MODIFY s VARCHAR(5)",
    "allows_null": "MODIFY v INT NULL",
    "forbids_null": "MODIFY s VARCHAR(20) NOT NULL",
    "reordered": "MODIFY e ENUM('y', 'x') NOT NULL",
    "renamed": "RENAME COLUMN s TO t",
    "changed": "CHANGE s t VARCHAR(20) NOT NULL DEFAULT 'd'",
    "dropped": "DROP COLUMN s",
    "charset": "CONVERT TO CHARACTER SET latin1",
    "two_at_once": "ADD COLUMN c INT NOT NULL DEFAULT 5, DROP COLUMN s",
}
"""By table, changes that a target follows without a person."""
STATEMENTS = {
    "swapped": "RENAME COLUMN v TO e, RENAME COLUMN e TO v",
    "wider": "MODIFY v BIGINT NOT NULL",
    "longer": "MODIFY s TEXT",
    "labels": "MODIFY e ENUM('x', 'y', 'z') NOT NULL",
    "renamed_not_null": "RENAME COLUMN v TO w",
    "dropped_not_null": "DROP COLUMN v",
    "added_again": "DROP COLUMN s, ADD COLUMN s INT NOT NULL DEFAULT 3",
    "other_type": "MODIFY v VARCHAR(20) NOT NULL",
    "wider_key": "DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)",
}
"""Changes for which a person must alter the target's tables: nothing that exists there is altered otherwise."""

SAMPLE = frozenset(
    {"with_default", "without_default", "computed", "other_type", "dropped_not_null", "wider_key", "renamed_not_null"}
)
"""Of both kinds, altered in one run: `make test` has no time for more."""


def columns(server: Any, table: str) -> list[str]:
    return [row[0] for row in server.run(f"SHOW COLUMNS FROM altered.{table}")]


def staged_rows(lockstep: Any, source: Any, table: str) -> list[tuple[Any, ...]]:
    """The stage's state of a table, whatever its columns were before."""
    rows = lockstep.exported(f"altered.{table}").select(columns(source, table)).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def named_in(error: dict[str, Any], tables: Iterable[str]) -> set[str]:
    """The tables that an error names."""
    text = f"{error['what']} {error['where']} {error['remedy']}"
    return {table for table in tables if re.search(rf"altered`?\.`?{table}\b", text)}


def follow(server: Any, remedy: str) -> None:
    """Executes the first statement of each remedy that the server takes."""
    for step in re.split(r"(?:^|; )\(\d+\) ", remedy):
        for statement in re.findall(r"(?:ALTER|DROP) TABLE .*?(?=\. If|, then|; | \([a-z.]+[a-z_]\)|$)", step):
            try:
                server.run(statement)
                break
            except pymysql.err.MySQLError:
                pass


@pytest.mark.parametrize(
    ("pair", "staged", "only"),
    [
        ("mariadb mysql9", True, SAMPLE),
        pytest.param("mariadb mysql9", True, None, marks=pytest.mark.matrix),
        pytest.param("mariadb mysql9", False, None, marks=pytest.mark.matrix),
        pytest.param("mysql9 mariadb_target", True, None, marks=pytest.mark.matrix),
        pytest.param("mysql9 mariadb_target", False, None, marks=pytest.mark.matrix),
    ],
)
def test_tables_that_are_altered_are_followed_by_their_targets_or_the_remedies_of_the_errors_work(
    pair: str, staged: bool, only: frozenset[str] | None, request: pytest.FixtureRequest, lockstep: Any
) -> None:
    """staged: what was changed before the ALTER is applied before the copy that brings its values, as in Airflow."""
    source, target = (request.getfixturevalue(name) for name in pair.split())
    alone, by_hand = (
        {table: clauses for table, clauses in group.items() if only is None or table in only}
        for group in (ALONE, STATEMENTS)
    )
    tables = alone | by_hand
    source.run("CREATE DATABASE altered CHARACTER SET utf8mb4")
    for table in tables:
        source.run(
            f"CREATE TABLE altered.{table} (id INT PRIMARY KEY, v INT NOT NULL, s VARCHAR(20) NULL DEFAULT 's', "
            "e ENUM('x', 'y') NOT NULL DEFAULT 'x')",
            f"INSERT INTO altered.{table} VALUES (1, 1, 'a', 'x'), (2, 2, 'b', 'y'), (3, 3, 'c', 'x')",
            f"INSERT INTO altered.{table} (id, v) VALUES (4, 4)",
        )
    lockstep.init(source, "altered", target)
    lockstep("run", "shop.yaml")
    for group in (alone, by_hand) if only is None else (tables,):
        for table, clauses in group.items():
            source.run(
                f"INSERT INTO altered.{table} VALUES (5, 5, 'e', 'y')",
                f"UPDATE altered.{table} SET v = v + 10 WHERE id IN (2, 3)",
                f"ALTER TABLE altered.{table} {clauses}",
                f"UPDATE altered.{table} SET id = 13 WHERE id = 3",
                f"DELETE FROM altered.{table} WHERE id = 4",
            )
        if "wider_key" in group:  # what only the new key allows
            source.run("INSERT INTO altered.wider_key VALUES (2, 99, 'w', 'y')")
        options = ("--staged",) if staged else ()
        if staged:
            lockstep("extract", "shop.yaml")
        codes = []
        applied = 0
        while applied < 6:  # a run ends where a type changes
            done = lockstep("run", "shop.yaml", *options, code=None)
            if done.code:
                codes.append(done.error["code"])
                named = named_in(done.error, tables)
                assert named, done.error
                assert named <= set(by_hand), done.error
                assert len(codes) < 8, done.error
                follow(target, done.error["remedy"])
            elif not done.document["batches"]:
                break
            else:
                applied += 1
        assert bool(codes) == any(table in by_hand for table in group)
        while lockstep("run", "shop.yaml").document["batches"]:
            pass
    for table in tables:
        names = [column for column in columns(source, table) if column in columns(target, table)]
        assert names == columns(source, table) or table in ("stored", "computed")
        chosen = f"SELECT {', '.join(names)} FROM altered.{table} ORDER BY id"
        assert target.run(chosen) == source.run(chosen), table
    for table in by_hand:
        assert staged_rows(lockstep, source, table) == source.run(f"SELECT * FROM altered.{table} ORDER BY id")
    lockstep("verify", "shop.yaml")
    lockstep("status", "shop.yaml")


def test_a_decimal_shard_key_that_gets_more_digits_leaves_each_row_in_the_shard_that_the_target_computes(
    mysql9: Any, mariadb_target: Any, lockstep: Any
) -> None:
    lockstep.environ |= {"SHOP": mysql9.url, "COPY": mariadb_target.url}
    rule = {"database": "altered", "table": "{table}_{t}", "sharding": {"key": "k", "function": "hash", "tables": 4}}
    lockstep.write(
        "prices", "altered", tables="on_unlogged_change: record", routes="[]",
        targets=[{"name": "shards", "connections": ["env:COPY"], "tables": {"*": rule}}],
    )  # fmt: skip
    keys = {"altered": [n / 4 for n in range(20)], "tiny": [f"{n}e-8" for n in range(20)]}
    for server in (mysql9, mariadb_target):
        server.run("CREATE DATABASE altered")
    for table, kind in (("altered", "DECIMAL(10,2)"), ("tiny", "DECIMAL(12,8)")):
        mysql9.run(f"CREATE TABLE altered.{table} (k {kind} PRIMARY KEY, n INT)")
        there = kind if table == "tiny" else "DECIMAL(12,4)"
        mariadb_target.run(
            *(f"CREATE TABLE altered.{table}_{t} (k {there} PRIMARY KEY, n INT)" for t in range(4)),
        )
    lockstep("extract", "prices.yaml")  # begins here
    for table, values in keys.items():
        rows = ", ".join(f"({value}, 1)" for value in values)
        mysql9.run(f"INSERT INTO altered.{table} VALUES {rows}")
    lockstep("run", "prices.yaml")
    mysql9.run("ALTER TABLE altered.altered MODIFY k DECIMAL(12,4)", "UPDATE altered.altered SET n = 2",
               "UPDATE altered.tiny SET n = 2",
    )  # fmt: skip
    lockstep("run", "prices.yaml")
    for table, values in keys.items():
        found = [
            (k, n, shard == t)
            for t in range(4)
            for k, n, shard in mariadb_target.run(f"SELECT k, n, CRC32(k) % 4 FROM altered.{table}_{t}")
        ]
        assert len(found) == len(values), "a row is in two shards"
        assert sorted(found) == mysql9.run(f"SELECT k, n, TRUE FROM altered.{table} ORDER BY k")
    assert lockstep("verify", "prices.yaml").document["equal"] is True
