"""Errors of a target's server, by their number, as errors of Lockstep: one table for every job and every preflight.

A server's error never leaves a job unchanged. Its class says how to recover: RetryLater is worth an automatic retry,
Refused needs an operator, DataAtRisk a look at the row. A number that the table does not have is InternalError: the
server refused a statement of Lockstep's for an unforeseen reason.

Numbers from 1900 to 2000 and from 4000 on are MariaDB's, from 2000 to 2100 the client's; the servers share the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql

from cdc_core.connections import DENIED, GONE, quote, shown
from cdc_core.errors import DataAtRisk, LockstepError, Refused, RetryLater, defect
from cdc_core.target.server_words import reason

BUSY = frozenset({1205, 1206, 1213, 1412, 1614, 3058, 3101, 3572})
"""Lock waits, deadlocks, a definition that changed meanwhile, a transaction that a replication group rolled back."""
PASSING = (
    frozenset({3, 23, 24, 28, 1021, 1026, 1114, 1878})  # disk and files
    | {1037, 1038, 1040, 1041, 1135, 1203, 1226}  # memory, threads, connections
    | {1047, 1290, 1792, 1836, 3168, 3598}  # read-only, offline, not in its cluster
    | {1969, 3024}  # a limit on the time of statements
)
"""The server accepts no writes now."""
PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "CREATE TEMPORARY TABLES")
"""All privileges that an account needs on the databases of a target."""
_DENIED = DENIED | {1396, 1410}
ALTERED = frozenset({1049, 1051, 1054, 1091, 1146, 1932})
"""A database, table or column that existed when the job looked."""
NO_TABLE = frozenset({1049, 1146})
"""A database or table that does not exist."""
LIMITS = (
    frozenset({1117, 1118, 1163})  # columns, row size
    | {1069, 1070, 1071, 1170}  # keys
    | {1059, 1060, 1103, 1113, 1166, 1167}  # names
    | {1074, 1153, 1197, 1301, 1534}  # lengths, packets, the log of a transaction
)
"""Row size, number of columns, length of keys, reserved names, size of a packet or of a transaction's log."""
WRAPPED = frozenset({1005, 1030})
"""A statement that an engine refused, by the engine's own number in the text: an error of the operating system (no
memory, files or disk left), or a limit."""
_USED_UP = frozenset({12, 23, 24, 28, 122, 135, 136})
_ENGINES_NUMBER = re.compile(r"(?:errno:|[Ee]rror) (\d+)")
ENGINE = frozenset({1031, 1286, 1289, 1785, 1787, 3161})
"""An engine that is missing, disabled, or not transactional although GTIDs require it."""
LOCAL_INFILE = frozenset({1148, 2068, 3948, 4166})
ROW = (
    frozenset({1022, 1062, 1451, 1452, 1526, 1977, 3819, 4025})  # keys, partitions, checks
    | {1048, 1263, 1264, 1265, 1292, 1364, 1365, 1366, 1367, 1406, 1411, 1416, 1441, 1690, 4078}  # values
    | {3140, 3141, 3156}  # JSON
    | {1644}  # SIGNAL in a trigger
)
"""A row that the table rejects: a value, a check, a partition, a trigger's SIGNAL."""

GROUP = frozenset({3100})
"""Group Replication refused a transaction at its commit: it is above a limit of size, or the server left its group."""
KEYS_OF_GROUP = frozenset({3231})
"""The keys of a transaction's rows alone are above Group Replication's limit of size."""
NOT_IN_GROUP = frozenset({3098})
"""Group Replication takes no writes to the table."""


@dataclass(frozen=True, slots=True)
class _Fault:
    kind: type[LockstepError]
    code: str
    what: str
    remedy: str


_TABLE: tuple[tuple[Iterable[int], _Fault], ...] = (
    (BUSY, _Fault(RetryLater, "target.busy", "The target is busy", "run the task again; if this lasts, look for long "
                  "transactions on the target")),
    (GONE | PASSING, _Fault(RetryLater, "target.unavailable", "The target accepts no writes now",
                            "run the task again once the server accepts writes; if this lasts, check its log and its "
                            "disk, and whether it is a read-only replica (read_only, super_read_only): then point the "
                            "connection at another server")),
    (GROUP, _Fault(RetryLater, "target.group", "The target's replication group did not take the transaction",
                   "if this lasts, the transaction is too large for the group: raise "
                   "group_replication_transaction_size_limit on all of its servers; the server's log has the reason")),
    (KEYS_OF_GROUP, _Fault(Refused, "target.limit", "A transaction has too many rows for the replication group",
                           "raise group_replication_transaction_size_limit on all servers of the group")),
    (NOT_IN_GROUP, _Fault(Refused, "target.engine", "The target's replication group takes no writes to the table",
                          "give the table a primary key and ENGINE=InnoDB, as Group Replication requires")),
    (_DENIED, _Fault(Refused, "target.grant", "The target refused a statement",
                    f"GRANT {', '.join(PRIVILEGES)} ON the target's databases to the pipeline's account")),
    (ALTERED, _Fault(RetryLater, "target.altered", "The target's table was altered while the job ran",
                     "run the task again, which reads the definition again; if this lasts, run `lockstep check`")),
    (LIMITS, _Fault(Refused, "target.limit", "The server's limits leave too little space in the table for what "
                    "Lockstep adds to it",
                    "set guard.store: table, which adds no column; or make the longest columns TEXT or BLOB, rename "
                    "the column that the message names, raise the limit that it names, or leave the table out of the "
                    "target's tables")),
    (ENGINE, _Fault(Refused, "target.engine", "The table's storage engine cannot be written in a transaction",
                    "ALTER TABLE ... ENGINE=InnoDB")),
    (LOCAL_INFILE, _Fault(Refused, "target.local_infile", "The server does not allow LOAD DATA LOCAL INFILE",
                          "SET GLOBAL local_infile = ON on the target, and local_infile=ON in its option file")),
    (ROW, _Fault(DataAtRisk, "target.row_error", "A row does not fit the target table",
                 "change the target's column or constraint so that it takes what the source holds, then run the task "
                 "again")),
)  # fmt: skip
_BY_NUMBER = {number: fault for numbers, fault in _TABLE for number in numbers}


def number_of(error: pymysql.err.MySQLError) -> int:
    """The server's number; if an engine refused, the number of the error that this means."""
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    if number in WRAPPED:
        match = _ENGINES_NUMBER.search(str(error.args[-1]))
        return 1021 if match and int(match[1]) in _USED_UP else 1118 if number == 1005 else number
    return number


def known(error: pymysql.err.MySQLError) -> bool:
    return number_of(error) in _BY_NUMBER


def denied(error: pymysql.err.MySQLError) -> bool:
    """Whether the account lacks a privilege for the statement."""
    return number_of(error) in _DENIED


def transient(error: pymysql.err.MySQLError) -> bool:
    """Whether an immediate second attempt may succeed."""
    return number_of(error) in BUSY | GONE


def is_row_error(error: pymysql.err.MySQLError) -> bool:
    """Whether the statement failed because of a row that the table rejects."""
    return number_of(error) in ROW or (
        isinstance(error, pymysql.err.DataError | pymysql.err.IntegrityError) and not known(error)
    )


def translated(error: pymysql.err.MySQLError, *, where: str) -> LockstepError:
    """Lockstep's error for a server's."""
    number = number_of(error)
    fault = _BY_NUMBER.get(number)
    if fault is None and is_row_error(error):
        fault = _BY_NUMBER[1062]
    if fault is None:
        return defect(
            f"The target does not understand a statement: {reason(error)}.",
            where=where,
            code="target.statement",
            first="nothing was written",
            attach="the server's version and the table's definition",
        )
    # The other texts quote names, which show what to do, and no values of rows.
    said = reason(error) if fault.kind is DataAtRisk else f"{shown(error).rstrip('.')} ({error.args[0]})"
    return fault.kind(f"{fault.what}: {said}.", where=where, code=fault.code, remedy=fault.remedy)


def lacks(account: str, database: str, privileges: Sequence[str], *, where: str) -> Refused:
    user, _, host = account.rpartition("@")
    listed = ", ".join(privileges)
    return Refused(
        f"The account {account} lacks {listed} on {database}.",
        where=where,
        code="target.grant",
        remedy=f"GRANT {listed} ON {quote(database)}.* TO '{user}'@'{host}'",
    )


def sees_nothing_of(cursor: Any, database: str) -> Refused:
    """The error of an account to which a table of Lockstep's own in the database is denied."""
    cursor.execute("SELECT CURRENT_USER()")
    return lacks(str(cursor.fetchone()[0]), database, PRIVILEGES, where=database)


@contextmanager
def translating(where: str) -> Iterator[None]:
    """Around statements to a target: turns an error of its server into Lockstep's."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        raise translated(error, where=where) from None
