"""How a task submits its Spark job: which connections are refused, and the process of a job at a Connect endpoint."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc_core.apply.jobs import SparkJob
from cdc_core.config import parse
from cdc_core.errors import DataAtRisk, LockstepError, to_line
from lockstep_airflow.spark_submission import SparkSubmission
from tests.spark.staged_changes import PIPELINE

PLAN: Any = SimpleNamespace(path="runs/r/plan.json", targets=())
TOKEN = "t0ken"


def submission(monkeypatch: pytest.MonkeyPatch, connection: str, session: str = "remote") -> SparkSubmission:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", connection)
    text = PIPELINE.format(folder="/none") + f"spark: {{session: {session}, connection: spark_test}}\n"
    return SparkSubmission("spark_test", parse(text, where="test"), {"PATH": "/bin"}, PLAN, Path("p.yaml"))


def job(tmp_path: Path, code: str) -> SparkJob:
    file = tmp_path / "merge.py"
    file.write_text(code)
    return SparkJob("lockstep-shop-merge", str(file), ("--plan", "p"), {}, (), (), (), ())


@pytest.mark.parametrize(
    ("connection", "session", "code"),
    [
        ("spark://spark.example:7077", "remote", "airflow.spark_connection"),
        ("spark-connect://connect.example", "run", "airflow.spark_connection"),
        ("spark-connect://connect.example", "task", "airflow.spark_connection"),
        ("spark://yarn?deploy-mode=cluster", "run", "airflow.deploy_mode"),
    ],
)
def test_a_connection_that_the_session_cannot_use_is_refused(
    monkeypatch: pytest.MonkeyPatch, connection: str, session: str, code: str
) -> None:
    with pytest.raises(LockstepError) as caught:
        submission(monkeypatch, connection, session)
    assert caught.value.code == code


def test_a_job_at_an_endpoint_has_its_address_and_token_in_its_environment_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = tmp_path / "said"
    code = f"import os, sys; open({str(said)!r}, 'w').write(repr((os.environ['SPARK_REMOTE'], sys.argv[1:])))"
    submission(monkeypatch, f"spark-connect://me:{TOKEN}@connect.example:15002").submit(job(tmp_path, code), "merge")
    address, arguments = eval(said.read_text())
    assert address.startswith("sc://connect.example:15002/;")
    assert f"token={TOKEN}" in address
    assert arguments == ["--plan", "p"]
    assert TOKEN not in caplog.text


def test_the_error_of_a_job_at_an_endpoint_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    error = DataAtRisk("Rows differ.", where="shop.orders", code="spark.rows_differ", remedy="look")
    one = submission(monkeypatch, "spark-connect://connect.example")
    with pytest.raises(DataAtRisk) as caught:
        one.submit(job(tmp_path, f"print({to_line(error, last=True)!r}); raise SystemExit(4)"), "merge")
    assert caught.value.code == "spark.rows_differ"
    with pytest.raises(LockstepError) as ended:
        one.submit(job(tmp_path, "import os; os.abort()"), "merge")
    assert ended.value.code == "run.spark_ended"


def test_a_task_that_is_told_to_end_ends_its_job_at_the_endpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    one = submission(monkeypatch, "spark-connect://connect.example")

    def kill() -> None:
        while not begun.exists():
            time.sleep(0.02)
        one.on_kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(LockstepError) as caught:
        one.submit(job(tmp_path, f"import time; open({str(begun)!r}, 'w').close(); time.sleep(600)"), "merge")
    killer.join()
    assert caught.value.code == "run.spark_ended"
