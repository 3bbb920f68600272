"""The private servers: they answer when handed over, keep their data over a crash, and never outlive their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pymysql
import pytest
from botocore.exceptions import ClientError

from examples.sandbox import artifacts
from examples.sandbox.cache import SandboxError, cached
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.postgres import Postgres
from examples.sandbox.s3 import S3Server

REPOSITORY = Path(__file__).parents[2]


def alive(pid: int) -> bool:
    """Whether the process runs: one that has ended and waits for its parent's look does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "still not so after the limit"
        time.sleep(0.05)


def one(server, sql: str):
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()


def test_mariadb_is_ready_when_started_and_writes_a_binlog_that_names_its_columns(mariadb):
    row = one(
        mariadb,
        "SELECT @@version, @@log_bin, @@binlog_format, @@binlog_row_metadata, @@binlog_row_image, @@local_infile",
    )
    assert row[0].startswith("11.4.5")
    assert row[1:] == (1, "ROW", "FULL", "FULL", 1)


def test_mysql_is_ready_when_started_with_gtids_and_full_metadata(mysql9):
    row = one(mysql9, "SELECT @@version, @@gtid_mode, @@binlog_format, @@binlog_row_metadata, @@local_infile")
    assert int(row[0].split(".")[0]) >= 8
    assert row[1:] == ("ON", "ROW", "FULL", 1)


@pytest.mark.parametrize("fixture", ["mariadb", "mysql9"])
def test_no_account_of_a_sql_server_is_without_a_password(fixture, request):
    server = request.getfixturevalue(fixture)
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
            pymysql.connect(host=host, port=server.port, user="root", password="")
    assert server.password not in repr(server)
    accounts = "SELECT COUNT(*) FROM mysql.user WHERE user = '' OR (user = 'root' AND authentication_string = '')"
    assert one(server, accounts) == (0,)


@pytest.mark.parametrize("fixture", ["mariadb", "mysql9"])
def test_the_url_leads_to_the_server(fixture, request):
    server = request.getfixturevalue(fixture)
    assert server.url == f"mysql://root:{server.password}@127.0.0.1:{server.port}"
    assert one(server, "SELECT @@port") == (server.port,)


def test_two_servers_have_their_own_ports_data_and_ids(mariadb, mariadb_target):
    assert mariadb.port != mariadb_target.port
    assert mariadb.directory != mariadb_target.directory
    assert (one(mariadb, "SELECT @@server_id"), one(mariadb_target, "SELECT @@server_id")) == ((1,), (2,))


@pytest.mark.parametrize("fixture", ["mariadb", "mysql9"])
def test_committed_rows_and_the_binlog_are_there_after_a_crash_and_a_restart(fixture, request, tmp_path):
    kind = type(request.getfixturevalue(fixture))
    with kind.start(tmp_path / "server", server_id=9) as server:
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE d")
            cursor.execute("CREATE TABLE d.t (a INT PRIMARY KEY)")
            cursor.execute("INSERT INTO d.t VALUES (7)")
        crashed = server.pid
        server.kill()
        assert server.pid is None
        assert not alive(crashed)
        server.restart()
        assert one(server, "SELECT a FROM d.t") == (7,)
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            assert [row[0] for row in cursor.fetchall()] == ["binlog.000001", "binlog.000002"]
    with kind.start(tmp_path / "server", server_id=9) as server:
        assert one(server, "SELECT a FROM d.t") == (7,)


def test_options_reach_the_server_and_replace_the_defaults():
    with MariaDb.start(server_id=4, options={"binlog_row_metadata": "NO_LOG", "log-slave-updates": None}) as server:
        assert one(server, "SELECT @@binlog_row_metadata, @@log_slave_updates") == ("NO_LOG", 1)


def test_a_server_that_cannot_start_says_why():
    with pytest.raises(SandboxError, match="no-such-option"):
        MariaDb.start(options={"no-such-option": "1"})


def test_a_temporary_folder_goes_with_its_server():
    with MariaDb.start() as server:
        directory, pid = server.directory, server.pid
        assert directory.exists()
    assert not directory.exists()
    assert not alive(pid)


def test_the_s3_server_checks_secrets_and_writes_on_condition(s3_server):
    import boto3

    bucket = s3_server.create_bucket("sandbox-test")
    client = s3_server.client()
    client.put_object(Bucket=bucket, Key="a/b", Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=bucket, Key="a/b", Body=b"second", IfNoneMatch="*")
    assert client.get_object(Bucket=bucket, Key="a/b")["Body"].read() == b"first"
    stranger = boto3.client(
        "s3",
        endpoint_url=s3_server.endpoint,
        aws_access_key_id=s3_server.access_key,
        aws_secret_access_key="wrong",
        region_name=s3_server.region,
    )
    with pytest.raises(ClientError, match=r"SignatureDoesNotMatch|Forbidden|403"):
        stranger.get_object(Bucket=bucket, Key="a/b")


def test_postgres_is_ready_when_started_and_not_run_by_root(postgres):
    with psycopg.connect(postgres.url().replace("+psycopg", "")) as connection:
        assert connection.execute("SHOW server_version").fetchone()[0].startswith("17.")
    assert Path(f"/proc/{postgres.pid}").stat().st_uid != 0


def test_postgres_keeps_its_data_over_a_crash():
    with Postgres.start() as server:
        url = server.url().replace("+psycopg", "")
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE t AS SELECT 7 AS a")
        server.kill()
        server.restart()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT a FROM t").fetchone() == (7,)


START_AND_WAIT = """
import sys, time
from {module} import {name}
server = {name}.start()
print(server.pid, server.directory, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("kind", [MariaDb, MySql, Postgres, S3Server])
def test_a_server_dies_with_a_parent_that_is_killed(kind, request):
    if kind is MySql:
        request.getfixturevalue("mysql9")
    script = START_AND_WAIT.format(module=kind.__module__, name=kind.__name__)
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    try:
        pid_text, directory = parent.stdout.readline().split()
        assert alive(int(pid_text))
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    wait_until(lambda: not alive(int(pid_text)))
    wait_until(lambda: not Path(directory).exists())


def test_a_server_dies_with_its_guard():
    with MariaDb.start() as server:
        pid = server.pid
        guard = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(guard, signal.SIGKILL)
        wait_until(lambda: not alive(pid))


def test_a_server_outlives_the_thread_that_started_it():
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(MariaDb.start).result()
    with server:
        assert one(server, "SELECT 1") == (1,)


def _build_slowly(into: Path) -> None:
    with Path(os.environ["BUILT_LOG"]).open("a") as log:
        log.write("built\n")
    time.sleep(0.3)
    (into / "file").write_text("whole")


def _read_cached(_: int) -> str:
    return (cached("thing", _build_slowly) / "file").read_text()


def test_two_processes_that_want_the_same_thing_build_it_once(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BUILT_LOG", str(tmp_path / "built"))
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(_read_cached, range(3), chunksize=1) == ["whole"] * 3
    assert (tmp_path / "built").read_text() == "built\n"


def test_a_build_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))

    def fail(into: Path) -> None:
        (into / "half").write_text("half")
        raise SandboxError("no network")

    with pytest.raises(SandboxError, match="no network"):
        cached("thing", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["locks"]


def test_a_missing_java_is_named_with_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(SandboxError, match="Install Java 17"):
        artifacts.fetch(artifacts.POSTGRES)


def test_an_artifact_that_cannot_be_downloaded_is_named_and_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    nowhere = artifacts.Artifact("io.lockstep.invalid", "no-such-thing", "0.0.1", 1)
    with pytest.raises(SandboxError, match=r"io\.lockstep\.invalid:no-such-thing:0\.0\.1 could not be downloaded"):
        artifacts.fetch(nowhere)
    assert not (tmp_path / "maven" / "no-such-thing-0.0.1").exists()
