"""Lockstep's page as its users see it: Airflow's own UI in a headless Chromium."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, FrameLocator, Page, StorageState, expect, sync_playwright
from pyiceberg.catalog import load_catalog

from cdc_core import config
from cdc_core.errors import DataAtRisk
from cdc_core.meta import Meta
from examples.sandbox import browser
from examples.sandbox.mariadb import MariaDb
from examples.shop.airflow_env import REPOSITORY
from tests.dags import made_pipelines
from tests.dags.airflow_server import FEW_LOOKS, AirflowServer, Run, serving
from tests.dags.made_pipelines import ALERT
from tests.lab.databases import own_database
from tests.lab.pipeline_file import pipeline_document, pipeline_text

pytestmark = [pytest.mark.timeout(900)]

REPLAY = "cdc_shop_replay"
RUNS = f"/api/v2/dags/{REPLAY}/dagRuns"
RUNS_OF_SHOP = "/api/v2/dags/cdc_shop/dagRuns"
START = """([path, type]) => fetch(path, {
    method: "POST", credentials: "include", headers: {"Content-Type": type},
    body: JSON.stringify({logical_date: null, conf: {target: "main"}}),
}).then(answer => answer.status, () => "kept away")"""
PAGE_PATIENCE_S = 120
"""How long a page may take; less than the test's own limit, so that a failure says what is missing."""
USERS = {"operator": "op", "looker": "viewer"}
"""Names and roles in Airflow's own login."""
BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"
OF_OTHERS = """
from datetime import datetime
from airflow.sdk import dag, task
from lockstep.airflow import pipeline_tasks

@dag(schedule=None, start_date=datetime(2026, 1, 1))
def nightly():
    @task
    def prepare():
        print("PREPARED")

    @task(trigger_rule="none_failed")
    def report():
        print("REPORTED")

    prepare() >> pipeline_tasks("books.yaml") >> report()

nightly()
"""


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory, mariadb: MariaDb) -> Iterator[Path]:
    """A folder of somebody else: a DAG, and the pipeline of a database of theirs, with a lake."""
    folder = tmp_path_factory.mktemp("others")
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": (folder / "warehouse").as_uri()}
    lake = {"name": "lake", "kind": "iceberg", "namespace": "books", "tables": {"*": {}}, "catalog": catalog}
    with own_database(mariadb) as name:
        (place,) = mariadb.run("SHOW MASTER STATUS")
        file, offset = place[:2]
        source = {
            "connection": "airflow:books_db", "read_timeout_s": 5,
            "start": {"position": {"file": file, "offset": offset}},
        }  # fmt: skip
        rows = "SELECT seq, seq % 7 FROM seq_1_to_40"
        mariadb.run("CREATE TABLE t (id BIGINT PRIMARY KEY, v INT)", f"INSERT INTO t {rows}", database=name)
        document = pipeline_document(
            folder, name, source=source, pipeline="books", routes="[]", targets=[lake],
            airflow={"sensor": "poke", "poke_interval_s": 1},
        )  # fmt: skip
        (folder / "books.yaml").write_text(pipeline_text(document))
        (folder / "nightly.py").write_text(OF_OTHERS)
        yield folder


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, books: Path, mariadb: MariaDb) -> Iterator[AirflowServer]:
    """An Airflow with the pipeline `shop`, whose replay is switched on, and with the DAGs of somebody else."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "pipelines").mkdir()
    line = made_pipelines.staged(made_pipelines.write(folder / "pipelines", folder, tables="on_unreadable: isolate"))
    line.meta.leases.release(line.leases["shop_db"])
    line.meta.close()
    users = ",".join(f"{user}:{role}" for user, role in USERS.items())
    bundles = [
        {"name": name, "classpath": BUNDLE, "kwargs": {"path": str(path)}}
        for name, path in (("lockstep", REPOSITORY / "dags"), ("others", books))
    ]
    options = FEW_LOOKS | {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": users,
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
    }
    with serving(folder, {"books_db": mariadb.url}, **options) as server:
        server.wait_for_dag(REPLAY)
        server.switch_on(REPLAY)
        yield server


@pytest.fixture(scope="module")
def chrome(chromium: browser.Browser) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium.executable, env=dict(chromium.environment))
        yield started
        started.close()


@dataclass
class Visit:
    """A user's browser window. trouble: dialogs that opened, and what the console says of Lockstep's page."""

    airflow: AirflowServer
    page: Page
    trouble: list[str] = field(default_factory=list)

    @property
    def lockstep(self) -> FrameLocator:
        return self.page.frame_locator("iframe")

    def go(self, path: str) -> None:
        self.page.goto(f"http://127.0.0.1:{self.airflow.port}{path}")

    def open_lockstep(self) -> None:
        self.page.get_by_role("link", name="Lockstep").click()
        expect(self.lockstep.get_by_role("heading", name="shop")).to_be_visible()

    def heard(self, message: ConsoleMessage) -> None:
        if message.type == "error" and "/lockstep/" in message.location["url"]:
            self.trouble.append(message.text)


@pytest.fixture(scope="module")
def sessions() -> dict[str, StorageState]:
    """What the browser keeps of a user who has logged in once: Airflow's form takes seconds."""
    return {}


@pytest.fixture
def log_in(
    airflow: AirflowServer, chrome: Browser, sessions: dict[str, StorageState]
) -> Iterator[Callable[[str], Visit]]:
    """`log_in(user)`: a window in which the user has logged in by Airflow's form."""
    expect.set_options(timeout=PAGE_PATIENCE_S * 1000)
    passwords = json.loads((airflow.home / "simple_auth_manager_passwords.json.generated").read_text())
    contexts = []

    def enter(user: str) -> Visit:
        context = chrome.new_context(viewport={"width": 1400, "height": 1000}, storage_state=sessions.get(user))
        contexts.append(context)
        context.set_default_timeout(PAGE_PATIENCE_S * 1000)
        visit = Visit(airflow, context.new_page())
        visit.page.on("console", visit.heard)
        visit.page.on("dialog", lambda dialog: (visit.trouble.append(dialog.message), dialog.dismiss()))
        visit.go("/")
        if user not in sessions:
            visit.page.get_by_label("Username").fill(user)
            visit.page.get_by_label("Password").fill(passwords[user])
            visit.page.get_by_role("button", name="Sign in").click()
        expect(visit.page.get_by_role("link", name="Lockstep")).to_be_visible()
        sessions.setdefault(user, context.storage_state())
        return visit

    yield enter
    for context in contexts:
        context.close()


def test_an_operator_sees_the_figures_starts_a_run_and_follows_its_task_to_the_ledger(
    log_in: Callable[[str], Visit],
) -> None:
    visit = log_in("operator")
    visit.open_lockstep()
    seen = visit.lockstep
    seen.get_by_text("Sources and targets").click()
    for text in ("binlog.000001:3004", "pending 0, committed 1, staged 2"):
        expect(seen.get_by_role("cell", name=text)).to_be_visible()
    expect(seen.get_by_text(f"needs re-sync of table {ALERT}").first).to_be_visible()
    bars = seen.get_by_role("img", name="changed rows").locator("rect:not(.ground)")
    expect(bars).to_have_count(2)
    tall, low = (bars.nth(number).bounding_box() for number in (0, 1))
    assert tall["height"] > low["height"] > 0
    style = "element => getComputedStyle(element).borderRadius"
    assert seen.locator("section").evaluate(style) == "8px"  # the policy lets the page have its own style

    form = seen.locator("form", has=seen.get_by_role("button", name="Replay"))
    form.get_by_label("windows from").fill("2026-09-12T10:00")
    form.get_by_role("button").click()
    expect(form.locator("output")).to_contain_text(re.compile(f"{REPLAY}: run .+ is queued"))
    (made,) = visit.airflow.runs(REPLAY)
    assert made["dag_run_id"] in form.locator("output").inner_text()
    assert made["conf"] == {"target": "main", "window_start": "2026-09-12T10:00:00.000Z", "dry_run": True}
    assert made["triggering_user_name"] == "operator"
    run = Run(visit.airflow, REPLAY, made["dag_run_id"])
    run.wait()
    states = run.states()
    assert (states.pop("plan"), set(states.values())) == ("success", {"skipped"})
    assert run.xcom("plan")["batches"] == 1

    visit.go(f"/dags/{REPLAY}/runs/{made['dag_run_id']}/tasks/plan")
    visit.page.get_by_role("link", name="Details").click()
    visit.page.get_by_role("link", name="Ledger of this run").click()
    expect(seen.get_by_role("heading", name="Ledger of a run")).to_be_visible()
    expect(seen.get_by_text("There is no record of this run")).to_be_visible()
    seen.get_by_role("link", name="shop").click()
    seen.get_by_text("committed", exact=True).last.click()
    seen.get_by_role("link", name="ledger by table, and checks").last.click()
    expect(seen.get_by_role("cell", name="1,234")).to_have_count(3)
    expect(seen.get_by_role("img", name="winners 1,234")).to_be_visible()
    assert visit.trouble == []


def test_a_dag_of_somebody_else_with_a_group_of_our_tasks_is_started_and_green(
    log_in: Callable[[str], Visit], books: Path
) -> None:
    visit = log_in("operator")
    visit.airflow.wait_for_dag("nightly")
    visit.airflow.switch_on("nightly")
    page = visit.page
    visit.go("/dags/nightly")
    page.get_by_test_id("trigger-dag-button").click()
    page.get_by_role("dialog").get_by_role("button", name="Trigger").click()
    page.get_by_role("dialog").wait_for(state="hidden")
    (made,) = visit.airflow.runs("nightly")
    run = Run(visit.airflow, "nightly", made["dag_run_id"])
    run.wait()
    visit.go(f"/dags/nightly/runs/{run.run_id}")
    for name in ("prepare", "books", "report"):
        expect(page.get_by_role("link", name=name).first).to_be_visible()
    expect(page.get_by_text("Success").first).to_be_visible()
    states = run.states()
    assert (set(states.values()), len(states)) == ({"success"}, 9), states
    catalog = load_catalog(
        "lake", type="sql", uri=f"sqlite:///{books}/catalog.db", warehouse=(books / "warehouse").as_uri()
    )
    assert sorted(catalog.load_table("books.t").scan().to_arrow()["id"].to_pylist()) == list(range(1, 41))
    assert visit.trouble == []


def test_a_button_says_that_a_paused_dag_keeps_its_run_waiting_and_why_a_run_was_not_started(
    log_in: Callable[[str], Visit],
) -> None:
    visit = log_in("operator")
    visit.open_lockstep()
    form = visit.lockstep.locator("form", has=visit.lockstep.get_by_role("button", name="Apply all changes"))
    form.get_by_role("button").click()
    expect(form.locator("output")).to_contain_text("It starts when the DAG is switched on.")
    visit.page.route(f"**{RUNS_OF_SHOP}", lambda route: route.abort())
    form.get_by_role("button").click()
    expect(form.locator("output")).to_contain_text("Check whether the run exists before you try again.")
    visit.page.unroute(f"**{RUNS_OF_SHOP}")
    visit.page.context.clear_cookies()
    form.get_by_role("button").click()
    expect(form.locator("output")).to_have_text("Not started: Not authenticated")
    assert len(visit.airflow.runs("cdc_shop")) == 1


def test_the_form_of_airflow_names_and_explains_what_a_run_may_choose(log_in: Callable[[str], Visit]) -> None:
    visit = log_in("operator")
    visit.go("/dags/cdc_shop")
    visit.page.get_by_test_id("trigger-dag-button").click()
    form = visit.page.get_by_role("dialog")
    for name, said in {
        "Window start": "Given alone: everything from this time up to the moment of triggering",
        "Window end": "Empty: everything up to the moment of triggering",
        "Dry run": "List the staged batches that a run would apply",
        "Accept": "a statement that stopped a source",
        "Targets": "Empty: all targets",
    }.items():
        shown = form.get_by_role("group").filter(has_text=re.compile(f"^{name}")).filter(has_text=said)
        expect(shown).to_be_visible()


def test_a_viewer_sees_the_figures_and_no_button_and_airflow_refuses_what_the_button_would_ask(
    log_in: Callable[[str], Visit],
) -> None:
    visit = log_in("looker")
    visit.open_lockstep()
    visit.lockstep.get_by_text("Sources and targets").click()
    expect(visit.lockstep.get_by_role("cell", name="binlog.000001:3004")).to_be_visible()
    expect(visit.lockstep.get_by_role("button")).to_have_count(0)
    assert visit.page.evaluate(START, [RUNS, "application/json"]) == 403
    assert visit.trouble == []


def test_a_page_of_another_site_can_start_nothing_for_who_is_logged_in(log_in: Callable[[str], Visit]) -> None:
    visit = log_in("operator")
    before = visit.airflow.runs(REPLAY)
    (session,) = (cookie for cookie in visit.page.context.cookies() if cookie["name"] == "_token")
    assert session["sameSite"] == "Lax"
    visit.page.route("http://elsewhere.test/", lambda route: route.fulfill(body="<p>elsewhere</p>"))
    visit.page.goto("http://elsewhere.test/")
    path = f"http://127.0.0.1:{visit.airflow.port}{RUNS}"
    for kind in ("application/json", "text/plain"):
        assert visit.page.evaluate(START, [path, kind]) == "kept away"
    assert visit.airflow.runs(REPLAY) == before


@pytest.mark.matrix
def test_the_page_keeps_itself_fresh_and_what_is_open_stays_open(log_in: Callable[[str], Visit]) -> None:
    visit = log_in("looker")
    visit.open_lockstep()
    seen = visit.lockstep
    seen.get_by_text("Sources and targets").click()
    before = seen.locator("body").evaluate("() => { window.scrollTo(0, 300); return window.scrollY; }")
    assert before > 0
    pipeline = config.load(visit.airflow.home.parent / "pipelines" / "shop.yaml")
    error = DataAtRisk("The server has purged its log.", where="shop_db", code="source.log_lost", remedy="copy again")
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        meta.failures.keep("extract", "shop_db", error)
    try:
        expect(seen.get_by_text(error.what)).to_be_visible()
        expect(seen.get_by_role("cell", name="binlog.000001:3004")).to_be_visible()
        assert seen.locator("body").evaluate("() => window.scrollY") >= before
    finally:
        with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
            lease = meta.leases.acquire("shop_db", "test", 60)
            reached = meta.positions.checkpoint("shop_db")
            assert reached is not None
            meta.positions.advance_watermark(lease, reached)  # a success
            meta.leases.release(lease)
    assert visit.trouble == []


def test_a_link_to_airflow_opens_there_and_not_in_the_frame(log_in: Callable[[str], Visit]) -> None:
    visit = log_in("looker")
    visit.open_lockstep()
    visit.lockstep.get_by_role("link", name="cdc_shop").first.click()
    visit.page.wait_for_url("**/dags/cdc_shop**")
    assert "plugin" not in visit.page.url


def test_the_page_fits_its_window_in_the_light_and_in_the_dark(
    log_in: Callable[[str], Visit], tmp_path_factory: pytest.TempPathFactory
) -> None:
    visit = log_in("looker")
    page = visit.page
    folder = Path(os.environ.get("LOCKSTEP_PICTURES") or tmp_path_factory.mktemp("pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    for width, scheme in ((1400, "light"), (1400, "dark"), (390, "light")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        visit.go("/lockstep/")
        expect(page.get_by_role("heading", name="shop")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in re.findall(r"\d+", ground)[:3]) < 384) == (scheme == "dark")
        page.screenshot(path=folder / f"page-{width}-{scheme}.png", full_page=True)
