"""The driver of jobs is this process: what Spark gets from it and leaves in it, and how Spark's errors come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

SCRIPT = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from pyspark import SparkContext
from pyspark.errors import PySparkException
from cdc_core.config import parse
from cdc_core.errors import DataAtRisk, LockstepError
from cdc_core.stage.stores import open_stage
from spark_jobs import driver as drivers
from spark_jobs.driver import Driver

pipeline = parse(Path("p.yaml").read_text(), where="test")
plan = SimpleNamespace(run_id="r", merge_set=lambda name: SimpleNamespace(tables=()))
job = drivers.SparkJob("merge", plan, merge_set="0")
handler = signal.signal(signal.SIGINT, lambda *_: None)
handler = signal.getsignal(signal.SIGINT)

def doing(work):
    drivers.work_of = lambda name, lake: work

with Driver(pipeline, open_stage(pipeline.stage), master="local[1]", output=Path("spark.log")) as spark:
    seen = {}
    def look(job):
        seen["conf"] = [job.spark.conf.get(name) for name in ("spark.some.text", "spark.sql.session.timeZone")]
        seen["rows"], seen["jvm"] = job.spark.range(7).count(), SparkContext._gateway.proc.pid
        seen["environ"] = Path(f"/proc/{seen['jvm']}/environ").read_bytes()
    doing(lambda job: None)
    spark.submit(job)
    assert SparkContext._gateway is None, "a job that needs no Spark starts none"
    doing(look)
    spark.submit(job)
    first = seen["jvm"]
    spark.submit(job)
    assert (seen["jvm"], seen["rows"]) == (first, 7), "the next job has the same Spark"
    assert seen["conf"] == ["two words, a 'quote' and $PATH", "UTC"]
    assert b"s3cret-of-the-source" not in seen["environ"]
    assert os.environ["SHOP"].endswith("source"), "this process has it again"
    assert signal.getsignal(signal.SIGINT) is handler
    def fail(job):
        raise DataAtRisk("Rows differ.", code="stage.damaged", remedy="look")
    doing(fail)
    try:
        spark.submit(job)
        raise AssertionError
    except DataAtRisk:
        assert not Path(f"/proc/{first}").exists(), "Spark ends after a job that failed"
    def die(job):
        look(job)
        os.kill(seen["jvm"], signal.SIGKILL)
        job.spark.range(7).count()
    doing(die)
    try:
        spark.submit(job)
        raise AssertionError
    except LockstepError as error:
        assert error.code == "spark.ended", error
        assert error.where == "spark.log" and "Traceback" in Path("spark.log").read_text()
    doing(look)
    spark.submit(job)
assert not Path(f"/proc/{seen['jvm']}").exists(), "nothing is left of it"
"""
PIPELINE = """
pipeline: shop
sources: [{name: one, connection: "env:SHOP", server_id: 9}]
tables: {include: ['shop\\..*']}
stage: {uri: "file:///stage"}
meta: {url: "sqlite:////m.db"}
spark: {conf: {spark.some.text: "two words, a 'quote' and $PATH"}}
targets: [{name: shards, connections: ["env:COPY"], tables: {"*": {database: "db"}}}]
"""


def command(folder: Path, script: str) -> subprocess.Popen[str]:
    (folder / "p.yaml").write_text(PIPELINE)
    environ = {
        **os.environ, "PYTHONPATH": ":".join(sys.path), "SHOP": "mysql://u:s3cret-of-the-source@h/source",
        "COPY": "mysql://u:p@h", "SPARK_REMOTE": "sc://localhost:1",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", script], cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


def test_spark_starts_below_the_driver_when_a_job_needs_it_and_ends_with_it(tmp_path: Path) -> None:
    with command(tmp_path, SCRIPT) as process:
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out


def test_a_driver_that_is_killed_leaves_no_jvm(tmp_path: Path) -> None:
    script = SCRIPT.partition("    def fail(job)")[0] + "    print(first, flush=True)\n    signal.pause()\n"
    with command(tmp_path, script) as process:
        assert process.stdout is not None
        jvm = next(int(line) for line in iter(process.stdout.readline, "") if line.strip().isdigit())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        while lives(jvm):
            time.sleep(0.05)


def lives(pid: int) -> bool:
    try:
        return not Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return False
