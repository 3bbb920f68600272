"""The extract task against a source that does harm at one step: Airflow gets one clear failure, and no secret."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from cdc_core import config
from cdc_core.meta import Meta
from lockstep_airflow.extract_sensor import ExtractSensor
from tests.dags.task_context import FIVE, task_context
from tests.lab.hostile_server import FakeServer, Login, Meddler

GIVE_UP_S = 120
CONTENT = "the content of a file of ours"
QUICK = "connect_timeout=2&read_timeout=2&write_timeout=2"
QUICK_SOURCE = "heartbeat_s: 0.5\n  read_timeout_s: 2\n  reconnect_s: 0.1"
HARMS = ["silence", "cut", "nonsense", "fewer columns", "file", "denied"]


class Task:
    """The sensor of a pipeline over a real server."""

    def __init__(self, file: Path, server: Any, patch: pytest.MonkeyPatch, secret: Path) -> None:
        file.write_text(file.read_text().replace("heartbeat_s: 1", QUICK_SOURCE))
        self.file, self.server, self.patch, self.secret = file, server, patch, secret
        self.forgotten = ""

    def execute(self, port: int, mode: str, options: str = "") -> BaseException | None:
        """One try of the task; what it raised."""
        extra = f"{QUICK}{options}"
        self.patch.setenv(
            "AIRFLOW_CONN_SOURCE_DB", f"mysql://{self.server.user}:{self.server.password}@127.0.0.1:{port}/?{extra}"
        )
        self.patch.setenv("AIRFLOW_CONN_TARGET_DB", "mysql://u:p@127.0.0.1:1/")
        ended: list[BaseException | None] = []

        def work() -> None:
            task = ExtractSensor(task_id="extract", file=str(self.file), source="shop_db", mode=mode, poke_interval=0)
            try:
                task.poke(task_context("extract", logical_date=FIVE))
                ended.append(None)
            except BaseException as error:  # noqa: BLE001 - looked at by the tests
                ended.append(error)
            finally:
                task._close()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(GIVE_UP_S)
        assert ended, "hangs"
        assert not [name for name in os.environ if name.startswith("LOCKSTEP_CONN_")]
        return ended[0]

    def wrong(self, step: int, harm: str, mode: str) -> str:
        self._until_streams_ended()
        with Meddler(self.server.port, step, harm, self.secret) as meddler:
            error = self.execute(meddler.port, mode)
            self.forget()
            received, where = bytes(meddler.received), f"{harm} at {step} {str(meddler.met)[:80]!r}: "
            if meddler.met is None:
                return f"{where}nothing was harmed"
        if error is not None and (not isinstance(error, AirflowException) or "internal." in str(error)):
            return f"{where}{type(error).__name__} {str(error)[:300]}"
        return f"{where}sent a file" if CONTENT.encode() in received else ""

    def _until_streams_ended(self) -> None:
        """A server notices late that nobody reads a stream any more; until then its server_id is taken."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            while cursor.execute("SELECT 1 FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"):
                time.sleep(0.1)

    def forget(self) -> None:
        """The next try is the first again: what is staged already would not be read."""
        self.forgotten += self.kept()
        pipeline = config.load(self.file)
        shutil.rmtree(pipeline.stage.uri.removeprefix("file://"), ignore_errors=True)
        Path(pipeline.meta.url.removeprefix("sqlite:///")).unlink(missing_ok=True)

    def kept(self) -> str:
        """The failure that meta keeps for the page, and all else in its file, also of earlier tries."""
        with Meta.open(config.load(self.file).meta.url, "shop") as meta:
            shown = str(meta.status.find(["main"]))
        path = Path(config.load(self.file).meta.url.removeprefix("sqlite:///"))
        return (
            self.forgotten
            + shown
            + "".join(one.read_bytes().decode("latin-1") for one in path.parent.glob(f"{path.name}*"))
        )


@pytest.fixture
def task(write_pipeline: Callable[..., Path], mariadb: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Task:
    secret = tmp_path / "secret"
    secret.write_text(CONTENT)
    return Task(write_pipeline("shop"), mariadb, monkeypatch, secret)


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_a_source_may_do_harm_at_any_step_of_the_extract_task(
    task: Task, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("cdc_core", "lockstep_airflow", "pymysql"):
        caplog.set_level(logging.DEBUG, name)
    harms = HARMS[::2] if mode == "poke" else HARMS[1::2]
    assert [bad for step, harm in zip((4, 9, 14), harms, strict=True) if (bad := task.wrong(step, harm, mode))] == []
    for text in (caplog.text, task.forgotten):
        assert task.server.password not in text
        assert CONTENT not in text


def test_a_source_that_takes_tls_away_learns_nothing_from_the_extract_task(task: Task) -> None:
    with FakeServer(Login(asks="mysql_clear_password")) as server:
        error = task.execute(server.port, "poke", "&ssl_mode=REQUIRED")
        assert "connection.unproven" in str(error)
        assert not server.received
    assert "connection.unproven" in task.kept()
