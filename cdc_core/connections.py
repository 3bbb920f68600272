"""Where a server is and how to log in, from the environment. The only place that sees a password.

A pipeline names a server `env:VAR` or `airflow:CONN_ID`. An Airflow connection reaches this module as the
environment variable LOCKSTEP_CONN_<CONN_ID>, which the Airflow plugin sets for its own process and for Spark's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql

from cdc_core.errors import Refused, RetryLater, UsageError

SCHEMES = ("mysql", "mariadb")
SSL_TEXT = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password")
SSL_SWITCHES = ("ssl_disabled", "ssl_verify_cert", "ssl_verify_identity")
_SWITCH = {"true": True, "1": True, "false": False, "0": False}

_REFUSED_LOGINS = frozenset({1044, 1045, 1049, 1130, 1251, 1698, 1862, 2059, 3118, 3159, 4151})
"""Server errors that no retry mends: access denied, unknown database, host not allowed, unknown login method,
password expired, account locked, TLS required."""


@dataclass(frozen=True, slots=True)
class Server:
    """Address and login of a MySQL or MariaDB server. `ssl` holds PyMySQL's ssl_* arguments."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    ssl: Mapping[str, str | bool] = field(default_factory=dict, repr=False)

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
    """A server from `mysql://user:password@host:port[/][?ssl_ca=...]`. Errors never show the URL itself.

    Raises UsageError (connection.url, connection.option). The path, a database's name in other tools, is ignored.
    """
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
    options = dict(_option(name, value, where) for name, value in parse_qsl(parts.query))
    return Server(parts.hostname, port, unquote(parts.username), unquote(parts.password or ""), options)


def _option(name: str, value: str, where: str) -> tuple[str, str | bool]:
    if name in SSL_TEXT:
        return name, value
    if name in SSL_SWITCHES and value.lower() in _SWITCH:
        return name, _SWITCH[value.lower()]
    known = ", ".join((*SSL_TEXT, *(f"{switch}=true|false" for switch in SSL_SWITCHES)))
    raise UsageError(
        f"The connection's URL has the option {name!r}, unknown or with a value it cannot have.",
        where=where,
        code="connection.option",
        remedy=f"use these only: {known}",
    )


def connect(server: Server, *, where: str, **options: Any) -> pymysql.Connection[Any]:
    """An open connection: utf8mb4, autocommit, session time zone UTC. `options` are PyMySQL's.

    Raises Refused (connection.denied) for a login that no retry mends, UsageError (connection.tls) for TLS files
    that cannot be read, RetryLater (connection.unreachable) otherwise.
    """
    settings: dict[str, Any] = {
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
        return pymysql.connect(**settings)
    except pymysql.err.MySQLError as error:
        number = error.args[0] if error.args else 0
        text = str(error.args[1] if len(error.args) > 1 else error).rstrip(".")
        if number in _REFUSED_LOGINS:
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
    except OSError as error:
        # PyMySQL wraps what the network does; what is left is a certificate or key file it could not load.
        raise UsageError(
            f"TLS for {server} cannot be set up: {error.strerror or error}.",
            where=where,
            code="connection.tls",
            remedy="check the files that ssl_ca, ssl_cert and ssl_key of the connection's URL name",
        ) from None
