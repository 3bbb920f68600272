"""Lockstep's page, asked through Airflow's own web application with users of Airflow's own login."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from cdc_core.errors import DataAtRisk, Refused, RetryLater
from cdc_core.meta import Cutover, ReadChunk, TableCopy, repository
from cdc_core.meta.table_copies import copier_of
from cdc_core.model.batch import CopiedChunk
from cdc_core.model.coverage import NO_SURVEY, How, TableCoverage
from cdc_core.model.position import Position
from cdc_core.model.readable import moment
from cdc_core.model.run_plan import WriteCounts
from cdc_core.model.schema import TableSchema
from cdc_core.operations.apply import commit
from lockstep_airflow.page import airflow_state, figures
from lockstep_airflow.page.glossary import TERMS
from tests.dags.made_pipelines import ALERT, staged
from tests.lab.made_line import WINDOW, Line

OURS = '<script src="page.js" defer></script>'
REPLAY = "cdc_shop_replay"
SNAPSHOT = "cdc_shop_snapshot"
VERIFY = "cdc_shop_verify"


@pytest.fixture(scope="module")
def airflow_app(airflow_home: Path) -> Any:
    """The web server's application, with the plugin as Airflow found it."""
    from airflow.api_fastapi.app import create_app

    return create_app(apps="core")


@pytest.fixture
def client(airflow_app: Any) -> Iterator[Callable[..., Any]]:
    """`client(role)`: an HTTP client that is logged in with a role of Airflow's; without one not logged in."""
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from fastapi.testclient import TestClient

    opened = []

    def log_in(role: str | None = None) -> TestClient:
        test_client = TestClient(airflow_app, raise_server_exceptions=False)
        opened.append(test_client)
        if role is not None:
            user = SimpleAuthManagerUser(username="reader", role=role)
            token = airflow_app.state.auth_manager.generate_jwt(user)
            test_client.cookies.set("_token", token)
        return test_client

    yield log_in
    for test_client in opened:
        test_client.close()


@pytest.fixture
def shop(write_pipeline: Callable[..., Path]) -> Iterator[Line]:
    line = staged(write_pipeline("shop"))
    yield line
    line.meta.close()


def test_who_is_not_logged_in_sees_nothing(client: Callable[..., Any], shop: Line) -> None:
    for path in ("", "status.json", "style.css", "page.js", "ledger/shop/first"):
        answer = client().get(f"/lockstep/{path}")
        assert answer.status_code == 401
        assert "shop" not in answer.text
    forged = client()
    forged.cookies.set("_token", "nonsense")
    assert forged.get("/lockstep/").status_code in (401, 403)


def test_a_viewer_sees_the_figures_that_status_prints(client: Callable[..., Any], shop: Line) -> None:
    answer = client("VIEWER").get("/lockstep/")
    assert answer.status_code == 200
    text = " ".join(unescape(re.sub("<[^>]+>", " ", answer.text)).split())
    for part in (
        "binlog.000001:3004",
        "1,234",
        "it broke at",
        "run second",
        "test",
        "pending 0, committed 1, staged 2",
    ):
        assert part in text
    (found,) = client("VIEWER").get("/lockstep/status.json").json()["pipelines"]
    status = shop.meta.status.find(["main"])
    (source,) = found["sources"]
    assert (source["epoch"], source["holder"]) == (status.sources[0].epoch, "test")
    assert source["position"]["offset"] == status.sources[0].checkpoint.position.offset
    assert found["targets"][0]["records"]["COMMITTED"] == {"batches": 1, "rows": 1234}
    assert found["targets"][0]["open"] == {"batches": 2, "rows": 5}
    assert [batch["rows"] for batch in found["batches"]] == [5, 0, 1234]
    assert [window["rows"] for window in found["windows"]] == [1234, 0, 0, 5]
    assert source["ring"] == {"items": 5, "size_bytes": 600, "most_items": 1234, "most_bytes": 8000}
    assert "5 of 1,048,576 changes, 600 B of 128.0 MiB; peak 1,234, 7.8 KiB" in text
    (delay,) = found["delays"]
    assert (delay["run_id"], delay["window"]) == ("first", [moment(edge) for edge in WINDOW])
    assert delay["delay_s"] == (status.runs[1].updated_us - WINDOW[1]) / 1e6
    assert figures._delays([replace(run, airflow_run_id="backfill__2026") for run in status.runs]) == []
    assert answer.text.count("<figure>") == 3
    assert answer.text.count('class="stack"') == 2  # the ledger of the run that was committed
    second, first = found["runs"]
    assert (second["state"], second["targets"][0]["sums"]) == ("FAILED", None)
    assert first["targets"][0]["adds_up"] is True
    assert first["targets"][0]["sums"]["winners"] == first["targets"][0]["ledgers"][0]["winners"] == 1234


def text_of(answer: Any) -> str:
    return " ".join(unescape(re.sub("<[^>]+>", " ", answer.text)).split())


def test_the_state_of_a_cutover_its_checks_and_its_clock_are_shown(client: Callable[..., Any], shop: Line) -> None:
    assert client("VIEWER").get("/lockstep/status.json").json()["pipelines"][0]["cutover"] is None
    meta = shop.meta
    lease = meta.leases.acquire("cutover:x", "test", 600)
    finding = {"status": "warn", "subject": "table orders", "what": f"orders_0: id is {ALERT}", "remedy": "alter it"}
    begun = meta.cutovers.begin(lease, Cutover("c1", "shop", "shop_back", "PREPARED"), ())
    begun = meta.cutovers.move(lease, begun, "CHASE", {"findings": [finding]})
    stopped = meta.cutovers.move(lease, begun, "STOPPED", {})
    answer = client("VIEWER").get("/lockstep/")
    assert "cutover stopped to the target, c1" in text_of(answer)
    assert re.search(r"writes are stopped \d+\.\d s of at most 5 s", text_of(answer))
    assert f"table orders orders_0: id is {ALERT} fix alter it" in text_of(answer).replace("&lt;", "<")
    assert re.findall("<script.*", answer.text) == [OURS]

    proofs = [{"keys": {"orders": 1200, "items": 34}, "counted": ["orders", "items"], "at": {}}]
    for state, details in (("DRAINED", {}), ("PROVED", {"proofs": proofs}), ("ARMED", {"stopped_s": 1.25}),
                           ("SWITCHING", {"said": "code 9"})):  # fmt: skip
        stopped = meta.cutovers.move(lease, stopped, state, details)
    text = text_of(client("VIEWER").get("/lockstep/"))
    for part in (
        "cutover switching",
        "writes were stopped 1.2 s of at most 5 s",
        "keys compared while they were 1,234 2 tables counted",
        "Nobody knows yet whether the application was switched. code 9",
        "way back – not switched",
    ):
        assert part in text, text
    for state in ("SWITCHED", "WATCH"):
        stopped = meta.cutovers.move(lease, stopped, state, {})
    text = text_of(client("VIEWER").get("/lockstep/"))
    assert "way back not ready not ready: shop_back has not run yet" in text, text
    (found,) = client("VIEWER").get("/lockstep/status.json").json()["pipelines"]
    assert [step["state"] for step in found["cutover"]["steps"]][-2:] == ["SWITCHED", "WATCH"]
    meta.cutovers.move(lease, stopped, "COMPLETE", {})
    assert "in this state ended" in text_of(client("VIEWER").get("/lockstep/"))


def test_what_comes_from_logs_and_errors_is_escaped_and_the_policy_allows_no_script_but_ours(
    client: Callable[..., Any], shop: Line, write_pipeline: Callable[..., Path]
) -> None:
    broken = write_pipeline("bank", file=f"{ALERT.replace('/', '')}.yaml", shedule={})
    answer = client("ADMIN").get("/lockstep/")
    assert re.findall("<script.*", answer.text) == [OURS]
    for part in (f"needs re-sync of table {ALERT}", f"it broke at {ALERT}", str(broken)):
        assert part in unescape(answer.text)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';")
    assert "unsafe" not in policy
    assert re.search(r"\sstyle=|\son\w+=", re.sub(r">[^<]*<", "><", answer.text)) is None


def test_one_pipelines_trouble_stands_in_its_place_and_hides_no_other(
    client: Callable[..., Any], shop: Line, write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    write_pipeline("fresh", meta={"url": f"sqlite:///{tmp_path}/elsewhere/fresh.db"})
    write_pipeline("away", meta={"url": "mysql://nobody@127.0.0.1:1/meta"})
    write_pipeline("unset", meta={"url": "env:NO_SUCH_VARIABLE"})
    write_pipeline("bank", shedule={})
    seen = client("VIEWER").get("/lockstep/status.json").json()
    found = {pipeline["pipeline"]: pipeline["error"] and pipeline["error"]["code"] for pipeline in seen["pipelines"]}
    assert found == {"away": "connection.unreachable", "fresh": "meta.absent", "shop": None, "unset": "config.unset"}
    assert [error["code"] for error in seen["broken"]] == ["config.invalid"]
    text = unescape(client("VIEWER").get("/lockstep/").text)
    for error in [*(pipeline["error"] for pipeline in seen["pipelines"] if pipeline["error"]), *seen["broken"]]:
        assert error["what"] in text
        assert error["remedy"] in text
    assert not (tmp_path / "elsewhere").exists()


def test_nonsense_in_the_folder_and_servers_that_keep_silent_leave_the_page_standing(
    client: Callable[..., Any], shop: Line, write_pipeline: Callable[..., Path], pipelines: Path
) -> None:
    (pipelines / "folder.yaml").mkdir()
    (pipelines / "bytes.yaml").write_bytes(b"\x00\xff\xfe")
    Path(os.fsdecode(os.fsencode(pipelines) + b"/\xff.yaml")).write_text("pipeline: [")
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        for name, driver in (("mute", "mysql"), ("quiet", "postgresql")):
            file = write_pipeline(name, source=f"{name}_db")
            url = f"{driver}://nobody@127.0.0.1:{silent.getsockname()[1]}/meta"
            file.write_text(re.sub("sqlite:.*meta.db", url, file.read_text()))
        seen = client("VIEWER").get("/lockstep/status.json").json()
        page = client("VIEWER").get("/lockstep/")
    found = {pipeline["pipeline"]: pipeline["error"] and pipeline["error"]["code"] for pipeline in seen["pipelines"]}
    assert found == {"mute": "connection.unreachable", "quiet": "connection.unreachable", "shop": None}
    assert len(seen["broken"]) == 3
    assert page.status_code == 200
    assert "binlog.000001:3004" in page.text


def test_who_may_not_read_a_dag_sees_neither_its_pipeline_nor_broken_files(
    client: Callable[..., Any], shop: Line, write_pipeline: Callable[..., Path]
) -> None:
    write_pipeline("bank", shedule={})
    answer = client("").get("/lockstep/")
    assert answer.status_code == 200
    assert "has no pipeline that you may read" in answer.text
    for part in ("shop_db", "bank", "cdc_shop"):
        assert part not in answer.text


def test_a_ledger_that_does_not_add_up_is_said_first_and_its_table_is_escaped(
    client: Callable[..., Any], shop: Line
) -> None:
    run = shop.plan("third")
    entry = commit.LedgerEntry("third", "main", f"shop.{ALERT}", 9, 0, 5, 4, 3, 1, 0, 0)
    batches = list(run.target("main").batches)
    commit.mark_applied(shop.meta, run, "main")
    shop.meta.runs.commit("third", "main", batches, [entry], [WriteCounts("shop.orders", "0", 3, 1, 0)])
    (found,) = client("VIEWER").get("/lockstep/status.json").json()["pipelines"]
    assert found["health"] == "failed"
    assert found["attention"][0].startswith(f"The ledger of shop.{ALERT} does not add up: ")
    text = client("VIEWER").get("/lockstep/").text
    assert re.findall("<script.*", text) == [OURS]
    for part in (found["attention"][0], f"shop.{ALERT}", "winners 5 != written 3 + stale 1 + absent 0"):
        assert part in unescape(text)


def test_nothing_can_be_written_and_looking_writes_nothing(client: Callable[..., Any], shop: Line) -> None:
    admin = client("ADMIN")
    before = shop.meta.status.find(["main"])
    assert admin.get("/lockstep/").status_code == 200
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert admin.request(method, "/lockstep/").status_code == 405
        assert admin.request(method, "/lockstep/status.json").status_code == 405
    after = shop.meta.status.find(["main"])
    assert (after.sources[0].checkpoint, after.targets, after.runs) == (
        before.sources[0].checkpoint, before.targets, before.runs
    )  # fmt: skip


def forms(page: str) -> list[str]:
    """The DAGs of the page's forms."""
    return re.findall('<form data-dag="([^"]*)"', page)


def test_buttons_are_shown_for_the_dags_of_which_one_may_start_runs(
    client: Callable[..., Any],
    shop: Line,
    write_pipeline: Callable[..., Path],
    airflow_app: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert forms(client("VIEWER").get("/lockstep/").text) == []
    assert forms(client("USER").get("/lockstep/").text) == ["cdc_shop", SNAPSHOT, REPLAY, VERIFY]
    manager = airflow_app.state.auth_manager
    granted = manager.is_authorized_dag

    def of_one_dag(*, method: str, details: Any = None, **other: Any) -> bool:
        mine = method == "GET" or (details is not None and details.id == REPLAY)
        return mine and granted(method=method, details=details, **other)

    monkeypatch.setattr(manager, "is_authorized_dag", of_one_dag)
    user = client("USER")
    assert forms(user.get("/lockstep/").text) == [REPLAY]
    assert user.post("/api/v2/dags/cdc_shop/dagRuns", json={"logical_date": None}).status_code == 403
    answer = user.post(f"/api/v2/dags/{REPLAY}/dagRuns", json={"logical_date": None})
    assert answer.status_code in (400, 404)  # allowed; without a scheduler Airflow does not know the DAG, or its target


def test_what_a_form_of_another_site_could_send_with_the_session_is_refused(
    client: Callable[..., Any], shop: Line
) -> None:
    user, sent = client("USER"), '{"logical_date": null, "conf": {"target": "main"}}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = user.post(f"/api/v2/dags/{REPLAY}/dagRuns", content=sent, headers={"Content-Type": kind})
        assert answer.status_code == 422


def test_rows_that_were_set_aside_can_be_requeued_from_their_run(client: Callable[..., Any], shop: Line) -> None:
    run = shop.plan("third")
    batches = list(run.target("main").batches)
    commit.mark_applied(shop.meta, run, "main")
    entry = commit.LedgerEntry("third", "main", "shop.orders", 5, 0, 5, 0, 3, 0, 0, 0, quarantined=2)
    shop.meta.runs.commit("third", "main", batches, [entry], [WriteCounts("shop.orders", "0", 3, 0, 0, quarantined=2)])
    text = client("USER").get("/lockstep/").text
    assert forms(text).count(REPLAY) == 2
    assert '<input type="hidden" name="requeue" value="third">' in text
    seen = client("VIEWER").get("/lockstep/").text
    assert 'name="requeue"' not in seen
    first = seen[seen.index('class="problem ') :].partition("</div>")[0]
    assert "main lacks 2 rows of shop.orders that it rejected" in " ".join(first.split())


def made_by(shop: Line, run_id: str) -> str:
    """The folder with what the tasks of a run made."""
    run = shop.meta.runs.find(run_id)
    assert run is not None
    return run.plan_path.rpartition("/")[0]


def test_a_run_has_a_page_with_its_ledgers_for_those_who_may_read_its_pipeline(
    client: Callable[..., Any], shop: Line, write_pipeline: Callable[..., Path]
) -> None:
    text = client("VIEWER").get("/lockstep/ledger/shop/first").text
    report = f"{shop.pipeline.stage.uri}/{made_by(shop, 'first')}/quality/target=main/report.html"
    parts = ("shop.orders", "1,234", "committed", "main: the checks passed.", report)
    assert [part in text for part in parts] == [True] * len(parts)
    failed = client("VIEWER").get("/lockstep/ledger/shop/second").text
    assert f"it broke at {ALERT}" in unescape(failed)
    assert re.findall("<script.*", failed) == ['<script src="../../page.js" defer></script>']
    assert "main: no closed ledger." in failed
    assert "There is no record of this run" in client("VIEWER").get("/lockstep/ledger/shop/never").text
    write_pipeline("bank", source="bank_db")  # in the same meta database
    assert "There is no record of this run" in client("VIEWER").get("/lockstep/ledger/bank/first").text
    assert client("VIEWER").get("/lockstep/ledger/nowhere/first").status_code == 404
    assert client("").get("/lockstep/ledger/shop/first").status_code == 403


def health(client: Callable[..., Any]) -> tuple[str, list[dict[str, Any]]]:
    (found,) = client("VIEWER").get("/lockstep/status.json").json()["pipelines"]
    return found["health"], found["problems"]


def test_a_failed_extract_is_the_first_thing_that_the_page_shows_and_goes_with_the_next_success(
    client: Callable[..., Any], shop: Line
) -> None:
    error = DataAtRisk(
        f"Purged {ALERT}.", where="shop_db, binlog.000001:4", code="source.log_lost", remedy="copy it again"
    )
    for _ in range(2):
        shop.meta.failures.keep("extract", "shop_db", error)
    level, (first, *_) = health(client)
    assert (level, first["subject"], first["code"], first["times"]) == (
        "failed",
        "extract shop_db",
        "source.log_lost",
        2,
    )
    text = client("VIEWER").get("/lockstep/").text
    assert "<script>alert" not in text
    card = unescape(text.partition('<section id="shop"')[2])
    places = [card.index(part) for part in ("failed", error.what, error.where, error.remedy, "lag</abbr>")]
    assert places == sorted(places)
    reached = shop.meta.positions.checkpoint("shop_db")
    assert reached is not None
    shop.meta.positions.advance_watermark(shop.leases["shop_db"], reached)
    assert "source.log_lost" not in [problem["code"] for problem in health(client)[1]]


def test_a_paused_dag_a_late_source_and_a_partial_table_are_said(
    client: Callable[..., Any], shop: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow_state, "dags", lambda ids: {"cdc_shop": airflow_state.DagState(True, None)})
    coverage = TableCoverage(How.EXISTING, 1, 0, "binlog.000001:4", 60_000, ("shop.orders",))
    shop.meta.coverages.keep(shop.leases["shop_db"], {"shop.orders": coverage}, NO_SURVEY)
    _, problems = health(client)
    levels = [problem["level"] for problem in problems]
    assert levels == sorted(levels, key=["failed", "paused", "late", "noted"].index)
    said = " ".join(problem["what"] for problem in problems)
    late = "shop_db is late by 1,000 intervals or more"
    for part in ("cdc_shop is paused", late, "Rows of shop.orders", "~60,000 rows at"):
        assert part in said
    (found,) = client("VIEWER").get("/lockstep/status.json").json()["pipelines"]
    assert [(table["table"], table["partial"]) for table in found["tables"]] == [("shop.orders", True)]


def test_tables_with_existing_rows_are_shown_until_they_are_copied_with_how_far_and_why(
    client: Callable[..., Any], shop: Line, pipelines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = pipelines / "shop.yaml"
    never = "- {name: never, connection: 'airflow:source_db', server_id: 5002}\ntables:"
    file.write_text(file.read_text().replace("tables:", never, 1))

    def existing(rows: int) -> TableCoverage:
        return TableCoverage(How.EXISTING, 1, 0, "binlog.000001:4", rows, ("shop.orders",))

    done = TableCoverage(How.COPIED, 1, 0, "binlog.000001:77", None, ("shop.orders",))
    names = ("shop.due", "shop.keyless", "shop.big")
    covered = dict(zip(names, map(existing, (60_000, 7, 1000)), strict=True))
    shop.meta.coverages.keep(shop.leases["shop_db"], covered | {"shop.done": done}, NO_SURVEY)
    refused = Refused(f"No key {ALERT}.", where="shop.keyless", code="snapshot.not_copyable", remedy="give it one")
    shop.meta.failures.keep("copy table", "shop_db/shop.keyless", refused)
    big = TableSchema("shop", "big", ())
    lease = shop.meta.leases.acquire(copier_of("shop_db"), "the copier", 60)
    now_us = [shop.meta.now_us()]
    monkeypatch.setattr(repository, "now_us", lambda _: now_us[0])
    shop.meta.copies.begin(lease, TableCopy("shop_db", big, ("1000",), rows_estimated=1000))
    begun = client("VIEWER").get("/lockstep/status.json").json()["pipelines"][0]["copies"][0]
    assert (begun["table"], begun["rows_per_s"]) == ("shop.big", None)
    for above, through in ((None, ("1",)), (("1",), ("2",))):
        planned = shop.meta.copies.plan_chunk(lease, "shop_db", "shop.big", above, through)
        place = Position(0, "binlog.000001", 4)
        read = CopiedChunk(planned.number, "shop.big", above or (), through, 0, place, place, 123, ())
        now_us[0] += 10_000_000
        shop.meta.copies.chunk_read(lease, "shop_db", ReadChunk(read, ()), 1000)
    (found,) = client("VIEWER").get("/lockstep/status.json").json()["pipelines"]
    text = unescape(client("VIEWER").get("/lockstep/").text)
    shop.meta.copies.pause("shop_db", "somebody")
    paused_text = unescape(client("VIEWER").get("/lockstep/").text)
    assert re.search("shop_db has been paused since [-0-9 :]+ by somebody", paused_text)
    of_source = [problem for problem in health(client)[1] if problem["subject"] == "source shop_db"]
    (said,) = (problem["what"] for problem in of_source if problem["level"] == "paused")
    assert "Waiting to be copied: 2 tables. Purges take nothing that was staged after" in said
    assert said in paused_text
    shop.meta.copies.resume("shop_db")
    copies = {copy["table"]: copy for copy in found["copies"]}
    assert [(name, copies[name]["state"], copies[name]["percent"]) for name in copies] == [
        ("shop.big", "copying", 24.6), ("shop.due", "pending", None), ("shop.keyless", "refused", None),
        ("shop.done", "copied", 100.0),
    ]  # fmt: skip
    assert (copies["shop.big"]["rows_per_s"], copies["shop.big"]["bytes"]) == (12.3, 2000)
    assert re.search('<td class="number">12</td>', text)
    assert copies["shop.done"]["copied_to"] == "binlog.000001:77"
    for said in ("1 of 4 tables copied; shop_db is being copied by the copier", "60,000", f"No key {ALERT}."):
        assert said in text
    assert "<script>alert" not in client("VIEWER").get("/lockstep/").text
    noted = [problem for problem in found["problems"] if problem["code"] == "snapshot.not_copyable"]
    assert [(problem["level"], problem["subject"], problem["remedy"]) for problem in noted] == [
        ("noted", "table shop.keyless", "give it one")
    ]
    lost = RetryLater("The connection is lost.", where="shop_db", code="connection.unreachable", remedy="wait")
    shop.meta.failures.keep("copy", "shop_db", lost)
    assert next((problem["level"], problem["subject"]) for problem in health(client)[1]) == ("failed", "copy shop_db")
    shop.meta.failures.clear("copy", "shop_db")
    paused = {SNAPSHOT: airflow_state.DagState(True, None)}
    monkeypatch.setattr(
        airflow_state, "dags", lambda ids: {dag_id: paused[dag_id] for dag_id in ids if dag_id in paused}
    )
    (said,) = (problem["what"] for problem in health(client)[1] if problem["level"] == "paused")
    assert said.startswith(f"The DAG {SNAPSHOT} is paused")


def test_a_dag_run_that_failed_without_a_word_to_meta_is_said(
    client: Callable[..., Any], shop: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = airflow_state.DagState(False, "manual__1")
    monkeypatch.setattr(airflow_state, "dags", lambda ids: {"cdc_shop": state})
    shop.done("third")
    assert "manual__1" in health(client)[1][0]["what"]


def test_the_page_says_what_its_terms_mean_and_keeps_silent_airflow_databases_out(
    client: Callable[..., Any], shop: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: object) -> None:
        raise OperationalError("no such table", None, Exception())

    text = client("VIEWER").get("/lockstep/").text
    assert {unescape(title) for title in re.findall('<abbr title="([^"]+)"', text)} <= set(TERMS.values())
    for term in ("winners", "epoch", "in the ring", "superseded", "absent"):
        assert f"<dt>{term}</dt>" in text
    monkeypatch.setattr(airflow_state, "create_session", broken)
    assert client("VIEWER").get("/lockstep/").status_code == 200


def test_the_checks_of_a_run_are_shown_without_the_rows_that_they_give_as_examples(
    client: Callable[..., Any], shop: Line
) -> None:
    verdict = {
        "rows": 7, "success": False, "examples": [{"card": "4111"}],
        "expectations": [
            {"expectation": "expect_x", "arguments": {"column": ALERT}, "severity": "critical", "success": False,
             "result": {"partial_unexpected_list": ["4111"]}},
        ],
    }  # fmt: skip
    shop.store.put(f"{made_by(shop, 'first')}/quality/target=main/own-0.json", json.dumps(verdict).encode())
    text = client("VIEWER").get("/lockstep/ledger/shop/first").text
    assert "7 rows, 0 of 1 expectations met" in text
    assert "column=" in text
    assert "4111" not in text
    assert "<script>alert" not in text
    shop.store.put(f"{made_by(shop, 'first')}/quality/target=main/own-1.json", b"[]")
    assert "This host cannot read their results" in client("VIEWER").get("/lockstep/ledger/shop/first").text
