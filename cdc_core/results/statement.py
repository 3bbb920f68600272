"""One SELECT by the binary protocol: PREPARE, EXECUTE, batches of located rows, CLOSE.

Must keep true: the caller either gets every row and then the end, or an error; never a part of the rows as if they were
all. After an error of the server's the connection can be used; after any other, or when the caller stops before the
end, it is closed, since the rest of the answer would be taken for the next one.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Generator, Sequence

import numpy as np
import pymysql
from pymysql.protocol import MysqlPacket

from cdc_core.errors import defect
from cdc_core.mysql.connections import SafeConnection
from cdc_core.results import result_columns
from cdc_core.results.answer import Buffer, ResultAnswer
from cdc_core.results.reading_faults import definition_changed, malformed
from cdc_core.results.result_columns import ResultColumn
from cdc_core.results.row_packets import Located

_PREPARE, _EXECUTE, _CLOSE = 0x16, 0x17, 0x19
_OK, _EOF, _ERR = 0x00, 0xFE, 0xFF
_MORE_RESULTS = 8
"""A flag of the server's status."""

NewBuffer = Callable[[Sequence[ResultColumn]], Buffer]
"""Checks a result's definitions (it raises what the caller is to see) and returns memory for its rows."""


def read_rows(connection: SafeConnection, sql: str, prepare: NewBuffer, *, where: str) -> Generator[Located]:
    """The rows of a SELECT, each batch valid until the next one is asked for.

    prepare: called with the columns as PREPARE announces them, and again if EXECUTE announces others.
    Raises what `prepare` raises, RetryLater (connection.unreachable, table.redefined) and PyMySQL's errors.
    """
    number, announced = _prepared(connection, sql, where)
    try:
        memory = prepare(announced)
    except BaseException:
        connection._execute_command(_CLOSE, struct.pack("<I", number))
        raise
    connection.begin_answer(_EXECUTE, struct.pack("<IBI", number, 0, 1))
    finished = False
    try:
        buffer = Buffer(1, 1, 1 << 16)
        answer = ResultAnswer(connection, buffer, where)
        columns = _definitions(answer, where)
        if len(columns) != len(announced):
            raise definition_changed(f"{len(announced)} columns were announced, and {len(columns)} came", where=where)
        answer.continue_in(memory if columns == announced else prepare(columns))
        forms = np.array([column.form for column in columns], np.int8)
        ended = False
        while not ended:
            located, ended = answer.next_batch(forms)
            if located.rows:
                left_s = time.monotonic()
                yield located
                connection.extend_answer(time.monotonic() - left_s)
        connection.end_answer(_end(answer, where))
        finished = True
    except pymysql.err.MySQLError:
        finished = connection.open  # the error was the last packet of the answer
        connection.end_answer()
        raise
    finally:
        if finished:
            connection._execute_command(_CLOSE, struct.pack("<I", number))
        else:
            connection.abandon_answer()


def _prepared(connection: SafeConnection, sql: str, where: str) -> tuple[int, list[ResultColumn]]:
    """The statement's number, and its columns."""
    connection._execute_command(_PREPARE, sql.encode())
    first = connection._read_packet().get_all_data()
    if len(first) < 12 or first[0] != _OK:
        connection.abandon_answer()
        raise malformed(f"{len(first)} bytes in answer to PREPARE", where=where)
    number, columns, parameters = struct.unpack_from("<IHH", first, 1)
    packets = [
        [connection._read_packet().get_all_data() for _ in range(group + 1 if group else 0)][:group]
        for group in (parameters, columns)
    ]
    if parameters or not columns:
        connection._execute_command(_CLOSE, struct.pack("<I", number))
        raise defect(
            f"A statement with {parameters} parameters and {columns} columns is not read as a result set.",
            where=where,
        )
    try:
        return number, [result_columns.parse(packet) for packet in packets[1]]
    except ValueError as error:
        connection.abandon_answer()
        raise malformed(f"a column's definition: {error}", where=where) from None


def _definitions(answer: ResultAnswer, where: str) -> list[ResultColumn]:
    first = answer.packet()
    if first[:1] == bytes([_ERR]):
        raise _said(first, where)
    if not first or first[0] in (_OK, 251, _EOF) or (first[0] == 252 and len(first) != 3):
        raise malformed("a statement that should return rows returned none", where=where)
    count = first[0] if first[0] < 251 else int.from_bytes(first[1:3], "little")
    columns = []
    try:
        for _ in range(count):
            columns.append(result_columns.parse(answer.packet()))
    except ValueError as error:
        raise malformed(f"a column's definition: {error}", where=where) from None
    last = answer.packet()
    if last[:1] != bytes([_EOF]) or len(last) != 5:
        raise malformed("the columns' definitions do not end", where=where)
    return columns


def _end(answer: ResultAnswer, where: str) -> int:
    """Reads the packet after the last row; the server's status."""
    last = answer.packet()
    if last[:1] == bytes([_ERR]):
        raise _said(last, where)
    if last[:1] != bytes([_EOF]) or len(last) != 5:
        raise malformed(f"a packet of {len(last)} bytes after the rows", where=where)
    status = int.from_bytes(last[3:5], "little")
    if status & _MORE_RESULTS or answer.left_bytes:
        raise malformed("more comes after the end of the rows", where=where)
    return status


def _said(packet: bytes, where: str) -> Exception:
    """The error that a packet holds."""
    try:
        MysqlPacket(packet, "utf-8").raise_for_error()
    except pymysql.err.MySQLError as error:
        return error
    except (struct.error, LookupError, ValueError, AssertionError):
        pass
    return malformed(f"an error of {len(packet)} bytes that cannot be read", where=where)
