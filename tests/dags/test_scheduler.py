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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
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
from examples.shop.airflow_env import REPOSITORY
from examples.shop.compare import compare, target_fingerprint
from examples.shop.standalone import pid_of, standalone
from examples.shop.tables import source_statements, target_statements
from examples.shop.workload import Shop
from lockstep_airflow.run_context import run_name_of
from tests.dags.airflow_server import FEW_LOOKS, PATIENCE_S, STOP_S, AirflowServer, Run, serving
from tests.lab.opened import opened
from tests.lab.pipeline_file import pipeline_document, pipeline_text

pytestmark = [pytest.mark.timeout(900)]

DAYS = 2
PAST = range(DAYS, 0, -1)
"""How many days ago each of them was."""
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
"""Of all these tests, also where they go on after midnight."""
TRANSACTIONS_A_DAY = 100
SALES_A_DAY = 8
SEED = 7
MISSED_S = 60
"""How long a task may be silent: less than Airflow's five minutes, more than a busy machine makes of a heartbeat."""
NOTICED_SOON = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(MISSED_S),
    # A scheduler that was killed may leave tasks queued: they are looked for every five minutes otherwise.
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "20",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "120",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "20",
}
EXTRACT, PLAN = "extract", "plan"
SPARK_TASKS = ["merge", "to_shards.filter", "to_shards.write", "to_shards.quality"]
TO_TARGET = ["merge", "to_shards.filter", "to_shards.write", "to_shards.quality", "to_shards.commit"]

QUICK = {"poke_interval_s": 1, "retry_delay_s": 1, "retries": 20}
OLD_ROWS = 400


def sharded(table: str, key: str) -> dict[str, Any]:
    split = {"key": key, "databases": 2, "tables": 2}
    return {"database": "shop_{d}", "table": f"{table}_{{t}}", "sharding": split}


ALL_TABLES = {
    table: sharded(table, key)
    for table, key in (("customers", "id"), ("orders", "order_id"), ("order_items", "order_id"))
}
NO_TABLE = {"of_another_day": {"database": "shop_0"}}


@dataclass
class DagLine:
    """Airflow, the shop that the pipelines read, and the shards."""

    shop: Shop
    source: Any
    target: Any
    server: Any
    folder: Path
    target_server: Any
    airflow: AirflowServer = field(init=False)

    @property
    def target_password(self) -> str:
        return str(self.target_server.password)

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
        assert {table.table: table.differing for table in found} == dict.fromkeys((table.table for table in found), 0)

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
    return TODAY - timedelta(days=days_ago)


@pytest.fixture(scope="module")
def airflow_database(postgres: Any) -> str:
    """On SQLite a command beside the scheduler meets `database is locked` now and then, whatever it is to do."""
    engine = create_engine(postgres.url(), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("CREATE DATABASE airflow"))
    engine.dispose()
    return str(postgres.url("airflow"))


@pytest.fixture(scope="module")
def line(mariadb_target: Any, airflow_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagLine]:
    folder = tmp_path_factory.mktemp("scheduler")
    (folder / "pipelines").mkdir()
    with (
        MariaDb.start(server_id=70) as server,
        closing(server.connect(autocommit=True)) as source,
        closing(mariadb_target.connect(autocommit=True)) as target,
    ):
        create_tables(source, target)
        line = DagLine(Shop(source, SEED), source, target, server, folder, mariadb_target)
        write_pipeline(line, "shop", ALL_TABLES)
        write_pipeline(line, "again", NO_TABLE)
        # Of a database that had rows before; its tables are read in about 25 chunks.
        copied = {"snapshot": "mode: initial, readers: 1, chunk_mib: 1", "limits": "lease_s: 5"}
        _write(line, "older", "older", **copied)
        _execute(
            source,
            ["CREATE DATABASE older", "CREATE TABLE older.t (id INT PRIMARY KEY, v MEDIUMTEXT)",
             f"INSERT INTO older.t SELECT seq, REPEAT('v', 65000) FROM seq_1_to_{OLD_ROWS}"],
        )  # fmt: skip
        for sale in range(DAYS * SALES_A_DAY):
            line.sell(TRANSACTIONS_A_DAY // SALES_A_DAY, day=midnight(DAYS) + sale * timedelta(days=1) / SALES_A_DAY)
        with serving(folder, {}, database=airflow_database, **NOTICED_SOON, **FEW_LOOKS) as line.airflow:
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
    line: DagLine,
    name: str,
    tables: dict[str, Any],
    *,
    schedule: str = "0 0 * * *",
    target: str = "shop_target",
) -> None:
    """One that reads the shop from where the newest log file begins."""
    with line.source.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        file = cursor.fetchall()[-1][0]
    _write(
        line, name, "shop", schedule=schedule, source={"start": {"position": {"file": file, "offset": 4}}},
        routes=[
            {"match": r"shop\.orders_\d+", "to": "orders"}, {"match": r"shop\.(customers|order_items)", "to": r"\1"},
        ],
        targets=[{"name": "shards", "connections": [f"airflow:{target}"], "tables": tables}],
        limits="lease_s: 5, batch_rows: 100",
    )  # fmt: skip


def _write(
    line: DagLine, name: str, database: str, *, source: Mapping[str, Any] | None = None, **sections: Any
) -> None:
    folder = line.folder / name
    folder.mkdir()
    read = {"name": f"{name}_db", "connection": "airflow:shop_source", "read_timeout_s": 10, **(source or {})}
    document = pipeline_document(
        folder, database, source=read, pipeline=name, airflow=QUICK,
        **{"routes": "[]", "schedule": "0 0 * * *", **sections},
    )  # fmt: skip
    (line.folder / "pipelines" / f"{name}.yaml").write_text(pipeline_text(document))


@pytest.fixture(scope="module")
def scheduled(line: DagLine) -> Run:
    """The run that the scheduler makes when the DAG is switched on: of yesterday, with all that was logged before."""
    line.airflow.switch_on("cdc_shop")
    (run,) = line.airflow.wait_for_runs("cdc_shop", 1)
    return run


@pytest.fixture(scope="module")
def lost(line: DagLine, scheduled: Run) -> Run:
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
def killed(line: DagLine, scheduled: Run) -> Run:
    """A run by hand, whose extract task was killed by SIGKILL while it read, and ended by its next try."""
    run, task = reading(line)
    os.kill(task, signal.SIGKILL)
    run.wait()
    return run


def reading(line: DagLine) -> tuple[Run, int]:
    """A run by hand that has staged something and reads on; the process of its extract task."""
    end = datetime.now(UTC) + timedelta(seconds=40)
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
    line: DagLine, airflow_database: str, hours: int
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
        write_pipeline(line, name, ALL_TABLES, schedule=schedule, target="copy")
        line.stage(name)
        line.airflow.command("dags", "reserialize")
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
def test_switched_on_after_a_pause_one_run_takes_all_that_was_logged_meanwhile(line: DagLine, scheduled: Run) -> None:
    assert scheduled.states() == dict.fromkeys([EXTRACT, PLAN, *TO_TARGET], "success")
    assert scheduled.run_id.startswith("scheduled__")
    windows = line.meta("SELECT DISTINCT window_start_us FROM batch WHERE row_count > 0 ORDER BY 1")
    assert [start for (start,) in windows] == [int(midnight(days).timestamp()) * 10**6 for days in PAST]


def test_the_page_shows_what_the_run_did_to_who_is_logged_in_and_to_nobody_else(line: DagLine, scheduled: Run) -> None:
    with pytest.raises(AssertionError, match="401"):
        line.airflow.call("GET", "/lockstep/status.json", logged_in=False)
    seen = line.airflow.call("GET", "/lockstep/status.json")
    shop = next(pipeline for pipeline in seen["pipelines"] if pipeline["pipeline"] == "shop")
    ((rows,),) = line.meta("SELECT sum(row_count) FROM batch")
    assert (
        sum(window["rows"] for window in shop["windows"]) == sum(batch["rows"] for batch in shop["batches"]) == rows > 0
    )
    assert [target["adds_up"] for run in shop["runs"] for target in run["targets"]] == [True]
    assert shop["targets"][0]["open"]["batches"] == 0
    (view,) = (
        view
        for plugin in line.airflow.call("GET", "/api/v2/plugins")["plugins"]
        for view in plugin["external_views"]
        if view["url_route"] == "lockstep"
    )
    assert (view["href"], view["destination"]) == ("lockstep/", "nav")


def test_what_a_job_says_is_in_the_log_of_its_task_alone(line: DagLine, scheduled: Run) -> None:
    logs = {task: scheduled.log_of(task) for task in SPARK_TASKS}
    assert ["MergeCounts(" in log for log in logs.values()] == [True, False, False, False]
    assert ["WriteCounts(" in log for log in logs.values()] == [False, False, True, False]


@pytest.mark.matrix
@pytest.mark.timeout(3600)
def test_a_run_whose_spark_task_is_killed_goes_on_after_the_last_job_that_ended(line: DagLine, scheduled: Run) -> None:
    """`write` waits for a lock on the target when it is killed (test_any_spark kills its JVM)."""
    before = set(line.meta("SELECT run_id FROM apply_ledger"))
    with closing(line.target_server.connect(autocommit=True)) as blocking, blocking.cursor() as cursor:
        line.sell(TRANSACTIONS_A_DAY)
        run = line.airflow.trigger("cdc_shop")
        # `plan` and `filter` check the target, for which they need what the lock holds.
        run.wait_until(lambda: run.states().get("to_shards.filter") == "success", "the filter task")
        cursor.execute("LOCK TABLES shop_0.orders_0 READ")
        waiting = "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for table%lock'"
        run.wait_until(lambda: bool(line.target_server.run(waiting)), "the write to wait")
        (pid,) = [task["pid"] for task in run.tasks() if task["task_id"] == "to_shards.write"]
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


def test_no_password_is_in_what_airflow_keeps_of_a_run(line: DagLine, scheduled: Run, airflow_database: str) -> None:
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
    assert any(scheduled.run_id in log for log in kept)
    assert [place for place, log in enumerate(kept) if any(password in log for password in passwords)] == []


@pytest.mark.matrix
def test_a_killed_worker_is_missed_by_its_heartbeat_and_the_next_try_reads_on_under_an_epoch_of_its_own(
    line: DagLine, lost: Run
) -> None:
    assert (lost.states()[EXTRACT], lost.tries(EXTRACT)) == ("success", 2)
    events = line.airflow.call("GET", f"/api/v2/eventLogs?dag_id=cdc_shop&run_id={quote(lost.run_id)}")["event_logs"]
    assert [event["task_id"] for event in events if event["event"] == "heartbeat timeout"] == [EXTRACT]
    epochs = [epoch for (epoch,) in line.meta("SELECT epoch FROM batch ORDER BY begin_seq")]
    assert epochs == sorted(epochs)
    # Of the run's batches, which another run has taken over: that of the try that was killed, and of the next one.
    taken = (
        "SELECT DISTINCT epoch FROM batch JOIN consume_record USING (batch_id) WHERE consume_record.run_id = 'rival'"
    )
    assert len(line.meta(taken)) == 2


@pytest.mark.matrix
def test_a_run_whose_batches_another_takes_over_ends_green_and_leaves_them_to_that_one(
    line: DagLine, lost: Run
) -> None:
    states = lost.states()
    assert (states[EXTRACT], states[PLAN]) == ("success", "success")
    skipped = [task for task in TO_TARGET if states[task] == "skipped"]
    assert skipped == TO_TARGET[-len(skipped) :], "from one task on"
    assert "rival took over all of its batches" in lost.log_of(skipped[0])
    assert {lost.tries(task) for task in TO_TARGET if states[task] == "success"} <= {1}
    left = "SELECT DISTINCT run_id, state FROM consume_record WHERE state != 'COMMITTED'"
    assert line.meta(left) == [("rival", "STAGED")]


def test_a_killed_extract_is_tried_again_and_the_target_ends_equal(line: DagLine, killed: Run) -> None:
    assert killed.states() == dict.fromkeys([EXTRACT, PLAN, *TO_TARGET], "success")
    assert killed.tries(EXTRACT) > 1
    line.require_equal()


def test_clearing_write_and_what_follows_it_in_a_past_run_overwrites_nothing_newer(
    line: DagLine, scheduled: Run, killed: Run
) -> None:
    before, tries = line.fingerprint(), scheduled.tries("to_shards.write")
    scheduled.clear("to_shards.write", downstream=True)
    scheduled.wait()
    assert scheduled.tries("to_shards.write") == tries + 1
    assert scheduled.states() == dict.fromkeys([EXTRACT, PLAN, *TO_TARGET], "success")
    assert scheduled.xcom("to_shards.commit")["moved"] == 0
    assert line.fingerprint() == before
    line.require_equal()


def test_clearing_a_whole_past_run_asks_no_source_and_changes_nothing(line: DagLine, killed: Run) -> None:
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


@pytest.fixture(scope="module")
def backfilled(line: DagLine) -> list[Run]:
    """The runs of a backfill of staged intervals, one by one, while nobody reaches the source. The target of this
    pipeline takes none of the staged tables: Spark has nothing to do."""
    line.stage("again")
    days = ("--from-date", f"{midnight(DAYS):%Y-%m-%d}", "--to-date", f"{midnight(1):%Y-%m-%d}")
    line.shut_source()
    try:
        line.airflow.command("backfill", "create", "--dag-id", "cdc_again", *days, "--max-active-runs", "1")
        line.airflow.switch_on("cdc_again")
        return line.airflow.wait_for_runs("cdc_again", DAYS)
    finally:
        line.open_source()


def test_a_backfill_applies_staged_intervals_one_by_one_without_the_source(
    line: DagLine, backfilled: list[Run]
) -> None:
    done = dict.fromkeys([EXTRACT, PLAN, *TO_TARGET], "success")
    assert [run.states() for run in backfilled] == [done] * DAYS
    assert all(run.xcom(EXTRACT)["already_staged"] for run in backfilled)
    by_run = "SELECT run_id, min(window_start_us) FROM consume_record JOIN batch USING (batch_id)"
    taken = line.meta(f"{by_run} WHERE consume_record.state = 'COMMITTED' GROUP BY run_id ORDER BY 2", "again")
    assert [start for _, start in taken] == [int(midnight(day).timestamp()) * 10**6 for day in PAST]


@pytest.mark.matrix
def test_a_dag_that_is_switched_on_copies_existing_rows_once_although_the_copy_is_killed(line: DagLine) -> None:
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
            document
            for document in line.airflow.call("GET", "/lockstep/status.json")["pipelines"]
            if document["pipeline"] == "older"
        )
        os.kill(int(holder.rpartition(":")[2]), signal.SIGKILL)
    (copy,) = line.airflow.wait_for_runs("cdc_older_snapshot", 1)
    assert (shown["copies"][0]["table"], shown["copies"][0]["state"]) == ("older.t", "copying")
    assert 0 < shown["copies"][0]["percent"] < 100
    assert copy.run_id == f"from__{run_name_of('older', 'cdc_older', run.run_id)}"
    assert copy.states() == {PLAN: "success", "copy": "success"}
    assert copy.tries("copy") > 1
    assert "older.t: all 400 rows read" in copy.log_of("copy")
    assert copy.xcom("copy") == {"source": "older_db", "tables": 1, "rows": OLD_ROWS, "batches": 1, "dropped": 0}
    pipeline = config.load(line.folder / "pipelines" / "older.yaml")
    (manifest,) = (copied for copied in chain(open_stage(pipeline.stage), "older_db") if copied.chunks)
    epochs = Counter(name.epoch for part in manifest.parts if (name := parse_copied(part.path)))
    # What was durable when it was killed was not read again; one more may have become so while it was counted.
    assert epochs[1] in (durable, durable + 1)
    assert (len(epochs), sum(chunk.rows for chunk in manifest.chunks)) == (2, OLD_ROWS)
    copy.clear()
    copy.wait()
    assert copy.states() == {PLAN: "success", "copy": "skipped"}
    again = line.airflow.trigger("cdc_older")
    again.wait()
    assert again.states() == {EXTRACT: "success", "snapshot": "skipped"}
    assert line.meta("SELECT count(*) FROM batch WHERE chunk > 0", "older") == [(1,)]
    assert len(line.airflow.runs("cdc_older_snapshot")) == 1


@pytest.mark.matrix
def test_a_run_whose_scheduler_is_killed_goes_on_and_ends_once_a_scheduler_runs_again(line: DagLine) -> None:
    """Comes last: the scheduler of all others is gone. Of the pipeline that leaves Spark nothing to do."""
    line.airflow.switch_on("cdc_again")
    end = datetime.now(UTC) + timedelta(seconds=20)
    run = line.airflow.trigger("cdc_again", window_end=end.isoformat())
    run.wait_until(lambda: run.run_id in line.holder("again"), "the extract task")
    os.kill(pid_of(line.airflow.process, "scheduler"), signal.SIGKILL)
    line.sell(TRANSACTIONS_A_DAY)
    with standalone(line.airflow.environment, line.airflow.log, part="scheduler", stop_s=STOP_S):
        run.wait()
    assert run.states() == dict.fromkeys([EXTRACT, PLAN, *TO_TARGET], "success")
    assert line.meta("SELECT DISTINCT state FROM consume_record", "again") == [("COMMITTED",)]
