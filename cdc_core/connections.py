"""Where a server is and how to log in, from the environment. The only place that sees a password.

A pipeline names a server `env:VAR` or `airflow:CONN_ID`. An Airflow connection reaches this module as the
environment variable LOCKSTEP_CONN_<CONN_ID>, which the Airflow plugin sets for its own process and for Spark's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql

from cdc_core.errors import Refused, RetryLater, UsageError

SCHEMES = ("mysql", "mariadb")
_AUTH_ERRORS = frozenset({1044, 1045, 1130, 1698, 3118, 4151})


@dataclass(frozen=True, slots=True)
class Server:
    """Address and login of a MySQL or MariaDB server. `ssl` holds PyMySQL's ssl_* arguments."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    ssl: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


def variable_of(reference: str) -> str:
    """The environment variable that holds the URL of a reference."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        return name
    return "LOCKSTEP_CONN_" + "".join(char if char.isalnum() else "_" for char in name).upper()


def resolve(reference: str, environ: Mapping[str, str] | None = None) -> Server:
    """The server behind `env:VAR` or `airflow:CONN_ID`. Raises UsageError (connection.unset, connection.url)."""
    variable = variable_of(reference)
    url = (os.environ if environ is None else environ).get(variable)
    if not url:
        raise UsageError(
            f"The environment variable {variable} is not set.",
            where=reference,
            code="connection.unset",
            remedy=f"export {variable}=mysql://user:password@host:3306 (percent-encode special characters)",
        )
    return parse_url(url, where=reference)


def parse_url(url: str, *, where: str) -> Server:
    """A server from `mysql://user:password@host:port[/][?ssl_ca=...]`. Errors never show the URL itself."""
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in SCHEMES or not parts.hostname or not parts.username:
        raise UsageError(
            "The connection is not a URL of the form mysql://user:password@host:port.",
            where=where,
            code="connection.url",
            remedy="write it so, with special characters of user and password percent-encoded",
        )
    ssl = {key: value for key, value in parse_qsl(parts.query) if key.startswith("ssl")}
    return Server(parts.hostname, port, unquote(parts.username), unquote(parts.password or ""), ssl)


def connect(server: Server, *, where: str, **options: object) -> pymysql.Connection:
    """An open connection: utf8mb4, autocommit, session time zone UTC.

    Raises Refused (connection.denied) for a wrong login, RetryLater (connection.unreachable) otherwise.
    """
    settings: dict[str, object] = {
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "password": server.password,
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": 10,
        "init_command": "SET time_zone = '+00:00'",
        **server.ssl,
        **options,
    }
    try:
        return pymysql.connect(**settings)  # type: ignore[arg-type]
    except pymysql.err.MySQLError as error:
        number = error.args[0] if error.args else 0
        text = error.args[1] if len(error.args) > 1 else str(error)
        if number in _AUTH_ERRORS:
            raise Refused(
                f"{server} refused the login: {text}.",
                where=where,
                code="connection.denied",
                remedy="check user, password and the host the account may connect from",
            ) from None
        raise RetryLater(
            f"{server} cannot be reached: {text}.",
            where=where,
            code="connection.unreachable",
            remedy="check that the server runs and that host and port are right; the next attempt may succeed",
        ) from None
