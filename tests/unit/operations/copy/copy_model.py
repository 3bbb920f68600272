"""A source in memory that is copied and repaired by the product's own code, beside writes: what decides is real.

Real are the copier, the claims by key of a repair, the watermarks, the chunks and the SQL of keys (which SQLite runs),
the parts, meta, the staging of copies, the coverage of tables, the fold, purges, the plans of runs and replays, their
merge, and the search for the place in the log of a server that takes over. Modelled are the servers (copy_source.py),
the extractor, which stages stretches of the log, and the target (copy_target.py).

Before whatever the copier does, the world may move. What happens is a list of (skip, number): after so many moments in
which nothing happens, the event `number`. So hypothesis finds the interleaving, and shrinks it.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from sqlalchemy import Connection

from cdc_core.config import parse
from cdc_core.errors import ConnectionLost, RetryLater
from cdc_core.meta import Lease, Meta
from cdc_core.meta.batches import Batches
from cdc_core.meta.consume_records import ConsumeRecords
from cdc_core.meta.copied_batches import CopiedBatches
from cdc_core.meta.positions import SourcePositions
from cdc_core.meta.run_register import RunRegister
from cdc_core.meta.table_copies import TableCopies
from cdc_core.model.batch import Manifest, Part
from cdc_core.model.coverage import Happened, How, Surveyed, TableCoverage, TableEvent, after
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import BEFORE, BOOKKEEPING, LITERAL, OP, ROW, SEQ, SOURCE, TS, staged_schema
from cdc_core.mysql.connections import Server
from cdc_core.operations.apply import plan as plans
from cdc_core.operations.apply import replay as replays
from cdc_core.operations.apply.replay import Selection
from cdc_core.operations.apply.retention import purge, sweep
from cdc_core.operations.copy import chunks, copier, table_chunks, watermarks
from cdc_core.operations.copy.chunk_file import ChunkFile, ChunkFiles
from cdc_core.operations.copy.chunks import FIRST_ROWS, Pace
from cdc_core.operations.copy.pending import pending
from cdc_core.operations.copy.read_source import ReadSource
from cdc_core.operations.copy.staging import stage_due
from cdc_core.operations.copy.table_chunks import TableChunks
from cdc_core.operations.extract import hosts, side_by_side
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.repair import claims, reverse_query
from cdc_core.operations.repair.claims import WantedKeys, claim
from cdc_core.operations.repair.reverse_query import look_up
from cdc_core.operations.verify import source_rows
from cdc_core.operations.verify.canonical import key_text, values_of
from cdc_core.operations.verify.source_rows import SourceTables
from cdc_core.source.capture import Capture
from cdc_core.source.host import failover
from cdc_core.source.host.gtid_sets import GtidSet
from cdc_core.stage import horizon as horizons
from cdc_core.stage import manifest as manifests
from cdc_core.stage import start_record
from cdc_core.stage.layout import PartName, part_path
from cdc_core.stage.open_part import OpenPart
from cdc_core.stage.parquet import PartFile
from cdc_core.stage.staged_coverage import coverage_of, purged_of
from cdc_core.stage.stores import open_store
from tests.lab.opened import empty_meta, opened_line
from tests.lab.staged_tables import table_state
from tests.unit.operations.copy.copy_keys import Key, Shape, as_sqlite
from tests.unit.operations.copy.copy_source import APART_US, START_US, Entry, SearchedLog, Source, View
from tests.unit.operations.copy.copy_target import Target, winners

NAME, TABLE = "shop", "shop.t"
DURABLE = (
    (TableCopies, "begin"),
    (TableCopies, "plan_chunk"),
    (TableCopies, "take_chunk"),
    (TableCopies, "chunk_read"),
    (TableCopies, "next_chunk"),
    (CopiedBatches, "decide"),
    (Batches, "record_copied"),
    (SourcePositions, "checkpoint"),
    (RunRegister, "claim"),
    (RunRegister, "mark_applied"),
    (RunRegister, "commit"),
    (ConsumeRecords, "purge"),
    (Batches, "forget"),
)
NEVER_US = 1 << 61
FIRST_LATER = 2400
"""From this number of an event on, it is one of `World._later`."""
NOTHING = 0
"""The number of the event that nothing happens."""
_LITERAL_FIELD = next(column for column in BOOKKEEPING if column.name == LITERAL)


class Killed(BaseException):
    """What a kill is to the code: nothing more runs."""


class AtOnce(Executor):
    """Does all work in the thread that hands it over, so that a run can be repeated."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class Session:
    """A connection to the source. The reader's statements see its view, the control's see what the engine has."""

    def __init__(self, world: World, *, reader: bool) -> None:
        self._world, self._reader = world, reader
        self._server, self.open, self._number = world.source, True, 1
        self.use_unicode = True
        self._view: View | None = None
        self._found: tuple[tuple[Any, ...], ...] = ()

    @contextmanager
    def cursor(self, kind: Any = None) -> Iterator[Session]:
        yield self

    def execute(self, sql: str, arguments: Any = None) -> None:
        self._world.move()
        self.require()
        self._found = self._answer(sql, arguments)

    def fetchall(self) -> tuple[tuple[Any, ...], ...]:
        return self._found

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._found[0] if self._found else None

    def get_server_info(self) -> str:
        return "11.4.5-MariaDB" if self._server.flavor == "mariadb" else "9.7.0"

    def close(self) -> None:
        self.open = False

    def thread_id(self) -> int:
        return self._number

    def require(self) -> None:
        """The server has not ended the session."""
        if not self.open or self._server.dead:
            raise pymysql.err.OperationalError(2013, "Lost connection to server during query")

    def ping(self, **_: Any) -> None:
        """Connects again, if the session has ended: to the same server, or to the one that its address leads to."""
        if self._server.dead and not self._world.address_moves:
            raise pymysql.err.OperationalError(2003, "Can't connect to server")
        if self._server.dead or not self.open:
            self._server = self._world.source
            self.open, self._view = True, None
            self._number += 1

    def select(self, sql: str) -> tuple[tuple[Any, ...], ...]:
        source = self._server
        rows = source.engine
        if self._view is not None:
            if self._view.redefined:
                raise pymysql.err.OperationalError(1412, "Table definition has changed, please retry transaction")
            rows, self._view.has_read = self._view.rows, True
        with closing(source.shape.open(rows)) as database:
            return tuple(database.execute(as_sqlite(sql)).fetchall())

    def _answer(self, sql: str, arguments: Any) -> tuple[tuple[Any, ...], ...]:
        source = self._server
        match sql.split()[:2]:
            case ["START", _]:
                self._view = source.open_view()
            case ["ROLLBACK", *_]:
                if self._view in source.views:
                    source.views.remove(self._view)
                self._view = None
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
            case ["SHOW", "BINLOG"]:  # EVENTS: none of this server moves the place and commits nothing
                return ()
            case ["XA", "RECOVER"]:
                found = tuple((1, 4, 0, f"{source.log.index(entry):04}") for entry in source.unseen if entry.xa)
                source.settle(0)
                return found
            case ["SHOW", "GLOBAL"]:
                identity = source.identity
                return (("server_id", identity.removeprefix("server_id=")), ("server_uuid", identity))
            case ["SHOW", "VARIABLES"] | ["SET", _]:
                pass
            case ["SHOW", "ALL"]:  # SLAVES STATUS: whoever takes over follows nobody
                return ()
            case ["SHOW", "BINARY"] if sql == "SHOW BINARY LOGS":
                places = [*(entry.begin for entry in source.log), source.end]
                return tuple({place.file: place.offset for place in places}.items())
            case ["SHOW", _]:
                return ((source.end.file, source.end.offset, "", "", ""),)
            case ["SELECT", "WAIT_FOR_EXECUTED_GTID_SET(%s,"]:
                source.settle_named(arguments[0])
                return ((0,),)
            case ["SELECT", "@@GLOBAL.gtid_owned"]:
                return ((",".join(f"{entry.gtid}#17" for entry in source.unseen),),)
            case ["SELECT", "@@GLOBAL.gtid_executed"] | ["SELECT", "@@GLOBAL.gtid_binlog_pos"]:
                return ((source.gtids([entry for entry in source.log if entry not in source.unseen]),),)
            case ["SELECT", "@@GLOBAL.gtid_purged"]:
                return ((source.gtids([]),),)
            case ["SELECT", "VERSION()"]:
                return ((self.get_server_info(),),)
            case ["SELECT", "CAST(UNIX_TIMESTAMP(NOW(6))"]:
                return ((START_US + (1 << 40),),)
            case ["SELECT", "@@SESSION.wait_timeout"]:
                return ((28800,),)
            case ["SELECT", "INDEX_NAME,"]:  # every second column descends
                return tuple(("PRIMARY", name, "AD"[at % 2]) for at, name in enumerate(source.shape.schema.key))
            case ["SELECT", "ENGINE"]:
                return (("InnoDB",),)
            case ["SELECT", "TABLE_ROWS,"]:
                return ((len(source.engine), 8),)
            case ["SELECT", _]:
                return self.select(sql)
            case _:
                raise AssertionError(f"the model has no answer to {sql}")
        return ()


class Reader:
    """TableReader of the model: the same SQL, in batches of a row or two."""

    def __init__(self, session: Session, schema: TableSchema) -> None:
        self._session, self._schema = session, schema

    def batches(self, tail: str) -> Iterator[pa.RecordBatch]:
        world = self._session._world
        names = [column.name for column in self._schema.columns]
        world.move()
        try:
            self._session.require()
            rows = self._session.select(f"SELECT {', '.join(names)} {tail}")
        except pymysql.err.OperationalError as error:
            code = "table.redefined" if error.args[0] == 1412 else "connection.unreachable"
            raise RetryLater(str(error), where="", code=code, remedy="") from None
        fields = [*[staged_schema(self._schema).field(name) for name in names], _LITERAL_FIELD]
        for at in range(0, len(rows), 2):
            some = [dict(zip(names, row, strict=True)) for row in rows[at : at + 2]]
            yield pa.RecordBatch.from_pylist(some, schema=pa.schema(fields))
            world.move()
            if self._session._server.dead:
                raise ConnectionLost("lost", where="", remedy="")


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
    runs: int = 0
    extracting: bool = False
    address_moves: bool = False
    """Whether the address of a server that is gone leads to the one that took over."""

    def __post_init__(self) -> None:
        self.shape = self.source.shape
        self.schema = self.shape.schema
        self.targets = self._empty_targets()
        self.first = self.source.number
        self.logs = {0: self.source}
        self.again_seq = 0
        self.pipeline = parse(
            "pipeline: shop\n"
            "sources: [{name: shop, connection: ['env:X', 'env:Z'], server_id: 7, start: earliest, rewind_s: 0.0002}]\n"
            f"tables: {{include: ['shop[.]t'], on_truncate: stage, on_unlogged_change: record}}\n"
            f"stage: {{uri: {(self.folder / 'stage').as_uri()}}}\nmeta: {{url: 'sqlite:///{self.folder}/meta.db'}}\n"
            "targets: [{name: main, connections: ['env:Y'], tables: {'*': {on_truncate: apply}}}]\n"
            "reverse_query: {wait_s: 60}\n",
            where="model",
        )
        self.store = open_store(self.pipeline.stage.uri)
        self.capture = Capture(self.pipeline.tables, self.pipeline.routes)
        self.meta = Meta.open(self.pipeline.meta.url, self.pipeline.pipeline)
        lease = self._lease(NAME)
        # As a MySQL says it whose engine has not ended what was logged before the start.
        gtids = self.source.gtids([] if self.source.flavor == "mysql" else self.source.log)
        begin = Checkpoint(self.source.end, gtid_set=gtids, server=self.source.identity, watermark_us=START_US)
        begin = replace(begin, watermark_us=START_US + APART_US * self.source.number)
        start_record.put(self.store, NAME, begin, pipeline="shop")
        self.meta.positions.advance_watermark(lease, begin)
        how = TableCoverage(How.EXISTING, self.source.end.seq - 1, START_US, "the start", feeds=(TABLE,))
        self.meta.coverages.keep(lease, {TABLE: how}, Surveyed(self.source.end.seq - 1, ""))
        self.meta.leases.release(lease)

    def _empty_targets(self) -> list[Target]:
        """Two: one compares keys as the source does, one byte by byte, as where the collation is not known."""
        return [Target.of(self.schema, equal) for equal in (self.shape.number, lambda key: key)]

    @property
    def staged(self) -> Checkpoint:
        return self.meta.positions.checkpoint(NAME)

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
            if number < FIRST_LATER:
                self._happen(number % 24, random.Random(number))
            else:
                self._later(number % 4, random.Random(number))
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

    def _later(self, what: int, chance: random.Random) -> None:
        """What happens after the extract, while others read the source."""
        match what:
            case 0:
                self.run()
            case 1:
                self.run()
                self.purge(chance)
            case _:
                self.fail_over(chance)

    # What processes do. Each may be killed, and begins again from what is durable.

    def copy(self) -> None:
        """The product's copier reads the table to its end, if nothing comes in between."""
        with self._process(), self._copier_lease() as lease:
            sessions = self._sessions()
            source = self._read_source(sessions.control)
            source.staged()
            watermarks.await_logged(source.control, source.server)
            chunks = TableChunks(self.meta, lease, NAME, ("shop", "t"), pace=Pace(1 << 20, 5.0, first_rows=FIRST_ROWS))
            work = copier._CopyWork([chunks])

            def reader(sessions: SimpleNamespace) -> Any:
                files = ChunkFiles(self.ready, NAME, lease, source.capture(), self.folder)
                return copier._ChunkReader(source, files, sessions, AtOnce(), work, lambda _: self.move())

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
        """Of a reader."""
        return SimpleNamespace(reader=Session(self, reader=True), control=Session(self, reader=False))

    @property
    def _facts(self) -> SimpleNamespace:
        return SimpleNamespace(
            mariadb=self.source.flavor == "mariadb", gtid_mode="ON" if self.source.flavor == "mysql" else "OFF",
            identity=self.source.identity, clock_us=START_US, lower_case=False,
        )  # fmt: skip

    def repair(self, chance: random.Random) -> None:
        """The product looks some rows up and stages them. The target would have a row under every key that it asks for:
        those that the source does not have become deletes."""
        with self._process(), self._copier_lease() as lease:
            source = self._source_tables()
            every = len(self.shape.keys)
            some = [
                self.shape.spelling(chance, number) for number in chance.sample(range(every), chance.randint(1, every))
            ]
            if self.shape.spelled and chance.random() < 0.5:  # what the source has now is asked for, too
                some += [key for key in self.source.rows if key not in some]
            keys = [key_text([str(part) for part in key]) for key in some]
            job = SimpleNamespace(opened=self.ready, pipeline=self.pipeline, meta=self.meta, wait_s=60.0)
            self.chance = chance
            claim(
                job, [WantedKeys(TABLE, self.schema.key, keys, [(source, self.schema)], self._key_rows)], {NAME: lease}
            )

    def _key_rows(self, keys: Sequence[str], schema: TableSchema) -> tuple[pa.RecordBatch, list[str]]:
        """As a target that has a row under each key."""
        fields = pa.schema([*(staged_schema(schema).field(name) for name in schema.key), _LITERAL_FIELD])
        rows = [dict(zip(schema.key, self.shape.values(values_of(key)), strict=True)) for key in keys]
        return pa.RecordBatch.from_pylist(rows, schema=fields), list(keys)

    def query(self, chance: random.Random) -> None:
        """The product looks up the staged changes that no target has; here all of them are old."""
        with self._process():
            self.chance = chance
            look_up(self.ready, ["main"])

    def _source_tables(self) -> SourceTables:
        pair = self._sessions()
        return SourceTables(self._read_source(pair.control), pair, lambda _: None)

    def _read_source(self, control: Any) -> ReadSource:
        throttle: Any = SimpleNamespace(why=lambda _: "")
        address, facts = Server("model", 3306, "", ""), self._facts
        return ReadSource(self.ready, self.pipeline.source(NAME), address, control, facts, throttle)

    @property
    def ready(self) -> OpenPipeline:
        return OpenPipeline(self.pipeline, self.meta, self.store)

    def extract_on(self) -> None:
        """Beside a look-up."""
        self.move()
        self.source.settle_all()
        self.moving = True  # a lease keeps other extractors away meanwhile
        try:
            self.extract(self.chance.randint(1, 3))
        finally:
            self.moving = False
        self.move()

    def stage(self) -> None:
        with self._process(), self._copier_lease() as lease:
            before = horizons.read(self.store, NAME)
            done = stage_due(opened_line(self), NAME, lease, capture=self.capture)
            if done.tables and horizons.read(self.store, NAME) == before:
                assert not self.purged, "what a copy needs was purged before it was staged"

    def fail_over(self, chance: random.Random) -> None:
        """Another server takes over, which has all that is staged. Sessions at the one before may go on for a while: it
        need not be dead."""
        if self.staged.server == self.source.identity and self.source.server_id < 4:
            staged = (self.staged.watermark_us - START_US) // APART_US
            self.address_moves = chance.random() < 0.5
            self.source = self.source.taken_over(chance, staged)

    def _lead_on(self) -> None:
        """The extractor goes on in the log of the server that has taken over."""
        stored, control = self.staged, Session(self, reader=False)
        config, facts = self.pipeline.source(NAME), self._facts
        moved = failover.fail_over(config, control, self.source, facts, stored)
        lease = self._lease(NAME)
        bridge = hosts.bridge(self.pipeline, lease, stored, moved, {}, {})
        assert manifests.commit(self.store, bridge).ours
        self.meta.batches.commit(lease, bridge)
        self.meta.leases.release(lease)
        timeline, self.extractor = moved.start.position.timeline, None
        self.logs[timeline] = self.source
        known = [entry for entry in self.source.log if START_US + APART_US * entry.number <= stored.watermark_us]
        again = [entry for entry in known if _placed(entry.begin, timeline) >= moved.start.position and entry.gtid]
        # Of what the start of the capture does not name, the product cannot say that it was read.
        unknown = self.source.flavor == "mysql" and bool(again) and again[0].number <= self.first
        assert not again or unknown or self.source.flavor == "locks", f"comes again without need: {again}"
        if known:
            self.again_seq = _placed(known[-1].end, timeline).seq

    def extract(self, most: int) -> None:
        """Stages the next entries of the log as a batch; its lease keeps other extractors away meanwhile."""
        if self.extracting:
            return
        self.extracting = True
        try:
            self._extract(most)
        finally:
            self.extracting = False

    def _extract(self, most: int) -> None:
        if self.staged.server != self.source.identity:
            self._lead_on()
        begin = self.staged
        timeline = begin.position.timeline
        entries = [entry for entry in self.source.log if _placed(entry.begin, timeline) >= begin.position][:most]
        if not entries:
            return
        lease = self._lease(NAME)
        known = self.meta.coverages.find(NAME)
        if self.extractor is None:
            self.extractor = dict(known.tables)
        said = {table: known.tables[table] for table in known.unstaged}
        for entry in entries:
            what = {
                "truncate": Happened.TRUNCATED, "create": Happened.CREATED, "unlogged": Happened.UNLOGGED
            }.get(entry.kind, Happened.ROWS)  # fmt: skip
            place = _placed(entry.begin, timeline)
            found = after(self.extractor.get(TABLE), TableEvent(TABLE, what, place.seq, entry.ts_us, str(place)))
            if found is not self.extractor.get(TABLE):
                self.extractor[TABLE] = said[TABLE] = replace(found, feeds=(TABLE,))
        gtids = GtidSet.parse(begin.gtid_set).union(GtidSet.parse(",".join(entry.gtid for entry in entries)))
        end = replace(
            begin, position=_placed(entries[-1].end, timeline), gtid_set=str(gtids),
            watermark_us=max(begin.watermark_us, entries[-1].ts_us),
        )  # fmt: skip
        parts = self._parts(entries, lease, begin.position)
        manifest = Manifest(
            pipeline="shop", source=NAME, epoch=lease.epoch, begin=begin, end=end, window_start_us=START_US,
            window_end_us=START_US + 3_600_000_000, parts=parts, events=len(entries), transactions=len(entries),
            created_us=START_US, schemas={self.schema.id: self.schema}, coverage=said,
        )  # fmt: skip
        manifests.commit(self.store, manifest)
        self.meta.batches.commit(lease, manifest)
        self.meta.leases.release(lease)

    def lose_meta(self) -> None:
        """The meta database is lost and made again from the chain."""
        if not self.chain:
            return
        self.meta.close()
        (self.folder / "meta.db").unlink()
        (self.folder / "meta.db").write_bytes(empty_meta())
        self.meta = Meta.open(self.pipeline.meta.url, self.pipeline.pipeline)
        self.extractor = None
        lease = self.meta.leases.acquire(NAME, "me", 60)
        horizon = horizons.read(self.store, NAME)
        lease, _ = self.meta.rebuild(lease, self.chain, None if horizon is None else horizon.coverage)
        self.meta.leases.release(lease)
        # As `meta rebuild` does: epochs of file names must not come back.
        for _ in range(self.epoch):
            self.meta.leases.release(self.meta.leases.acquire(f"snapshot:{NAME}", "me", 60))

    def run(self) -> None:
        """The target takes what is staged, and commits that."""
        with self._process():
            self.runs += 1
            plan = plans.plan(opened_line(self), window=None, run_id=f"run{self.runs}")
            rows = winners(self.store, plan)
            self.move()
            for target in self.targets:
                target.write(rows)
            claimed = plan.claimed("main")
            if claimed:
                self.meta.runs.mark_applied(plan.run_id, "main", claimed)
                self.meta.runs.commit(plan.run_id, "main", claimed, [], [])

    def replay(self, chance: random.Random) -> None:
        """All batches again, in any order: nothing changes at the target, and an empty one ends equal to it."""
        batches, new = [manifest.batch_id for manifest in self.chain], self._empty_targets()
        before = [target.state for target in self.targets]
        chance.shuffle(batches)
        for some in (batches[0::2], batches[1::2]):
            self.runs += 1
            chosen = Selection("main", batches=frozenset(some))
            rows = winners(self.store, replays.plan(opened_line(self), chosen, run_id=f"run{self.runs}"))
            for target in (*new, *self.targets):
                target.write(rows)
        after = [target.state for target in self.targets]
        assert after == before, f"a replay has made {after} of {before}"
        made = [target.state for target in new]
        assert horizons.read(self.store, NAME) is not None or made == before, f"a replay makes {made}"

    def purge(self, chance: random.Random) -> None:
        """Retention: whatever its age, all that the target has committed may go."""
        # Nobody forgets a run that is under way, as the one may be that this happens in.
        forget_us = None if self.depth else chance.choice((None, NEVER_US))
        with self._process():
            purge(opened_line(self), cutoff_us=NEVER_US, forget_us=forget_us)

    def clean(self) -> None:
        sweep(opened_line(self), older_than_s=-60.0)

    def _parts(self, entries: Sequence[Entry], lease: Lease, begin: Position) -> tuple[Part, ...]:
        schema, arrow = self.schema, staged_schema(self.schema)
        rows = []
        for entry in entries:
            place = _placed(entry.begin, begin.timeline)
            notes = {SOURCE: NAME, TS: entry.ts_us, SEQ: place.seq, "_cdc_file": place.file, "_cdc_pos": place.offset}
            if entry.kind in ("truncate", "create"):
                rows.append({OP: "t", ROW: 0, **notes})
            for at, change in enumerate(entry.changes):
                image = {**_named(schema, change.key), "v": change.old if change.op == "d" else change.value}
                if change.op == "u":
                    image[BEFORE] = {**_named(schema, change.old_key), "v": change.old}
                rows.append({**image, OP: change.op, ROW: at, **notes})
        if not rows:
            return ()
        name = part_path(TABLE, START_US, PartName(NAME, begin.seq, lease.epoch, 0))
        file = PartFile(arrow, schema.key, lambda: self.store.open_output(iter([name]), self.folder), 1)
        part = OpenPart(TABLE, schema, file, arrow)
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
        return self.meta.leases.acquire(name, "me", -1)

    # What must be true.

    @property
    def committed(self) -> bool:
        """Whether the target has all that is staged."""
        recorded = {batch.batch_id for batch in self.meta.batches.find(NAME)}
        return self.meta.plans.first_lacking(NAME, "main") is None and all(
            manifest.batch_id in recorded for manifest in self.chain
        )

    @property
    def purged(self) -> bool:
        """Whether the stage lacks changes that the rows of the table are made of."""
        return bool(purged_of(self.store, self.chain, [TABLE]))

    def check(self) -> None:
        """Where the stage says that the table is whole, its rows there are those of the source."""
        chain = self.chain
        covered = coverage_of(self.store, NAME, chain).get(TABLE)
        if not chain or covered is None or not covered.whole or covered.seq >= chain[-1].end.position.seq:
            return
        end = chain[-1].end.position
        if end.seq < self.again_seq:  # rows become older for a while, as changes of them come again
            return
        expected = self.logs[end.timeline].at(end)
        if self.committed:
            for target in self.targets:
                assert target.state == expected, f"at the target {target.state}, at the source {expected}"
        if self.purged:  # the product does not give its rows
            return
        if any(part.table == TABLE for manifest in chain for part in manifest.parts):
            state = table_state(self.store, chain, TABLE)
            keys = zip(*(state.column(name).to_pylist() for name in self.schema.key), strict=True)
            found = dict(zip(keys, state.column("v").to_pylist(), strict=True))
            assert len(found) == state.num_rows
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
            if pending(self.meta, NAME) or self.purged:
                self.copy()
                self.source.settle_all()
                self.extract(1 << 30)
                self.stage()
            self.check()
        self.stage()  # what a killed look-up had decided
        self.run()
        assert self.committed
        assert not self.purged
        self.check()
        covered = coverage_of(self.store, NAME, self.chain).get(TABLE)
        assert covered is None or covered.whole, covered
        if covered is None:
            assert all(
                manifest.by_key or not manifest.parts for manifest in self.chain
            )  # looked-up rows say nothing of the table
        assert not pending(self.meta, NAME)
        assert (self.meta.copies.chunks(NAME), self.meta.copied.decided(NAME)) == ((), ())
        numbers = [chunk.number for manifest in self.chain for chunk in manifest.chunks]
        assert len(numbers) == len(set(numbers))
        assert manifests.verify(self.store, NAME, deep=True) == []
        if covered is not None:
            self.replay(random.Random(len(self.chain)))


@contextmanager
def patched(world: World) -> Iterator[None]:
    """The product reads the model's server, and each durable step of its processes has a before and an after."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copier, "TableReader", Reader)
        patch.setattr(copier, "table_schema", lambda *_: world.schema)
        patch.setattr(table_chunks, "table_schema", lambda *_: world.schema)
        patch.setattr(failover, "Search", SearchedLog)
        sizes = itertools.cycle((2, 1, 3))
        patch.setattr(chunks, "chunk_rows", lambda *_: next(sizes))
        for name, patched_one in {
            "TableReader": Reader,
            "table_schema": lambda *_: world.schema,
            "captured_tables": lambda *_: {("shop", "t"): (world.schema, "")},
        }.items():
            patch.setattr(source_rows, name, patched_one)
        patch.setattr(claims, "chunk_rows", lambda *_: next(sizes))
        patch.setattr(reverse_query, "open_source", lambda *_: nullcontext(world._source_tables()))
        patch.setattr(claims, "copier_lease", lambda *_: world._copier_lease())
        patch.setattr(side_by_side, "extract_if_free", lambda *_: world.extract_on() or True)
        patch.setattr(Meta, "now_us", lambda _: 1 << 61)
        patch.setattr(watermarks, "VISIBLE_PAUSE_S", 0)
        patch.setattr(watermarks, "VISIBLE_WITHIN_S", 5)
        for owner, name in [*DURABLE, (manifests, "commit"), (ChunkFile, "finish")]:
            _between(patch, world, owner, name)
        yield


def _named(schema: TableSchema, key: Key) -> dict[str, Any]:
    return dict(zip(schema.key, key, strict=True))


def _placed(position: Position, timeline: int) -> Position:
    return replace(position, timeline=timeline)


def _between(patch: pytest.MonkeyPatch, world: World, owner: Any, name: str) -> None:
    done = getattr(owner, name)
    busy = [False]

    def step(*arguments: Any, **named: Any) -> Any:
        within = isinstance(getattr(arguments[0], "_at", None), Connection)  # a part of another step's transaction
        if not world.depth or world.moving or busy[0] or within:
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


def live(
    flavor: str, shape: Shape, before: Sequence[int], steps: Sequence[int], events: Sequence[tuple[int, int]]
) -> None:
    """Transactions that the capture does not have, steps, and what happens within them; then quiet, and everything must
    be equal."""
    source = Source(flavor, shape, {shape.keys[number][0]: number for number in (1, 2, 4)})
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
                        case 13 | 14:
                            world.run()
                        case 15:
                            world.purge(random.Random(step))
                        case _:
                            raise AssertionError(step)
                    world.check()
                world.finish()
        finally:
            world.meta.close()
