"""A source whose log is purged or reset: what was not read is given up, and every table is copied again."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

import pytest

from examples.sandbox.mariadb import MariaDb
from tests.acceptance.moving_shop import REST, TABLES, Shop, shop
from tests.acceptance.test_cutover import FROM_MARIADB


@FROM_MARIADB
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lost", [pytest.param("reset"), pytest.param("purged", marks=pytest.mark.matrix)])
def test_what_a_log_has_lost_is_given_up_and_every_table_is_copied_again(
    lockstep: Any, servers: tuple[Any, Any], lost: str
) -> None:
    with shop(lockstep, *servers) as made:
        items, orders, gone = (f"{made.name}.{table}" for table in ("items", "orders", "gone"))
        begin(made, f"CREATE TABLE {gone} (id INT PRIMARY KEY, n INT)", f"INSERT INTO {items} VALUES (5, 5), (6, 6)")
        lockstep("run", "shop.yaml")
        assert made.new("items") == REST | {5: 5, 6: 6}

        made.source.run(f"UPDATE {items} SET n = 50 WHERE id = 5", "DELETE FROM bare.bare LIMIT 1")
        if lost == "reset":
            made.source.run(reset(made.source))
        else:
            made.until(lambda: purged(made.source))
        made.source.run(f"DELETE FROM {items} WHERE id = 6", f"DROP TABLE {gone}")
        place = reached(made)
        error = failure(lockstep("run", "shop.yaml", code=4))
        assert error["code"] == {"reset": "source.other_log", "purged": "source.log_lost"}[lost]
        assert f"`lockstep extract shop.yaml --source {made.name} --abandon {place}`" in error["remedy"]

        # Only what could not be read is given up, and once.
        error = failure(lockstep("extract", "shop.yaml", "--abandon", "binlog.000001:4", code=2))
        assert (error["code"], place in error["what"]) == ("usage.argument", True)
        assert reached(made) == place
        for _ in range(2):
            lockstep("extract", "shop.yaml", "--abandon", place)
            assert source_of(made)["position"]["timeline"] == 1
        assert failure(lockstep("extract", "shop.yaml", "--abandon", "binlog.000001:4", code=2))
        waiting = {copy["table"] for copy in source_of(made)["copies"] if copy["state"] == "pending"}
        assert waiting == {items, orders, "bare.bare"}
        error = failure(lockstep("stage", "export", "shop.yaml", "items", "-o", made.folder / "items.parquet", code=3))
        assert (error["code"], "were given up" in error["what"]) == ("stage.partial", True)

        path = made.folder / "shop.yaml"
        path.write_text(path.read_text().replace("mode: initial", "mode: none"))
        made.source.run(f"UPDATE {items} SET n = 78 WHERE id = 1000", f"INSERT INTO {orders} VALUES (9, 9)")
        lockstep("run", "shop.yaml")
        require_equal(made)
        made.source.run(f"DELETE FROM {items} WHERE id = 5", "INSERT INTO bare.bare VALUES (7)")
        lockstep("run", "shop.yaml")
        require_equal(made)
        lockstep("stage", "verify", "shop.yaml")
        lockstep("verify", "shop.yaml")


@pytest.mark.matrix
@FROM_MARIADB
@pytest.mark.timeout(900)
def test_a_stage_that_is_started_over_with_a_log_that_was_reset_does_not_pass_for_old_changes(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        items, path = f"{made.name}.items", made.folder / "shop.yaml"
        begin(made, f"INSERT INTO {items} VALUES (5, 5), (6, 6)")
        lockstep("run", "shop.yaml")
        made.source.run(reset(made.source))
        made.source.run(f"UPDATE {items} SET n = 77 WHERE id = 5", f"DELETE FROM {items} WHERE id = 6",
                        "DELETE FROM bare.bare LIMIT 1")  # fmt: skip
        shutil.rmtree(made.folder / "stage")
        (made.folder / "meta.db").unlink()

        error = failure(lockstep("run", "shop.yaml", code=4))
        assert (error["code"], "timeline 0, file " in error["what"]) == ("target.ahead", True)
        assert "`timeline: 1`" in error["remedy"]
        path.write_text(path.read_text().replace("start: latest", "start: latest, timeline: 3"))
        lockstep("extract", "shop.yaml", "--abandon", reached(made))
        assert source_of(made)["position"]["timeline"] == 3
        lockstep("run", "shop.yaml")
        require_equal(made)
        lockstep("verify", "shop.yaml")


def begin(made: Shop, *statements: str) -> None:
    """Some files of log, and a table without a key beside the shop's."""
    path = made.folder / "shop.yaml"
    text = path.read_text().replace("orders|items)'", "orders|items|gone)', 'bare\\.bare'")
    routes = ", ".join(
        f"{{match: '{pattern}', to: {pattern.rpartition('.')[2]}}}"
        for pattern in (*(f"{made.name}\\.{table}" for table in (*TABLES, "gone")), "bare\\.bare")
    )
    text = re.sub(r"routes: .*", lambda _: f"routes: [{routes}]", text)
    bare = f"bare: {{database: {made.name}_0, table: bare, no_key: rows}}"
    path.write_text(text.replace("'*': {database", f"{bare}\n      '*': {{database"))
    made.source.run(
        *["FLUSH BINARY LOGS"] * 3, "DROP DATABASE IF EXISTS bare", "CREATE DATABASE bare",
        "CREATE TABLE bare.bare (n INT)", "INSERT INTO bare.bare VALUES (1), (1), (2)", *statements,
    )  # fmt: skip


def source_of(made: Shop) -> dict[str, Any]:
    (source,) = json.loads(made.lockstep("status", "shop.yaml", code=None).out)["sources"]
    assert isinstance(source, dict)
    return source


def reached(made: Shop) -> str:
    position = source_of(made)["position"]
    return f"{position['file']}:{position['offset']}"


def failure(done: Any) -> dict[str, str]:
    error = json.loads(done.out)["error"]
    assert isinstance(error, dict)
    return error


def reset(server: Any) -> str:
    return "RESET MASTER" if isinstance(server, MariaDb) else "RESET BINARY LOGS AND GTIDS"


def purged(server: Any) -> bool:
    """Purges all files but the last, which is new. MariaDB keeps one until what it has is also in InnoDB's log."""
    server.run("FLUSH BINARY LOGS")
    files = log_files(server)
    server.run(f"PURGE BINARY LOGS TO '{files[-1]}'")
    return log_files(server) == files[-1:]


def log_files(server: Any) -> list[str]:
    return [str(row[0]) for row in server.run("SHOW BINARY LOGS")]


def require_equal(made: Shop) -> None:
    for table in TABLES:
        assert made.old(table) == made.new(table)
    rows = made.source.run("SELECT n FROM bare.bare ORDER BY n")
    assert made.target.run(f"SELECT n FROM {made.name}_0.bare ORDER BY n") == rows
