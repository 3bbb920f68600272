"""`python -m benchmarks.verify`: how long it takes to compare a table with its copy on another server.

    lockstep          `lockstep verify`, every value of every row; source and target are written to by nobody meanwhile
    pt-table-checksum CRC32 of chunks, on the source alone: a replica would compute them again after it
    reladiff          MD5 sums of segments on both servers, in a virtual environment of its own

Each is a process of its own; of several turns, in which they alternate, the medians count. CPU is that of the process
with its children, and of each server. A peer that this machine does not have is left out, and said so. Rows read are
the source's Handler_read_next and Handler_read_rnd_next, as a multiple of the table's rows.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.document import keep, machine
from examples.sandbox.mariadb import MariaDb

PIPELINE = """
pipeline: bench
sources: [{{name: shop, connection: env:SOURCE, server_id: 4711, start: latest}}]
tables: {{include: ['bench\\.orders']}}
routes: [{{match: '.*', to: orders}}]
stage: {{uri: "file://{root}/stage"}}
meta: {{url: "sqlite:///{root}/meta.db"}}
targets: [{{name: copy, connections: [env:TARGET], tables: {{orders: {{database: bench}}}}}}]
"""
TABLE = (
    "CREATE TABLE bench.orders (id BIGINT PRIMARY KEY, customer INT NOT NULL, note VARCHAR(80) NOT NULL, "
    "amount DECIMAL(12,2) NOT NULL, at DATETIME(6) NOT NULL)"
)
ROWS = (
    "INSERT INTO bench.orders SELECT seq, seq MOD 1000, CONCAT('note ', SHA1(seq)), seq / 7, "
    "'2024-01-01' + INTERVAL seq SECOND FROM seq_1_to_{rows}"
)
RELADIFF = "0.6.0"
_TICK = os.sysconf("SC_CLK_TCK")


def cpu_of(server: MariaDb) -> float:
    """Seconds that a server has used, all threads."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def rows_read(server: MariaDb) -> int:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS WHERE Variable_name IN ('Handler_read_next', 'Handler_read_rnd_next')")
        return sum(int(value) for _, value in cursor.fetchall())


def execute(server: MariaDb, *statements: str) -> None:
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def measured(source: MariaDb, target: MariaDb, command: Sequence[str], environ: dict[str, str]) -> dict[str, float]:
    """One turn. Raises CalledProcessError."""
    before = cpu_of(source), cpu_of(target), rows_read(source)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, env=os.environ | environ, capture_output=True, check=True)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    client = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    return {
        "seconds": seconds, "client_cpu": client, "source_cpu": cpu_of(source) - before[0],
        "target_cpu": cpu_of(target) - before[1], "rows_read": float(rows_read(source) - before[2]),
    }  # fmt: skip


def prepared(root: Path, environ: dict[str, str]) -> list[str]:
    """The command that verifies, once the pipeline has a place in the log."""
    from cdc_core.config import load
    from cdc_core.meta import Meta

    file = root / "bench.yaml"
    file.write_text(PIPELINE.format(root=root))
    lockstep = [sys.executable, "-m", "cdc_core.cli"]
    subprocess.run([*lockstep, "extract", str(file)], env=os.environ | environ, check=True, stdout=subprocess.PIPE)
    with Meta.open(load(file).meta.url, load(file).pipeline) as meta:
        meta.records.seed("copy", list(meta.batches.find("shop")))
    return [*lockstep, "verify", str(file), "--restart", "--json"]


def reladiff() -> Path | None:
    """Its program, installed at the first use; None where that is not possible."""
    home = Path.home() / ".cache" / "lockstep" / f"reladiff-{RELADIFF}"
    program = home / "bin" / "reladiff"
    if not program.exists():
        for command in (
            [sys.executable, "-m", "venv", str(home)],
            [str(home / "bin" / "python"), "-m", "pip", "install", "-q", f"reladiff[mysql]=={RELADIFF}"],
        ):
            if subprocess.run(command, check=False).returncode:
                return None
    return program if program.exists() else None


def ways(source: MariaDb, target: MariaDb, root: Path, environ: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"lockstep verify": prepared(root, environ)}
    checksum = shutil.which("pt-table-checksum")
    if checksum is not None:
        login = f"h=127.0.0.1,P={source.port},u={source.user},p={source.password}"
        found["pt-table-checksum"] = [
            checksum, login, "--databases=bench", "--tables=orders", "--recursion-method=none",
            "--no-check-binlog-format", "--no-check-replication-filters", "--empty-replicate-table", "--quiet",
        ]  # fmt: skip
    program = reladiff()
    if program is not None:
        of, to = (
            f"mysql://{server.user}:{server.password}@127.0.0.1:{server.port}/bench" for server in (source, target)
        )
        found["reladiff"] = [str(program), of, "orders", to, "orders", "-k", "id", "-c", "%", "-s"]
    return found


def medians(turns: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}


def run(rows: int, turns: int, said: Callable[[str], None]) -> dict[str, Any]:
    load_before = os.getloadavg()[0]
    with (
        MariaDb.start(server_id=1) as source,
        MariaDb.start(server_id=2) as target,
        tempfile.TemporaryDirectory() as at,
    ):
        # As installed programs have it: their modules are compiled once.
        environ = {"SOURCE": source.url, "TARGET": target.url, "PYTHONPYCACHEPREFIX": at, "PYTHONDONTWRITEBYTECODE": ""}
        for server in (source, target):
            execute(
                server,
                "CREATE DATABASE bench",
                "USE bench",
                TABLE,
                ROWS.format(rows=rows),
                "ANALYZE TABLE bench.orders",
            )
        found: dict[str, list[dict[str, float]]] = {}
        commands = ways(source, target, Path(at), environ)
        for turn in range(turns + 1):
            for name, command in commands.items():
                try:
                    figures = measured(source, target, command, environ)
                except subprocess.CalledProcessError as error:
                    said(f"{name}: {(error.stderr or error.stdout).decode(errors='replace')[-600:]}")
                    continue
                if turn:  # the first fills the servers' caches
                    found.setdefault(name, []).append(figures)
        said_of = machine(source, load_before)
        return {
            "rows": rows,
            "turns": turns,
            "machine": said_of,
            "ways": {name: medians(results) for name, results in found.items()},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    result = run(options.rows, options.turns, lambda line: print(line, file=sys.stderr))
    if options.json:
        print(json.dumps(result, indent=1))
        return
    text = table(result)
    print(text)
    if options.write:
        keep("verify", f"{result['rows']:,} rows of 5 columns, medians of {result['turns']} turns. {text}")


def table(result: dict[str, Any]) -> str:
    ours = result["ways"]["lockstep verify"]["seconds"]
    lines = [
        result["machine"], "",
        "| | seconds | × lockstep | client CPU s | source CPU s | target CPU s | rows read / rows |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, way in result["ways"].items():
        figures = (way["seconds"], way["seconds"] / ours, way["client_cpu"], way["source_cpu"], way["target_cpu"])
        ratio = way["rows_read"] / result["rows"]
        lines.append(f"| {name} | {' | '.join(f'{figure:.2f}' for figure in (*figures, ratio))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
