"""A MariaDB log made by hand, event after event, for what servers write rarely or never."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from cdc_core.binlog.event_headers import CHECKSUM_SIZE, HEADER_SIZE, Event, EventType, Header
from cdc_core.model.block import Block
from cdc_core.model.coverage import ANY_TABLE
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema
from cdc_core.source.schemas.cascades import Cascades
from cdc_core.source.schemas.definition_history import SchemaHistory
from cdc_core.source.schemas.table_registry import TableRegistry
from cdc_core.source.sql.accepted_places import AcceptedPlaces
from cdc_core.source.sql.capture_policy import CapturePolicy
from cdc_core.source.sql.log_ahead import LogAhead, Statements
from cdc_core.source.sql.logged_statement import ServerDialect
from cdc_core.source.sql.statement_classes import Statement
from cdc_core.source.sql.statement_judge import StatementJudge
from cdc_core.source.sql.statement_reach import Reach
from cdc_core.source.transactions.spilled_changes import SpillableChanges
from cdc_core.source.transactions.transaction_assembler import TransactionAssembler

STANDALONE, XA_PREPARED, XA_COMPLETED = 1, 64, 128
SECOND = 1_700_000_000


def named_only(statement: Statement, databases: frozenset[str] | None, after: Position) -> Reach:
    """What a statement may change where there are neither views nor triggers, routines and foreign keys."""
    if statement.tables is None:
        return Reach((ANY_TABLE,), "it does not say")
    return Reach(tuple(".".join(name) for name in statement.tables if name[0] != "other"))


def registry(captures: Callable[[str, str], bool], ask: Callable[[str, str], TableSchema | None]) -> TableRegistry:
    """Knows of tables what `ask` says, and of the log nothing."""

    def nothing(after: Position) -> Statements:
        yield from ()

    end = Position(0, "binlog.999999", 4)
    return TableRegistry(captures, ask, SchemaHistory((), ask, LogAhead(nothing, "", lambda kept: None), lambda: end))


@dataclass
class Log:
    """Feeds an assembler as events are added. Tables have one column, `id INT PRIMARY KEY`, and are known by FULL
    metadata; those of the database `other` are not captured."""

    on_unlogged_change: str = "stop"
    on_truncate: str = "unlogged"
    on_unreadable: str = "stop"
    block_bytes: int = 1 << 20
    reach: Callable[[Statement, frozenset[str] | None, Position], Reach] = named_only
    accept: tuple[tuple[str, int], ...] = ()
    prepared: Callable[[], Mapping[str, SpillableChanges]] | None = dict
    file: str = "binlog.000001"
    offset: int = 4
    asked: list[tuple[str, str]] = field(default_factory=list)
    gtids: int = 0
    undone: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        begin = Position(0, self.file, self.offset)
        tables = registry(lambda database, table: database != "other", self._known)
        policy = CapturePolicy(
            on_unlogged_change=self.on_unlogged_change,
            on_truncate=self.on_truncate,
            on_unreadable=self.on_unreadable,
        )
        judge = StatementJudge(
            "made",
            tables,
            policy,
            self.reach,
            AcceptedPlaces("made", self.accept),
            cascades=Cascades.without_keys(tables.captures, begin),
            past=self.prepared is None,
        )
        self.assembler = TransactionAssembler(
            "made",
            begin,
            tables,
            judge,
            prepared=self.prepared,
            block_bytes=self.block_bytes,
            undone=self.undone,
        )
        self.assembler.dialect = ServerDialect(mariadb=True)
        self.ready: list[Block] = []

    def _known(self, database: str, table: str) -> TableSchema | None:
        self.asked.append((database, table))
        return None

    def event(self, code: int, body: bytes = b"", *, artificial: bool = False) -> int:
        """Adds an event; returns where it starts."""
        start = -1 if artificial else self.offset
        length = HEADER_SIZE + len(body) + CHECKSUM_SIZE
        header = Header(SECOND, code, 1, length, 0, 0x20 if artificial else 0)
        if not artificial:
            self.offset += length
        self.ready.extend(self.assembler.feed(Event(header, body, self.file, start)))
        return start

    def gtid(self, flags: int = 0, xid: bytes = b"") -> int:
        self.gtids += 1
        body = struct.pack("<QIB", self.gtids, 0, flags)
        if flags & (XA_PREPARED | XA_COMPLETED):
            body += struct.pack("<iBB", 1, len(xid), 0) + xid
        return self.event(EventType.MARIADB_GTID, body.ljust(19, b"\0"))

    def query(self, sql: str, database: str = "db") -> int:
        name = database.encode()
        body = struct.pack("<IIBHH", 1, 0, len(name), 0, 0) + name + b"\0" + sql.encode()
        return self.event(EventType.QUERY, body)

    def ddl(self, sql: str) -> None:
        self.gtid(STANDALONE)
        self.query(sql)

    def rows(
        self, *ids: int, table: str = "t", database: str = "db", table_id: int = 7, mapped: bool = True, cut: int = 0
    ) -> int:
        """A table map, and an insert of rows after it, whose last bytes may be lacking; where the row event starts."""
        number = table_id.to_bytes(6, "little")
        if mapped:
            names = bytes([len(database)]) + database.encode() + b"\0" + bytes([len(table)]) + table.encode() + b"\0"
            shape = b"\x01\x03\x00\x00"  # one INT, no metadata, NOT NULL
            optional = b"\x01\x01\x00" + b"\x04\x03\x02id" + b"\x08\x01\x00"
            self.event(EventType.TABLE_MAP, number + b"\1\0" + names + shape + optional)
        images = b"".join(b"\xfe" + struct.pack("<i", value) for value in ids)
        return self.event(EventType.WRITE_ROWS_V1, number + b"\1\0" + b"\x01\xff" + images[: len(images) - cut])

    def commit(self) -> int:
        return self.event(EventType.XID, struct.pack("<Q", 9))

    def transaction(self, *ids: int, database: str = "db") -> int:
        start = self.gtid()
        self.rows(*ids, database=database)
        self.commit()
        return start

    def prepare(self, xid: bytes, *, one_phase: bool = False) -> None:
        body = bytes([one_phase]) + struct.pack("<iII", 1, len(xid), 0) + xid
        self.event(EventType.XA_PREPARE, body)

    def rotate(self, file: str, *, artificial: bool = False) -> None:
        self.event(EventType.ROTATE, struct.pack("<Q", 4) + file.encode(), artificial=artificial)
        if artificial:
            self.file, self.offset = file, 4

    def blocks(self) -> list[Block]:
        """Those that came since the last call, and one of what is complete."""
        last = self.assembler.block.flush()
        ready, self.ready = [*self.ready, *([] if last is None else [last])], []
        return ready

    def ids(self) -> list[int]:
        """The ids of all rows of `blocks`."""
        return ids_of(self.blocks())


def ids_of(blocks: Iterable[Block]) -> list[int]:
    """The ids of all rows, in order."""
    return [value for block in blocks for table in block.tables for value in table.rows.column("id").to_pylist()]
