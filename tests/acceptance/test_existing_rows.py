"""Rows that were there before the pipeline: said to be missing, and loaded into a target as the tutorial says."""

from __future__ import annotations

import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql

TUTORIAL = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")


def told(pattern: str) -> str:
    """What the tutorial says."""
    match = re.search(pattern, TUTORIAL, re.MULTILINE)
    assert match is not None, pattern
    return match[1]


def run_sql(server: Any, *statements: str, database: str | None = None) -> None:
    with closing(server.connect(database, autocommit=True)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def rows(server: Any, database: str, table: str) -> list[tuple[Any, ...]]:
    with closing(server.connect(database)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT order_id, status FROM {table} ORDER BY 1")
        return list(cursor.fetchall())


def tool(server: Any, mysql: str, mariadb: str) -> tuple[str, ...]:
    if isinstance(server, MariaDb):
        return (f"{MariaDb.fetch()}/bin/{mariadb}", "--no-defaults")
    found = MySql.client(mysql)
    assert found is not None
    return (*found, "--no-defaults")


def reached(server: Any, user: str, password: str = "") -> tuple[str, ...]:
    secret = (f"--password={password}",) if password else ()
    return (f"--host={server.host}", f"--port={server.port}", f"--user={user}", "--protocol=TCP", *secret)


def dumped(server: Any, database: str, user: str) -> str:
    """The dump of the tutorial, by an account that has its grants and no others."""
    mariadb = isinstance(server, MariaDb)
    run_sql(server, f"CREATE USER {user} IDENTIFIED BY 'x'")
    for granted in (told(r"^GRANT (REPLICATION SLAVE.*?) ON \*"), told(r"^GRANT (RELOAD.*?) ON \*")):
        names = granted.replace("REPLICATION CLIENT", "BINLOG MONITOR") if mariadb else granted
        run_sql(server, f"GRANT {names} ON *.* TO {user}")
    options = told(r"^mysqldump -h db -u cdc -p (.*) --databases")
    if mariadb:
        options = options.replace("--source-data=2 --set-gtid-purged=OFF", "--master-data=2")
        assert "`--master-data=2` instead of `--source-data=2 --set-gtid-purged=OFF`" in TUTORIAL
    command = (*tool(server, "mysqldump", "mariadb-dump"), *reached(server, user, "x"), *options.split())
    done = subprocess.run((*command, "--databases", database), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=["mariadb", pytest.param("mysql9", marks=pytest.mark.matrix)])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """A source and a target of one kind."""
    if request.param == "mariadb":
        yield request.getfixturevalue("mariadb"), request.getfixturevalue("mariadb_target")
        return
    source = request.getfixturevalue("mysql9")
    with MySql.start(server_id=5) as target:
        yield source, target


@pytest.mark.matrix
@pytest.mark.spark
@pytest.mark.slow
def test_existing_rows_are_said_to_be_missing_and_reach_a_target_by_the_tutorials_dump(
    servers: tuple[Any, Any], lockstep: Any
) -> None:
    source, target = servers
    name = f"shop_{uuid.uuid4().hex[:8]}"
    user = f"u_{name}"
    run_sql(source, f"CREATE DATABASE {name}")
    try:
        run_sql(
            source, "CREATE TABLE orders (order_id INT PRIMARY KEY, status VARCHAR(9))",
            "INSERT INTO orders VALUES (1, 'old'), (2, 'old'), (3, 'old')", database=name,
        )  # fmt: skip
        dump = dumped(source, name, user)
        run_sql(source, "UPDATE orders SET status = 'new' WHERE order_id = 2", "INSERT INTO orders VALUES (4, 'new')",
                "DELETE FROM orders WHERE order_id = 3", database=name)  # fmt: skip
        assert told(r"^mysql -h target -u (\w+) -p < shop.sql") == target.user
        loading = (*tool(target, "mysql", "mariadb"), *reached(target, target.user, target.password))
        subprocess.run(loading, input=dump, text=True, check=True)

        lockstep.environ |= {"SHOP": source.url, "COPY": target.url}
        include = rf"{name}\..*"
        made = lockstep("init", "shop", "--source", "env:SHOP", "--include", include, "--target", "env:COPY").document
        assert any(f"of {name}.orders from before the start" in line for line in made["warnings"])
        place = re.search(r"(?:SOURCE|MASTER)_LOG_FILE='([^']+)', (?:SOURCE|MASTER)_LOG_POS=(\d+)", dump)
        assert place is not None
        file = lockstep.directory / "shop.yaml"
        begin = f"start: {{position: {{file: {place[1]}, offset: {place[2]}}}}}"
        assert "mode: initial" in file.read_text()
        file.write_text(re.sub("start: .*", begin, file.read_text()).replace("mode: initial", "mode: none"))

        checked = lockstep("check", "shop.yaml").document
        (found,) = [one for one in checked["findings"] if "existing rows" in one["subject"]]
        assert (found["status"], "tutorial.md" in found["remedy"]) == ("warn", True)
        done = lockstep("run", "shop.yaml")
        assert "partial" in done.err
        assert list(done.document["extracted"][0]["partial"]) == [f"{name}.orders"]
        assert rows(target, name, "orders") == rows(source, name, "orders") == [(1, "old"), (2, "new"), (4, "new")]

        error = lockstep("stage", "export", "shop.yaml", f"{name}.orders", "-o", "x.parquet", code=3).error
        assert error["code"] == "stage.partial"
        assert re.search(r"from before its capture are not captured \(~\d+ rows? at binlog", error["what"])
        count = f'SELECT count(*) FROM "{name}.orders"'
        error = lockstep("stage", "sql", "shop.yaml", count, code=3).error
        assert (error["code"], "`lockstep snapshot`" in error["remedy"]) == ("stage.partial", True)
        assert lockstep("stage", "sql", "shop.yaml", count, "--partial").document["rows"] == [[2]]
        status = lockstep("status", "shop.yaml").document
        assert [one["code"] for one in status["problems"]] == ["stage.partial"]
    finally:
        run_sql(source, f"DROP DATABASE {name}", f"DROP USER IF EXISTS {user}")
        run_sql(target, f"DROP DATABASE IF EXISTS {name}")


def test_an_extract_that_fails_is_the_first_thing_that_status_says_until_one_succeeds(
    source_database: Any, lockstep: Any
) -> None:
    source_database.execute("CREATE TABLE orders (order_id INT PRIMARY KEY)")
    lockstep.environ["SHOP"] = source_database.server.url
    lockstep("init", "shop", "--source", "env:SHOP", "--include", rf"{source_database.name}\..*")
    never = lockstep("status", "shop.yaml", code=75).document
    assert "never extracted" in never["problems"][0]["what"]
    file = lockstep.directory / "shop.yaml"
    text = file.read_text()
    file.write_text(re.sub("start: .*", "start: {position: {file: binlog.999999, offset: 4}}", text))
    for _ in range(2):
        failed = lockstep("extract", "shop.yaml", code=4).error
    first = lockstep("status", "shop.yaml", code=4).document["problems"][0]
    assert {name: first[name] for name in ("code", "class", "what", "where", "remedy")} == failed
    assert (first["level"], first["subject"], first["times"]) == ("failed", "extract shop", 2)
    file.write_text(text)
    lockstep("extract", "shop.yaml")
    assert lockstep("status", "shop.yaml").document["problems"] == []
