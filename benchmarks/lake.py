"""`make bench-lake`: how fast changes of a MariaDB reach Iceberg tables, beside others that write the same changes.

    fill      rows that are there already: copied beside the stream, and applied to an empty lake
    changes   updates of random rows, from the log to the published mirror: `lockstep run`, by the driver and by Spark,
              and each once more in a process that has run before, as with `--every`
    few       1,000 changes in 5 tables
    many      100 changes in each of many tables
    peers     the same updates on the same table: Spark's MERGE INTO of Iceberg, which keeps positions of deleted rows
              too, and the upserts of PyIceberg and dlt, of fewer changes because they take minutes. What they do is
              what the tasks filter and write of a run do: before these come the log, its files and the last change of
              each key, after them the rows are read back

At the end `lockstep verify` must find the lake equal, or there are no figures.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog

from benchmarks.copy import cpu_of
from benchmarks.document import keep, machine
from benchmarks.peer_environments import python_with_dlt
from cdc_core import config
from cdc_core.operations.apply.jobs import SparkJob
from cdc_core.operations.open_pipeline import open_pipeline
from cdc_core.operations.pipeline_run import run
from examples.sandbox.artifacts import ICEBERG, fetch
from examples.sandbox.mariadb import MariaDb
from spark_jobs.driver import Driver

PIPELINE = """
pipeline: bench
sources: [{{name: shop, connection: "env:SOURCE", server_id: 4711, start: latest, heartbeat_s: 1}}]
tables: {{include: ['bench\\..*']}}
routes: [{{match: 'bench\\.(.*)', to: '\\1'}}]
snapshot: {{mode: initial}}
stage: {{uri: "file://{root}/stage"}}
meta: {{url: "sqlite:///{root}/meta.db"}}
targets:
  - {{name: lake, kind: iceberg, namespace: shop, tables: {{'*': {{}}}},
      catalog: {{type: sql, uri: "env:LAKE", warehouse: "file://{root}/lake"}}}}
"""
COLUMNS = "id BIGINT PRIMARY KEY, customer INT, status VARCHAR(20), amount DECIMAL(12,2), at DATETIME, note VARCHAR(60)"
VALUES = "seq, seq % 9973, 'new', seq / 7, '2026-01-01' + INTERVAL seq SECOND, CONCAT('note of order ', seq)"
UPSERTED = 2_000
"""Changes of PyIceberg's and dlt's upserts."""
WARMING = 300_000
"""Changes of the run before the one that is measured, in the same process."""
ROWS = "rows.parquet"
"""The rows of the table that is updated, for peers."""
OLD_VERSIONS, AT_REST_S = 100, 120
"""Old versions of rows that the server may still have; and how long it is waited for at most."""

MERGE = """MERGE INTO peer.shop.orders o USING changes c ON o.id = c.id
WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""


def cpu_s(server: MariaDb) -> float:
    """Of this machine without the server. Spark's JVM ends without waiting for its Python workers, so that no process
    is told of their time."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - cpu_of(server)


class TimedDriver(Driver):
    """Knows how long the last job of each name took."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.seconds: dict[str, float] = {}

    def submit(self, job: SparkJob) -> None:
        began_s = time.perf_counter()
        super().submit(job)
        self.seconds[job.name] = time.perf_counter() - began_s


class Line:
    """A pipeline from a server to a lake in a folder."""

    def __init__(self, root: Path, source: MariaDb) -> None:
        self.root, self.source = root, source
        (root / "lake").mkdir()
        self.uri = f"sqlite:///{root}/lake/catalog.db"
        self.file = root / "bench.yaml"
        self.by("the driver")

    def lockstep(self, *arguments: str) -> tuple[float, float]:
        """Seconds, and seconds of CPU, of the command with its Spark."""
        before_s, began_s = cpu_s(self.source), time.perf_counter()
        command = [sys.executable, "-m", "cdc_core.cli", *arguments, str(self.file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        return time.perf_counter() - began_s, cpu_s(self.source) - before_s

    def by(self, engine: str) -> None:
        """From now on Spark does all runs, or the driver those that it takes."""
        spark = "spark: {driver_rows: 0}\n" if engine == "Spark" else ""
        self.file.write_text(PIPELINE.format(root=self.root) + spark)

    def again(self, before: str, timed: str) -> tuple[float, float]:
        """Seconds of a second run of one process, and of its tasks filter and write. The statements write what each
        applies."""
        pipeline, output = config.load(self.file), self.root / "spark.log"
        with (
            open_pipeline(pipeline) as opened,
            TimedDriver(pipeline, opened.store, master=pipeline.spark.master, output=output) as spark,
        ):
            self.sql(before)
            run(opened, spark, "bench", ["lake"])
            self.sql(timed)
            began_s = time.perf_counter()
            run(opened, spark, "bench", ["lake"])
            return time.perf_counter() - began_s, spark.seconds["filter"] + spark.seconds["write"]

    def sql(self, *statements: str) -> None:
        """Returns when the server is at rest: it removes old versions of rows after a statement, as long as a run may
        take, and no reader of its log waits for that elsewhere."""
        self.source.run(*statements, database="bench")
        began_s = time.monotonic()
        while self._old_versions() > OLD_VERSIONS and time.monotonic() < began_s + AT_REST_S:
            time.sleep(0.5)

    def _old_versions(self) -> int:
        ((_, count),) = self.source.run("SHOW GLOBAL STATUS LIKE 'Innodb_history_list_length'")
        return int(count)

    @property
    def catalog(self) -> Catalog:
        return load_catalog("lake", type="sql", uri=self.uri, warehouse=(self.root / "lake").as_uri())


@dataclass(frozen=True)
class Figure:
    """cpu_s: with the Spark of a command; None where it is not known."""

    what: str
    changes: int
    seconds: float
    cpu_s: float | None = None


def figures(line: Line, rows: int, changes: int, tables: int) -> Iterator[Figure]:
    def timed(what: str, count: int, *arguments: str) -> Figure:
        return Figure(what, count, *line.lockstep(*arguments))

    line.lockstep("extract")
    line.sql(f"CREATE TABLE orders ({COLUMNS})", f"INSERT INTO orders SELECT {VALUES} FROM seq_1_to_{rows}")
    line.lockstep("extract")
    yield timed("rows into an empty lake, from the stage", rows, "run", "--staged")
    for engine in ("the driver", "Spark"):
        line.by(engine)
        update = (
            f"UPDATE orders SET status = '{{}} by {engine}', amount = amount + 1 WHERE id * {{}} % {rows} < {changes}"
        )
        line.sql(update.format("sent", 104729))
        yield timed(f"updates of random rows, from the log, by {engine}", changes, "run")
        before = f"UPDATE orders SET status = 'lost by {engine}' WHERE id <= {WARMING}"
        whole_s, like_peers_s = line.again(before, update.format("kept", 7919))
        yield Figure(f"again in one process, by {engine}", changes, whole_s)
        yield Figure("of these: filter and write, as peers do", changes, like_peers_s)
    line.by("the driver")
    for number in range(5):
        line.sql(f"CREATE TABLE few{number} ({COLUMNS})", f"INSERT INTO few{number} SELECT {VALUES} FROM seq_1_to_200")
    line.lockstep("run")
    for number in range(5):
        line.sql(f"UPDATE few{number} SET status = 'paid'")
    yield timed("1,000 changes in 5 tables, from the log", 1_000, "run")
    for number in range(tables):
        line.sql(
            f"CREATE TABLE many{number} ({COLUMNS})", f"INSERT INTO many{number} SELECT {VALUES} FROM seq_1_to_100"
        )
    line.lockstep("run")
    for number in range(tables):
        line.sql(f"UPDATE many{number} SET status = 'paid'")
    yield timed(f"100 changes in each of {tables} tables, from the log", 100 * tables, "run")
    line.lockstep("verify", "--target", "lake")


def changed_rows(catalog: Catalog, count: int) -> pa.Table:
    rows = catalog.load_table("shop.orders").scan().to_arrow()
    some = rows.take(pa.array(range(0, rows.num_rows, max(rows.num_rows // count, 1)))).slice(0, count)
    place = some.schema.get_field_index("status")
    return some.set_column(
        place, some.schema.field(place), pa.repeat("peer", some.num_rows).cast(some.schema.field(place).type)
    )


def upserted(line: Line, count: int) -> float:
    rows, table = changed_rows(line.catalog, count), line.catalog.load_table("shop.orders")
    began_s = time.perf_counter()
    table.upsert(rows, join_cols=["id"])
    return time.perf_counter() - began_s


def merged_by_dlt(line: Line, count: int) -> float | None:
    """Seconds; None without dlt. Its table has the rows that `merged` has put into a file."""
    python = python_with_dlt()
    if python is None:
        return None
    changes = line.root / "few.parquet"
    pq.write_table(changed_rows(line.catalog, count).drop_columns(["_cdc_version"]), changes)
    script = Path(__file__).parent / "dlt_merge.py"
    command = [str(given) for given in (python, "-I", script, line.root / ROWS, changes, line.root)]
    quiet = {"RUNTIME__DLTHUB_TELEMETRY": "false", "RUNTIME__LOG_LEVEL": "ERROR"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **quiet})
    return float(done.stdout.split()[-1])


def merged(line: Line, count: int) -> float:
    """Seconds of the faster of two MERGEs in a session that has filled the table."""
    from pyspark.sql import SparkSession

    rows = changed_rows(line.catalog, count)
    pq.write_table(rows.drop_columns(["_cdc_version"]), line.root / "changes.parquet")
    jars = ",".join(map(str, fetch(ICEBERG).glob("*.jar")))
    settings = {
        "spark.jars": jars, "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "3g",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.peer": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.peer.type": "hadoop", "spark.sql.catalog.peer.warehouse": str(line.root / "peer"),
    }  # fmt: skip
    builder = SparkSession.builder.master("local[*]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with builder.getOrCreate() as spark:
        every = line.root / ROWS
        present = line.catalog.load_table("shop.orders").scan().to_arrow()
        pq.write_table(present.drop_columns(["_cdc_version"]), every)
        spark.read.parquet(str(every)).writeTo("peer.shop.orders").tableProperty("format-version", "2").tableProperty(
            "write.merge.mode", "merge-on-read"
        ).create()
        spark.read.parquet(str(line.root / "changes.parquet")).createOrReplaceTempView("changes")
        seconds = []
        for _ in range(2):
            began_s = time.perf_counter()
            spark.sql(MERGE)
            seconds.append(time.perf_counter() - began_s)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--tables", type=int, default=300)
    parser.add_argument("--write", action="store_true", help="put the figures into docs/benchmarks.md")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-lake-") as folder, MariaDb.start(server_id=1) as source:
        line = Line(Path(folder), source)
        os.environ |= {"SOURCE": source.url, "LAKE": line.uri}
        source.run("CREATE DATABASE bench")
        lines = ["| what | changes | seconds | changes/s | CPU of a change |", "|---|---|---|---|---|"]

        def add(figure: Figure) -> None:
            cpu = "–" if figure.cpu_s is None else f"{figure.cpu_s / figure.changes * 1e6:.1f} µs"
            rate = figure.changes / figure.seconds
            lines.append(f"| {figure.what} | {figure.changes:,} | {figure.seconds:.1f} | {rate:,.0f} | {cpu} |")
            print(lines[-1], flush=True)

        for figure in figures(line, given.rows, given.changes, given.tables):
            add(figure)
        add(Figure("peer: Spark's MERGE INTO, Spark started before", given.changes, merged(line, given.changes)))
        add(Figure("peer: PyIceberg's upsert", UPSERTED, upserted(line, UPSERTED)))
        if (seconds := merged_by_dlt(line, UPSERTED)) is not None:
            add(Figure("peer: dlt's upsert", UPSERTED, seconds))
        if given.write:
            keep("lake", f"{machine(source, load)}\n\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
