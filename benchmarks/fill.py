"""`make bench-fill`: how fast a table's existing rows fill four empty shards on another server, beside plain tools.

    lockstep            `lockstep run` of a new pipeline: the start of the log, the copy, and a run with its guarded
                        write, its read-back and its ledger
    mydumper, myloader  two threads each; one table is filled, since myloader does not know of shards. With the binary
                        log, as Lockstep's writes
    LOAD DATA           LOCAL, four files that were made before, each with the rows of one shard in the order of its
                        key; two sessions side by side, one transaction for each file

Each is a process of its own, from its start to its end, with empty tables; they take turns, and the medians count. CPU
is that of the process with its children, and of both servers. Each must end with the source's rows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pymysql

from benchmarks.copy import (
    COLUMNS,
    DATABASE,
    MYDUMPER_SPLITS,
    OPTIONS,
    TABLE,
    cpu_of,
    execute,
    filled,
    measured,
    mydumper,
)
from benchmarks.document import keep, machine
from examples.sandbox.mysql import MySql

SHARDS, THREADS = 4, 2
TARGET = "shards"
PIPELINE = """
pipeline: bench
sources: [{{name: shop, connection: "env:SOURCE", server_id: 4711, start: latest}}]
tables: {{include: ['bench\\.orders']}}
stage: {{uri: "file://{root}/stage"}}
meta: {{url: "sqlite:///{root}/meta.db"}}
snapshot: {{mode: initial, readers: 2}}
targets:
  - name: shards
    connections: ["env:TARGET"]
    tables:
      bench.orders: {{sharding: {{key: id, databases: 1, tables: {shards}}}, database: shards, table: "orders_{{t}}"}}
"""


@dataclass(frozen=True)
class Filled:
    """One turn of one way. CPU seconds."""

    wall_s: float
    client_cpu_s: float
    source_cpu_s: float
    target_cpu_s: float


def sums(server: MySql, tables: Sequence[str]) -> tuple[int, int]:
    """Of all rows of some tables: a sum of their checksums, and how many there are."""
    names = ", ".join(column.split()[0] for column in COLUMNS.split(", "))
    found = [0, 0]
    with server.connect() as connection, connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"SELECT COALESCE(SUM(CRC32(CONCAT_WS(',', {names}))), 0), COUNT(*) FROM {table}")
            [[checksum, count]] = cursor.fetchall()
            found[0] += int(checksum)
            found[1] += int(count)
    return found[0], found[1]


def emptied(target: MySql) -> None:
    execute(
        target, f"DROP DATABASE IF EXISTS {TARGET}", f"CREATE DATABASE {TARGET}",
        *(f"CREATE TABLE {TARGET}.orders_{shard} ({COLUMNS})" for shard in range(SHARDS)),
    )  # fmt: skip


def written_files(source: MySql, folder: Path) -> None:
    """The rows of each shard in the form of LOAD DATA, by the client of the server; no value is NULL."""
    client = MySql.client("mysql") or ("mysql",)
    for shard in range(SHARDS):
        with (folder / f"{shard}.tsv").open("wb") as file:
            subprocess.run(
                [*client, f"--host={source.host}", f"--port={source.port}", f"--user={source.user}", "--batch",
                 "--quick", "--skip-column-names",
                 f"--execute=SELECT * FROM {DATABASE}.{TABLE} WHERE id % {SHARDS} = {shard} ORDER BY id"],
                stdout=file, check=True, env={**os.environ, "MYSQL_PWD": source.password},
            )  # fmt: skip


def load_data(folder: Path, port: int) -> None:
    """What the process of this way does."""

    def load(shard: int) -> None:
        with (
            pymysql.connect(
                host="127.0.0.1", port=port, user="root", password=os.environ["MYSQL_PWD"], local_infile=True,
                charset="utf8mb4", database=TARGET,
            ) as connection,
            connection.cursor() as cursor,
        ):  # fmt: skip
            cursor.execute(f"LOAD DATA LOCAL INFILE '{folder}/{shard}.tsv' INTO TABLE orders_{shard}")
            connection.commit()

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(load, range(SHARDS)))


def turn(name: str, source: MySql, target: MySql, folder: Path, files: Path, rows: int) -> Filled:
    """Raises CalledProcessError."""
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environ |= {"SOURCE": source.url, "TARGET": target.url, "MYSQL_PWD": target.password}
    emptied(target)
    if name == "lockstep run":
        (folder / "bench.yaml").write_text(PIPELINE.format(root=folder, shards=SHARDS))
        commands = [[str(Path(sys.executable).parent / "lockstep"), "run", str(folder / "bench.yaml"), "--json"]]
    elif name == "LOAD DATA":
        commands = [[sys.executable, "-m", "benchmarks.fill", "--load", str(files), "--port", str(target.port)]]
        environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    else:
        dumper = mydumper(source, THREADS, rows)
        assert dumper is not None
        commands = [list(dumper.command(folder)), [
            shutil.which("myloader") or "myloader", f"--host={target.host}", f"--port={target.port}",
            f"--user={target.user}", f"--password={target.password}", f"--directory={folder}/dump",
            f"--threads={THREADS}", "--enable-binlog", f"--source-db={DATABASE}", f"--database={TARGET}",
        ]]  # fmt: skip
    before_s, began_s, used_s, server_s = cpu_of(source), time.perf_counter(), 0.0, 0.0
    for command in commands:
        result = measured(target, command, folder, environ)
        used_s, server_s = used_s + result.client_cpu_s, server_s + result.server_cpu_s
    return Filled(time.perf_counter() - began_s, used_s, cpu_of(source) - before_s, server_s)


def compared(source: MySql, target: MySql, rows: int, turns: int) -> dict[str, list[Filled]]:
    names = ["lockstep run", "mydumper, myloader", "LOAD DATA"]
    if shutil.which("mydumper") is None or shutil.which("myloader") is None:
        print("mydumper, myloader is left out: this machine does not have them", file=sys.stderr)
        names.remove("mydumper, myloader")
    found: dict[str, list[Filled]] = {name: [] for name in names}
    expected = sums(source, [f"{DATABASE}.{TABLE}"])
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as files:
        written_files(source, Path(files))
        for _ in range(turns):
            for name in names:
                with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as at:
                    try:
                        result = turn(name, source, target, Path(at), Path(files), rows)
                    except subprocess.CalledProcessError as error:
                        raise SystemExit(f"{name}: {error.output.decode(errors='replace')[-2000:]}") from error
                whole = name == "mydumper, myloader"
                tables = [f"{TARGET}.{TABLE}"] if whole else [f"{TARGET}.orders_{shard}" for shard in range(SHARDS)]
                if sums(target, tables) != expected:
                    raise SystemExit(f"{name} ended with other rows than the source's")
                found[name].append(result)
                print(f"{name}: {result.wall_s:.2f} s", file=sys.stderr)
    return found


def text_of(found: Mapping[str, Sequence[Filled]], rows: int) -> str:
    ours = statistics.median(result.wall_s for result in found["lockstep run"])
    columns = ("", "time", "rows/s", "time / Lockstep's", "client CPU", "source CPU", "target CPU")
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for name, turns in found.items():
        wall_s = statistics.median(result.wall_s for result in turns)
        cpus = [
            statistics.median(figure)
            for figure in zip(
                *((result.client_cpu_s, result.source_cpu_s, result.target_cpu_s) for result in turns), strict=True
            )
        ]
        times = " | ".join(f"{cpu:.1f} s" for cpu in cpus)
        lines.append(f"| {name} | {wall_s:.1f} s | {rows / wall_s:,.0f} | {wall_s / ours:.2f}× | {times} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fill", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one turn")
    parser.add_argument("--rows", type=int, default=0, help="of the table (default 1,000,000)")
    parser.add_argument("--turns", type=int, default=0, help="default 3; quick: 1")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.load is not None:
        load_data(chosen.load, chosen.port)
        return
    if why := MySql.available():
        raise SystemExit(f"this benchmark needs a MySQL: {why}")
    rows = chosen.rows or (100_000 if chosen.quick else 1_000_000)
    turns = chosen.turns or (1 if chosen.quick else 3)
    load, options = os.getloadavg()[0], OPTIONS | MYDUMPER_SPLITS
    with MySql.start(server_id=9, options=options) as source, MySql.start(server_id=10, options=options) as target:
        filled(source, rows)
        found = compared(source, target, rows, turns)
        head = machine(target, load, f"{rows:,} rows of 8 columns into {SHARDS} shards", f"medians of {turns} turns")
    text = f"{head}\n\n{text_of(found, rows)}"
    print(text)
    if chosen.write:
        keep("fill", text)


if __name__ == "__main__":
    main()
