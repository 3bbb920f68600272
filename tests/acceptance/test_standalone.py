"""A pipeline on a standalone cluster of Spark whose executors have nothing of Lockstep: its code travels."""

from __future__ import annotations

import json
import os
import signal
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from examples.sandbox.spark import JAVA_OPTIONS, Standalone
from tests.acceptance.test_s3 import command_lines, texts_below
from tests.lab.foreign_python import foreign_python, install_into, install_what_jobs_import
from tests.lab.forked_commands import ForkedCommands, Started

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
TABLE = "CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(20) NOT NULL, amount DECIMAL(12,2), at DATETIME)"
CHANGES = (
    "INSERT INTO orders VALUES (1,'new',9.99,'2026-01-01 10:00:00'), (2,'new',NULL,NULL), (3,'gone',1,NULL)",
    "UPDATE orders SET status='paid', amount=12.50 WHERE id=1",
    "DELETE FROM orders WHERE id=3",
    "UPDATE orders SET id=20 WHERE id=2",
)
ROWS = "SELECT * FROM orders ORDER BY id"
AUTH = "0nly-sp4rk-kn0ws"


@dataclass(frozen=True)
class Cluster:
    """python: of its executors. conf: spark-defaults.conf of those who submit, with what is secret."""

    spark: Standalone
    python: Path
    conf: Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With authentication and encryption, as docs/spark.md has it."""
    home = tmp_path_factory.mktemp("executors")
    python = foreign_python(home / "python")
    install_what_jobs_import(home / "python")
    (home / "home").mkdir()
    secure = {
        "spark.authenticate": "true", "spark.authenticate.secret": AUTH, "spark.network.crypto.enabled": "true",
    }  # fmt: skip
    conf = home / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in secure.items()))
    with Standalone.start(environ={"HOME": str(home / "home")}, conf=secure) as spark:
        yield Cluster(spark, python, conf)


def pipeline(
    cluster: Cluster, source_database: Any, target_database: Any, lockstep: Any, stage: str, **conf: str
) -> Path:
    """`shop.yaml` from a table to its copy, on the cluster."""
    source_database.execute(TABLE, "INSERT INTO orders VALUES (100, 'old', 7, NULL)")
    target_database.execute(TABLE)
    lockstep.environ |= {
        "SHOP": source_database.server.url, "COPY": target_database.server.url, "SPARK_CONF_DIR": str(cluster.conf),
    }  # fmt: skip
    include = rf"{source_database.name}\..*"
    lockstep("init", "shop", "--source", "env:SHOP", "--include", include, "--target", "env:COPY", "--stage", stage)
    settings = {
        "spark.pyspark.python": str(cluster.python), "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false", "spark.driver.extraJavaOptions": JAVA_OPTIONS, **conf,
    }  # fmt: skip
    spark = {"master": cluster.spark.master, "driver_rows": 0, "conf": settings}
    file = Path(lockstep.directory / "shop.yaml")
    file.write_text(f"{file.read_text()}\nspark: {json.dumps(spark)}\n")
    return file


def test_a_run_on_a_cluster_without_our_environment_ends_with_the_target_equal_and_its_logins_unseen(
    cluster: Cluster, source_database: Any, target_database: Any, lockstep: Any, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    logged = {
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(), "spark.eventLog.compress": "false",
    }  # fmt: skip
    stage = (tmp_path / "stage").as_uri()
    pipeline(cluster, source_database, target_database, lockstep, stage, **logged)
    source_database.execute(*CHANGES)
    with command_lines() as seen:
        ran = lockstep("-v", "run", "shop.yaml", "--until", "now")
        with urlopen(f"{cluster.spark.ui}/json/") as page:
            state = page.read().decode()
    (entry,) = ran.document["ledgers"]
    assert (entry["staged_rows"], entry["key_changes"], entry["problems"]) == (6 + 3, 1, [])
    assert target_database.execute(ROWS) == source_database.execute(ROWS)
    (application,) = json.loads(state)["completedapps"]
    assert application["name"].startswith("lockstep "), "one application for all jobs"
    assert list(cluster.spark.directory.glob("worker*/app-*/*/lockstep-*.zip")), "executors were given the code"
    assert any(str(cluster.spark.workers[0]) in line for line in seen), "the executors' command lines were seen"
    printed = {**dict(texts_below(events)), **dict(texts_below(cluster.spark.directory))}
    assert any("SparkListenerStageCompleted" in text for text in printed.values())
    kept = [cluster.spark.directory / "spark-defaults.conf"]
    for secret in (target_database.server.password, source_database.server.password, AUTH):
        for form in (secret, quote(secret, safe="")):
            assert [line for line in seen if form in line] == []
            assert [str(path) for path, text in printed.items() if form in text and path not in kept] == []
            assert form not in state + ran.out + ran.err


SPECULATION = {
    "spark.speculation": "true", "spark.speculation.interval": "200ms",
    "spark.speculation.task.duration.threshold": "1s",
}  # fmt: skip
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0", "spark.dynamicAllocation.executorIdleTimeout": "1s",
}  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("conf", "lose"), [(SPECULATION, False), (DYNAMIC, True)], ids=["speculation", "executors that come and go"]
)
def test_two_attempts_at_a_slow_shard_change_neither_ledger_nor_target(
    cluster: Cluster,
    source_database: Any,
    target_database: Any,
    lockstep: Any,
    commands: ForkedCommands,
    tmp_path: Path,
    conf: dict[str, str],
    lose: bool,
) -> None:
    """The target's table is locked until two attempts wait for it: Spark begins a second one beside the first, or after
    the first one's executor has died, whose Python still writes."""
    pipeline(cluster, source_database, target_database, lockstep, (tmp_path / "stage").as_uri(), **conf)
    lockstep("run", "shop.yaml")  # alters the table: the driver would wait for that
    source_database.execute(*CHANGES)
    target = target_database.server
    with target.connect(target_database.name, autocommit=True) as session, session.cursor() as blocking:
        blocking.execute("LOCK TABLES orders READ")
        started = commands.start(
            "run", "shop.yaml", "--until", "now", "--json",
            directory=lockstep.directory, environ=lockstep.environment, log=tmp_path / "log",
        )  # fmt: skip
        await_waiting(target, 1, started)
        if lose:
            lose_executors(cluster)
        await_waiting(target, 2, started)
        blocking.execute("UNLOCK TABLES")
        while not started.ended:
            time.sleep(0.1)
    assert started.kill() == 0, started.log.read_text()
    assert target_database.execute(ROWS) == source_database.execute(ROWS)
    assert lockstep("verify", "shop.yaml").document["equal"] is True
    assert lockstep("run", "shop.yaml").document["batches"] == 0


def await_waiting(server: Any, attempts: int, run: Started) -> None:
    """Until so many sessions wait: one for a lock of the table, further ones for their turn to write to it."""
    waiting = (
        "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for table%' OR state = 'User lock'"
    )
    while len(server.run(waiting)) < attempts:
        assert not run.ended, run.log.read_text()
        time.sleep(0.1)


def lose_executors(cluster: Cluster) -> None:
    """kill -9 of each, and of the daemon that would end its Python workers with it: they go on."""
    lines: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            lines[int(path.parent.name)] = path.read_bytes().decode(errors="replace")
    python = [pid for pid, line in lines.items() if line.startswith(f"{cluster.python}\0-m\0pyspark.daemon")]
    daemons = [pid for pid in python if os.getpgid(pid) == pid]
    executors = [
        pid
        for pid, line in lines.items()
        if "CoarseGrained" in line and Path(f"/proc/{pid}/cwd").readlink().is_relative_to(cluster.spark.directory)
    ]
    assert executors
    assert set(python) > set(daemons)
    for pid in daemons + executors:
        os.kill(pid, signal.SIGKILL)


def problems(lockstep: Any, *options: str) -> dict[str, str]:
    """What `check` finds wrong with Spark: code, and what to do."""
    done = lockstep("check", "shop.yaml", *options, code=None)
    return {finding["code"]: finding["remedy"] for finding in done.document["findings"] if finding["status"] == "fail"}


@pytest.mark.matrix
def test_check_says_that_executors_lack_packages(
    cluster: Cluster, source_database: Any, target_database: Any, lockstep: Any, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    python = foreign_python(bare)
    install_what_jobs_import(bare, without=("PyYAML", "cryptography"))
    file = pipeline(cluster, source_database, target_database, lockstep, (tmp_path / "stage").as_uri())
    fit = file.read_text()
    file.write_text(fit.replace(str(cluster.python), str(python)))
    assert problems(lockstep, "--no-spark") == {}
    assert set(problems(lockstep)) == {"spark.setup"}
    file.write_text(fit)
    assert problems(lockstep) == {}


@pytest.mark.matrix
def test_executors_reach_a_bucket_with_credentials_of_their_own(
    source_database: Any, target_database: Any, s3_server: Any, lockstep: Any, tmp_path: Path
) -> None:
    """As operators set them: in the environment of the workers, and other ones than the driver's."""
    python = foreign_python(tmp_path / "python")
    install_what_jobs_import(tmp_path / "python")
    conf = tmp_path / "conf"
    conf.mkdir()
    bucket = s3_server.create_bucket(source_database.name.replace("_", "-"))
    keys = {"AWS_ACCESS_KEY_ID": s3_server.access_key, "AWS_SECRET_ACCESS_KEY": s3_server.secret_key}
    lockstep.environ |= keys
    stage = f"s3://{bucket}/stage"
    with Standalone.start(environ={"HOME": str(tmp_path)}) as bare:
        at = Cluster(bare, python, conf)
        file = pipeline(at, source_database, target_database, lockstep, stage)
        use_bucket(file, s3_server)
        assert set(problems(lockstep)) == {"stage.denied"}
        file.unlink()
    source_database.execute("DROP TABLE orders")
    target_database.execute("DROP TABLE orders")
    with Standalone.start(environ={"HOME": str(tmp_path), **keys}) as spark:
        at = Cluster(spark, python, conf)
        use_bucket(pipeline(at, source_database, target_database, lockstep, stage), s3_server)
        assert problems(lockstep) == {}
        source_database.execute(*CHANGES)
        with command_lines() as seen:
            ran = lockstep("-v", "run", "shop.yaml", "--until", "now")
        assert [ledger["problems"] for ledger in ran.document["ledgers"]] == [[]]
        assert target_database.execute(ROWS) == source_database.execute(ROWS)
        printed = dict(texts_below(spark.directory))
        assert [line for line in seen if s3_server.secret_key in line] == []
        assert [str(path) for path, text in printed.items() if s3_server.secret_key in text] == []


def use_bucket(file: Path, s3_server: Any) -> None:
    file.write_text(file.read_text().replace("stage:\n", f"stage:\n  s3_endpoint: {s3_server.endpoint}\n"))


@pytest.mark.matrix
def test_executors_with_nothing_but_python_get_their_packages_by_an_archive(
    cluster: Cluster, source_database: Any, target_database: Any, lockstep: Any, tmp_path: Path
) -> None:
    bare = foreign_python(tmp_path / "python")
    (tmp_path / "packages").mkdir()
    install_into(tmp_path / "packages")
    archive = tmp_path / "packages.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1, dereference=True) as tar:
        tar.add(tmp_path / "packages", ".")
    conf = {
        "spark.pyspark.python": str(bare), "spark.archives": f"{archive}#lockstep",
        "spark.executorEnv.PYTHONPATH": "lockstep",
    }  # fmt: skip
    pipeline(cluster, source_database, target_database, lockstep, (tmp_path / "stage").as_uri(), **conf)
    assert problems(lockstep) == {}
