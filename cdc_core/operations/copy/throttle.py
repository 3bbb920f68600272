"""When a copy must wait: the source is busy, a replica lags, or a query of the user's says so.

Asked between chunks, by all readers together at most once in CHECK_S. It must keep true that what cannot be asked stops
the copy, and never passes for "all is well".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import pymysql

from cdc_core.config import ThrottleOptions as Limits
from cdc_core.errors import Refused
from cdc_core.mysql import connections
from cdc_core.mysql.connections import SafeConnection, answers, is_mariadb, shown
from cdc_core.mysql.server_errors import RETRIED, kind_of
from cdc_core.source.host.server_facts import as_text, explained, query, replica_channels

CHECK_S = 1.0
Question = Callable[[pymysql.Connection], str]
_STATUS = "SHOW GLOBAL STATUS LIKE %s"


class Throttle:
    """A context manager: it has connections to the replicas."""

    def __init__(self, limits: Limits, *, source: str) -> None:
        self._limits = limits
        self._source = source
        self._lock = threading.Lock()
        self._asked_s = -CHECK_S
        self._why = ""
        self._opened = ExitStack()
        self._replicas: dict[str, SafeConnection] = {}

    def __enter__(self) -> Throttle:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def why(self, control: pymysql.Connection) -> str:
        """Why no chunk should be read now, for people; "" if one may be. control: a session at the source.

        Raises Refused (snapshot.throttle) if a limit cannot be asked for, and what servers raise.
        """
        with self._lock:
            if time.monotonic() - self._asked_s >= CHECK_S:
                self._why = self._ask(control)
                self._asked_s = time.monotonic()
            return self._why

    def questions(self) -> dict[str, Question]:
        """What is asked, by the key of each limit that is given. Each answers as `why`, and raises as that does."""
        limits = self._limits
        asked: dict[str, Question] = {}
        if limits.threads_running is not None:
            asked["threads_running"] = partial(self._running, limits.threads_running)
        if limits.query is not None:
            asked["query"] = partial(self._own, limits.query)
        for reference in limits.replicas:
            asked[f"replicas, {reference}"] = partial(self._lag, reference)
        return asked

    def _ask(self, control: pymysql.Connection) -> str:
        return next((why for ask in self.questions().values() if (why := ask(control))), "")

    def _running(self, most: int, control: pymysql.Connection) -> str:
        running = _status(control, "Threads_running")
        return f"{running} threads are running at the source, more than {most}" if running > most else ""

    def _own(self, sql: str, control: pymysql.Connection) -> str:
        remedy = "write a query that returns one number: a copy waits while it is above 0"
        try:
            rows = query(control, sql)
            value = float(rows[0][0] if rows and rows[0][0] is not None else 0)
        except (pymysql.err.MySQLError, ValueError, TypeError, IndexError) as error:
            what = shown(error) if isinstance(error, pymysql.err.MySQLError) else f"{type(error).__name__}: {error}"
            raise _not_asked("its query", what, self._source, remedy) from None
        return f"the query of snapshot.throttle returns {value:g}" if value > 0 else ""

    def _lag(self, reference: str, _: pymysql.Connection) -> str:
        connection = self._replicas.get(reference)
        if connection is None or not connection.open:
            address = connections.resolve(reference)
            connection = connections.connect(address, where=f"{self._source}: {reference}")
            self._opened.callback(connection.close)
            self._replicas[reference] = connection
        lags = _replication_lags(connection, reference, self._source)
        if None in lags:
            return f"replication of {reference} has stopped"
        worst = max(float(lag) for lag in lags if lag is not None)
        if worst > self._limits.replica_lag_s:
            return f"{reference} lags {worst:.0f} s, more than {self._limits.replica_lag_s:g} s"
        return ""


@answers("source")
def _status(control: pymysql.Connection, name: str) -> int:
    return int(as_text(query(control, _STATUS, (name,))[0][1]))


@answers("a replica of the source")
def _replication_lags(connection: SafeConnection, reference: str, source: str) -> list[float | None]:
    """Seconds, of each channel; None for one that is stopped."""
    remedy = (
        f"give the account of {reference} REPLICATION CLIENT (MariaDB: REPLICA MONITOR), or remove it from replicas"
    )
    mariadb = is_mariadb(connection)
    try:
        rows = replica_channels(connection, mariadb=mariadb)
    except pymysql.err.MySQLError as error:
        if kind_of(error) in RETRIED:
            connection.close()
            raise explained(error, "SHOW REPLICA STATUS") from None
        raise _not_asked(f"the lag of {reference}", shown(error), source, remedy) from None
    if not rows:
        remedy = f"name replicas of {source}, or remove {reference}"
        raise _not_asked(f"the lag of {reference}", "the server is not a replica", source, remedy)
    lags = [row["Seconds_Behind_Master"] if mariadb else row["Seconds_Behind_Source"] for row in rows]
    return [None if lag is None else float(lag) for lag in lags]


def _not_asked(what: str, why: str, source: str, remedy: str) -> Refused:
    return Refused(
        f"snapshot.throttle limits copies by {what}, which cannot be read: {why.rstrip('.')}.",
        where=source,
        code="snapshot.throttle",
        remedy=remedy,
    )
