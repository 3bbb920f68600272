"""The Spark of an Airflow connection: its master and settings; which connections are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_core.errors import LockstepError
from lockstep_airflow.spark_connection import driver_of
from tests.spark.staged_changes import staged_pipeline

STORE: Any = None


def spark_of(monkeypatch: pytest.MonkeyPatch, connection: str) -> tuple[str, dict[str, str]]:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", connection)
    found = driver_of("spark_test", staged_pipeline(Path("/none")), STORE)
    return found._master, dict(found._conf)


@pytest.mark.parametrize(
    ("connection", "master", "conf"),
    [
        ('{"conn_type": "spark", "host": "local[*]"}', "local[*]", {"spark.driver.host": "127.0.0.1"}),
        ('{"conn_type": "spark", "host": "spark://spark.example", "port": 7077}', "spark://spark.example:7077", {}),
        (
            '{"conn_type": "spark", "host": "yarn", "extra": {"queue": "etl", "spark.executor.memory": "2g"}}',
            "yarn", {"spark.yarn.queue": "etl", "spark.executor.memory": "2g"},
        ),
        (
            '{"conn_type": "spark", "host": "k8s://https://kubernetes.example", "port": 6443,'
            ' "extra": {"namespace": "etl", "deploy-mode": "client"}}',
            "k8s://https://kubernetes.example:6443", {"spark.kubernetes.namespace": "etl"},
        ),
    ],
)  # fmt: skip
def test_a_connection_names_a_master_and_may_have_settings(
    monkeypatch: pytest.MonkeyPatch, connection: str, master: str, conf: dict[str, str]
) -> None:
    found, settings = spark_of(monkeypatch, connection)
    assert found == master
    assert settings.items() >= conf.items()


def test_the_endpoint_of_a_connection_has_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    found, settings = spark_of(monkeypatch, "spark-connect://me:t0ken@connect.example:15002")
    assert found.startswith("sc://connect.example:15002/;")
    assert "token=t0ken" in found
    assert settings == {}


def test_a_driver_in_the_cluster_and_a_missing_connection_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LockstepError) as caught:
        spark_of(monkeypatch, "spark://yarn?deploy-mode=cluster")
    assert caught.value.code == "spark.setup"
    with pytest.raises(LockstepError) as caught:
        driver_of("spark_none", staged_pipeline(Path("/none")), STORE)
    assert caught.value.code == "airflow.connection"
