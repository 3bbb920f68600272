"""Assembles transactions: from raw events to the entries of the open block. Does no I/O itself.

`transaction_grammar` says which events a group consists of, and where each event leads; the methods here are its steps.
What each group turns into:
  committed                -> TRANSACTION; without captured rows DDL, or UNCAPTURED
  a statement by itself    -> DDL, or UNCAPTURED without captured tables
  rolled back              -> UNCAPTURED: what it held never happened
  XA PREPARE               -> UNCAPTURED; its rows are kept by xid until the XA COMMIT or XA ROLLBACK of that xid, a
                              group of its own: they are part of that one's entry
SAVEPOINT and ROLLBACK TO cut back the rows of an open group. A group that grows too large leaves in pieces (PART); the
part of it that may still be undone waits in files. Pieces that come out of one event (a payload, a commit of what was
in files) have no positions of their own: they end where that event begins, so that all but the first have no bytes.
It must keep true that every event goes into an entry or raises, and that no unknown event is skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from cdc_core.binlog.compressed import MARIADB_COMPRESSED, payload_events
from cdc_core.binlog.event_headers import Event, EventType, parse_rotate, parse_xa_prepare, type_name
from cdc_core.binlog.fragments import RowFragments
from cdc_core.binlog.gtid import parse_gtid, parse_mariadb_gtid
from cdc_core.binlog.rows_event import ROW_EVENTS
from cdc_core.errors import LockstepError
from cdc_core.model.block import Block, EntryKind
from cdc_core.model.coverage import ANY_TABLE, Happened, TableEvent
from cdc_core.model.position import Position
from cdc_core.model.schema import TableName
from cdc_core.source.host import source_faults
from cdc_core.source.schemas.table_registry import TableRegistry
from cdc_core.source.sql.logged_statement import NO_STATEMENT, QUERIES, LoggedStatement, ServerDialect, read_statement
from cdc_core.source.sql.statement_classes import Action
from cdc_core.source.sql.statement_judge import StatementJudge
from cdc_core.source.transactions.block_builder import NOT_INCLUDED, BlockBuilder
from cdc_core.source.transactions.open_block import Blocks, OpenBlock
from cdc_core.source.transactions.open_group import OpenGroup
from cdc_core.source.transactions.pending_changes import (
    MappedTable,
    PendingChange,
    PendingRowEvents,
    PendingTruncate,
)
from cdc_core.source.transactions.prepared_transactions import PreparedTransactions
from cdc_core.source.transactions.reading_place import BEGINS, NOT_TRACED, ReadingPlace, Trace
from cdc_core.source.transactions.row_intake import RowIntake
from cdc_core.source.transactions.spilled_changes import SpillableChanges, SpillFiles
from cdc_core.source.transactions.transaction_grammar import GRAMMAR, GroupState, Mark, Meaning, Step

log = logging.getLogger(__name__)

_FILE_EVENTS = frozenset({
    EventType.FORMAT_DESCRIPTION, EventType.PREVIOUS_GTIDS, EventType.STOP, EventType.MARIADB_GTID_LIST,
    EventType.MARIADB_BINLOG_CHECKPOINT, EventType.MARIADB_START_ENCRYPTION,
})  # fmt: skip
_ASIDE = frozenset({
    EventType.ROWS_QUERY, EventType.MARIADB_ANNOTATE_ROWS, EventType.INTVAR, EventType.RAND, EventType.USER_VAR,
    EventType.BEGIN_LOAD_QUERY, EventType.APPEND_BLOCK, EventType.DELETE_FILE, EventType.TRANSACTION_CONTEXT,
    EventType.VIEW_CHANGE,
})  # fmt: skip
"""They accompany a statement or its rows, and are judged by that statement or row event."""
_MYSQL_GTIDS = BEGINS - {EventType.MARIADB_GTID}
_FRAGMENT = EventType.MARIADB_PARTIAL_ROW_DATA
_READ_WHEN_WANTED = ROW_EVENTS | MARIADB_COMPRESSED | {EventType.TRANSACTION_PAYLOAD} | _ASIDE
_COMPRESSED_ROWS = MARIADB_COMPRESSED - {EventType.MARIADB_QUERY_COMPRESSED}


class TransactionAssembler:
    """Feed it events in order; each returns the blocks that it completes. place: after the last event that was fed.

    judge:       of statements. One of the past: this assembler searches the past for prepared XA transactions, and
                 reads nothing of others.
    prepared:    XA transactions that were prepared but not ended before this stream began, by xid; asked at most once.
                 None: there are none.
    block_bytes: a block is closed, and an open group leaves in pieces, at about this size.
    undone:      order keys of groups that were rolled back after pieces of them had left. The caller that dropped those
                 pieces feeds the log again from before the group: then the group holds nothing.
    """

    def __init__(
        self,
        source: str,
        begin: Position,
        tables: TableRegistry,
        judge: StatementJudge,
        *,
        prepared: Callable[[], Mapping[str, SpillableChanges]] | None,
        block_bytes: int,
        undone: set[int] | None = None,
    ) -> None:
        self.dialect = ServerDialect()
        self.prepared = PreparedTransactions(prepared)
        self._source = source
        self._tables = tables
        self._past = judge.past
        self.place = ReadingPlace(source, begin)
        self.cascades = judge.cascades
        self.judge = judge
        self.intake = RowIntake(tables, judge, self.place)
        self.block = OpenBlock(BlockBuilder(source, begin), self.place, tables, judge, limit_bytes=block_bytes)
        self._undone = set() if undone is None else undone
        self._group: OpenGroup | None = None
        self._spill_files = SpillFiles()
        self._handlers = self._table_of_handlers()
        self._steps = self._table_of_steps()

    def feed(self, event: Event) -> Blocks:
        """Takes one event of the log, or the artificial ROTATE that names the file of the next ones. The event is fed
        only once the returned blocks are exhausted."""
        if event.start < 0:
            yield from self._switch(event)
            return
        self.place.read(event)
        if self._group is not None:
            self._group.events += 1
        yield from self._dispatch(event)
        yield from self.block.close_full()

    @property
    def between_groups(self) -> bool:
        """Whether no group is open: the next event may begin one."""
        return self._group is None

    @property
    def inside(self) -> tuple[int, int] | None:
        """For an open group of several statements: its next row event's ordinal, and how much it may still hold before
        a piece of it leaves or is spilled. None where no such group is open."""
        group = self._group
        if group is None or not group.state.goes_on or group.fragments is not None:
            return None
        return group.ordinal, self.block.limit_bytes - group.rows.memory_bytes

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
        """Takes the next `events` of the open group, up to `end`: table maps, which result in `maps` by id, and row
        events, of captured tables or of others (left_out). ordinal: the next row event's."""
        group = self._group
        assert group is not None
        self.place.advance(end, trace)
        group.events += events
        group.ordinal = ordinal
        group.maps.update(maps)
        if left_out:
            group.left_out[NOT_INCLUDED] += left_out
        if len(rows):
            yield from self._hold(group, rows)

    def rewind(self) -> Position | None:
        """Drops the open group; call it after the block is flushed. Returns where its events, to be fed again, begin;
        None where pieces of it have already left."""
        if self._group is not None:
            if self._group.pieces:
                return None
            self._group.rows.truncate(0)
        self._group = None
        self.place.advance(self.block.builder.end, NOT_TRACED)
        return self.block.builder.begin

    def discard(self) -> None:
        """Drops the entries of complete groups: for a search of the past that is about `prepared` only."""
        if self._group is None:
            self.block.builder.restart(self.place.after)

    def _dispatch(self, event: Event) -> Iterable[Block]:
        if self._group is not None and self._group.fragments is not None and event.header.type != _FRAGMENT:
            raise source_faults.grammar(
                f"{type_name(event.header.type)} comes between fragments of a row event", self.place.where(event)
            )
        handler = self._handlers.get(event.header.type)
        if handler is None:
            return self._stop(event, source_faults.unknown_event(event, self.place.where(event)))
        return handler(event if event.header.type in _READ_WHEN_WANTED else event.whole())

    def _table_of_handlers(self) -> dict[int, Callable[[Event], Iterable[Block]]]:
        """The handler of each event type. A type that is not here is unknown, and stops the stream."""
        handlers: dict[int, Callable[[Event], Iterable[Block]]] = {
            EventType.TABLE_MAP: self._table_map,
            EventType.XID: lambda event: self._advance(event, Action.COMMIT),
            EventType.MARIADB_GTID: self._begin_mariadb,
            _FRAGMENT: self._fragment,
            EventType.TRANSACTION_PAYLOAD: self._payload,
            EventType.XA_PREPARE: self._prepare,
            EventType.ROTATE: self._rotate,
            EventType.INCIDENT: self._incident,
        }
        for types, handler in (
            (ROW_EVENTS | _COMPRESSED_ROWS, self._rows),
            (QUERIES, self._query),
            (_MYSQL_GTIDS, self._begin_mysql),
            (_ASIDE, self._aside),
            (_FILE_EVENTS, lambda event: self._advance(event, Mark.OF_FILE)),
        ):
            handlers |= dict.fromkeys((int(code) for code in types), handler)
        return {int(code): handler for code, handler in handlers.items()}

    def _incident(self, event: Event) -> Iterable[Block]:
        return self._stop(event, source_faults.incident(event, self.place.where(event)))

    def _stop(self, event: Event, error: LockstepError) -> Iterable[Block]:
        """Raises the error, unless an operator has accepted that the event is skipped unread."""
        at = self.place.at(event)
        if self._group is not None:
            self.judge.stop(error, at, self._group)
        elif note := self.judge.require_accepted(error, at, "any captured table"):
            self.block.builder.note(note)
            moment, place = event.header.timestamp * 1_000_000, f"{at.file}:{at.offset}"
            self.block.builder.happened(TableEvent(ANY_TABLE, Happened.UNLOGGED, self.place.seq(event), moment, place))
        return self._advance(event, Mark.ACCEPTED)

    # The grammar

    def _table_of_steps(self) -> dict[Step, Callable[[Event, LoggedStatement], Iterable[Block]]]:
        """Each step of the grammar but BEGIN and CHANGE, which the handlers of their events take themselves."""
        return {
            Step.NOTHING: lambda event, logged: (),
            Step.ADD_ENTRY: self._add_entry,
            Step.COMMIT: self._commit,
            Step.COMMIT_PREPARED: self._commit_prepared,
            Step.DROP: self._roll_back,
            Step.DROP_PREPARED: self._roll_back_prepared,
            Step.DROP_UNFINISHED: self._drop_unfinished,
            Step.KEEP_PREPARED: self._keep_prepared,
            Step.SET_SAVEPOINT: self._set_savepoint,
            Step.UNDO_TO_SAVEPOINT: self._undo_to_savepoint,
            Step.JUDGE_DEFINITION: self._judge_definition,
            Step.JUDGE_ROWS: self._judge_rows,
        }

    def _next(self, event: Event, seen: Meaning) -> tuple[GroupState, Step]:
        """Where an event leads. Raises DataAtRisk (source.bad_position, source.log_damaged) for one that is not
        allowed here."""
        group = self._group
        found = GRAMMAR.get((GroupState.NONE if group is None else group.state, seen))
        if found is not None:
            return found
        if group is None:
            raise source_faults.inside_transaction(event, self.place.where(event))
        raise source_faults.grammar(
            f"{seen.value} ({type_name(event.header.type)}) comes in the one that began at {group.start}, which "
            f"{group.state.value}",
            self.place.where(event),
        )

    def _advance(self, event: Event, seen: Meaning, logged: LoggedStatement = NO_STATEMENT) -> Blocks:
        """Takes the step of an event; then the group is in its next state, or has ended."""
        state, step = self._next(event, seen)
        yield from self._steps[step](event, logged)
        if self._group is None:
            return
        self._group.state = state
        if state is GroupState.NONE:
            # A statement by itself: DDL stays DDL even if it contains a row, which is that of a TRUNCATE.
            ddl = self._group.without_rows == EntryKind.DDL
            yield from self._finish(self._group, EntryKind.DDL if ddl else EntryKind.TRANSACTION)

    def _open(self, event: Event) -> OpenGroup:
        """The group of a row event, or of an event that comes with it. Raises as `_next`."""
        if self._group is None:
            self._next(event, Mark.CHANGE)
        # They are allowed in a group of any state, and leave its state as it is: no need to consult the grammar.
        return self._present

    @property
    def _present(self) -> OpenGroup:
        """The group of a step that the grammar has only in groups."""
        assert self._group is not None
        return self._group

    # The file

    def _switch(self, event: Event) -> Blocks:
        """The next events are in another file. Without a ROTATE before it the server stopped or crashed there."""
        file = parse_rotate(event).file
        if file != self.place.file:
            yield from self._advance(event, Mark.FILE_ENDS)
            yield self.block.close(file)

    def _rotate(self, event: Event) -> Blocks:
        yield from self._advance(event, Mark.OF_FILE)
        yield self.block.close(parse_rotate(event).file)

    def _add_entry(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        """Adds the entry of an event outside of groups."""
        place = self.place
        self.block.builder.add(
            EntryKind.UNCAPTURED, place.end, seq=place.seq(event), commit_ts_us=0, events=1, trace=place.trace
        )
        return ()

    # Groups

    def _begin(self, event: Event, opening: Mark, gtid: str, commit_ts_us: int) -> Iterable[Block]:
        seq = self.place.seq(event)
        state, _ = self._next(event, Mark.GTID_OF_UNDONE if seq in self._undone else opening)
        # Before MySQL 8 the log knows whole seconds only, as MariaDB does.
        moment = commit_ts_us or event.header.timestamp * 1_000_000
        self._group = OpenGroup(state, event.start, seq, gtid, moment, SpillableChanges(self._spill_files))
        return ()

    def _begin_mysql(self, event: Event) -> Iterable[Block]:
        gtid = parse_gtid(event)
        return self._begin(event, Mark.GTID_OF_STATEMENT, gtid.text, gtid.immediate_commit_ts_us)

    def _begin_mariadb(self, event: Event) -> Iterable[Block]:
        gtid = parse_mariadb_gtid(event)
        if gtid.xa_prepared:
            opening = Mark.GTID_OF_XA
        elif gtid.start_alter or gtid.rollback_alter:
            opening = Mark.GTID_OF_FIRST_ALTER
        else:
            single = gtid.standalone or gtid.xa_completed
            opening = Mark.GTID_OF_STATEMENT if single else Mark.GTID_OF_TRANSACTION
        return self._begin(event, opening, gtid.text, 0)

    def _finish(self, group: OpenGroup, kind: EntryKind) -> Iterable[Block]:
        """Ends the group with an entry; one without captured rows is DDL or UNCAPTURED."""
        self._group = None
        rows = group.rows.pop_memory()
        if kind == EntryKind.TRANSACTION and not rows and not group.pieces:
            kind = group.without_rows
        self.block.add(group, kind, rows, self.place.end)
        return (self.block.close(),) if kind == EntryKind.DDL else ()

    def _drop(self, group: OpenGroup) -> Iterable[Block]:
        """Ends the group: its changes never happened, or have not happened yet."""
        group.rows.truncate(0)
        return self._finish(group, EntryKind.UNCAPTURED)

    def _commit(self, event: Event, logged: LoggedStatement) -> Blocks:
        """Ends the group; changes in files leave first, in pieces."""
        group = self._present
        if self._past:
            yield from self._drop(group)
            return
        for rows in group.rows.pop_spilled():
            yield self._let_go(group, rows, event.start)
        yield from self._finish(group, EntryKind.TRANSACTION)

    def _roll_back(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        self._require_undoable(self._present, "it was rolled back")
        return self._drop(self._present)

    def _drop_unfinished(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        """The server crashed while it wrote the group, and so never committed it."""
        self._require_undoable(self._present, "its file ends in it, because the server crashed")
        log.warning(
            "%s: %s ends in the middle of a transaction that was never committed", self._source, self.place.file
        )
        self.place.trace = NOT_TRACED  # the server may cut off what it never committed
        return self._drop(self._present)

    def _set_savepoint(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        self._present.set_savepoint(logged.statement.name)
        return ()

    def _undo_to_savepoint(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        savepoint = logged.statement.name
        if not self._present.undo_to_savepoint(savepoint):
            raise source_faults.grammar(f"ROLLBACK TO {savepoint!r}, which was not set in it", self.place.where(event))
        return ()

    def _let_go(self, group: OpenGroup, rows: list[PendingChange], end: int) -> Block:
        """A block up to the first of the changes that the group held, as a PART."""
        self.block.add(group, EntryKind.PART, rows, end)
        group.piece_left()
        return self.block.close()

    # Rows

    def _aside(self, event: Event) -> Iterable[Block]:
        self._open(event)
        return ()

    def _table_map(self, event: Event) -> Iterable[Block]:
        self.intake.map_table(self._open(event), event, mariadb=self.dialect.mariadb)
        return ()

    def _rows(self, event: Event) -> Iterable[Block]:
        group = self._open(event)
        pending = self.intake.take(group, event)
        return () if pending is None else self._hold(group, pending)

    def _fragment(self, event: Event) -> Iterable[Block]:
        group = self._open(event)
        group.fragments = group.fragments or RowFragments()
        rows = group.fragments.add(event)
        if rows is None:
            return ()
        group.fragments = None
        if rows.header.type not in ROW_EVENTS | _COMPRESSED_ROWS:
            return self._stop(event, source_faults.unknown_event(rows, self.place.where(event)))
        return self._rows(rows)

    def _hold(self, group: OpenGroup, pending: PendingChange) -> Iterable[Block]:
        if group.state is GroupState.UNDONE or (self._past and group.state is not GroupState.XA):
            return ()
        group.rows.append(pending)
        if group.rows.memory_bytes < self.block.limit_bytes:
            return ()
        if group.undoable:
            group.rows.spill()
            return ()
        return (self._let_go(group, group.rows.pop_memory(), self.place.cut),)

    def _payload(self, event: Event) -> Blocks:
        self._open(event)
        self.place.cut = event.start
        for inner in payload_events(event):
            yield from self._dispatch(inner)

    # Statements

    def _query(self, event: Event) -> Iterable[Block]:
        logged = read_statement(event, self.dialect)
        return self._advance(event, logged.statement.action, logged)

    def _judge_definition(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        group = self._present
        truncated = self.judge.define(group, logged, self.place.at(event))
        if truncated is None:
            return ()
        pending = PendingTruncate(truncated, self.place.file, event.start, group.ordinal)
        group.ordinal += 1
        return self._hold(group, pending)

    def _judge_rows(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        self.judge.judge_rows(self._present, logged, self.place.at(event))
        return ()

    # XA

    def _prepare(self, event: Event) -> Iterable[Block]:
        one_phase = parse_xa_prepare(event).one_phase
        return self._advance(event, Action.COMMIT if one_phase else Mark.PREPARE)

    def _keep_prepared(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        group, xid = self._present, parse_xa_prepare(event).xid.text
        if self.prepared.memory_bytes + group.rows.memory_bytes >= self.block.limit_bytes:
            group.rows.spill()
        self.prepared.keep(xid, group.rows, group.cascades)
        group.rows = SpillableChanges(self._spill_files)
        return self._drop(group)

    def _commit_prepared(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        group, xid = self._present, logged.statement.name
        if len(group.rows):
            raise source_faults.grammar(
                f"XA COMMIT {xid} comes in one that has rows of its own", self.place.where(event)
            )
        changes, cascades = self.prepared.commit(xid)
        # What one that was prepared before this stream began has done to tables that are not captured is unknown.
        group.cascaded(self.cascades.unread(self._tables.captures) if cascades is None else cascades)
        if changes is not None:
            group.rows = changes
        elif not self._past:
            self.judge.stop(source_faults.xa_unknown(xid, self.place.where(event)), self.place.at(event), group)
        return self._commit(event, logged)

    def _roll_back_prepared(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        self.prepared.roll_back(logged.statement.name)
        return self._roll_back(event, logged)

    # Places

    def leave_out(self, name: TableName, error: LockstepError) -> None:
        """Isolates a table from here on, or raises the error, as the pipeline says."""
        if not self.judge.isolates(name, error, f"{self.place.after}"):
            raise error

    def _require_undoable(self, group: OpenGroup, why: str) -> None:
        if group.pieces:
            self._undone.add(group.seq)
            raise source_faults.undone_after_parts(why, f"{self._source}, {self.place.file}:{group.start}")
