"""`make bench-cutover`: for how long an application cannot write while it is switched to shards.

    quiet      writers alone
    rehearse   `lockstep cutover rehearse`, again and again: everything as far as the proof, then writes continue
    run        `lockstep cutover run`: the same, then fences, gates and the switch

The writers are without a plan: a write that is refused is made again where the application was led. Each confirmed
write must be in the shards in the end; otherwise the benchmark fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.document import DOCUMENT, keep, machine
from benchmarks.latency import latency_picture
from benchmarks.start import share
from examples.move.application import NEW, OLD, Application, Layout, Write
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.sql_server import SqlServer

WRITERS = 4
KEYS = 5_000
"""Of each writer."""
TITLES = {"mariadb": "MariaDB", "mysql": "MySQL"}
PIPELINE = """
pipeline: bench
sources: [{{name: shop, connection: "env:SOURCE", server_id: 4712, start: latest, heartbeat_s: 1}}]
tables: {{include: ['bench\\.t[0-9]+']}}
routes: [{{match: 'bench\\.(.*)', to: '\\1'}}]
stage: {{uri: "file://{root}/stage"}}
meta: {{url: "sqlite:///{root}/meta.db"}}
targets:
  - name: shards
    connections: ["env:TARGET"]
    on_missing_table: create
    tables:
      '*':
        database: bench_{{d}}
        table: "{{logical}}_{{t}}"
        sharding: {{key: id, databases: {databases}, tables: {tables}}}
cutover: {{switch_with: {root}/switch.sh, budget_s: 60, max_lag_s: 6}}
"""


def execute(server: SqlServer, *statements: str) -> list[Any]:
    found: list[Any] = []
    with closing(server.connect(autocommit=True)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
            found = list(cursor.fetchall())
    return found


def steps_of(said: dict[str, Any]) -> str:
    """What the stop was for, in seconds."""
    return ", ".join(f"{step} {seconds:.2f}" for step, seconds in said["stop_steps_s"].items())


def lockstep(folder: Path, environ: dict[str, str], *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "cdc_core.cli", *arguments, "bench.yaml", "--json"]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@dataclass(frozen=True)
class Moved:
    """Seconds: of the application's writes without a cutover, and during each; and for which writes were stopped."""

    quiet_s: list[float]
    rehearsed_s: list[float]
    switched: list[Write]
    stopped_s: list[float]
    last_stop_s: float


def moved(source: SqlServer, target: SqlServer, tables: int, layout: tuple[int, int], per_s: int, times: int) -> Moved:
    environ = {**os.environ, "SOURCE": source.url, "TARGET": target.url}
    execute(source, "CREATE DATABASE bench")
    for number in range(tables):
        execute(source, f"CREATE TABLE bench.t{number} (id INT PRIMARY KEY, n INT NOT NULL)")
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as at:
        folder = Path(at)
        (folder / "bench.yaml").write_text(PIPELINE.format(root=folder, databases=layout[0], tables=layout[1]))
        (folder / "switch.sh").write_text(f"#!/bin/sh\necho new > {folder}/.to && mv {folder}/.to {folder}/to\n")
        (folder / "switch.sh").chmod(0o755)
        (folder / "to").write_text(OLD)
        lockstep(folder, environ, "run")
        names = [f"t{number}" for number in range(tables)]
        with Application(
            {OLD: source, NEW: target}, folder / "to", Layout("bench", *layout), names,
            writers=WRITERS, per_s=per_s, keys=KEYS,
        ) as application:  # fmt: skip
            time.sleep(15)
            quiet = [write.took_s for write in application.seen_until_now()]
            stopped, rehearsed = [], []
            for number in range(times):
                said = lockstep(folder, environ, "cutover", "rehearse")
                stopped.append(float(said["stopped_s"]))
                rehearsed += [write.took_s for write in application.seen_until_now()]
                print(f"rehearsal {number + 1}: {stopped[-1]:.2f} s ({steps_of(said)})", file=sys.stderr)
            said = lockstep(folder, environ, "cutover", "run")
            last = float(said["stopped_s"])
            print(f"cutover: {last:.2f} s ({steps_of(said)})", file=sys.stderr)
            time.sleep(3)
            switched = application.seen_until_now()
        if application.errors:
            raise SystemExit(f"a write failed: {application.errors[0]}")
        wrong = {table: count for table, count in application.wrong(NEW).items() if count}
        if wrong:
            raise SystemExit(f"the shards do not have exactly what was written: {wrong}")
        return Moved(quiet, rehearsed, switched, stopped, last)


def text_of(found: Moved) -> str:
    columns = ("", "writes", "median", "p99", "longest", "writes stopped, median", "longest stop")
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    stops: Sequence[tuple[str, list[float], list[float]]] = (
        ("no cutover", found.quiet_s, []),
        (f"{len(found.stopped_s)} rehearsals", found.rehearsed_s, found.stopped_s),
        ("cutover", [write.took_s for write in found.switched], [found.last_stop_s]),
    )
    for name, took, stopped in stops:
        said = f"{share(stopped, 0.5):.2f} s | {max(stopped):.2f} s" if stopped else " | "
        lines.append(
            f"| {name} | {len(took):,} | {1e3 * share(took, 0.5):.1f} ms | {1e3 * share(took, 0.99):.0f} ms | "
            f"{max(took):.2f} s | {said} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cutover", description=__doc__)
    parser.add_argument("--tables", type=int, default=16, help="logical tables (default 16)")
    parser.add_argument("--databases", type=int, default=2, help="of the target (default 2)")
    parser.add_argument("--shards", type=int, default=2, help="tables in each database (default 2)")
    parser.add_argument("--per-s", type=int, default=500, help="writes in a second (default 500)")
    parser.add_argument("--times", type=int, default=10, help="rehearsals (default 10)")
    parser.add_argument("--server", default="mysql,mariadb", help="servers, by comma")
    parser.add_argument("--write", action="store_true", help="put tables and picture into docs/")
    chosen = parser.parse_args()
    texts, load, switched = [], os.getloadavg()[0], {}
    for name in chosen.server.split(","):
        if name == "mysql" and (why := MySql.available()):
            print(f"MySQL is left out: {why}", file=sys.stderr)
            continue
        start = {"mariadb": MariaDb.start, "mysql": MySql.start}[name]
        with start(server_id=9) as source, start(server_id=10) as target:
            layout = chosen.databases, chosen.shards
            found = moved(source, target, chosen.tables, layout, chosen.per_s, chosen.times)
            places = f"{chosen.tables} tables to {chosen.tables * layout[0] * layout[1]} tables of shards"
            head = machine(source, load, places, f"{WRITERS} writers, {chosen.per_s} writes/s")
            texts += [head, "", text_of(found), ""]
            switched[f"{TITLES[name]}: {places}, {chosen.per_s} writes/s"] = found.switched
            print("\n".join(texts[-4:]), file=sys.stderr)
    text = "\n".join(texts).rstrip()
    print(text)
    if chosen.write:
        keep("cutover", text)
        DOCUMENT.with_name("cutover.svg").write_text(latency_picture(switched), encoding="utf-8")


if __name__ == "__main__":
    main()
