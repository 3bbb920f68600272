"""A pipeline on a standalone cluster of Spark whose executors have nothing of Lockstep: its code travels."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from examples.sandbox.spark import JAVA_OPTIONS, Standalone
from tests.acceptance.test_s3 import command_lines, texts_below
from tests.lab.foreign_python import foreign_python, install_into, install_what_jobs_import

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


@contextmanager
def pipeline(
    cluster: Cluster, source_database: Any, target: Any, lockstep: Any, stage: str, **conf: str
) -> Iterator[Any]:
    """`shop.yaml` from a table to its copy, on the cluster; a cursor at the target."""
    name = source_database.name
    source_database.execute(TABLE, "INSERT INTO orders VALUES (100, 'old', 7, NULL)")
    lockstep.environ |= {
        "SHOP": source_database.server.url, "COPY": target.url, "SPARK_CONF_DIR": str(cluster.conf),
    }  # fmt: skip
    with target.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE `{name}`")
        cursor.execute(f"USE `{name}`")
        cursor.execute(TABLE)
        lockstep("init", "shop", "--source", "env:SHOP", "--include", rf"{name}\..*", "--target", "env:COPY",
                 "--stage", stage)  # fmt: skip
        file = lockstep.directory / "shop.yaml"
        settings = {
            "spark.pyspark.python": str(cluster.python), "spark.executor.memory": "512m",
            "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": JAVA_OPTIONS, **conf,
        }  # fmt: skip
        spark = {"master": cluster.spark.master, "driver_rows": 0, "conf": settings}
        file.write_text(f"{file.read_text()}\nspark: {json.dumps(spark)}\n")
        yield cursor
        connection.ping()
        cursor.execute(f"DROP DATABASE `{name}`")


def rows_of(source_database: Any) -> Any:
    with source_database.server.connect(source_database.name) as connection, connection.cursor() as cursor:
        cursor.execute(ROWS)
        return cursor.fetchall()


def test_a_run_on_a_cluster_without_our_environment_ends_with_the_target_equal_and_its_logins_unseen(
    cluster: Cluster, source_database: Any, mariadb_target: Any, lockstep: Any, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    logged = {
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(), "spark.eventLog.compress": "false",
    }  # fmt: skip
    stage = (tmp_path / "stage").as_uri()
    with pipeline(cluster, source_database, mariadb_target, lockstep, stage, **logged) as copy:
        source_database.execute(*CHANGES)
        with command_lines() as seen:
            ran = lockstep("-v", "run", "shop.yaml", "--until", "now")
            with urlopen(f"{cluster.spark.ui}/json/") as page:
                state = page.read().decode()
        (entry,) = ran.document["ledgers"]
        assert (entry["staged_rows"], entry["key_changes"], entry["problems"]) == (6 + 3, 1, [])
        copy.execute(ROWS)
        assert copy.fetchall() == rows_of(source_database)
    (application,) = json.loads(state)["completedapps"]
    assert application["name"].startswith("lockstep "), "one application for all jobs"
    assert list(cluster.spark.directory.glob("worker*/app-*/*/lockstep-*.zip")), "executors were given the code"
    assert any(str(cluster.spark.workers[0]) in line for line in seen), "the executors' command lines were seen"
    printed = {**dict(texts_below(events)), **dict(texts_below(cluster.spark.directory))}
    assert any("SparkListenerStageCompleted" in text for text in printed.values())
    kept = [cluster.spark.directory / "spark-defaults.conf"]
    for secret in (mariadb_target.password, source_database.server.password, AUTH):
        for form in (secret, quote(secret, safe="")):
            assert [line for line in seen if form in line] == []
            assert [str(path) for path, text in printed.items() if form in text and path not in kept] == []
            assert form not in state + ran.out + ran.err


def problems(lockstep: Any, *options: str) -> dict[str, str]:
    """What `check` finds wrong with Spark: code, and what to do."""
    done = lockstep("check", "shop.yaml", *options, code=None)
    return {one["code"]: one["remedy"] for one in done.document["findings"] if one["status"] == "fail"}


@pytest.mark.matrix
def test_check_says_that_executors_lack_packages(
    cluster: Cluster, source_database: Any, mariadb_target: Any, lockstep: Any, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    python = foreign_python(bare)
    install_what_jobs_import(bare, without=("PyYAML", "cryptography"))
    with pipeline(cluster, source_database, mariadb_target, lockstep, (tmp_path / "stage").as_uri()) as _:
        file = lockstep.directory / "shop.yaml"
        fit = file.read_text()
        file.write_text(fit.replace(str(cluster.python), str(python)))
        assert problems(lockstep, "--no-spark") == {}
        assert set(problems(lockstep)) == {"spark.setup"}
        file.write_text(fit)
        assert problems(lockstep) == {}


@pytest.mark.matrix
def test_executors_reach_a_bucket_with_credentials_of_their_own(
    source_database: Any, mariadb_target: Any, s3_server: Any, lockstep: Any, tmp_path: Path
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
        with pipeline(at, source_database, mariadb_target, lockstep, stage) as _:
            use_bucket(lockstep.directory / "shop.yaml", s3_server)
            found = problems(lockstep)
            assert set(found) == {"stage.denied"}
    source_database.execute("DROP TABLE orders")
    with Standalone.start(environ={"HOME": str(tmp_path), **keys}) as spark:
        at = Cluster(spark, python, conf)
        (lockstep.directory / "shop.yaml").unlink()
        with pipeline(at, source_database, mariadb_target, lockstep, stage) as copy:
            use_bucket(lockstep.directory / "shop.yaml", s3_server)
            assert problems(lockstep) == {}
            source_database.execute(*CHANGES)
            with command_lines() as seen:
                ran = lockstep("-v", "run", "shop.yaml", "--until", "now")
            assert [one["problems"] for one in ran.document["ledgers"]] == [[]]
            copy.execute(ROWS)
            assert copy.fetchall() == rows_of(source_database)
        printed = dict(texts_below(spark.directory))
        assert [line for line in seen if s3_server.secret_key in line] == []
        assert [str(path) for path, text in printed.items() if s3_server.secret_key in text] == []


def use_bucket(file: Path, s3_server: Any) -> None:
    file.write_text(file.read_text().replace("stage:\n", f"stage:\n  s3_endpoint: {s3_server.endpoint}\n"))


@pytest.mark.matrix
def test_executors_with_nothing_but_python_get_their_packages_by_an_archive(
    cluster: Cluster, source_database: Any, mariadb_target: Any, lockstep: Any, tmp_path: Path
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
    with pipeline(cluster, source_database, mariadb_target, lockstep, (tmp_path / "stage").as_uri(), **conf) as _:
        assert problems(lockstep) == {}
