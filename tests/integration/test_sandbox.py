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
from tests.lab.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]


def alive(pid: int) -> bool:
    """Whether the process runs: one that has ended and waits for its parent's look does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("fixture", ["mariadb", "mysql9"])
def test_no_account_of_a_sql_server_is_without_a_password(fixture, request):
    server = request.getfixturevalue(fixture)
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
            pymysql.connect(host=host, port=server.port, user="root", password="")
    assert server.password not in repr(server)
    accounts = "SELECT COUNT(*) FROM mysql.user WHERE user = '' OR (user = 'root' AND authentication_string = '')"
    assert server.run(accounts) == [(0,)]


def test_a_server_has_its_options_outlives_the_thread_that_started_it_and_dies_with_its_guard():
    options = {"binlog_row_metadata": "NO_LOG", "log-slave-updates": None}
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(MariaDb.start, server_id=4, options=options).result()
    with server:
        assert server.run("SELECT @@binlog_row_metadata, @@log_slave_updates") == [("NO_LOG", 1)]
        directory, pid = server.directory, server.pid
        assert directory.exists()
        guard = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(guard, signal.SIGKILL)
        wait_until(lambda: not alive(pid))
    assert not directory.exists()


def test_a_server_that_cannot_start_says_why():
    with pytest.raises(SandboxError, match="no-such-option"):
        MariaDb.start(options={"no-such-option": "1"})


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


START_AND_WAIT = """
import sys, time
from examples.sandbox.postgres import Postgres
server = Postgres.start()
print(server.pid, server.directory, flush=True)
time.sleep(600)
"""


def test_a_server_dies_with_a_parent_that_is_killed():
    """One of another user, whose change clears what a kernel does for a child."""
    parent = subprocess.Popen([sys.executable, "-c", START_AND_WAIT], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    try:
        pid_text, directory = parent.stdout.readline().split()
        assert alive(int(pid_text))
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    wait_until(lambda: not alive(int(pid_text)))
    wait_until(lambda: not Path(directory).exists())


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
