"""`lockstep run` as a whole: canaries in all that it writes and says, and servers that mean harm on each side of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_s3 import command_lines
from tests.integration.test_canaries import seen, written
from tests.lab.hostile_server import ANSWERS, CLOSING, FakeServer, Login, Meddler

CANARY = "c4n4ry"
PASSWORD = f"{CANARY}-p@ss/word"
QUOTED = f"{CANARY}-p%40ss%2Fword"
CONTENT = f"{CANARY} of a file"
QUICK = "?connect_timeout=2&read_timeout=2&write_timeout=2"


@dataclass
class Shop:
    """A source and a target on two servers, meta on the target's; all by accounts with the canary as password."""

    source: Any
    target: Any
    lockstep: Any
    name: str

    @property
    def folder(self) -> Path:
        return Path(self.lockstep.directory)

    def url(self, server: Any, port: int | None = None, *, password: str = QUOTED) -> str:
        return f"mysql://{self.name}:{password}@127.0.0.1:{port or server.port}"

    def goes_to(self, **ports: int) -> None:
        """The URLs, with other ports for some of `source`, `target` and `meta`."""
        self.lockstep.environ |= {
            "SOURCE": self.url(self.source, ports.get("source")) + f"/{QUICK}",
            "TARGET": self.url(self.target, ports.get("target")) + f"/{QUICK}",
            "META": self.url(self.target, ports.get("meta")) + f"/{self.name}_meta{QUICK}",
        }

    def tables(self) -> Iterator[tuple[str, bytes]]:
        """All that is in the target's and in meta's tables."""
        names = self.target.run(
            f"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA LIKE '{self.name}%'",
        )
        for database, table in names:
            yield f"{database}.{table}", str(self.target.run(f"TABLE `{database}`.`{table}`")).encode()


@pytest.fixture
def shop(mariadb: Any, mysql9: Any, lockstep: Any) -> Iterator[Shop]:
    made = Shop(mariadb, mysql9, lockstep, f"r_{uuid.uuid4().hex[:10]}")
    for server in (mariadb, mysql9):
        server.run(
            f"CREATE DATABASE {made.name}",
            f"CREATE DATABASE {made.name}_meta",
            f"CREATE USER {made.name}@'%' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT ALL ON *.* TO {made.name}@'%'",
        )
    (file, offset), *_ = [row[:2] for row in mariadb.run("SHOW MASTER STATUS")]
    mysql9.run("CREATE TABLE t (id INT PRIMARY KEY, email VARCHAR(64), n INT)", database=made.name)
    mariadb.run(
        "CREATE TABLE t (id INT PRIMARY KEY, email VARCHAR(64), hidden VARCHAR(64), n INT)",
        f"INSERT INTO t VALUES (1, '{CANARY}-a', '{CANARY}-b', 1), (2, '{CANARY}-c', '{CANARY}-d', 2)",
        f"UPDATE t SET email = '{CANARY}-e' WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        database=made.name,
    )
    for folder in ("events", "local", "tmp"):
        (made.folder / folder).mkdir()
    (made.folder / "secret").write_text(CONTENT)
    (made.folder / "suite.json").write_text(json.dumps({"expectations": []}).replace("[]", EXPECTATION))
    logged = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{made.folder}/events"}
    start = {"position": {"file": file, "offset": offset}}
    lockstep.write(
        "shop", made.name,
        source={
            "connection": "env:SOURCE", "heartbeat_s": 0.5, "read_timeout_s": 2, "reconnect_s": 0.1, "start": start,
        },
        tables={"columns": {"salt": "env:SALT", "mask": [r".*\.email"], "exclude": [r".*\.hidden"]}},
        meta={"url": "env:META"},
        targets=[{"name": "copy", "connections": ["env:TARGET"], "tables": {"t": {"database": made.name}}}],
        quality="suites: [{table: t, path: suite.json}]",
        limits="lease_s: 5",
        spark={"driver_rows": 0, "conf": {**logged, "spark.local.dir": f"{made.folder}/local"}},
    )  # fmt: skip
    lockstep.environ |= {"SALT": f"{CANARY}-salt", "TMPDIR": str(made.folder / "tmp"), "LOCKSTEP_DEBUG": "1"}
    made.goes_to()
    lockstep("meta", "upgrade", "shop.yaml")
    yield made
    for server in (mariadb, mysql9):
        server.run(f"DROP USER {made.name}@'%'")


EXPECTATION = """[{"type": "expect_column_values_to_be_in_set", "severity": "critical",
                   "kwargs": {"column": "email", "value_set": ["nobody"]}}]"""


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_nothing_that_a_run_writes_says_or_shows_has_a_password_or_a_masked_value(shop: Shop) -> None:
    """With tracebacks, Spark's event log, a quality report that shows values, and one that fails."""
    with command_lines() as lines:
        ran = shop.lockstep("-vv", "run", "shop.yaml", code=4)
    assert ran.error["code"] == "quality.failed"
    for command in (["status"], ["check"], ["stage", "verify", "--deep"], ["stage", "ls", "--files"]):
        done = shop.lockstep("-vv", *command, "shop.yaml", code=None)
        ran = type(ran)(ran.code, ran.out + done.out, ran.err + done.err)
    (shop.folder / "secret").unlink()
    files = list(written(shop.folder))
    names = [name for name, _ in files]
    for part in ("events/", "report.html", "own-0.json", "lockstep-shop.log", "rows"):
        assert any(part in name for name in names), part
    assert any(b"unexpected" in text for name, text in files if name.endswith("own-0.json"))
    places = [*files, *shop.tables(), ("said", (ran.out + ran.err).encode()), ("ps", "\n".join(lines).encode())]
    assert any("SparkSubmit" in line for line in lines)
    assert seen(iter(places), CANARY) == []


def test_a_run_gives_no_server_without_tls_anything_where_tls_was_asked_for(shop: Shop) -> None:
    for place in ("source", "target", "meta"):
        with FakeServer(Login(asks="mysql_clear_password")) as server:
            shop.goes_to(**{place: server.port})
            shop.lockstep.environ[place.upper()] += "&ssl_mode=REQUIRED"
            done = shop.lockstep("run", "shop.yaml", code=3)
            assert "connection.unproven" in done.out
            assert not server.received
            assert CANARY not in done.out + done.err


def _harmed(shop: Shop, place: str, step: int, harm: str) -> str:
    """What is wrong with how a run ends that meets harm at a step; "" for nothing."""
    server = shop.source if place == "source" else shop.target
    with Meddler(server.port, step, harm, shop.folder / "secret") as meddler:
        shop.goes_to(**{place: meddler.port})
        done = shop.lockstep("run", "shop.yaml", code=None)
        received, met = bytes(meddler.received), meddler.met
    shop.goes_to()
    where = f"{harm} at {step} of {place} {str(met)[:80]!r}: "
    if CANARY in done.out + done.err:
        return f"{where}shows the canary"
    if CONTENT.encode() in received or PASSWORD.encode() in received:
        return f"{where}sent a file or the password"
    if done.code not in (0, 3, 4, 75) or done.error["code"].startswith("internal."):
        return f"{where}{done.code} {done.out[:500]} {done.err[-500:]}"
    return ""


STEPS = {"source": 6, "target": 6, "meta": 12}
SAMPLE = (("source", "fewer columns"), ("target", "silence"), ("target", "file"), ("meta", "nonsense"))
"""They end the run before Spark starts."""


def test_a_run_ends_with_one_clear_error_whoever_does_harm_and_the_next_one_stages_all(shop: Shop) -> None:
    assert [wrong for place, harm in SAMPLE if (wrong := _harmed(shop, place, STEPS[place], harm))] == []
    shop.lockstep("extract", "shop.yaml")
    shop.lockstep("stage", "verify", "shop.yaml", "--deep")
    found = shop.lockstep(
        "stage", "sql", "shop.yaml", "SELECT _cdc_op, count(*) FROM t_changes GROUP BY ALL ORDER BY ALL"
    )
    assert found.document["rows"] == [["c", 2], ["d", 1], ["u", 1]]


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("harm", [*CLOSING, *ANSWERS, "silence"])
@pytest.mark.parametrize("place", STEPS)
def test_every_server_of_a_run_may_do_every_harm(shop: Shop, place: str, harm: str) -> None:
    assert [wrong for step in (3, STEPS[place], 25) if (wrong := _harmed(shop, place, step, harm))] == []
