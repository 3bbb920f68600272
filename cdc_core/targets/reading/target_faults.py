"""Errors of a target's server, by their class, as errors of Lockstep: one table for every job and every preflight.

A server's error never leaves a job unchanged. Its class says how to recover: RetryLater is worth an automatic retry,
Refused needs an operator, DataAtRisk a look at the row. Messages end up in logs, in the meta database and on the page:
of a text that a message about a rejected row quotes, only the names of columns, keys, constraints and tables are left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql

from cdc_core.errors import DataAtRisk, LockstepError, Refused, RetryLater, TargetAltered, TargetBusy
from cdc_core.mysql.connections import one_line, quote
from cdc_core.mysql.server_errors import ErrorKind, explained, kind_of, said_by

PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "CREATE TEMPORARY TABLES")
"""All privileges that an account needs on the databases of a target."""


@dataclass(frozen=True, slots=True)
class _Fault:
    kind: type[LockstepError]
    code: str
    what: str
    remedy: str


_UNAVAILABLE = _Fault(
    RetryLater,
    "connection.unreachable",
    "The target accepts no writes now",
    "run the task again once the server accepts writes; if this lasts, check its log and its disk, the limit that the "
    "message names, and whether it is a read-only replica (read_only, super_read_only): then point the connection at "
    "another server",
)
_FAULTS: dict[ErrorKind, _Fault] = {
    ErrorKind.BUSY: _Fault(TargetBusy, "target.busy", "The target is busy",
                      "run the task again; if this lasts, look on the target for long transactions, and for a backup "
                      "that keeps tables from being made or altered (LOCK INSTANCE FOR BACKUP, FLUSH TABLES WITH READ "
                      "LOCK, BACKUP STAGE)"),
    ErrorKind.PASSING: _UNAVAILABLE,
    ErrorKind.GONE: _UNAVAILABLE,
    ErrorKind.GROUP: _Fault(RetryLater, "target.busy", "The target's replication group did not take the transaction",
                   "if this lasts, the transaction is too large for the group: raise "
                   "group_replication_transaction_size_limit on all of its servers; the server's log has the reason"),
    ErrorKind.KEYS_OF_GROUP: _Fault(Refused, "target.limit",
                           "A transaction has too many rows for the replication group",
                           "raise group_replication_transaction_size_limit on all servers of the group"),
    ErrorKind.NOT_IN_GROUP: _Fault(Refused, "target.definition",
                          "The target's replication group takes no writes to the table",
                          "give the table a primary key and ENGINE=InnoDB, as Group Replication requires"),
    ErrorKind.DENIED: _Fault(Refused, "connection.grant", "The target refused a statement",
                    f"GRANT {', '.join(PRIVILEGES)} ON the target's databases to the pipeline's account"),
    ErrorKind.ALTERED: _Fault(TargetAltered, "target.busy", "The target's table was altered while the job ran",
                     "run the task again, which reads the definition again; if this lasts, run `lockstep check`"),
    ErrorKind.LIMIT: _Fault(Refused, "target.limit", "The server's limits leave too little space in the table for what "
                    "Lockstep adds to it",
                    "set guard.store: table, which adds no column; or make the longest columns TEXT or BLOB, rename "
                    "the column that the message names, raise the limit that it names, or leave the table out of the "
                    "target's tables"),
    ErrorKind.ENGINE: _Fault(Refused, "target.definition",
                    "The table's storage engine cannot be written in a transaction",
                    "ALTER TABLE ... ENGINE=InnoDB"),
    ErrorKind.LOCAL_INFILE: _Fault(Refused, "connection.setting", "The server does not allow LOAD DATA LOCAL INFILE",
                          "SET GLOBAL local_infile = ON on the target, and local_infile=ON in its option file"),
    ErrorKind.ROW: _Fault(DataAtRisk, "target.row_error", "A row does not fit the target table",
                 "change the target's column or constraint so that it takes what the source holds, then run the task "
                 "again"),
}  # fmt: skip


def known(error: pymysql.err.MySQLError) -> bool:
    return kind_of(error) is not ErrorKind.UNKNOWN


def denied(error: pymysql.err.MySQLError) -> bool:
    """Whether the account lacks a privilege for the statement."""
    return kind_of(error) is ErrorKind.DENIED


def is_row_error(error: pymysql.err.MySQLError) -> bool:
    """Whether the statement failed because of a row that the table rejects."""
    return kind_of(error) is ErrorKind.ROW or (
        isinstance(error, pymysql.err.DataError | pymysql.err.IntegrityError) and not known(error)
    )


def translated(error: pymysql.err.MySQLError, *, where: str) -> LockstepError:
    """Lockstep's error for a server's."""
    fault = _FAULTS[ErrorKind.ROW] if is_row_error(error) else _FAULTS.get(kind_of(error))
    if fault is None:
        return explained(error, where=where, who="The target", said=reason(error))
    # The other texts quote names, which show what to do, and no values of rows.
    said = reason(error) if fault.kind is DataAtRisk else said_by(error)
    return fault.kind(f"{fault.what}: {said}.", where=where, code=fault.code, remedy=fault.remedy)


def lacks(cursor: Any, database: str, privileges: Sequence[str], *, where: str) -> Refused:
    cursor.execute("SELECT CURRENT_USER()")
    account = str(cursor.fetchone()[0])
    user, _, host = account.rpartition("@")
    listed = ", ".join(privileges)
    return Refused(
        f"The account {account} lacks {listed} on the whole database {database}; grants on its tables do not count.",
        where=where,
        code="connection.grant",
        remedy=f"GRANT {listed} ON {quote(database)}.* TO '{user}'@'{host}'",
    )


@contextmanager
def translating(where: str) -> Iterator[None]:
    """Around statements to a target: turns an error of its server into Lockstep's."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        raise translated(error, where=where) from None


_SIGNAL = 1644
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^Duplicate entry '.*' for key (?P<rest>'[^']*')$", re.S), "Duplicate entry for key {rest}"),
    (
        re.compile(
            r"^(?P<what>(?:Truncated i|I)ncorrect .+? (?:value|string)): '.*'(?P<rest> for (?:column|function) .*)?$",
            re.S,
        ),
        "{what}{rest}",
    ),
    (re.compile(r"^(?P<what>Invalid .+? (?:string|value)): '.*'(?P<rest> in column .*)?$", re.S), "{what}{rest}"),
)
_NAMES_ONLY = frozenset({1048, 1054, 1146, 1264, 1265, 1364, 1406, 1451, 1452, 1526, 3140, 3819, 4025, _SIGNAL})
"""Errors whose texts quote names only. 1644 is a trigger's own: its author decides what it says."""
_QUOTED = re.compile(r"'(?:[^']|'')*'?", re.S)


def without_values(number: int, text: str) -> str:
    """The server's message of an error or warning."""
    for pattern, kept in _PATTERNS:
        match = pattern.match(text)
        if match:
            return one_line(kept.format(**{name: found or "" for name, found in match.groupdict().items()}))
    return one_line(text if number in _NAMES_ONLY else _QUOTED.sub("'…'", text))


def reason(error: pymysql.err.MySQLError) -> str:
    """Why a statement failed, with the error's number."""
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    return f"{without_values(number, str(error.args[-1]))} ({number})"
