"""Tables whose primary key changes at the source: a run ends before the change, the errors of the next one say what to
do with the target's table, and their statements, executed as they are, end them. A copy then makes both equal, and the
stage has the whole table again. One such table is in the sample of test_altered_tables."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.acceptance.test_altered_tables import columns, staged_rows

CHANGES = {
    "wider": ("PRIMARY KEY (id)", "DROP PRIMARY KEY, ADD PRIMARY KEY (id, k)"),
    "other": ("PRIMARY KEY (id)", "DROP PRIMARY KEY, ADD PRIMARY KEY (k)"),
    "narrower": ("PRIMARY KEY (id, k)", "DROP PRIMARY KEY, ADD PRIMARY KEY (id)"),
    "lost": ("PRIMARY KEY (id)", "DROP PRIMARY KEY"),
    "gained": ("INDEX (id)", "ADD PRIMARY KEY (id)"),
    "counted": ("PRIMARY KEY (id)", "ADD n INT NOT NULL AUTO_INCREMENT, DROP PRIMARY KEY, ADD PRIMARY KEY (n)"),
    "replaced": ("PRIMARY KEY (id)", "DROP PRIMARY KEY, DROP id, ADD PRIMARY KEY (k)"),
}
"""By table: its key, and what happens to it."""


def follow(lockstep: Any, target: Any, error: dict[str, Any]) -> None:
    """Does what an error says: the statements at the target, or the change of the pipeline file."""
    text = error["remedy"]
    statements = re.findall(r"(?:ALTER|DROP|TRUNCATE) TABLE .*?(?=; | \([a-z.]+[a-z_]\)|$)", text)
    if rule := re.search(r"set no_key: rows", text):
        assert not statements, rule
        file = lockstep.directory / "shop.yaml"
        changed = file.read_text().replace("{on_new_column", "{no_key: rows, on_new_column")
        file.write_text(changed.replace("no_key: rows, no_key: rows", "no_key: rows"))
        return
    assert statements, error
    for statement in statements:
        target.run(statement)


def runs(lockstep: Any, target: Any, *options: str) -> list[str]:
    """Runs until nothing is left, and follows the errors; their codes."""
    codes = []
    while len(codes) < 20:
        done = lockstep("run", "shop.yaml", *options, code=None)
        if done.code:
            codes.append(done.error["code"])
            follow(lockstep, target, done.error)
        elif not done.document["batches"]:
            break
    return codes


@pytest.mark.parametrize(
    ("pair", "staged"),
    [
        ("mariadb mysql9", True), ("mariadb mysql9", False),
        ("mysql9 mariadb_target", True), ("mysql9 mariadb_target", False),
    ],
)  # fmt: skip
@pytest.mark.matrix
def test_a_table_with_another_primary_key_is_followed_once_the_remedies_were_executed(
    pair: str, staged: bool, request: pytest.FixtureRequest, lockstep: Any
) -> None:
    """staged: what was changed before and after the ALTER is applied before the copy, as in Airflow."""
    source, target = (request.getfixturevalue(name) for name in pair.split())
    source.run("CREATE DATABASE altered CHARACTER SET utf8mb4")
    for table, (key, _) in CHANGES.items():
        source.run(
            f"CREATE TABLE altered.{table} (id INT NOT NULL, k INT NOT NULL, v INT NOT NULL, {key})",
            f"INSERT INTO altered.{table} VALUES (1, 11, 1), (2, 12, 2), (3, 13, 3), (4, 14, 4)",
        )
    lockstep.init(source, "altered", target)
    lockstep("run", "shop.yaml")
    for table, (_, clauses) in CHANGES.items():
        source.run(
            f"INSERT INTO altered.{table} VALUES (5, 15, 5)",
            f"UPDATE altered.{table} SET v = v + 10 WHERE k IN (12, 13)",
            f"DELETE FROM altered.{table} WHERE k = 11",
            f"ALTER TABLE altered.{table} {clauses}",
            f"UPDATE altered.{table} SET k = 33 WHERE k = 13",
            f"DELETE FROM altered.{table} WHERE k = 14",
        )
    if staged:
        lockstep("extract", "shop.yaml")
        assert runs(lockstep, target, "--staged")
    runs(lockstep, target)
    source.run("INSERT INTO altered.wider VALUES (2, 99, 9)")  # what only the new key allows
    runs(lockstep, target)
    for table in CHANGES:
        names = ", ".join(columns(source, table))
        chosen = f"SELECT {names} FROM altered.{table} ORDER BY k"
        rows = source.run(chosen)
        assert target.run(chosen) == rows, table
        assert staged_rows(lockstep, source, table) == sorted(rows), table
    lockstep("verify", "shop.yaml")


UNLIKE = {
    "unique": ("id INT NOT NULL, k INT", "ADD UNIQUE (id)", "(id, k) VALUES (5, 5)"),
    "another": (
        "k INT NOT NULL, id INT NOT NULL, UNIQUE u (k)",
        "DROP INDEX u, ADD UNIQUE (id)",
        "(id, k) VALUES (5, 5)",
    ),
    "rest": ("id INT, k INT, PRIMARY KEY (id, k)", "DROP COLUMN k", "(id) VALUES (5)"),
}  # fmt: skip
"""By table: its columns, a statement after which its key takes rows for one that it told apart before, and a row after
it. Only MySQL leaves the rest of a primary key."""


def test_no_state_is_folded_by_a_key_that_came_later(mysql9: Any, lockstep: Any) -> None:
    source = mysql9
    source.run(
        "CREATE DATABASE altered", *(f"CREATE TABLE altered.{table} ({made})" for table, (made, *_) in UNLIKE.items())
    )
    lockstep.init(source, "altered")
    lockstep("extract", "shop.yaml")
    for table, (_, clauses, row) in UNLIKE.items():
        source.run(
            f"INSERT INTO altered.{table} (id, k) VALUES (1, 1), (1, 2)", f"DELETE FROM altered.{table} WHERE k = 2",
            f"ALTER TABLE altered.{table} {clauses}", f"INSERT INTO altered.{table} {row}",
        )  # fmt: skip
    lockstep("extract", "shop.yaml")
    file = lockstep.directory / "refused.parquet"
    for table in UNLIKE:
        name = f"altered.{table}"
        assert lockstep("stage", "export", "shop.yaml", name, "-o", file, code=3).error["code"] == "stage.key"
        asked = lockstep("stage", "sql", "shop.yaml", f'SELECT * FROM "{name}"', code=3)
        assert (asked.error["code"], "has changed" in asked.error["what"]) == ("stage.key", True)
        counted = lockstep("stage", "sql", "shop.yaml", f'SELECT count(*) FROM "{name}_changes"')
        assert counted.document["rows"] == [[4]]
    lockstep("snapshot", "shop.yaml", *(f"altered.{table}" for table in UNLIKE))  # what the errors say
    for table in UNLIKE:
        rows = sorted(source.run(f"SELECT * FROM altered.{table}"))
        assert staged_rows(lockstep, source, table) == rows
        query = f'SELECT {", ".join(columns(source, table))} FROM "altered.{table}" ORDER BY 1'
        shown = lockstep("stage", "sql", "shop.yaml", query).document["rows"]
        assert sorted(map(tuple, shown)) == rows
