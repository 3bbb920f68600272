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


@pytest.mark.parametrize(("master", "here"), [("local[1]", True), ("spark://127.0.0.1:1", False)])
def test_a_driver_of_spark_submit_knows_where_its_executors_are_before_it_opens_a_session(
    tmp_path: Path, master: str, here: bool
) -> None:
    """Under Airflow a large table is merged by the driver, or by executors that are elsewhere."""
    script = tmp_path / "driver.py"
    script.write_text(
        "from pyspark import SparkContext\nfrom spark_jobs.session import is_on_this_machine\n"
        "print(f'here: {is_on_this_machine()}, session: {SparkContext._active_spark_context}')\n"
    )
    done = subprocess.run(
        ["spark-submit", "--master", master, str(script)],
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert f"here: {here}, session: None" in done.stdout
