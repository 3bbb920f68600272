"""`make bench-copy`: how fast a table's existing rows become durable files, beside others that copy the same table.

    lockstep          `lockstep snapshot` into an empty stage: the start of the log, chunks, Parquet (zstd) with all
                      bookkeeping columns and hashes, fsync, manifest and meta (SQLite)
    mydumper          INSERT statements, split by `--rows` where several threads read; as they are, and
                      compressed by its own `--compress` (gzip)
    mysqldump         one thread, INSERT statements (on MariaDB: mariadb-dump); as they are, and through `zstd -1`
    rivet-cli         `rivet run` of one table into Parquet, one thread, or its chunks in parallel
    pymysql+pyarrow   SSCursor, and ParquetWriter with zstd

Each is a process of its own from start to end, with an empty folder; of several turns, in which they alternate, the
medians count (of PyMySQL one turn). CPU is that of the process with its children, and of the server; memory that of
the process, but of a pipe nothing. A program that this machine does not have is left out, and said so. All must bring
every row.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.document import DOCUMENT, keep, machine
from benchmarks.peer_environments import rivet
from benchmarks.picture import picture
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.sql_server import SqlServer

DATABASE, TABLE = "bench", "orders"
COLUMNS = (
    "id BIGINT PRIMARY KEY, customer INT UNSIGNED NOT NULL, amount DECIMAL(14,2) NOT NULL, "
    "status ENUM('new','paid','sent','done') NOT NULL, note VARCHAR(80), created DATETIME(3) NOT NULL, "
    "changed TIMESTAMP(6) NULL, score DOUBLE"
)
VALUES = (
    "{k}, {k} * 7919 % 100000, {k} * 104729 % 10000000 / 100, 1 + {k} % 4, CONCAT('note ', SHA2({k}, 256)), "
    "'2024-01-01' + INTERVAL {k} SECOND, '2024-01-01' + INTERVAL {k} * 1000003 MICROSECOND, {k} / 7"
)
PIPELINE = """
pipeline: bench
sources: [{{name: shop, connection: env:SOURCE, server_id: 4711, start: latest}}]
tables: {{include: ['bench\\.orders']}}
stage: {{uri: "file://{root}/stage"}}
meta: {{url: "sqlite:///{root}/meta.db"}}
snapshot: {{readers: {readers}}}
"""
RIVET = """
source: {{type: mysql, url_env: RIVET_URL}}
exports:
  - name: orders
    table: orders
    mode: chunked
    {mode}
    format: parquet
    columns: {{amount: "decimal(14,2)"}}
    destination: {{type: local, path: {folder}/out}}
"""
OPTIONS = {"innodb-buffer-pool-size": "2G", "innodb-flush-log-at-trx-commit": "0"}
MYDUMPER_SPLITS = {"explain-format": "TRADITIONAL"}
"""In MySQL 9's own format of EXPLAIN mydumper 0.10 finds no number of rows, and dumps a table with one thread."""
_TICK = os.sysconf("SC_CLK_TCK")
_BATCH = 100_000
_POLL_S = 0.02


@dataclass(frozen=True)
class Turn:
    """One copy. client_cpu_s: of the process and its children; rss_mib: the most that it had."""

    wall_s: float
    client_cpu_s: float
    server_cpu_s: float
    rss_mib: float


@dataclass(frozen=True)
class Way:
    """command: of a process whose files go to a folder. rows: how many of them it has written there."""

    command: Callable[[Path], Sequence[str]]
    rows: Callable[[Path], int]


def execute(server: SqlServer, *statements: str) -> None:
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def filled(server: SqlServer, rows: int) -> None:
    digits = " UNION ALL ".join(f"SELECT {digit} d" for digit in range(10))
    execute(
        server, f"CREATE DATABASE {DATABASE}", f"CREATE TABLE {DATABASE}.{TABLE} ({COLUMNS})",
        f"CREATE TABLE {DATABASE}.n (n INT PRIMARY KEY)",
        f"INSERT INTO {DATABASE}.n SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d "
        f"FROM ({digits}) a, ({digits}) b, ({digits}) c, ({digits}) e, ({digits}) f",
    )  # fmt: skip
    for low in range(0, rows, _BATCH):
        count = min(_BATCH, rows - low)
        values = VALUES.format(k=f"({low} + n)")
        execute(
            server,
            f"INSERT INTO {DATABASE}.{TABLE} SELECT {values} FROM {DATABASE}.n WHERE n < {count} ORDER BY n",
        )
    execute(server, f"ANALYZE TABLE {DATABASE}.{TABLE}")


def cpu_of(server: SqlServer) -> float:
    """Seconds that a server has used, all threads."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _peak_kib(pid: int) -> int:
    """Of the memory that a process has had since it began its program; 0 once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) if found else 0


def measured(server: SqlServer, command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Turn:
    """Raises CalledProcessError."""
    before = cpu_of(server)
    with (folder / "output").open("w+b") as output:
        began_s, peak_kib = time.perf_counter(), 0
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=environ)
        # `wait` does not say what a single child has used; and its ru_maxrss begins with that of this process.
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            peak_kib = max(peak_kib, _peak_kib(process.pid))
            time.sleep(_POLL_S)
        wall_s, (_, status, used) = time.perf_counter() - began_s, ended
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise subprocess.CalledProcessError(process.returncode, command, output.read())
    return Turn(wall_s, used.ru_utime + used.ru_stime, cpu_of(server) - before, peak_kib / 1024)


def lockstep(readers: int) -> Way:
    def command(folder: Path) -> Sequence[str]:
        (folder / "bench.yaml").write_text(PIPELINE.format(root=folder, readers=readers))
        return [sys.executable, "-m", "cdc_core.cli", "snapshot", str(folder / "bench.yaml"), "--json"]

    def rows(folder: Path) -> int:
        # Progress goes to the error stream, which is in the same file.
        text = (folder / "output").read_text()
        answer = json.loads(text[text.index("{") :])
        return sum(int(source["rows"]) for source in answer["sources"])

    return Way(command, rows)


def _statements(folder: Path) -> int:
    """Rows in files of INSERT statements: `(` begins each, and no value has a line break."""
    count = 0
    for path in folder.glob("dump/*.sql*"):
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            count += sum(line.startswith((b"(", b",(")) or b"VALUES(" in line or b"VALUES (" in line for line in file)
    return count


def mydumper(server: SqlServer, threads: int, rows: int, *options: str) -> Way | None:
    program = shutil.which("mydumper")
    if program is None:
        return None
    split = (f"--rows={max(1, -(-rows // (4 * threads)))}",) if threads > 1 else ()

    def command(folder: Path) -> Sequence[str]:
        return [
            program, f"--host={server.host}", f"--port={server.port}", f"--user={server.user}",
            f"--password={server.password}", f"--database={DATABASE}", f"--tables-list={TABLE}",
            f"--threads={threads}", f"--outputdir={folder}/dump", "--less-locking", *split, *options,
        ]  # fmt: skip

    return Way(command, _statements)


def mysqldump(server: SqlServer, *, compressed: bool = False) -> Way | None:
    if isinstance(server, MariaDb):
        program: tuple[str, ...] | None = MariaDb.client("mariadb-dump")
    else:
        program = MySql.client("mysqldump")
    if program is None or (compressed and shutil.which("zstd") is None):
        return None

    def command(folder: Path) -> Sequence[str]:
        (folder / "dump").mkdir()
        dump = [
            *program, "--no-defaults", f"--host={server.host}", f"--port={server.port}", f"--user={server.user}",
            "--protocol=TCP", f"--password={server.password}", "--single-transaction", "--quick",
            "--extended-insert", DATABASE, TABLE,
        ]  # fmt: skip
        if not compressed:
            return [*dump, f"--result-file={folder}/dump/all.sql"]
        return ["bash", "-c", f"set -o pipefail; {shlex.join(dump)} | zstd -1 -q > dump/all.sql.zst"]

    def rows(folder: Path) -> int:
        if compressed:
            subprocess.run(["zstd", "-d", "-q", "dump/all.sql.zst"], cwd=folder, check=True)
        # One statement has many rows in a line; a row ends with a parenthesis that no value has.
        text = (folder / "dump/all.sql").read_bytes()
        return text.count(b"),(") + text.count(b"INSERT INTO")

    return Way(command, rows)


def rivet_run(program: Path, threads: int, rows: int) -> Way:
    """One reader as `rivet init` proposes it, without its two columns of bookkeeping; several by ranges of the key."""
    if threads == 1:
        mode = "chunk_by_key: id\n    chunk_size: 250000"
    else:
        mode = f"chunk_column: id\n    chunk_size: {-(-rows // (4 * threads))}\n    parallel: {threads}"

    def command(folder: Path) -> Sequence[str]:
        (folder / "rivet.yaml").write_text(RIVET.format(mode=mode, folder=folder))
        return [str(program), "run", "--config", str(folder / "rivet.yaml")]

    return Way(command, parquet_rows)


def parquet_rows(folder: Path) -> int:
    import pyarrow.parquet as pq

    return sum(pq.ParquetFile(path).metadata.num_rows for path in folder.rglob("*.parquet"))


def pymysql_pyarrow() -> Way:
    return Way(
        lambda folder: [sys.executable, "-m", "benchmarks.copy", "--pymysql", str(folder / "all.parquet")],
        parquet_rows,
    )


def copy_by_pymysql(url: str, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import pymysql.cursors

    address = urlsplit(url)
    schema = pa.schema([
        ("id", pa.int64()), ("customer", pa.int64()), ("amount", pa.decimal128(14, 2)), ("status", pa.string()),
        ("note", pa.string()), ("created", pa.timestamp("us")), ("changed", pa.timestamp("us")),
        ("score", pa.float64()),
    ])  # fmt: skip
    with (
        pymysql.connect(
            host=address.hostname, port=address.port or 3306, user=address.username, password=address.password or "",
            database=DATABASE, cursorclass=pymysql.cursors.SSCursor,
        ) as connection,
        connection.cursor() as cursor,
        pq.ParquetWriter(path, schema, compression="zstd", compression_level=1) as writer,
    ):  # fmt: skip
        cursor.execute(f"SELECT * FROM {TABLE}")
        while rows := cursor.fetchmany(50_000):
            columns = [
                pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def ways(server: SqlServer, rows: int, threads: Sequence[int], *, slow: bool) -> dict[str, Way]:
    found: dict[str, Way | None] = {}
    program = rivet()
    for count in threads:
        readers = f"{count} reader" if count == 1 else f"{count} readers"
        found[f"lockstep, {readers}"] = lockstep(count)
        found[f"mydumper, {readers}"] = mydumper(server, count, rows)
        found[f"mydumper --compress, {readers}"] = mydumper(server, count, rows, "--compress")
        if program is not None:
            found[f"rivet-cli, {readers}"] = rivet_run(program, count, rows)
    dump = "mariadb-dump" if isinstance(server, MariaDb) else "mysqldump"
    found[dump] = mysqldump(server)
    found[f"{dump} \\| zstd -1"] = mysqldump(server, compressed=True)
    if slow:
        found["PyMySQL SSCursor + pyarrow"] = pymysql_pyarrow()
    for name, way in found.items():
        if way is None:
            print(f"{name} is left out: this machine does not have it", file=sys.stderr)
    return {name: way for name, way in found.items() if way is not None}


def compared(server: SqlServer, rows: int, turns: int, threads: Sequence[int]) -> dict[str, list[Turn]]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ |= {"SOURCE": server.url, "RIVET_URL": f"{server.url}/{DATABASE}"}
    found: dict[str, list[Turn]] = {}
    for turn in range(turns + 1):
        for name, way in ways(server, rows, threads, slow=turn == 1).items():
            if not turn and not name.startswith("lockstep"):
                continue  # the first turn fills the server's caches and those of compiled code
            with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as at:
                folder = Path(at)
                try:
                    result = measured(server, way.command(folder), folder, environ)
                    count = way.rows(folder)
                    if count != rows:
                        raise ValueError(f"{count:,} rows, not {rows:,}")
                except (subprocess.CalledProcessError, ValueError) as error:
                    said = getattr(error, "output", None)
                    why = said.decode(errors="replace")[-800:] if said else str(error)
                    if name.startswith("lockstep"):
                        raise SystemExit(f"{name} failed: {why}") from error
                    print(f"{name} has no figure: {why}", file=sys.stderr)
                    continue
                if turn:
                    found.setdefault(name, []).append(result)
                print(f"{name}: {result.wall_s:.2f} s", file=sys.stderr)
    return found


def text_of(turns: Mapping[str, Sequence[Turn]], rows: int) -> str:
    def median(name: str, figure: Callable[[Turn], float]) -> float:
        return statistics.median(figure(turn) for turn in turns[name])

    def beside(name: str) -> str:
        """How long it takes as a multiple of Lockstep with as many readers."""
        readers = name.rpartition(", ")[2]
        ours = f"lockstep, {readers}"
        ours = ours if ours in turns else "lockstep, 1 reader"
        return f"{median(name, lambda turn: turn.wall_s) / median(ours, lambda turn: turn.wall_s):.2f}×"

    columns = ("", "rows/s", "time / Lockstep's", "client CPU", "server CPU", "memory")
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for name in turns:
        wall_s = median(name, lambda turn: turn.wall_s)
        lines.append(
            f"| {name} | {rows / wall_s:,.0f} | {beside(name)} | "
            f"{median(name, lambda turn: turn.client_cpu_s):.2f} s | "
            f"{median(name, lambda turn: turn.server_cpu_s):.2f} s | "
            f"{'–' if '|' in name else f'{median(name, lambda turn: turn.rss_mib):,.0f} MiB'} |"
        )
    return "\n".join(lines)


def bars(turns: Mapping[str, Sequence[Turn]], rows: int) -> dict[str, dict[str, float]]:
    """Rows per second for each number of readers, Lockstep's first; what has only one reader is beside one."""
    found: dict[str, dict[str, float]] = {}
    for name, some in turns.items():
        program, comma, readers = name.rpartition(", ")
        group = found.setdefault(readers if comma else "1 reader", {})
        group[program if comma else name] = rows / statistics.median(turn.wall_s for turn in some)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.copy", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one turn")
    parser.add_argument("--rows", type=int, default=0, help="of the table (default 8,000,000)")
    parser.add_argument("--turns", type=int, default=0, help="default 5; quick: 1")
    parser.add_argument("--readers", default="2", help="numbers of readers beside one, by comma")
    parser.add_argument("--server", default="mysql,mariadb", help="servers, by comma")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    parser.add_argument("--pymysql", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.pymysql is not None:
        copy_by_pymysql(os.environ["SOURCE"], chosen.pymysql)
        return
    rows = chosen.rows or (800_000 if chosen.quick else 8_000_000)
    turns = chosen.turns or (1 if chosen.quick else 5)
    threads = sorted({1, *map(int, chosen.readers.split(","))})
    texts, load = [], os.getloadavg()[0]
    pictures: dict[str, dict[str, float]] = {}
    for name in chosen.server.split(","):
        if name == "mysql" and (why := MySql.available()):
            print(f"MySQL is left out: {why}", file=sys.stderr)
            continue
        start = {"mariadb": MariaDb.start, "mysql": MySql.start}[name]
        with start(server_id=9, options=OPTIONS | (MYDUMPER_SPLITS if name == "mysql" else {})) as server:
            filled(server, rows)
            found = compared(server, rows, turns, threads)
            pictures |= {f"{type(server).__name__}, {group}": bar for group, bar in bars(found, rows).items()}
            head = machine(server, load, f"{rows:,} rows of 8 columns", f"medians of {turns} turns")
            texts += [head, "", text_of(found, rows), ""]
            print("\n".join(texts[-4:]), file=sys.stderr)
    text = "\n".join(texts).rstrip()
    print(text)
    if chosen.write:
        keep("copy", text)
        DOCUMENT.with_name("benchmarks-copy.svg").write_text(picture(pictures), encoding="utf-8")


if __name__ == "__main__":
    main()
