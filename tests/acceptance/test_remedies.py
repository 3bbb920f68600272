"""Each remedy that is a command of Lockstep is performed as it is printed, and leads to a state without an error."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

TABLES = (
    "CREATE TABLE orders (id INT PRIMARY KEY, k INT)",
    "INSERT INTO orders VALUES (1, 1), (2, 2), (3, 3), (4, 4)",
)
COMMAND = re.compile(r"`lockstep ([^`]*)`")


class Shop:
    """A pipeline `shop` from one database to another, which nothing was done with."""

    def __init__(self, source: Any, server: Any, lockstep: Any) -> None:
        self.source, self.server, self.lockstep, self.name = source, server, lockstep, source.name
        self.file: Path = lockstep.directory / "shop.yaml"
        self.by_hand: Callable[[], object] = lambda: None
        """What the remedy says to do before its command."""

    def target(self, *statements: str) -> list[tuple[Any, ...]]:
        return list(self.server.run(*statements, database=f"{self.name}_copy"))

    def edit(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))

    def run(self) -> None:
        self.lockstep("run", "shop.yaml")

    def meta(self) -> Path:
        (found,) = self.lockstep.directory.rglob("*.db")
        return Path(found)


@pytest.fixture
def shop(source_database: Any, mariadb_target: Any, lockstep: Any) -> Shop:
    source_database.execute(*TABLES)
    made = Shop(source_database, mariadb_target, lockstep)
    mariadb_target.run(f"CREATE DATABASE {made.name}_copy")
    lockstep.init(source_database.server, made.name, mariadb_target)
    text = re.sub(r"(?ms)^targets:.*?(?=^\S|\Z)", "", made.file.read_text())
    made.file.write_text(
        f"{text}\ntargets:\n  - name: copy\n    connections: ['env:COPY']\n"
        f"    tables: {{'{made.name}.orders': {{database: {made.name}_copy, table: orders}}}}\n"
    )
    lockstep("target", "create", "shop.yaml")
    return made


Failing = tuple[Sequence[str], str, str]
"""The command that fails, its code, and a pattern of the command in its remedy that is performed."""


def nothing_run(shop: Shop) -> Failing:
    return ("verify", "shop.yaml"), "source.not_extracted", "run"


def no_evidence(shop: Shop) -> Failing:
    shop.run()
    return ("repair", "shop.yaml"), "verify.no_evidence", "verify"


def paused(shop: Shop) -> Failing:
    shop.run()
    shop.lockstep("snapshot", "shop.yaml", "--pause")
    return ("snapshot", "shop.yaml", f"{shop.name}.orders"), "snapshot.paused", "snapshot"


def purged(shop: Shop) -> Failing:
    shop.run()
    shop.source.execute("INSERT INTO orders VALUES (5, 5)", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    with shop.source.server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        newest = cursor.fetchone()[0]
        cursor.execute("SHOW BINARY LOGS")
        while cursor.fetchone()[0] != newest:
            cursor.execute(f"PURGE BINARY LOGS TO '{newest}'")
            cursor.execute("SHOW BINARY LOGS")
    return ("run", "shop.yaml"), "source.log_lost", "extract"


def no_target_table(shop: Shop) -> Failing:
    shop.target("DROP TABLE orders")
    return ("run", "shop.yaml"), "target.table", "target create"


def rows_differ(shop: Shop) -> Failing:
    shop.run()
    shop.target("UPDATE orders SET k = 99 WHERE id = 2")
    return ("verify", "shop.yaml"), "verify.differs", "repair"


def meta_lost(shop: Shop) -> Failing:
    shop.run()
    for file in shop.meta().parent.glob(f"{shop.meta().name}*"):
        file.unlink()
    return ("run", "shop.yaml"), "meta.behind", "meta rebuild"


def unlogged(shop: Shop) -> Failing:
    shop.run()
    shop.edit("on_unlogged_change: resync", "on_unlogged_change: stop")
    shop.source.execute("ALTER TABLE orders MODIFY k INT NOT NULL DEFAULT 5")
    return ("run", "shop.yaml"), "source.unlogged_change", "extract"


def writes_lost(shop: Shop) -> Failing:
    shop.run()
    shop.source.execute("INSERT INTO orders VALUES (5, 5)")
    shop.run()
    shop.target("DELETE FROM orders WHERE id = 5", "DELETE FROM _lockstep_ledger ORDER BY number DESC LIMIT 1")
    shop.source.execute("INSERT INTO orders VALUES (6, 6)")
    return ("run", "shop.yaml"), "target.lost_writes", "run"


def sharded_anew(shop: Shop) -> Failing:
    shop.run()
    shop.edit("table: orders}", "table: orders, sharding: {key: id, databases: 1, tables: 1}}")
    shop.source.execute("UPDATE orders SET k = 10 WHERE id IN (1, 2)")
    return ("run", "shop.yaml"), "target.layout", "target layout"


def renamed_at_the_target(shop: Shop) -> Failing:
    shop.run()
    names = [str(name) for (name,) in shop.target("SHOW TABLES") if "orders" in name]
    shop.target(*(f"RENAME TABLE {name} TO {name.replace('orders', 'sales')}" for name in names))
    shop.edit("table: orders}", "table: sales}")
    shop.source.execute("UPDATE orders SET k = 10 WHERE id IN (1, 2)")
    return ("run", "shop.yaml"), "target.lost_writes", "meta accept"


def rejected(shop: Shop) -> Failing:
    shop.edit("table: orders}", "table: orders, on_row_error: quarantine}")
    shop.target("ALTER TABLE orders ADD CONSTRAINT few CHECK (k < 3)")
    shop.run()
    shop.by_hand = lambda: shop.target("ALTER TABLE orders DROP CONSTRAINT few")
    return ("status", "shop.yaml"), "target.row_error", "run"


def meta_damaged(shop: Shop) -> Failing:
    shop.run()
    for file in shop.meta().parent.glob(f"{shop.meta().name}-*"):
        file.unlink()
    content = shop.meta().read_bytes()
    shop.meta().write_bytes(content[:4096] + bytes(len(content) - 4096))
    shop.by_hand = lambda: shop.meta().rename(shop.lockstep.directory / "damaged")
    return ("run", "shop.yaml"), "meta.damaged", "meta rebuild"


CASES = (
    purged, no_target_table, meta_lost,
    *(pytest.param(case, marks=pytest.mark.matrix) for case in (
        nothing_run, no_evidence, paused, rows_differ, unlogged,
        writes_lost, sharded_anew, renamed_at_the_target, rejected, meta_damaged,
    )),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_printed_remedy_is_performed_and_the_command_succeeds(shop: Shop, case: Callable[[Shop], Failing]) -> None:
    arguments, code, wanted = case(shop)
    done = shop.lockstep(*arguments, code=None)
    error = done.document["problems"][0] if arguments[0] == "status" else done.error
    assert (done.code != 0, error["code"]) == (True, code), error
    remedy = error["remedy"]
    (command, *_) = [printed for printed in COMMAND.findall(remedy) if printed.startswith(f"{wanted} ")] or [remedy]
    shop.by_hand()
    shop.lockstep(*shlex.split(command))
    shop.lockstep(*arguments)
    shop.run()
    shop.lockstep("verify", "shop.yaml")
    shop.lockstep("status", "shop.yaml")
