"""A pipeline's life under Airflow's own scheduler, driven as a user drives it: by REST and command line.

One Airflow serves the module. The pipeline's intervals are days; the shop's clock is set back, so that its changes
lie in past days, in every third hour of them. The scheduler itself makes one run, for yesterday; nothing else
starts by itself.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import create_engine, text

from cdc_core import config
from cdc_core.meta import Meta
from cdc_core.model.windows import Windows, from_us, to_us
from cdc_core.operations.apply import plan
from cdc_core.stage.layout import parse_copied
from cdc_core.stage.manifest import chain
from cdc_core.stage.stores import open_stage
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.process import free_port
from examples.shop.airflow_env import REPOSITORY, airflow_environment
from examples.shop.compare import compare, target_fingerprint
from examples.shop.standalone import pid_of, standalone, wait_until_healthy
from examples.shop.tables import source_statements, target_statements
from examples.shop.workload import Shop
from lockstep_airflow.run_context import run_name_of
from tests.dags.airflow_server import PATIENCE_S, STOP_S, AirflowServer, Run
from tests.lab.opened import opened

pytestmark = [pytest.mark.timeout(900)]

DAYS = 2
PAST = range(DAYS, 0, -1)
"""How many days ago each of them was."""
TRANSACTIONS_A_DAY = 100
SALES_A_DAY = 8
SEED = 7
MISSED_S = 60
"""How long a task may be silent: less than Airflow's five minutes, more than a busy machine makes of a heartbeat."""
EXTRACT, PLAN = "extract", "plan"
SPARK_TASKS = ["merge", "to_shards.filter", "to_shards.write", "to_shards.quality"]
TO_TARGET = ["merge", "to_shards.filter", "to_shards.write", "to_shards.quality", "to_shards.commit"]

PIPELINE = """\
pipeline: {name}
schedule: "{schedule}"
sources:
  - {{name: {name}_db, connection: "airflow:shop_source", server_id: {server_id}, heartbeat_s: 1, read_timeout_s: 10,
     start: {{position: {{file: {file}, offset: 4}}}}}}
tables: {{include: ['shop\\..*']}}
routes:
  - {{match: 'shop\\.orders_\\d+', to: orders}}
  - {{match: 'shop\\.(customers|order_items)', to: '\\1'}}
stage: {{uri: "file://{folder}/{name}/stage"}}
meta: {{url: "sqlite:///{folder}/{name}/meta.db"}}
targets:
  - name: shards
    connections: ["airflow:{target}"]
    tables: {tables}
limits: {{lease_s: 5, batch_rows: 100}}
airflow: {{poke_interval_s: 1, retry_delay_s: 1, retries: 20}}
"""

OLDER = """\
pipeline: older
schedule: "0 0 * * *"
sources:
  - {{name: older_db, connection: "airflow:shop_source", server_id: 7003, heartbeat_s: 1, read_timeout_s: 10}}
tables: {{include: ['older\\..*']}}
snapshot: {{mode: initial, readers: 1, chunk_mib: 1}}
stage: {{uri: "file://{folder}/older/stage"}}
meta: {{url: "sqlite:///{folder}/older/meta.db"}}
limits: {{lease_s: 5}}
airflow: {{poke_interval_s: 1, retry_delay_s: 1, retries: 20}}
"""
"""Of a database that had rows before; its tables are read in about 25 chunks."""
OLD_ROWS = 400

SHARDED = "{{database: 'shop_{{d}}', table: '{0}_{{t}}', sharding: {{key: {1}, databases: 2, tables: 2}}}}"
ALL_TABLES = "{{{}}}".format(
    ", ".join(
        f"{table}: {SHARDED.format(table, key)}"
        for table, key in (("customers", "id"), ("orders", "order_id"), ("order_items", "order_id"))
    )
)
NO_TABLE = "{of_another_day: {database: shop_0}}"


@dataclass
class Line:
    """Airflow, the shop that the pipelines read, and the shards."""

    process: subprocess.Popen[bytes]
    airflow: AirflowServer
    shop: Shop
    source: Any
    target: Any
    server: Any
    folder: Path
    target_server: Any

    @property
    def target_password(self) -> str:
        return str(self.target_server.password)

    def asked_target(self, query: str) -> list[tuple[Any, ...]]:
        with closing(self.target_server.connect(autocommit=True)) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def sell(self, transactions: int, *, day: datetime | None = None) -> None:
        """Business on a day that is over, or now."""
        with self.source.cursor() as cursor:
            cursor.execute("SET timestamp = DEFAULT" if day is None else f"SET timestamp = {day.timestamp()}")
        self.shop.run(transactions)

    def connect(self, connection_id: str, server: Any) -> None:
        """A connection in Airflow."""
        login = {"login": server.user, "password": server.password}
        self.airflow.set_connection(connection_id, host=server.host, port=server.port, **login)

    def log_of_all(self, run: Run) -> str:
        """The logs of a run's tasks, as Airflow shows them."""
        return "".join(run.log_of(task) for task in (EXTRACT, PLAN, *TO_TARGET))

    def open_source(self) -> None:
        self.connect("shop_source", self.server)

    def shut_source(self) -> None:
        """The same, where nobody answers."""
        self.airflow.set_connection("shop_source", host="127.0.0.1", port=1, login="nobody", password="nothing")

    def stage(self, pipeline: str) -> None:
        """What is logged so far, by the command line."""
        done = subprocess.run(
            [sys.executable, "-m", "cdc_core.cli", "extract", self.folder / "pipelines" / f"{pipeline}.yaml"],
            env={**os.environ, "LOCKSTEP_CONN_SHOP_SOURCE": self.server.url},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def require_equal(self, target: Any = None) -> None:
        """Source and target agree in every row of every table."""
        self.source.commit()
        self.target.commit()
        found = compare(self.source, target or self.target)
        assert all(table.source_rows > 0 for table in found)
        assert {table.table: table.differing for table in found} == dict.fromkeys((one.table for one in found), 0)

    def fingerprint(self) -> Counter[tuple[object, ...]]:
        self.target.commit()
        return target_fingerprint(self.target)

    def meta(self, query: str, pipeline: str = "shop") -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / pipeline / "meta.db")) as database:
            return database.execute(query).fetchall()

    def holder(self, pipeline: str = "shop") -> str:
        """Who holds the source's lease."""
        made = (self.folder / pipeline / "meta.db").exists()
        if not made or not self.meta("SELECT 1 FROM sqlite_master WHERE name = 'lease'", pipeline):
            return ""
        return "".join(row[0] for row in self.meta("SELECT holder FROM lease", pipeline))


def midnight(days_ago: int) -> datetime:
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days_ago)


@pytest.fixture(scope="module")
def airflow_database(postgres: Any) -> str:
    """On SQLite a command beside the scheduler meets `database is locked` now and then, whatever it is to do."""
    engine = create_engine(postgres.url(), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("CREATE DATABASE airflow"))
    engine.dispose()
    return str(postgres.url("airflow"))


@pytest.fixture(scope="module")
def line(mariadb_target: Any, airflow_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    folder = tmp_path_factory.mktemp("scheduler")
    home, log, port = folder / "airflow", folder / "airflow.log", free_port()
    (folder / "pipelines").mkdir()
    environment = {
        **os.environ,
        **airflow_environment(home, folder / "pipelines", {}, port=port, database=airflow_database),
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(MISSED_S),
        # The pipelines are there before Airflow looks for the first time; each look costs seconds of CPU time.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
        # A scheduler that was killed may leave tasks queued: they are looked for every five minutes otherwise.
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "20",
        "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "120",
        "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "20",
    }
    with (
        MariaDb.start(server_id=70) as server,
        closing(server.connect(autocommit=True)) as source,
        closing(mariadb_target.connect(autocommit=True)) as target,
        standalone(environment, log, stop_s=STOP_S) as process,
    ):
        create_tables(source, target)
        airflow = AirflowServer(port, home, log, environment)
        line = Line(process, airflow, Shop(source, SEED), source, target, server, folder, mariadb_target)
        write_pipeline(line, "shop", 7001, ALL_TABLES)
        write_pipeline(line, "again", 7002, NO_TABLE)
        (folder / "older").mkdir()
        (folder / "pipelines" / "older.yaml").write_text(OLDER.format(folder=folder))
        _execute(
            source,
            ["CREATE DATABASE older", "CREATE TABLE older.t (id INT PRIMARY KEY, v MEDIUMTEXT)",
             f"INSERT INTO older.t SELECT seq, REPEAT('v', 65000) FROM seq_1_to_{OLD_ROWS}"],
        )  # fmt: skip
        for sale in range(DAYS * SALES_A_DAY):
            line.sell(TRANSACTIONS_A_DAY // SALES_A_DAY, day=midnight(DAYS) + sale * timedelta(days=1) / SALES_A_DAY)
        assert wait_until_healthy(process, port), log.read_text()[-6000:]
        line.open_source()
        line.connect("shop_target", mariadb_target)
        for dag_id in ("cdc_shop", "cdc_again"):
            line.airflow.wait_for_dag(dag_id)
        yield line
        with target.cursor() as cursor:
            for database in ("shop_0", "shop_1"):
                cursor.execute(f"DROP DATABASE {database}")


def create_tables(source: Any, target: Any) -> None:
    """The shop's, in a log file that begins some days ago, and the shards'."""
    with source.cursor() as cursor:
        cursor.execute(f"SET timestamp = {midnight(DAYS).timestamp()}")
        cursor.execute("FLUSH BINARY LOGS")
    _execute(source, source_statements())
    _execute(target, target_statements())


def _execute(connection: Any, statements: Iterable[str]) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def write_pipeline(
    line: Line, name: str, server_id: int, tables: str, *, schedule: str = "0 0 * * *", target: str = "shop_target"
) -> None:
    with line.source.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        file = cursor.fetchall()[-1][0]
    (line.folder / name).mkdir()
    values = {"name": name, "server_id": server_id, "file": file, "folder": line.folder, "tables": tables}
    text = PIPELINE.format(**values, schedule=schedule, target=target)
    (line.folder / "pipelines" / f"{name}.yaml").write_text(text)


@pytest.fixture(scope="module")
def scheduled(line: Line) -> Run:
    """The run that the scheduler makes when the DAG is switched on: of yesterday, with all that was logged before."""
    line.airflow.switch_on("cdc_shop")
    (run,) = line.airflow.wait_for_runs("cdc_shop", 1)
    return run


@pytest.fixture(scope="module")
def lost(line: Line, scheduled: Run) -> Run:
    """A run by hand, whose extract task was killed with Airflow's worker, which watched over it, and ended by its next
    try; then another run took its batches over, and died."""
    run, task = reading(line)
    worker = int(Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()[1])  # its parent
    for process in (worker, task):
        with suppress(ProcessLookupError):  # nobody is left to answer it
            os.kill(process, signal.SIGKILL)
    line.sell(TRANSACTIONS_A_DAY)
    claimed = f"SELECT 1 FROM consume_record WHERE run_id = '{run_name_of('shop', 'cdc_shop', run.run_id)}'"
    run.wait_until(lambda: bool(line.meta(claimed)), "its plan")
    pipeline = config.load(line.folder / "pipelines" / "shop.yaml")
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        assert (
            plan.plan(opened(pipeline, meta, store=open_stage(pipeline.stage)), window=None, run_id="rival")
            .targets[0]
            .batches
        )
    run.wait()
    return run


@pytest.fixture(scope="module")
def killed(line: Line, scheduled: Run) -> Run:
    """A run by hand, whose extract task was killed by SIGKILL while it read, and ended by its next try."""
    run, task = reading(line)
    os.kill(task, signal.SIGKILL)
    run.wait()
    return run


def reading(line: Line) -> tuple[Run, int]:
    """A run by hand that has staged something and reads on; the process of its extract task."""
    end = datetime.now(UTC) + timedelta(seconds=20)
    before = line.meta("SELECT count(*) FROM batch")
    run = line.airflow.trigger("cdc_shop", window_end=end.isoformat())
    run.wait_until(lambda: run.run_id in line.holder(), "the extract task")
    line.sell(TRANSACTIONS_A_DAY)
    run.wait_until(lambda: line.meta("SELECT count(*) FROM batch") > before, "a batch")
    return run, int(line.holder().rpartition(":")[2])


def _wait(true: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline_s, f"waited in vain for {what}"
        time.sleep(0.1)


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("hours", [12, 2])
def test_a_backfill_in_random_order_with_two_runs_at_once_ends_equal(
    line: Line, airflow_database: str, hours: int
) -> None:
    """Comes first: only past days have changes yet. Every two hours makes more than 24 intervals."""
    name, now = f"every_{hours}h", datetime.now(UTC)
    # An interval has just ended, so that the next one ends as late after this test as can be; and the last one is
    # Airflow's newest: it makes no run by itself.
    schedule = f"0 {now.hour % hours}-23/{hours} * * *"
    *intervals, latest = _intervals(schedule, midnight(DAYS), now)
    order = random.Random(SEED).sample(intervals, len(intervals))
    order.insert(len(order) // 3, latest)  # the runs behind it find nothing to do
    with MariaDb.start(server_id=71) as server, closing(server.connect(autocommit=True)) as target:
        _execute(target, target_statements())
        line.connect("copy", server)
        write_pipeline(line, name, 7100 + hours, ALL_TABLES, schedule=schedule, target="copy")
        line.stage(name)
        line.airflow.wait_for_dag(f"cdc_{name}")
        dates = ("--from-date", intervals[0].isoformat(), "--to-date", latest.isoformat())
        line.airflow.command("backfill", "create", "--dag-id", f"cdc_{name}", *dates, "--max-active-runs", "2")
        _reorder(airflow_database, order)
        line.shut_source()
        try:
            line.airflow.switch_on(f"cdc_{name}")
            line.airflow.wait_for_runs(f"cdc_{name}", len(order))
        finally:
            line.open_source()
        line.require_equal(target)
    runs = sorted(line.airflow.runs(f"cdc_{name}"), key=lambda run: str(run["start_date"]))
    assert [datetime.fromisoformat(run["logical_date"]) for run in runs] == order
    assert {run["state"] for run in runs} == {"success"}
    assert any(later["start_date"] < run["end_date"] for run, later in pairwise(runs)), "never two at once"
    assert line.meta("SELECT DISTINCT state FROM consume_record", name) == [("COMMITTED",)]
    figures = "staged_rows + key_changes = winners + superseded AND winners = written + stale + absent"
    assert line.meta(f"SELECT DISTINCT {figures} FROM apply_ledger", name) == [(1,)]


def _intervals(schedule: str, first: datetime, now: datetime) -> list[datetime]:
    """Where the schedule's intervals begin, from the one that holds a moment to the last one that is over."""
    windows, found = Windows(schedule), []
    start_us, end_us = windows.containing(to_us(first))
    while end_us <= to_us(now):
        found.append(from_us(start_us))
        start_us, end_us = windows.containing(end_us)
    return found


def _reorder(airflow_database: str, order: Sequence[datetime]) -> None:
    """The waiting runs of the newest backfill: `airflow backfill create` knows forwards and backwards alone."""
    engine = create_engine(airflow_database)
    with engine.begin() as connection:
        newest = "backfill_id = (SELECT max(id) FROM backfill)"
        move = text(f"UPDATE backfill_dag_run SET sort_ordinal = :place WHERE logical_date = :date AND {newest}")
        for place, date in enumerate(order, 1):
            assert connection.execute(move, {"place": place, "date": date}).rowcount == 1
    engine.dispose()


@pytest.mark.matrix
def test_switched_on_after_a_pause_one_run_takes_all_that_was_logged_meanwhile(line: Line, scheduled: Run) -> None:
    assert scheduled.states() == dict.fromkeys([EXTRACT, PLAN, *TO_TARGET], "success")
    assert scheduled.run_id.startswith("scheduled__")
    windows = line.meta("SELECT DISTINCT window_start_us FROM batch WHERE row_count > 0 ORDER BY 1")
    assert [start for (start,) in windows] == [int(midnight(days).timestamp()) * 10**6 for days in PAST]


def test_the_page_shows_what_the_run_did_to_who_is_logged_in_and_to_nobody_else(line: Line, scheduled: Run) -> None:
    with pytest.raises(AssertionError, match="401"):
        line.airflow.call("GET", "/lockstep/status.json", logged_in=False)
    seen = line.airflow.call("GET", "/lockstep/status.json")
    shop = next(one for one in seen["pipelines"] if one["pipeline"] == "shop")
    ((rows,),) = line.meta("SELECT sum(row_count) FROM batch")
    assert sum(one["rows"] for one in shop["windows"]) == sum(one["rows"] for one in shop["batches"]) == rows > 0
    assert [one["adds_up"] for run in shop["runs"] for one in run["targets"]] == [True]
    assert shop["targets"][0]["open"]["batches"] == 0
    (view,) = (
        view
        for plugin in line.airflow.call("GET", "/api/v2/plugins")["plugins"]
        for view in plugin["external_views"]
        if view["url_route"] == "lockstep"
    )
    assert (view["href"], view["destination"]) == ("lockstep/", "nav")


def test_what_a_job_says_is_in_the_log_of_its_task_alone(line: Line, scheduled: Run) -> None:
    logs = {task: scheduled.log_of(task) for task in SPARK_TASKS}
    assert ["MergeCounts(" in log for log in logs.values()] == [True, False, False, False]
    assert ["WriteCounts(" in log for log in logs.values()] == [False, False, True, False]


def test_the_layout_that_a_run_writes_under_is_noted(line: Line, scheduled: Run) -> None:
    assert scheduled.log_of("to_shards.write")
    assert line.meta("SELECT table_name, layout FROM target_layout ORDER BY 1") == [
        ("customers", "mod(id) over 2 x 2"),
        ("order_items", "mod(order_id) over 2 x 2"),
        ("orders", "mod(order_id) over 2 x 2"),
    ]


@pytest.mark.matrix
@pytest.mark.timeout(3600)
def test_a_run_whose_spark_task_is_killed_goes_on_after_the_last_job_that_ended(line: Line, scheduled: Run) -> None:
    """`write` waits for a lock on the target when it is killed (test_any_spark kills its JVM)."""
    before = set(line.meta("SELECT run_id FROM apply_ledger"))
    with closing(line.target_server.connect(autocommit=True)) as blocking, blocking.cursor() as cursor:
        line.sell(TRANSACTIONS_A_DAY)
        run = line.airflow.trigger("cdc_shop")
        # `plan` and `filter` check the target, for which they need what the lock holds.
        run.wait_until(lambda: run.states().get("to_shards.filter") == "success", "the filter task")
        cursor.execute("LOCK TABLES shop_0.orders_0 READ")
        waiting = "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for table%lock'"
        run.wait_until(lambda: bool(line.asked_target(waiting)), "the write to wait")
        (pid,) = [one["pid"] for one in run.tasks() if one["task_id"] == "to_shards.write"]
        os.kill(pid, signal.SIGKILL)
        cursor.execute("UNLOCK TABLES")
        run.wait()
    assert run.states() == dict.fromkeys([EXTRACT, PLAN, *TO_TARGET], "success")
    assert {task: run.tries(task) for task in ("merge", "to_shards.filter")} == {"merge": 1, "to_shards.filter": 1}
    assert run.tries("to_shards.write") > 1
    line.require_equal()
    figures = "staged_rows + key_changes = winners + superseded AND winners = written + stale + absent"
    assert line.meta(f"SELECT DISTINCT {figures} FROM apply_ledger") == [(1,)]
    assert set(line.meta("SELECT run_id FROM apply_ledger")) - before


def test_no_password_is_in_what_airflow_keeps_of_a_run(line: Line, scheduled: Run, airflow_database: str) -> None:
    """Logs, XCom, rendered templates, and the page."""
    passwords = (line.server.password, line.target_password)
    kept = [json.dumps(line.airflow.call("GET", "/lockstep/status.json")), line.log_of_all(scheduled)]
    kept += [
        file.read_text(errors="replace") for file in line.folder.rglob("*") if file.is_file() and file.suffix == ".log"
    ]
    engine = create_engine(airflow_database)
    with engine.connect() as connection:
        names = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars().all()
        # `connection` is where Airflow keeps them, encrypted if it has a key.
        kept += [str(connection.execute(text(f'TABLE "{name}"')).all()) for name in names if name != "connection"]
    engine.dispose()
    assert any(scheduled.run_id in one for one in kept)
    assert [place for place, one in enumerate(kept) if any(password in one for password in passwords)] == []


@pytest.mark.matrix
def test_a_killed_worker_is_missed_by_its_heartbeat_and_the_next_try_reads_on_under_an_epoch_of_its_own(
    line: Line, lost: Run
) -> None:
    assert (lost.states()[EXTRACT], lost.tries(EXTRACT)) == ("success", 2)
    events = line.airflow.call("GET", f"/api/v2/eventLogs?dag_id=cdc_shop&run_id={quote(lost.run_id)}")["event_logs"]
    assert [one["task_id"] for one in events if one["event"] == "heartbeat timeout"] == [EXTRACT]
    epochs = [epoch for (epoch,) in line.meta("SELECT epoch FROM batch ORDER BY begin_seq")]
    assert epochs == sorted(epochs)
    # Of the run's batches, which another run has taken over: that of the try that was killed, and of the next one.
    taken = (
        "SELECT DISTINCT epoch FROM batch JOIN consume_record USING (batch_id) WHERE consume_record.run_id = 'rival'"
    )
    assert len(line.meta(taken)) == 2


@pytest.mark.matrix
def test_a_run_whose_batches_another_takes_over_ends_green_and_leaves_them_to_that_one(line: Line, lost: Run) -> None:
    states = lost.states()
    assert (states[EXTRACT], states[PLAN]) == ("success", "success")
    skipped = [task for task in TO_TARGET if states[task] == "skipped"]
    assert skipped == TO_TARGET[-len(skipped) :], "from one task on"
    assert "rival took over all of its batches" in lost.log_of(skipped[0])
    assert {lost.tries(task) for task in TO_TARGET if states[task] == "success"} <= {1}
    left = "SELECT DISTINCT run_id, state FROM consume_record WHERE state != 'COMMITTED'"
    assert line.meta(left) == [("rival", "STAGED")]


def test_a_killed_extract_is_tried_again_and_the_target_ends_equal(line: Line, killed: Run) -> None:
    assert killed.states() == dict.fromkeys([EXTRACT, PLAN, *TO_TARGET], "success")
    assert killed.tries(EXTRACT) > 1
    line.require_equal()


def test_clearing_write_and_what_follows_it_in_a_past_run_overwrites_nothing_newer(
    line: Line, scheduled: Run, killed: Run
) -> None:
    before, tries = line.fingerprint(), scheduled.tries("to_shards.write")
    scheduled.clear("to_shards.write", downstream=True)
    scheduled.wait()
    assert scheduled.tries("to_shards.write") == tries + 1
    assert scheduled.states() == dict.fromkeys([EXTRACT, PLAN, *TO_TARGET], "success")
    assert scheduled.xcom("to_shards.commit")["moved"] == 0
    assert line.fingerprint() == before
    line.require_equal()


def test_clearing_a_whole_past_run_asks_no_source_and_changes_nothing(line: Line, killed: Run) -> None:
    before = line.fingerprint()
    line.shut_source()
    try:
        killed.clear()
        killed.wait()
    finally:
        line.open_source()
    assert killed.states() == {EXTRACT: "success", PLAN: "success", **dict.fromkeys(TO_TARGET, "skipped")}
    assert "the source is not read" in killed.log_of(EXTRACT)
    assert line.fingerprint() == before


def backfill(line: Line, *more: str) -> None:
    """Of a pipeline whose target takes none of the staged tables: Spark has nothing to do in it."""
    days = ("--from-date", f"{midnight(DAYS):%Y-%m-%d}", "--to-date", f"{midnight(1):%Y-%m-%d}")
    line.airflow.command("backfill", "create", "--dag-id", "cdc_again", *days, *more)


@pytest.fixture(scope="module")
def backfilled(line: Line) -> list[Run]:
    """The runs of a backfill of staged intervals, one by one, while nobody reaches the source."""
    line.stage("again")
    line.shut_source()
    try:
        backfill(line, "--max-active-runs", "1")
        line.airflow.switch_on("cdc_again")
        return line.airflow.wait_for_runs("cdc_again", DAYS)
    finally:
        line.open_source()


def test_a_backfill_applies_staged_intervals_one_by_one_without_the_source(line: Line, backfilled: list[Run]) -> None:
    done = dict.fromkeys([EXTRACT, PLAN, *TO_TARGET], "success")
    assert [run.states() for run in backfilled] == [done] * DAYS
    assert all(run.xcom(EXTRACT)["already_staged"] for run in backfilled)
    by_run = "SELECT run_id, min(window_start_us) FROM consume_record JOIN batch USING (batch_id)"
    taken = line.meta(f"{by_run} WHERE consume_record.state = 'COMMITTED' GROUP BY run_id ORDER BY 2", "again")
    assert [start for _, start in taken] == [int(midnight(day).timestamp()) * 10**6 for day in PAST]


@pytest.mark.matrix
def test_a_backfill_that_is_repeated_does_nothing(line: Line, backfilled: list[Run]) -> None:
    """As a past run that is cleared does."""
    line.airflow.wait_for_backfills("cdc_again")
    line.shut_source()
    try:
        backfill(line, "--max-active-runs", "1", "--reprocess-behavior", "completed", "--run-backwards")
        _wait(lambda: all(run.tries(PLAN) > 1 for run in backfilled), "the second backfill")
        line.airflow.wait_for_runs("cdc_again", DAYS)
    finally:
        line.open_source()
    skipped = {EXTRACT: "success", PLAN: "success", **dict.fromkeys(TO_TARGET, "skipped")}
    assert [run.states() for run in backfilled] == [skipped] * DAYS


@pytest.mark.matrix
def test_a_dag_that_is_switched_on_copies_existing_rows_once_although_the_copy_is_killed(line: Line) -> None:
    """The second run of it finds nothing to copy, and neither does the copy when it is cleared."""
    line.airflow.wait_for_dag("cdc_older_snapshot")
    line.airflow.switch_on("cdc_older")
    (run,) = line.airflow.wait_for_runs("cdc_older", 1)
    assert run.states() == {EXTRACT: "success", "snapshot": "success"}
    read = "SELECT count(*) FROM copied_chunk WHERE claim IS NOT NULL"
    _wait(lambda: line.meta(read, "older") > [(2,)], "chunks")
    with closing(line.server.connect()) as blocking, blocking.cursor() as cursor:
        cursor.execute("LOCK TABLES older.t WRITE")
        ((durable,),) = line.meta(read, "older")
        ((holder,),) = line.meta("SELECT holder FROM lease WHERE source = 'snapshot:older_db'", "older")
        (shown,) = (
            one for one in line.airflow.call("GET", "/lockstep/status.json")["pipelines"] if one["pipeline"] == "older"
        )
        os.kill(int(holder.rpartition(":")[2]), signal.SIGKILL)
    (copy,) = line.airflow.wait_for_runs("cdc_older_snapshot", 1)
    assert (shown["copies"][0]["table"], shown["copies"][0]["state"]) == ("older.t", "copying")
    assert 0 < shown["copies"][0]["percent"] < 100
    assert copy.run_id == f"from__{run_name_of('older', 'cdc_older', run.run_id)}"
    assert copy.states() == {PLAN: "success", "copy": "success", "stage": "success"}
    assert copy.tries("copy") > 1
    assert "older.t: all 400 rows read" in copy.log_of("copy")
    assert copy.xcom("stage") == {"source": "older_db", "tables": 1, "rows": OLD_ROWS, "batches": 1, "dropped": 0}
    pipeline = config.load(line.folder / "pipelines" / "older.yaml")
    (manifest,) = (one for one in chain(open_stage(pipeline.stage), "older_db") if one.chunks)
    epochs = Counter(name.epoch for part in manifest.parts if (name := parse_copied(part.path)))
    # What was durable when it was killed was not read again; one more may have become so while it was counted.
    assert epochs[1] in (durable, durable + 1)
    assert (len(epochs), sum(chunk.rows for chunk in manifest.chunks)) == (2, OLD_ROWS)
    copy.clear()
    copy.wait()
    assert copy.states() == {PLAN: "success", "copy": "skipped", "stage": "skipped"}
    again = line.airflow.trigger("cdc_older")
    again.wait()
    assert again.states() == {EXTRACT: "success", "snapshot": "skipped"}
    assert line.meta("SELECT count(*) FROM batch WHERE chunk > 0", "older") == [(1,)]
    assert len(line.airflow.runs("cdc_older_snapshot")) == 1


@pytest.mark.matrix
def test_a_run_whose_scheduler_is_killed_goes_on_and_ends_once_a_scheduler_runs_again(line: Line) -> None:
    """Comes last: the scheduler of all others is gone. Of the pipeline that leaves Spark nothing to do."""
    line.airflow.switch_on("cdc_again")
    end = datetime.now(UTC) + timedelta(seconds=20)
    run = line.airflow.trigger("cdc_again", window_end=end.isoformat())
    run.wait_until(lambda: run.run_id in line.holder("again"), "the extract task")
    os.kill(pid_of(line.process, "scheduler"), signal.SIGKILL)
    line.sell(TRANSACTIONS_A_DAY)
    with standalone(line.airflow.environment, line.airflow.log, part="scheduler", stop_s=STOP_S):
        run.wait()
    assert run.states() == dict.fromkeys([EXTRACT, PLAN, *TO_TARGET], "success")
    assert line.meta("SELECT DISTINCT state FROM consume_record", "again") == [("COMMITTED",)]
