"""What a source server is, has and allows, asked over an ordinary connection.

It may assume a connection that `connections.connect` opened. It must keep true that each statement works on
MariaDB 10.6 to 11 and MySQL 8 to 9, and that a lost connection is RetryLater and a missing privilege Refused.
The requirements that a server must meet are in `server`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pymysql

from cdc_core.errors import Refused
from cdc_core.model.position import Position
from cdc_core.mysql import server_errors
from cdc_core.mysql.connections import answers, identity_in, sensible
from cdc_core.mysql.server_errors import RETRIED, ErrorKind, kind_of

log = logging.getLogger(__name__)

PARSE_ERROR = 1064
_REPLICA_STATUS = ("SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
"""MariaDB knows the others too, and means by them the connection without a name alone."""

_OWN = "SET GLOBAL binlog_expire_logs_seconds"
_MANAGED = "CALL mysql.rds_set_configuration('binlog retention hours', …)"

Rows = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Grants:
    """Privileges of the account. everywhere: upper-case names granted ON *.*; select_on: `database.table` scopes,
    as SHOW GRANTS writes them without quotes, on which it may SELECT."""

    everywhere: frozenset[str]
    select_on: tuple[str, ...]

    def has(self, *names: str) -> bool:
        """Whether one of the privileges holds on *.*."""
        return bool(self.everywhere & {"ALL PRIVILEGES", "ALL", *names})


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that is registered at the server. host: as it reported itself, maybe empty."""

    server_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """flavor: 'mysql' or 'mariadb'. identity: see Checkpoint.server. retention_s: 0 means for ever. retained_by: what
    sets it.

    log_engine: the storage engine that has the log, instead of files (MariaDB 12.3); else "".
    lower_case: it compares names of tables and databases in lower case.
    clock_us: the server's clock when asked. is_replica: None where the account may not know.
    filters: databases of binlog-do-db and binlog-ignore-db. Names of variables' values are upper-case.
    """

    version: str
    flavor: str
    identity: str
    server_id: int
    log_bin: bool
    log_engine: str
    binlog_format: str
    row_image: str
    row_metadata: str
    checksum: str
    retention_s: int
    gtid_mode: str
    logs_replicated: bool
    is_replica: bool | None
    filters: tuple[str, ...]
    clock_us: int
    grants: Grants
    replicas: tuple[Replica, ...]
    lower_case: bool = False
    retained_by: str = _OWN
    gtid_strict: bool = True
    """MariaDB: whether the numbers of a domain's transactions grow in this server's log (gtid_strict_mode)."""

    @property
    def mariadb(self) -> bool:
        return self.flavor == "mariadb"

    def without_replica(self, host: str) -> ServerFacts:
        """The same without the replicas that registered under this name; as it is for ""."""
        return replace(self, replicas=tuple(replica for replica in self.replicas if not host or replica.host != host))


@dataclass(frozen=True, slots=True)
class BinlogFile:
    name: str
    size_bytes: int


def as_text(value: object) -> str:
    """MySQL 8 returns some columns of INFORMATION_SCHEMA as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def query(connection: pymysql.Connection, sql: str, arguments: Sequence[object] = ()) -> Rows:
    """The rows of a query. A connection that was lost meanwhile is opened again, once.

    Raises RetryLater (connection.unreachable), Refused (connection.grant); other server errors as PyMySQL's.
    """
    for attempt in (1, 2):
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, tuple(arguments) or None)
                return tuple(cursor.fetchall())
        except (pymysql.err.OperationalError, pymysql.err.InterfaceError, pymysql.err.InternalError) as error:
            if kind_of(error) is not ErrorKind.GONE or attempt == 2:
                who = f"{as_text(connection.user)}@{connection.host}:{connection.port}"
                raise explained(error, sql, who) from None
        try:
            connection.ping(reconnect=True)
        except pymysql.err.MySQLError as error:
            raise server_errors.explained(error, where="source") from None
    raise AssertionError("unreachable")


def explained(error: pymysql.err.MySQLError, sql: str, who: str = "source") -> Exception:
    """A server's error, for its class; itself where the statement decides what it means. who: the account there; the
    source of a way back is a server of the target."""
    kind = kind_of(error)
    if kind in RETRIED or kind in (ErrorKind.LOGIN, ErrorKind.STATE):
        return server_errors.explained(error, where="source")
    if kind is ErrorKind.DENIED:
        return Refused(
            f"The account may not run {sql.split('(')[0].strip()[:60]!r}: {error.args[-1]}.",
            where=who,
            code="connection.grant",
            remedy="on that server: GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO the account",
        )
    return error


_VARIABLES = (
    "version", "server_id", "server_uuid", "log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata",
    "binlog_checksum", "binlog_expire_logs_seconds", "expire_logs_days", "gtid_mode", "log_replica_updates",
    "log_slave_updates", "lower_case_table_names", "gtid_strict_mode", "binlog_storage_engine",
)  # fmt: skip


def _managed_retention_s(connection: pymysql.Connection) -> int | None:
    """A server of Amazon RDS purges its log by a setting of its own, whatever the server's variable says: without one,
    as soon as its replicas and backups have it. None elsewhere, and where the account may not ask."""
    with suppress(pymysql.err.ProgrammingError, pymysql.err.OperationalError, Refused):
        rows = query(connection, "SELECT value FROM mysql.rds_configuration WHERE name = 'binlog retention hours'")
        return int(as_text(rows[0][0])) * 3600 if rows and rows[0][0] is not None else 1
    return None


@answers("source")
def facts(connection: pymysql.Connection) -> ServerFacts:
    """Everything about the server that a requirement or a message needs. Needs no privilege beyond the login."""
    marks = ", ".join(["%s"] * len(_VARIABLES))
    rows = query(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", _VARIABLES)
    value = {str(name).lower(): str(text) for name, text in rows}
    version = str(query(connection, "SELECT VERSION()")[0][0])
    mariadb = "mariadb" in version.lower()
    retention_s = int(float(value.get("binlog_expire_logs_seconds") or 0))
    if not retention_s:
        retention_s = int(float(value.get("expire_logs_days") or 0) * 86_400)
    managed_s = _managed_retention_s(connection)
    return ServerFacts(
        version=version,
        flavor="mariadb" if mariadb else "mysql",
        identity=identity_in(value),
        server_id=int(value["server_id"]),
        log_bin=value.get("log_bin", "").upper() in ("ON", "1"),
        log_engine=value.get("binlog_storage_engine", ""),
        binlog_format=value.get("binlog_format", "ROW").upper(),
        row_image=value.get("binlog_row_image", "FULL").upper(),
        row_metadata=value.get("binlog_row_metadata", "").upper(),
        checksum=value.get("binlog_checksum", "").upper(),
        retention_s=retention_s if managed_s is None else managed_s,
        retained_by=_OWN if managed_s is None else _MANAGED,
        gtid_mode=value.get("gtid_mode", "").upper(),
        logs_replicated=value.get("log_replica_updates", value.get("log_slave_updates", "ON")).upper() in ("ON", "1"),
        is_replica=_is_replica(connection),
        filters=_filters(connection),
        clock_us=now_us(connection),
        grants=parse_grants([str(row[0]) for row in query(connection, "SHOW GRANTS")]),
        replicas=_replicas(connection),
        lower_case=value.get("lower_case_table_names", "0") != "0",
        gtid_strict=value.get("gtid_strict_mode", "ON").upper() in ("ON", "1"),
    )


@answers("source")
def lower_case_names(connection: pymysql.Connection) -> bool:
    """Whether the server compares names of tables and databases in lower case (lower_case_table_names 1 and 2)."""
    return int(query(connection, "SELECT @@GLOBAL.lower_case_table_names")[0][0]) != 0


@sensible("source")
def now_us(connection: pymysql.Connection) -> int:
    """The server's clock in µs UTC."""
    return int(query(connection, "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)")[0][0])


def _first_known(connection: pymysql.Connection, *statements: str) -> Rows:
    """The rows of the first statement that this server can parse: they were renamed over the years."""
    for statement in statements:
        try:
            return query(connection, statement)
        except pymysql.err.ProgrammingError as error:
            if error.args[0] != PARSE_ERROR:
                raise
    raise Refused(
        f"The server knows none of the statements {', '.join(statements)}.",
        where="source",
        code="connection.answer",
        remedy="read a MariaDB 10.6 to 11 or a MySQL 8 to 9; if it is one, report its version",
    )


@sensible("source")
def log_status(connection: pymysql.Connection) -> tuple[Any, ...] | None:
    """File, position, do-db, ignore-db and, on MySQL, executed GTID set of the log's end; None when it is off."""
    rows = _first_known(connection, "SHOW BINARY LOG STATUS", "SHOW BINLOG STATUS", "SHOW MASTER STATUS")
    if rows and len(rows[0]) < 2:
        raise ValueError(f"{len(rows[0])} columns")
    return rows[0] if rows else None


@answers("source")
def end_position(connection: pymysql.Connection, timeline: int) -> Position:
    """The end of the log at this moment. Raises Refused (connection.setting)."""
    row = log_status(connection)
    if row is None:
        raise log_off()
    return Position(timeline, str(row[0]), int(row[1]))


def log_off() -> Refused:
    return Refused(
        "The server does not write a binary log.",
        where="source",
        code="connection.setting",
        remedy="start the source with log_bin (and binlog_format=ROW)",
    )


@answers("source")
def binlog_files(connection: pymysql.Connection) -> tuple[BinlogFile, ...]:
    """The files that the server still has, oldest first. Raises Refused (connection.setting)."""
    try:
        rows = query(connection, "SHOW BINARY LOGS")
    except pymysql.err.MySQLError as error:
        if error.args[0] == 1381:  # ER_NO_BINARY_LOGGING
            raise log_off() from None
        raise
    return tuple(BinlogFile(str(row[0]), int(row[1])) for row in rows)


@answers("source")
def gtid_executed(connection: pymysql.Connection) -> str:
    """What the server has executed, in its own text form; "" without GTIDs."""
    if "mariadb" in str(query(connection, "SELECT VERSION()")[0][0]).lower():
        text = query(connection, "SELECT @@GLOBAL.gtid_binlog_pos")[0][0]
    else:
        text = query(connection, "SELECT @@GLOBAL.gtid_executed")[0][0]
    return str(text or "").replace("\n", "").replace(" ", "")


@answers("source")
def logged_gtids(connection: pymysql.Connection, *, mariadb: bool) -> str:
    """The GTIDs of everything that is in the log now, executed or not.

    A transaction is sent to replicas, and to us, once it is logged; MySQL counts it as executed when the engine has
    committed it, which takes long where a semi-synchronous replica must acknowledge first.
    """
    if mariadb:
        return gtid_executed(connection)
    # A transaction is owned until it is executed: asked for in this order, it is in one of the two.
    owned = as_text(query(connection, "SELECT @@GLOBAL.gtid_owned")[0][0] or "")
    executed = "".join(as_text(query(connection, "SELECT @@GLOBAL.gtid_executed")[0][0] or "").split())
    # uuid:5#17:6#18 are two, with the threads that own them
    return ",".join(gtids for gtids in (re.sub(r"#\d+", "", owned), executed) if gtids)


@answers("source")
def gtid_purged(connection: pymysql.Connection) -> str:
    """MySQL: what was executed and is not in any file of the log, because it was purged or was never logged."""
    return "".join(str(query(connection, "SELECT @@GLOBAL.gtid_purged")[0][0] or "").split())


def replica_channels(connection: pymysql.Connection, *, mariadb: bool) -> list[dict[str, Any]]:
    """What a replica says of each server that it follows, by the server's own names; [] for one that follows none.

    Raises what PyMySQL raises.
    """
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute("SHOW ALL SLAVES STATUS" if mariadb else "SHOW REPLICA STATUS")
        return list(cursor.fetchall())


@answers("source")
def written_beside(connection: pymysql.Connection) -> str:
    """The cluster whose other servers take writes, too, which this one gets without a lock; "" for none."""
    rows = query(
        connection,
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on', 'group_replication_single_primary_mode')",
    )
    value = {str(name).lower(): str(text).upper() for name, text in rows}
    if value.get("wsrep_on", "OFF") in ("ON", "1"):
        return "a Galera cluster"
    if value.get("group_replication_single_primary_mode", "ON") in ("OFF", "0"):
        return "a group with several primaries (Group Replication)"
    return ""


@answers("source")
def applies_replicated(connection: pymysql.Connection) -> bool:
    """Whether it is a replica whose SQL thread runs: what it lacks may still come."""
    return any(row.get("Replica_SQL_Running") == "Yes" for row in _channels(connection))


@answers("source")
def has_more_to_apply(connection: pymysql.Connection) -> bool:
    """Whether it is a replica that has received what it has not applied, or that will receive more when the server that
    it follows can be reached again."""
    for row in _channels(connection):
        received = row.get("Source_Log_File"), row.get("Read_Source_Log_Pos")
        if (row.get("Relay_Source_Log_File"), row.get("Exec_Source_Log_Pos")) != received:
            return True
        if row.get("Replica_SQL_Running") == "Yes" and row.get("Replica_IO_Running") != "Yes":
            return True
    return False


def _channels(connection: pymysql.Connection) -> list[dict[str, Any]]:
    """As `replica_channels`, by the newer names; [] where the account may not ask."""
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        for statement in _REPLICA_STATUS:
            with suppress(pymysql.err.ProgrammingError, pymysql.err.OperationalError):
                cursor.execute(statement)
                return [
                    {name.replace("Master", "Source").replace("Slave", "Replica"): value for name, value in row.items()}
                    for row in cursor.fetchall()
                ]
    return []


@answers("source")
def gtid_at(connection: pymysql.Connection, position: Position, *, mariadb: bool) -> str:
    """What is executed before a position, where the server can say: MariaDB for a place it still has; else ""."""
    if not mariadb:
        return ""
    rows = query(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (position.file, position.offset))
    return str(rows[0][0] or "")


def _filters(connection: pymysql.Connection) -> tuple[str, ...]:
    try:
        row = log_status(connection)
    except Refused:
        return ()
    if row is None:
        return ()
    named = (
        (name, str(text or "")) for name, text in zip(("binlog-do-db", "binlog-ignore-db"), row[2:4], strict=False)
    )
    return tuple(f"{name}={text}" for name, text in named if text)


def _is_replica(connection: pymysql.Connection) -> bool | None:
    try:
        return bool(_first_known(connection, *_REPLICA_STATUS))
    except Refused:
        return None


def _replicas(connection: pymysql.Connection) -> tuple[Replica, ...]:
    """The replicas that registered; () where the account may not know."""
    with suppress(Refused):
        rows = _first_known(connection, "SHOW REPLICAS", "SHOW REPLICA HOSTS", "SHOW SLAVE HOSTS")
        return tuple(Replica(int(row[0]), str(row[1] or ""), int(row[2] or 0)) for row in rows)
    return ()


_GRANT = re.compile(
    r"^GRANT (?P<what>.+?) ON (?:TABLE )?(?P<scope>(?:`(?:[^`]|``)*`|\*)\.(?:`(?:[^`]|``)*`|\*)) TO ", re.S
)
_COLUMNS = re.compile(r"\s*\([^)]*\)")


def parse_grants(lines: Sequence[str]) -> Grants:
    """Privileges from the lines of SHOW GRANTS."""
    everywhere: set[str] = set()
    select_on: list[str] = []
    for line in lines:
        match = _GRANT.match(line)
        if match is None:
            continue
        names = {name.strip().upper() for name in _COLUMNS.sub("", match["what"]).split(",")}
        scope = match["scope"].replace("`", "")
        if scope == "*.*":
            everywhere |= names
        if names & {"SELECT", "ALL PRIVILEGES", "ALL"}:
            select_on.append(scope)
    return Grants(frozenset(everywhere), tuple(select_on))
