"""Values of a pipeline file that are checked one by one: names, patterns, references, ages, templates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from string import Formatter
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from cdc_core.model import condition
from cdc_core.model.connection_reference import ENVIRONMENT, is_reference, secret_options
from cdc_core.model.windows import Windows, age_us, parse_moment

MIB = 1 << 20
NAME = re.compile(r"^[a-z][a-z0-9_]{0,47}$")
WAY_BACK_SUFFIX = "_back"
"""The end of the name, and of the file's name, of a pipeline that carries changes back after a cutover."""
URL_LOGIN = re.compile(r"//\S*@")


def _name(value: str) -> str:
    if not NAME.match(value):
        raise ValueError("must be 1 to 48 of a-z, 0-9 and _, beginning with a letter")
    return value


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return value


def _connection(value: str) -> str:
    if not re.match(r"^(env|airflow):[A-Za-z0-9_.-]+$", value):
        raise ValueError("must be env:VARIABLE or airflow:CONNECTION_ID; never a URL with a password")
    return value


def _environment(value: str) -> str:
    if not ENVIRONMENT.match(value):
        raise ValueError("must be env:VARIABLE; never the value itself")
    return value


def _condition(value: str) -> str:
    condition.parse(value)
    return value


def _cron(value: str) -> str:
    Windows(value)
    return value


def _age(value: str) -> str:
    age_us(value)
    return value


def _moment_text(value: Any) -> Any:
    """YAML reads an unquoted timestamp as a datetime: back to text, so that both forms mean the same."""
    return value.isoformat() if isinstance(value, datetime) else value


def _moment(value: str) -> str:
    return parse_moment(value).isoformat().replace("+00:00", "Z")


def names_in(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def _template(value: str) -> str:
    try:
        known = bool(value) and names_in(value) <= {"logical", "database", "table", "d", "t"}
        value.format(logical="l", database="d", table="t", d=0, t=0)
    except (ValueError, KeyError, IndexError, AttributeError):
        known = False
    if not known:
        raise ValueError("may use {logical}, {database}, {table}, {d} and {t} only, as in orders_{t:02d}")
    return value


def _no_password(value: str) -> str:
    try:
        parts = urlsplit(value)
        password = parts.password or secret_options(dict(parse_qsl(parts.query, keep_blank_values=True)))
    except ValueError:
        password = None
    if password:
        raise ValueError("holds a password: put the whole URL into an environment variable and write env:VARIABLE")
    return value


def _meta_url(value: str) -> str:
    if value.startswith("env:"):
        return _environment(value)
    return _no_password(value)


def _endpoint(value: str) -> str:
    try:
        parts = urlsplit(value)
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        known = False
    if not known or "@" in value or parts.query or parts.fragment:
        raise ValueError(
            "must be http://host:port or https://host:port, without a login; credentials come from AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY"
        )
    return value


_SECRET_SETTING = re.compile(r"(?i)(secret|secret[._]?key|access[._]?key|password|token|passphrase)$|account[._]key")
_SECRET_OF_CLUSTER = re.compile(r"spark\.kubernetes\.(driver|executor)\.secretKeyRef\.")
"""Names a secret of the cluster and its key: the value is in the cluster alone."""


def _no_secrets(settings: Mapping[str, str]) -> Mapping[str, str]:
    """Settings become arguments of spark-submit, which every account of the host can list."""
    for name, value in settings.items():
        named = _SECRET_SETTING.search(name) and not _SECRET_OF_CLUSTER.match(name)
        if named or URL_LOGIN.search(value):
            raise ValueError(
                f"{name} holds a secret, and settings are arguments of spark-submit, which everybody on the host can "
                "read: put it into spark-defaults.conf, or into the environment of the tasks"
            )
    return settings


_SECRET_PROPERTY = re.compile(r"(?i)secret|password|token|credential|access[._-]?key|account[._-]?key|sas")


def _catalog_properties(properties: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in properties.items():
        if is_reference(value):
            _connection(value)
        elif _SECRET_PROPERTY.search(name):
            raise ValueError(
                f"{name} may hold a secret: put it into an environment variable and write env:VARIABLE, or into an "
                "Airflow connection and write airflow:CONNECTION_ID"
            )
        else:
            _no_password(value)
    return properties


Name = Annotated[str, AfterValidator(_name)]
Pattern = Annotated[str, AfterValidator(_pattern)]
"""A regular expression that must match a whole `database.table`."""
ColumnPattern = Annotated[str, AfterValidator(_pattern)]
"""A regular expression that must match a whole `database.table.column`."""
ConnectionRef = Annotated[str, AfterValidator(_connection)]
Template = Annotated[str, AfterValidator(_template)]
Age = Annotated[str, AfterValidator(_age)]
Cron = Annotated[str, AfterValidator(_cron)]
EnvironmentRef = Annotated[str, AfterValidator(_environment)]
Condition = Annotated[str, AfterValidator(_condition)]
Location = Annotated[str, AfterValidator(_no_password)]
Endpoint = Annotated[str, AfterValidator(_endpoint)]
DatabaseUrl = Annotated[str, AfterValidator(_meta_url)]
Settings = Annotated[Mapping[str, str], AfterValidator(_no_secrets)]
CatalogProperties = Annotated[Mapping[str, str], AfterValidator(_catalog_properties)]
Moment = Annotated[str, BeforeValidator(_moment_text), AfterValidator(_moment)]


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)
