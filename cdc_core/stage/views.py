"""`lockstep stage sql`: a query over views of all staged tables, which can read these views and nothing else.

A view whose rows must not be read, because some are missing or its changes are not those of one table, exists and
refuses when it is read: a query over other views is answered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import duckdb
import pyarrow as pa

from cdc_core.errors import DataAtRisk, Refused, UsageError
from cdc_core.model.batch import Manifest
from cdc_core.stage import coverage
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.by_key_sql import by_key_sql
from cdc_core.stage.changes_sql import TableFiles, changes_sql, quoted, text
from cdc_core.stage.fold import state_sql
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.opened import (
    COPY_AGAIN,
    GIVE_KEY,
    Opened,
    duckdb_of_files,
    files_of_history,
    files_of_state,
    key_changed,
    keys_differ,
    opened_files,
    require_there,
    tables_of,
)

_MARK = "\u2402"
"""Marks the reason why a view refuses to be read, so that it can be found in DuckDB's message."""

_LISTING = re.compile(r"\b(show|describe|pragma|information_schema|pg_catalog|sqlite_master|duckdb_\w+)\b")
"""In a query that may list the views, so that all of them are needed."""

_COPY = re.compile(r"\bcopy\b", re.IGNORECASE)

_SUFFIXES = ("_changes", "_by_key")
"""Suffixes of the views other than that of a table's state."""

_RESERVED_SCHEMAS = frozenset({"main", "temp", "system", "information_schema", "pg_catalog"})

_READ_OTHERWISE = (
    "read the view of its changes (the name with _changes appended), or a target, or accept the rows that are there "
    "with --partial"
)

_KEY_CHANGED, _KEYS_DIFFER = "the state alone", "the key"
"""In place of the code stage.key: the changes can be read."""
_STATE_ALONE = "the state of the table (the view without a suffix) begins after that, and can be read"


def sql(
    store: ObjectStore,
    manifests_by_source: Mapping[str, Sequence[Manifest]],
    query: str,
    *,
    partial: bool = False,
    as_of: AsOf | None = None,
) -> pa.Table:
    """The answer of a DuckDB query over the staged files.

    Each logical table has the views `<table>_changes`, every change, `<table>`, its state, and, where it has a key,
    `<table>_by_key`, every change as one of a single key. A name `a.b` is the quoted view "a.b", and also view b of
    schema a. Tables whose names differ in letter case only, which DuckDB does not tell apart, have the views
    "<table>~1", "<table>~2" and so on instead. Only the tables whose names occur in the query are prepared, and all of
    them for a query that lists views. The state of a table of which rows are missing refuses to be read, unless
    `partial`. as_of: both views as they were at a moment.

    The query can read only the views: no other file, no network; it can write nothing and change no setting.
    Raises UsageError (stage.sql) with DuckDB's message, and what `table_state` raises.
    """
    _require_query(query)
    manifests = [manifest for chain in manifests_by_source.values() for manifest in chain]
    if as_of is not None:
        as_of.require_begun(manifests)
    tables = sorted(tables_of(manifests))
    asked = query.casefold()
    named = [table for table in tables if table.rpartition(".")[2].replace('"', '""').casefold() in asked]
    if not named and _LISTING.search(asked):
        named = tables
    view_names = _view_names(tables)
    lacking = {} if partial else coverage.missing_of(store, manifests, tables, as_of)
    purged = {} if partial else coverage.purged_of(store, manifests, named, as_of)
    with ExitStack() as stack:
        connection = stack.enter_context(duckdb_of_files())
        files: list[str] = []
        for table in named:
            opened, damaged = _opened(stack, store, manifests, table, as_of)
            state = files_of_state(connection, opened, table, None)
            reasons = {
                "stage.purged": purged.get(table, ""),
                "stage.partial": "; ".join(lacking.get(table, ())),
                _KEY_CHANGED: "" if partial else key_changed(opened),
                _KEYS_DIFFER: keys_differ(opened),
            }
            _views(
                connection,
                table,
                view_names[table],
                state,
                damaged or _history_or_refusal(connection, opened, table),
                next((pair for pair in reasons.items() if pair[1]), None),
            )
            files += [file for group in opened.groups for file in group.files]
        _confine(connection, files)
        try:
            relation: duckdb.DuckDBPyRelation | None = connection.sql(query)
            return pa.table({}) if relation is None else relation.to_arrow_table()  # not all statements answer
        except duckdb.Error as error:
            require_there(files)
            if (refused := _refused(str(error))) is not None:
                raise refused from None
            names = ", ".join(quoted(view_names[table][0]) for table in tables)
            alike = [f"{quoted(view_names[table][0])} for {table}" for table in tables if view_names[table][0] != table]
            hint = f"; DuckDB ignores letter case, so write {', '.join(alike)}" if alike else ""
            raise UsageError(
                f"DuckDB refuses the query: {error}",
                code="stage.sql",
                remedy=f"fix the query; staged are {names or '(none yet)'}, and each of them with _changes appended, "
                f"or _by_key if it has a key{hint}",
            ) from None


def _require_query(query: str) -> None:
    """Raises UsageError (stage.sql) for statements that are not queries: they could overwrite the files they may read.

    EXPLAIN ANALYZE runs what it explains, and PIVOT comes as several statements: neither may contain a COPY.
    """
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise UsageError(f"DuckDB cannot read the query: {error}", code="stage.sql", remedy="fix the query") from None
    kinds = duckdb.StatementType
    for one in statements:
        if one.type == kinds.SELECT or (one.type in (kinds.EXPLAIN, kinds.MULTI) and not _COPY.search(query)):
            continue
        raise UsageError(
            f"The views can only be queried: this is a statement of type {one.type.name}.",
            where=one.query.strip()[:80],
            code="stage.sql",
            remedy="write a SELECT; for a file of the answer use -o FILE, --json, or DuckDB itself on "
            "the paths that `lockstep stage ls --files` prints",
        )


def _confine(connection: duckdb.DuckDBPyConnection, files: Sequence[str]) -> None:
    """From here on the connection reads these files and spills to its own directory; no statement can change that."""
    connection.execute(f"SET allowed_paths = [{', '.join(text(file) for file in files)}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _view_names(tables: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """By table: the names of its state's view, of which the first is quoted whole and the second, if any, is the view
    of a schema. All of their views, `_changes` too, are apart from those of other tables."""
    taken: dict[str, list[str]] = {}
    for table in tables:
        for name in (table, *(f"{table}{suffix}" for suffix in _SUFFIXES)):
            taken.setdefault(name.casefold(), []).append(table)
    numbers: dict[str, int] = {}
    found: dict[str, tuple[str, ...]] = {}
    for table in tables:
        names = (table, *(f"{table}{suffix}" for suffix in _SUFFIXES))
        alike = {other for name in names for other in taken[name.casefold()]}
        if len(alike) == 1:
            found[table] = (table, table)
            continue
        while True:
            number = numbers[table.casefold()] = numbers.get(table.casefold(), 0) + 1
            name = f"{table}~{number}"
            if not any(f"{name}{suffix}".casefold() in taken for suffix in ("", *_SUFFIXES)):
                break
        found[table] = (name,)
    return found


def _opened(
    stack: ExitStack, store: ObjectStore, manifests: Sequence[Manifest], table: str, as_of: AsOf | None
) -> tuple[Opened, tuple[str, str] | None]:
    """Without the history where a file is lost or damaged that the state does not need; then with code and reason."""
    try:
        return stack.enter_context(opened_files(store, manifests, table, as_of)), None
    except DataAtRisk as error:
        opened = stack.enter_context(opened_files(store, manifests, table, as_of, history=False))
        return opened, (error.code, error.what.removesuffix("."))


def _history_or_refusal(
    connection: duckdb.DuckDBPyConnection, opened: Opened, table: str
) -> TableFiles | tuple[str, str]:
    """Code and reason where the changes cannot be read as one table, although the state perhaps can."""
    try:
        return files_of_history(connection, opened, table, None)
    except Refused as error:
        return error.code, error.what.removesuffix(".")


def _views(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    view_names: Sequence[str],
    state_files: TableFiles,
    history: TableFiles | tuple[str, str],
    refused: tuple[str, str] | None,
) -> None:
    """refused: code and reason why the state must not be read; None where it may. history: for the other views; or why
    they must not be read."""
    state = state_sql(state_files)
    bodies = {"": state if refused is None else _refusing(state, refused)}
    shown, why = (state_files, history) if isinstance(history, tuple) else (history, None)
    others = {"_changes": changes_sql(shown.groups, shown.all_columns)}
    if shown.key:
        others["_by_key"] = by_key_sql(shown)
    bodies |= others if why is None else {suffix: _refusing(body, why) for suffix, body in others.items()}
    database, dot, short = table.partition(".")
    in_schema = dot and database and short and "." not in short and database.casefold() not in _RESERVED_SCHEMAS
    for suffix, body in bodies.items():
        names = [quoted(view_names[0] + suffix)]
        if in_schema and len(view_names) > 1:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(database)}")
            names.append(f"{quoted(database)}.{quoted(short + suffix)}")
        for name in names:
            connection.execute(f"CREATE VIEW {name} AS {body}")


def _refusing(body: str, refused: tuple[str, str]) -> str:
    """The query, which raises an error with the code and reason when it is read."""
    # In a join, so that it is raised for a state without rows too.
    reason = text(_MARK + _MARK.join(refused) + _MARK)
    failing = f"SELECT CASE WHEN error({reason}) IS NULL THEN 1 END AS readable"
    return f"SELECT answer.* FROM ({failing}) AS gate, ({body}) AS answer WHERE gate.readable = 1"


def _refused(said: str) -> Refused | DataAtRisk | None:
    """The error with which a view refused to be read, from DuckDB's message; None for another error."""
    if said.count(_MARK) < 3:
        return None
    _, code, what, *_ = said.split(_MARK)
    if code in ("stage.damaged", "stage.missing"):
        return DataAtRisk(f"{what}.", code=code, remedy=f"restore the file from a backup of the stage; {_STATE_ALONE}")
    if code in ("stage.schema_conflict", "stage.key"):
        return Refused(
            f"The changes cannot be read as those of one table: {what}.",
            code=code,
            remedy="read them up to a position before the change (--as-of). Or use `changes()` in Python: if no type "
            f"holds both, its error names `since` and `until` for either side. And {_STATE_ALONE}",
        )
    if code == _KEYS_DIFFER:
        return Refused(f"The table has no key: {what}.", code="stage.key", remedy=GIVE_KEY)
    if code == _KEY_CHANGED:
        return Refused(f"{what[0].upper()}{what[1:]}.", code="stage.key", remedy=COPY_AGAIN)
    if code == "stage.purged":
        return Refused(f"{what}.", code="stage.purged", remedy=_READ_OTHERWISE)
    remedy = f"{_READ_OTHERWISE}; `lockstep snapshot` copies what is missing"
    return Refused(f"The state cannot be read: {what}.", code="stage.partial", remedy=remedy)
