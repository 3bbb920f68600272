"""`make bench`: how fast the extractor reads a real server's log, next to others that read it in the same run.

Every workload has a server of its own (MySQL 9 where there is one, else MariaDB), whose log holds nothing else. Each
reader runs in a process of its own, several rounds, in turn; the best round counts. All must find every change.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from benchmarks.document import DOCUMENT, keep, machine
from benchmarks.peer_environments import RIVET_VERSION, rivet
from benchmarks.picture import picture
from benchmarks.starting import seconds_to_stream
from benchmarks.workloads import WORKLOADS, Stretch, Workload, written
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.sql_server import SqlServer

Figures = dict[str, dict[str, Any]]
PEERS = {
    "rivet": "rivet-cli",
    "mysql_replication": "mysql-replication",
    "mysqlbinlog": "mysqlbinlog --raw, copying only",
    "pyarrow": "pyarrow, writing only",
}
ONCE = ("mysql_replication", "pyarrow")
"""Readers of one round: the first is so slow that one tells, the second repeats its work itself."""


def measured(reader: str, url: str, stretch: Stretch, environ: dict[str, str]) -> dict[str, Any] | None:
    """None where another reader than ours cannot read the stretch, or not all of it: it then has no figure."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as job:
        json.dump({"url": url, "stretch": asdict(stretch)}, job)
        job.flush()
        command = [sys.executable, "-m", "benchmarks.readers", reader, job.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    found: dict[str, Any] = {} if done.returncode else json.loads(done.stdout)
    if found.get("changes") == stretch.changes:
        return found
    why = done.stderr[-2000:] if done.returncode else f"{found['changes']} changes, not {stretch.changes}"
    if reader.startswith("lockstep"):
        raise SystemExit(f"{reader} failed on {stretch.database}: {why}")
    print(f"{reader} has no figure for {stretch.database}: {why}", file=sys.stderr)
    return None


def best_of(rounds: int, readers: list[str], url: str, stretch: Stretch, environ: dict[str, str]) -> Figures:
    best: Figures = {}
    for number in range(rounds):
        for reader in readers:
            if number and reader in ONCE:
                continue
            found = measured(reader, url, stretch, environ)
            if found is not None and (reader not in best or found["seconds"] < best[reader]["seconds"]):
                best[reader] = found
    return best


def line(workload: Workload, stretch: Stretch, figures: Figures) -> str:
    ours = figures["lockstep"]

    def beside(reader: str) -> str:
        if reader not in figures:
            return "–"
        seconds = figures[reader]["seconds"]
        return f"{stretch.changes / seconds:,.0f} ({seconds / ours['seconds']:.1f}×)"

    whole_s = figures["lockstep_command"]["seconds"]
    whole = f"{whole_s:.2f} s"
    if "rivet" in figures:
        whole += f" (rivet-cli {figures['rivet']['seconds'] / whole_s:.1f}×)"
    return (
        f"| {workload.about} | {stretch.changes:,} | {ours['seconds']:.2f} s | "
        f"**{stretch.changes / ours['seconds']:,.0f}** | {ours['cpu']:.2f} s | {ours['rss_mib']:,.0f} MiB | "
        f"{stretch.log_bytes / _MIB:,.0f} → {ours['staged_bytes'] / _MIB:,.1f} MiB | "
        + " | ".join(map(beside, PEERS))
        + f" | {whole}"
        + " |"
    )


_MIB = 1 << 20
_COLUMNS = (
    "workload", "changes", "time", "changes/s", "CPU", "memory", "log → staged", *PEERS.values(), "whole command"
)  # fmt: skip
HEAD = f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"


def start(server: str) -> SqlServer:
    options = {"innodb-flush-log-at-trx-commit": "0"}
    starts: dict[str, Callable[..., SqlServer]] = {"mysql": MySql.start, "mariadb": MariaDb.start}
    return starts[server](server_id=9, options=options)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.extract", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one round, under two minutes")
    parser.add_argument("--only", default="", help="workloads, by comma: " + ", ".join(w.name for w in WORKLOADS))
    parser.add_argument("--rounds", type=int, default=0, help="how often each reader runs (default 3; quick: 1)")
    parser.add_argument(
        "--server", choices=["mysql", "mariadb"], default="mysql" if not MySql.available() else "mariadb"
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    chosen = parser.parse_args()
    names = chosen.only.split(",") if chosen.only else [workload.name for workload in WORKLOADS]
    rounds = chosen.rounds or (1 if chosen.quick else 3)
    peer = rivet() if chosen.server == "mysql" else None
    # Compiled Python is kept as on any installed machine, whatever this shell has been told.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if peer:
        environ["RIVET"] = str(peer)
    copier = MySql.client("mysqlbinlog") if chosen.server == "mysql" else None
    environ["MYSQLBINLOG"] = json.dumps(copier)
    lines, where, load = [HEAD], "", os.getloadavg()[0]
    bars: dict[str, dict[str, float]] = {}
    for workload in WORKLOADS:
        if workload.name not in names:
            continue
        with start(chosen.server) as server:
            where = where or machine(server, load, f"rivet-cli {RIVET_VERSION}")
            rows = int(workload.rows * (workload.quick if chosen.quick else 1))
            print(f"writing {rows:,} changes: {workload.about}", file=sys.stderr)
            stretch = written(server, workload, rows)
            readers = ["lockstep", "lockstep_command", "pyarrow", "mysql_replication"]
            if copier:
                readers.append("mysqlbinlog")
            if peer and len(workload.tables) == 1:
                readers.append("rivet")
            figures = best_of(rounds, readers, server.url, stretch, environ)
            lines.append(line(workload, stretch, figures))
            bars[workload.about] = {
                label: stretch.changes / figures[reader]["seconds"]
                for reader, label in {"lockstep": "Lockstep", **PEERS}.items()
                if reader in figures
            }
        print(lines[-1], file=sys.stderr)
    with start(chosen.server) as server:
        lines += [
            "",
            f"`lockstep extract` requests the log {seconds_to_stream(server, 5, environ):.2f} s after it starts.",
        ]
    text = "\n".join([where, "", *lines])
    print(text)
    if chosen.write:
        keep("extract", text)
        DOCUMENT.with_suffix(".svg").write_text(picture(bars), encoding="utf-8")


if __name__ == "__main__":
    main()
