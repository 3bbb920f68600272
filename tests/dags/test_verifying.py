"""When the task of the verify DAG fails, waits, is retried or leaves. Verifying is a stand-in here; the real one is
tested beside servers in tests/integration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from cdc_core import config
from cdc_core.errors import RetryLater
from cdc_core.meta import Meta
from cdc_core.verify import verifier
from cdc_core.verify.comparison import Side, Wrong
from cdc_core.verify.lease import verifier_lease
from cdc_core.verify.modes import Mode
from cdc_core.verify.verifier import Job, TableResult, Verified
from cdc_core.windows import parse_moment


@pytest.fixture
def file(write_pipeline: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    made = write_pipeline("shop", more="verify: {mode: count}\n")
    for name in ("SOURCE_DB", "TARGET_DB"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", "mysql://u:p@127.0.0.1:1/")
    with Meta.open(config.load(made).meta.url, upgrade=True):
        pass
    return made


def poke(file: Path, of: str = "main", **params: Any) -> Any:
    from lockstep_airflow.verifying import VerifySensor

    task = VerifySensor(task_id="verify", file=str(file), target=of)
    ti = SimpleNamespace(dag_id="cdc_shop_verify", run_id="r", task_id="verify", map_index=0, try_number=1)
    run = SimpleNamespace(run_after=parse_moment("2026-01-01T00:00:00Z"), start_date=None)
    return task.poke({"params": params, "ti": ti, "dag_run": run})  # type: ignore[typeddict-item]


def finds(monkeypatch: pytest.MonkeyPatch, **result: Any) -> list[Job]:
    asked: list[Job] = []

    def verify(job: Job, tables: Any) -> Verified:
        asked.append(job)
        if "raises" in result:
            raise result["raises"]
        found = TableResult("orders", mode=job.mode, source=Side(5, ""), target=Side(5, ""), **result)
        return Verified((found,), 0, 0)

    monkeypatch.setattr(verifier, "verify", verify)
    return asked


def test_an_equal_target_ends_with_its_evidence_in_the_mode_of_the_file_or_of_the_form(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = finds(monkeypatch)
    ended = poke(file)
    assert (ended.is_done, ended.xcom_value["mode"], ended.xcom_value["equal"]) == (True, "count", None)
    ended = poke(file, mode="ordered", tables=["orders"], restart=True)
    assert (ended.xcom_value["equal"], ended.xcom_value["rows"]) == (True, 5)
    assert [job.mode for job in asked] == [Mode.COUNT, Mode.ORDERED]
    with Meta.open(config.load(file).meta.url) as meta:
        known = meta.verification("shop", "main")
    assert known is not None
    assert {mode: said["equal"] for mode, said in known.evidence.items()} == {"count": None, "ordered": True}


def test_a_difference_fails_the_task_at_once_and_says_where_the_evidence_is(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finds(monkeypatch, found={Wrong.TARGET: 3})
    with pytest.raises(AirflowFailException, match=r"3 rows of orders differ") as caught:
        poke(file, mode="ordered")
    assert "evidence: " in str(caught.value)
    assert "verify.differs" in str(caught.value)


def test_what_could_not_be_judged_is_retried(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, unsettled=2)
    with pytest.raises(AirflowException, match=r"verify\.unsettled") as caught:
        poke(file, mode="ordered")
    assert not isinstance(caught.value, AirflowFailException)


def test_it_waits_for_another_verifier_and_while_reading_is_paused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = finds(monkeypatch, raises=RetryLater("Paused.", code="verify.paused", remedy="resume"))
    assert not poke(file).is_done
    with Meta.open(config.load(file).meta.url) as meta, verifier_lease(meta, "shop", "main"):
        assert not poke(file).is_done
    assert len(asked) == 1


def test_a_target_that_the_form_does_not_name_is_skipped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = finds(monkeypatch)
    with pytest.raises(AirflowSkipException):
        poke(file, of="new")
    assert asked == []
