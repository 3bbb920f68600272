"""`make bench-line`: how fast a run gets staged changes into a target, from its plan to its commit, step by step.

Two servers: changes are written to one, staged by `lockstep extract`, and applied to the other as `lockstep run` does.
For each step: wall time, and the CPU time of the run's own process, of Spark's JVM and Python workers, and of
the target's server. In the same run, the same staged changes are applied in two ways that guard and prove nothing.
Each way must end with the source's rows.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.document import keep, machine
from cdc_core.config import Pipeline, load
from cdc_core.config.run_options import SparkOptions
from cdc_core.meta import Meta
from cdc_core.model.batch import Manifest
from cdc_core.model.staged_columns import BOOKKEEPING
from cdc_core.operations.open_pipeline import OpenPipeline, Progress
from cdc_core.operations.pipeline_run import apply
from cdc_core.stage.stores import open_stage
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.sql_server import SqlServer
from spark_jobs.driver import Driver

SOURCE_DATABASE, TARGET_DATABASE, BEFORE, PLAIN = "line", "line_target", "line_before", "line_plain"
COLUMNS = (
    "id BIGINT PRIMARY KEY, customer INT UNSIGNED NOT NULL, amount DECIMAL(14,2) NOT NULL, status VARCHAR(8) NOT NULL, "
    "note VARCHAR(60) NOT NULL, created DATETIME(3) NOT NULL"
)
NAMES = tuple(column.split()[0] for column in COLUMNS.split(", "))
_CHUNK = 10_000
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20
_LOOK_S = 0.2
Write = Callable[[SqlServer, int], None]


def _execute(server: SqlServer, database: str | None, statements: Sequence[str]) -> tuple[tuple[Any, ...], ...]:
    """What the last statement answers."""
    with server.connect(database, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall()


def inserted(server: SqlServer, rows: int) -> None:
    """Rows as functions of their ids, which are spread over the chunks as an application's are: ascending."""
    values = (
        "{low} + n, CRC32({low} + n) % 100000, CRC32({low} + n) % 10000000 / 100, ELT(1 + n % 4, 'new', 'paid', "
        "'sent', 'done'), CONCAT('note ', LEFT(SHA2({low} + n, 256), 32)), '2026-01-01' + INTERVAL {low} + n SECOND"
    )
    for low in range(0, rows, _CHUNK):
        count = min(_CHUNK, rows - low)
        _execute(server, SOURCE_DATABASE, [
            f"INSERT INTO t000 SELECT {values.format(low=low)} FROM n WHERE n < {count} ORDER BY n"
        ])  # fmt: skip


def updated(server: SqlServer, rows: int) -> None:
    for low in range(0, rows, _CHUNK):
        _execute(server, SOURCE_DATABASE, [
            f"UPDATE t000 SET amount = amount + 1, status = 'changed' WHERE id >= {low} AND id < {low + _CHUNK}"
        ])  # fmt: skip


def rewritten(server: SqlServer, rows: int) -> None:
    """As many changes of three tenths as many keys: inserts, then updates of one row after the other, again and again.
    Few keys are changed twice within a chunk, so that a merge has them far apart."""
    keys = rows * 3 // 10
    inserted(server, keys)
    left = rows - keys
    while left > 0:
        for low in range(0, keys, _CHUNK):
            count = min(_CHUNK, keys - low, left)
            if count <= 0:
                break
            _execute(server, SOURCE_DATABASE, [
                f"UPDATE t000 SET amount = amount + 1, status = 'changed' WHERE id >= {low} AND id < {low + count}"
            ])  # fmt: skip
            left -= count


def repeated(every: int) -> Write:
    """Changes of which all but every so many are updates of one row; the others are inserts. every: 0 for none."""

    def write(server: SqlServer, rows: int) -> None:
        for low in range(0, rows, _CHUNK):
            key = f"IF(n % {every}, 0, {low + 1} + n)" if every else "0"
            _execute(server, SOURCE_DATABASE, [
                f"INSERT INTO t000 SELECT {key}, 7, 7, 'new', CONCAT('note ', n), '2026-01-01' FROM n "
                f"WHERE n < {min(_CHUNK, rows - low)} ORDER BY n ON DUPLICATE KEY UPDATE amount = amount + 1"
            ])  # fmt: skip

    return write


def mostly_one(tables: int) -> Write:
    """A hundredth of the rows spread over all tables, the others in the first one."""

    def write(server: SqlServer, rows: int) -> None:
        inserted(server, rows - rows // 100)
        _execute(server, SOURCE_DATABASE, [
            f"INSERT INTO t{number:03} SELECT -1 - n, n, n, 'new', CONCAT('note ', n), '2026-01-01' FROM n "
            f"WHERE n < {rows // 100 // tables} ORDER BY n"
            for number in range(tables)
        ])  # fmt: skip

    return write


def spread(tables: int) -> Write:
    """The same number of inserts in each of several tables."""

    def write(server: SqlServer, rows: int) -> None:
        each, more = divmod(rows, tables)
        for low in range(0, each + 1, _CHUNK):
            key = f"{low} + n"
            _execute(server, SOURCE_DATABASE, [
                f"INSERT INTO t{number:03} SELECT {key}, {key}, ({key}) / 100, 'new', CONCAT('note ', {key}), "
                f"'2026-01-01' FROM n WHERE n < {min(_CHUNK, each + (number < more) - low)} ORDER BY n"
                for number in range(tables)
            ])  # fmt: skip

    return write


def touched(tables: int) -> Write:
    """An update of all rows of each of several tables."""

    def write(server: SqlServer, rows: int) -> None:
        _execute(server, SOURCE_DATABASE, [
            f"UPDATE t{number:03} SET amount = amount + 1, status = 'changed'" for number in range(tables)
        ])  # fmt: skip

    return write


@dataclass(frozen=True)
class Workload:
    """rows: changes at full size, of which --quick takes a fifth unless `fixed`. before: applied first, unmeasured.
    merged: measured up to the end of the merge."""

    name: str
    about: str
    rows: int
    write: Write
    tables: int = 1
    shards: int = 1
    before: Write | None = None
    fixed: bool = False
    merged: bool = False


WORKLOADS = (
    Workload("tiny", "9 inserts into 5 tables", 9, spread(5), tables=5, fixed=True),
    Workload("small", "1,000 inserts into 5 tables", 1_000, spread(5), tables=5, fixed=True),
    Workload("tables", "inserts into 300 tables, as many into each", 30_000, spread(300), tables=300),
    Workload("many_tables", "3 inserts into each of 3,000 tables", 9_000, spread(3_000), tables=3_000, fixed=True),
    Workload(
        "many_again",
        "3 updates in each of 3,000 tables",
        9_000,
        touched(3_000),
        tables=3_000,
        before=spread(3_000),
        fixed=True,
    ),
    Workload("inserts", "inserts into an empty table", 1_000_000, inserted),
    Workload("inserts_4", "inserts into four empty shards", 1_000_000, inserted, shards=4),
    Workload("updates_4", "updates of all rows of four shards", 1_000_000, updated, shards=4, before=inserted),
    Workload("large_4", "inserts into four empty shards", 5_000_000, inserted, shards=4),
    Workload("large_50", "inserts into 50 empty tables", 5_000_000, spread(50), tables=50),
    Workload("keys", "changes of three tenths as many keys, only merged", 10_000_000, rewritten, merged=True),
    Workload("own_keys", "changes of as many keys, only merged", 10_000_000, inserted, merged=True),
    Workload("one_key", "changes of one key, only merged", 3_000_000, repeated(0), merged=True),
    Workload("half_one_key", "changes, half of them of one key", 1_000_000, repeated(2)),
    Workload("skewed_tables", "inserts into 30 tables, 99 % into one", 1_000_000, mostly_one(30), tables=30),
)


@dataclass
class Usage:
    """CPU seconds and the peak of resident memory, by role."""

    cpu_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    peak_mib: dict[str, float] = field(default_factory=lambda: defaultdict(float))


class Watch:
    """Watches this process, all below it, and the servers. A context manager."""

    def __init__(self, servers: Mapping[str, int]) -> None:
        self._servers = {pid: role for role, pid in servers.items()}
        self._ended_s: dict[int, tuple[str, float]] = {}
        self._workers_s = 0.0
        self._peak_mib: dict[str, float] = defaultdict(float)
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self.look()

    def look(self) -> Usage:
        """CPU time so far; the peaks since the last `forget_peaks`."""
        with self._lock:
            live: dict[str, float] = defaultdict(float)
            memory: dict[str, float] = defaultdict(float)
            for pid, role, cpu_s, kept, mib in self._processes():
                if kept:
                    self._ended_s[pid] = role, cpu_s
                else:
                    live[role] += cpu_s
                memory[role] += mib
            for role, cpu_s in self._ended_s.values():
                live[role] += cpu_s
            # Workers that end with their daemon leave no trace of their time.
            self._workers_s = live["workers"] = max(self._workers_s, live["workers"])
            memory["spark"] = memory["jvm"] + memory["workers"]
            for role, mib in memory.items():
                self._peak_mib[role] = max(self._peak_mib[role], mib)
            return Usage(live, dict(self._peak_mib))

    def forget_peaks(self) -> None:
        with self._lock:
            self._peak_mib.clear()

    def _processes(self) -> Iterator[tuple[int, str, float, bool, float]]:
        """Process, role, CPU time, whether that is still to be counted once the process has ended, memory."""
        found: dict[int, tuple[int, list[str]]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    _, _, rest = (entry / "stat").read_text().rpartition(") ")
                except OSError:
                    continue
                fields = rest.split()
                found[int(entry.name)] = int(fields[1]), fields
        mine = {os.getpid()}
        for pid in sorted(found):  # nearly always, a child has the greater number
            if found[pid][0] in mine:
                mine.add(pid)
        roles = {pid: self._role(pid) for pid in mine | set(self._servers) if pid in found}
        for pid, role in roles.items():
            parent, fields = found[pid]
            own = sum(map(int, fields[11:13])) * _TICK_S
            # The daemon of the workers has the time of those that ended.
            reaped = sum(map(int, fields[13:15])) * _TICK_S if role == "workers" else 0.0
            forked = role == "workers" and roles.get(parent) == "workers"
            if role:
                mib = _shared_mib(pid) if role == "workers" else int(fields[21]) * _PAGE_MIB
                yield pid, role, own + reaped, not forked, mib

    def _role(self, pid: int) -> str:
        if pid in self._servers:
            return self._servers[pid]
        if pid == os.getpid():
            return "run"
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return ""
        program = Path(command[0]).name
        if program == "java":
            return "jvm"
        if program.startswith("python") and any(
            "pyspark.daemon" in argument or "pyspark/daemon" in argument for argument in command
        ):
            return "workers"
        return ""


def _shared_mib(pid: int) -> float:
    """The memory of a process, of which forks have a part each of what they share."""
    with suppress(OSError):  # it has ended
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 2**10
    return 0.0


ROLES = ("run", "jvm", "workers", "target")


@dataclass(frozen=True)
class Step:
    name: str
    wall_s: float
    cpu_s: Mapping[str, float]
    peak_mib: Mapping[str, float]


class _Enough(Exception):
    """What is measured has ended."""


class Marked(Progress):
    """Hands each task of a run on as it begins."""

    def __init__(self, began: Callable[[str], None]) -> None:
        self._began = began

    def step(self, name: str) -> None:
        self._began(name)


@dataclass(frozen=True)
class Place:
    """Where a workload runs: a pipeline with its file, and both servers."""

    folder: Path
    file: Path
    pipeline: Pipeline
    source: SqlServer
    target: SqlServer
    workload: Workload

    def lockstep(self, *arguments: str) -> None:
        command = [str(Path(sys.executable).parent / "lockstep"), *arguments, str(self.file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stdout}{done.stderr}")

    def apply(self) -> list[Step]:
        """One run, from its plan to its commit, or to the end of its merge."""
        marks: list[tuple[str, float, Usage]] = []
        servers = {"target": self.target.pid or 0}
        with Meta.open(self.pipeline.meta.url, self.pipeline.pipeline) as meta, Watch(servers) as watch:

            def began(name: str) -> None:
                marks.append((name.rpartition(" ")[2], time.perf_counter(), watch.look()))
                watch.forget_peaks()
                if self.workload.merged and len(marks) > 2:
                    raise _Enough

            store, output = open_stage(self.pipeline.stage), self.folder / "spark.log"
            with (
                Driver(self.pipeline, store, master=self.pipeline.spark.master, output=output) as spark,
                suppress(_Enough),
            ):
                progress = Marked(began)
                result = apply(OpenPipeline(self.pipeline, meta, store, progress), spark, "line")
                began("end")
                if not result.summaries:
                    raise SystemExit(f"{self.workload.name}: the run applied nothing")
        return [
            Step(
                name, after_s - before_s,
                {role: after.cpu_s.get(role, 0.0) - before.cpu_s.get(role, 0.0) for role in ROLES}, after.peak_mib,
            )
            for (name, before_s, before), (_, after_s, after) in pairwise(marks)
        ]  # fmt: skip

    def names(self) -> list[str]:
        return [f"t{number:03}" for number in range(self.workload.tables)]

    def create(self, database: str, shards: int) -> None:
        """Empty tables. shards: 0 for tables that are named as at the source."""
        tables = [
            f"CREATE TABLE {database}.{place} ({COLUMNS})" for name in self.names() for place in _places(name, shards)
        ]
        _execute(self.target, None, [f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}", *tables])

    def copy(self, of: str, shards: int, to: str) -> None:
        """Tables with the rows that others have now."""
        self.create(to, 0)
        columns = ", ".join(NAMES)
        _execute(self.target, None, [
            f"INSERT INTO {to}.{name} ({columns}) SELECT {columns} FROM {of}.{place} ORDER BY id"
            for name in self.names()
            for place in _places(name, shards)
        ])  # fmt: skip

    def require_equal(self, database: str, way: str, shards: int) -> None:
        text = f"COALESCE(SUM(CRC32(CONCAT_WS(',', {', '.join(NAMES)}))), 0), COUNT(*)"
        for name in self.names():
            [[ours, count]] = _execute(self.source, None, [f"SELECT {text} FROM {SOURCE_DATABASE}.{name}"])
            theirs = [
                _execute(self.target, None, [f"SELECT {text} FROM {database}.{place}"])[0]
                for place in _places(name, shards)
            ]
            if (ours, count) != (sum(their[0] for their in theirs), sum(their[1] for their in theirs)):
                raise SystemExit(f"{way} ended with other rows than the source's in {name} of {self.workload.name}")

    def manifests(self) -> frozenset[str]:
        return frozenset(info.path for info in open_stage(self.pipeline.stage).list("manifests/"))


def _places(name: str, shards: int) -> list[str]:
    return [f"{name}_{shard}" for shard in range(shards)] or [name]


@contextmanager
def placed(workload: Workload, kind: str, spark: SparkOptions) -> Iterator[Place]:
    """Servers with the workload's tables, and a pipeline that has staged nothing yet."""
    start = {"mariadb": MariaDb.start, "mysql": MySql.start}[kind]
    options = {"innodb-flush-log-at-trx-commit": "2", "innodb-buffer-pool-size": "512M"}
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name,
        start(server_id=9, options=options) as source,
        start(server_id=10, options=options) as target,
    ):
        folder = Path(name)
        digits = " UNION ALL ".join(f"SELECT {digit} d" for digit in range(10))
        statements = [
            f"CREATE DATABASE {SOURCE_DATABASE}", f"USE {SOURCE_DATABASE}", "CREATE TABLE n (n INT PRIMARY KEY)",
            f"INSERT INTO n SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d FROM ({digits}) a, ({digits}) b, "
            f"({digits}) c, ({digits}) e",
            *(f"CREATE TABLE t{number:03} ({COLUMNS})" for number in range(workload.tables)),
        ]  # fmt: skip
        _execute(source, None, statements)
        os.environ |= {"LINE_SOURCE": source.url, "LINE_TARGET": target.url}
        sharding = f"sharding: {{key: id, databases: 1, tables: {workload.shards}}}, " if workload.shards > 1 else ""
        tables = "".join(
            f"""
      {SOURCE_DATABASE}.t{number:03}: {{{sharding}database: {TARGET_DATABASE}, """
            f"""table: "t{number:03}_{"{t}" if workload.shards > 1 else 0}"}}"""
            for number in range(workload.tables)
        )
        file = folder / "line.yaml"
        file.write_text(
            f"""
pipeline: line
meta: {{url: "sqlite:///{folder}/meta.db"}}
stage: {{uri: "{(folder / "stage").as_uri()}"}}
sources: [{{name: one, connection: "env:LINE_SOURCE", server_id: 77, start: latest}}]
tables: {{include: ['{SOURCE_DATABASE}\\.t\\d+']}}
spark: {spark.model_dump_json(exclude_defaults=True)}
targets:
  - name: bench
    connections: ["env:LINE_TARGET"]
    tables:{tables}
""",
            encoding="utf-8",
        )
        place = Place(folder, file, load(file), source, target, workload)
        place.create(TARGET_DATABASE, workload.shards)
        place.lockstep("extract")
        yield place


def decoded(place: Place, known: frozenset[str]) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of each table as Python objects, in the order of the log. known: manifests to leave out."""
    store = open_stage(place.pipeline.stage)
    found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    notes = {column.name for column in BOOKKEEPING} | {"_before"}
    for path in sorted(place.manifests() - known):
        for part in Manifest.from_bytes(store.get(path)).parts:
            with store.open_input(part.path) as file:
                table = pq.read_table(file)
            table = table.select([name for name in table.column_names if name not in notes])
            values = [
                column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column for column in table.columns
            ]
            found[part.table.rpartition(".")[2]] += list(zip(*(value.to_pylist() for value in values), strict=True))
    return found


def executemany(place: Place, rows: Mapping[str, list[tuple[Any, ...]]]) -> float:
    """Seconds of a plain loop, a transaction for each 10,000 rows of a table."""
    changes = ", ".join(f"{name} = VALUES({name})" for name in NAMES[1:])
    started_s = time.perf_counter()
    with place.target.connect(PLAIN) as connection, connection.cursor() as cursor:
        for table, found in rows.items():
            sql = (
                f"INSERT INTO {table} ({', '.join(NAMES)}) VALUES ({', '.join(['%s'] * len(NAMES))}) "
                f"ON DUPLICATE KEY UPDATE {changes}"
            )
            for low in range(0, len(found), _CHUNK):
                cursor.executemany(sql, found[low : low + _CHUNK])
                connection.commit()
    return time.perf_counter() - started_s


def replayed(place: Place, since: tuple[str, int], database: str) -> float | None:
    """Seconds of `mysqlbinlog | mysql` over the same stretch of the log; None without these programs."""
    reader, writer = MySql.client("mysqlbinlog"), MySql.client("mysql")
    if reader is None or writer is None or not isinstance(place.source, MySql):
        return None
    login = {**os.environ, "MYSQL_PWD": place.source.password}
    read = [
        *reader, "--read-from-remote-server", f"--host={place.source.host}", f"--port={place.source.port}",
        f"--user={place.source.user}", f"--start-position={since[1]}", f"--rewrite-db={SOURCE_DATABASE}->{database}",
        "--to-last-log", "--skip-gtids", since[0],
    ]  # fmt: skip
    write = [*writer, f"--host={place.target.host}", f"--port={place.target.port}", f"--user={place.target.user}"]
    started_s = time.perf_counter()
    with subprocess.Popen(read, stdout=subprocess.PIPE, env=login) as source:
        done = subprocess.run(
            write, stdin=source.stdout, env={**os.environ, "MYSQL_PWD": place.target.password}, check=False
        )
    if source.returncode or done.returncode:
        raise SystemExit("mysqlbinlog | mysql failed")
    return time.perf_counter() - started_s


PEERS = ("executemany", "mysqlbinlog \\| mysql")
IN_DOCUMENT = ("merge", "filter", "write", "quality")
"""The steps that take most of the time."""


@dataclass(frozen=True)
class Result:
    workload: Workload
    rows: int
    extract_s: float
    steps: Sequence[Step]
    peers_s: Mapping[str, float]

    @property
    def wall_s(self) -> float:
        return sum(step.wall_s for step in self.steps)

    def text(self) -> str:
        head = (
            f"**{self.workload.about}**: {self.rows:,} changes, {self.wall_s:.1f} s, {self.rows / self.wall_s:,.0f}/s"
        )
        peers = ", ".join(
            f"{name} {seconds:.1f} s ({seconds / self.wall_s:.2f}×)" for name, seconds in self.peers_s.items()
        )
        columns = ("step", "wall", *(f"{role} CPU" for role in ROLES), "memory of run", "of JVM + workers")
        lines = [f"{head}; extracted in {self.extract_s:.1f} s. {'Beside it: ' + peers + '.' if peers else ''}", "",
                 f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]  # fmt: skip
        total = Step("all", self.wall_s, {role: sum(step.cpu_s[role] for step in self.steps) for role in ROLES}, {
            role: max(step.peak_mib.get(role, 0.0) for step in self.steps) for role in ("run", "spark")
        })  # fmt: skip
        for step in (*self.steps, total):
            memory = " | ".join(f"{step.peak_mib.get(role, 0.0):,.0f} MiB" for role in ("run", "spark"))
            cpus = " | ".join(f"{step.cpu_s[role]:.1f} s" for role in ROLES)
            lines.append(f"| {step.name} | {step.wall_s:.1f} s | {cpus} | {memory} |")
        return "\n".join(lines)

    def row(self) -> str:
        """The same in one line, for the document."""
        steps = {step.name: f"{step.wall_s:.1f}" for step in self.steps}
        peers = (f"{self.peers_s[name] / self.wall_s:.2f}×" if name in self.peers_s else "–" for name in PEERS)
        cpu_s = sum(step.cpu_s[role] for step in self.steps for role in ("run", "jvm", "workers"))
        target_s = sum(step.cpu_s["target"] for step in self.steps)
        count = f"{self.rows:,} "
        cells = (count + self.workload.about.removeprefix(count), f"**{self.wall_s:.1f} s**", *peers,
                 *(steps.get(name, "–") for name in IN_DOCUMENT), f"{cpu_s:.1f} s", f"{target_s:.1f} s")  # fmt: skip
        return f"| {' | '.join(cells)} |"


def table(results: Sequence[Result]) -> str:
    columns = ("changes", "run", *(f"× {name}" for name in PEERS), *IN_DOCUMENT, "CPU", "target's CPU")
    return "\n".join([f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *(result.row() for result in results)])


def measured(workload: Workload, kind: str, rows: int, spark: SparkOptions, *, peers: bool) -> Result:
    with placed(workload, kind, spark) as place:
        if workload.before:
            workload.before(place.source, rows)
            place.lockstep("extract")
            place.apply()
        peers = peers and not workload.merged
        if peers:
            place.copy(TARGET_DATABASE, workload.shards, BEFORE)  # every way begins with these rows
        [since] = _execute(place.source, None, ["SHOW BINARY LOGS"])[-1:]
        known = place.manifests()
        workload.write(place.source, rows)
        started_s = time.perf_counter()
        place.lockstep("extract")
        extract_s = time.perf_counter() - started_s
        steps = place.apply()
        if not workload.merged:
            place.require_equal(TARGET_DATABASE, "lockstep", workload.shards)
        found: dict[str, float] = {}
        ways: dict[str, Callable[[], float | None]] = {
            PEERS[0]: partial(executemany, place, decoded(place, known) if peers else {}),
            PEERS[1]: partial(replayed, place, (since[0], int(since[1])), PLAIN),
        }
        for name, way in ways.items() if peers else ():
            place.copy(BEFORE, 0, PLAIN)
            seconds = way()
            if seconds is not None:
                found[name] = seconds
                place.require_equal(PLAIN, name, 0)
        return Result(workload, rows, extract_s, steps, found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.line", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a fifth of the rows of the large workloads, and not many_tables"
    )
    parser.add_argument("--only", default="", help="workloads, by comma: " + ", ".join(w.name for w in WORKLOADS))
    parser.add_argument("--rows", type=int, default=0, help="changes of each workload that is not tiny or small")
    parser.add_argument(
        "--server", choices=["mysql", "mariadb"], default="mysql" if not MySql.available() else "mariadb"
    )
    parser.add_argument("--no-peers", action="store_true", help="leave out the other ways")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    parser.add_argument("--master", default="local[*]", help="as spark.master")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="as in spark.conf; repeatable"
    )
    chosen = parser.parse_args()
    spark = SparkOptions(master=chosen.master, conf=dict(setting.split("=", 1) for setting in chosen.conf))
    names = [workload.name for workload in WORKLOADS if not (chosen.quick and workload.tables > 1_000)]
    if chosen.only:
        names = chosen.only.split(",")
    load_before = os.getloadavg()[0]
    results: list[Result] = []
    for workload in WORKLOADS:
        if workload.name in names:
            rows = workload.rows if workload.fixed else chosen.rows or workload.rows // (5 if chosen.quick else 1)
            print(f"{workload.name}: {rows:,} changes", file=sys.stderr)
            results.append(measured(workload, chosen.server, rows, spark, peers=not chosen.no_peers))
            print(f"{results[-1].text()}\n", flush=True)
    with {"mariadb": MariaDb.start, "mysql": MySql.start}[chosen.server](server_id=9) as server:
        text = f"{machine(server, load_before)}\n\n{table(results)}"
    print(text)
    if chosen.write:
        keep("line", text)


if __name__ == "__main__":
    main()
