"""Transactions: the state machine between raw events and the block that is being gathered. It does no I/O itself.

A group is what lies between two places to resume from. It begins with a GTID event of any kind, and ends with
  XID | QUERY COMMIT | a single statement outside BEGIN      -> TRANSACTION or DDL, or PASSED without captured rows
  QUERY ROLLBACK                                             -> PASSED: what it held never happened
  XA PREPARE                                                 -> PASSED; its rows are held by xid until
  XA COMMIT / XA ROLLBACK of that xid, a group of its own    -> TRANSACTION at the place of the commit / PASSED
Outside a group only events that belong to the file itself may come. SAVEPOINT and ROLLBACK TO cut back the rows of
an open group. A group that grows too large leaves the builder in pieces (PART); what of it may still be undone waits on
the shelf. What comes out of one event (a payload, a commit of what was on the shelf) has no places of its own: its
pieces end where that event begins, so that all but the first of them have no bytes.
It must keep true that every event is put into an entry or raises, and that nothing is skipped for being unknown.
"""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from cdc_core.binlog.compressed import MARIADB_COMPRESSED, payload_events, plain
from cdc_core.binlog.events import (
    TRACE_BYTES,
    Event,
    EventType,
    Query,
    crc_of,
    folded,
    parse_query,
    parse_rotate,
    parse_xa_prepare,
    type_name,
)
from cdc_core.binlog.gtid import parse_gtid, parse_mariadb_gtid
from cdc_core.binlog.rows_event import DUMMY_TABLE_ID, ROW_EVENTS, parse_rows
from cdc_core.binlog.table_map import table_name
from cdc_core.errors import DataAtRisk, LockstepError, Refused
from cdc_core.model.block import NO_TRACE, Block, EntryKind
from cdc_core.model.coverage import ANY_TABLE, EACH_TABLE, Happened, TableEvent
from cdc_core.model.position import FIRST_OFFSET, Position
from cdc_core.model.schema import TableSchema
from cdc_core.source import faults
from cdc_core.source.block_builder import (
    ISOLATED,
    NOT_INCLUDED,
    NOT_TRACED,
    BlockBuilder,
    OrdinaryTransactions,
    Trace,
)
from cdc_core.source.capture_policy import CapturePolicy
from cdc_core.source.effects import Effect
from cdc_core.source.history import Change, Place
from cdc_core.source.pending_changes import (
    MappedTable,
    Name,
    PendingChange,
    PendingRowEvents,
    PendingRows,
    PendingTruncate,
)
from cdc_core.source.spill import SpillableChanges, SpillFiles
from cdc_core.source.statements import Action, Statement, classify, shown
from cdc_core.source.tables import Tables

log = logging.getLogger(__name__)

_SOME_TABLE = "lockstep_some_table"
"""A name that no pattern is about: captured where all tables of a database are."""
STATEMENT_PASSED = "statement on a table not included"

_FILE_EVENTS = frozenset({
    EventType.FORMAT_DESCRIPTION, EventType.PREVIOUS_GTIDS, EventType.STOP, EventType.MARIADB_GTID_LIST,
    EventType.MARIADB_BINLOG_CHECKPOINT, EventType.MARIADB_START_ENCRYPTION,
})  # fmt: skip
_ASIDE = frozenset({
    EventType.ROWS_QUERY, EventType.MARIADB_ANNOTATE_ROWS, EventType.INTVAR, EventType.RAND, EventType.USER_VAR,
    EventType.BEGIN_LOAD_QUERY, EventType.APPEND_BLOCK, EventType.DELETE_FILE, EventType.TRANSACTION_CONTEXT,
    EventType.VIEW_CHANGE,
})  # fmt: skip
"""Beside a statement or its rows: what they do is judged by the statement or row event itself."""
Blocks = Generator[Block, None, None]
"""The blocks that an event completes, each handed on before what follows it in the event is read."""
_GTID_HEAD = struct.Struct("<x16sq17xIHB")
"""flags u8, sid, gno i64, kind u8 and two i64 of logical time, then 56 bits of commit time (see binlog.gtid)."""
_LOGICAL_TIMESTAMPS = 2
_COMMIT_TIME = (1 << 55) - 1
_MYSQL_GTIDS = frozenset({EventType.GTID, EventType.ANONYMOUS_GTID, EventType.GTID_TAGGED})
_BEGINS = _MYSQL_GTIDS | {EventType.MARIADB_GTID}
_QUERIES = frozenset({EventType.QUERY, EventType.MARIADB_QUERY_COMPRESSED, EventType.EXECUTE_LOAD_QUERY})
_SHOWN_ACTIONS = frozenset({Action.DATA, Action.DEFINITION, Action.UNKNOWN})
_READ_WHEN_WANTED = ROW_EVENTS | MARIADB_COMPRESSED | {EventType.TRANSACTION_PAYLOAD} | _ASIDE
_FLAG_THREAD_SPECIFIC = 0x04
"""Of a statement that uses temporary tables."""
_UPDATED_DATABASES = 12
"""The status variable in which MySQL names the databases that a statement changed; not there when it cannot say."""
_COMPRESSED_ROWS = MARIADB_COMPRESSED - {EventType.MARIADB_QUERY_COMPRESSED}


@dataclass(slots=True)
class _Group:
    """The open group. seq, gtid, commit_ts_us: from its first event. rows: of captured tables, in order.

    open: goes on until its end, not just to the next statement. xa: may stay prepared. redundant: the first of the two
    groups of a MariaDB ALTER. undone: will be rolled back, as an earlier reading has shown. ordinal: row events so
    far. pieces: how many PARTs have left. defines: holds DDL of a captured table. marks: savepoint -> how much was held
    when it was set. isolated: ids in `maps` of isolated tables. passed, notes: of its entry, and gone with
    the group when it is dropped. happened: what its statements did to captured tables, for their coverage.
    """

    start: int
    seq: int
    gtid: str
    commit_ts_us: int
    rows: SpillableChanges
    open: bool = False
    xa: bool = False
    redundant: bool = False
    undone: bool = False
    ordinal: int = 0
    events: int = 1
    pieces: int = 0
    defines: bool = False
    marks: dict[str, int] = field(default_factory=dict)
    maps: dict[bytes, MappedTable | None] = field(default_factory=dict)
    isolated: set[bytes] = field(default_factory=set)
    passed: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    happened: list[tuple[str, Happened]] = field(default_factory=list)


class TransactionAssembler:
    """Feed it events in order; each returns the blocks that it completes.

    effects:     which captured tables a statement may change (effects.Effects.of).
    accept:      file and offset of events that an operator accepts where they would stop the stream.
    accept_by:   the command with which an operator accepts one, up to the place.
    prepared:    what was prepared before this stream began and not ended before it, by xid; asked once, if at all.
                 None: this is a look at the past for just that. Of all other transactions nothing is read.
    block_bytes: a block is closed, and an open group leaves in pieces, at about this size.
    undone:      order keys of groups that were rolled back after pieces of them had left. Whoever dropped those pieces
                 feeds the log again from before the group: then it holds nothing.
    """

    def __init__(
        self,
        source: str,
        begin: Position,
        tables: Tables,
        policy: CapturePolicy,
        *,
        effects: Callable[[Statement, frozenset[str] | None, Position], Effect],
        prepared: Callable[[], Mapping[str, SpillableChanges]] | None,
        block_bytes: int,
        undone: set[int] | None = None,
        accept: Iterable[tuple[str, int]] = (),
        accept_by: str = "lockstep extract PIPELINE --accept",
    ) -> None:
        self.mariadb = False
        self.lower_case = False
        """The server compares names of tables in lower case."""
        self.accepted: set[tuple[str, int]] = set()
        """Of what is to be accepted: where something was."""
        self.format_crc = 0
        """Of the file that the next event lies in; 0 while it is not known."""
        self.cascades_logged = True
        """Whether the server logs what foreign keys change."""
        self.builder = BlockBuilder(source, begin)
        self.prepared: dict[str, SpillableChanges] = {}
        """Changes of XA transactions that were prepared and not ended yet, by xid."""
        self._source = source
        self._tables = tables
        self._policy = policy
        self._effects = effects
        self._pending = sorted({Position(begin.timeline, *place) for place in accept})
        self._accept_by = accept_by
        self._outermost: Event | None = None
        self._find_prepared = prepared
        self._past = prepared is None
        self._undone = set() if undone is None else undone
        self.block_bytes = block_bytes
        self._file = begin.file
        self._end = begin.offset
        self._cut = begin.offset
        """Where a piece that leaves now ends."""
        self.trace = NOT_TRACED
        """Up to the last event that was fed."""
        self._group: _Group | None = None
        self._spill_files = SpillFiles()
        self._sids: dict[bytes, str] = {}
        self._handlers = self._table_of_handlers()

    def feed(self, event: Event) -> Blocks:
        """One event of the log, or the artificial ROTATE that says in which file the next ones lie. It is fed once the
        answer is read to its end."""
        if event.start < 0:
            yield from self._switch(parse_rotate(event).file)
            return
        self._end = self._cut = event.start + event.header.length
        self._outermost = event
        self._trace_event(event)
        if self._group is not None:
            self._group.events += 1
        yield from self._dispatch(event)
        self._require_used()
        if self.builder.size_bytes >= self.block_bytes:
            yield self._close()

    def _trace_event(self, event: Event) -> None:
        """The trace begins with each group, goes on behind it, and begins again where it grows too long."""
        begin, crc = self.trace
        if begin == NO_TRACE or event.header.type in _BEGINS or self._end - begin > TRACE_BYTES:
            begin, crc = event.start, 0
        self.trace = (begin, folded(crc, crc_of(event)))

    @property
    def between_groups(self) -> bool:
        """No group is open: the next event may begin one."""
        return self._group is None

    def extend(self, groups: OrdinaryTransactions) -> Blocks:
        """Whole ordinary groups at once, while no group is open: what the fast path has found."""
        self._end = groups.reached
        self.trace = (int(groups.entries.trace[-1]), int(groups.entries.trace_crc[-1]))
        self.builder.extend(groups)
        self._require_used()
        if self.builder.size_bytes >= self.block_bytes:
            yield self._close()

    @property
    def inside(self) -> tuple[int, int] | None:
        """Of a group that goes on until its end: its next row event's ordinal, and what it may still hold before a
        piece of it leaves or is shelved. None where none is open."""
        group = self._group
        if group is None or not group.open:
            return None
        return group.ordinal, self.block_bytes - group.rows.memory_bytes

    def extend_group(
        self,
        rows: PendingRowEvents,
        maps: Mapping[bytes, MappedTable | None],
        *,
        events: int,
        ordinal: int,
        left_out: int,
        trace: Trace,
        end: int,
    ) -> Blocks:
        """The next `events` of the open group, up to `end`: table maps, which left it with `maps` by id, and row
        events, of captured tables or of others (left_out). ordinal: the next row event's."""
        group = self._group
        assert group is not None
        self._end = self._cut = end
        self.trace = trace
        self._require_used()
        group.events += events
        group.ordinal = ordinal
        group.maps.update(maps)
        if left_out:
            group.passed[NOT_INCLUDED] += left_out
        if len(rows):
            yield from self._hold(group, rows)

    @property
    def reached(self) -> int:
        """Offset behind the last event that was fed."""
        return self._end

    def flush(self) -> Block | None:
        """A block of all complete groups, if the position moved."""
        return self._close() if self.builder else None

    def rewind(self) -> Position | None:
        """Drops the open group; call it after `flush`. Where its events, to be fed again, begin; None where pieces of
        it have left already."""
        if self._group is not None:
            if self._group.pieces:
                return None
            self._group.rows.truncate(0)
        self._group = None
        self.trace = NOT_TRACED
        self._end = self.builder.end
        return self.builder.begin

    def discard(self) -> None:
        """Drops what complete groups have gathered: for a look at the past that is after `held` only."""
        if self._group is None:
            self.builder = BlockBuilder(self._source, Position(self.builder.begin.timeline, self._file, self._end))

    def _dispatch(self, event: Event) -> Iterable[Block]:
        handler = self._handlers.get(event.header.type)
        if handler is None:
            self._stop(event, faults.unknown_event(event, self._where(event)))
            return self._pass_unread(event)
        return handler(event if event.header.type in _READ_WHEN_WANTED else event.whole())

    def _table_of_handlers(self) -> dict[int, Callable[[Event], Iterable[Block]]]:
        """What is done with each type of event. A type that is not here is unknown, and stops."""
        handlers: dict[int, Callable[[Event], Iterable[Block]]] = {
            EventType.TABLE_MAP: self._table_map,
            EventType.XID: self._commit,
            EventType.MARIADB_GTID: self._begin_mariadb,
            EventType.TRANSACTION_PAYLOAD: self._payload,
            EventType.XA_PREPARE: self._prepare,
            EventType.ROTATE: self._rotate,
            EventType.INCIDENT: self._incident,
        }
        for types, handler in (
            (ROW_EVENTS | _COMPRESSED_ROWS, self._rows), (_QUERIES, self._query),
            (_MYSQL_GTIDS, self._begin_mysql), (_ASIDE, self._aside), (_FILE_EVENTS, self._pass_outside),
        ):  # fmt: skip
            handlers |= dict.fromkeys((int(code) for code in types), handler)
        return {int(code): handler for code, handler in handlers.items()}

    def _aside(self, event: Event) -> Iterable[Block]:
        self._require_group(event)
        return ()

    def _incident(self, event: Event) -> Iterable[Block]:
        self._stop(event, faults.incident(event, self._where(event)))
        return self._pass_unread(event)

    # The file

    def _switch(self, file: str) -> Blocks:
        """What comes next lies in another file. Without a ROTATE before it the server stopped or crashed there."""
        if file == self._file:
            return
        if self._group is not None:
            # The server crashed while it wrote the group, and so never committed it.
            self._require_undoable(self._group, "its file ends in it, because the server crashed")
            log.warning("%s: %s ends inside a transaction that was never committed", self._source, self._file)
            self.trace = NOT_TRACED  # the server may cut off what it never committed
            yield from self._drop(self._group)
        yield self._close(file)

    def _close(self, next_file: str = "") -> Block:
        """Ends the block; the next one begins where it ended."""
        block = self.builder.build(next_file, lambda name, error, begin: self._isolates(name, error, f"{begin}"))
        learned = () if self._past else self._tables.learned()
        block = replace(block, isolated=dict(self._tables.isolated), definitions=learned, format_crc=self.format_crc)
        self.builder = BlockBuilder(self._source, block.end, self.builder)
        if next_file:
            self._file = next_file
            self._end = FIRST_OFFSET
            self.trace = NOT_TRACED
            self.format_crc = 0
        return block

    def _rotate(self, event: Event) -> Iterable[Block]:
        self._pass_outside(event)
        return (self._close(parse_rotate(event).file),)

    def _pass_outside(self, event: Event) -> Iterable[Block]:
        if self._group is not None:
            raise faults.grammar(
                f"{type_name(event.header.type)} stands in the one that began at {self._group.start}",
                self._where(event),
            )
        return self._pass_alone(event)

    def _pass_alone(self, event: Event) -> Iterable[Block]:
        self.builder.add(EntryKind.PASSED, self._end, seq=self._seq(event), commit_ts_us=0, events=1, trace=self.trace)
        return ()

    def _pass_unread(self, event: Event) -> Iterable[Block]:
        """An event that was accepted: on its own, the only one of its group, or one of several."""
        return self._pass_alone(event) if self._group is None else self._single(self._group)

    # OrdinaryTransactions

    def _begin(self, event: Event, gtid: str, commit_ts_us: int) -> _Group:
        if self._group is not None:
            raise faults.grammar(
                f"a transaction begins while the one that began at {self._group.start} is open", self._where(event)
            )
        # Before MySQL 8 the log knows whole seconds only, as MariaDB does.
        moment = commit_ts_us or event.header.timestamp * 1_000_000
        seq = self._seq(event)
        self._group = _Group(
            event.start, seq, gtid, moment, SpillableChanges(self._spill_files), undone=seq in self._undone
        )
        return self._group

    def _begin_mysql(self, event: Event) -> Iterable[Block]:
        """The short way reads what every transaction of MySQL 8 and later has at fixed places, and nothing else."""
        body = event.body
        code = event.header.type
        if code == EventType.GTID_TAGGED or len(body) < _GTID_HEAD.size or body[25] != _LOGICAL_TIMESTAMPS:
            gtid = parse_gtid(event)
            self._begin(event, gtid.text, gtid.immediate_commit_ts_us)
            return ()
        sid, number, low, middle, high = _GTID_HEAD.unpack_from(body)
        name = ""
        if code == EventType.GTID:
            if sid not in self._sids:
                self._sids[sid] = str(UUID(bytes=sid))
            name = f"{self._sids[sid]}:{number}"
        self._begin(event, name, (low | middle << 32 | high << 48) & _COMMIT_TIME)
        return ()

    def _begin_mariadb(self, event: Event) -> Iterable[Block]:
        gtid = parse_mariadb_gtid(event)
        group = self._begin(event, gtid.text, 0)
        group.open = not gtid.standalone and not gtid.xa_completed
        group.xa = gtid.xa_prepared
        group.redundant = gtid.start_alter or gtid.rollback_alter
        return ()

    def _finish(self, kind: EntryKind) -> Iterable[Block]:
        """Ends the group with an entry; a transaction without captured rows is only passed, or is DDL."""
        group = self._group
        assert group is not None
        if group.undone and kind == EntryKind.TRANSACTION:
            raise faults.grammar("it is committed, and was rolled back when it was read before", self._where_of(group))
        self._group = None
        rows = group.rows.pop_memory()
        if kind == EntryKind.TRANSACTION and not rows and not group.pieces:
            kind = EntryKind.DDL if group.defines else EntryKind.PASSED
        self._add(group, kind, rows, self._end)
        return (self._close(),) if kind == EntryKind.DDL else ()

    def _drop(self, group: _Group) -> Iterable[Block]:
        """Ends the group: what it held never happened, or not yet."""
        group.rows.truncate(0)
        return self._finish(EntryKind.PASSED)

    def _commit(self, event: Event) -> Blocks:
        """Ends the group; what is on the shelf leaves before, in pieces."""
        group = self._require_group(event)
        if self._past:
            yield from self._drop(group)
            return
        for rows in group.rows.pop_spilled():
            self._cut = event.start
            yield self._piece(group, rows)
        yield from self._finish(EntryKind.TRANSACTION)

    def _piece(self, group: _Group, rows: list[PendingChange]) -> Block:
        """Lets go what the group held first, as a PART."""
        self._add(group, EntryKind.PART, rows, self._cut)
        group.events = 0
        group.passed.clear()
        group.notes.clear()
        group.happened.clear()
        group.pieces += 1
        return self._close()

    def _add(self, group: _Group, kind: EntryKind, rows: list[PendingChange], end: int) -> None:
        if self._tables.isolated:
            kept = [left for held in rows if (left := held.without(self._tables.isolated)) is not None]
            group.passed[ISOLATED] += sum(map(len, rows)) - sum(map(len, kept))
            rows = kept
        self.builder.add(
            kind, end, seq=group.seq, commit_ts_us=group.commit_ts_us, events=group.events, gtid=group.gtid,
            rows=rows, trace=self.trace,
        )  # fmt: skip
        for rule, count in group.passed.items():
            self.builder.leave_out(rule, count)
        for note in group.notes:
            self.builder.note(note)
        for table, what in group.happened:
            self.builder.happened(TableEvent(table, what, group.seq, group.commit_ts_us, self._place(group)))

    def _table_map(self, event: Event) -> Iterable[Block]:
        group = self._require_group(event)
        if self._past and not group.xa:
            group.maps[event.body[:6]] = None
            return ()
        try:
            use = self._tables.use(event, mariadb=self.mariadb, place=self._placed(group))
        except (DataAtRisk, Refused) as error:
            if not self._isolates(table_name(event), error, self._place(group)):
                raise
            use = self._tables.use(event, mariadb=self.mariadb)
        table_id = event.body[:6]
        group.maps[table_id] = use
        if use is None and self._tables.is_isolated(event.body):
            group.isolated.add(table_id)
        return ()

    def _rows(self, event: Event) -> Iterable[Block]:
        group = self._require_group(event)
        ordinal = group.ordinal
        group.ordinal += 1
        try:
            use = group.maps[event.body[:6]]
        except KeyError:
            rows = parse_rows(plain(event))
            if rows.table_id == DUMMY_TABLE_ID and not rows.images:
                return ()
            raise faults.inside_transaction(event, self._where(event)) from None
        if use is None:
            group.passed[ISOLATED if event.body[:6] in group.isolated else NOT_INCLUDED] += 1
            return ()
        try:
            held = PendingRows.from_event(use, parse_rows(plain(event)), ordinal)
        except (DataAtRisk, Refused) as error:
            if not self._isolates((use.schema.database, use.schema.table), error, self._place(group)):
                raise
            group.passed[ISOLATED] += 1
            return ()
        return self._hold(group, held)

    def _hold(self, group: _Group, held: PendingChange) -> Iterable[Block]:
        if group.undone or (self._past and not group.xa):
            return ()
        group.rows.append(held)
        if group.rows.memory_bytes < self.block_bytes:
            return ()
        if group.xa or group.marks:
            group.rows.spill()
            return ()
        return (self._piece(group, group.rows.pop_memory()),)

    def _payload(self, event: Event) -> Blocks:
        self._require_group(event)
        self._cut = event.start
        for inner in payload_events(event):
            yield from self._dispatch(inner)

    # Statements

    def _query(self, event: Event) -> Iterable[Block]:
        if event.body.endswith(b"\0BEGIN"):
            self._require_group(event).open = True
            return ()
        code = event.header.type
        if code == EventType.MARIADB_QUERY_COMPRESSED:
            event = plain(event)
        elif code == EventType.EXECUTE_LOAD_QUERY:
            # A QUERY whose post-header of 13 bytes is followed by 13 more: file id, where its name lies, duplicates.
            event = Event(event.header, event.body[:13] + event.body[26:], event.file, event.start)
        query = parse_query(event)
        statement = classify(
            query.sql, query.database, client_collation=query.client_collation, sql_mode=query.sql_mode,
            lower_case=self.lower_case, temporary=bool(event.header.flags & _FLAG_THREAD_SPECIFIC),
        )  # fmt: skip
        words = ""
        if statement.action in _SHOWN_ACTIONS:
            words = shown(statement, query.sql, client_collation=query.client_collation, sql_mode=query.sql_mode)
        return self._statement(event, statement, query, words)

    def _statement(self, event: Event, statement: Statement, query: Query, words: str) -> Iterable[Block]:
        group = self._require_group(event)
        action = statement.action
        if action in (Action.BEGIN, Action.XA_START):
            group.open = True
            group.xa = action == Action.XA_START
        elif action == Action.COMMIT:
            return self._commit(event)
        elif action == Action.ROLLBACK:
            self._require_undoable(group, "it was rolled back")
            return self._drop(group)
        elif action == Action.SAVEPOINT:
            group.marks.pop(statement.name, None)
            group.marks[statement.name] = len(group.rows)
        elif action == Action.ROLLBACK_TO:
            self._cut_back(event, group, statement.name)
        elif action == Action.XA_END:
            pass
        elif action == Action.XA_COMMIT:
            group.rows = self._prepared(event, statement.name)
            return self._commit(event)
        elif action == Action.XA_ROLLBACK:
            group.rows = self.prepared.pop(statement.name, group.rows)
            return self._drop(group)
        elif action == Action.DATA:
            self._data(event, group, statement, query, words)
            return self._single(group)
        elif action == Action.DEFINITION:
            return self._define(event, group, statement, query, words)
        elif action == Action.HARMLESS:
            return self._single(group)
        else:
            self._unknown(event, group, statement, words)
            return self._single(group)
        return ()

    def _define(self, event: Event, group: _Group, statement: Statement, query: Query, words: str) -> Blocks:
        if statement.queries:
            self._data(event, group, replace(statement, tables=()), query, words)
        if not group.redundant:
            yield from self._definition(event, group, statement, words)
        yield from self._single(group)

    def _single(self, group: _Group) -> Iterable[Block]:
        """A statement outside BEGIN is a group of its own."""
        if not group.open:
            return self._finish(EntryKind.DDL if group.defines else EntryKind.PASSED)
        return ()

    def _cut_back(self, event: Event, group: _Group, savepoint: str) -> None:
        mark = group.marks.get(savepoint)
        if mark is None:
            raise faults.grammar(f"ROLLBACK TO {savepoint!r}, which was not set in it", self._where(event))
        group.rows.truncate(mark)
        names = list(group.marks)
        for later in names[names.index(savepoint) + 1 :]:
            del group.marks[later]

    def _definition(self, event: Event, group: _Group, statement: Statement, words: str) -> Iterable[Block]:
        """DDL: forget what we know of its tables; judge what it did to rows."""
        tables, where, place = statement.tables, self._where(event), self._placed(group)
        if statement.database:
            tables = self._tables.of_database(statement.database)
        change = self._tables.change(statement, tables or (), place, group.commit_ts_us)
        lived = self._tables.lived(statement, place)
        cascades = statement.cascades and not self.cascades_logged
        truncated = None if cascades else self._truncated(statement, lived)
        self._tables.redefined(tables, place, change)
        captured = None if tables is None else [f"{d}.{t}" for d, t in tables if self._tables.captures(d, t)]
        if statement.database and statement.unlogged:
            # Which tables the database had is not in the log, and the server does not know it any more.
            each = statement.database + EACH_TABLE
            if self._tables.captures(statement.database, _SOME_TABLE):
                captured = [each]
            elif not captured:
                group.notes.append(f"{statement.verb} {statement.database} at {where}: of its tables none is known")
                group.happened.append((each, Happened.UNLOGGED))
        if captured == []:
            return ()
        group.defines = True
        if truncated is not None:
            group.ordinal += 1
            return self._hold(group, PendingTruncate(truncated, self._file, event.start, group.ordinal - 1))
        names = "unknown tables" if captured is None else ", ".join(captured)
        why = statement.unlogged or ("which tables it touches cannot be told" if captured is None else "")
        if not why and cascades:
            why = "by its foreign key this server changes rows from here on that it does not log"
        if not why and lived:
            why = "the rows of an earlier table of that name are still staged and in the targets"
        if (what := _happened(statement, why)) is not None:
            group.happened += [(name, what) for name in ([ANY_TABLE] if captured is None else captured)]
        if not why and (emptied := [column for columns in change.emptied.values() for column in columns]):
            why = f"{', '.join(emptied)} was there before: rows that do not change from here on lose its old values"
        if not why:
            log.info("%s: the definition of %s changed at %s: %s", self._source, names, where, words)
            if self._policy.on_definition == "note":
                group.notes.append(f"the definition of {names} changed at {where}: {words}")
            if statement.verb in ("DROP TABLE", "DROP DATABASE"):
                group.notes.append(f"{names} dropped on the source at {where}; the rows stay in the targets")
        elif self._policy.on_unlogged_change == "stop":
            self._stop(event, faults.unlogged_change(statement.verb, names, why, words, where), captured or ())
        else:
            log.warning("%s: needs re-sync of table %s: %s, at %s", self._source, names, why, where)
            group.notes.append(f"needs re-sync of table {names}: {why}, at {where}: {words}")
        return ()

    def _truncated(self, statement: Statement, lived: bool) -> TableSchema | None:
        """The definition of the captured table that a TRUNCATE empties, where that is to be staged; or that is empty
        because it is created again."""
        replaced = statement.verb == "CREATE OR REPLACE TABLE"
        empties = statement.verb == "TRUNCATE" or lived or replaced
        if not empties or self._policy.on_truncate != "stage" or statement.tables is None or statement.queries:
            return None
        (name,) = statement.tables
        return self._tables.definition(name) if self._tables.captures(*name) else None

    def _data(self, event: Event, group: _Group, statement: Statement, query: Query, words: str) -> None:
        """DML as a statement: what it did to rows is not in the log."""
        if self._past:
            return
        refused = faults.statement_dml(words, self._where(event))
        captured = tuple(table for table in statement.tables or () if self._tables.captures(*table))
        effect = self._effects(statement, _updated_databases(query), self._after())
        self._leave_out_or_stop(event, group, Effect(tuple({*effect.tables, *captured}), effect.unknown), refused)
        group.passed[STATEMENT_PASSED] += 1

    def _unknown(self, event: Event, group: _Group, statement: Statement, words: str) -> None:
        """It passes only where it names what is there, and no captured table can be meant."""
        if self._past:
            return
        where = self._where(event)
        effect = self._effects(statement, None, self._after())
        if effect.tables or effect.unknown:
            self._leave_out_or_stop(event, group, effect, faults.unknown_statement(words, where))
            self._tables.redefined(None, self._placed(group), Change())
        else:
            log.warning("%s: passed a statement that Lockstep does not know, at %s: %s", self._source, where, words)
            group.notes.append(f"a statement that Lockstep does not know names no captured table, at {where}: {words}")

    def _leave_out_or_stop(self, event: Event, group: _Group, effect: Effect, error: LockstepError) -> None:
        """Isolates what a statement may have changed, where the pipeline says so and all of it is known."""
        captured = tuple(table for table in sorted(effect.tables) if self._tables.captures(*table))
        if not captured and not effect.unknown:
            return
        if effect.unknown and not self._accepts(event):
            error = type(error)(
                f"{error.what} Which captured tables it changed cannot be told: {effect.unknown}.",
                where=error.where, code=error.code, remedy=error.remedy,
            )  # fmt: skip
        if effect.unknown or self._accepts(event):
            self._stop(event, error, [".".join(table) for table in captured] if not effect.unknown else ())
            return
        for table in captured:
            if not self._isolates(table, error, self._place(group)):
                self._stop(event, error, [".".join(one) for one in captured])
                return

    def _after(self) -> Position:
        return Position(self.builder.begin.timeline, self._file, self._end)

    # What an operator accepts

    def _place_of(self, event: Event) -> tuple[str, int]:
        """Of an event in a compressed transaction: where that one begins."""
        outer = event if event.start >= 0 or self._outermost is None else self._outermost
        return outer.file, outer.start

    def _accepts(self, event: Event) -> bool:
        file, offset = self._place_of(event)
        return any((one.file, one.offset) == (file, offset) for one in self._pending)

    def _stop(self, event: Event, error: LockstepError, tables: Iterable[str] = ()) -> None:
        """Raises the error with the way past this place, unless an operator has accepted it: then it is noted.

        tables: captured ones that may have changed; none named: any may have.
        """
        if self._past:
            return
        file, offset = self._place_of(event)
        if not self._accepts(event):
            remedy = f"{error.remedy}. Or accept this place, once you know what it changed: "
            remedy += f"{self._accept_by} {file}:{offset}"
            raise type(error)(error.what, where=error.where, code=error.code, remedy=remedy) from None
        self.accepted.add((file, offset))
        touched = list(tables)
        names = ", ".join(touched) or "any captured table"
        note = f"needs re-sync of table {names}: {faults.accepted_at(file, offset)}: {error.what} ({error.code})"
        log.warning("%s: %s", self._source, note)
        changed = touched or [ANY_TABLE]
        if self._group is None:
            self.builder.note(note)
            moment, place = event.header.timestamp * 1_000_000, f"{file}:{offset}"
            for table in changed:
                self.builder.happened(TableEvent(table, Happened.UNLOGGED, self._seq(event), moment, place))
        else:
            self._group.notes.append(note)
            self._group.happened += [(table, Happened.UNLOGGED) for table in changed]

    def _require_used(self) -> None:
        """An event that was to be accepted and is passed must have been one that stops."""
        while self._pending and (first := self._pending[0]) < self._after():
            if (first.file, first.offset) not in self.accepted:
                raise faults.nothing_to_accept(f"{self._source}, {first.file}:{first.offset}")
            self._pending.pop(0)

    # XA

    def _prepare(self, event: Event) -> Iterable[Block]:
        group = self._require_group(event)
        prepared = parse_xa_prepare(event)
        if prepared.one_phase:
            return self._commit(event)
        if sum(pile.memory_bytes for pile in self.prepared.values()) + group.rows.memory_bytes >= self.block_bytes:
            group.rows.spill()
        self.prepared[prepared.xid.text], group.rows = group.rows, SpillableChanges(self._spill_files)
        return self._drop(group)

    def _prepared(self, event: Event, xid: str) -> SpillableChanges:
        """What an XA COMMIT commits."""
        if xid not in self.prepared and self._find_prepared is not None:
            self.prepared = {**self._find_prepared(), **self.prepared}
            self._find_prepared = None
        found = self.prepared.pop(xid, None)
        if found is None and not self._past:
            self._stop(event, faults.xa_unknown(xid, self._where(event)))
        return found or SpillableChanges(self._spill_files)

    # What must hold

    def _isolates(self, name: Name, error: LockstepError, since: str) -> bool:
        """Leaves a table out from now on, where the pipeline says so: what it holds of the open group goes too."""
        if self._policy.on_unreadable == "stop":
            return False
        log.error("%s: table %s is isolated since %s and needs re-sync: %s", self._source, ".".join(name), since, error)
        self._tables.isolate(name, f"since {since}: {error.what} ({error.code})")
        return True

    def leave_out(self, name: Name, error: LockstepError) -> None:
        """Isolates a table from here on, or raises the error, as the pipeline says."""
        if not self._isolates(name, error, f"{self.place.behind}"):
            raise error

    @property
    def place(self) -> Place:
        """Behind the last event that was fed."""
        behind = Position(self.builder.begin.timeline, self._file, self._end)
        return Place(behind.seq, behind)

    def _placed(self, group: _Group) -> Place:
        return Place(group.seq, Position(self.builder.begin.timeline, self._file, self._end))

    def _place(self, group: _Group) -> str:
        return f"{Position(self.builder.begin.timeline, self._file, group.start)}"

    def _seq(self, event: Event) -> int:
        return Position(self.builder.begin.timeline, event.file, event.start).seq

    def _where(self, event: Event) -> str:
        file, offset = self._place_of(event)
        return f"{self._source}, {file}:{offset}"

    def _require_group(self, event: Event) -> _Group:
        if self._group is None:
            raise faults.inside_transaction(event, self._where(event))
        return self._group

    def _require_undoable(self, group: _Group, why: str) -> None:
        if group.pieces:
            self._undone.add(group.seq)
            raise faults.undone_after_parts(why, self._where_of(group))

    def _where_of(self, group: _Group) -> str:
        return f"{self._source}, {self._file}:{group.start}"


def _updated_databases(query: Query) -> frozenset[str] | None:
    """In which alone the statement changed anything; None where the event does not say."""
    names = query.status.get(_UPDATED_DATABASES, b"")
    return frozenset(name.decode("utf-8", "surrogateescape") for name in names.split(b"\0")) if names else None


def _happened(statement: Statement, unlogged: str) -> Happened | None:
    """What a definition did to the rows of the tables that it names."""
    if unlogged:
        return Happened.UNLOGGED
    if statement.verb == "CREATE TABLE":
        return Happened.CREATED_IF_ABSENT if statement.guarded else Happened.CREATED
    return Happened.DROPPED if statement.verb in ("DROP TABLE", "DROP DATABASE") else None
