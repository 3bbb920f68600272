"""Errors of reading a result set: the server's, by their number, and those of an answer that is not what was asked.

Numbers from 1900 to 2000 and from 4000 on are MariaDB's, from 2000 to 2100 the client's; the servers share the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pymysql

from cdc_core.connections import DENIED, GONE, shown
from cdc_core.errors import LockstepError, Refused, RetryLater

ALTERED = frozenset({1049, 1051, 1054, 1072, 1146, 1176, 1412, 1932})
"""A database, table, column or index that existed when the definition was read; 1412: a snapshot older than it."""
_PASSING = (
    frozenset({1205, 1206, 1213, 1614, 3058, 3101, 3572})  # locks
    | GONE
    | {3, 23, 24, 28, 1021, 1026, 1037, 1038, 1040, 1041, 1135, 1203, 1226, 1461}  # disk, memory, connections
    | {1047, 1969, 3024, 3100, 3168, 3598}  # not in its cluster; limits on the time of statements
)


def translated(error: pymysql.err.MySQLError, *, where: str) -> LockstepError:
    """Lockstep's error for a server's."""
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    said = f"{shown(error).rstrip('.')} ({number})" if number else "the connection is closed"
    if number in ALTERED:
        return definition_changed(said, where=where)
    if number in _PASSING:
        return RetryLater(
            f"Reading rows ended before the last one: {said}.",
            where=where,
            code="results.unavailable",
            remedy="run it again; if this lasts, check the server's log, its load, and what ends its statements",
        )
    if number in DENIED:
        return Refused(
            f"The account may not read the rows: {said}.",
            where=where,
            code="results.grant",
            remedy="GRANT SELECT ON the table that the message names to the account",
        )
    return Refused(
        f"The server refused to read the rows: {said}.",
        where=where,
        code="results.statement",
        remedy="see the server's message; a table that is damaged needs CHECK TABLE",
    )


class UnlikeDefinition(RetryLater):
    """The server announces other columns than the table's definition has. It will always do so if the definition, read
    again, is the same: then the reader raises `refusal` instead."""

    def refusal(self) -> Refused:
        return Refused(
            f"{self.what.rstrip('.')}, and reading the definition again does not change that.",
            where=self.where,
            code="schema.unsupported_type",
            remedy="exclude the table (tables.exclude), or change the column's type on the source",
        )


def definition_changed(how: str, *, where: str, kind: type[RetryLater] = RetryLater) -> RetryLater:
    return kind(
        f"The table is not defined as it was when its definition was read: {how}.",
        where=where,
        code="results.definition_changed",
        remedy="run it again, which reads the definition again; if this lasts, look for what alters the table",
    )


def malformed(what: str, *, where: str) -> RetryLater:
    """After it the connection is closed: nothing on it can be parsed."""
    return RetryLater(
        f"The server's answer is not a result set: {what}.",
        where=where,
        code="results.malformed",
        remedy="run it again; if this lasts, check what is between Lockstep and the server (a proxy may answer in its "
        "place), and report this with the server's version",
    )


@contextmanager
def translating(where: str) -> Iterator[None]:
    """Around statements: turns an error of the server into Lockstep's."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        raise translated(error, where=where) from None
