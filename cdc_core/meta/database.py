"""Transactions on the meta database: opening it, reading its clock, turning its errors into Lockstep's.

May assume a database that others write at the same time: extractors, tasks and the command line.
Keeps true: a write is one transaction that happens as a whole or not at all; what the database refuses for a temporary
reason (a lock, a deadlock, a lost connection) is RetryLater; no password leaves this module.

SQLite: write-ahead log, foreign keys on, and BEGIN IMMEDIATE for writes, so that two writers wait for each other
instead of failing half-way. PostgreSQL and MySQL: writes at READ COMMITTED with the rows they depend on locked, reads
from one snapshot.
"""

from __future__ import annotations

import copy
import logging
import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, pool, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    DisconnectionError,
    IntegrityError,
    NoSuchModuleError,
    SQLAlchemyError,
)
from sqlalchemy.pool import ConnectionPoolEntry

from cdc_core.errors import ConnectionLost, DataAtRisk, LockstepError, Refused, RetryLater, UsageError
from cdc_core.meta import postgres, scope
from cdc_core.model.connection_reference import ENVIRONMENT, secret_options
from cdc_core.mysql.connections import READ_TIMEOUT_S, SafeConnection, Server, one_line, open_connection, parse_options
from cdc_core.mysql.server_errors import NO_TABLE, RETRIED, ErrorKind, kind_of, number_of

log = logging.getLogger(__name__)

T = TypeVar("T")

_DRIVERS = {
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "sqlite": "sqlite",
}
_FORMS = "sqlite:////path/meta.db, postgresql://user@host/database or mysql://user@host/database"
_CLOCK: Mapping[str, str] = {
    # strftime('%f') is '06.123': SQLite's clock has milliseconds, and all of its users share the host's.
    "sqlite": "SELECT CAST(strftime('%s','now') AS INTEGER) * 1000000 "
    "+ CAST(substr(strftime('%f','now'), 4) AS INTEGER) * 1000",
    "postgresql": "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)",
    "mysql": "SELECT timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))",
}
_PAUSES_S = (0.0, 0.02, 0.1, 0.5, 2.5)
"""Before each attempt of a transaction. MySQL takes seconds to make all tables."""
_MYSQL_OPTIONS = ("charset", "unix_socket")
"""Options of a MySQL URL besides TLS and time-outs. Any other would be ignored, or weaken the connection."""
IDLE_S = 20
"""After which a server ends a transaction whose process says nothing: a process that is paused would keep others from
its lease, which has expired, for as long as its session lives."""
_STATEMENT_S = 3600.0
"""Lockstep's statements take milliseconds; a migration of large tables takes longer."""
_DEADLOCKS = frozenset({1205, 1213, "40001", "40P01", "55P03"})
_THERE = frozenset({1050, 1684, "42P07", "42710"})
"""Another process has made the table that this one makes, or is making it; 42710: PostgreSQL makes its type first."""
_DENIED = frozenset({"28P01", "28000", "3D000", "42501"})


def parse(url: str) -> URL:
    """The URL in the pipeline file, or in the variable that it names. Raises UsageError (config.invalid,
    config.unset)."""
    where, literal = "meta.url", not url.startswith("env:")
    if not literal:
        variable = where = url.removeprefix("env:")
        if not ENVIRONMENT.match(url):
            raise _bad_url("The name after env: is not that of a variable.", "meta.url", "write env:VARIABLE")
        url = os.environ.get(variable, "")
        if not url:
            raise UsageError(
                f"The environment variable {variable} is not set.",
                where="meta.url",
                code="config.unset",
                remedy=f"export {variable} with the URL of the meta database: {_FORMS}",
            )
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        parsed = None
    if parsed is None or parsed.drivername.partition("+")[0] not in _DRIVERS or not parsed.database:
        raise _bad_url("The URL of the meta database cannot be used.", where, f"write it as {_FORMS}")
    if literal and (parsed.password is not None or secret_options(parsed.query)):
        raise _bad_url(
            "The pipeline file has the password of the meta database in its URL.",
            where,
            "put the URL into an environment variable and write env:VARIABLE",
        )
    if "+" not in parsed.drivername:
        parsed = parsed.set(drivername=_DRIVERS[parsed.drivername])
    in_memory = parsed.get_backend_name() == "sqlite" and ":memory:" in (parsed.database or "")
    if in_memory or parsed.query.get("mode") == "memory":
        raise _bad_url(
            "A meta database in memory is lost with its process.",
            where,
            "give the path of a file: sqlite:////path/meta.db",
        )
    path = parsed.database or ""
    if parsed.get_backend_name() == "sqlite" and not path.startswith(("/", "file:")):
        raise _bad_url(
            f"The path {path!r} of the meta database is relative: each folder would have a database of its own.",
            where,
            "give the whole path, with four slashes: sqlite:////path/meta.db",
        )
    if parsed.get_backend_name() in ("mysql", "mariadb") and "charset" not in parsed.query:
        parsed = parsed.update_query_dict({"charset": "utf8mb4"})
    return parsed


def _bad_url(what: str, where: str, remedy: str) -> UsageError:
    return UsageError(what, where=where, code="config.invalid", remedy=remedy)


def require_file(url: URL) -> None:
    """Raises Refused (meta.absent) for an SQLite file that is not there or is empty."""
    if url.get_backend_name() != "sqlite":
        return
    path = Path(str(url.database))
    try:
        empty = path.stat().st_size == 0
    except FileNotFoundError:
        empty = True
    except OSError:
        empty = False  # opening the file reports what is wrong
    if empty:
        raise absent(str(path))


def absent(where: str) -> Refused:
    """The error for a reader of a meta database that nobody has made."""
    return Refused(
        "The meta database does not exist yet: nothing has run.",
        where=where,
        code="meta.absent",
        remedy="the pipeline's first run, or `lockstep extract`, creates it. If there were runs, this host does "
        "not see their file: use PostgreSQL or MySQL for meta when several hosts work on a pipeline",
    )


class Database:
    """An open meta database, for one pipeline. Threads may share it; a forked process opens its own."""

    def __init__(
        self, url: URL, pipeline: str, *, busy_timeout_s: float, answer_timeout_s: float | None = None
    ) -> None:
        self._pipeline = pipeline
        self._answer_s = answer_timeout_s
        # Options may hold passwords too: none is shown.
        self._secrets = [str(secret) for secret in (url.password, *secret_options(url.query).values()) if secret]
        self.name = url.set(query={}).render_as_string(hide_password=True)
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self._postgres = url.get_backend_name() == "postgresql"
        try:
            self._engine = self._sqlite(url, busy_timeout_s) if self.is_sqlite else self._server(url, busy_timeout_s)
        except (NoSuchModuleError, ImportError) as error:
            raise UsageError(
                f"The driver of the meta database is not installed: {self._safe(error)}.",
                where=self.name,
                code="install.missing",
                remedy="install it (PostgreSQL: pip install 'lockstep-cdc[postgres]')",
            ) from None
        event.listen(self._engine, "before_execute", scope.narrowed, retval=True)
        if self.is_sqlite:
            _OPEN.add(self)

    @property
    def pipeline(self) -> str:
        return self._pipeline

    def of(self, pipeline: str) -> Database:
        """The same, for another pipeline."""
        other = copy.copy(self)
        other._pipeline = pipeline
        return other

    def __repr__(self) -> str:
        return f"Database({self.name!r})"

    def close(self) -> None:
        self._engine.dispose()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on one consistent snapshot."""
        return self._attempt(work, write=False)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` as one transaction; again, from its start, after a deadlock or a race for the same new row."""
        for attempt, pause_s in enumerate(_PAUSES_S, 1):
            time.sleep(pause_s)
            try:
                return self._attempt(work, write=True)
            except _MetaCollision as collision:
                log.info("meta %s: attempt %d collided: %s", self.name, attempt, collision)
        raise RetryLater(
            f"{len(_PAUSES_S)} attempts collided with other writers of the meta database.",
            where=self.name,
            code="meta.busy",
            remedy="nothing has moved; the next attempt may succeed",
        )

    def _attempt(self, work: Callable[[Connection], T], *, write: bool) -> T:
        try:
            with self._engine.connect() as connection:
                connection = connection.execution_options(**{scope.OPTION: self._pipeline})
                if self.is_sqlite:
                    connection = connection.execution_options(lockstep_write=write)
                else:
                    level = "READ COMMITTED" if write else "REPEATABLE READ"
                    connection = connection.execution_options(isolation_level=level)
                with connection.begin():
                    return work(connection)
        except DBAPIError as error:
            raise self._translated(error, write=write) from None
        except self._engine.dialect.loaded_dbapi.Error as error:
            # SQLAlchemy sets and resets the isolation level outside its own translation of errors (MySQL: a statement).
            raise self._translated(DBAPIError(None, None, error), write=write) from None
        except _MISREAD as error:
            if self.is_sqlite:
                raise
            raise Refused(
                f"The meta database's answer cannot be understood: {type(error).__name__}: {self._safe(error)}.",
                where=self.name,
                code="connection.answer",
                remedy="check that nothing but a database answers there (a proxy in between may not pass all on); "
                "otherwise report this as a defect in Lockstep, with the log of the task",
            ) from error

    def _server(self, url: URL, busy_timeout_s: float) -> Engine:
        seconds = max(1, int(busy_timeout_s))
        if url.get_backend_name() == "postgresql":
            options: dict[str, Any] = {
                "connect_timeout": 10,
                "options": f"-c lock_timeout={seconds * 1000} -c idle_in_transaction_session_timeout={IDLE_S * 1000}",
                "keepalives_idle": 60,
                "keepalives_interval": 15,
                "keepalives_count": 4,
                "tcp_user_timeout": 120_000,
            }
            if self._answer_s is not None:
                answer_ms = int(self._answer_s * 1000)
                options["options"] += f" -c statement_timeout={answer_ms}"
                options |= {"connect_timeout": max(2, int(self._answer_s)), "tcp_user_timeout": answer_ms}
            options |= postgres.login_options(url.host, url.query)
            engine = self._pooled(url, options)
            answer_s = self._answer_s or seconds + READ_TIMEOUT_S

            @event.listens_for(engine, "do_connect")
            def _open(_dialect: object, _record: object, given: Any, chosen: dict[str, Any]) -> Any:
                return postgres.connect(answer_s, given, chosen)

            return engine
        return self._mysql(url, seconds)

    def _mysql(self, url: URL, lock_wait_s: int) -> Engine:
        given = {name: text for name, text in url.query.items() if name not in _MYSQL_OPTIONS}
        protected, timeouts = parse_options(
            ((name, text) for name, texts in given.items() for text in ([texts] if isinstance(texts, str) else texts)),
            host=url.host or "localhost",
            where=self.name,
        )
        server = Server(
            url.host or "localhost", url.port or 3306, url.username or "", url.password or "", protected, timeouts
        )
        answer_s = self._answer_s or lock_wait_s + READ_TIMEOUT_S
        options = {
            # MySQL has a limit for idle sessions only, in a transaction or not: the pool opens others.
            "init_command": f"SET innodb_lock_wait_timeout={lock_wait_s} "
            f"/*M!100300 , idle_transaction_timeout={IDLE_S} */ /*!80000 , wait_timeout={IDLE_S} */",
            "autocommit": False,
            "read_timeout": answer_s,
            "write_timeout": answer_s,
            "statement_timeout_s": max(_STATEMENT_S, answer_s),
        }
        engine = self._pooled(url.difference_update_query(given), {})

        @event.listens_for(engine, "do_connect")
        def _open(_dialect: object, _record: object, _args: object, chosen: dict[str, Any]) -> SafeConnection:
            # `chosen`: what SQLAlchemy and the rest of the URL say, such as database, charset and client_flag.
            return open_connection(server, where=self.name, **{**chosen, "password": server.password, **options})

        return engine

    def _pooled(self, url: URL, options: dict[str, Any]) -> Engine:
        return create_engine(
            url, pool_size=2, pool_pre_ping=True, pool_recycle=1800, connect_args=options, hide_parameters=True
        )

    def _sqlite(self, url: URL, busy_timeout_s: float) -> Engine:
        path = Path(str(url.database)).absolute()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._refused("disk.not_permitted", f"cannot create its directory: {error.strerror}") from None
        with suppress(OSError):  # opening the file reports what is wrong
            # It names hosts, tables and keys of rows: for its owner alone. Its log files get the same permissions.
            # A file that exists is not opened here: closing it would end the locks of this process's other connections.
            if not str(url.database).startswith("file:"):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        # One connection stays open: closing the last one of a file copies its log into it and deletes it, which takes
        # several times as long as a transaction. More are opened as threads need them, and closed.
        engine = create_engine(
            url,
            poolclass=pool.QueuePool,
            pool_size=1,
            max_overflow=-1,
            hide_parameters=True,
            connect_args={"timeout": busy_timeout_s, "check_same_thread": False},
        )

        @event.listens_for(engine, "connect")
        def _connected(dbapi: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
            dbapi.isolation_level = None  # we say BEGIN ourselves: the driver would only begin at the first write
            dbapi.execute("PRAGMA foreign_keys = ON")
            _write_ahead(dbapi, busy_timeout_s)
            record.info["file"] = _file_id(path)

        @event.listens_for(engine, "checkout")
        def _chosen(_dbapi: object, record: ConnectionPoolEntry, _proxy: object) -> None:
            if record.info["file"] != _file_id(path):  # moved away or deleted: what is written there, nobody sees
                raise DisconnectionError(f"{path} is another file than the one that is open")

        @event.listens_for(engine, "begin")
        def _begun(connection: Connection) -> None:
            write = connection.get_execution_options().get("lockstep_write", True)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

        return engine

    def _safe(self, error: object) -> str:
        shown = " ".join(str(error).split())
        for secret in self._secrets:
            shown = shown.replace(secret, "***")
        return one_line(shown)

    def _refused(self, code: str, why: str) -> Refused:
        return Refused(
            f"The meta database cannot be used: {why}.",
            where=self.name,
            code=code,
            remedy="check the URL, that the database and its account exist, and that the account may create and "
            "change tables (for an SQLite file: that its directory is writable; if the file was damaged, move it away "
            "and run `lockstep meta rebuild`)",
        )

    def _translated(self, error: DBAPIError, *, write: bool) -> LockstepError | _MetaCollision:
        original = error.orig
        why = self._safe(original)
        if self.is_sqlite:
            return self._sqlite_error(why)
        if self._postgres and (refused := postgres.refusal(why, self.name)) is not None:
            return refused
        said = original or error
        number, kind = getattr(original, "sqlstate", None) or number_of(said), kind_of(said)
        if write and (number in _DEADLOCKS | _THERE or isinstance(error, IntegrityError)):
            return _MetaCollision(why)
        if number in _DENIED or "authentication failed" in why or "does not exist" in why:
            return self._refused("connection.denied", why)
        if not self._postgres and (kind in (ErrorKind.LOGIN, ErrorKind.STATE, ErrorKind.DENIED) or number in NO_TABLE):
            return self._refused("connection.denied", why)
        # By name, because the drivers need not be installed; psycopg has a subclass for each state.
        passing = {"OperationalError", "InterfaceError"} & {base.__name__ for base in type(original).__mro__}
        if error.connection_invalidated or (passing if self._postgres else kind in RETRIED):
            return ConnectionLost(
                f"The meta database cannot be reached: {why}.",
                where=self.name,
                remedy="check that its server runs and that host and port are right; the next attempt may succeed",
            )
        return _unknown(why, self.name)

    def _sqlite_error(self, why: str) -> LockstepError:
        lowered = why.lower()
        if "locked" in lowered or "busy" in lowered:
            return RetryLater(
                "Another process has been writing to the meta database for longer than Lockstep waits.",
                where=self.name,
                code="meta.busy",
                remedy="the next attempt may succeed; if this lasts, end that process (`fuser FILE` names it), or move "
                "the meta database to PostgreSQL or MySQL",
            )
        if "full" in lowered or "disk i/o" in lowered:
            return RetryLater(
                f"The meta database cannot be written: {why}.",
                where=self.name,
                code="disk.error",
                remedy="free space on its disk; nothing has moved, the next attempt may succeed",
            )
        if "malformed" in lowered or "corrupt" in lowered:
            return DataAtRisk(
                f"The meta database is damaged: {why}.",
                where=self.name,
                code="meta.damaged",
                remedy="restore it from a backup, or move it away and run `lockstep meta rebuild`: batches and "
                "positions come back from the manifests",
            )
        if "unable to open" in lowered or "readonly" in lowered or "not a database" in lowered:
            return self._refused("disk.not_permitted", why)
        return _unknown(why, self.name)


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _write_ahead(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Puts the file into WAL mode, for good, waiting for others that write it.

    SQLite waits for no writer here: it answers `database is locked` at once, whatever the time-out of the connection.
    """
    deadline_s = time.monotonic() + timeout_s
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline_s:
                raise
            time.sleep(0.02)


_OPEN: weakref.WeakSet[Database] = weakref.WeakSet()
"""The open SQLite databases."""


def _close_idle() -> None:
    """SQLite's locks belong to a process: a connection that a forked one inherits would end its parent's."""
    for database in list(_OPEN):
        database.close()


os.register_at_fork(before=_close_idle)


class _MetaCollision(Exception):
    """A deadlock or a race for the same new row: the transaction left nothing and may run again."""


_MISREAD = (ArithmeticError, AssertionError, AttributeError, LookupError, SQLAlchemyError, TypeError, ValueError)
"""The errors in which reading an answer ends that lacks rows, columns or values."""


def _unknown(why: str, where: str) -> Refused:
    return Refused(
        f"The meta database refused a statement: {why}.",
        where=where,
        code="connection.statement",
        remedy="the database's message says what it refuses; if somebody has changed the meta tables by hand, undo it; "
        "otherwise report the message with the log of the task",
    )


def now_us(connection: Connection) -> int:
    """The database's clock, µs UTC: by it, hosts with differing clocks agree on when a lease expires."""
    dialect = connection.dialect.name
    statement = _CLOCK["mysql" if dialect == "mariadb" else dialect]
    return int(connection.execute(text(statement)).scalar_one())
