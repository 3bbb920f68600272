"""One stream per server_id: which stream has it, and the claim that a stream makes before it asks for the log.

A server ends the older of two streams with one server_id, so that a newcomer would end the one that runs. A stream
therefore takes two named locks (GET_LOCK) on its own connection before the dump command: one of the server_id, one of
the extractor's name. The server keeps both exactly as long as it keeps the stream, also where the account may not see
the registered replicas (MariaDB: REPLICATION MASTER ADMIN). A lock of the server_id on a connection that also has the
lock of our name was left by an earlier extractor of ours; only that connection is ended.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import pymysql

from cdc_core.errors import Refused
from cdc_core.mysql.connections import answers, sensible
from cdc_core.mysql.server_errors import ErrorKind, kind_of
from cdc_core.source.host.server_facts import query

log = logging.getLogger(__name__)

PREFIX = "lockstep-"
LONGEST_NAME = 16
"""Characters of a pipeline's and a source's name within the host name; servers take 60 bytes of a host name."""
ENDING_S = 1
"""How long the server may take to release a stream that its extractor has ended."""
HANDOVER_S = 5
"""How long the server may take to end the connection that an earlier extractor of ours has left."""


def replica_host(pipeline: str, source: str, identity: str) -> str:
    """The host name under which an extractor registers itself. identity: see Lease.identity."""
    return f"{PREFIX}{pipeline[:LONGEST_NAME]}-{source[:LONGEST_NAME]}-{identity}"


@answers("source")
def require_unclaimed(connection: pymysql.Connection, server_id: int, host: str, *, source: str) -> None:
    """Checks the locks that streams hold. Raises Refused (source.server_id_taken)."""
    try:
        holder, ours = _holders(connection, server_id, host)
    except pymysql.err.MySQLError as error:
        _unlocked(error)
        return
    if holder is not None and holder != ours:
        raise taken(server_id, _owner(connection, holder), source)


@sensible("source")
def claim(connection: pymysql.Connection, server_id: int, host: str, *, source: str) -> None:
    """Takes both locks on the connection whose next command asks for the log. Raises Refused (source.server_id_taken)
    while another extractor reads under the server_id; ends the connection that an earlier one of ours has left."""
    try:
        holder, ours = _holders(connection, server_id, host)
        if holder is not None and holder == ours:
            log.info("%s: ending connection %d, left by an earlier extractor of this pipeline", source, holder)
            end_connection(connection, holder)
        if not _lock(connection, _of_server_id(server_id), HANDOVER_S if holder == ours else ENDING_S):
            holder, ours = _holders(connection, server_id, host)
            if holder is not None and holder != ours:
                raise taken(server_id, _owner(connection, holder), source)
            # It is ours and cannot be ended from here: the server ends it when it gets our dump command.
        _lock(connection, host, HANDOVER_S)
    except pymysql.err.MySQLError as error:
        _unlocked(error)


def end_connection(connection: pymysql.Connection, number: int) -> None:
    """Any account may end its own connections. It is not an error if it has already ended."""
    with suppress(pymysql.err.MySQLError):
        query(connection, f"KILL {number}")


def taken(server_id: int, owner: str, source: str) -> Refused:
    return Refused(
        f"server_id {server_id} is used by {owner}.",
        where=source,
        code="source.server_id_taken",
        remedy="give the source in the pipeline file a server_id that no other replica has, such as one drawn by "
        "`lockstep init`: the server ends the older of two streams with one server_id. If it belongs to an extractor "
        "that was killed, the server releases it within seconds, unless its machine or network died: then KILL the "
        "connection",
    )


def _of_server_id(server_id: int) -> str:
    return f"{PREFIX}server_id-{server_id}"


def _lock(connection: pymysql.Connection, name: str, wait_s: int) -> bool:
    return bool(query(connection, "SELECT GET_LOCK(%s, %s)", (name, wait_s))[0][0])


def _holders(connection: pymysql.Connection, server_id: int, host: str) -> tuple[int | None, int | None]:
    """The connections that hold the lock of the server_id and the lock of the name; None for a free one."""
    names = _of_server_id(server_id), host or _of_server_id(server_id)
    first, second = query(connection, "SELECT IS_USED_LOCK(%s), IS_USED_LOCK(%s)", names)[0]
    return (None if first is None else int(first), None if not host or second is None else int(second))


def _owner(connection: pymysql.Connection, holder: int) -> str:
    """Describes the owner, as far as the server shows it: without PROCESS, other accounts' sessions are hidden."""
    rows = query(connection, "SELECT USER, HOST FROM INFORMATION_SCHEMA.PROCESSLIST WHERE ID = %s", (holder,))
    account = f", {rows[0][0]} from {rows[0][1]}" if rows else ""
    return f"another Lockstep extractor (connection {holder}{account})"


def _unlocked(error: pymysql.err.MySQLError) -> None:
    """Some clusters refuse GET_LOCK; the registered replicas were checked before."""
    if kind_of(error) is ErrorKind.GONE:
        raise error
    log.debug("the server does not support named locks: %s", error)
