"""`make demo`: a shop's changes travel from a live MariaDB through Airflow and Spark into four shards.

Two data intervals of the real DAG run while the shop is open; the first is run again to show that nothing changes;
a replay rebuilds all tables in an empty database, from the staged files alone; then source and targets are compared
row by row. Exit status 0 only if everything adds up.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from examples.sandbox.mariadb import MariaDb
from examples.shop import summary
from examples.shop.airflow_env import airflow_environment, run_airflow
from examples.shop.compare import target_fingerprint
from examples.shop.place import PIPELINE, Place, connections
from examples.shop.tables import REBUILT_DATABASE, source_statements, target_statements
from examples.shop.workload import Shop

SEED = 20
FIRST_HALF, SECOND_HALF = 12_000, 8_000
COLUMN_AFTER = 10_000
WINDOW = timedelta(minutes=1)
DAG = f"cdc_{PIPELINE}"
REPLAY_DAG = f"{DAG}_replay"
HALF_TAKES_S = 20
"""If less than this is left of the minute, the shop opens with the next one, so that its first half fits."""

TASK_LINE = re.compile(r"task_id=(\w+)")

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
        with console.status("starting a MariaDB as source, another for the shards, and Airflow's database"):
            source, target = running.enter_context(place.servers())
            migrated.result()
        console.print(f"[green]✓[/] servers on 127.0.0.1: source port {source.port}, shards port {target.port}")
        environment |= connections(source, target)
        ok = _run(place, source, target, environment)
        if ok:
            summary.show_next(console, place)
    console.print(f"\nTook {time.monotonic() - began_s:.0f} s.")
    return 0 if ok else 1


def _run(place: Place, source: MariaDb, target: MariaDb, environment: dict[str, str]) -> bool:
    with closing(source.connect()) as shop_connection, closing(target.connect()) as target_connection:
        for connection, statements in (
            (shop_connection, source_statements()),
            (target_connection, target_statements()),
        ):
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        shop = Shop(shop_connection, SEED)
        first = _window(time_needed_s=HALF_TAKES_S)
        _open_shop("the shop opens", shop, FIRST_HALF, column_after=COLUMN_AFTER)
        with ThreadPoolExecutor(1) as pool:
            later = pool.submit(_second_half, shop, first + WINDOW)
            _dag_run(place, environment, "first interval", first)
            later.result()
        console.print(f"[green]✓[/] meanwhile: {SECOND_HALF:,} more transactions")
        _wait_until(first + 2 * WINDOW)
        _dag_run(place, environment, "second interval", first + WINDOW)
        before = target_fingerprint(target_connection)
        target_connection.commit()
        _dag_run(place, environment, "first interval, cleared and run again", first)
        unchanged = before == target_fingerprint(target_connection)
        target_connection.commit()
        conf = json.dumps({"target": REBUILT_DATABASE})
        _airflow(place, environment, "replay into an empty database", ["dags", "test", REPLAY_DAG, "--conf", conf])
        return summary.show(console, place, shop, shop_connection, target_connection, unchanged=unchanged)


def _window(*, time_needed_s: float) -> datetime:
    """The minute to work in: this one, or the next one if too little of it is left."""
    now = datetime.now(UTC)
    start = now.replace(second=0, microsecond=0)
    if (start + WINDOW - now).total_seconds() < time_needed_s:
        start += WINDOW
        _wait_until(start)
    return start


def _wait_until(moment: datetime) -> None:
    with console.status("") as status:
        while (left_s := (moment - datetime.now(UTC)).total_seconds()) > 0:
            status.update(f"waiting {left_s:.0f} s for the interval's end")
            time.sleep(min(1.0, left_s))


def _open_shop(title: str, shop: Shop, transactions: int, *, column_after: int) -> None:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(title, total=transactions)
        shop.run(column_after, lambda done: progress.update(task, completed=done))
        shop.add_column()
        shop.run(transactions - column_after, lambda done: progress.update(task, completed=column_after + done))
    console.print(f"[green]✓[/] {title}: {transactions:,} transactions, and customers gained a column")


def _second_half(shop: Shop, start: datetime) -> None:
    time.sleep(max(0.0, (start - datetime.now(UTC)).total_seconds()))
    shop.run(SECOND_HALF)


def _dag_run(place: Place, environment: dict[str, str], title: str, start: datetime) -> None:
    """One run of the real DAG for the interval that begins at `start`, through Airflow's own command."""
    # A manual run belongs to the interval that ends at its logical date.
    command = ["dags", "test", DAG, (start + WINDOW).isoformat()]
    _airflow(place, environment, f"{title} ({start:%H:%M} to {start + WINDOW:%H:%M})", command)


def _airflow(place: Place, environment: dict[str, str], title: str, command: list[str]) -> None:
    """`airflow COMMAND`, which runs a DAG; ends the demo when it fails."""
    dag = command[2]
    log = place.root / f"dag-run-{dag}-{int(time.time())}.log"
    began_s = time.monotonic()
    with console.status("") as status:

        def show(line: str) -> None:
            if found := TASK_LINE.search(line):
                status.update(f"DAG {dag}, {title}: {found[1]}")

        status.update(f"DAG {dag}, {title}: starting Airflow")
        code = run_airflow(command, environment, log=log, on_line=show)
    if code != 0:
        console.print(f"[red]✗[/] {title}: the DAG run failed. Its last lines (all of them: {log}):")
        console.print("".join(log.read_text(errors="replace").splitlines(keepends=True)[-40:]), markup=False)
        sys.exit(1)
    console.print(f"[green]✓[/] DAG {dag}, {title}: {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
