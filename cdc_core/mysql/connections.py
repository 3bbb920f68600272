"""Where a server is and how to log in, from the environment of this process. The only place that sees a password.

A pipeline names a server `env:VAR` or `airflow:CONN_ID`. An Airflow connection reaches this module as the
environment variable LOCKSTEP_CONN_<CONN_ID>, which the Airflow plugin sets for its own process and for Spark's.
Nothing passes the environment on: whoever needs a server resolves its reference.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import pymysql

from cdc_core.errors import Refused, RetryLater, UsageError
from cdc_core.model.connection_reference import variable_of
from cdc_core.mysql import tls
from cdc_core.mysql.client import SafeConnection, identity_in
from cdc_core.mysql.server_errors import explained, one_line, shown
from cdc_core.mysql.session_settings import READING, Settings, apply
from cdc_core.mysql.tls import is_loopback

__all__ = [
    "READ_TIMEOUT_S",
    "SafeConnection",
    "Server",
    "answers",
    "connect",
    "identity_in",
    "is_loopback",
    "one_line",
    "open_connection",
    "parse_options",
    "parse_url",
    "require_one_server",
    "resolve",
    "sensible",
    "shown",
    "variable_of",
]

SCHEMES = ("mysql", "mariadb")
TIMEOUTS = ("connect_timeout", "read_timeout", "write_timeout")
_OPTIONS = frozenset({tls.MODE, *tls.TEXTS, *TIMEOUTS})
CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = WRITE_TIMEOUT_S = 60.0
"""How long a server may send nothing within an answer, or accept nothing."""
STATEMENT_TIMEOUT_S = 900.0
"""How long one statement may take, with its whole answer. Bulk work sets its own limit."""
_MAX_TIMEOUT_S = 86_400

_PROBES = 5
"""Connections that show whether an address leads to several servers."""


@dataclass(frozen=True, slots=True)
class Server:
    """Address and login of a MySQL or MariaDB server. timeouts: of TIMEOUTS, in seconds, where the URL says so.
    identity: see SafeConnection."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    tls: tls.Tls = field(default=tls.Tls(tls.TlsMode.DISABLED), repr=False)
    timeouts: Mapping[str, float] = field(default_factory=dict)
    identity: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


def resolve(reference: str) -> Server:
    """The server behind `env:VAR` or `airflow:CONN_ID`. Raises UsageError (config.unset, connection.url)."""
    variable = variable_of(reference)
    url = os.environ.get(variable)
    if not url:
        raise UsageError(
            f"The environment variable {variable} is not set.",
            where=reference,
            code="config.unset",
            remedy=f"export {variable}=mysql://user:password@host:3306 (percent-encode special characters)",
        )
    return parse_url(url, where=reference)


def parse_url(url: str, *, where: str) -> Server:
    """A server from `mysql://user:password@host:port[/][?ssl_mode=...]`. Errors never show the URL itself.

    Raises UsageError (connection.url). The path, a database's name in other tools, is ignored.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
    except ValueError:
        parts, port = _without_port(url), 0
    if parts.scheme in SCHEMES and "@" in parts.path + parts.fragment:
        raise UsageError(
            "The connection's URL has an @ after its first / or #: the password probably contains one of / ? # @.",
            where=where,
            code="connection.url",
            remedy="percent-encode these characters in the password: / is %2F, ? is %3F, # is %23, @ is %40, % is %25",
        )
    if parts.scheme not in SCHEMES or not parts.hostname or not parts.username or parts.fragment:
        raise UsageError(
            "The connection is not a URL of the form mysql://user:password@host:port.",
            where=where,
            code="connection.url",
            remedy="use this form, with special characters of user and password percent-encoded",
        )
    options = parse_qsl(parts.query, keep_blank_values=True)
    if "@" in parts.query and {name for name, _ in options} - _OPTIONS:
        raise UsageError(
            "The connection's URL has an @ after its first ?: the password probably contains both.",
            where=where,
            code="connection.url",
            remedy="percent-encode these characters in the password: @ is %40, ? is %3F, & is %26, % is %25",
        )
    host = parts.hostname
    protected, timeouts = parse_options(options, host=host, where=where)
    return Server(host, port, unquote(parts.username), unquote(parts.password or ""), protected, timeouts)


def _without_port(url: str) -> SplitResult:
    """Splits a URL whose port is not a number: it may be a part of the password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return urlsplit("")
    return parts._replace(netloc="")


def parse_options(given: Iterable[tuple[str, str]], *, host: str, where: str) -> tuple[tls.Tls, Mapping[str, float]]:
    """TLS and time-outs of a connection. Raises UsageError (connection.url)."""
    options: dict[str, Any] = {}
    for name, text in given:
        if name in options:
            raise _wrong_option(name, where)
        options[name] = _option(name, text, where)
    timeouts = {name: options.pop(name) for name in TIMEOUTS if name in options}
    return tls.tls_of(options, host=host, where=where), timeouts


def _option(name: str, text: str, where: str) -> str | float:
    if name in tls.TEXTS and text:
        return text
    mode = text.upper().replace("-", "_")
    if name == tls.MODE and mode in tls.TlsMode.__members__:
        return mode
    if name in TIMEOUTS:
        try:
            seconds = float(text)
        except ValueError:
            seconds = 0.0
        if 0 < seconds <= _MAX_TIMEOUT_S:
            return seconds
    raise _wrong_option(name, where)


def _wrong_option(name: str, where: str) -> UsageError:
    modes = "|".join(mode.value for mode in tls.TlsMode)
    return UsageError(
        f"The connection's URL has the option {name!r}, which is unknown, given twice, or has an invalid value.",
        where=where,
        code="connection.url",
        remedy=f"use only these, each once: ssl_mode={modes}, {', '.join(tls.TEXTS)}, {', '.join(TIMEOUTS)} (seconds)",
    )


def connect(server: Server, *, where: str, settings: Settings = READING, **options: Any) -> SafeConnection:
    """An open connection: utf8mb4, autocommit, with these settings, also when it connects again. `options` are
    SafeConnection's; the URL's own time-outs go before them.

    Raises what server_errors.explained makes of the server's errors, what SafeConnection raises, Refused
    (connection.answer) for a session that does not keep its settings, and for another server than the address says also
    what require_one_server raises.
    """
    try:
        set_up = sensible(where)(partial(apply, settings=settings, where=where))
        return open_connection(server, where=where, set_up=set_up, **options)
    except RetryLater:  # of another server
        require_one_server(server, where=where)
        raise
    except pymysql.err.MySQLError as error:
        raise explained(error, where=where, who=str(server)) from None


def open_connection(server: Server, *, where: str, **options: Any) -> SafeConnection:
    """As `connect`, with the server's own settings, and with PyMySQL's errors."""
    settings: dict[str, Any] = {
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "password": server.password,
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": READ_TIMEOUT_S,
        "write_timeout": WRITE_TIMEOUT_S,
        "statement_timeout_s": STATEMENT_TIMEOUT_S,
        **options,
        **server.timeouts,
    }
    return SafeConnection(tls=server.tls, where=where, identity=server.identity, **settings)


def require_one_server(server: Server, *, where: str) -> None:
    """Raises Refused (source.several_servers) where several servers answer at one address, as behind a balancer."""
    found = set()
    for _ in range(_PROBES):
        with open_connection(replace(server, identity=""), where=where) as probe:
            found.add(probe.server_identity())
    if len(found) > 1:
        raise Refused(
            f"Several servers answer at {server}: {', '.join(sorted(found))}. Each has a log and rows of its own.",
            where=where,
            code="source.several_servers",
            remedy="give the connection the address of one server, not of a balancer; list the others under "
            "`connection` of the source, so that reading continues there after a failover",
        )


def is_mariadb(connection: pymysql.Connection[Any]) -> bool:
    """Whether a server has said so when the connection was opened."""
    return "mariadb" in str(connection.get_server_info()).lower()  # type: ignore[no-untyped-call]


@contextmanager
def sensible(where: str) -> Iterator[None]:
    """Wraps code that interprets a server's answers; also a decorator.

    An answer may not match the question: fewer rows or columns, a text for a number. Raises Refused
    (connection.answer) instead of Python's errors. Errors that the server reports pass.
    """
    try:
        yield
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Refused(
            f"The server's answer does not match the question ({type(error).__name__}).",
            where=where,
            code="connection.answer",
            remedy="check what is between Lockstep and the server (a proxy may answer in its place) and that it is a "
            "MySQL or MariaDB that Lockstep supports; if it is, report this with the output of --debug",
        ) from error


@contextmanager
def answers(where: str) -> Iterator[None]:
    """`sensible`; and an error that the server reports, untranslated so far, is the one of server_errors."""
    try:
        with sensible(where):
            yield
    except pymysql.err.MySQLError as error:
        raise explained(error, where=where) from error


@contextmanager
def bytes_for_texts(connection: pymysql.Connection[Any]) -> Iterator[None]:
    """Within the block, answers have bytes in place of texts: statements and names of others need not be UTF-8, and
    PyMySQL takes one that is not for a breach of the protocol."""
    connection.use_unicode, before = False, connection.use_unicode
    try:
        yield
    finally:
        connection.use_unicode = before


def bytes_literal(value: bytes) -> str:
    """Bytes in a statement, whatever they are."""
    return f"X'{value.hex()}'"


def utf8_literal(text: str) -> str:
    """A text in a statement, whatever its characters, and in every sql_mode. Statements with names in them take no
    arguments: a % in a name would need one."""
    return f"_utf8mb4 {bytes_literal(text.encode())}"


def quote(*names: str) -> str:
    """A name in a statement, with the names that it is within before it: `database`.`table`."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)
