"""A target table and merged rows for it, for the tests of the write side."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pymysql

from cdc_core.config import ONE_TABLE, MysqlTarget
from cdc_core.errors import combined
from cdc_core.model.merged_columns import ENDED_ORIGINS, ORIGIN
from cdc_core.model.run_plan import WriteCounts
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import absent_text
from cdc_core.model.version import ORIGIN_BYTES
from cdc_core.mysql import session_settings as session
from cdc_core.mysql.connections import SafeConnection, Server, parse_url
from cdc_core.targets.reading.destination import (
    Destination,
    TableUse,
    TargetSurvey,
    checked_destination,
    open_destination,
    prepared_destinations,
)
from cdc_core.targets.reading.table_facts import TableFacts, table_facts, table_problems
from cdc_core.targets.writing.load import Layout, LoadFile, Unfit
from cdc_core.targets.writing.prepare import prepare, tombstones_table, versions_table
from cdc_core.targets.writing.row_writer import Transact, write_shard
from cdc_core.targets.writing.shard_write import ShardWrite
from cdc_core.targets.writing.write_parts import write_rows
from tests.lab.databases import own_database
from tests.lab.shell import export

SHOP = (
    "CREATE TABLE {name} (id BIGINT NOT NULL PRIMARY KEY, code VARCHAR(20) COLLATE utf8mb4_bin NOT NULL, "
    "n INT, kept VARCHAR(10) NULL, UNIQUE KEY code (code))"
)
COLUMNS: Mapping[str, pa.DataType] = {"id": pa.int64(), "code": pa.string(), "n": pa.int32()}


def require_table(*arguments: Any, **named: Any) -> None:
    """Raises what table_problems finds in a table, at once."""
    if problems := table_problems(*arguments, **named):
        raise combined(problems)


@dataclass(frozen=True)
class Winner:
    """One merged row. `values` by column; `version` is (commit_ts_us, seq, row, source). origin: a letter for the
    source table, where several feed the target's; ended: those that have deleted the row."""

    op: str
    values: Mapping[str, Any]
    version: tuple[int, int, int, str]
    literal: Mapping[str, str] | None = None
    absent: Sequence[str] = ()
    origin: str = ""
    ended: str = ""


def _origins(letters: str) -> str | None:
    return ",".join(letter * ORIGIN_BYTES for letter in letters) or None


def shop(op: str, id: int, code: str | None, n: int | None, seq: int, *, source: str = "one", ts: int = 0) -> Winner:
    return Winner(op, {"id": id, "code": code, "n": n}, (ts or seq, seq, 0, source))


def record_batch(winners: Sequence[Winner], columns: Mapping[str, pa.DataType] = COLUMNS) -> pa.RecordBatch:
    values = {name: pa.array([winner.values.get(name) for winner in winners], kind) for name, kind in columns.items()}
    if any(winner.origin for winner in winners):
        values[ORIGIN] = pa.array([_origins(winner.origin) for winner in winners], pa.string())
        values[ENDED_ORIGINS] = pa.array([_origins(winner.ended) for winner in winners], pa.string())
    return pa.record_batch(
        {
            **values,
            "_cdc_op": pa.array([winner.op for winner in winners]),
            "_cdc_ts": pa.array([winner.version[0] for winner in winners], pa.timestamp("us", tz="UTC")),
            "_cdc_seq": pa.array([winner.version[1] for winner in winners], pa.int64()),
            "_cdc_row": pa.array([winner.version[2] for winner in winners], pa.int64()),
            "_cdc_source": pa.array([winner.version[3] for winner in winners]),
            "_cdc_literal": pa.array(
                [None if winner.literal is None else list(winner.literal.items()) for winner in winners],
                pa.map_(pa.string(), pa.string()),
            ),
            "_cdc_absent": pa.array([absent_text(winner.absent) for winner in winners], pa.string()),
        }
    )


@dataclass(frozen=True)
class Table:
    """A prepared target table of one test."""

    server: Server
    connection: pymysql.Connection[Any]
    facts: TableFacts
    columns: Mapping[str, pa.DataType]
    key: tuple[str, ...] = ("id",)
    shared: bool = False
    unfit: list[Unfit] = field(default_factory=list)
    """What the last write left out."""

    def write(
        self,
        *batches: Sequence[Winner],
        run: str = "run",
        placement: str = ONE_TABLE,
        pause: Callable[[float], None] = lambda _: None,
        transact: Transact | None = None,
        session: Callable[[], SafeConnection] | None = None,
        **options: Any,
    ) -> WriteCounts:
        layout = self.layout
        with tempfile.TemporaryDirectory() as folder, LoadFile(Path(folder), layout, deletes_aside=True) as file:
            for batch in batches:
                file.add(record_batch(batch, self.columns))
            write = ShardWrite(run, "shop.t", self.facts, placement, **options)
            done = write_shard(self.server, write, file, transact=transact, pause=pause, session=session)
            self.unfit[:] = done.unfit
            return done.counts

    def write_in_parts(self, rows: Sequence[Winner], part_rows: int, run: str = "run", **options: Any) -> WriteCounts:
        write = ShardWrite(run, "shop.t", self.facts, ONE_TABLE, **options)
        batches = [record_batch(rows[low : low + 3], self.columns) for low in range(0, len(rows), 3)]
        with tempfile.TemporaryDirectory() as folder:
            done = write_rows(self.server, write, self.layout, batches, Path(folder), part_rows=part_rows)
            assert not list(Path(folder).iterdir())
        return done.counts

    @property
    def layout(self) -> Layout:
        documents = (name for name in self.columns if self.facts.by_name[name.lower()].type.base == "json")
        return Layout(self.key, tuple(self.columns), shared=self.shared, documents=frozenset(documents))

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def rows(self, what: str = "id, code, n") -> list[tuple[Any, ...]]:
        return self.query(f"SELECT {what} FROM {self.facts.name} ORDER BY {', '.join(self.key)}")

    @property
    def beside(self) -> list[str]:
        """The tables of versions and tombstones beside the table, that of truncates last."""
        table = self.facts.table
        names = [tombstones_table(table), *([versions_table(table)] if self.facts.beside else []), "_lockstep_truncate"]
        return [f"{self.facts.database}.{name}" for name in names]

    def clear(self) -> None:
        """Empties the table and its tombstones: cheaper than a new database."""
        for name in (self.facts.name, *self.beside):
            self.query(f"DELETE FROM {name}")

    def everything(self) -> list[list[tuple[Any, ...]]]:
        """All that writes leave behind, but the ledger: rows with their versions, and tombstones."""
        names = ", ".join(f"`{column.name}`" for column in self.facts.columns)
        return [self.rows(names), *(self.query(f"SELECT * FROM {name} ORDER BY 1, 2") for name in self.beside)]


@contextmanager
def target_table(
    sandbox: Any,
    definition: str = SHOP,
    columns: Mapping[str, pa.DataType] = COLUMNS,
    key: tuple[str, ...] = ("id",),
    *,
    store: str = "row",
) -> Iterator[Table]:
    """A database with one table `t`, prepared, on a server of examples.sandbox; dropped at the end. store: as in
    config.Guard."""
    with (
        own_database(sandbox) as database,
        sandbox.connect(autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SET sql_mode = ''")
        cursor.execute("SET GLOBAL local_infile = ON")
        cursor.execute(definition.format(name=f"{database}.t"))
        session.apply(connection, session.WRITING, where="test")
        found = table_facts(connection, database, ["t"])["t"]
        facts = prepare(connection, replace(found, key=tuple(key), beside=store == "table", keyless=not key))
        yield Table(parse_url(sandbox.url, where="test"), connection, facts, columns, key)


def target_of(table: Table) -> MysqlTarget:
    """Takes the logical table `shop.t` to the table. TARGET is the URL of its server."""
    facts, store = table.facts, "table" if table.facts.beside else "row"
    rule = {"database": facts.database, "table": facts.table, "guard": {"store": store}}
    return MysqlTarget.model_validate({"name": "shards", "connections": ["env:TARGET"], "tables": {"shop.t": rule}})


def opened_destination(
    target: MysqlTarget,
    logical: str,
    schemas: Sequence[TableSchema],
    use: TableUse | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
    *,
    ready: bool = True,
) -> Destination:
    """A checked destination; ready: with what Lockstep needs there, as jobs of a run open it. environ: is exported."""
    export(environ)
    use = use or TableUse()
    if not ready:
        return open_destination(target, logical, schemas, use)
    with TargetSurvey(target, [logical]) as survey:
        return prepared_destinations(survey, [checked_destination(survey, logical, schemas, use)])[0]
