"""A driver that is started without spark-submit starts Spark itself, with the same settings, and ends it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cdc_core.apply.jobs import ANYWHERE, SparkJob, local_conf

pytestmark = pytest.mark.spark

DRIVER = """
import json, os, signal, sys
from pyspark import SparkContext
from spark_jobs.run_jobs import end_spark
from spark_jobs.session import open_session

end_spark()  # without Spark there is nothing to end
spark = open_session("alone")
found = {name: spark.conf.get(name) for name in ("spark.master", "spark.some.text", "spark.sql.session.timeZone")}
found["rows"] = spark.range(7).count()
jvm = SparkContext._gateway.proc
found["jvm"] = jvm.pid
end_spark()
found["ended"] = jvm.returncode
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""


def test_a_driver_alone_starts_the_jvm_when_it_needs_it_and_leaves_none(tmp_path: Path) -> None:
    script, result = tmp_path / "driver.py", tmp_path / "found.json"
    script.write_text(DRIVER)
    conf = {**ANYWHERE, **local_conf(), "spark.some.text": "two words, a 'quote' and $PATH"}
    job = SparkJob("alone", str(script), (str(result),), conf, jars=(), packages=(), excluded=(), environment=())
    command, variables = job.driver("local[1]")
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    subprocess.run(command, env={"PATH": path, "PYTHONPATH": ":".join(sys.path)} | variables, check=True, timeout=120)
    found = json.loads(result.read_text())
    assert found.pop("ended") == 0
    assert not Path(f"/proc/{found.pop('jvm')}").exists()
    assert found == {
        "spark.master": "local[1]", "spark.some.text": conf["spark.some.text"],
        "spark.sql.session.timeZone": "UTC", "rows": 7,
    }  # fmt: skip
