"""Classifies errors of MySQL and MariaDB servers: one table of the servers' numbers, by class, for all packages.

Only classes that pass without an operator are worth a retry: GONE, BUSY and PASSING. A number that is not in the table
is UNKNOWN, and is refused with the server's words: it is not a defect in Lockstep, and it may last. A package that
knows more about its own statements words some classes itself (target_faults, reading_faults, source_faults);
`explained` words all others.

Numbers from 1900 to 2000 and from 4000 on are MariaDB's, from 2000 to 2100 the client's; the servers share the rest.
"""

from __future__ import annotations

import re
from enum import Enum

import pymysql

from cdc_core.errors import ConnectionLost, LockstepError, Refused

_SHOWN = 500


class ErrorKind(Enum):
    """A class of errors, with their numbers."""

    GONE = 0, 1042, 1043, 1053, 1152, 1158, 1159, 1160, 1161, 1317, 1927, 2003, 2006, 2013, 2014, 2055, 3169, 4031
    """The connection broke, or someone ended it or its statement; another attempt on a new connection may succeed."""
    BUSY = 1020, 1205, 1206, 1213, 1412, 1614, 3058, 3101, 3572
    """A lock wait, a deadlock, a row that changed since the snapshot, a transaction that a replication group rolled
    back."""
    PASSING = (
        3, 23, 24, 28, 1021, 1026, 1114, 1878,  # disk and files
        1037, 1038, 1040, 1041, 1135, 1203, 1226, 1461, 1637,  # memory, threads, connections, transactions
        9001, 9002,  # ProxySQL has no server to ask at the moment
        1047, 1290, 1792, 1836, 3032, 3168, 1969, 3024,  # read-only, offline, not in its cluster; time of statements
    )  # fmt: skip
    """The server cannot do it now."""
    LOGIN = 1130, 1251, 1698, 1820, 1862, 2059, 3118, 3159, 3955, 4150, 4151
    """The server does not let the account in, or not before someone has changed the account."""
    STATE = 1129, 1184, 3989
    """Someone has put a schema, the server or this host into a state that lasts until somebody ends it."""
    DENIED = 1044, 1045, 1142, 1143, 1227, 1370, 1396, 1410
    """The account lacks a privilege; to a login (1045), the password or the account is wrong."""
    ALTERED = 1049, 1051, 1054, 1072, 1091, 1146, 1176, 1932
    """A database, table, column or index is not there, which was when we looked."""
    LIMIT = (
        1117, 1118, 1163, 1069, 1070, 1071, 1170,  # columns, row size, keys
        1059, 1060, 1103, 1113, 1166, 1167, 1074, 1153, 1197, 1301, 1534,  # names, lengths, packets, logs
    )  # fmt: skip
    ENGINE = 1031, 1286, 1289, 1785, 1787, 3161
    """An engine that is missing, disabled, or not transactional although GTIDs require it."""
    LOCAL_INFILE = 1148, 2068, 3948, 4166
    ROW = (
        1022, 1062, 1451, 1452, 1526, 1977, 3819, 4025,  # keys, partitions, checks
        1048, 1263, 1264, 1265, 1292, 1364, 1365, 1366, 1367, 1406, 1411, 1416, 1441, 1690, 4078,  # values
        3140, 3141, 3156, 1644,  # JSON, SIGNAL in a trigger
    )  # fmt: skip
    """A row that the table rejects."""
    GROUP = (3100,)
    """Group Replication refused a transaction at its commit: it is too large, or the server left its group."""
    KEYS_OF_GROUP = (3231,)
    """The keys of a transaction's rows alone are above Group Replication's limit of size."""
    NOT_IN_GROUP = (3098,)
    """Group Replication takes no writes to the table."""
    UNKNOWN = ()


_KINDS = {number: kind for kind in ErrorKind for number in kind.value}
RETRIED = frozenset({ErrorKind.GONE, ErrorKind.BUSY, ErrorKind.PASSING})
NO_TABLE = frozenset({1049, 1146})
"""A database or table that does not exist."""
LOCKED = frozenset({1205, 1213})
"""A wait for a lock that took too long, and a deadlock."""

_EXPIRED = "change the account's password (ALTER USER … IDENTIFIED BY …), and put the new one into the connection"
_BLOCKED = (
    "wrong passwords have blocked the account, and each further one blocks it longer: correct the password in the "
    "connection first, then unblock the account (ALTER USER … ACCOUNT UNLOCK; on MariaDB FLUSH PRIVILEGES)"
)
_LOCKED = "ALTER USER … ACCOUNT UNLOCK"
_REMEDIES = {
    1820: _EXPIRED, 1862: _EXPIRED, 3955: _BLOCKED, 4150: _BLOCKED, 3118: _LOCKED, 4151: _LOCKED,
    3159: "the server demands TLS: write ssl_mode=VERIFY_IDENTITY&ssl_ca=/path/ca.pem into the connection",
    1129: "FLUSH HOSTS on the server (TRUNCATE performance_schema.host_cache), and find out why connections broke off",
    1184: "correct init_connect on the server, which fails for the account; the server's log says why",
    3989: "ALTER SCHEMA … READ ONLY = 0, once the work for which it was made read-only is over",
    1040: "raise max_connections, or end sessions; the next attempt may find a free connection",
    1203: "raise the account's limit (MAX_USER_CONNECTIONS, max_user_connections), or end its other sessions",
    1226: "raise the account's limit that the message names (ALTER USER … WITH …), or wait until its hour is over",
}  # fmt: skip
"""What to do, where the number says more than its class."""
_WRAPPED = frozenset({1005, 1030})
"""A statement that an engine refused, by the engine's own number in the text: an error of the operating system (no
memory, files or disk left), or a limit."""
_USED_UP = frozenset({12, 23, 24, 28, 122, 135, 136})
_ENGINES_NUMBER = re.compile(r"(?:errno:|[Ee]rror) (\d+)")


def number_of(error: BaseException) -> int:
    """The server's number; if an engine refused, the number of the error that this means."""
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    if number in _WRAPPED:
        match = _ENGINES_NUMBER.search(str(error.args[-1]))
        return 1021 if match and int(match[1]) in _USED_UP else 1118 if number == 1005 else number
    return number


def kind_of(error: BaseException) -> ErrorKind:
    return _KINDS.get(number_of(error), ErrorKind.UNKNOWN)


def explained(error: pymysql.err.MySQLError, *, where: str, who: str = "The server", said: str = "") -> LockstepError:
    """The error for its class alone. said: the server's message as it may be shown."""
    number, kind = number_of(error), kind_of(error)
    said = said or said_by(error)
    if kind in RETRIED:
        how = "cannot be reached" if kind is ErrorKind.GONE else "cannot do it now"
        lasts = _REMEDIES.get(number, "check that the server runs, its log and load, and that host and port are right")
        remedy = f"nothing is lost, and the next attempt may succeed; if this lasts, {lasts}"
        return ConnectionLost(f"{who} {how}: {said}.", where=where, remedy=remedy)
    if kind in (ErrorKind.LOGIN, ErrorKind.DENIED):
        own = "check user, password, the host the account may connect from, and its privileges"
        remedy = _REMEDIES.get(number, own)
        return Refused(f"{who} refused the account: {said}.", where=where, code="connection.denied", remedy=remedy)
    if kind is ErrorKind.STATE:
        return Refused(f"{who} refuses: {said}.", where=where, code="connection.statement", remedy=_REMEDIES[number])
    return Refused(
        f"{who} refused a statement: {said}.",
        where=where,
        code="connection.statement",
        remedy="the server's message says what it refuses; if nothing at the server explains it, check that it is a "
        "MySQL or MariaDB that Lockstep supports, and report the message with the server's version",
    )


def said_by(error: BaseException) -> str:
    """The server's message and number, without a full stop."""
    said = shown(error).rstrip(".")
    return f"{said} ({error.args[0]})" if said else "the connection is closed"


def shown(error: BaseException) -> str:
    """The server's message, which may be anything, on one line and shortened for a message."""
    return one_line(str(error.args[-1] if error.args else error))


def one_line(text: str) -> str:
    """Untrusted text in a form that a message may show."""
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
