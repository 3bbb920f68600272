"""The catalog of a lake: PyIceberg's, by PyIceberg's own properties, with secrets from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from urllib.parse import unquote

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    UnauthorizedError,
)
from sqlalchemy.exc import SQLAlchemyError

from cdc_core.config import IcebergTarget
from cdc_core.errors import FilesLost, LockstepError, Refused, RetryLater, UsageError
from cdc_core.model.connection_reference import is_reference, variable_of

_DENIED_BY_AWS = frozenset({
    "AccessDeniedException", "ExpiredTokenException", "IncompleteSignatureException", "InvalidClientTokenId",
    "InvalidSignatureException", "MissingAuthenticationTokenException", "UnrecognizedClientException",
    "NoCredentialsError", "PartialCredentialsError",
})  # fmt: skip
"""Codes of Glue's answers, as AWS names them for all of its services ("Common Errors"), and errors of botocore."""
_PASSWORD = re.compile(r"//[^/@:]*:([^/@]+)@")
"""Of a URL."""
_WHOLE = re.compile(r"sqlite[\w+]*:///(?:/|file:)|(?!sqlite)\w[\w+.-]*:|/")
"""Of URLs and paths: those that mean the same in whatever folder."""


@contextmanager
def open_catalog(target: IcebergTarget) -> Iterator[Catalog]:
    """Raises UsageError (config.unset, config.invalid), and what `catalog_answers` raises of its opening."""
    properties = resolved(target)
    _require_whole_paths(target, properties)
    with catalog_answers(target):
        try:
            catalog = load_catalog(target.name, **properties)
        except (ValueError, ImportError) as error:
            raise UsageError(
                f"The properties of the catalog are not PyIceberg's: {error}.",
                where=f"targets.{target.name}.catalog",
                code="config.invalid",
                remedy="see docs/targets.md, and PyIceberg's documentation of this type of catalog",
            ) from None
    with closing(catalog):
        yield catalog


def resolved(target: IcebergTarget) -> dict[str, str]:
    """The properties with the values of their environment variables. Raises UsageError (config.unset)."""
    return {name: _value(target, name, value) for name, value in target.catalog.items()}


def _value(target: IcebergTarget, name: str, value: str) -> str:
    if not is_reference(value):
        return value
    variable = variable_of(value)
    found = os.environ.get(variable)
    if not found:
        raise UsageError(
            f"The environment variable {variable} is not set.",
            where=f"targets.{target.name}.catalog.{name}",
            code="config.unset",
            remedy=f"export {variable} with the catalog's {name}",
        )
    return found


def _require_whole_paths(target: IcebergTarget, properties: Mapping[str, str]) -> None:
    """A catalog in SQLite, and the files of any in SQL, are at one place. Raises UsageError (config.invalid)."""
    uri, warehouse = properties.get("uri", ""), properties.get("warehouse", "")
    if uri.startswith("sqlite") and not _WHOLE.match(uri):
        name, whole = "uri", "sqlite:////path/catalog.db"
    elif properties.get("type") == "sql" and warehouse and not _WHOLE.match(warehouse):
        name, whole = "warehouse", "file:///path/warehouse"
    else:
        return
    raise UsageError(
        f"The path of the lake's {name} is not a whole one: each folder would have a lake of its own.",
        where=f"targets.{target.name}.catalog.{name}",
        code="config.invalid",
        remedy=f"give the whole path: {whole}",
    )


@contextmanager
def catalog_answers(target: IcebergTarget) -> Iterator[None]:
    """Errors of the catalog and of its storage as ours: RetryLater (connection.unreachable, target.busy), Refused
    (connection.denied, target.table), DataAtRisk (lake.files_lost). Their causes may name secrets, and are not kept."""
    where = f"targets.{target.name}"
    try:
        yield
    except LockstepError:
        raise
    except CommitFailedException as error:
        raise RetryLater(
            f"Another writer has changed the table at the same time: {_shown(target, error)}.",
            where=where,
            code="target.busy",
            remedy="run it again",
        ) from None
    except (UnauthorizedError, ForbiddenError, OAuthError) as error:
        raise _denied(target, error) from None
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise Refused(
            f"The catalog does not have it: {_shown(target, error)}.",
            where=where,
            code="target.table",
            remedy="`lockstep target create` makes what is missing",
        ) from None
    except FileNotFoundError as error:
        raise lost_files(where, _shown(target, error)) from None
    except (SQLAlchemyError, RESTError, OSError) as error:
        raise silent(where, _shown(target, error)) from None
    except Exception as error:
        if not type(error).__module__.startswith("botocore."):  # not imported: only Glue needs it
            raise
        name = getattr(error, "response", {}).get("Error", {}).get("Code", type(error).__name__)
        raise _denied(target, error) if name in _DENIED_BY_AWS else silent(where, _shown(target, error)) from None


def silent(where: str, what: str) -> RetryLater:
    return RetryLater(
        f"The lake does not answer: {what}.",
        where=where,
        code="connection.unreachable",
        remedy="check the catalog and the storage that the pipeline file names, then run it again; SQLite makes its "
        "file, but not the folder",
    )


def _denied(target: IcebergTarget, error: Exception) -> Refused:
    return Refused(
        f"The catalog refuses the login: {_shown(target, error)}.",
        where=f"targets.{target.name}",
        code="connection.denied",
        remedy="check the credentials of the catalog and what they allow",
    )


def lost_files(where: str, what: str) -> FilesLost:
    return FilesLost(
        f"A file of the lake is missing: {what}.",
        where=where,
        code="lake.files_lost",
        remedy="somebody removed files that the table still names: restore them, or roll the table back to a snapshot "
        "whose files are there (Spark: CALL system.rollback_to_snapshot), then replay what it lacks: the error of "
        "the next run says from where",
    )


def _shown(target: IcebergTarget, error: Exception) -> str:
    """One line, without the values that come from the environment."""
    text = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")[:300]
    for name, value in target.catalog.items():
        if is_reference(value) and (secret := os.environ.get(variable_of(value))):
            passwords = _PASSWORD.findall(secret)
            for each in (secret, *passwords, *map(unquote, passwords)):
                text = text.replace(each, f"<{name}>")
    return text


def identifier(target: IcebergTarget, logical: str) -> tuple[str, ...]:
    """The name of the mirror of a logical table. Raises UsageError (config.invalid)."""
    rule = target.table(logical)
    assert rule is not None  # the plan has only tables that the target takes
    database, dot, table = logical.partition(".")
    words: dict[str, object] = {"logical": logical.replace(".", "_"), "table": table if dot else logical}
    if dot:
        words["database"] = database
    try:
        return (*target.namespace.split("."), rule.table.format(**words))
    except (KeyError, IndexError, ValueError) as error:
        raise UsageError(
            f"The name template {rule.table!r} of {logical!r} cannot be filled: {error}.",
            where=f"targets.{target.name}.tables",
            code="config.invalid",
            remedy="use {logical}, {table} and {database}; {database} exists only where the logical name is "
            "'database.table'",
        ) from None


def identifier_named(target: IcebergTarget, name: str) -> tuple[str, ...]:
    """The identifier of a mirror of this name, of which the table's part may have dots."""
    table = name.removeprefix(f"{target.namespace}.")
    return tuple(name.split(".")) if table == name else (*target.namespace.split("."), table)


def name_of(identifier: tuple[str, ...]) -> str:
    return ".".join(identifier)
