"""`lockstep stage sql`: a query over views of all staged tables, which can read these views and nothing else.

The rows of a state, and changes by key, are written to a file for a query that reads them. A view whose rows must not
be read, because some are missing or its changes are not those of one table, exists and refuses when it is read: a query
over other views is answered.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from cdc_core.errors import DataAtRisk, Refused, UsageError
from cdc_core.model.batch import Manifest
from cdc_core.stage import staged_coverage
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.changes_by_key import by_key_rows, by_key_schema
from cdc_core.stage.changes_sql import changes_sql, quoted, text
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.opened_files import duckdb_of_files, local_files, require_there
from cdc_core.stage.state import state_order, state_rows, state_rule, state_schema
from cdc_core.stage.table_files import COPY_AGAIN, GIVE_KEY, TableFiles, tables_of

_MARK = "\u2402"
"""Marks the reason why a view refuses to be read, so that it can be found in DuckDB's message."""

_LISTING = re.compile(r"\b(show|describe|pragma|information_schema|pg_catalog|sqlite_master|duckdb_\w+)\b")
"""In a query that may list the views, so that all of them are needed."""

_COPY = re.compile(r"\bcopy\b", re.IGNORECASE)

_VIEWS = ("", "_changes", "_by_key")
"""Suffixes of the views of a table: of its state, its changes, and these by key."""

_RESERVED_SCHEMAS = frozenset({"main", "temp", "system", "information_schema", "pg_catalog"})

_READ_OTHERWISE = (
    "read the view of its changes (the name with _changes appended), or a target, or accept the rows that are there "
    "with --partial"
)

_KEY_CHANGED, _KEYS_DIFFER, _PURGED = "the state alone", "the key", "the horizon"
"""In place of a code, where the changes can be read."""
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
    lacking = {} if partial else staged_coverage.missing_of(store, manifests, tables, as_of)
    purged = {} if partial else staged_coverage.purged_of(store, manifests, named, as_of)
    with ExitStack() as stack:
        connection = stack.enter_context(duckdb_of_files())
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-")))
        read = _names_read(connection, query)
        files: list[str] = []
        try:
            for table in named:
                every = TableFiles.at(manifests, table, as_of)
                state = every.needed()
                reasons = {
                    _PURGED: purged.get(table, ""),
                    "stage.partial": "; ".join(lacking.get(table, ())),
                    _KEY_CHANGED: "" if partial else state.key_changed(),
                    _KEYS_DIFFER: state.keys_differ(),
                }
                why = next(((code, what, "") for code, what in reasons.items() if what), None)
                views = _sql_names(connection, table, view_names[table])
                used = {suffix for suffix, known in views.items() if read is None or not read.isdisjoint(known)}
                for suffix, body in _bodies(_Making(store, stack, scratch, files, used), every, state, why).items():
                    for name in views[suffix].values():
                        connection.execute(f"CREATE VIEW {name} AS {body}")
            _confine(connection, files)
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
                remedy=f"fix the query; the tables are {names or '(none yet)'}, each also with _changes appended, "
                f"and with _by_key if it has a key{hint}",
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
            f"The views can only be queried, and this is a statement of type {one.type.name}.",
            where=one.query.strip()[:80],
            code="stage.sql",
            remedy="write a SELECT; for a file of the answer use -o FILE, --json, or DuckDB itself on the paths that "
            "`lockstep stage ls --files` prints",
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
        for name in (f"{table}{suffix}" for suffix in _VIEWS):
            taken.setdefault(name.casefold(), []).append(table)
    numbers: dict[str, int] = {}
    found: dict[str, tuple[str, ...]] = {}
    for table in tables:
        names = [f"{table}{suffix}" for suffix in _VIEWS]
        alike = {other for name in names for other in taken[name.casefold()]}
        if len(alike) == 1:
            found[table] = (table, table)
            continue
        while True:
            number = numbers[table.casefold()] = numbers.get(table.casefold(), 0) + 1
            name = f"{table}~{number}"
            if not any(f"{name}{suffix}".casefold() in taken for suffix in _VIEWS):
                break
        found[table] = (name,)
    return found


def _sql_names(
    connection: duckdb.DuckDBPyConnection, table: str, view_names: Sequence[str]
) -> dict[str, dict[str, str]]:
    """By suffix, the SQL of the names of a table's views, by the name in small letters without its schema, which is
    created."""
    database, _, short = table.partition(".")
    found = {suffix: {f"{view_names[0]}{suffix}".casefold(): quoted(view_names[0] + suffix)} for suffix in _VIEWS}
    if len(view_names) > 1 and database and short and "." not in short and database.casefold() not in _RESERVED_SCHEMAS:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(database)}")
        for suffix, names in found.items():
            names[f"{short}{suffix}".casefold()] = f"{quoted(database)}.{quoted(short + suffix)}"
    return found


def _names_read(connection: duckdb.DuckDBPyConnection, query: str) -> frozenset[str] | None:
    """The names, in small letters and without their schemas, of what the query reads; None if DuckDB cannot say."""
    try:
        every = [connection.get_table_names(one.query) for one in duckdb.extract_statements(query)]
    except duckdb.Error:  # PIVOT is several statements
        return None
    return frozenset(name.casefold() for names in every for name in names)


_Reason = tuple[str, str, str]
"""Code, text and place of an error."""


@dataclass(frozen=True, slots=True)
class _Making:
    """Where views are made. files: what they read. used: suffixes of those that the query reads: the others are empty,
    and have their columns."""

    store: ObjectStore
    stack: ExitStack
    scratch: Path
    files: list[str]
    used: Collection[str]

    def written(self, schema: pa.Schema, rows: Iterable[pa.Table] = ()) -> str:
        """A query that reads these rows, from a new file."""
        path = str(self.scratch / f"{len(self.files)}.parquet")
        with pq.ParquetWriter(path, schema, compression="lz4") as writer:
            for some in rows:
                writer.write_table(some.cast(schema))
        self.files.append(path)
        return f"SELECT * FROM read_parquet([{text(path)}])"

    def changes(self, files: TableFiles) -> str:
        groups = self.stack.enter_context(local_files(self.store, files))
        self.files.extend(path for group in groups for path in group.files)
        return changes_sql(groups, files.columns()) if groups else self.written(by_key_schema(files))

    def by_key(self, files: TableFiles, key: Sequence[str]) -> str:
        return self.written(by_key_schema(files), by_key_rows(self.store, files, key))


def _bodies(making: _Making, every: TableFiles, state: TableFiles, refused: _Reason | None) -> dict[str, str]:
    """By suffix, the queries of a table's views. every: its files. state: those that its state needs. refused: why the
    state must not be read; None where it may."""
    rule = state_rule(state)
    rows = state_rows(making.store, state, rule) if "" in making.used and refused is None else iter(())
    order = ", ".join(quoted(name) for name in state_order(rule))
    body = f"{making.written(state_schema(list(rule.columns)), rows)} ORDER BY {order}"
    bodies = {"": body if refused is None else _refusing(body, refused)}
    conflict = None
    try:
        key: Sequence[str] = every.key(every.columns())
    except Refused as error:  # the state alone can be read
        every, key, conflict = state, rule.key, _reason(error)
    for suffix in ("_changes", *(["_by_key"] if key else [])):
        why = conflict
        if why is None and suffix in making.used:
            try:
                bodies[suffix] = making.changes(every) if suffix == "_changes" else making.by_key(every, key)
                continue
            except (DataAtRisk, Refused) as error:
                why = _reason(error)
        empty = making.written(by_key_schema(every))
        bodies[suffix] = empty if why is None else _refusing(empty, why)
    return bodies


def _reason(error: DataAtRisk | Refused) -> _Reason:
    return error.code, error.what.removesuffix("."), error.where


def _refusing(body: str, refused: _Reason) -> str:
    """The query, which raises an error with the code, reason and place when it is read."""
    # In a join, so that it is raised for a state without rows too.
    reason = text(_MARK + _MARK.join(refused) + _MARK)
    failing = f"SELECT CASE WHEN error({reason}) IS NULL THEN 1 END AS readable"
    return f"SELECT answer.* FROM ({failing}) AS gate, ({body}) AS answer WHERE gate.readable = 1"


def _refused(said: str) -> Refused | DataAtRisk | None:
    """The error with which a view refused to be read, from DuckDB's message; None for another error."""
    if said.count(_MARK) < 4:
        return None
    _, code, what, where, *_ = said.split(_MARK)
    if code == "stage.damaged":
        remedy = "restore the file from a backup of the stage; the state of the table (the view without a suffix) may "
        return DataAtRisk(f"{what}.", where=where, code=code, remedy=f"{remedy}not need it")
    if code in ("stage.schema_conflict", "stage.key"):
        return Refused(
            f"The changes cannot be read as those of one table: {what}.",
            code=code,
            remedy="read them up to a position before the change (--as-of); in Python, the error of `changes()` "
            "names `since` and `until` for either side, if no type holds both. "
            f"{_STATE_ALONE[0].upper()}{_STATE_ALONE[1:]}",
        )
    if code == _KEYS_DIFFER:
        return Refused(f"The table has no key: {what}.", code="stage.key", remedy=GIVE_KEY)
    if code == _KEY_CHANGED:
        return Refused(f"{what[0].upper()}{what[1:]}.", code="stage.key", remedy=COPY_AGAIN)
    if code == _PURGED:
        return Refused(f"{what}.", code="stage.partial", remedy=_READ_OTHERWISE)
    remedy = f"{_READ_OTHERWISE}; `lockstep snapshot` copies what is missing"
    return Refused(f"The state cannot be read: {what}.", code="stage.partial", remedy=remedy)
