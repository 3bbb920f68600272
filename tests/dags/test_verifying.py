"""When the tasks of the verify DAG fail, wait, are retried or leave. Verifying and repairing are stand-ins here: the
real ones are tested beside servers in tests/integration, and in the DAG in test_runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from cdc_core import config
from cdc_core.errors import DataAtRisk, LeaseHeld, Paused, RetryLater
from cdc_core.meta import Meta
from cdc_core.operations.open_pipeline import open_pipeline
from cdc_core.operations.repair import repairer
from cdc_core.operations.repair.repairer import Result
from cdc_core.operations.verify import verifier
from cdc_core.operations.verify.comparison import DifferenceKind
from cdc_core.operations.verify.judgement import Wrong
from cdc_core.operations.verify.modes import Mode
from cdc_core.operations.verify.results import Finding, TableResult, VerifyReport
from cdc_core.operations.verify.verify_job import VerifyJob, verifier_lease
from tests.dags.task_context import task_context


@pytest.fixture
def file(write_pipeline: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    made = write_pipeline("shop", verify="mode: count")
    for name in ("SOURCE_DB", "TARGET_DB"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", "mysql://u:p@127.0.0.1:1/")
    with Meta.open(config.load(made).meta.url, "shop", upgrade=True):
        pass
    return made


def poke(file: Path, of: str = "main", **params: Any) -> Any:
    from lockstep_airflow.verify_tasks import VerifySensor

    task = VerifySensor(task_id="verify", file=str(file), subject=of)
    return task.poke(task_context("verify", params=params))


def finds(monkeypatch: pytest.MonkeyPatch, **result: Any) -> list[VerifyJob]:
    jobs: list[VerifyJob] = []

    def verify(job: VerifyJob, tables: Any) -> VerifyReport:
        jobs.append(job)
        if "raises" in result:
            raise result["raises"]
        table_result = TableResult("orders", mode=job.mode, source_rows=5, target_rows=5, **result)
        return VerifyReport(job.target.name, job.mode, (table_result,))

    monkeypatch.setattr(verifier, "verify", verify)
    return jobs


def test_an_equal_target_ends_with_its_evidence_in_the_mode_of_the_file_or_of_the_form(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = finds(monkeypatch)
    ended = poke(file)
    assert (ended.is_done, ended.xcom_value["mode"], ended.xcom_value["equal"]) == (True, "count", None)
    ended = poke(file, mode="ordered", tables=["orders"], restart=True)
    assert (ended.xcom_value["equal"], ended.xcom_value["rows"]) == (True, 5)
    assert [job.mode for job in jobs] == [Mode.COUNT, Mode.ORDERED]
    with Meta.open(config.load(file).meta.url, "shop") as meta:
        known = meta.verifications.find("main")
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
    jobs = finds(monkeypatch, raises=Paused("Paused.", remedy="resume"))
    assert not poke(file).is_done
    with open_pipeline(config.load(file)) as other, verifier_lease(other, "main"):
        assert not poke(file).is_done
    assert len(jobs) == 1


def test_a_target_that_the_form_does_not_name_is_skipped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = finds(monkeypatch)
    with pytest.raises(AirflowSkipException):
        poke(file, of="new")
    assert jobs == []


class Repairs:
    """The repair task after a verification, whose answer is its XCom."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file, self.found = file, finds(monkeypatch, found={Wrong.TARGET: 1}, findings=(FINDING,))
        self.asked: list[dict[str, Any]] = []
        self.xcom: Any = None
        self.verified = "failed"
        self.done: Result | Exception = Result({"orders": FOUND}, {"orders": EQUAL}, ("shop/1",), 1)

        def repair(job: VerifyJob, keys: Any, **options: Any) -> Result:
            self.asked.append(keys)
            if isinstance(self.done, Exception):
                raise self.done
            return self.done

        monkeypatch.setattr(repairer, "repair", repair)

    def verify(self, **params: Any) -> Any:
        self.xcom = poke(self.file, **params).xcom_value
        return self.xcom

    def poke(self, of: str = "main", **params: Any) -> Any:
        from lockstep_airflow.verify_tasks import RepairSensor

        task = RepairSensor(task_id="repair", file=str(self.file), subject=of, connection="spark_default")
        states = {"r": {"verify_0": self.verified}}
        ti = {"xcom_pull": lambda **_: self.xcom, "get_task_states": lambda **_: states}
        return task.poke(task_context("repair", params=params, **ti))


FINDING = Finding("0f3a", "orders", DifferenceKind.DIFFERS, Wrong.TARGET, {"id": "7"}, {}, 1, 1)
FOUND = TableResult("orders", source_rows=5, target_rows=5, found={Wrong.TARGET: 1}, findings=(FINDING,))
EQUAL = TableResult("orders", source_rows=1, target_rows=1)
ASKED = {"mode": "ordered", "repair": True}


@pytest.fixture
def repairs(file: Path, monkeypatch: pytest.MonkeyPatch) -> Repairs:
    return Repairs(file, monkeypatch)


def test_what_the_verification_found_is_left_to_the_repair_and_each_row_is_named_to_it(repairs: Repairs) -> None:
    assert repairs.verify(**ASKED)["differences"] == 1
    ended = repairs.poke(**ASKED)
    assert ended.xcom_value == {
        "target": "main", "rows": 1, "deletes": 0, "removed": 0, "batches": 1, "runs": [], "equal": True,
    }  # fmt: skip
    assert repairs.asked == [{"orders": [{"id": "7"}]}]


def test_nothing_is_repaired_that_nobody_asked_for(repairs: Repairs, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AirflowFailException, match=r"verify\.differs"):
        repairs.verify(mode="ordered")
    with pytest.raises(AirflowFailException, match=r"verify\.differs"):
        repairs.verify(mode="count", repair=True)  # it names no rows
    with pytest.raises(AirflowSkipException, match="not for new"):
        repairs.poke(of="new", **ASKED)
    finds(monkeypatch)
    repairs.verify(mode="ordered")
    with pytest.raises(AirflowSkipException, match="does not repair"):
        repairs.poke(mode="ordered")
    repairs.verify(**ASKED)
    with pytest.raises(AirflowSkipException, match="Nothing differs"):
        repairs.poke(**ASKED)
    assert repairs.asked == []


def test_the_file_says_whether_a_scheduled_run_repairs(repairs: Repairs) -> None:
    repairs.file.write_text(repairs.file.read_text().replace("mode: count", "repair: true"))
    assert repairs.verify()["differences"] == 1
    assert repairs.poke().is_done
    with pytest.raises(AirflowSkipException, match="does not repair"):
        repairs.poke(repair=False)


def test_without_the_verification_of_its_own_target_the_repair_fails(repairs: Repairs) -> None:
    for xcom in (None, {"target": "other", "differences": 1, "path": "evidence/x"}):
        repairs.xcom = xcom
        for params in (ASKED, {}):  # a run whose last tasks are all skipped would be a success
            with pytest.raises(AirflowFailException, match=r"repair\.not_verified"):
                repairs.poke(**params)
    repairs.xcom, repairs.verified = None, "skipped"
    with pytest.raises(AirflowSkipException, match="verification was skipped"):
        repairs.poke()
    assert repairs.asked == []


def test_what_a_repair_leaves_fails_at_once_and_what_passes_by_itself_is_retried_or_waited_for(
    repairs: Repairs,
) -> None:
    repairs.verify(**ASKED)
    before = {"orders": FOUND}
    for done, code in (
        (Result(before, {"orders": FOUND}), "verify.differs"),
        (DataAtRisk("Too many.", code="repair.limit", remedy="look"), "repair.limit"),
    ):
        repairs.done = done
        with pytest.raises(AirflowFailException, match=code):
            repairs.poke(**ASKED)
    for done, code in (
        (Result(before, {"orders": TableResult("orders", unsettled=1)}), "verify.unsettled"),
        (RetryLater("Overtaken.", code="verify.unsettled", remedy="again"), "verify.unsettled"),
    ):
        repairs.done = done
        with pytest.raises(AirflowException, match=code) as caught:
            repairs.poke(**ASKED)
        assert not isinstance(caught.value, AirflowFailException)
    for kind in (LeaseHeld, Paused):
        repairs.done = kind("Wait.", remedy="wait")
        assert not repairs.poke(**ASKED).is_done
    asked = len(repairs.asked)
    with open_pipeline(config.load(repairs.file)) as other, verifier_lease(other, "main"):
        assert not repairs.poke(**ASKED).is_done
    assert len(repairs.asked) == asked


def test_a_repair_of_an_incomplete_verification_says_so(repairs: Repairs, monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, found={Wrong.TARGET: 1}, findings=(FINDING,), unsettled=2)
    repairs.verify(**ASKED)
    with pytest.raises(AirflowFailException, match=r"repair\.not_verified"):
        repairs.poke(**ASKED)
    assert len(repairs.asked) == 1
    finds(monkeypatch, found={Wrong.TARGET: 9}, findings=(FINDING,))
    repairs.verify(**ASKED)
    with pytest.raises(AirflowFailException, match=r"repair\.limit"):
        repairs.poke(**ASKED)
    assert len(repairs.asked) == 1
