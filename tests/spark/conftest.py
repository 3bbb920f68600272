"""Targets of the jobs, and a Spark Connect server whose executors have nothing of Lockstep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.sandbox.spark import ConnectServer
from spark_jobs.spark_session import open_session
from tests.lab.foreign_python import foreign_python, install_what_jobs_import
from tests.spark.target_line import BY_DRIVER, BY_SPARK_IN_MATRIX, ORDERS, REMOTE, TargetLine, target_line


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    home = tmp_path_factory.mktemp("connect")
    python = foreign_python(home / "python")
    install_what_jobs_import(home / "python")
    with ConnectServer.start(python=str(python), environ={"HOME": str(home)}) as server:
        yield server


@pytest.fixture(scope="session")
def remote_session(connect_server: ConnectServer) -> SparkSession:
    return open_session("tests", connect_server.url, {})


@pytest.fixture
def remote(remote_session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """A session there. While it is used, pyspark's functions are those of Spark Connect."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    return remote_session


@pytest.fixture(params=[BY_DRIVER, BY_SPARK_IN_MATRIX, REMOTE])
def line(
    mariadb_target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[TargetLine]:
    """Orders, by customer in 2 databases of 2 tables: by the driver alone. In the matrix also by Spark's jobs, which
    call the same functions, and at a Spark Connect endpoint."""
    driver_rows, session = request.param
    monkeypatch.setenv("TARGET_URL", mariadb_target.url)
    columns = (
        "id BIGINT PRIMARY KEY, customer INT NOT NULL, code VARCHAR(20) COLLATE utf8mb4_bin, at DATETIME(6), "
        "UNIQUE KEY code (code)"
    )
    sharding = {"key": "customer", "databases": 2, "tables": 2}
    with target_line(request, mariadb_target, tmp_path, ORDERS, columns, sharding, driver_rows, session) as line:
        yield line
