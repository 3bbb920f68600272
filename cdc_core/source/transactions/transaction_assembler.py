"""Assembles transactions: from raw events to the block that is being built. Does no I/O itself.

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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace

from cdc_core.binlog.compressed import MARIADB_COMPRESSED, payload_events
from cdc_core.binlog.event_headers import (
    TRACE_BYTES,
    Event,
    EventType,
    crc_of,
    folded,
    parse_rotate,
    parse_xa_prepare,
    type_name,
)
from cdc_core.binlog.gtid import parse_gtid_head, parse_mariadb_gtid
from cdc_core.binlog.rows_event import ROW_EVENTS
from cdc_core.errors import LockstepError
from cdc_core.model.block import NO_TRACE, Block, EntryKind
from cdc_core.model.coverage import ANY_TABLE, Happened, TableEvent
from cdc_core.model.position import Position
from cdc_core.source.host import source_faults
from cdc_core.source.schemas.cascades import Cascades
from cdc_core.source.schemas.definition_history import LogPoint
from cdc_core.source.schemas.table_registry import TableRegistry
from cdc_core.source.sql.accepted_places import AcceptedPlaces
from cdc_core.source.sql.capture_policy import CapturePolicy
from cdc_core.source.sql.logged_statement import NO_STATEMENT, QUERIES, LoggedStatement, read_statement
from cdc_core.source.sql.statement_classes import Action, Statement
from cdc_core.source.sql.statement_judge import StatementJudge
from cdc_core.source.sql.statement_reach import Reach
from cdc_core.source.transactions.block_builder import (
    ISOLATED,
    NOT_INCLUDED,
    NOT_TRACED,
    BlockBuilder,
    OrdinaryTransactions,
    Trace,
)
from cdc_core.source.transactions.open_group import OpenGroup
from cdc_core.source.transactions.pending_changes import (
    MappedTable,
    Name,
    PendingChange,
    PendingRowEvents,
    PendingTruncate,
)
from cdc_core.source.transactions.prepared_transactions import PreparedTransactions
from cdc_core.source.transactions.reading_place import ReadingPlace
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
Blocks = Generator[Block, None, None]
"""The blocks that an event completes; each leaves before the rest of the event is read."""
_MYSQL_GTIDS = frozenset({EventType.GTID, EventType.ANONYMOUS_GTID, EventType.GTID_TAGGED})
_BEGINS = _MYSQL_GTIDS | {EventType.MARIADB_GTID}
_READ_WHEN_WANTED = ROW_EVENTS | MARIADB_COMPRESSED | {EventType.TRANSACTION_PAYLOAD} | _ASIDE
_COMPRESSED_ROWS = MARIADB_COMPRESSED - {EventType.MARIADB_QUERY_COMPRESSED}


class TransactionAssembler:
    """Feed it events in order; each returns the blocks that it completes.

    reach:       which captured tables a statement may change (statement_reach.StatementReach.of).
    accepted:    positions that would stop the stream, which an operator accepts.
    prepared:    XA transactions that were prepared but not ended before this stream began, by xid; asked at most once.
                 None: this assembler searches the past for just those and reads nothing of other transactions.
    cascades:    what foreign keys change that the log does not have; None: nothing.
    block_bytes: a block is closed, and an open group leaves in pieces, at about this size.
    undone:      order keys of groups that were rolled back after pieces of them had left. The caller that dropped those
                 pieces feeds the log again from before the group: then the group holds nothing.
    """

    def __init__(
        self,
        source: str,
        begin: Position,
        tables: TableRegistry,
        policy: CapturePolicy,
        *,
        reach: Callable[[Statement, frozenset[str] | None, Position], Reach],
        prepared: Callable[[], Mapping[str, SpillableChanges]] | None,
        block_bytes: int,
        cascades: Cascades | None = None,
        undone: set[int] | None = None,
        accepted: AcceptedPlaces | None = None,
    ) -> None:
        self.mariadb = False
        self.lower_case = False
        """Whether the server compares names of tables in lower case."""
        self.format_crc = 0
        """Of the file of the next event; 0 while it is unknown."""
        self.builder = BlockBuilder(source, begin)
        self.prepared = PreparedTransactions(prepared)
        self._source = source
        self._tables = tables
        self._accepted = AcceptedPlaces(source, begin.timeline) if accepted is None else accepted
        self._past = prepared is None
        self._place = ReadingPlace(source, begin)
        self.cascades = cascades or Cascades(tables.captures, tuple, lambda: begin, lambda: 0, lambda: None)
        self.judge = StatementJudge(
            source, tables, policy, reach, self._accepted, cascades=self.cascades, past=self._past
        )
        self.intake = RowIntake(tables, self.judge, self.cascades, self._place, past=self._past)
        self._undone = set() if undone is None else undone
        self.block_bytes = block_bytes
        self._cut = begin.offset
        """The end of a piece that leaves now."""
        self.trace = NOT_TRACED
        """Up to the last event that was fed."""
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
        self._place.read(event)
        self._cut = self._place.end
        self._trace_event(event)
        if self._group is not None:
            self._group.events += 1
        yield from self._dispatch(event)
        if self._accepted.pending:
            self._accepted.require_used(self._place.after)
        if self.builder.size_bytes >= self.block_bytes:
            yield self._close()

    def _trace_event(self, event: Event) -> None:
        """The trace begins with each group, continues after it, and begins again where it grows too long."""
        begin, crc = self.trace
        if begin == NO_TRACE or event.header.type in _BEGINS or self._place.end - begin > TRACE_BYTES:
            begin, crc = event.start, 0
        self.trace = (begin, folded(crc, crc_of(event)))

    @property
    def between_groups(self) -> bool:
        """Whether no group is open: the next event may begin one."""
        return self._group is None

    def extend(self, groups: OrdinaryTransactions) -> Blocks:
        """Takes whole ordinary groups at once, while no group is open: those that the fast path has found."""
        self._place.end = groups.reached
        self.trace = (int(groups.entries.trace[-1]), int(groups.entries.trace_crc[-1]))
        self.builder.extend(groups)
        if self._accepted.pending:
            self._accepted.require_used(self._place.after)
        if self.builder.size_bytes >= self.block_bytes:
            yield self._close()

    @property
    def inside(self) -> tuple[int, int] | None:
        """For an open group of several statements: its next row event's ordinal, and how much it may still hold before
        a piece of it leaves or is spilled. None where no such group is open."""
        group = self._group
        if group is None or not group.state.goes_on:
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
        """Takes the next `events` of the open group, up to `end`: table maps, which result in `maps` by id, and row
        events, of captured tables or of others (left_out). ordinal: the next row event's."""
        group = self._group
        assert group is not None
        self._place.end = self._cut = end
        self.trace = trace
        if self._accepted.pending:
            self._accepted.require_used(self._place.after)
        group.events += events
        group.ordinal = ordinal
        group.maps.update(maps)
        if left_out:
            group.left_out[NOT_INCLUDED] += left_out
        if len(rows):
            yield from self._hold(group, rows)

    @property
    def reached(self) -> int:
        """Offset after the last event that was fed."""
        return self._place.end

    def flush(self) -> Block | None:
        """A block of all complete groups, if the position moved."""
        return self._close() if self.builder else None

    def rewind(self) -> Position | None:
        """Drops the open group; call it after `flush`. Returns where its events, to be fed again, begin; None where
        pieces of it have already left."""
        if self._group is not None:
            if self._group.pieces:
                return None
            self._group.rows.truncate(0)
        self._group = None
        self.trace = NOT_TRACED
        self._place.end = self.builder.end
        return self.builder.begin

    def discard(self) -> None:
        """Drops the entries of complete groups: for a search of the past that is about `prepared` only."""
        if self._group is None:
            self.builder = BlockBuilder(self._source, self._place.after)

    def _dispatch(self, event: Event) -> Iterable[Block]:
        handler = self._handlers.get(event.header.type)
        if handler is None:
            return self._stop(event, source_faults.unknown_event(event, self._place.where(event)))
        return handler(event if event.header.type in _READ_WHEN_WANTED else event.whole())

    def _table_of_handlers(self) -> dict[int, Callable[[Event], Iterable[Block]]]:
        """The handler of each event type. A type that is not here is unknown, and stops the stream."""
        handlers: dict[int, Callable[[Event], Iterable[Block]]] = {
            EventType.TABLE_MAP: self._table_map,
            EventType.XID: lambda event: self._advance(event, Action.COMMIT),
            EventType.MARIADB_GTID: self._begin_mariadb,
            EventType.TRANSACTION_PAYLOAD: self._payload,
            EventType.XA_PREPARE: self._prepare,
            EventType.ROTATE: self._rotate,
            EventType.INCIDENT: self._incident,
        }
        for types, handler in (
            (ROW_EVENTS | _COMPRESSED_ROWS, self._rows), (QUERIES, self._query), (_MYSQL_GTIDS, self._begin_mysql),
            (_ASIDE, self._aside), (_FILE_EVENTS, lambda event: self._advance(event, Mark.OF_FILE)),
        ):  # fmt: skip
            handlers |= dict.fromkeys((int(code) for code in types), handler)
        return {int(code): handler for code, handler in handlers.items()}

    def _incident(self, event: Event) -> Iterable[Block]:
        return self._stop(event, source_faults.incident(event, self._place.where(event)))

    def _stop(self, event: Event, error: LockstepError) -> Iterable[Block]:
        """Raises the error, unless an operator has accepted that the event is skipped unread."""
        at = self._place.at(event)
        if self._group is not None:
            self.judge.stop(error, at, self._group)
        elif note := self.judge.require_accepted(error, at, "any captured table"):
            self.builder.note(note)
            moment, place = event.header.timestamp * 1_000_000, f"{at.file}:{at.offset}"
            self.builder.happened(TableEvent(ANY_TABLE, Happened.UNLOGGED, self._place.seq(event), moment, place))
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
            raise source_faults.inside_transaction(event, self._place.where(event))
        raise source_faults.grammar(
            f"{seen.value} ({type_name(event.header.type)}) comes in the one that began at {group.start}, which "
            f"{group.state.value}",
            self._place.where(event),
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
        if file != self._place.file:
            yield from self._advance(event, Mark.FILE_ENDS)
            yield self._close(file)

    def _close(self, next_file: str = "") -> Block:
        """Ends the block; the next one begins where it ended."""
        before = set(self._tables.isolated)
        block = self.builder.build(next_file, lambda name, error, begin: self.judge.isolates(name, error, f"{begin}"))
        learned = () if self._past else self._tables.learned(block.end)
        if not self._past:
            unread = self._unread(block, self._tables.isolated.keys() - before)
            block = replace(block, happened=(*block.happened, *self.cascades.of_rows(block), *unread))
        block = replace(block, isolated=dict(self._tables.isolated), definitions=learned, format_crc=self.format_crc)
        self.builder = BlockBuilder(self._source, block.end, self.builder)
        if next_file:
            self._place.switch(next_file)
            self.trace = NOT_TRACED
            self.format_crc = 0
        return block

    def _unread(self, block: Block, isolated: Iterable[str]) -> Iterator[TableEvent]:
        """What rows of tables that turned out to be unreadable in a block may have done to others by foreign keys."""
        for child in sorted(self.intake.changed_with(isolated)):
            moment_us = int(block.entries.commit_ts_us.max())
            yield TableEvent(".".join(child), Happened.CASCADED, block.end.seq - 1, moment_us, f"{block.end}")

    def _rotate(self, event: Event) -> Blocks:
        yield from self._advance(event, Mark.OF_FILE)
        yield self._close(parse_rotate(event).file)

    def _add_entry(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        """For an event outside of groups."""
        self.builder.add(
            EntryKind.UNCAPTURED,
            self._place.end,
            seq=self._place.seq(event),
            commit_ts_us=0,
            events=1,
            trace=self.trace,
        )
        return ()

    # Groups

    def _begin(self, event: Event, opening: Mark, gtid: str, commit_ts_us: int) -> Iterable[Block]:
        seq = self._place.seq(event)
        state, _ = self._next(event, Mark.GTID_OF_UNDONE if seq in self._undone else opening)
        # Before MySQL 8 the log knows whole seconds only, as MariaDB does.
        moment = commit_ts_us or event.header.timestamp * 1_000_000
        self._group = OpenGroup(state, event.start, seq, gtid, moment, SpillableChanges(self._spill_files))
        return ()

    def _begin_mysql(self, event: Event) -> Iterable[Block]:
        return self._begin(event, Mark.GTID_OF_STATEMENT, *parse_gtid_head(event))

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
        self._add(group, kind, rows, self._place.end)
        return (self._close(),) if kind == EntryKind.DDL else ()

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
            self._cut = event.start
            yield self._let_go(group, rows)
        yield from self._finish(group, EntryKind.TRANSACTION)

    def _roll_back(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        self._require_undoable(self._present, "it was rolled back")
        return self._drop(self._present)

    def _drop_unfinished(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        """The server crashed while it wrote the group, and so never committed it."""
        self._require_undoable(self._present, "its file ends in it, because the server crashed")
        log.warning(
            "%s: %s ends in the middle of a transaction that was never committed", self._source, self._place.file
        )
        self.trace = NOT_TRACED  # the server may cut off what it never committed
        return self._drop(self._present)

    def _set_savepoint(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        self._present.set_savepoint(logged.statement.name)
        return ()

    def _undo_to_savepoint(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        savepoint = logged.statement.name
        if not self._present.undo_to_savepoint(savepoint):
            raise source_faults.grammar(f"ROLLBACK TO {savepoint!r}, which was not set in it", self._place.where(event))
        return ()

    def _let_go(self, group: OpenGroup, rows: list[PendingChange]) -> Block:
        """A block up to the first of the changes that the group held, as a PART."""
        self._add(group, EntryKind.PART, rows, self._cut)
        group.piece_left()
        return self._close()

    def _add(self, group: OpenGroup, kind: EntryKind, rows: list[PendingChange], end: int) -> None:
        if self._tables.isolated:
            # A table may have been isolated after its rows came: then all its rows in the transaction are left out.
            kept = [left for pending in rows if (left := pending.without(self._tables.isolated)) is not None]
            if lost := sum(map(len, rows)) - sum(map(len, kept)):
                group.left_out[ISOLATED] += lost
                group.cascaded(self.intake.changed_with(self._tables.isolated))
            rows = kept
        self.builder.add(
            kind, end, seq=group.seq, commit_ts_us=group.commit_ts_us, events=group.events, gtid=group.gtid,
            rows=rows, trace=self.trace,
        )  # fmt: skip
        for rule, count in group.left_out.items():
            self.builder.leave_out(rule, count)
        for note in group.notes:
            self.builder.note(note)
        for table, what in group.happened:
            self.builder.happened(
                TableEvent(table, what, group.seq, group.commit_ts_us, self._place.position(group.start))
            )

    # Rows

    def _aside(self, event: Event) -> Iterable[Block]:
        self._open(event)
        return ()

    def _table_map(self, event: Event) -> Iterable[Block]:
        self.intake.map_table(self._open(event), event, mariadb=self.mariadb)
        return ()

    def _rows(self, event: Event) -> Iterable[Block]:
        group = self._open(event)
        pending = self.intake.take(group, event)
        return () if pending is None else self._hold(group, pending)

    def _hold(self, group: OpenGroup, pending: PendingChange) -> Iterable[Block]:
        if group.state is GroupState.UNDONE or (self._past and group.state is not GroupState.XA):
            return ()
        group.rows.append(pending)
        if group.rows.memory_bytes < self.block_bytes:
            return ()
        if group.undoable:
            group.rows.spill()
            return ()
        return (self._let_go(group, group.rows.pop_memory()),)

    def _payload(self, event: Event) -> Blocks:
        self._open(event)
        self._cut = event.start
        for inner in payload_events(event):
            yield from self._dispatch(inner)

    # Statements

    def _query(self, event: Event) -> Iterable[Block]:
        logged = read_statement(event, lower_case=self.lower_case, mariadb=self.mariadb)
        return self._advance(event, logged.statement.action, logged)

    def _judge_definition(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        group = self._present
        truncated = self.judge.define(group, logged, self._place.at(event))
        if truncated is None:
            return ()
        pending = PendingTruncate(truncated, self._place.file, event.start, group.ordinal)
        group.ordinal += 1
        return self._hold(group, pending)

    def _judge_rows(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        self.judge.judge_rows(self._present, logged, self._place.at(event))
        return ()

    # XA

    def _prepare(self, event: Event) -> Iterable[Block]:
        one_phase = parse_xa_prepare(event).one_phase
        return self._advance(event, Action.COMMIT if one_phase else Mark.PREPARE)

    def _keep_prepared(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        group, xid = self._present, parse_xa_prepare(event).xid.text
        if self.prepared.memory_bytes + group.rows.memory_bytes >= self.block_bytes:
            group.rows.spill()
        self.prepared.keep(xid, group.rows, group.cascades)
        group.rows = SpillableChanges(self._spill_files)
        return self._drop(group)

    def _commit_prepared(self, event: Event, logged: LoggedStatement) -> Blocks:
        group, xid = self._present, logged.statement.name
        if len(group.rows) or group.pieces:
            raise source_faults.grammar(
                f"XA COMMIT {xid} comes in one that has rows of its own", self._place.where(event)
            )
        changes, cascades = self.prepared.commit(xid)
        # What one that was prepared before this stream began has done to tables that are not captured is unknown.
        group.cascaded(self.cascades.unread(self._tables.captures) if cascades is None else cascades)
        if changes is not None:
            group.rows = changes
        elif not self._past:
            self.judge.stop(source_faults.xa_unknown(xid, self._place.where(event)), self._place.at(event), group)
        return self._commit(event, logged)

    def _roll_back_prepared(self, event: Event, logged: LoggedStatement) -> Iterable[Block]:
        self.prepared.roll_back(logged.statement.name)
        return self._roll_back(event, logged)

    # Places

    def leave_out(self, name: Name, error: LockstepError) -> None:
        """Isolates a table from here on, or raises the error, as the pipeline says."""
        if not self.judge.isolates(name, error, f"{self.log_point.after}"):
            raise error

    @property
    def log_point(self) -> LogPoint:
        """After the last event that was fed."""
        return self._place.log_point

    def _require_undoable(self, group: OpenGroup, why: str) -> None:
        if group.pieces:
            self._undone.add(group.seq)
            raise source_faults.undone_after_parts(why, f"{self._source}, {self._place.file}:{group.start}")
