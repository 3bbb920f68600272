"""Values of unique keys in two shards, on real servers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from cdc_core.config import Target
from cdc_core.targets.tables.auto_increment import CheckedKey, check_ids, meeting_counters


class Shards:
    """Four shards, by user, of a table whose other keys do not contain the user."""

    def __init__(self, servers: list[Any], name: str) -> None:
        self.servers, self.name = servers, name
        self.environ = {f"S{number}": server.url for number, server in enumerate(servers)}

    @property
    def target(self) -> Target:
        rule = {
            "database": f"{self.name}_{{d}}",
            "table": "t_{t}",
            "sharding": {"key": "user", "databases": 2, "tables": 2},
        }
        connections = [f"env:S{number}" for number in range(len(self.servers))]
        return Target.model_validate({"name": "t", "connections": connections, "tables": {"t": rule}})

    def execute(self, shard: int, sql: str) -> None:
        database, table = divmod(shard, 2)
        with self.servers[database].connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(sql.format(f"`{self.name}_{database}`.t_{table}"))

    def checked(self, **options: Any) -> dict[tuple[str, ...], CheckedKey]:
        return {one.key: one for one in check_ids(self.target, "t", self.environ, **options)}

    def places(self) -> list[tuple[str, str, str]]:
        return [(f"env:S{d}", f"{self.name}_{d}", f"t_{t}") for d in range(2) for t in range(2)]


@pytest.fixture
def shards(mysql9: Any, mariadb_target: Any) -> Iterator[Shards]:
    """Two of them on a MySQL, two on a MariaDB."""
    made = Shards([mysql9, mariadb_target], f"ids_{uuid.uuid4().hex[:8]}")
    for number, server in enumerate(made.servers):
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {made.name}_{number}")
    for shard in range(4):
        made.execute(
            shard,
            "CREATE TABLE {} (id BIGINT UNSIGNED PRIMARY KEY, user INT NOT NULL, b INT, "
            "mail VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, raw VARBINARY(9), "
            "d DECIMAL(9,2), UNIQUE (mail), UNIQUE (raw, b), UNIQUE (user, b), UNIQUE (d, b))",
        )
        for n in range(50):
            key = 4 * n + shard
            made.execute(shard, f"INSERT INTO {{}} VALUES ({key}, {shard}, {n}, 'm{key}', 'r{key}', {key}.5)")
    yield made
    for number, server in enumerate(made.servers):
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {made.name}_{number}")


def test_keys_without_the_shard_key_are_compared_over_all_shards(shards: Shards) -> None:
    found = shards.checked()
    assert {key: (one.rows, one.found) for key, one in found.items()} == {
        ("id",): (200, 0),
        ("mail",): (200, 0),
        ("raw", "b"): (200, 0),
        ("d", "b"): (200, 0),
    }


@pytest.mark.parametrize("at_once", [1_000_000, 70])
def test_values_that_two_shards_have_are_listed(shards: Shards, at_once: int) -> None:
    shards.execute(0, "INSERT INTO {} VALUES (18446744073709551615, 0, 1001, 'Same', NULL, 1.10)")
    shards.execute(3, "INSERT INTO {} VALUES (18446744073709551615, 3, 1001, 'sAME', NULL, 1.1)")
    shards.execute(2, "INSERT INTO {} VALUES (1, 2, 1002, 'other', X'00ff', NULL)")
    shards.execute(1, "INSERT INTO {} VALUES (1000, 1, 1002, 'another', X'00ff', NULL)")
    found = shards.checked(at_once=at_once)
    assert {key: one.found for key, one in found.items()} == {
        ("id",): 2, ("mail",): 1, ("raw", "b"): 1, ("d", "b"): 1
    }  # fmt: skip
    shown = {one.value[0]: one.tables for one in found[("id",)].shown}
    assert shown == {
        "18446744073709551615": (f"{shards.name}_0.t_0", f"{shards.name}_1.t_1"),
        "1": (f"{shards.name}_0.t_1", f"{shards.name}_1.t_0"),
    }
    (mail,) = found[("mail",)].shown
    assert mail.value[0].lower() == "same"


def test_counters_meet_unless_the_servers_keep_them_apart(shards: Shards) -> None:
    assert meeting_counters(shards.places(), shards.environ) == ()
    for shard in range(4):
        shards.execute(shard, "ALTER TABLE {} MODIFY id BIGINT UNSIGNED AUTO_INCREMENT")
    everyone = [".".join(place[1:]) for place in shards.places()]
    assert sorted(meeting_counters(shards.places(), shards.environ)) == sorted(everyone)
    one_each = [shards.places()[0], shards.places()[2]]
    assert len(meeting_counters(one_each, shards.environ)) == 2
    before = []
    try:
        for number, server in enumerate(shards.servers):
            with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT @@GLOBAL.auto_increment_increment, @@GLOBAL.auto_increment_offset")
                before.append(cursor.fetchone())
                cursor.execute("SET GLOBAL auto_increment_increment = 2")
                cursor.execute(f"SET GLOBAL auto_increment_offset = {number + 1}")
        assert meeting_counters(one_each, shards.environ) == ()
        assert len(meeting_counters(shards.places(), shards.environ)) == 4  # two on each server
    finally:
        for server, (step, offset) in zip(shards.servers, before, strict=True):
            with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
                cursor.execute(f"SET GLOBAL auto_increment_increment = {step}, GLOBAL auto_increment_offset = {offset}")
