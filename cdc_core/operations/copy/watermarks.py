"""Low and high of a claim: two places in the log between which the read certainly lies.

Every transaction before `low` was visible to the read; none from `high` on was. How, depends on the server:

    MySQL with GTIDs      the end of what is staged, once the server has committed all of it in the engine
                          (WAIT_FOR_EXECUTED_GTID_SET: a transaction may reach the log before it can be seen)
    MariaDB, InnoDB       the end of what is staged, once the engine has passed it, and has ended the transactions (XA)
                          that were prepared then (`mariadb`)
    otherwise             a lock of the table, for as long as it takes to ask for the position and to begin a snapshot;
                          so, too, while a MariaDB leaves in doubt how far its engine is

A table without a key wants an exact view, which shows nothing from `low` on either. MariaDB says the place of START
TRANSACTION WITH CONSISTENT SNAPSHOT; it is exact if no XA COMMIT was on its way. At a MySQL, the table is locked.

Else `high` is the end of the log after the read: a server writes a transaction to its log before it can be seen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pymysql

from cdc_core.errors import Refused, RetryLater, TableRefused, TableUnready
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.readable import some_of
from cdc_core.model.schema import TableSchema
from cdc_core.mysql.connections import answers, quote, shown
from cdc_core.mysql.server_errors import ErrorKind, kind_of
from cdc_core.operations.copy import mariadb as engine
from cdc_core.operations.copy.key_ranges import not_copyable
from cdc_core.results.reading_faults import definition_changed
from cdc_core.source.host.server_facts import ServerFacts, as_text, end_position, explained, logged_gtids, query
from cdc_core.source.host.table_survey import is_transactional, locked_for_copies

log = logging.getLogger(__name__)

VISIBLE_WITHIN_S = 60.0
"""How long the server may take to commit in the engine what it has already sent in its log."""
VISIBLE_PAUSE_S = 0.02
XA_PAUSE_S = 0.001
"""On a busy server the moments without an XA transaction are short."""
LOCK_WAIT_S = 2
LOCK_HELD_S = 2
LOCK_PAUSE_S = 1.0
"""Between attempts; shorter than LOCK_HELD_S, after which the server ends an idle session."""
LOCK_ATTEMPTS = 10
_LOCK_TIMEOUT = 1205
_NAMED = 5
"""How many XA transactions a message names."""


@dataclass(frozen=True, slots=True)
class View:
    """An open read view: `low` of what it shows; exact: it shows nothing from `low` on either. server: whose log `low`
    is a place of."""

    low: Position
    exact: bool
    server: ServerFacts


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

    reader, control: two sessions of connections.connect. control asks all questions: what asks may connect again, and
             the reader's view would be lost.
    staged:  the end of what is staged of the log of this server.
    exact:   a view that shows nothing from `low` on either, where that takes a lock.
    Raises RetryLater (snapshot.blocked, connection.unreachable), Refused (connection.grant, snapshot.not_copyable).
    """
    kind = engine_of(control, schema)
    transactional = is_transactional(kind)
    if exact:
        require_view(schema, kind)
    locked = locked_for_copies(server, kind, keyed=not exact) or not (server.mariadb or staged.gtid_set)
    if locked or (server.mariadb and not _await_committed(control, staged.position)):
        view = View(_begin_under_lock(reader, control, staged, schema), exact=transactional, server=server)
    elif server.mariadb and exact:
        view = View(_begin_at_place(reader, control, staged), exact=True, server=server)
    else:
        if not server.mariadb and not _await_executed(control, staged.gtid_set):
            raise _not_visible(str(staged.position))
        run(reader, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        view = View(staged.position, exact=False, server=server)
    try:
        yield view
    finally:
        if reader.open:
            run(reader, "ROLLBACK")


def require_view(schema: TableSchema, kind: str) -> None:
    """A table without a key is read at one place of the log. Raises Refused (snapshot.not_copyable)."""
    if not schema.key and not is_transactional(kind):
        raise not_copyable(
            schema.name,
            f"{schema.name} has no key, and its engine gives no consistent view of it.",
            "give the table a primary key, or ENGINE=InnoDB",
        )


def high_of(connection: pymysql.Connection, view: View) -> Position:
    """`high` of a view whose statements have ended. connection: leads to the view's server only."""
    return view.low if view.exact else end_position(connection, view.low.timeline)


def _await_committed(control: pymysql.Connection, place: Position) -> bool:
    """Until a view at a MariaDB shows everything that its log has before the place, and has had until now; False where
    that is in doubt, and a lock must tell."""
    seen: Position | None = None

    def reached() -> bool:
        nonlocal seen
        seen = engine.committed(control, place.timeline)
        return seen is None or seen >= place

    if not _in_time(reached):
        raise _not_visible(str(place))
    if seen is not None:
        await_prepared(control)
    return seen is not None


def await_prepared(control: pymysql.Connection) -> None:
    """Until the XA transactions that are prepared now have ended, at a MariaDB: for some of them the log may have the
    XA COMMIT already. Raises RetryLater (snapshot.blocked)."""
    open_ones = engine.prepared(control)

    def ended() -> bool:
        nonlocal open_ones
        open_ones = open_ones and open_ones & engine.prepared(control)
        return not open_ones

    if not _in_time(ended):
        named = some_of(sorted(open_ones), _NAMED)
        raise _prepared(f"these have been prepared for more than {VISIBLE_WITHIN_S:.0f} s: {named}")


def _begin_at_place(reader: pymysql.Connection, control: pymysql.Connection, staged: Checkpoint) -> Position:
    """An exact view at a MariaDB, not before the end of what is staged.

    It begins while no XA COMMIT is on its way: nothing was prepared, and none has begun since.
    """
    place: Position | None = None

    def begun() -> bool:
        nonlocal place
        commits = engine.xa_commits(control)
        if engine.prepared(control):
            return False
        run(reader, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        if engine.xa_commits(control) == commits:
            place = engine.place_of_view(reader, staged.position.timeline)
        if place is None:
            run(reader, "ROLLBACK")
        return place is not None

    if not _in_time(begun, XA_PAUSE_S) or place is None:
        raise _prepared(
            f"for {VISIBLE_WITHIN_S:.0f} s one was always under way; a table without a key is read while there is none"
        )
    return place


def _in_time(done: Callable[[], bool], pause_s: float | None = None) -> bool:
    deadline_s = time.monotonic() + VISIBLE_WITHIN_S
    while not done():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(VISIBLE_PAUSE_S if pause_s is None else pause_s)
    return True


@answers("source")
def await_logged(control: pymysql.Connection, server: ServerFacts) -> None:
    """Until everything that is in the log now can be seen: for what was logged just before the capture began, whose
    GTIDs the checkpoint lacks because the server had not executed them.

    Only where the end of what is staged is waited for by GTIDs. Raises RetryLater (snapshot.blocked).
    """
    if server.mariadb or server.gtid_mode != "ON":
        return
    logged = logged_gtids(control, mariadb=False)
    if logged and not _await_executed(control, logged):
        raise _not_visible("now")


@answers("source")
def _await_executed(control: pymysql.Connection, gtids: str) -> bool:
    """Waits until the engine shows these transactions; False if it does not within VISIBLE_WITHIN_S."""
    # Each within the time after which a silent connection counts as lost (read_timeout_s).
    each_s = min(1.0, VISIBLE_WITHIN_S)
    return _in_time(
        lambda: bool(query(control, "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)", (gtids, each_s))[0][0] == 0)
    )


def _not_visible(place: str) -> RetryLater:
    return TableUnready(
        f"The server did not commit within {VISIBLE_WITHIN_S:.0f} s what it had logged before {place}.",
        where="source",
        code="snapshot.blocked",
        remedy="the next attempt waits again; look for a replica that does not acknowledge (semi-synchronous "
        "replication) or a blocked commit (SHOW PROCESSLIST)",
    )


def _prepared(why: str) -> RetryLater:
    return TableUnready(
        f"Prepared XA transactions hide rows that MariaDB has already logged: {why}.",
        where="source",
        code="snapshot.blocked",
        remedy="the next attempt waits again; end what was left prepared (XA RECOVER FORMAT='SQL', then XA COMMIT or "
        "XA ROLLBACK)",
    )


def _begin_under_lock(
    reader: pymysql.Connection, control: pymysql.Connection, staged: Checkpoint, schema: TableSchema
) -> Position:
    """While the lock is held no transaction that wrote to the table is between the log and the engine."""
    with _locked(control, schema):
        run(reader, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        session = reader.thread_id()  # type: ignore[no-untyped-call]
        place = end_position(reader, staged.position.timeline)
        if reader.thread_id() != session:  # type: ignore[no-untyped-call]  # it connected again, without the view
            raise _lock_lost(schema)
    return place


@contextmanager
def _locked(control: pymysql.Connection, schema: TableSchema) -> Iterator[None]:
    """A block under a lock of the table for reading; that it ends without an error proves that the lock lasted.

    The session that holds the lock asks nothing meanwhile. So the server ends the session, and the lock, once it was
    idle for LOCK_HELD_S, whatever has become of this process.
    """
    patience_s = int(query(control, "SELECT @@SESSION.wait_timeout")[0][0])
    run(control, f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}")
    run(control, f"SET SESSION wait_timeout = {LOCK_HELD_S}")
    try:
        _lock(control, schema)
        yield
        try:
            run(control, "UNLOCK TABLES")
        except RetryLater:
            raise _lock_lost(schema) from None
    finally:
        with suppress(pymysql.err.MySQLError), control.cursor() as cursor:
            cursor.execute("UNLOCK TABLES")
            cursor.execute(f"SET SESSION wait_timeout = {patience_s}")


def _lock(control: pymysql.Connection, schema: TableSchema) -> None:
    name = quote(schema.database, schema.table)
    for attempt in range(1, LOCK_ATTEMPTS + 1):
        try:
            with control.cursor() as cursor:
                cursor.execute(f"LOCK TABLES {name} READ")
            return
        except pymysql.err.OperationalError as error:
            if kind_of(error) is ErrorKind.DENIED:
                raise _may_not_lock(schema, shown(error)) from None
            if error.args[0] != _LOCK_TIMEOUT:
                raise explained(error, f"LOCK TABLES {name} READ") from None
            if attempt == LOCK_ATTEMPTS:
                raise TableUnready(
                    f"Other sessions kept {schema.name} locked for more than {LOCK_WAIT_S} s at each attempt.",
                    where=schema.name,
                    code="snapshot.blocked",
                    remedy="the next attempt tries again; end long transactions on the table, or turn GTIDs on, "
                    "which need no lock",
                ) from None
            log.info("%s: not locked within %d s; attempt %d follows", schema.name, LOCK_WAIT_S, attempt + 1)
            time.sleep(LOCK_PAUSE_S)


def _lock_lost(schema: TableSchema) -> RetryLater:
    return TableUnready(
        f"The server ended the lock on {schema.name}, because no snapshot began within {LOCK_HELD_S} s.",
        where=schema.name,
        code="snapshot.blocked",
        remedy="the next attempt tries again; find what keeps the server, or this process, from answering",
    )


def _may_not_lock(schema: TableSchema, said: str) -> Refused:
    return TableRefused(
        f"The account may not lock {schema.name}. A copy needs that for a moment on a MySQL without GTIDs, for a table "
        f"without a key, and sometimes on a MariaDB that has just begun a log file: {said}.",
        where=schema.name,
        code="connection.grant",
        remedy=f"on the source: GRANT LOCK TABLES ON {quote(schema.database)}.* TO the account; or, with a key, turn "
        "GTIDs on. At a MariaDB, its next transaction helps, too",
    )


@answers("source")
def engine_of(control: pymysql.Connection, schema: TableSchema) -> str:
    """Raises RetryLater (table.redefined) for a table that is gone."""
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
        if kind_of(error) is ErrorKind.GONE:
            connection.close()
        raise explained(error, statement) from None
