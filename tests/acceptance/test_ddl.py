"""`lockstep ddl` over 64 shards, killed again and again: in the end all are defined alike."""

from __future__ import annotations

import random
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from examples.sandbox.mariadb import MariaDb
from tests.acceptance.conftest import CommandLine
from tests.lab.forked_commands import ForkedCommands

_FILE = """-- migrate:up
ALTER TABLE orders ADD COLUMN note VARCHAR(40);
ALTER TABLE orders ADD INDEX by_note (note);
-- migrate:down
ALTER TABLE orders DROP INDEX by_note;
ALTER TABLE orders DROP COLUMN note;
"""


@pytest.mark.matrix
@pytest.mark.parametrize("server", ["mariadb", "mysql9"])
def test_64_shards_are_defined_alike_after_any_kills(
    request: pytest.FixtureRequest, server: str, lockstep: CommandLine, commands: ForkedCommands, tmp_path: Path
) -> None:
    at: MariaDb = request.getfixturevalue(server)
    name = f"t_{uuid.uuid4().hex[:10]}"
    table = "(id BIGINT PRIMARY KEY, v INT)"
    at.run(f"CREATE DATABASE {name}", f"CREATE TABLE {name}.orders {table}")
    for d in range(8):
        at.run(f"CREATE DATABASE {name}_{d}", *(f"CREATE TABLE {name}_{d}.orders_{t} {table}" for t in range(8)))
    _killed_until_done(at, name, lockstep, commands, tmp_path)


def altered(at: Any, name: str) -> int:
    """How many shards have the new column."""
    sql = "SELECT COUNT(*) FROM information_schema.COLUMNS WHERE COLUMN_NAME = 'note' AND TABLE_SCHEMA LIKE "
    return int(at.run(f"{sql}'{name}\\_%'")[0][0])


def _killed_until_done(at: Any, name: str, lockstep: CommandLine, commands: ForkedCommands, folder: Path) -> None:
    rule = {"database": f"{name}_{{d}}", "table": "orders_{t}", "sharding": {"key": "id", "databases": 8, "tables": 8}}
    lockstep.write(
        "shop", name, source="connection: env:SERVER", tables={"include": [rf"{name}\.orders"]}, limits="lease_s: 5",
        targets=[{"name": "shards", "connections": ["env:SERVER"], "tables": {"orders": rule}}],
    )  # fmt: skip
    (folder / "add.sql").write_text(_FILE)
    lockstep.environ["SERVER"] = at.url
    planned = lockstep("ddl", "plan", "shop.yaml", "add.sql").document
    assert [shard["executed"] for shard in planned["tables"][0]["shards"]] == [0] * 64
    chance, direction = random.Random(name), ("run", "shop.yaml", "add.sql")
    for number, reached in enumerate(sorted(chance.sample(range(1, 48), 4))):
        arguments = ("ddl", *direction) if number == 0 else ("ddl", "resume", "shop.yaml")
        begun = commands.start(
            *arguments, "--wave", 4, directory=folder, environ=lockstep.environment, log=folder / f"{number}.log"
        )
        while altered(at, name) < reached:
            assert not begun.ended, (folder / f"{number}.log").read_text()
            time.sleep(0.01)
        begun.kill()
        assert altered(at, name) < 64
        time.sleep(5.1)  # its lease
    lockstep("ddl", *direction)
    assert lockstep("ddl", "resume", "shop.yaml", code=2).error["code"] == "usage.nothing_open"
    done = lockstep("ddl", "run", "shop.yaml", "add.sql").document
    assert done["done"]
    assert {shard["definition"] for shard in done["tables"][0]["shards"]} == {
        done["tables"][0]["shards"][0]["definition"]
    }
    rows = at.run(
        "SELECT COUNT(DISTINCT TABLE_SCHEMA, TABLE_NAME) FROM information_schema.STATISTICS WHERE "
        f"TABLE_SCHEMA LIKE '{name}\\_%' AND INDEX_NAME = 'by_note'",
    )
    assert rows[0][0] == 64
    lockstep("ddl", "run", "shop.yaml", "add.sql", "--down")
    assert lockstep("ddl", "plan", "shop.yaml", "add.sql").document["tables"][0]["shards"][63]["executed"] == 0
