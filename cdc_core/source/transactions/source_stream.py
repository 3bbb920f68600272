"""The stream of one source: opened at a checkpoint, and read into blocks until the caller stops it.

It joins the wire (log_connection), the transactions (transaction_assembler) and what the server answers. It must keep
true that a block leaves soon (at most a second after its first event), that the caller's stop takes effect soon, and
that resuming after a stop or a lost connection neither loses nor repeats anything: the stream resumes where the last
whole transaction ended, and drops and rereads what it had of the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from types import TracebackType

from cdc_core.config import Source
from cdc_core.model.block import Block
from cdc_core.model.position import FIRST_OFFSET, Checkpoint, Position
from cdc_core.model.schema import DefinedSince
from cdc_core.mysql import connections
from cdc_core.source.capture import Capture
from cdc_core.source.host.server_facts import binlog_files, lower_case_names, query
from cdc_core.source.host.source_answers import SourceAnswers
from cdc_core.source.schemas.captured_definitions import table_schemas
from cdc_core.source.schemas.cascades import Cascades, logs_cascades
from cdc_core.source.schemas.definition_history import SchemaHistory
from cdc_core.source.schemas.known_definitions import LogPoint
from cdc_core.source.schemas.merge_tables import united_table, united_tables
from cdc_core.source.schemas.table_registry import TableRegistry
from cdc_core.source.sql.accepted_places import AcceptedPlaces
from cdc_core.source.sql.capture_policy import CapturePolicy
from cdc_core.source.sql.log_ahead import LogAhead
from cdc_core.source.sql.logged_statement import ServerDialect
from cdc_core.source.sql.statement_judge import StatementJudge
from cdc_core.source.sql.statement_reach import StatementReach
from cdc_core.source.transactions.fast_path import FastPath
from cdc_core.source.transactions.spilled_changes import SpillableChanges
from cdc_core.source.transactions.transaction_assembler import TransactionAssembler
from cdc_core.source.wire.log_connection import LogConnection
from cdc_core.source.wire.log_glance import LogGlance

log = logging.getLogger(__name__)

POLL_S = 0.1
"""How long a read waits; a block that is being built leaves when nothing came for this long."""
FLUSH_S = 1.0
"""A block leaves at this age even if more is coming."""
VERIFY_S = 60.0
"""How often the server's definitions are compared with those in use, where the log does not name columns."""


class SourceStream:
    """Blocks of a source from `start` on. A context manager; not thread-safe.

    replica_host:      the name under which we register (replica_identity): only our own old streams are ended.
    isolated:          tables that are already isolated, `database.table` -> since where, and why.
    history:           earlier definitions, from earlier blocks (Block.definitions).
    block_bytes:       about the decoded size of a block.
    undone:            see TransactionAssembler; the stream adds to it.
    accepted:          positions that would stop the stream, and that an operator accepts.
    ahead, keep_ahead: what was read ahead before, as it was kept; keeps it.
    Raises, on entering, what LogReader raises.
    """

    def __init__(
        self,
        source: Source,
        *,
        server: connections.Server,
        start: Checkpoint,
        capture: Capture,
        replica_host: str,
        policy: CapturePolicy,
        isolated: Mapping[str, str] | None = None,
        history: Iterable[DefinedSince] = (),
        block_bytes: int,
        undone: set[int] | None = None,
        accepted: AcceptedPlaces | None = None,
        ahead: str = "",
        keep_ahead: Callable[[str], None] = lambda kept: None,
    ) -> None:
        self._source = source
        self._start = start.position
        self._fingerprint = start.fingerprint
        self._capture = capture
        self._policy = policy
        self._block_bytes = block_bytes
        self._answers = answers = SourceAnswers(source, server, start.position.timeline)
        self.connection = LogConnection(source, server, answers, start, replica_host)
        self._glance = LogGlance(source, server)
        self._undone = undone
        self._accepted = accepted or AcceptedPlaces(source.name)
        read_ahead = LogAhead(self._glance.statements_after, ahead, keep_ahead)
        self._cascades = Cascades(
            capture.captures,
            answers.foreign_keys,
            answers.end_of_log,
            answers.now_us,
            lambda: answers.require_seen_cascades(capture.captures, policy),
        )
        self._history = SchemaHistory(
            history, answers.definition_if_captured, read_ahead, answers.end_of_log, answers.defaults, capture.excludes
        )
        self._tables = tables = self._registry(isolated)
        self._reach = StatementReach(tables, answers.connection, read_ahead, answers.end_of_log)
        self._assembler = self._assemble(self._start, tables)
        self._fast_path = FastPath(self._assembler, tables)
        self._feeding: Iterator[Block] = iter(())
        """Blocks still in the received bytes: a caller that leaves `blocks` midway continues here."""
        self._verify_s = 0.0
        self._names_logged = True
        self.position = self._start
        """After the last block that left."""
        self.fence: Position | None = None
        """A block that reaches it leaves at once, as no caller waits for more. Any thread may set it."""
        self.answered = False
        """Whether the server has sent any part of the log: it can be read."""

    def require_accepted(self) -> None:
        """Raises UsageError (usage.argument) where a position to be accepted did not come."""
        self._accepted.require_used()

    def __enter__(self) -> SourceStream:
        self.connection.open()
        control = self._answers.connection()
        dialect = ServerDialect(connections.is_mariadb(control), lower_case_names(control))
        self._assembler.dialect = self._reach.dialect = self._history.dialect = dialect
        self._cascades.open(logged=logs_cascades(control), lower_case=dialect.lower_case)
        self._leave_out_united()
        self._begin_history()
        return self

    def _leave_out_united(self) -> None:
        for merge, united in united_tables(self._answers.connection()).items():
            for name in united:
                if self._tables.captures(*name):
                    self._assembler.leave_out(name, united_table(name, merge, self._source.name))

    def _begin_history(self) -> None:
        control, history = self._answers.connection(), self._history
        metadata, image = query(control, "SELECT @@GLOBAL.binlog_row_metadata, @@GLOBAL.binlog_row_image")[0]
        history.early_defaults = image != "FULL"
        self._names_logged = metadata == "FULL"
        history.early = metadata != "FULL" or history.early_defaults
        # Just before the start: the statement at the start may define a table.
        point = LogPoint(self._start.seq - 1, self._start)
        history.begin(table_schemas(control, self._tables.captures), point)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()

    def blocks(self, stop: Callable[[], bool]) -> Iterator[Block]:
        """Blocks in stream order until `stop()` is true; call again to continue where it left off.

        Raises RetryLater (connection.unreachable) when the source's `reconnect_s` is over, or at once when pieces of
        the open transaction have already left; DataAtRisk and Refused as the log or the server demand. Whole
        transactions that were read before such an error leave first.
        """
        assembler, builder = self._assembler, self._assembler.block.builder
        due_s = 0.0
        while not stop():
            try:
                reader = self.connection.reader(builder.begin, self._fingerprint)
                if reader is None:
                    time.sleep(POLL_S)
                    continue
                yield from self._fed()
                self._verify()
                came = reader.receive(POLL_S)
                self._feeding = self._fast_path.feed(reader.framer)
                yield from self._fed()
                self.answered = self.answered or came
            except Exception as error:
                self.connection.drop()
                yield from self._flushed()
                place = assembler.rewind()
                if place is None or not self.connection.may_return(error, place):
                    raise
                continue
            self.connection.reached(builder.begin.number, assembler.place.end)
            now_s = time.monotonic()
            if not builder:
                due_s = now_s + FLUSH_S
            elif not came or now_s >= due_s or self._at_fence():
                yield from self._flushed()
                due_s = now_s + FLUSH_S
        yield from self._flushed()

    def _verify(self) -> None:
        """Checks at intervals that no table was altered without a log entry. Isolates it, or raises
        source.incomplete_rows."""
        if self._names_logged or time.monotonic() < self._verify_s:
            return
        self._verify_s = time.monotonic() + VERIFY_S
        point = self._assembler.place.log_point
        now = table_schemas(self._answers.connection(), self._tables.captures)
        for name, error in self._history.unexplained(now, point):
            self._assembler.leave_out(name, error)

    def _at_fence(self) -> bool:
        fence, builder = self.fence, self._assembler.block.builder
        return fence is not None and builder.begin < fence <= replace(builder.begin, offset=builder.end)

    def _fed(self) -> Iterator[Block]:
        # Not `yield from`: it would close the generator with us when our caller leaves.
        for block in self._feeding:
            yield self._handed_on(block)

    def _flushed(self) -> Iterator[Block]:
        block = self._assembler.block.flush()
        if block is not None:
            yield self._handed_on(block)

    def _handed_on(self, block: Block) -> Block:
        self.position = block.end
        self._fingerprint = block.fingerprint(self._fingerprint)
        return block

    def _registry(self, isolated: Mapping[str, str] | None) -> TableRegistry:
        capture = self._capture
        return TableRegistry(capture.captures, self._answers.definition, self._history, isolated, capture.may_be_in)

    def _assemble(self, begin: Position, tables: TableRegistry, *, past: bool = False) -> TransactionAssembler:
        name = self._source.name
        # What is past was judged when it was first read.
        policy = replace(self._policy, on_unlogged_change="record") if past else self._policy
        cascades = Cascades.without_keys(tables.captures, begin) if past else self._cascades
        judge = StatementJudge(name, tables, policy, self._reach.of, self._accepted, cascades=cascades, past=past)
        return TransactionAssembler(
            name,
            begin,
            tables,
            judge,
            prepared=None if past else self._prepared,
            undone=self._undone,
            block_bytes=self._block_bytes,
        )

    def _prepared(self) -> Mapping[str, SpillableChanges]:
        """XA transactions that were prepared but not ended before this stream began: reads the earlier log again."""
        source = self._source
        log.info("%s: searching the log before %s for prepared XA transactions", source.name, self._start)
        oldest = binlog_files(self._answers.connection())[0].name
        begin = Position(self._start.timeline, oldest, FIRST_OFFSET)
        past = self._assemble(begin, self._registry(self._tables.isolated), past=True)
        past.dialect = self._assembler.dialect
        with closing(self._glance.events_after(begin)) as events:
            for event in events:
                if event.start >= 0 and Position(begin.timeline, event.file, event.start) >= self._start:
                    break
                for _ in past.feed(event):
                    pass
                past.discard()
        return past.prepared.changes
