"""A Spark of its own on this machine, from the jars of the installed pyspark: a standalone cluster (a master and its
workers), or a Spark Connect server.

Its executors run with a Python and an environment that the caller gives: nothing of this process is inherited.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from examples.sandbox.cache import SandboxError
from examples.sandbox.process import HOST, LOG, Directory, ServerProcess, free_port


def spark_home() -> Path:
    """The folder of the installed pyspark, which has Spark's scripts and jars."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise SandboxError("pyspark is not installed in this Python")
    return Path(found.origin).parent


JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Of a JVM that lives for a minute: its compiler stops at the first level."""


def _environ(given: Mapping[str, str]) -> dict[str, str]:
    """Of Spark's processes: what a service has, and nothing of this process but its Java."""
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG") if name in os.environ}
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "SPARK_LOCAL_IP": HOST, "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        "SPARK_HOME": str(spark_home()), **kept, **given,
    }  # fmt: skip


def _process(
    name: str, command: list[str], place: Directory, environ: Mapping[str, str], port: int, host: str = HOST
) -> ServerProcess:
    def ready() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((host, port)) == 0

    return ServerProcess(name, command, directory=place, ready=ready, env=_environ(environ))


@dataclass(frozen=True, kw_only=True)
class Standalone:
    """A running standalone cluster. master: its URL. ui: of the master, which has a page for each application."""

    master: str
    ui: str
    directory: Path
    workers: tuple[Path, ...]
    """The directory of each worker, with what its executors print in app-*/*/stderr."""
    _stack: ExitStack = field(repr=False)

    @classmethod
    def start(
        cls, *, workers: int = 2, environ: Mapping[str, str] | None = None, conf: Mapping[str, str] | None = None,
        memory: str = "1g",
    ) -> Self:  # fmt: skip
        """environ: of the workers, and so of the executors. conf: of master and workers, as in spark-defaults.conf."""
        stack = ExitStack()
        try:
            place = Directory(None, "spark")
            stack.callback(place.remove)
            port, ui = free_port(), free_port()
            heap = {"SPARK_DAEMON_MEMORY": "256m"}
            spark_class = str(spark_home() / "bin" / "spark-class")
            defaults = place.path / "spark-defaults.conf"
            defaults.touch(mode=0o600)
            defaults.write_text("".join(f"{key} {value}\n" for key, value in (conf or {}).items()))
            common = ["--properties-file", str(defaults)]
            master = _process(
                "Spark's master",
                [spark_class, "org.apache.spark.deploy.master.Master", "--host", HOST, "--port", str(port),
                 "--webui-port", str(ui), *common],
                _below(place, "master"), heap, port,
            )  # fmt: skip
            stack.callback(master.kill)
            master.start()
            url, folders = f"spark://{HOST}:{port}", []
            started = []
            for number in range(workers):
                home, own = _below(place, f"worker{number}"), free_port()
                host = f"127.0.0.{1 + number}"  # Spark begins a speculative attempt on another host only
                command = [spark_class, "org.apache.spark.deploy.worker.Worker", "--host", host, "--port", str(own)]
                command += ["--webui-port", "0", "--cores", "1", "--memory", memory, "--work-dir", str(home.path)]
                given = {**(environ or {}), **heap, "SPARK_LOCAL_IP": host}
                worker = _process("a worker of Spark", [*command, *common, url], home, given, own, host)
                stack.callback(worker.kill)
                started.append(worker)
                folders.append(home.path)
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(ServerProcess.start, started))
            for home_path in folders:
                _await_line(home_path / LOG, "Successfully registered with master")
        except BaseException:
            stack.close()
            raise
        address = f"http://{HOST}:{ui}"
        return cls(master=url, ui=address, directory=place.path, workers=tuple(folders), _stack=stack)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


@dataclass(frozen=True, kw_only=True)
class ConnectServer:
    """A running Spark Connect server. url: its endpoint. events: the folder of its event logs."""

    url: str
    directory: Path
    events: Path
    _process: ServerProcess = field(repr=False)
    _stack: ExitStack = field(repr=False)

    @property
    def pid(self) -> int | None:
        """Of the JVM; None if it does not run."""
        return self._process.pid

    def restart(self) -> None:
        """Starts it again on the same port. It has forgotten all sessions."""
        self._process.kill()
        self._process.start()

    @classmethod
    def start(
        cls, *, master: str = "local[2]", python: str = sys.executable, environ: Mapping[str, str] | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> Self:  # fmt: skip
        """python: of its executors, which a Connect server takes from PYSPARK_PYTHON. environ: of the server."""
        stack = ExitStack()
        try:
            place = Directory(None, "connect")
            stack.callback(place.remove)
            events = place.path / "events"
            events.mkdir()
            port = free_port()
            settings = {
                "spark.connect.grpc.binding.address": HOST, "spark.connect.grpc.binding.port": str(port),
                "spark.driver.host": HOST, "spark.driver.bindAddress": HOST, "spark.ui.enabled": "false",
                "spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(),
                "spark.eventLog.compress": "false", "spark.eventLog.rolling.enabled": "false",
                "spark.sql.catalogImplementation": "in-memory",
                "spark.sql.warehouse.dir": str(place.path / "warehouse"),
                **(conf or {}),
            }  # fmt: skip
            defaults = place.path / "spark.conf"
            defaults.touch(mode=0o600)
            defaults.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
            server = _process(
                "the Spark Connect server",
                [str(spark_home() / "bin" / "spark-submit"), "--class",
                 "org.apache.spark.sql.connect.service.SparkConnectServer", "--name", "connect", "--master", master,
                 "--properties-file", str(defaults), "spark-internal"],
                place, {"PYSPARK_PYTHON": python, **(environ or {})}, port,
            )  # fmt: skip
            stack.callback(server.kill)
            server.start()
        except BaseException:
            stack.close()
            raise
        # By this name alone pyspark's client sends a token without TLS.
        url = f"sc://localhost:{port}"
        return cls(url=url, directory=place.path, events=events, _process=server, _stack=stack)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def _below(place: Directory, name: str) -> Directory:
    return Directory(place.path / name, name)


def _await_line(log: Path, text: str, timeout_s: float = 60.0) -> None:
    until = time.monotonic() + timeout_s
    while not re.search(text, log.read_text(errors="replace")):
        if time.monotonic() > until:
            raise SandboxError(f"{log} does not say {text!r} within {timeout_s:.0f} s")
        time.sleep(0.05)
