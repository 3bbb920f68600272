"""The Spark application of `lockstep run`: its output is kept, a job's status decides, its error comes back."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_core.apply.jobs import SparkJob
from cdc_core.apply.spark_application import SparkApplication
from cdc_core.errors import LockstepError, Refused, to_line

ERROR = Refused("orders has no key [x].", where="shop_0.orders_00", code="target.key", remedy="ADD UNIQUE KEY (id)")


class Script(SparkJob):
    """A job whose application is a shell's command instead of spark-submit's."""

    def command(self, master: str, *, spark_submit: str = "spark-submit") -> list[str]:
        return ["sh", "-c", self.conf["script"], "sh", self.application, *self.arguments]


DRIVER = f'exec {sys.executable} "$@"'
"""The application's driver, as it is, without Spark around it."""
ANSWERING = f"""echo started; exec {sys.executable} -c 'import socket, sys
channel = socket.socket(socket.AF_UNIX)
channel.connect(sys.argv[2])
for line in channel.makefile("rb"):
    channel.sendall(b"0\\n")' "$@" """
"""A driver that says of each job that it has ended well."""


def job(script: str, *arguments: str, name: str = "merge") -> SparkJob:
    return Script(name, f"{name}.py", arguments, {"script": script}, jars=(), packages=(), excluded=(), environment=())


def application(tmp_path: Path) -> SparkApplication:
    environ = {"PATH": "/usr/bin:/bin"}
    return SparkApplication("lockstep-shop", master="local[2]", output=tmp_path / "spark.log", environ=environ)


def test_an_application_that_never_asks_for_a_job_is_told_by_its_status_and_output(tmp_path: Path) -> None:
    with application(tmp_path) as spark:
        with pytest.raises(LockstepError) as caught:
            spark.submit(job(f"printf '%s\\n' '{to_line(ERROR, last=True)}'; exit 3"))
        assert caught.value.code == "target.key"
        for status in ("3", "0"):
            with pytest.raises(LockstepError) as caught:
                spark.submit(job(f"echo 'no Java' >&2; exit {status}"))
            assert caught.value.code == "run.spark_ended", "what an earlier application printed is not this one's"
            assert caught.value.where == str(tmp_path / "spark.log")
    assert (tmp_path / "spark.log").read_text().splitlines()[1:] == ["no Java", "no Java"]


def test_the_environment_of_this_python_comes_first_on_the_path(tmp_path: Path) -> None:
    with application(tmp_path) as spark, pytest.raises(LockstepError):
        spark.submit(job("command -v spark-submit"))
    assert (tmp_path / "spark.log").read_text().strip().endswith("/bin/spark-submit")


def test_a_missing_spark_submit_is_named(tmp_path: Path) -> None:
    class Missing(SparkJob):
        def command(self, master: str, *, spark_submit: str = "spark-submit") -> list[str]:
            return [str(tmp_path / "none")]

    made = job("")
    missing = Missing(*(getattr(made, name) for name in SparkJob.__slots__))
    with application(tmp_path) as spark, pytest.raises(LockstepError) as caught:
        spark.submit(missing)
    assert caught.value.code == "run.no_spark_submit"


def test_the_error_of_a_job_comes_back_and_the_next_job_gets_an_application_of_its_own(tmp_path: Path) -> None:
    """Before Spark starts: the jobs cannot read their pipeline."""
    counted = f"echo started; {DRIVER}"
    with application(tmp_path) as spark:
        for name in ("merge", "filter"):
            missing = str(tmp_path / f"{name}.yaml")
            with pytest.raises(LockstepError) as caught:
                spark.submit(job(counted, "--plan", "plan.json", "--pipeline", missing, name=name))
            assert (caught.value.code, caught.value.where) == ("config.unreadable", missing)
    assert (tmp_path / "spark.log").read_text().splitlines().count("started") == 2


def test_a_driver_that_may_do_all_jobs_itself_is_started_without_spark_submit(tmp_path: Path) -> None:
    """Before Spark starts: the job cannot read its pipeline."""
    missing = str(tmp_path / "merge.yaml")
    made = SparkJob("merge", "merge.py", ("--plan", "plan.json", "--pipeline", missing), {"spark.x": "a b"},
                    jars=(), packages=(), excluded=(), environment=())  # fmt: skip
    environ = {"PATH": "/nowhere"}  # where spark-submit would not find bash
    output = tmp_path / "spark.log"
    with (
        SparkApplication(
            "lockstep-shop", master="local[2]", output=output, environ=environ, driver_first=True
        ) as spark,
        pytest.raises(LockstepError) as caught,
    ):
        spark.submit(made)
    assert (caught.value.code, caught.value.where) == ("config.unreadable", missing)
    assert made.driver("local[2]")[1] == {
        "PYSPARK_SUBMIT_ARGS": "--master 'local[2]' --name merge --conf 'spark.x=a b' pyspark-shell"
    }


class Alone(SparkJob):
    """A job whose driver, which comes first, is a shell's command."""

    def driver(self, master: str) -> tuple[list[str], dict[str, str]]:
        return ["sh", "-c", self.conf["script"], "sh", self.application, *self.arguments], {}


def alone(script: str) -> SparkJob:
    return Alone("merge", "merge.py", (), {"script": script}, jars=(), packages=(), excluded=(), environment=())


def ahead(tmp_path: Path, *, driver_first: bool = True) -> SparkApplication:
    environ = {"PATH": "/usr/bin:/bin"}
    return SparkApplication("lockstep-shop", master="local[2]", output=tmp_path / "spark.log", environ=environ,
                            driver_first=driver_first)  # fmt: skip


def test_a_driver_that_is_started_ahead_does_the_first_job(tmp_path: Path) -> None:
    with ahead(tmp_path) as spark:
        spark.start_ahead(alone(ANSWERING))
        while not (tmp_path / "spark.log").read_text():
            time.sleep(0.01)
        spark.submit(alone(ANSWERING))
        spark.submit(alone(ANSWERING))
    assert (tmp_path / "spark.log").read_text() == "started\n"


def test_a_driver_that_was_started_for_nothing_leaves_neither_process_nor_output(tmp_path: Path) -> None:
    with ahead(tmp_path) as spark:
        spark.start_ahead(alone(f"echo $$ > {tmp_path}/pid; echo a warning; exec sleep 60"))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)
    assert gone(int((tmp_path / "pid").read_text()))
    assert [one.name for one in tmp_path.iterdir()] == ["pid"]


def test_the_folder_of_the_socket_is_gone_once_a_driver_has_connected(tmp_path: Path) -> None:
    """A command that is killed before its first job leaves none."""
    missing = str(tmp_path / "merge.yaml")
    made = SparkJob("merge", "merge.py", ("--plan", "plan.json", "--pipeline", missing), {}, jars=(), packages=(),
                    excluded=(), environment=())  # fmt: skip
    with ahead(tmp_path) as spark:
        spark.start_ahead(made)
        assert spark._driver is not None
        private = Path(spark._driver.listener.getsockname()).parent
        while private.exists():
            assert spark._driver.process.poll() is None
            time.sleep(0.01)
        with pytest.raises(LockstepError) as caught:
            spark.submit(made)
    assert caught.value.code == "config.unreadable"


def test_what_keeps_a_driver_from_starting_ahead_is_told_by_the_first_job(tmp_path: Path) -> None:
    broken = alone(f"printf '%s\\n' '{to_line(ERROR, last=True)}'; exit 3")
    with ahead(tmp_path) as spark:
        spark.start_ahead(broken)
        with pytest.raises(LockstepError) as caught:
            spark.submit(broken)
    assert caught.value.code == "target.key"


def test_a_job_with_other_settings_does_not_get_the_driver_that_was_started_ahead(tmp_path: Path) -> None:
    with ahead(tmp_path) as spark:
        spark.start_ahead(alone("exec sleep 60"))
        with pytest.raises(LockstepError) as caught:
            spark.submit(alone("exit 4"))
    assert "status 4" in caught.value.what


def test_an_application_that_begins_with_a_jvm_is_not_started_ahead(tmp_path: Path) -> None:
    with ahead(tmp_path, driver_first=False) as spark:
        spark.start_ahead(alone("echo started"))
    assert not list(tmp_path.iterdir())


def test_a_driver_that_dies_amid_a_job_is_missed(tmp_path: Path) -> None:
    dying = f"""exec {sys.executable} -c 'import socket, sys
channel = socket.socket(socket.AF_UNIX)
channel.connect(sys.argv[2])
channel.recv(9)
sys.exit(7)' "$@" """
    with application(tmp_path) as spark, pytest.raises(LockstepError) as caught:
        spark.submit(job(dying))
    assert caught.value.code == "run.spark_ended"
    assert "status 7" in caught.value.what


def test_jobs_with_the_same_settings_share_an_application(tmp_path: Path) -> None:
    with application(tmp_path) as spark:
        spark.submit(job(ANSWERING))
        spark.submit(job(ANSWERING, name="filter"))
        spark.submit(replace(job(ANSWERING), conf={"script": ANSWERING, "spark.x": "1"}))
    assert (tmp_path / "spark.log").read_text().splitlines() == ["started"] * 2


def test_an_interrupted_job_leaves_no_process_of_its_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spark-submit's driver is a process below it, which may be writing."""
    below = f"""{sys.executable} -c 'import os, socket, sys, time
channel = socket.socket(socket.AF_UNIX)
channel.connect(sys.argv[2])
channel.recv(9)
open("{tmp_path}/pid", "w").write(str(os.getpid()))
time.sleep(60)' "$@" & wait"""

    def interrupted(driver: Any, orders: Any) -> bytes:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr("cdc_core.apply.spark_application._Driver._received", interrupted)
    with application(tmp_path) as spark, pytest.raises(KeyboardInterrupt):
        spark.submit(job(below))
    assert gone(int((tmp_path / "pid").read_text()))


def gone(pid: int) -> bool:
    """Whether the process ends, or waits only to be noticed by its parent."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z"):
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False
