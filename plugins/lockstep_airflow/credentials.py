"""Airflow connections as the environment variables that cdc_core reads (mysql/connections.py), for one task and its
children.

`airflow:ID` in a pipeline file means the Airflow connection ID: of type mysql (or mariadb); in the properties of a
lake's catalog, of type postgres, or of any other type, whose password is the property. The variables are there
for as long as they are needed, in this process and in the children that need them. Every password is given to
Airflow's masker first, so that it cannot appear in a log, not even percent-encoded as in the URL.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from cdc_core.errors import UsageError
from cdc_core.model.connection_reference import variable_of

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from cdc_core.config import Pipeline

TYPES = ("mysql", "mariadb")
_OF_SERVER = "--conn-type mysql --conn-host HOST --conn-port 3306 --conn-login USER --conn-password PASSWORD"
TIMEOUTS = ("connect_timeout", "read_timeout", "write_timeout")
_MEANT = re.compile(r"(?i)ssl|tls|time_?out|socket")
"""Extras that are about what Lockstep takes from a connection; any other, such as `charset`, changes nothing here."""
_PROVIDER_SSL = {"ca": "ssl_ca", "cert": "ssl_cert", "key": "ssl_key"}
"""Extras under `ssl`, as Airflow's MySQL connections have them."""


@contextmanager
def exported(pipeline: Pipeline) -> Iterator[None]:
    """The environment of this process has the connections of all sources and targets of a pipeline, until the block
    ends.

    Raises UsageError (airflow.connection) for a connection that Airflow does not have, or of another kind.
    """
    variables: dict[str, str] = {}
    for reference in pipeline.references:
        variables.update(_variable(reference))
    for reference in pipeline.lake_references:
        variables.update(_of_catalog(reference))
    before = dict(os.environ)
    try:
        os.environ.update(variables)
        yield
    finally:
        for name in variables.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update(before)


def _variable(reference: str) -> Mapping[str, str]:
    kind, _, name = reference.partition(":")
    variable = variable_of(reference)
    if kind == "env":
        _mask(os.environ.get(variable, ""))
        return {}
    url = url_of(_connection(name, reference), reference)
    _mask(url)
    return {variable: url}


def _of_catalog(reference: str) -> Mapping[str, str]:
    """A property of a lake's catalog."""
    kind, _, name = reference.partition(":")
    variable = variable_of(reference)
    if kind == "env":
        value = os.environ.get(variable, "")
    else:
        connection = _connection(name, reference, "--conn-type generic --conn-password SECRET")
        value = _catalog_url(connection) if connection.conn_type == "postgres" else connection.password or ""
        if not value:
            raise UsageError(
                f"The Airflow connection {name!r} has no password.",
                where=reference,
                code="airflow.connection",
                remedy="give it the value of the catalog's property as its password, or type postgres, host, login and "
                "password",
            )
    _mask(value)
    if value:
        mask_secret(value)
    return {} if kind == "env" else {variable: value}


def _catalog_url(connection: Connection) -> str:
    """As SQLAlchemy takes it. The extras of such a connection are libpq's words, and so are the options of the URL."""
    login = f"{quote(connection.login or '', safe='')}:{quote(connection.password or '', safe='')}"
    host = f"[{connection.host}]" if ":" in (connection.host or "") else connection.host or ""
    options = {name: _text(value) for name, value in connection.extra_dejson.items()}
    query = f"?{urlencode(options)}" if options else ""
    return f"postgresql+psycopg://{login}@{host}:{connection.port or 5432}/{connection.schema or ''}{query}"


def _connection(name: str, where: str, how: str = _OF_SERVER) -> Connection:
    """how: the options of the command that adds it."""
    try:
        return BaseHook.get_connection(name)
    except AirflowNotFoundException:
        raise UsageError(
            f"Airflow has no connection {name!r}.",
            where=where,
            code="airflow.connection",
            remedy=f"add it: airflow connections add {name} {how}",
        ) from None


def url_of(connection: Connection, where: str) -> str:
    """`mysql://user:password@host:port?ssl_ca=...` of an Airflow connection. Raises UsageError (airflow.connection)."""
    if connection.conn_type not in TYPES or not connection.host or not connection.login:
        raise UsageError(
            f"The Airflow connection {connection.conn_id!r} has type {connection.conn_type!r}, "
            f"{'a' if connection.host else 'no'} host and {'a' if connection.login else 'no'} login.",
            where=where,
            code="airflow.connection",
            remedy="give it type mysql, host, port, login and password",
        )
    options = _options(connection.extra_dejson, where)
    host = f"[{connection.host}]" if ":" in connection.host else connection.host
    login = f"{quote(connection.login, safe='')}:{quote(connection.password or '', safe='')}"
    query = f"/?{urlencode(options)}" if options else ""
    return f"mysql://{login}@{host}:{connection.port or 3306}{query}"


def _options(extra: Mapping[str, Any], where: str) -> dict[str, str]:
    """The extras that concern TLS and time-outs, as options of the URL, which refuses unknown ones.

    Raises UsageError (airflow.connection) for extras that would otherwise be ignored silently.
    """
    options = {key: _text(value) for key, value in extra.items() if key.startswith("ssl_") or key in TIMEOUTS}
    for key in extra:
        if key not in options and key != "ssl" and _MEANT.search(key):
            raise UsageError(
                f"The Airflow connection has the extra {key!r}, which Lockstep does not know.",
                where=where,
                code="airflow.connection",
                remedy="write ssl_mode, ssl_ca, ssl_cert, ssl_key or a time-out (connect_timeout, read_timeout, "
                "write_timeout), in small letters; a socket cannot be used",
            )
    nested = extra.get("ssl", {})
    if isinstance(nested, str):
        try:
            nested = json.loads(nested)
        except ValueError:
            nested = None
    if not isinstance(nested, dict) or nested.keys() - _PROVIDER_SSL.keys():
        raise UsageError(
            "The extra `ssl` of the Airflow connection has keys that Lockstep does not know.",
            where=where,
            code="airflow.connection",
            remedy=f"use only the keys {', '.join(_PROVIDER_SSL)}; other settings are extras beside it (ssl_mode)",
        )
    for key, value in nested.items():
        name = _PROVIDER_SSL[key]
        if options.setdefault(name, _text(value)) != _text(value):
            raise UsageError(
                f"The Airflow connection has both {name} and ssl.{key}, with different values.",
                where=where,
                code="airflow.connection",
                remedy="remove one of them",
            )
    return options


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _mask(url: str) -> None:
    try:
        password, query = urlsplit(url).password, urlsplit(url).query
    except ValueError:
        password, query = None, ""
    if password:
        mask_secret(password)
        mask_secret(unquote(password))
        mask_secret(url)
    key_password = dict(parse_qsl(query)).get("ssl_key_password")
    if key_password:
        mask_secret(key_password)
