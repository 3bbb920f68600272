"""How far the engine of a MariaDB is with what its log has, and the place in the log of a view.

A transaction is in the log before a view can show it. The server says how far its engine is in two ways:

    binlog_snapshot_*    of a session without a view: everything before this place is committed in the engine. Ordinary
                         transactions are committed in the order of the log, under the lock that moves it. An XA COMMIT
                         moves it as well, but its session commits later, by itself (MYSQL_BIN_LOG::
                         trx_group_commit_leader in sql/log.cc).
    XA RECOVER           the transactions that are prepared (prepared_transactions). Each stays there until the engine
                         has committed it (trans_xa_commit in sql/xa.cc).

The answers with binlog_snapshot_* pass through variables that all sessions share, without a lock (set_status_variables
in sql/log.cc): a session may be given the place that another one asked for at the same moment.
tests/integration/test_read_views.py shows both on a real server: views that are older or newer than their place.
Without a view that is harmless, as each is a place that the engine has reached. The place of a view is asked for until
the answers agree.

One event moves the place and commits nothing: Binlog_checkpoint, which the server writes some time after it has begun a
log file, once everything in the former files is committed (write_binlog_checkpoint_event_already_locked in sql/log.cc).
The transactions of this file may still be on their way. So a place at its end is in doubt if there are any. And a
transaction that is committed after it was written moves the place back, to its own end.
"""

from __future__ import annotations

from dataclasses import replace

import pymysql
from pymysql.constants import ER

from cdc_core.model.position import Position
from cdc_core.mysql.connections import answers, bytes_for_texts
from cdc_core.source.host.server_facts import as_text, explained, query
from cdc_core.source.transactions import prepared_transactions

_AGREEING = 5
_ASKED = 100
"""So many answers in a row must agree, of so many in all."""
_CHECKPOINT = "Binlog_checkpoint"
_FIRST_EVENTS = 20
"""The events at the beginning of a log file that name former ones: more than any has."""


@answers("source")
def committed(control: pymysql.Connection, timeline: int) -> Position | None:
    """Everything before this place can be seen, except for what was prepared (XA); None: in doubt until the next
    transaction. control: has no view."""
    # File and offset of one answer may be two sessions'. Two such answers do not come one after the other.
    place = min(_asked(control, timeline), _asked(control, timeline))
    if _in_doubt(control, place):
        return None
    for kind, begin, end in events_from(control, place, place.offset, _FIRST_EVENTS):
        if kind != _CHECKPOINT or begin != place.offset:
            break
        place = replace(place, offset=end)
    return place


@answers("source")
def place_of_view(reader: pymysql.Connection, timeline: int) -> Position | None:
    """The place of the view that is open; None if other sessions get between too often, or it is in doubt."""
    last, agreeing = _asked(reader, timeline), 1
    for _ in range(_ASKED):
        if agreeing == _AGREEING:
            return None if _in_doubt(reader, last) else last
        place = _asked(reader, timeline)
        agreeing = agreeing + 1 if place == last else 1
        last = place
    return None


@answers("source")
def prepared(control: pymysql.Connection) -> frozenset[str]:
    """The XA transactions that are prepared, or committed in the log and not in the engine, as statements name them."""
    return prepared_transactions.prepared(control, mariadb=True)


@answers("source")
def xa_commits(control: pymysql.Connection) -> int:
    """How many statements XA COMMIT have begun."""
    return int(query(control, "SHOW GLOBAL STATUS LIKE 'Com_xa_commit'")[0][1])


def _in_doubt(session: pymysql.Connection, place: Position) -> bool:
    """Whether a Binlog_checkpoint ends at the place, and transactions of the file are, or may be, before it."""
    if not checkpoint_ends(session, place):
        return False
    first = events_from(session, place, 4, _FIRST_EVENTS)
    before = [kind for kind, begin, _ in first if begin < place.offset]
    return "Gtid" in before or not first or first[-1][2] < place.offset


def checkpoint_ends(session: pymysql.Connection, place: Position) -> bool:
    """Whether a Binlog_checkpoint ends at the place. It names a log file, this one or a former one, whose name may be
    shorter: the number after 999999 has a digit more."""
    # Header, length and name of the log file, perhaps a checksum: https://mariadb.com/kb/en/binlog_checkpoint_event
    sizes = (19 + 4 + name + checksum for name in (len(place.file), len(place.file) - 1) for checksum in (4, 0))
    found = (events_from(session, place, place.offset - size, 1) for size in sizes)
    return any(events and events[0][0] == _CHECKPOINT and events[0][2] == place.offset for events in found)


def events_from(session: pymysql.Connection, place: Position, begin: int, most: int) -> list[tuple[str, int, int]]:
    """(type, where it begins and ends) of the events of the place's file from there on; [] where no event begins."""
    sql = f"SHOW BINLOG EVENTS IN %s FROM {max(begin, 4)} LIMIT {most}"
    try:
        # Annotate_rows have statements in any character set.
        # Not `query`, which would connect again, without the view.
        with bytes_for_texts(session), session.cursor() as cursor:
            cursor.execute(sql, (place.file,))
            return [(as_text(kind), int(begin), int(end)) for _, begin, kind, _, end, _ in cursor.fetchall()]
    except pymysql.err.MySQLError as error:
        if error.args and error.args[0] == ER.ERROR_WHEN_EXECUTING_COMMAND:
            return []
        raise explained(error, sql) from None


def _asked(session: pymysql.Connection, timeline: int) -> Position:
    sql = "SHOW STATUS LIKE 'binlog_snapshot_%'"
    try:
        with session.cursor() as cursor:  # not `query`, which would connect again, without the view
            cursor.execute(sql)
            status = {as_text(name).lower(): as_text(value) for name, value in cursor.fetchall()}
    except pymysql.err.MySQLError as error:
        raise explained(error, sql) from None
    return Position(timeline, status["binlog_snapshot_file"], int(status["binlog_snapshot_position"]))
