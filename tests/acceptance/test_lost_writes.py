"""A target that has lost committed writes: a replica that lagged was promoted, or a backup was restored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any

import pytest

from tests.acceptance.test_cli import ORDERS, failed, make_older

LOG = "CREATE TABLE log (line VARCHAR(20), n INT)"
RULES = """targets:
  - name: copy
    connections: ["env:COPY"]
    tables: {{'{0}.orders': {{}}, '{0}.log': {{no_key: rows}}}}
"""


@pytest.fixture(params=["mariadb_target", "mysql9"])
def target(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


class Copied:
    """A pipeline with two tables, one of them without a key, and the target's database."""

    def __init__(self, source: Any, server: Any, lockstep: Any) -> None:
        self.source, self.server, self.lockstep, self.name = source, server, lockstep, source.name

    def query(self, *statements: str, server: Any = None, database: str = "") -> list[tuple[Any, ...]]:
        opened = (server or self.server).connect(database or self.name, autocommit=True)
        with opened as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall() or ()]

    def tables(self) -> list[str]:
        return [name for (name,) in self.query("SHOW TABLES")]

    def equal(self, database: str = "") -> bool:
        orders = "SELECT order_id, status, amount, at FROM orders ORDER BY order_id"
        log = "SELECT line, n FROM log ORDER BY line, n"
        return all(
            self.query(sql, database=database) == self.query(sql, server=self.source.server) for sql in (orders, log)
        )

    def run(self, *arguments: str, code: int = 0) -> Any:
        return self.lockstep("run", "shop.yaml", *arguments, code=code)

    def problems(self) -> list[str]:
        """The codes of what `status` says."""
        document = self.lockstep("status", "shop.yaml", code=None).document
        return [problem["code"] for problem in document["problems"]]

    def copy_table(self, table: str, database: str) -> None:
        """With its invisible columns, as a dump has them."""
        found = self.query(
            "SELECT COLUMN_NAME FROM information_schema.COLUMNS "
            f"WHERE TABLE_SCHEMA = '{self.name}' AND TABLE_NAME = '{table}'"
        )
        names = ", ".join(f"`{name}`" for (name,) in found)
        self.query(
            f"CREATE TABLE {database}.`{table}` LIKE `{table}`",
            f"INSERT INTO {database}.`{table}` ({names}) SELECT {names} FROM `{table}`",
        )

    @contextmanager
    def backup(self) -> Iterator[None]:
        """What the database's tables hold at the beginning of the block they hold again after it."""
        spare = f"{self.name}_backup"
        self.query(f"CREATE DATABASE {spare}")
        tables = self.tables()
        for table in tables:
            self.copy_table(table, spare)
        yield
        for table in self.tables():
            self.query(f"DROP TABLE `{table}`")
        for table in tables:
            self.query(f"RENAME TABLE {spare}.`{table}` TO `{table}`")
        self.query(f"DROP DATABASE {spare}")


@pytest.fixture
def copied(source_database: Any, target: Any, lockstep: Any) -> Copied:
    source_database.execute(ORDERS, LOG)
    made = Copied(source_database, target, lockstep)
    target.run(f"CREATE DATABASE `{made.name}`")
    made.query(ORDERS, LOG)
    file = lockstep.init(source_database.server, made.name, target)
    file.write_text(re.sub(r"(?ms)^targets:.*?(?=^\S|\Z)", RULES.format(made.name), file.read_text()))
    return made


@pytest.mark.matrix
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_target_that_lost_committed_writes_stops_the_next_run_and_a_replay_restores_them(copied: Copied) -> None:
    copied.source.execute(
        "INSERT INTO orders VALUES (1,'new',1,NULL), (2,'new',2,NULL), (3,'old',3,NULL)",
        "INSERT INTO log VALUES ('a',1), ('a',1), ('b',2)",
    )
    copied.run()
    with copied.backup():
        copied.source.execute(
            "UPDATE orders SET status='paid' WHERE order_id=1",
            "DELETE FROM orders WHERE order_id=2",
            "DELETE FROM log WHERE line='a' LIMIT 1",
            "INSERT INTO log VALUES ('c',3)",
        )
        lost = copied.run().document["run_id"]
        assert copied.equal()
    assert copied.run(code=4).error["code"] == "target.lost_writes"  # also without anything to apply
    assert "target.lost_writes" in copied.problems()
    copied.source.execute("INSERT INTO orders VALUES (4,'new',4,NULL)", "INSERT INTO log VALUES ('a',1)")
    refused = copied.run(code=4).error
    assert (refused["code"], lost in refused["what"]) == ("target.lost_writes", True)
    assert "target.lost_writes" in failed(copied.lockstep("check", "shop.yaml", code=4))
    replay = re.search(r"lockstep run shop (--replay --target copy --from [^\s`]+)", refused["remedy"])
    assert replay is not None, refused
    copied.run(*replay[1].split())
    assert copied.lockstep("check", "shop.yaml").document["ok"] is True
    copied.run()
    assert not copied.problems()
    assert copied.equal()


@pytest.mark.parametrize("target", ["mysql9"], indirect=True)
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_target_that_is_added_after_a_purge_and_filled_as_the_message_says_is_equal(copied: Copied) -> None:
    copied.source.execute(
        "INSERT INTO orders VALUES (1,'new',1,NULL), (2,'new',2,NULL)",
        "INSERT INTO log VALUES ('a',1), ('a',1), ('b',2)",
    )
    copied.run()
    staged = copied.lockstep("stage", "ls", "shop.yaml").document["batches"]
    make_older(copied.lockstep, [batch["batch"] for batch in staged])
    copied.source.execute("DELETE FROM orders WHERE order_id=1", "INSERT INTO log VALUES ('a',1), ('c',3)")
    copied.run()
    assert copied.lockstep("stage", "purge", "shop.yaml", "--older-than", "6d").document["sources"][0]["batches"]
    second = f"{copied.name}_backup"
    file = copied.lockstep.directory / "shop.yaml"
    rules = (
        RULES.format(copied.name).partition("\n")[2].replace("copy", "second").replace("{}", f"{{database: {second}}}")
    )
    rules = rules.replace("no_key: rows", f"database: {second}, no_key: rows")
    file.write_text(re.sub(r"(?m)^targets:.*\n", lambda found: found[0] + rules, file.read_text()))
    refused = copied.run(code=3).error
    assert refused["code"] == "plan.purged"
    parts = ["orders", "log", *re.findall(r"_lockstep_\w+\*?", refused["remedy"])]
    copied.query(f"CREATE DATABASE {second}")
    for table in copied.tables():
        if any(fnmatch(table, part) for part in parts):
            copied.copy_table(table, second)
    copied.source.execute("UPDATE orders SET status='paid' WHERE order_id=2", "DELETE FROM log WHERE line='b'")
    command = re.search(r"lockstep (stage purge \S+ --seeded second)", refused["remedy"])
    assert command is not None, refused
    copied.lockstep(*command[1].split())
    copied.run()
    assert copied.equal()
    assert copied.equal(second)
