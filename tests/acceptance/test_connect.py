"""A pipeline at a Spark Connect endpoint: the driver is a process without a JVM, and its code travels."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from examples.sandbox.process import LOG
from examples.sandbox.spark import ConnectServer
from spark_jobs.executors import on_executors
from spark_jobs.spark_session import end_session, open_session
from tests.acceptance.test_s3 import command_lines, texts_below
from tests.acceptance.test_standalone import CHANGES, ROWS, TABLE, problems
from tests.lab.foreign_python import foreign_python, install_what_jobs_import
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
TOKEN = "t0ken-0f-the-endp0int"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """With a token; its executors have nothing of Lockstep."""
    home = tmp_path_factory.mktemp("connect")
    python = foreign_python(home / "python")
    install_what_jobs_import(home / "python")
    environ = {"HOME": str(home), "SPARK_CONNECT_AUTHENTICATE_TOKEN": TOKEN}
    with ConnectServer.start(python=str(python), environ=environ) as server:
        yield server


def test_a_run_at_a_connect_endpoint_ends_with_the_target_equal_and_its_logins_unseen(
    endpoint: ConnectServer, source_database: Any, target_database: Any, lockstep: Any, tmp_path: Path
) -> None:
    name = source_database.name
    source_database.execute(TABLE, "INSERT INTO orders VALUES (100, 'old', 7, NULL)")
    lockstep.environ |= {
        "SHOP": source_database.server.url, "COPY": target_database.server.url,
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": TOKEN,
    }  # fmt: skip
    target_database.execute(TABLE)
    lockstep("init", "shop", "--source", "env:SHOP", "--include", rf"{name}\..*", "--target", "env:COPY",
             "--stage", (tmp_path / "stage").as_uri())  # fmt: skip
    file = lockstep.directory / "shop.yaml"
    base = file.read_text()
    spark: dict[str, Any] = {"master": endpoint.url, "driver_rows": 0}
    file.write_text(f"{base}\nspark: {json.dumps(spark | {'conf': {'spark.executor.memory': '1g'}})}\n")
    assert set(problems(lockstep)) == {"spark.setup"}
    file.write_text(f"{base}\nspark: {json.dumps(spark | {'conf': {'spark.sql.ansi.enabled': 'true'}})}\n")
    source_database.execute(*CHANGES)
    with command_lines() as seen:
        ran = lockstep("-v", "run", "shop.yaml", "--until", "now")
        assert problems(lockstep) == {}
    (entry,) = ran.document["ledgers"]
    assert (entry["staged_rows"], entry["key_changes"], entry["problems"]) == (6 + 3, 1, [])
    assert target_database.execute(ROWS) == source_database.execute(ROWS)
    printed = dict(texts_below(endpoint.directory))
    assert any("SparkListenerStageCompleted" in text for text in printed.values())
    for secret in (target_database.server.password, source_database.server.password, TOKEN):
        for form in (secret, quote(secret, safe="")):
            assert [line for line in seen if form in line] == []
            found = [(path, line) for path, text in printed.items() for line in text.splitlines() if form in line]
            assert found == []
            assert form not in ran.out + ran.err
    lockstep.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = "another"
    assert "spark.endpoint" in problems(lockstep)
    file.write_text(file.read_text().replace(endpoint.url, "sc://localhost:1"))
    findings = lockstep("check", "shop.yaml", code=None).document["findings"]
    assert [
        "failed to connect" in finding["what"] for finding in findings if finding.get("code") == "spark.endpoint"
    ] == [True]


def test_the_plan_of_an_execution_that_a_session_leaves_behind_shows_no_login(endpoint: ConnectServer) -> None:
    """The server prints such a plan whole."""
    login = "l0gin-0f-a-target"

    def work(seconds: float) -> list[str]:
        time.sleep(seconds)
        return [login]

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", TOKEN)
        spark = open_session("left", endpoint.url, {})
        assert on_executors(spark, [0.0, 0.0], work) == [login, login]
        log = endpoint.directory / LOG
        before = log.read_text().count("is created.")
        with ThreadPoolExecutor(1) as pool:
            left = pool.submit(on_executors, spark, [60.0], work)
            wait_until(lambda: log.read_text().count("is created.") > before)
            end_session(spark)
            assert left.exception() is not None
    wait_until(lambda: "removed in removeSessionExecutions" in log.read_text())
    printed = log.read_text()
    assert "command: " in printed
    assert login not in printed
