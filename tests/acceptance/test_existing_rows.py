"""Rows that were there before the pipeline: said to be missing, and loaded into a target as the tutorial says."""

from __future__ import annotations

import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
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


def rows(server: Any, database: str, table: str) -> list[tuple[Any, ...]]:
    return server.run(f"SELECT order_id, status FROM {table} ORDER BY 1", database=database)


def tool(server: Any, mysql: str, mariadb: str) -> tuple[str, ...]:
    if isinstance(server, MariaDb):
        return (*MariaDb.client(mariadb), "--no-defaults")
    found = MySql.client(mysql)
    assert found is not None
    return (*found, "--no-defaults")


def reached(server: Any, user: str, password: str = "") -> tuple[str, ...]:
    secret = (f"--password={password}",) if password else ()
    return (f"--host={server.host}", f"--port={server.port}", f"--user={user}", "--protocol=TCP", *secret)


def dumped(server: Any, database: str, user: str) -> str:
    """The dump of the tutorial, by an account that has its grants and no others."""
    mariadb = isinstance(server, MariaDb)
    server.run(f"CREATE USER {user} IDENTIFIED BY 'x'")
    for granted in (told(r"^GRANT (REPLICATION SLAVE.*?) ON \*"), told(r"^GRANT (RELOAD.*?) ON \*")):
        names = granted.replace("REPLICATION CLIENT", "BINLOG MONITOR") if mariadb else granted
        server.run(f"GRANT {names} ON *.* TO {user}")
    options = told(r"^mysqldump -h db -u cdc -p (.*) --databases")
    if mariadb:
        options = options.replace("--source-data=2 --set-gtid-purged=OFF", "--master-data=2")
        assert "`--master-data=2` instead of `--source-data=2 --set-gtid-purged=OFF`" in " ".join(TUTORIAL.split())
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
def test_existing_rows_are_said_to_be_missing_and_reach_a_target_by_the_tutorials_dump(
    servers: tuple[Any, Any], lockstep: Any
) -> None:
    source, target = servers
    name = f"shop_{uuid.uuid4().hex[:8]}"
    user = f"u_{name}"
    source.run(f"CREATE DATABASE {name}")
    source.run("CREATE TABLE orders (order_id INT PRIMARY KEY, status VARCHAR(9))",
               "INSERT INTO orders VALUES (1, 'old'), (2, 'old'), (3, 'old')", database=name,
    )  # fmt: skip
    dump = dumped(source, name, user)
    source.run("UPDATE orders SET status = 'new' WHERE order_id = 2", "INSERT INTO orders VALUES (4, 'new')",
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
    assert lockstep("run", "shop.yaml", code=3).error["code"] == "target.existing"
    assert "`existing: keep`" in TUTORIAL
    file.write_text(file.read_text().replace("# existing: replace", "existing: keep"))

    checked = lockstep("check", "shop.yaml").document
    (found,) = [finding for finding in checked["findings"] if "existing rows" in finding["subject"]]
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
    assert (error["code"], "`lockstep snapshot" in error["remedy"]) == ("stage.partial", True)
    assert lockstep("stage", "sql", "shop.yaml", count, "--partial").document["rows"] == [[2]]
    status = lockstep("status", "shop.yaml").document
    assert [problem["code"] for problem in status["problems"]] == ["stage.partial"]
    source.run(f"DROP USER {user}")


def test_an_extract_that_fails_is_the_first_thing_that_status_says_until_one_succeeds(
    source_database: Any, lockstep: Any
) -> None:
    source_database.execute("CREATE TABLE orders (order_id INT PRIMARY KEY)")
    lockstep.init(source_database.server, source_database.name)
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


TABLES = {"orders": "id INT PRIMARY KEY, n INT", "log": "id INT, n INT", "spread": "id INT PRIMARY KEY, n INT",
          "one": "id INT PRIMARY KEY, n INT", "two": "id INT PRIMARY KEY, n INT"}  # fmt: skip


class Trial:
    """A pipeline with a table of each kind: with a key, without one, in two shards, fed by two tables."""

    def __init__(self, cursors: tuple[Any, Any], lockstep: Any) -> None:
        self.source, self.copy, self.lockstep = *cursors, lockstep
        self.source.execute("CREATE DATABASE used")
        for at, (name, columns) in enumerate(TABLES.items()):
            self.source.execute(f"CREATE TABLE used.{name} ({columns})")
            self.source.execute(f"INSERT INTO used.{name} VALUES ({at}0, 1), ({at}1, 1), ({at}2, 1)")
        lockstep("init", "shop", "--source", "env:SHOP", "--include", r"used\..*", "--target", "env:COPY")
        self.file = lockstep.directory / "shop.yaml"
        text = self.file.read_text()
        self.head = text[: text.index("    tables:\n")]
        self.answer("")

    def answer(self, existing: str) -> None:
        """What the pipeline file says of rows that are there."""
        self.file.write_text(
            f"{self.head}{f'    existing: {existing}' if existing else ''}\n    tables:\n"
            "      used.orders: {}\n      used.log: {no_key: rows}\n      both: {database: used, table: both}\n"
            "      used.spread: {table: 'spread_{t}', sharding: {key: id, function: mod, tables: 2}}\n"
            "routes:\n  - {match: 'used\\.(one|two)', to: both}\n"
        )

    def begin_again(self) -> None:
        (self.lockstep.directory / ".lockstep").rename(self.lockstep.directory / ".former")

    def return_to_the_former(self) -> None:
        shutil.rmtree(self.lockstep.directory / ".lockstep")
        (self.lockstep.directory / ".former").rename(self.lockstep.directory / ".lockstep")

    def rows(self) -> dict[str, set[tuple[int, int]]]:
        """At the target, as its tables at the source would have them."""
        found = {}
        for name, tables in {"orders": ["orders"], "log": ["log"], "both": ["both"],
                             "spread": ["spread_0", "spread_1"]}.items():  # fmt: skip
            self.copy.execute(" UNION ALL ".join(f"SELECT * FROM used.{table}" for table in tables))
            found[name] = set(self.copy.fetchall())
        return found

    def at_source(self) -> dict[str, set[tuple[int, int]]]:
        found: dict[str, set[tuple[int, int]]] = {}
        for name in TABLES:
            self.source.execute(f"SELECT * FROM used.{name}")
            found.setdefault("both" if name in ("one", "two") else name, set()).update(self.source.fetchall())
        return found

    def asked(self) -> set[str]:
        """The tables before which `check` and a run stop."""
        findings = self.lockstep("check", "shop.yaml", code=3).document["findings"]
        failed = [finding for finding in findings if finding["status"] == "fail"]
        assert {finding["code"] for finding in failed} == {"target.existing"}
        error = self.lockstep("run", "shop.yaml", code=3).error
        assert error["code"] == "target.existing"
        return {finding["subject"].rpartition(" ")[2] for finding in failed}


@pytest.fixture
def trial(cursors: tuple[Any, Any], lockstep: Any) -> Trial:
    return Trial(cursors, lockstep)


def test_a_stage_that_begins_again_asks_once_what_the_rows_at_the_target_are_and_replaces_them(trial: Trial) -> None:
    trial.lockstep("run", "shop.yaml")
    assert trial.rows() == trial.at_source()
    for at, name in enumerate(TABLES):
        trial.source.execute(f"DELETE FROM used.{name} WHERE id = {at}1")
    trial.begin_again()
    before = trial.rows()
    assert trial.asked() == {"used.orders", "used.log", "used.spread", "both"}
    assert trial.rows() == before
    trial.answer("replace")
    trial.lockstep("check", "shop.yaml")
    trial.lockstep("run", "shop.yaml")
    assert trial.rows() == trial.at_source()
    trial.answer("")
    (trial.lockstep.directory / ".lockstep" / "shop" / "meta.db").unlink()
    trial.lockstep("meta", "rebuild", "shop.yaml")
    trial.source.execute("INSERT INTO used.orders VALUES (7, 7)")
    trial.lockstep("run", "shop.yaml")
    assert trial.rows() == trial.at_source()
    trial.return_to_the_former()
    error = trial.lockstep("run", "shop.yaml", code=4).error
    assert error["code"] == "target.lost_writes"
    assert all(f"used.{table} lacks" in error["what"] for table in ("both", "log", "orders"))


def test_rows_are_not_replaced_by_a_run_that_brings_part_of_those_of_the_source(trial: Trial) -> None:
    trial.answer("replace")
    text = trial.file.read_text()
    trial.file.write_text(text.replace("      used.orders: {}\n", ""))
    trial.lockstep("run", "shop.yaml")
    trial.copy.execute("CREATE TABLE used.orders (id INT PRIMARY KEY, n INT)")
    trial.copy.execute("INSERT INTO used.orders VALUES (0, 1), (1, 1), (99, 9)")
    trial.file.write_text(text)
    trial.source.execute("UPDATE used.orders SET n = 2 WHERE id = 1")
    error = trial.lockstep("run", "shop.yaml", code=3).error
    assert (error["code"], error["where"]) == ("target.existing", "used.orders")
    assert len(trial.rows()["orders"]) == 3
    replay = re.search(r"`lockstep (run shop) (--replay .*?)`", error["remedy"])
    assert replay is not None, error
    trial.lockstep("run", "shop.yaml", *replay[2].split())
    assert trial.rows() == trial.at_source()
    trial.source.execute("UPDATE used.orders SET n = 3 WHERE id = 1")
    trial.lockstep("run", "shop.yaml")
    assert trial.rows() == trial.at_source()


def test_rows_of_somebody_else_stay_where_the_target_says_keep_and_are_never_replaced_in_silence(trial: Trial) -> None:
    trial.copy.execute("CREATE DATABASE used")
    trial.copy.execute("CREATE TABLE used.orders (id INT PRIMARY KEY, n INT)")
    trial.copy.execute("INSERT INTO used.orders VALUES (0, 9), (99, 9)")
    trial.copy.execute("SHOW CREATE TABLE used.orders")
    before = trial.copy.fetchall()
    assert trial.asked() == {"used.orders"}
    trial.copy.execute("SHOW CREATE TABLE used.orders")
    assert trial.copy.fetchall() == before
    trial.answer("keep")
    trial.lockstep("run", "shop.yaml")
    wanted = trial.at_source()
    assert trial.rows() == wanted | {"orders": wanted["orders"] | {(99, 9)}}
    trial.answer("replace")  # they have been taken
    trial.source.execute("UPDATE used.orders SET n = 2")
    trial.lockstep("run", "shop.yaml")
    assert (99, 9) in trial.rows()["orders"]
