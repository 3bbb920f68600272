"""Errors of reading a result set: the server's, by their class, and those of an answer that is not what was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pymysql

from cdc_core.errors import DefinitionChanged, LockstepError, Refused, RetryLater, TableRefused, TableUnready
from cdc_core.mysql.server_errors import RETRIED, ErrorKind, explained, kind_of, number_of, said_by


def is_altered(error: BaseException | None) -> bool:
    """Whether something is not there that was when the definition was read; 1412: a snapshot older than it."""
    return isinstance(error, pymysql.err.MySQLError) and (
        kind_of(error) is ErrorKind.ALTERED or number_of(error) == 1412
    )


def translated(error: pymysql.err.MySQLError, *, where: str) -> LockstepError:
    """Lockstep's error for a server's."""
    kind, said = kind_of(error), said_by(error)
    if is_altered(error):
        return definition_changed(said, where=where)
    if kind in RETRIED or kind is ErrorKind.GROUP:
        return TableUnready(
            f"The server stopped sending rows: {said}.",
            where=where,
            code="connection.unreachable",
            remedy="run again; if it lasts, check the server's log and load, and what ends its statements",
        )
    if kind is ErrorKind.DENIED:
        return Refused(
            f"The account may not read the table: {said}.",
            where=where,
            code="connection.grant",
            remedy="GRANT SELECT ON the table that the message names to the account",
        )
    if kind in (ErrorKind.LOGIN, ErrorKind.STATE):
        return explained(error, where=where)
    return Refused(
        f"The server refused to read the table: {said}.",
        where=where,
        code="connection.statement",
        remedy="do what the server's message says; check a damaged table with CHECK TABLE",
    )


class UnlikeDefinition(DefinitionChanged):
    """The server announces other columns than the table's definition has. It will always do so if the definition, read
    again, is the same: then the reader raises `refusal` instead."""

    def refusal(self) -> Refused:
        return TableRefused(
            f"{self.what.rstrip('.')}, and its definition, read again, is the same.",
            where=self.where,
            code="source.unsupported_table",
            remedy="exclude the table (tables.exclude), or change the column's type on the source",
        )


def definition_changed(how: str, *, where: str, kind: type[DefinitionChanged] = DefinitionChanged) -> DefinitionChanged:
    return kind(
        f"The table was altered after its definition was read: {how}.",
        where=where,
        remedy="run again, which reads the definition again; if it lasts, find what alters the table",
    )


def malformed(what: str, *, where: str) -> RetryLater:
    """After it the connection is closed: nothing on it can be parsed."""
    return TableUnready(
        f"The server's answer is not a result set: {what}.",
        where=where,
        code="connection.unreachable",
        remedy="run again; if it lasts, look for a proxy that answers in the server's place, and report this with "
        "the server's version",
    )


@contextmanager
def translating(where: str) -> Iterator[None]:
    """Around statements: turns an error of the server into Lockstep's."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        raise translated(error, where=where) from None
