"""`make bench-start`: a pipeline starts on a database of many rows while an application writes, and ends equal.

    quiet     writers, and `lockstep extract --follow`
    gentle    the same, while `lockstep snapshot` reads the rows of 10 tables: a reader, small chunks, a throttle
    copy      the same of the other 10 tables, as fast as it goes: two readers
    then      writers stop; `lockstep run` fills a target of 20 empty tables, and `lockstep verify` compares

Of each of the first three: how long the application's statements took, and how far the stage was behind the source. The
verification must find every table equal, or there are no figures.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.copy import COLUMNS, DATABASE, VALUES, Turn, execute, measured
from benchmarks.document import keep, machine
from cdc_core.meta import Meta
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.sql_server import SqlServer

TABLES = 20
WRITERS, PER_S = 2, 50
"""Threads of the application, and about how many statements one of them executes in a second."""
PIPELINE = """
pipeline: bench
sources: [{{name: shop, connection: "env:SOURCE", server_id: 4711, start: latest, heartbeat_s: 1}}]
tables: {{include: ['bench\\.t[0-9]+']}}
routes: [{{match: 'bench\\.(.*)', to: '\\1'}}]
stage: {{uri: "file://{root}/stage"}}
meta: {{url: "sqlite:///{root}/meta.db"}}
targets: [{{name: copy, connections: ["env:TARGET"], tables: {{'*': {{database: copy, table: "{{logical}}"}}}}}}]
snapshot: {snapshot}
limits: {{batch_age_s: 1}}
"""
FAST = "{readers: 2}"
GENTLE = "{{readers: 1, chunk_mib: 4, throttle: {{threads_running: {limit}}}}}"


@dataclass
class Seen:
    """statements_s: how long each of the application's took. lags_s: of the stage, five times a second."""

    statements_s: list[float] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)


class Application:
    """Writes, each statement a transaction; what it takes is noted in `seen`."""

    def __init__(self, server: SqlServer, rows: int) -> None:
        self._server, self._rows = server, rows
        self.seen = Seen()

    def _write(self, number: int, stop: threading.Event) -> None:
        chance = random.Random(number)
        with closing(self._server.connect(DATABASE, autocommit=True)) as connection, connection.cursor() as cursor:
            while not stop.wait(chance.uniform(0, 2 / PER_S)):
                table, key = f"t{chance.randrange(TABLES)}", chance.randrange(self._rows)
                statement = chance.choice((
                    f"UPDATE {table} SET amount = amount + 1 WHERE id = {key}",
                    f"DELETE FROM {table} WHERE id = {key}",
                    f"REPLACE INTO {table} SELECT {VALUES.format(k=key)}",
                ))  # fmt: skip
                began_s = time.perf_counter()
                cursor.execute(statement)
                self.seen.statements_s.append(time.perf_counter() - began_s)

    def _look(self, meta_url: str, stop: threading.Event) -> None:
        with Meta.open(meta_url, "bench") as meta:
            while not stop.wait(0.2):
                reached = meta.positions.checkpoint("shop")
                if reached is not None:
                    self.seen.lags_s.append(time.time() - reached.watermark_us / 1e6)

    @contextmanager
    def at_work(self, meta_url: str) -> Iterator[None]:
        stop = threading.Event()
        threads = [threading.Thread(target=self._write, args=(number, stop)) for number in range(WRITERS)]
        threads.append(threading.Thread(target=self._look, args=(meta_url, stop)))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def seen_until_now(self) -> Seen:
        """What was seen since the last time this was asked."""
        seen, self.seen = self.seen, Seen()
        return seen


def filled(server: SqlServer, rows: int) -> None:
    """rows: of each table."""
    digits = " UNION ALL ".join(f"SELECT {digit} d" for digit in range(10))
    execute(
        server, f"CREATE DATABASE {DATABASE}", f"CREATE TABLE {DATABASE}.n (n INT PRIMARY KEY)",
        f"INSERT INTO {DATABASE}.n SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d "
        f"FROM ({digits}) a, ({digits}) b, ({digits}) c, ({digits}) e, ({digits}) f",
    )  # fmt: skip
    for number in range(TABLES):
        table = f"{DATABASE}.t{number}"
        execute(server, f"CREATE TABLE {table} ({COLUMNS})")
        for low in range(0, rows, 100_000):
            values = VALUES.format(k=f"({low} + n)")
            count = min(100_000, rows - low)
            execute(server, f"INSERT INTO {table} SELECT {values} FROM {DATABASE}.n WHERE n < {count} ORDER BY n")


def share(values: Sequence[float], of: float) -> float:
    found = sorted(values)
    return found[min(len(found) - 1, int(of * len(found)))]


def lockstep(*arguments: str, tables: Sequence[str] = ()) -> list[str]:
    return [sys.executable, "-m", "cdc_core.cli", *arguments, "bench.yaml", *tables]


@dataclass(frozen=True)
class Start:
    """steps: with how many rows each of them had to do."""

    quiet: Seen
    gentle: Seen
    copying: Seen
    steps: dict[str, tuple[Turn, int]]


def started(server: SqlServer, target: SqlServer, rows: int, quiet_s: float, limit: int) -> Start:
    """rows: of each table. limit: threads running, of the gentle copy. Raises CalledProcessError: a step has failed, or
    the target is not equal."""
    environ = {**os.environ, "SOURCE": server.url, "TARGET": target.url}
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as at:
        folder = Path(at)

        def configure(snapshot: str) -> None:
            (folder / "bench.yaml").write_text(PIPELINE.format(root=folder, snapshot=snapshot))

        configure(FAST)
        names = [f"{DATABASE}.t{number}" for number in range(TABLES)]
        first, second = names[: TABLES // 2], names[TABLES // 2 :]
        steps = {}
        for name, command in (("extract", lockstep("extract")), ("target create", lockstep("target", "create"))):
            measured(server, command, folder, environ)
            print(f"{name}: done", file=sys.stderr)
        application = Application(server, rows)
        meta_url = f"sqlite:///{folder}/meta.db"
        with (folder / "follow").open("wb") as log:
            follower = subprocess.Popen(
                lockstep("extract", "--follow"), cwd=folder, env=environ, stdout=log, stderr=subprocess.STDOUT
            )
            try:
                with application.at_work(meta_url):
                    time.sleep(5)
                    application.seen_until_now()
                    time.sleep(quiet_s)
                    quiet = application.seen_until_now()
                    configure(GENTLE.format(limit=limit))
                    turn = measured(server, lockstep("snapshot", tables=first), folder, environ)
                    steps["gentle copy"] = turn, rows * len(first)
                    gentle = application.seen_until_now()
                    configure(FAST)
                    turn = measured(server, lockstep("snapshot", tables=second), folder, environ)
                    steps["copy"] = turn, rows * len(second)
                    copying = application.seen_until_now()
            finally:
                follower.terminate()
                follower.wait()
        for name in ("run", "verify"):
            steps[name] = measured(server, lockstep(name), folder, environ), rows * TABLES
        return Start(quiet, gentle, copying, steps)


def text_of(found: Start) -> str:
    columns = ("", "rows/s", "source CPU", "statement, median", "p99", "lag, median", "p95")
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    seen_beside = {"gentle copy": found.gentle, "copy": found.copying}
    for name, seen in (("no copy", found.quiet), *((name, seen_beside.get(name)) for name in found.steps)):
        cells = [name, "", "", "", "", "", ""]
        if name in found.steps:
            one, rows = found.steps[name]
            cells[1:3] = f"{rows / one.wall_s:,.0f}", f"{one.server_cpu_s:.1f} s"
        if seen:
            took, lags = seen.statements_s, seen.lags_s
            cells[3:5] = (f"{1e3 * share(took, at):.2f} ms" for at in (0.5, 0.99))
            cells[5:7] = (f"{share(lags, at):.1f} s" for at in (0.5, 0.95))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="of all tables (default 5,000,000)")
    parser.add_argument("--quiet-s", type=float, default=30, help="how long is looked at without a copy (default 30)")
    parser.add_argument("--threads-running", type=int, default=4, help="limit of the gentle copy (default 4)")
    parser.add_argument("--server", default="mysql,mariadb", help="servers, by comma")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    chosen = parser.parse_args()
    each = chosen.rows // TABLES
    texts, load = [], os.getloadavg()[0]
    for name in chosen.server.split(","):
        if name == "mysql" and (why := MySql.available()):
            print(f"MySQL is left out: {why}", file=sys.stderr)
            continue
        start = {"mariadb": MariaDb.start, "mysql": MySql.start}[name]
        options = {"innodb-buffer-pool-size": "1G", "innodb-flush-log-at-trx-commit": "0"}
        with start(server_id=9, options=options) as server, start(server_id=10, options=options) as target:
            filled(server, each)
            try:
                found = started(server, target, each, chosen.quiet_s, chosen.threads_running)
            except subprocess.CalledProcessError as error:
                raise SystemExit(f"{error}: {(error.output or b'').decode(errors='replace')[-2000:]}") from error
            writers = f"{WRITERS} writers of about {PER_S} statements/s"
            head = machine(server, load, f"{each * TABLES:,} rows in {TABLES} tables of 8 columns", writers)
            texts += [head, "", text_of(found), ""]
            print("\n".join(texts[-4:]), file=sys.stderr)
    text = "\n".join(texts).rstrip()
    print(text)
    if chosen.write:
        keep("start", text)


if __name__ == "__main__":
    main()
