"""Low and high of a claim: two places in the log between which the read certainly lies.

Every transaction before `low` was visible to the read; none from `high` on was. How, depends on the server:

    MariaDB, InnoDB       START TRANSACTION WITH CONSISTENT SNAPSHOT, whose position the server says: exact, but not
                          before the end of what is staged (there, too, the log is ahead of the engine)
    MySQL with GTIDs      the end of what is staged, once the server has committed all of it in the engine
                          (WAIT_FOR_EXECUTED_GTID_SET: a transaction may reach the log before it can be seen)
    otherwise             a lock of the table, for as long as it takes to ask for the position and to begin a snapshot;
                          on MySQL with GTIDs, too, for a table without a key, whose view must be exact

`high` is the end of the log after the read: a server writes a transaction to its log before it can be seen.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pymysql

from cdc_core.connections import DENIED, answers, quote, shown
from cdc_core.errors import Refused, RetryLater
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import TableSchema
from cdc_core.results.faults import definition_changed
from cdc_core.snapshot.copyable import require_view
from cdc_core.source.facts import LOST, ServerFacts, as_text, end_position, explained, query
from cdc_core.source.survey import is_transactional, locked_for_copies

log = logging.getLogger(__name__)

VISIBLE_WITHIN_S = 60.0
"""How long the server may take to commit in the engine what it has already sent in its log."""
VISIBLE_PAUSE_S = 0.05
LOCK_WAIT_S = 2
LOCK_ATTEMPTS = 10
_LOCK_TIMEOUT = 1205


@dataclass(frozen=True, slots=True)
class View:
    """An open read view: `low` of what it shows; exact: it shows nothing from `low` on either."""

    low: Position
    exact: bool


@contextmanager
def read_view(
    reader: pymysql.Connection,
    control: pymysql.Connection,
    server: ServerFacts,
    staged: Checkpoint,
    schema: TableSchema,
    *,
    exact: bool = False,
) -> Iterator[View]:
    """A view of the table for the statements of `reader`.

    control: another session at the same server. It asks all questions: what asks may connect again, and the reader's
             settings and view would be lost.
    staged:  the end of what is staged of the log of this server.
    exact:   a view that shows nothing from `low` on either, where that takes a lock.
    Raises RetryLater (snapshot.not_visible, snapshot.locked, source.connection_lost), Refused (source.missing_grant).
    """
    run(reader, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    engine = engine_of(control, schema)
    transactional = is_transactional(engine)
    if exact:
        require_view(schema, engine)
    if locked_for_copies(server, engine, keyed=not exact) or not (server.mariadb or staged.gtid_set):
        view = View(_begin_under_lock(reader, control, staged, schema), exact=transactional)
    elif server.mariadb:
        view = View(_begin_at_position(reader, staged), exact=True)
    else:
        if not await_executed(control, staged.gtid_set, mariadb=False):
            raise _not_visible(str(staged.position))
        run(reader, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        view = View(staged.position, exact=False)
    try:
        yield view
    finally:
        if reader.open:
            run(reader, "ROLLBACK")


def high_of(connection: pymysql.Connection, view: View) -> Position:
    """`high` of a view whose statements have ended."""
    return view.low if view.exact else end_position(connection, view.low.timeline)


def _begin_at_position(reader: pymysql.Connection, staged: Checkpoint) -> Position:
    """Not before the end of what is staged: a transaction between the two would be in neither the view nor, if the
    capture began after it, the stage."""
    deadline_s = time.monotonic() + VISIBLE_WITHIN_S
    while True:
        position = _snapshot_position(reader, staged)
        if position >= staged.position:
            return position
        run(reader, "ROLLBACK")
        if time.monotonic() > deadline_s:
            raise _not_visible(str(staged.position))
        time.sleep(VISIBLE_PAUSE_S)


@answers("source")
def _snapshot_position(reader: pymysql.Connection, staged: Checkpoint) -> Position:
    run(reader, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
    with reader.cursor() as cursor:  # not `query`, which would connect again, without the view
        cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
        status = {as_text(name).lower(): as_text(value) for name, value in cursor.fetchall()}
    return Position(staged.position.timeline, status["binlog_snapshot_file"], int(status["binlog_snapshot_position"]))


@answers("source")
def await_logged(control: pymysql.Connection, server: ServerFacts) -> None:
    """Until everything that is in the log now can be seen: for what was logged just before the capture began, whose
    GTIDs the checkpoint lacks because the server had not executed them.

    Only where the end of what is staged is waited for by GTIDs. Raises RetryLater (snapshot.not_visible).
    """
    if server.mariadb or server.gtid_mode != "ON":
        return
    logged = logged_gtids(control, server)
    if logged and not await_executed(control, logged, mariadb=False):
        raise _not_visible("now")


@answers("source")
def logged_gtids(control: pymysql.Connection, server: ServerFacts) -> str:
    """The GTIDs of everything that is in the log now, whether it can be seen yet or not."""
    if server.mariadb:
        return as_text(query(control, "SELECT @@GLOBAL.gtid_binlog_pos")[0][0] or "")
    # A transaction is owned until it is executed: asked for in this order, it is in one of the two.
    owned = as_text(query(control, "SELECT @@GLOBAL.gtid_owned")[0][0] or "")
    executed = as_text(query(control, "SELECT @@GLOBAL.gtid_executed")[0][0] or "")
    # uuid:5#17:6#18 are two, with the threads that own them
    return ",".join(one for one in (re.sub(r"#\d+", "", owned), executed) if one)


@answers("source")
def await_executed(control: pymysql.Connection, gtids: str, *, mariadb: bool) -> bool:
    """Waits until the engine shows these transactions; False if it does not within VISIBLE_WITHIN_S.

    mariadb: at a replica, which alone counts what it has executed.
    """
    wait = "MASTER_GTID_WAIT" if mariadb else "WAIT_FOR_EXECUTED_GTID_SET"
    return bool(query(control, f"SELECT {wait}(%s, %s)", (gtids, VISIBLE_WITHIN_S))[0][0] == 0)


def _not_visible(place: str) -> RetryLater:
    return RetryLater(
        f"The server did not commit within {VISIBLE_WITHIN_S:.0f} s what it had already logged before {place}.",
        where="source",
        code="snapshot.not_visible",
        remedy="the next attempt waits again; look for a replica that does not acknowledge (semi-synchronous "
        "replication) or a blocked commit (SHOW PROCESSLIST)",
    )


def _begin_under_lock(
    reader: pymysql.Connection, control: pymysql.Connection, staged: Checkpoint, schema: TableSchema
) -> Position:
    """While the lock is held no transaction that wrote to the table is between the log and the engine."""
    name = quote(schema.database, schema.table)
    run(control, f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}")
    for attempt in range(1, LOCK_ATTEMPTS + 1):
        try:
            with control.cursor() as cursor:
                cursor.execute(f"LOCK TABLES {name} READ")
            break
        except pymysql.err.OperationalError as error:
            if error.args[0] in DENIED:
                raise _may_not_lock(schema, shown(error)) from None
            if error.args[0] != _LOCK_TIMEOUT:
                raise explained(error, f"LOCK TABLES {name} READ") from None
            if attempt == LOCK_ATTEMPTS:
                raise RetryLater(
                    f"{schema.name} could not be locked for a moment: other sessions held it each time for more than "
                    f"{LOCK_WAIT_S} s.",
                    where=schema.name,
                    code="snapshot.locked",
                    remedy="the next attempt tries again; end long transactions on the table, or turn GTIDs on, which "
                    "need no lock",
                ) from None
            log.info("%s: not locked within %d s; attempt %d follows", schema.name, LOCK_WAIT_S, attempt + 1)
            time.sleep(LOCK_WAIT_S)
    try:
        run(reader, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        return end_position(control, staged.position.timeline)
    finally:
        run(control, "UNLOCK TABLES")


def _may_not_lock(schema: TableSchema, said: str) -> Refused:
    return Refused(
        f"The account may not lock {schema.name}, which a copy needs for a moment on a MySQL without GTIDs, and for a "
        f"table without a key: {said}.",
        where=schema.name,
        code="snapshot.lock_denied",
        remedy=f"on the source: GRANT LOCK TABLES ON {quote(schema.database)}.* TO the account; or, with a key, turn "
        "GTIDs on, which need no lock",
    )


@answers("source")
def engine_of(control: pymysql.Connection, schema: TableSchema) -> str:
    """Raises RetryLater (results.definition_changed) for a table that is gone."""
    rows = query(
        control,
        "SELECT ENGINE FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (schema.database, schema.table),
    )
    if not rows:
        raise definition_changed("it is gone", where=schema.name)
    return as_text(rows[0][0] or "")


def run(connection: pymysql.Connection, statement: str) -> None:
    """A statement whose effect the session must keep: a lost connection is not opened again."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
    except pymysql.err.MySQLError as error:
        number = error.args[0] if error.args else 0
        if number in LOST:
            connection.close()
        raise explained(error, statement) from None
