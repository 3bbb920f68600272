"""`make demo`: a shop that has been open for a while travels from a live MariaDB through Airflow and Spark into four
shards.

The shop has rows before Lockstep sees it. They are copied while it goes on selling; two runs of the real DAG apply
them and the changes; the first is run again to show that nothing changes; two more targets, an empty database and a
lake, are filled from the staged files alone; then source and targets are compared row by row. Exit status 0 only if
everything adds up.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from examples.sandbox.mariadb import MariaDb
from examples.shop import summary
from examples.shop.airflow_env import REPOSITORY, airflow_environment, run_airflow
from examples.shop.compare import target_fingerprint
from examples.shop.place import PIPELINE, Place, connections
from examples.shop.tables import LAKE, REBUILT_DATABASE, SHARDS, source_statements, target_statements
from examples.shop.workload import Shop

SEED = 20
BEFORE, LATER = 6_000, 6_000
"""Transactions before Lockstep starts, and while the first run is in progress."""
LEAST, MOST, SLICE, PAUSE_S = 4_000, 20_000, 200, 0.2
"""Transactions while the rows are copied: at least, at most, and between two pauses, so that they last as long."""
COLUMN_AFTER = 2_000
"""Of these, the customers gain a column."""
DAG = f"cdc_{PIPELINE}"
SNAPSHOT_DAG = f"{DAG}_snapshot"

TASK_LINE = re.compile(r"task_id=(\w+)")
JOB_LINE = re.compile(r"run \S+ (merge|filter|write|quality): (by .* s)\b")

# Tables keep this width where the output goes to a file.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main() -> int:
    """Run the demo; the exit status says whether everything added up."""
    place = Place()
    began_s = time.monotonic()
    console.rule("[bold]Lockstep: from a live database to four shards, proven equal")
    place.start_over()
    environment = {**os.environ, **airflow_environment(place.airflow_home, place.pipelines, {})}
    with ThreadPoolExecutor(1) as pool, ExitStack() as running:
        migrated = pool.submit(run_airflow, ["db", "migrate"], environment, log=place.root / "airflow-migrate.log")
        with console.status("starting a MariaDB as source and another for the shards"):
            source, target = running.enter_context(place.servers())
        console.print(f"[green]✓[/] servers on 127.0.0.1: source port {source.port}, shards port {target.port}")
        environment |= connections(place, source, target)
        ok = _run(place, source, target, environment, migrated)
        if ok:
            summary.show_next(console, place)
    console.print(f"\nTook {time.monotonic() - began_s:.0f} s.")
    return 0 if ok else 1


def _run(place: Place, source: MariaDb, target: MariaDb, environment: dict[str, str], migrated: Future[int]) -> bool:
    """migrated: Airflow's database, which is made meanwhile."""
    with closing(source.connect()) as shop_connection, closing(target.connect()) as target_connection:
        for connection, statements in (
            (shop_connection, source_statements()),
            (target_connection, target_statements()),
        ):
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        shop = Shop(shop_connection, SEED)
        _sell("before Lockstep starts", shop, BEFORE)
        with console.status("making Airflow's database"):
            migrated.result()
        with ThreadPoolExecutor(1) as pool:
            copied = pool.submit(_airflow, place, environment, "copy of the rows that were there before", SNAPSHOT_DAG)
            sold = _sell_meanwhile(shop, copied)
            copied.result()
            console.print(f"[green]✓[/] meanwhile: {sold:,} transactions, and customers gained a column")
            first = datetime.now(UTC)
            later = pool.submit(_sell_later, shop, first)
            _dag_run(place, environment, "first run: the copied rows, and all changes up to now", first)
            later.result()
        console.print(f"[green]✓[/] meanwhile: {LATER:,} transactions")
        _dag_run(place, environment, "second run: the changes since", datetime.now(UTC))
        before = target_fingerprint(target_connection)
        target_connection.commit()
        _dag_run(place, environment, "first run, cleared and run again", first)
        unchanged = before == target_fingerprint(target_connection)
        target_connection.commit()
        for name, what in ((REBUILT_DATABASE, "an empty database"), (LAKE, "a lake, as Iceberg tables")):
            _lockstep(place, environment, f"the staged files into {what}", "run", "--staged", "--target", name)
        _lockstep(place, environment, "the lake equals the source at this position", "verify", "--target", LAKE)
        return summary.show(console, place, shop, shop_connection, target_connection, unchanged=unchanged)


def _sell(title: str, shop: Shop, transactions: int) -> None:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(title, total=transactions)
        shop.run(transactions, lambda done: progress.update(task, completed=done))
    console.print(f"[green]✓[/] {title}: {transactions:,} transactions")


def _sell_meanwhile(shop: Shop, copied: Future[None]) -> int:
    """Sells until the rows are copied; how many transactions."""
    sold = 0
    while sold < LEAST or not copied.done():
        if sold == COLUMN_AFTER:
            shop.add_column()
        if sold < MOST:
            shop.run(SLICE)
            sold += SLICE
        time.sleep(PAUSE_S)
    return sold


def _sell_later(shop: Shop, first: datetime) -> None:
    """Half of it after the interval, a minute, in which the first run is: all before belongs to that run."""
    shop.run(LATER // 2)
    minute_ends = first.replace(second=0, microsecond=0) + timedelta(minutes=1)
    time.sleep(max(0.0, (minute_ends - datetime.now(UTC)).total_seconds()))
    shop.run(LATER // 2)


def _dag_run(place: Place, environment: dict[str, str], title: str, until: datetime) -> None:
    """One run of the real DAG to the shards, for everything up to a moment, which is also what the run is known by."""
    conf = json.dumps({"window_end": until.isoformat(), "targets": [SHARDS]})
    _airflow(place, environment, title, DAG, until.isoformat(), "--conf", conf)


def _airflow(place: Place, environment: dict[str, str], title: str, dag: str, *arguments: str) -> None:
    """`airflow dags test`, which runs a DAG; ends the demo when it fails."""
    log = place.root / f"dag-run-{dag}-{int(time.time())}.log"
    began_s = time.monotonic()
    jobs: list[str] = []
    with console.status("") as status:

        def show(line: str) -> None:
            if done := JOB_LINE.search(line):
                jobs.append(f"  {done[1]} {done[2]}")
            if found := TASK_LINE.search(line):
                status.update(f"DAG {dag}, {title}: {found[1]}")

        status.update(f"DAG {dag}, {title}: starting Airflow")
        code = run_airflow(["dags", "test", dag, *arguments], environment, log=log, on_line=show)
    _require_success(code, f"DAG {dag}, {title}", log, began_s)
    for job in dict.fromkeys(jobs):
        console.print(job, markup=False)


def _lockstep(place: Place, environment: dict[str, str], title: str, command: str, *options: str) -> None:
    """By the command line, which needs no Airflow; ends the demo when it fails."""
    log = place.root / f"{command}-{options[-1]}.log"
    began_s = time.monotonic()
    arguments = [sys.executable, "-m", "cdc_core.cli", command, str(place.pipeline_file), *options]
    with console.status(title), open(log, "wb") as output:
        code = subprocess.run(
            arguments, env=environment, cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
    _require_success(code, f"{title} (lockstep {command} {' '.join(options)})", log, began_s)


def _require_success(code: int, title: str, log: Path, began_s: float) -> None:
    if code != 0:
        console.print(f"[red]✗[/] {title}: failed. The last lines (all of them: {log}):")
        console.print("".join(log.read_text(errors="replace").splitlines(keepends=True)[-40:]), markup=False)
        sys.exit(1)
    console.print(f"[green]✓[/] {title}: {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
