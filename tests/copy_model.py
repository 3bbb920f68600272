"""A source in memory that is copied and repaired by the product's own code, beside writes: what decides is real.

Real are the copier, the claims by key of a repair, the watermarks, the chunks and the SQL of keys (which SQLite runs),
the parts, meta, the staging of copies, the coverage of tables and the fold. Modelled are the server (a log, an engine
in which a transaction of the log can be seen only later, read views, locks) and the extractor, which stages stretches
of the log.

Before whatever the copier does, the world may move. What happens is a list of (skip, number): after so many moments in
which nothing happens, the event `number`. So hypothesis finds the interleaving, and shrinks it.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pymysql
import pytest

from cdc_core.apply.retention import sweep
from cdc_core.config import parse
from cdc_core.connections import Server
from cdc_core.errors import RetryLater
from cdc_core.meta import Lease, Meta
from cdc_core.model.batch import Manifest, Part
from cdc_core.model.coverage import Happened, How, Surveyed, TableCoverage, TableEvent, after
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.model.staged import BOOKKEEPING, LITERAL, OP, ROW, SEQ, SOURCE, TS, staged_schema
from cdc_core.repair import claims, reverse_query
from cdc_core.repair.claims import Wanted, claim
from cdc_core.repair.reverse_query import look_up
from cdc_core.sink import Capture
from cdc_core.snapshot import copier, pace, table_chunks, watermarks
from cdc_core.snapshot.copier import CopyContext
from cdc_core.snapshot.pending import pending
from cdc_core.snapshot.staging import stage_due
from cdc_core.snapshot.table_chunks import TableChunks
from cdc_core.stage import manifest as manifests
from cdc_core.stage import start
from cdc_core.stage.coverage import coverage_of
from cdc_core.stage.layout import PartName, part_path
from cdc_core.stage.open_part import OpenPart
from cdc_core.stage.parquet import PartFile
from cdc_core.stage.reader import table_state
from cdc_core.stage.stores import open_store
from cdc_core.verify import source_rows
from cdc_core.verify.source_rows import SourceTables

NAME, TABLE = "shop", "shop.t"
KEYS = 6
DURABLE = (
    "begin_copy",
    "plan_chunk",
    "take_chunk",
    "chunk_read",
    "next_chunk",
    "decide_copied",
    "record_copied",
    "checkpoint",
)
NOTHING = 0
"""The number of the event that nothing happens."""
SCHEMA = TableSchema("shop", "t", (Column("id", ColumnType("int"), key_part=1), Column("v", ColumnType("int"))))
START_US = 497_000 * 3_600_000_000
Rows = dict[int, int]
_LITERAL_FIELD = next(one for one in BOOKKEEPING if one.name == LITERAL)


class Killed(BaseException):
    """What a kill is to the code: nothing more runs."""


class AtOnce(Executor):
    """Does all work in the thread that hands it over, so that a run can be repeated."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


@dataclass(frozen=True, eq=False)
class Entry:
    """Something in the log between two places. kind: rows, truncate, create, unlogged. then: the rows after it.
    xa: the XA COMMIT of what was prepared."""

    kind: str
    begin: Position
    end: Position
    changes: tuple[tuple[str, int, int | None, int | None], ...]
    then: Rows
    xa: bool = False


@dataclass(eq=False)
class View:
    """A read view. redefined: the table was, since, and unread until then."""

    rows: Rows
    has_read: bool = False
    redefined: bool = False


class Source:
    """A server. `rows`: by its log; `engine`: what a new read view shows, which lacks the entries `unseen`."""

    def __init__(self, flavor: str, rows: Rows) -> None:
        self.flavor = flavor
        self.rows, self.engine, self.before = dict(rows), dict(rows), dict(rows)
        self.log: list[Entry] = []
        self.unseen: list[Entry] = []
        self.end = Position(0, "binlog.000001", 4)
        self.views: list[View] = []
        self.locked = False
        self._value = 100

    def write(self, chance: random.Random) -> None:
        """A transaction. It cannot change rows of a transaction that the engine has not ended: those are locked."""
        if self.locked:
            return
        locked = {change[1] for entry in self.unseen for change in entry.changes}
        rows, changes = dict(self.rows), []
        for _ in range(chance.randint(1, 2)):
            key = chance.randrange(KEYS)
            if key in locked or any(key == one[1] for one in changes):
                continue
            had = rows.get(key)
            self._value += 1
            if had is None:
                changes.append(("c", key, None, self._value))
                rows[key] = self._value
            elif chance.random() < 0.5:
                changes.append(("d", key, had, None))
                del rows[key]
            else:
                changes.append(("u", key, had, self._value))
                rows[key] = self._value
        if changes:
            self._add("rows", tuple(changes), rows, xa=chance.random() < 0.3)

    def define(self, kind: str) -> None:
        """TRUNCATE, DROP and CREATE, or a change of rows that is not logged: it waits for whoever uses the table."""
        if self.locked or any(view.has_read for view in self.views):
            return
        self.settle_all()
        gone = {key: value for key, value in self.rows.items() if key % 2} if kind == "unlogged" else {}
        self._add(kind, (), gone)
        self.settle_all()
        for view in self.views:
            view.redefined = True

    def rotate(self) -> None:
        """A new file, which the extractor stages as a batch without rows."""
        self._add("rows", (), self.rows, Position(0, f"binlog.{self.end.number + 1:06d}", 4))

    def settle(self, chosen: int) -> None:
        """The engine ends a transaction. MariaDB's ends them in the order of the log, except for an XA COMMIT."""
        able = self.unseen
        if self.flavor == "mariadb":
            able = [one for one in self.unseen if one.xa] + [one for one in self.unseen if not one.xa][:1]
        if able:
            entry = able[chosen % len(able)]
            self.unseen.remove(entry)
            if entry.kind == "rows":
                for _, key, _, value in entry.changes:
                    self.engine.pop(key, None)
                    if value is not None:
                        self.engine[key] = value
            else:
                self.engine = dict(entry.then)

    def settle_all(self) -> None:
        while self.unseen:
            self.settle(0)

    def settle_named(self, gtids: str) -> None:
        """The engine ends the transactions of a GTID set: u:1 is the first in the log, u:3-5 are three."""
        ranges = [one.partition(":")[2].partition("-") for one in gtids.split(",") if one[0] == "u"]
        named = {self.log[n - 1] for first, _, last in ranges for n in range(int(first), int(last or first) + 1)}
        while ready := [at for at, one in enumerate(self.unseen) if one in named]:
            self.settle(ready[0])

    def open_view(self) -> View:
        self.views.append(View(dict(self.engine)))
        return self.views[-1]

    @property
    def committed(self) -> Position:
        """Of MariaDB: the begin of the first transaction that the engine has not ended; an XA COMMIT does not count."""
        return next((one.begin for one in self.unseen if not one.xa), self.end)

    def at(self, place: Position) -> Rows:
        """The rows by the log up to a place."""
        return next((dict(one.then) for one in reversed(self.log) if one.end <= place), dict(self.before))

    def _add(
        self,
        kind: str,
        changes: tuple[tuple[str, int, int | None, int | None], ...],
        rows: Rows,
        end: Position | None = None,
        *,
        xa: bool = False,
    ) -> None:
        begin = self.end
        self.end = end or Position(0, begin.file, begin.offset + 100)
        self.rows = rows
        self.log.append(Entry(kind, begin, self.end, changes, dict(rows), xa))
        self.unseen.append(self.log[-1])


class Session:
    """A connection to the source. The reader's statements see its view, the control's see what the engine has."""

    open = True

    def __init__(self, world: World, *, reader: bool) -> None:
        self._world, self._reader = world, reader
        self._view: View | None = None
        self._found: tuple[tuple[Any, ...], ...] = ()

    @contextmanager
    def cursor(self) -> Iterator[Session]:
        yield self

    def execute(self, sql: str, arguments: Any = None) -> None:
        self._world.move()
        self._found = self._answer(sql, arguments)

    def fetchall(self) -> tuple[tuple[Any, ...], ...]:
        return self._found

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._found[0] if self._found else None

    def get_server_info(self) -> str:
        return "11.4.5-MariaDB" if self._world.source.flavor == "mariadb" else "9.7.0"

    def close(self) -> None:
        self.open = False

    def thread_id(self) -> int:
        return id(self)

    def ping(self, **_: Any) -> None: ...

    def select(self, sql: str) -> tuple[tuple[Any, ...], ...]:
        source = self._world.source
        rows = source.engine
        if self._view is not None:
            if self._view.redefined:
                raise pymysql.err.OperationalError(1412, "Table definition has changed, please retry transaction")
            rows, self._view.has_read = self._view.rows, True
        with sqlite3.connect(":memory:") as database:
            database.execute("ATTACH ':memory:' AS shop")
            database.execute("CREATE TABLE shop.t (id INTEGER, v INTEGER)")
            database.executemany("INSERT INTO shop.t VALUES (?, ?)", rows.items())
            return tuple(database.execute(sql).fetchall())

    def _answer(self, sql: str, arguments: Any) -> tuple[tuple[Any, ...], ...]:
        source = self._world.source
        match sql.split()[:2]:
            case ["START", _]:
                self._view = source.open_view()
            case ["ROLLBACK", *_]:
                if self._view in source.views:
                    source.views.remove(self._view)
                self._view = None
            case ["SET", "STATEMENT"]:
                return self.select(sql.partition(" FOR ")[2])
            case ["LOCK", _]:
                source.settle_all()
                source.locked = True
            case ["UNLOCK", _]:
                source.locked = False
            case ["SHOW", "STATUS"]:
                assert self._view is None
                place = source.committed
                source.settle(len(source.unseen) - 1)  # the server goes on
                return ("Binlog_snapshot_file", place.file), ("Binlog_snapshot_position", str(place.offset))
            case ["XA", "RECOVER"]:
                found = tuple((1, 4, 0, f"{source.log.index(one):04}") for one in source.unseen if one.xa)
                source.settle(0)
                return found
            case ["SHOW", "VARIABLES"] | ["SET", _]:
                pass
            case ["SHOW", _]:
                return ((source.end.file, source.end.offset, "", "", ""),)
            case ["SELECT", "WAIT_FOR_EXECUTED_GTID_SET(%s,"]:
                source.settle_named(arguments[0])
                return ((0,),)
            case ["SELECT", "@@GLOBAL.gtid_owned"]:
                return ((",".join(f"u:{source.log.index(one) + 1}#17" for one in source.unseen),),)
            case ["SELECT", "@@GLOBAL.gtid_executed"]:
                return (("",),)
            case ["SELECT", "@@SESSION.wait_timeout"]:
                return ((28800,),)
            case ["SELECT", "ENGINE"]:
                return (("InnoDB",),)
            case ["SELECT", "TABLE_ROWS,"]:
                return ((len(source.engine), 8, 64),)
            case ["SELECT", _]:
                return self.select(sql)
            case _:
                raise AssertionError(f"the model has no answer to {sql}")
        return ()


class Reader:
    """TableReader of the model: the same SQL, in batches of a row or two."""

    def __init__(self, session: Session, _: TableSchema) -> None:
        self._session = session

    def batches(self, tail: str) -> Iterator[pa.RecordBatch]:
        world = self._session._world
        world.move()
        try:
            rows = self._session.select(f"SELECT id, v {tail}")
        except pymysql.err.OperationalError as error:
            raise RetryLater(str(error), where="", code="results.definition_changed", remedy="") from None
        fields = [*[field for field in staged_schema(SCHEMA) if field.name in ("id", "v")], _LITERAL_FIELD]
        for at in range(0, len(rows), 2):
            some = [{"id": key, "v": value} for key, value in rows[at : at + 2]]
            yield pa.RecordBatch.from_pylist(some, schema=pa.schema(fields))
            world.move()


@dataclass
class World:
    """Everything, in a folder. events: what happens next."""

    folder: Path
    source: Source
    events: Iterator[tuple[int, int]]
    skip: int = 0
    number: int = 0
    depth: int = 0
    moving: bool = False
    second: Callable[[], None] | None = None
    extractor: dict[str, TableCoverage] | None = None
    epoch: int = 0

    def __post_init__(self) -> None:
        self.first = len(self.source.log)
        self.pipeline = parse(
            f"pipeline: shop\nsources: [{{name: shop, connection: 'env:X', server_id: 7, start: earliest}}]\n"
            f"tables: {{include: ['shop[.]t'], on_truncate: stage, on_unlogged_change: record}}\n"
            f"stage: {{uri: {(self.folder / 'stage').as_uri()}}}\nmeta: {{url: 'sqlite:///{self.folder}/meta.db'}}\n"
            "targets: [{name: main, connections: ['env:Y'], tables: {'*': {}}}]\nreverse_query: {wait_s: 60}\n",
            where="model",
        )
        self.store = open_store(self.pipeline.stage.uri)
        self.capture = Capture(self.pipeline.tables, self.pipeline.routes)
        self.meta = Meta.open(self.pipeline.meta.url)
        lease = self._lease(NAME)
        start.put(self.store, NAME, self._checkpoint(self.source.end), pipeline="shop")
        self.meta.advance_watermark(lease, self._checkpoint(self.source.end))
        how = TableCoverage(How.EXISTING, self.source.end.seq - 1, START_US, "the start", feeds=(TABLE,))
        self.meta.keep_coverage(lease, {TABLE: how}, Surveyed(self.source.end.seq - 1, ""))
        self.meta.release_lease(lease)

    @property
    def staged(self) -> Checkpoint:
        found = self.meta.checkpoint(NAME)
        assert found is not None
        return found

    @property
    def chain(self) -> list[Manifest]:
        return list(manifests.chain(self.store, NAME))

    def move(self) -> None:
        """Others go on, or a kill, or another copier that takes over: in the midst of whatever this process does."""
        if self.moving:
            return
        if self.skip:
            self.skip -= 1
            return
        number, (self.skip, self.number) = self.number, next(self.events, (1 << 30, NOTHING))
        self.moving = True
        try:
            self._happen(number % 24, random.Random(number))
        finally:
            self.moving = False

    def _happen(self, what: int, chance: random.Random) -> None:
        match what:
            case 1 | 2 | 3 | 4 | 5:
                self.source.write(chance)
            case 6 | 7 | 8 | 9:
                self.source.write(chance)
                self.source.settle_all()
            case 10 | 11 | 12:
                self.source.settle(chance.randrange(8))
            case 13 | 14 | 15:
                self.extract(chance.randint(1, 3))
            case 16:
                self.source.define(chance.choice(("truncate", "create", "unlogged")))
            case 17:
                self.source.rotate()
            case 18:
                self.extractor = None  # it restarts
            case 19 | 23 if self.depth:
                raise Killed
            case 20 if self.depth == 1 and not self.source.locked:
                self.moving = False
                self.copy()  # by another copier, that takes over
            case 21 | 22 if self.second is not None and self.depth == 1 and not self.source.locked:
                self.moving = False
                self.depth += 1
                try:
                    self.second()
                finally:
                    self.depth -= 1
            case _:
                pass

    # What processes do. Each may be killed, and begins again from what is durable.

    def copy(self) -> None:
        """The product's copier reads the table to its end, if nothing comes in between."""
        with self._process(), self._copier_lease() as lease:
            sessions = self._sessions()
            context = CopyContext(self.pipeline, NAME, self.meta, self.store, self.capture, lease, self.folder)
            facts = self._facts
            watermarks.await_logged(sessions.source.control, facts)  # type: ignore[arg-type]
            chunks = TableChunks(self.meta, lease, NAME, ("shop", "t"), chunk_bytes=1 << 20, chunk_s=5.0)
            work, throttle = copier._Work([chunks]), SimpleNamespace(why=lambda _: "")

            def reader(sessions: SimpleNamespace) -> Any:
                return copier._Reader(  # type: ignore[arg-type]
                    context, facts, sessions, AtOnce(), work, throttle, lambda _: self.move()
                )

            def second() -> None:
                """Another reader of the same process reads a chunk, unless the first one has just locked the table."""
                if not chunks._lock.locked() and not chunks.exhausted:
                    reader(self._sessions())._read_one(chunks)

            self.second = second
            try:
                reader(sessions).run()
            finally:
                self.second = None

    def _sessions(self) -> SimpleNamespace:
        """Of a reader; see snapshot.sessions."""
        pair = SimpleNamespace(reader=Session(self, reader=True), control=Session(self, reader=False))
        return SimpleNamespace(source=pair, tables=pair, beside=False)

    @property
    def _facts(self) -> SimpleNamespace:
        return SimpleNamespace(
            mariadb=self.source.flavor == "mariadb", gtid_mode="ON" if self.source.flavor == "mysql" else "OFF",
            identity="server_id=1", clock_us=START_US,
        )  # fmt: skip

    def repair(self, chance: random.Random) -> None:
        """The product looks some rows up and stages them. The target would have a row under every key that it asks for:
        those that the source does not have become deletes."""
        with self._process(), self._copier_lease() as lease:
            source = self._source_tables()
            keys = [str(key) for key in chance.sample(range(KEYS), chance.randint(1, KEYS))]
            places = SimpleNamespace(shard_numbers=lambda rows: np.zeros(rows.num_rows, np.int64))
            shape = SimpleNamespace(key=SCHEMA.key, logical=TABLE, destination=places, errors=frozenset())
            job = SimpleNamespace(
                pipeline=self.pipeline, meta=self.meta, store=self.store, environ=None, wait_s=60.0,
                extract_on=lambda _: self._extract_on(chance),
            )  # fmt: skip
            claim(job, [Wanted(shape, [(source, SCHEMA)], keys, _key_rows)], {NAME: lease})  # type: ignore[arg-type]

    def query(self, chance: random.Random) -> None:
        """The product looks up the staged changes that no target has; here all of them are old."""
        with self._process():
            look_up(
                self.pipeline, self.meta, self.store, ["main"], lambda _: self._extract_on(chance),
            )  # fmt: skip

    def _source_tables(self) -> SourceTables:
        reader, control = Session(self, reader=True), Session(self, reader=False)
        throttle = SimpleNamespace(why=lambda _: "")
        return SourceTables(
            self.pipeline, NAME, self.meta, self._facts, reader, control, self.capture, throttle, lambda _: None,  # type: ignore[arg-type]
            Server("model", 3306, "", ""),
        )  # fmt: skip

    def _extract_on(self, chance: random.Random) -> None:
        self.move()
        self.source.settle_all()
        self.moving = True  # a lease keeps other extractors away meanwhile
        try:
            self.extract(chance.randint(1, 3))
        finally:
            self.moving = False
        self.move()

    def stage(self) -> None:
        with self._process(), self._copier_lease() as lease:
            stage_due(self.meta, self.store, self.pipeline, NAME, lease, capture=self.capture)

    def extract(self, most: int) -> None:
        """Stages the next entries of the log as a batch."""
        begin = self.staged
        entries = [one for one in self.source.log if one.begin >= begin.position][:most]
        if not entries:
            return
        lease = self._lease(NAME)
        known = self.meta.coverage(NAME)
        if self.extractor is None:
            self.extractor = dict(known.tables)
        said = {table: known.tables[table] for table in known.unstaged}
        for one in entries:
            what = {
                "truncate": Happened.TRUNCATED, "create": Happened.CREATED, "unlogged": Happened.UNLOGGED
            }.get(one.kind, Happened.ROWS)  # fmt: skip
            event = TableEvent(TABLE, what, one.begin.seq, START_US + one.begin.offset, str(one.begin))
            found = after(self.extractor.get(TABLE), event)
            assert found is not None
            if found is not self.extractor.get(TABLE):
                self.extractor[TABLE] = said[TABLE] = replace(found, feeds=(TABLE,))
        end = self._checkpoint(entries[-1].end)
        parts = self._parts(entries, lease, begin.position)
        manifest = Manifest(
            pipeline="shop", source=NAME, epoch=lease.epoch, begin=begin, end=end, window_start_us=START_US,
            window_end_us=START_US + 3_600_000_000, parts=parts, events=len(entries), transactions=len(entries),
            created_us=START_US, schemas={SCHEMA.id: SCHEMA}, coverage=said,
        )  # fmt: skip
        manifests.commit(self.store, manifest)
        self.meta.commit_batch(lease, manifest)
        self.meta.release_lease(lease)

    def lose_meta(self) -> None:
        """The meta database is lost and made again from the chain."""
        if not self.chain:
            return
        self.meta.close()
        (self.folder / "meta.db").unlink()
        (self.folder / "meta.db").write_bytes(empty_meta())
        self.meta = Meta.open(self.pipeline.meta.url)
        self.extractor = None
        lease = self.meta.acquire_lease(NAME, "shop", "me", 60)
        lease, _ = self.meta.rebuild(lease, self.chain)
        self.meta.release_lease(lease)
        # As `meta rebuild` does: epochs of file names must not come back.
        for _ in range(self.epoch):
            self.meta.release_lease(self.meta.acquire_lease(f"snapshot:{NAME}", "shop", "me", 60))

    def clean(self) -> None:
        sweep(self.meta, self.store, self.pipeline, older_than_s=-60.0)

    def _parts(self, entries: Sequence[Entry], lease: Lease, begin: Position) -> tuple[Part, ...]:
        arrow = staged_schema(SCHEMA)
        rows = []
        for one in entries:
            notes = {SOURCE: NAME, TS: START_US + one.begin.offset, SEQ: one.begin.seq, "_cdc_file": one.begin.file,
                     "_cdc_pos": one.begin.offset}  # fmt: skip
            changes = one.changes or ((("t", 0, None, None),) if one.kind in ("truncate", "create") else ())
            for at, (op, key, old, new) in enumerate(changes):
                if op == "t":
                    image: dict[str, Any] = {}
                else:
                    image = {"id": key, "v": old if op == "d" else new}
                before = {"id": key, "v": old} if op == "u" else None
                rows.append({**image, "_before": before, OP: op, ROW: at, **notes})
        if not rows:
            return ()
        name = part_path(TABLE, START_US, PartName(NAME, begin.seq, lease.epoch, 0))
        file = PartFile(arrow, SCHEMA.key, lambda: self.store.open_output(iter([name]), self.folder), 1)
        part = OpenPart(TABLE, SCHEMA, file, arrow)
        part.add(pa.RecordBatch.from_pylist(rows, schema=arrow))
        file.close()
        return (part.listed(file.publish()),)

    @contextmanager
    def _process(self) -> Iterator[None]:
        """What runs in it may be killed, or stopped by an error after which one tries again."""
        self.depth += 1
        try:
            with suppress(Killed, RetryLater):
                yield
        finally:
            self.depth -= 1
            if not self.depth:
                self.source.locked = False  # the server ends the sessions
                self.source.views.clear()

    @contextmanager
    def _copier_lease(self) -> Iterator[Lease]:
        """It has expired at once, so that another copier may take over whenever the model says so."""
        lease = self._lease(f"snapshot:{NAME}")
        self.epoch = max(self.epoch, lease.epoch)
        yield lease

    def _lease(self, name: str) -> Lease:
        return self.meta.acquire_lease(name, "shop", "me", -1)

    def _checkpoint(self, place: Position) -> Checkpoint:
        count = sum(one.end <= place for one in self.source.log)
        # As a server says it whose engine has not ended what was logged before the start.
        gtids = "v:1" + (f",u:{self.first + 1}-{count}" if count > self.first else "")
        watermark_us = START_US + sum(100 for one in self.source.log if one.end <= place)
        return Checkpoint(place, gtid_set=gtids, server="server_id=1", watermark_us=watermark_us)

    # What must be true.

    def check(self) -> None:
        """Where the stage says that the table is whole, its rows there are those of the source."""
        chain = self.chain
        covered = coverage_of(self.store, NAME, chain).get(TABLE)
        if not chain or covered is None or not covered.whole or covered.seq >= chain[-1].end.position.seq:
            return
        expected = self.source.at(chain[-1].end.position)
        if any(part.table == TABLE for one in chain for part in one.parts):
            state = table_state(self.store, chain, TABLE)
            found = dict(zip(state.column("id").to_pylist(), state.column("v").to_pylist(), strict=True))
        else:
            found = {}
        assert found == expected, f"staged {found}, at the source {expected}"

    def finish(self) -> None:
        """Nothing disturbs any more: everything is staged and copied, so that the table is whole, whatever went
        unlogged."""
        self.events, self.skip, self.number = iter(()), 0, NOTHING
        for _ in range(3):
            self.source.settle_all()
            self.extract(1 << 30)
            if pending(self.meta, NAME):
                self.copy()
                self.source.settle_all()
                self.extract(1 << 30)
                self.stage()
            self.check()
        self.stage()  # what a killed look-up had decided
        self.check()
        covered = coverage_of(self.store, NAME, self.chain).get(TABLE)
        assert covered is None or covered.whole, covered
        if covered is None:
            assert all(one.by_key for one in self.chain)  # looked-up rows say nothing of the table
        assert not pending(self.meta, NAME)
        assert (self.meta.chunks(NAME), self.meta.decided_copied(NAME)) == ((), ())
        numbers = [chunk.number for one in self.chain for chunk in one.chunks]
        assert len(numbers) == len(set(numbers))
        assert manifests.verify(self.store, NAME, deep=True) == []


@contextmanager
def patched(world: World) -> Iterator[None]:
    """The product reads the model's server, and each durable step of its processes has a before and an after."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copier, "TableReader", Reader)
        patch.setattr(copier, "table_schema", lambda *_: SCHEMA)
        patch.setattr(table_chunks, "table_schema", lambda *_: SCHEMA)
        patch.setattr(copier, "is_other_server", lambda *_: False)
        sizes = itertools.cycle((2, 1, 3))
        patch.setattr(pace, "chunk_rows", lambda *_: next(sizes))
        for name, patched_one in {
            "TableReader": Reader,
            "table_schema": lambda *_: SCHEMA,
            "captured_tables": lambda *_: {("shop", "t"): (SCHEMA, "")},
            "is_other_server": lambda *_: False,
        }.items():
            patch.setattr(source_rows, name, patched_one)
        patch.setattr(claims, "chunk_rows", lambda *_: next(sizes))
        patch.setattr(reverse_query, "open_source", lambda *_: nullcontext(world._source_tables()))
        patch.setattr(claims, "copier_lease", lambda *_: world._copier_lease())
        patch.setattr(Meta, "now_us", lambda _: 1 << 61)
        patch.setattr(claims, "_PAUSE_S", 0)
        patch.setattr(watermarks, "VISIBLE_PAUSE_S", 0)
        patch.setattr(watermarks, "VISIBLE_WITHIN_S", 5)
        steps = [(Meta, name) for name in DURABLE]
        for owner, name in [*steps, (manifests, "commit"), (copier.ChunkFile, "finish")]:
            _between(patch, world, owner, name)
        yield


def _key_rows(keys: Sequence[str], schema: TableSchema) -> tuple[pa.RecordBatch, list[str]]:
    """As a target that has a row under each key."""
    fields = pa.schema([staged_schema(schema).field("id"), _LITERAL_FIELD])
    return pa.RecordBatch.from_pylist([{"id": int(key)} for key in keys], schema=fields), list(keys)


def _between(patch: pytest.MonkeyPatch, world: World, owner: Any, name: str) -> None:
    done = getattr(owner, name)
    busy = [False]

    def step(*arguments: Any, **named: Any) -> Any:
        if not world.depth or world.moving or busy[0]:
            return done(*arguments, **named)
        busy[0] = True  # it may be called within itself
        try:
            world.move()
            found = done(*arguments, **named)
            world.move()
            return found
        finally:
            busy[0] = False

    patch.setattr(owner, name, step)


@cache
def empty_meta() -> bytes:
    """The file of a new meta database."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "meta.db"
        Meta.open(f"sqlite:///{file}").close()
        return file.read_bytes()


def live(flavor: str, before: Sequence[int], steps: Sequence[int], events: Sequence[tuple[int, int]]) -> None:
    """Transactions that the capture does not have, steps, and what happens within them; then quiet, and everything must
    be equal."""
    source = Source(flavor, {1: 1, 2: 2, 4: 4})
    for seed in before:
        source.write(random.Random(seed))
    source.before = dict(source.rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "meta.db").write_bytes(empty_meta())
        world = World(folder, source, iter(events))
        try:
            with patched(world):
                for step in steps:
                    match step:
                        case 0 | 1 | 2:
                            world.copy()
                        case 3 | 4:
                            world.stage()
                        case 5 | 6:
                            world.extract(step)
                        case 7:
                            world.clean()
                        case 8:
                            world.lose_meta()
                        case 9 | 10:
                            world.repair(random.Random(step))
                        case 11 | 12:
                            world.query(random.Random(step))
                        case _:
                            raise AssertionError(step)
                    world.check()
                world.finish()
        finally:
            world.meta.close()
