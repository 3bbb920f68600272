"""Rows on their way into a server: a file of text, then a temporary table beside the real one.

The file is written as the rows stream by, so that memory holds one batch; the server reads it with LOAD DATA LOCAL,
the fastest way in. LOCAL turns errors into warnings, so any warning at all refuses the rows: a value that the table
would have changed is found here, with its key and column, before anything is written.

Columns of the temporary table: `_n` line number from 1, `_k` key text, `_o` operation (MergedOp), `_v` version, `_s`
state (RowState), `_p` if several source tables feed the table: those that had a row under the key and have deleted it;
`_j` for a row with JSON numbers that only a DECIMAL holds: which of LoadFile.decimals they are (json_columns.py); `_a`
for a row whose values the log did not all carry: a text of 0 and 1, with 1 for each absent column of the layout; then
the row's own columns under the target's names and types, all nullable.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from cdc_core.errors import DataAtRisk, ValuesAbsent
from cdc_core.model.merged_columns import ENDED_ORIGINS, MergedOp
from cdc_core.model.row_versions import version_bytes
from cdc_core.model.staged_columns import OP, lacking
from cdc_core.model.version import VERSION_BYTES
from cdc_core.mysql.connections import SafeConnection, Server, connect, quote, sensible
from cdc_core.mysql.server_errors import ErrorKind, kind_of, number_of
from cdc_core.mysql.session_settings import WRITING, set_if_possible
from cdc_core.targets.reading.table_facts import TableFacts
from cdc_core.targets.reading.target_faults import reason, translated, translating, without_values
from cdc_core.targets.tables.json_columns import Exact, Number, decimals_sql, exact_numbers
from cdc_core.targets.tables.key_range import KeyRange, range_of
from cdc_core.targets.tables.table_definition import ColumnDefinition
from cdc_core.targets.tables.text_columns import (
    KEY_BYTES,
    column_text,
    escaped,
    hex_text,
    is_bytes,
    joined,
    odd_literals,
    row_keys,
)

TEMPORARY = "_lockstep_load"
_SHOWN = 120
MAX_ASIDE = 10_000
"""Deletes that a load file keeps in memory: those among many rows that an empty table gets."""
MAX_UNFIT = 10_000
"""Rows of a shard that may be set aside in a run; more than these are not a problem of single rows."""
_MAX_ERROR_COUNT = 65_535
SILENCE_S, BULK_S = 3600.0, 86_400.0
"""How long a server may work on a statement without sending anything, and how long a statement may take."""


class RowState(IntEnum):
    """`_s`: what the target has under a loaded row's key."""

    NEW = 0
    """No such row; or an older one, of an upsert with all its values: the ordinary case, which is not marked."""
    STALE = 1
    """A newer row or tombstone: the loaded row no longer counts."""
    THERE = 2
    """An older row."""
    EQUAL = 3
    """The row in exactly this version. For upserts, which are written again anyway."""


IS_WRITTEN = f"_l._o = '{MergedOp.UPSERT}' AND _l._s <> {RowState.STALE}"
"""SQL: whether the loaded row `_l` is an upsert that goes to the table."""

_ALTER_S = 86_400.0


IDLE_S = 300
"""After which a server ends a session for bulk work: a process that is paused, not killed, would keep its locks for as
long as it is (servers wait for 8 hours). A write whose session has ended begins again."""


@sensible("target")
def open_session(server: Server, database: str, *, where: str) -> SafeConnection:
    """A connection for bulk work in a database, autocommit on, with the settings of WRITING."""
    connection = connect(
        server,
        where=where,
        settings=WRITING,
        local_infile=True,
        read_timeout=SILENCE_S,
        write_timeout=SILENCE_S,
        statement_timeout_s=BULK_S,
    )
    try:
        connection.select_db(database)
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION wait_timeout = {IDLE_S}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def asking_session(server: Server, reference: str) -> Iterator[SafeConnection]:
    """A connection for questions that are answered at once. reference: as the pipeline file names the server. Raises
    what connections.connect raises, and what target_faults makes of the servers' errors."""
    with (
        translating(f"{reference} ({server})"),
        sensible(reference),
        connect(server, where=reference) as connection,
    ):
        yield connection


@contextmanager
def altering_session(server: Server, reference: str) -> Iterator[SafeConnection]:
    """A connection for statements that create or alter tables, which may take a day, with the settings of WRITING.

    reference: as the pipeline file names the server. Raises what connections.connect raises, and what target_faults
    makes of the servers' errors.
    """
    with (
        translating(f"{reference} ({server})"),
        sensible(reference),
        connect(
            server, where=reference, settings=WRITING, read_timeout=_ALTER_S, statement_timeout_s=_ALTER_S
        ) as connection,
    ):
        yield connection


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns a load carries, named as the rows name them; `key` is among them, () if rows have none. shared: the
    rows say which source tables they come from. documents: the columns that are JSON in the target."""

    key: tuple[str, ...]
    columns: tuple[str, ...]
    _: KW_ONLY
    shared: bool = False
    documents: frozenset[str] = frozenset()


def documents_of(facts: TableFacts, columns: Iterable[str]) -> frozenset[str]:
    """The columns that are JSON in the target."""
    return frozenset(name for name in columns if facts.by_name[name.lower()].type.base == "json")


class LoadFile:
    """The text file of one load. A context manager: the file is removed at the end.

    deletes_aside: deletes stay out of the file until `add_deletes`, up to MAX_ASIDE of them.
    rows: all of them. lines: those in the file. aside: the deletes that are not, without what a delete does not need.
    binary: the columns that travel as hex, known from the first batch.
    absent: the columns that some row lacks. truncates: some row is one. only_upserts: all lines are upserts. nulls: the
    columns in which some row has null. Of these four, what holds for the lines.
    decimals: by column, for each set of numbers in JSON columns that only a DECIMAL holds, the `_j` of its rows.
    key_range: of the rows; None if some key is not made of whole numbers.
    error_values: by the number of a row, a column of which it has the error value of an ENUM that has the label '' too.
    no_text: by the number of a row, a column of which it has bytes that are not text.
    """

    def __init__(self, directory: Path, layout: Layout, *, deletes_aside: bool = False) -> None:
        self.layout = layout
        self.path = directory / f"{uuid.uuid4().hex}.load"  # not the table's name, which may have a slash
        self.lines = 0
        self.aside: list[pa.RecordBatch] = []
        self._deletes_aside = deletes_aside and bool(layout.key)
        self.binary: frozenset[str] = frozenset()
        self.absent: frozenset[str] = frozenset()
        self.truncates = False
        self.only_upserts = True
        self.nulls: set[str] = set()
        self.decimals: dict[tuple[tuple[str, tuple[Number, ...]], ...], int] = {}
        self.error_values: dict[int, str] = {}
        self.no_text: dict[int, str] = {}
        self.key_range: KeyRange | None = None
        self._file = self.path.open("wb")

    def __enter__(self) -> LoadFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with suppress(OSError):  # what a full disk has not taken of a file that is removed here
                self._file.close()
        finally:
            self.path.unlink(missing_ok=True)

    @property
    def rows(self) -> int:
        return self.lines + self._rows_aside()

    def _rows_aside(self) -> int:
        return sum(batch.num_rows for batch in self.aside)

    def add(self, batch: pa.RecordBatch) -> None:
        """Appends rows: the layout's columns and the bookkeeping of a merged row."""
        if not batch.num_rows:
            return
        keys = range_of(batch, self.layout.key)
        self.key_range = keys and self.key_range and keys.with_(self.key_range) if self.rows else keys
        if self._deletes_aside:
            removed = pc.equal(batch.column(OP), MergedOp.DELETE)
            if removed.true_count + self._rows_aside() > MAX_ASIDE:
                self.add_deletes()
            elif removed.true_count:
                self.aside.append(_without_values(batch.filter(removed), self.layout))
                batch = batch.filter(pc.invert(removed))
        self._append(batch)

    def add_deletes(self) -> None:
        """All rows are in the file from here on."""
        aside, self.aside, self._deletes_aside = self.aside, [], False
        for batch in aside:
            self._append(batch)

    def _append(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        keys = row_keys(batch, self.layout.key)
        ops = batch.column(OP).cast(pa.string())
        upserts = pc.equal(ops, MergedOp.UPSERT)
        self.truncates |= bool(
            pc.any(pc.is_in(ops, pa.array([MergedOp.TRUNCATE, MergedOp.TRUNCATE_UNCOUNTED]))).as_py()
        )
        self.only_upserts &= upserts.true_count == batch.num_rows
        fields = [escaped(keys), ops, hex_text(version_bytes(batch)), self._flags(batch)]
        if self.layout.shared:
            # An earlier run, whose write is being completed, may have had no origins.
            here = ENDED_ORIGINS in batch.schema.names
            fields.append(
                batch.column(ENDED_ORIGINS).cast(pa.string()) if here else pa.nulls(batch.num_rows, pa.string())
            )
        documents = {name: exact_numbers(column_text(batch, name)) for name in sorted(self.layout.documents)}
        if documents:
            fields.append(self._decimals(documents, batch.num_rows))
        for name in self.layout.columns:
            text = documents[name].text if name in documents else column_text(batch, name)
            if self.layout.key and name not in self.layout.key and batch.num_rows > upserts.true_count:
                # A delete needs only the row's key, and must not fail because of values that do not fit.
                text = pc.if_else(upserts, text, pa.scalar(None, pa.string()))
            if text.null_count:
                self.nulls.add(name)
            fields.append(text if is_bytes(batch.schema.field(name).type) else escaped(text))
        for row, name, bytes_ in odd_literals(batch):
            needed = not self.layout.key or name in self.layout.key or upserts[row].as_py()
            if needed and name in self.layout.columns:
                (self.no_text if bytes_ else self.error_values).setdefault(self.lines + row + 1, name)
        self.binary = frozenset(name for name in self.layout.columns if is_bytes(batch.schema.field(name).type))
        self._file.write(joined(fields))
        self.lines += batch.num_rows

    def _flags(self, batch: pa.RecordBatch) -> pa.StringArray:
        index, sets = lacking(batch)
        flags: list[str | None] = []
        for names in sets:
            here = names.intersection(self.layout.columns)
            self.absent |= here
            flags.append("".join("01"[name in here] for name in self.layout.columns) if here else None)
        return pa.array(flags, pa.string()).take(index)

    def _decimals(self, documents: Mapping[str, Exact], rows: int) -> pa.StringArray:
        texts: list[str | None] = [None] * rows
        for row in sorted(set().union(*(document.numbers for document in documents.values()))):
            numbers = tuple(
                (name, document.numbers[row]) for name, document in documents.items() if row in document.numbers
            )
            texts[row] = str(self.decimals.setdefault(numbers, len(self.decimals)))
        return pa.array(texts, pa.string())

    def flush(self) -> None:
        self._file.flush()


def _without_values(deletes: pa.RecordBatch, layout: Layout) -> pa.RecordBatch:
    """Nulls for what a delete does not need, which may be long."""
    for at, field in enumerate(deletes.schema):
        if field.name in layout.columns and field.name not in layout.key:
            deletes = deletes.set_column(at, field, pa.nulls(deletes.num_rows, field.type))
    return deletes


def create_temporary(cursor: Any, facts: TableFacts, layout: Layout) -> None:
    """The empty temporary table, replacing one of an earlier attempt."""
    cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {TEMPORARY}")
    own = [column_sql(facts.by_name[name.lower()]) for name in layout.columns]
    if layout.shared:
        own.insert(0, "_p TEXT CHARACTER SET ascii NULL")
    if layout.documents:
        own.insert(0, "_j INT NULL, KEY (_j)")
    cursor.execute(
        f"CREATE TEMPORARY TABLE {TEMPORARY} (_n BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, "
        f"_k VARBINARY({KEY_BYTES}) NULL, _o CHAR(1) CHARACTER SET ascii NULL, _v VARBINARY({VERSION_BYTES}) NULL, "
        f"_s TINYINT NOT NULL DEFAULT {RowState.NEW}, _a MEDIUMTEXT CHARACTER SET ascii NULL, "
        f"{', '.join(own)}) ENGINE=InnoDB"
    )


def column_sql(column: ColumnDefinition) -> str:
    """A column as a temporary table has it: of the same type, nullable."""
    return f"{quote(column.name)} {column.declared} NULL"


def is_absent(layout: Layout, name: str) -> str:
    """SQL: whether the loaded row `_l` lacks the column; never NULL."""
    return f"COALESCE(SUBSTRING(_l._a, {layout.columns.index(name) + 1}, 1) = '1', FALSE)"


def target_name(facts: TableFacts, name: str) -> str:
    """The target's quoted name of a column of the rows."""
    return quote(facts.by_name[name.lower()].name)


@dataclass(frozen=True, slots=True)
class Unfit:
    """A row that a table rejects: its operation, version and key text identify it within the batch."""

    op: str
    version: bytes
    key: bytes
    reason: str


def load(cursor: Any, facts: TableFacts, file: LoadFile, *, tolerant: bool = False) -> list[Unfit]:
    """Fills the temporary table. Raises DataAtRisk (target.row_error) when a value does not fit its column.

    tolerant: leave such rows out and return them, unless there are more than MAX_UNFIT.
    """
    file.add_deletes()
    if tolerant:
        set_if_possible(cursor, f"SET SESSION max_error_count = {_MAX_ERROR_COUNT}")
    loaded = send(cursor, facts, file, into=TEMPORARY, kept=("_k", "_o", "@_v", "_a", "_p", "_j"), version="_v")
    unfit = _unfit_rows(cursor, facts, file.layout, tolerant=tolerant)
    refused = {number: f"{name} {_NO_TEXT}" for number, name in file.no_text.items()}
    for number, name in file.error_values.items():
        if facts.by_name[name.lower()].type.base == "enum":
            refused[number] = f"{name} {_ERROR_VALUE}"
    for number, why in refused.items():
        if not tolerant:
            raise _unloadable(cursor, facts, number, why)
        unfit.setdefault(number, why)
    if loaded != file.rows:
        raise DataAtRisk(
            f"The server loaded {loaded} of {file.rows} rows.",
            where=facts.name,
            code="target.row_error",
            remedy="run the task again; if this happens again, keep the run's files and report it",
        )
    for columns, group in file.decimals.items():
        for name, numbers in columns:
            for assignment in decimals_sql(target_name(facts, name), numbers):
                cursor.execute(f"UPDATE {TEMPORARY} SET {assignment} WHERE _j = {group}")
    return remove(cursor, facts, unfit) if unfit else []


def send(cursor: Any, facts: TableFacts, file: LoadFile, *, into: str, kept: Sequence[str], version: str) -> int:
    """Loads the file's lines into a table; how many rows the server has taken.

    kept: where a line's bookkeeping goes: the key, operation, version (to `@_v`), absent columns, origins and decimals,
    a column or a variable for each. version: the column that takes the version.
    """
    file.flush()
    *fields, origins, decimals = kept
    settings = [f"{version} = UNHEX(@_v)"]
    fields += [origins] if file.layout.shared else []
    fields += [decimals] if file.layout.documents else []
    for number, name in enumerate(file.layout.columns):
        column = target_name(facts, name)
        base = facts.by_name[name.lower()].type.base
        if name in file.binary:
            fields.append(f"@c{number}")
            settings.append(f"{column} = UNHEX(@c{number})")
        elif base == "bit":
            fields.append(f"@c{number}")
            settings.append(f"{column} = CAST(@c{number} AS UNSIGNED)")
        elif base == "year":
            # '0' would become 2000.
            fields.append(f"@c{number}")
            settings.append(f"{column} = LPAD(@c{number}, 4, '0')")
        else:
            fields.append(column)
    # The path is Lockstep's own (a scratch directory), but a quote or backslash in it would still end the literal.
    path = str(file.path).replace("\\", "\\\\").replace("'", "''")
    try:
        with cursor.connection.sending(file.path):
            cursor.execute(
                f"LOAD DATA LOCAL INFILE '{path}' INTO TABLE {into} CHARACTER SET utf8mb4 "
                "FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' "
                f"({', '.join(fields)}) SET {', '.join(settings)}"
            )
    except pymysql.err.MySQLError as error:
        if kind_of(error) is ErrorKind.LOCAL_INFILE:
            raise translated(error, where=facts.name) from None
        raise
    return int(cursor.rowcount)


def warnings_of(cursor: Any) -> int:
    """How many warnings the last statement gave, also of those that the server does not keep."""
    cursor.execute("SHOW COUNT(*) WARNINGS")
    return int(cursor.fetchone()[0])


def _unfit_rows(cursor: Any, facts: TableFacts, layout: Layout, *, tolerant: bool) -> dict[int, str]:
    """Line numbers of the rows that the server had to change to load them, each with the reason.

    Raises DataAtRisk (target.row_error) unless `tolerant`, and if the server keeps fewer warnings than it counts
    (max_error_count, which MySQL lets only SESSION_VARIABLES_ADMIN set).
    """
    count = warnings_of(cursor)
    if not count:
        return {}
    cursor.execute("SHOW WARNINGS" if tolerant else "SHOW WARNINGS LIMIT 20")
    warnings = cursor.fetchall()
    unfit: dict[int, str] = {}
    for warning in warnings:
        if not tolerant or count > len(warnings) or not _row_number(warning):
            raise _bent(cursor, facts, layout, warning)
        unfit.setdefault(_row_number(warning), _said(warning))
    if not unfit:
        raise row_error(facts, None, f"the server warns of {count} values, but its max_error_count lets it name none")
    return unfit


def remove(cursor: Any, facts: TableFacts, unfit: Mapping[int, str]) -> list[Unfit]:
    """Removes rows, by line number, from the temporary table; which rows they are.

    Raises DataAtRisk (target.row_error) for more than MAX_UNFIT: that is not a problem of single rows.
    """
    numbers = ", ".join(str(number) for number in sorted(unfit))
    cursor.execute(f"SELECT _n, _k, _o, _v FROM {TEMPORARY} WHERE _n IN ({numbers}) ORDER BY _n")
    rows = cursor.fetchall()
    if len(rows) > MAX_UNFIT:
        raise row_error(facts, rows[0][1], f"{unfit[rows[0][0]]}, and {len(rows) - 1} more rows do not fit either")
    cursor.execute(f"DELETE FROM {TEMPORARY} WHERE _n IN ({numbers})")
    return [Unfit(str(op), bytes(version), bytes(key or b""), unfit[number]) for number, key, op, version in rows]


_ROW_NUMBER = re.compile(r"at row (\d+)|[Rr]ow (\d+) ")


def _row_number(warning: Sequence[Any]) -> int:
    """The number of the row that a warning is about; 0 if the warning does not say."""
    match = _ROW_NUMBER.search(str(warning[2]))
    return int(match[1] or match[2]) if match else 0


def _said(warning: Sequence[Any]) -> str:
    return f"{without_values(int(warning[1]), str(warning[2]))} ({warning[1]})"


def _bent(cursor: Any, facts: TableFacts, layout: Layout, warning: Sequence[Any]) -> DataAtRisk:
    enums = [name for name in layout.columns if facts.by_name[name.lower()].type.base == "enum"]
    indexes = "".join(f", {target_name(facts, name)} + 0" for name in enums)
    cursor.execute(f"SELECT _k{indexes} FROM {TEMPORARY} WHERE _n = {_row_number(warning)}")
    row = cursor.fetchone()
    reason = _said(warning)
    for name, index in zip(enums, row[1:] if row else (), strict=False):
        if index == 0:
            reason = (
                f"{name} is not a label of the target's ENUM; an empty value is the error value (index 0) that the "
                "source stores for an invalid label, and a VARCHAR column takes it"
            )
    return row_error(facts, row[0] if row else None, reason)


_NO_TEXT = "has bytes that are not text of its character set"
_ERROR_VALUE = "is the error value of an ENUM (index 0), which a server stores for an invalid label"


def _unloadable(cursor: Any, facts: TableFacts, number: int, why: str) -> DataAtRisk:
    cursor.execute(f"SELECT _k FROM {TEMPORARY} WHERE _n = {number}")
    row = cursor.fetchone()
    key = row[0] if row else None
    return DataAtRisk(
        f"{'A row' if not key else f'The row with key {shown_key(key)}'} cannot be written: its {why}.",
        where=facts.name,
        code="target.row_error",
        remedy="correct the value at the source, then begin another run, which takes the corrected row; or exclude the "
        "column (tables.columns.exclude) and begin a new stage. on_row_error: quarantine sets single rows of tables "
        "with a key aside instead; nothing of this transaction was written",
    )


def shown_key(key: bytes) -> str:
    shown = key.decode(errors="replace")
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"


def absent_values(rows: int, key: bytes, *, where: str) -> DataAtRisk:
    """The error for updates of rows that the target does not have, whose values the log did not all carry."""
    return ValuesAbsent(
        f"The target lacks {rows} rows, and the source's log did not carry all of their values; the first has the "
        f"key {shown_key(key)}.",
        where=where,
        remedy="copy the whole table to the target, then run the task again; to prevent this, SET GLOBAL "
        "binlog_row_image = FULL on the source; nothing of this transaction was written",
    )


_NULLS = frozenset({1048, 1263, 1364})
"""Null, or no value at all, for a column that is NOT NULL."""


def rejected(facts: TableFacts, key: bytes | None, error: pymysql.err.MySQLError) -> DataAtRisk:
    """row_error of a statement that the server refused."""
    return row_error(facts, key, reason(error), null=number_of(error) in _NULLS)


def row_error(facts: TableFacts, key: bytes | None, reason: str, *, null: bool = False) -> DataAtRisk:
    """The error for a row that the table rejects. Key columns are shown, shortened; other values are not. null: it has
    no value for a column that is NOT NULL here: as the source had it, or from before the source had the column."""
    if null:
        return DataAtRisk(
            f"{'A row' if not key else f'The row with key {shown_key(key)}'} does not fit the target table: {reason}.",
            where=facts.name,
            code="target.row_error",
            remedy="the change is from before the source had the column, or from when it allowed NULL there: if the "
            "source's column is NOT NULL now, `lockstep snapshot PIPELINE TABLE` copies the table again, and the next "
            "run writes its rows; else allow NULL in the target's column, too, then run the task again; nothing of "
            "this shard was written",
        )
    return DataAtRisk(
        f"{'A row' if not key else f'The row with key {shown_key(key)}'} does not fit the target table: {reason}.",
        where=facts.name,
        code="target.row_error",
        remedy="change the target's column or constraint so that it takes what the source holds, then run the task "
        "again; nothing of this transaction was written. on_row_error: quarantine sets single rows of tables with a "
        "key aside instead",
    )
