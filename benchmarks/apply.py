"""`make bench-apply`: how fast changes get into a target, compared with two unguarded ways, in the same run.

A table of a million rows with a secondary unique key takes 200,000 changes, every second one an update. The ways take
turns, several rounds, each with fresh tables on the same server, and must end with the same rows. The clock stops with
the commit. Those that guard nothing have their rows ready, as Python tuples or as a file, in the order of the log.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.document import keep, machine
from cdc_core.config import Pipeline, parse
from cdc_core.model.merged_columns import SHARD
from cdc_core.model.run_plan import (
    FilterCounts,
    MergeSet,
    MergeTable,
    PlannedFile,
    RunPlan,
    TargetRun,
    counts_path,
    counts_to_bytes,
)
from cdc_core.model.schema import Column, TableSchema, parse_column_type
from cdc_core.model.staged_columns import ABSENT, LITERAL, OP, ROW, SEQ, SOURCE, TS
from cdc_core.operations.apply.jobs import ANYWHERE, LOCAL_CONF
from cdc_core.stage.stores import open_store
from cdc_core.targets.reading.destination import (
    Destination,
    TableUse,
    TargetSurvey,
    checked_destination,
    prepared_destinations,
)
from cdc_core.targets.tables.text_columns import column_text, escaped, joined
from cdc_core.targets.writing.load import LoadFile
from cdc_core.targets.writing.row_writer import write_shard
from cdc_core.targets.writing.shard_write import ShardWrite
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.sql_server import SqlServer
from spark_jobs.executors import on_executors
from spark_jobs.filtered_files import write_run
from spark_jobs.job import Job
from spark_jobs.spark_session import EXACT
from spark_jobs.step_files import clear_folder
from spark_jobs.write import write, write_pieces

ROWS, CHANGES, QUICK = 1_000_000, 200_000, 10
"""QUICK: what --quick divides both by."""
BATCH = 50_000
COLUMNS = {
    "id": "bigint",
    "code": "varchar(24)",
    "customer": "int unsigned",
    "amount": "decimal(14,2)",
    "status": "varchar(8)",
    "note": "varchar(60)",
    "created": "datetime(3)",
}
SCHEMA = TableSchema(
    "shop",
    "orders",
    tuple(
        Column(
            name,
            parse_column_type(kind, charset="utf8mb4", collation="utf8mb4_bin")
            if kind.startswith("varchar")
            else parse_column_type(kind),
            nullable=False,
            key_part=1 if name == "id" else None,
        )
        for name, kind in COLUMNS.items()
    ),
)
SEED, FRESH = "seed", "fresh"


def orders(ids: npt.NDArray[np.int64], generation: int) -> pa.RecordBatch:
    """Rows as a filter passes them on: functions of id and generation, the code (a unique key) of the id alone."""
    mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(24)
    count = len(ids)
    values: dict[str, Any] = {
        "id": ids,
        "code": [f"c{number:010x}" for number in mixed.tolist()],
        "customer": (mixed % 100_000).astype(np.int64),
        "amount": pa.array((mixed % 10_000_000 + generation).astype(np.int64)).cast(pa.decimal128(19, 0)),
        "status": np.array(["new", "paid", "sent", "done"])[(mixed + generation) % 4],
        "note": [f"note {generation} {number * 7919:032x}" for number in mixed.tolist()],
        "created": (ids * 1_000_000 + 1_767_225_600_000_000).astype("datetime64[us]"),
    }
    arrays = {column.name: pa.array(values[column.name]).cast(column.type.arrow) for column in SCHEMA.columns}
    return pa.record_batch(
        {
            **arrays,
            OP: pa.array(["u"] * count),
            TS: pa.array(np.full(count, generation * 1_000_000), pa.timestamp("us", tz="UTC")),
            SOURCE: pa.array(["one"] * count),
            SEQ: pa.array(np.full(count, generation, dtype=np.int64)),
            ROW: pa.array(np.arange(count)),
            LITERAL: pa.nulls(count, pa.map_(pa.string(), pa.string())),
            ABSENT: pa.nulls(count, pa.string()),
        }
    )


def changes(rows: int, count: int) -> npt.NDArray[np.int64]:
    """The ids that change, in the order of the log: one of the table's rows and a new one in turns."""
    ids = np.empty(count, dtype=np.int64)
    ids[0::2] = np.random.default_rng(5).choice(rows, (count + 1) // 2, replace=False)
    ids[1::2] = rows + np.arange(count // 2)
    return ids


def pipeline(database: str, store: str, shards: int, stage: Path) -> Pipeline:
    return parse(
        f"""
        pipeline: bench
        sources: [{{name: one, connection: "env:BENCH", server_id: 9}}]
        tables: {{include: ['shop\\..*']}}
        stage: {{uri: "{stage.as_uri()}"}}
        meta: {{url: "sqlite:///{stage}/meta.db"}}
        spark: {{driver_rows: 0}}
        targets:
          - name: bench
            connections: ["env:BENCH"]
            tables:
              shop.orders:
                database: {database}
                table: "orders_{{t}}"
                guard: {{store: {store}}}
                sharding: {{key: id, databases: 1, tables: {shards}}}
        """,
        where="benchmark",
    )


def opened(described: Pipeline) -> Destination:
    with TargetSurvey(described.databases[0], [SCHEMA.name]) as survey:
        return prepared_destinations(survey, [checked_destination(survey, SCHEMA.name, [SCHEMA], TableUse())])[0]


@dataclass(frozen=True)
class Bench:
    """What all ways share. tuples, file: the changes, ready for those that guard nothing."""

    server: SqlServer
    spark: SparkSession
    place: Path
    batches: tuple[pa.RecordBatch, ...]
    tuples: Sequence[tuple[Any, ...]]
    file: Path

    def query(self, *statements: str) -> tuple[tuple[Any, ...], ...]:
        """What the last statement answers."""
        with self.server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    def commit(self, work: Callable[[Any], object]) -> None:
        with self.server.connect(FRESH, local_infile=True) as connection, connection.cursor() as cursor:
            work(cursor)
            connection.commit()

    def create(self, database: str, shards: int) -> None:
        columns = ", ".join(f"{name} {kind} NOT NULL" for name, kind in COLUMNS.items())
        shape = f"({columns}, PRIMARY KEY (id), UNIQUE KEY (code)) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        tables = [f"CREATE TABLE {database}.orders_{number} {shape}" for number in range(shards)]
        self.query(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}", *tables)

    def seed(self, rows: int) -> None:
        """The rows to begin with, by Lockstep, and a tombstone for every hundredth."""
        self.create(SEED, 1)
        for low in range(0, rows, 5 * BATCH):
            batch = orders(np.arange(low, min(low + 5 * BATCH, rows)), 1)
            self.load(opened(pipeline(SEED, "row", 1, self.place)), [batch])
        self.query(
            f"INSERT INTO {SEED}._lockstep_tombstone_orders_0 SELECT -id, _cdc_version "
            f"FROM {SEED}.orders_0 WHERE id % 100 = 0"
        )

    def fresh(self, way: Way, described: Pipeline) -> None:
        """The tables of a way as they are before it: the same rows as in all others."""
        self.create(FRESH, way.shards)
        if way.store:
            opened(described)
        for number in range(way.shards):
            name, mine = f"orders_{number}", f"{SEED}.orders_0 WHERE id % {way.shards} = {number} ORDER BY id"
            names = ", ".join([*COLUMNS, *(["_cdc_version"] if way.store == "row" else [])])
            self.query(f"INSERT INTO {FRESH}.{name} ({names}) SELECT {names} FROM {mine}")
            if way.store == "table":
                self.query(f"INSERT INTO {FRESH}._lockstep_version_{name} SELECT id, _cdc_version FROM {mine}")
            if way.store:
                self.query(
                    f"INSERT INTO {FRESH}._lockstep_tombstone_{name} SELECT id, _cdc_version "
                    f"FROM {SEED}._lockstep_tombstone_orders_0 WHERE -id % {way.shards} = {number}"
                )

    def settle(self) -> None:
        """Waits until the server has finished earlier work."""
        for _ in range(600):
            [[left]] = self.query(
                "SELECT COUNT FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len'"
            )
            if left < 100:
                break
            time.sleep(0.1)

    def load(self, destination: Destination, batches: Sequence[pa.RecordBatch]) -> None:
        [shard] = destination.shards
        with LoadFile(self.place, destination.layout_of(shard)) as file:
            for batch in batches:
                file.add(batch)
            write_shard(
                shard.server, ShardWrite("bench", destination.logical, shard.facts, shard.table.placement), file
            )

    def checksum(self, shards: int) -> tuple[Any, ...]:
        """Of all rows, in whatever tables they are."""
        text = f"CRC32(CONCAT_WS(',', {', '.join(COLUMNS)}))"
        tables = " UNION ALL ".join(f"SELECT {text} AS c FROM {FRESH}.orders_{number}" for number in range(shards))
        [found] = self.query(f"SELECT COUNT(*), SUM(c) FROM ({tables}) t")
        return found


Work = Callable[[], object]


def executemany(bench: Bench, _: Pipeline) -> Work:
    names = list(COLUMNS)
    sql = (
        f"INSERT INTO orders_0 ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))}) "
        f"ON DUPLICATE KEY UPDATE {', '.join(f'{name} = VALUES({name})' for name in names[1:])}"
    )
    return lambda: bench.commit(lambda cursor: cursor.executemany(sql, bench.tuples))


def load_replace(bench: Bench, _: Pipeline) -> Work:
    sql = (
        f"LOAD DATA LOCAL INFILE '{bench.file}' REPLACE INTO TABLE orders_0 CHARACTER SET utf8mb4 "
        f"FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' ({', '.join(COLUMNS)})"
    )
    return lambda: bench.commit(lambda cursor: cursor.execute(sql))


def guarded_write(bench: Bench, described: Pipeline) -> Work:
    """The write alone, of rows in the order in which the Spark task hands them to it."""
    destination = opened(described)
    rows = pa.Table.from_batches(bench.batches).sort_by("id").combine_chunks()
    return lambda: bench.load(destination, rows.to_batches(max_chunksize=BATCH))


def spark_task(bench: Bench, described: Pipeline) -> Work:
    """The task `write` of a run: from its filtered files to its counts, in a session that has done one before."""
    job = run_of(bench, described, bench.batches)
    # Spark ends workers that had nothing to do for a minute, as while other ways take their turn: new ones import all.
    on_executors(bench.spark, range(2), lambda _: [write_pieces.__name__])
    return lambda: write(job)


def run_of(bench: Bench, described: Pipeline, batches: Sequence[pa.RecordBatch]) -> Job:
    """A run that is filtered already: its files are as `filter` leaves them."""
    rows = pa.Table.from_batches(batches).combine_chunks()
    placed = opened(described).shard_numbers(rows.to_batches()[0]).astype(np.int32)
    rows = rows.append_column(SHARD, pa.array(placed))
    table = MergeTable(
        SCHEMA.name, ("id",), (PlannedFile("merged already", rows.num_rows, SCHEMA.id, "one/0", 0, 0, "", 1),)
    )
    plan = RunPlan(
        "bench", "bench", described.stage.uri, 0, 1, (MergeSet("0", (table,)),), (TargetRun("bench", "0", ()),),
        {SCHEMA.id: SCHEMA},
    )  # fmt: skip
    job = Job(lambda: bench.spark, described, plan, open_store(plan.stage_uri), target_name="bench")
    clear_folder(job.store, job.filtered(SCHEMA.name))
    write_run(bench.place / "placed.parquet", rows, table.key)
    job.store.put(f"{job.filtered(SCHEMA.name)}/part-0.parquet", (bench.place / "placed.parquet").read_bytes())
    counts = FilterCounts(SCHEMA.name, rows.num_rows, 0, 0, 0, 0, 0, ("part-0.parquet",))
    job.store.put(counts_path(plan.filtered_folder("bench")), counts_to_bytes([counts]))
    return job


@dataclass(frozen=True)
class Way:
    """store: of the versions, "" for those without. shards: tables that the rows are spread over."""

    about: str
    ready: Callable[[Bench, Pipeline], Work]
    store: str = ""
    shards: int = 1


WAYS = {
    "executemany": Way("PyMySQL `executemany`", executemany),
    "replace": Way("LOAD DATA ... REPLACE", load_replace),
    "row": Way("Lockstep, version in the row", guarded_write, "row"),
    "table": Way("Lockstep, versions beside the table", guarded_write, "table"),
    "spark": Way("Lockstep's Spark task, version in the row", spark_task, "row"),
    "spark_table": Way("Lockstep's Spark task, versions beside the table", spark_task, "table"),
    "spark_shards": Way("Lockstep's Spark task, four shards", spark_task, "row", 4),
}
PLAIN = ("executemany", "replace")
HEAD = "| method | rows/s | vs. executemany | vs. LOAD DATA |\n|---|---|---|---|"


def measured(bench: Bench, names: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way in each round."""
    found: dict[str, list[float]] = {name: [] for name in names}
    sums = set()
    for number in range(rounds):
        for name in [*names[number % len(names) :], *names[: number % len(names)]]:
            way = WAYS[name]
            described = pipeline(FRESH, way.store or "row", way.shards, bench.place)
            bench.fresh(way, described)
            work = way.ready(bench, described)
            bench.settle()
            started_s = time.perf_counter()
            work()
            found[name].append(time.perf_counter() - started_s)
            sums.add(bench.checksum(way.shards))
            if len(sums) > 1:
                raise SystemExit(f"{name} ended with other rows than those before it: {sums}")
            print(f"round {number + 1}: {name} {found[name][-1]:.2f} s", file=sys.stderr)
    return found


def line(name: str, found: dict[str, list[float]], count: int) -> str:
    def beside(other: str) -> str:
        """Compares round by round: whatever slowed the machine slowed both."""
        ratios = [theirs / ours for theirs, ours in zip(found[other], found[name], strict=True)]
        return f"{statistics.median(ratios):.2f}×"

    seconds = statistics.median(found[name])
    others = " | ".join(beside(other) for other in PLAIN)
    return f"| {WAYS[name].about} | {count / seconds:,.0f} | {others} |"


@contextmanager
def ready(server: SqlServer, rows: int, count: int) -> Iterator[Bench]:
    ids = changes(rows, count)
    batches = tuple(orders(ids[low : low + BATCH], 2) for low in range(0, count, BATCH))
    builder = SparkSession.builder.master("local[2]").appName("benchmark")
    for key, value in {**ANYWHERE, **LOCAL_CONF, **EXACT}.items():
        builder = builder.config(key, value)
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        place = Path(folder)
        tuples = [
            row for batch in batches for row in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True)
        ]
        with (place / "ready").open("wb") as file:
            for batch in batches:
                file.write(joined([escaped(column_text(batch, name)) for name in COLUMNS]))
        bench = Bench(server, builder.getOrCreate(), place, batches, tuples, place / "ready")
        bench.seed(rows)
        # What every application pays once: workers that have imported all, and a JVM that has run such a task.
        described = pipeline(SEED, "row", 1, place)
        write(run_of(bench, described, [orders(np.arange(1), 1)]))
        yield bench
        bench.spark.stop()


def start(server: str) -> SqlServer:
    """With enough memory and redo log for the table, as a target has."""
    if server == "mysql":
        return MySql.start(server_id=9, options={"innodb-buffer-pool-size": "1G", "innodb-redo-log-capacity": "1G"})
    return MariaDb.start(server_id=9, options={"innodb-buffer-pool-size": "1G", "innodb-log-file-size": "1G"})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.apply", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one round")
    parser.add_argument("--only", default="", help="ways beside the plain ones, by comma: " + ", ".join(WAYS))
    parser.add_argument("--rounds", type=int, default=0, help="how often each way runs (default 3; quick: 1)")
    parser.add_argument("--server", choices=["mysql", "mariadb"], help="default: both, MySQL where there is one")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    chosen = parser.parse_args()
    rows, count = (ROWS // QUICK, CHANGES // QUICK) if chosen.quick else (ROWS, CHANGES)
    names = [name for name in WAYS if name in PLAIN or not chosen.only or name in chosen.only.split(",")]
    servers = [chosen.server] if chosen.server else ["mariadb", *(["mysql"] if not MySql.available() else [])]
    texts = []
    for kind in servers:
        load = os.getloadavg()[0]
        with start(kind) as server:
            os.environ["BENCH"] = server.url
            with ready(server, rows, count) as bench:
                found = measured(bench, names, chosen.rounds or (1 if chosen.quick else 3))
            texts.append("\n".join([machine(server, load), "", HEAD, *(line(name, found, count) for name in names)]))
        print(texts[-1])
    if chosen.write:
        keep("apply", "\n\n".join(texts))


if __name__ == "__main__":
    main()
