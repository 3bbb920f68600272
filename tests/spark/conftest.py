"""A Spark Connect server for the tests of the jobs, whose executors have nothing of Lockstep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from examples.sandbox.spark import ConnectServer
from spark_jobs.spark_session import open_session
from tests.lab.foreign_python import foreign_python, install_what_jobs_import


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
