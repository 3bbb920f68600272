"""`lockstep stage sql`: a query over views of all staged tables.

The rows of each view that a query reads are written to a file. A view whose rows must not be read, because some are
missing or its changes are not those of one table, refuses the query that reads it; a query over other views is
answered.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from cdc_core.errors import Refused, UsageError
from cdc_core.model.batch import Manifest
from cdc_core.stage import staged_coverage
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.scratch_duckdb import quoted, scratch_duckdb, text
from cdc_core.stage.state import state_order, state_rows, state_rule, state_schema
from cdc_core.stage.table_files import COPY_AGAIN, GIVE_KEY, TableFiles, tables_of
from cdc_core.stage.table_history import by_key_rows, history_rows, history_schema
from cdc_core.stage.unify import NOTHING_STAGED

_LISTING = re.compile(r"\b(show|describe|pragma|information_schema|pg_catalog|sqlite_master|duckdb_\w+)\b")
"""In a query that may list the views, so that all of them are needed."""

_VIEWS = ("", "_changes", "_by_key")
"""Suffixes of the views of a table: of its state, its changes, and these by key."""

_RESERVED_SCHEMAS = frozenset({"main", "temp", "system", "information_schema", "pg_catalog"})

_READ_OTHERWISE = (
    "read the view of its changes (the name with _changes appended), or a target, or accept the rows that are there "
    "with --partial"
)
_ONE_SIDE = (
    "read them up to a position before the change (--as-of); in Python, the error of `changes()` names `since` and "
    "`until` for either side, if no type holds both. The state of the table (the view without a suffix) begins after "
    "that, and can be read"
)


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
    schema a. Tables whose names differ in letter case only, which DuckDB does not tell apart, have none. Only the
    tables whose names occur in the query are prepared, and all of them for a query that lists views. The state of a
    table of which rows are missing refuses to be read, unless `partial`. as_of: both views as they were at a moment.

    Raises UsageError (stage.sql) with DuckDB's message, and what `state_batches` raises.
    """
    manifests = [manifest for chain in manifests_by_source.values() for manifest in chain]
    if as_of is not None:
        as_of.require_begun(manifests)
    tables = sorted(tables_of(manifests))
    folded = query.casefold()
    named = [table for table in tables if table.rpartition(".")[2].replace('"', '""').casefold() in folded]
    if not named and _LISTING.search(folded):
        named = tables
    alike = _alike(tables)
    lacking = {} if partial else staged_coverage.missing_of(store, manifests, tables, as_of)
    purged = {} if partial else staged_coverage.purged_of(store, manifests, named, as_of)
    refused: Refused | None = None
    with ExitStack() as stack:
        connection = stack.enter_context(scratch_duckdb())
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-")))
        read, numbers = _names_read(connection, query), count()
        try:
            for table in (name for name in named if name not in alike):
                every = TableFiles.at(manifests, table, as_of)
                views = _views(store, every, purged.get(table, ""), lacking.get(table, ()), partial=partial)
                for suffix, names in _sql_names(connection, table).items():
                    is_read = read is None or not read.isdisjoint(names)
                    view = views.get(suffix)
                    if view is not None and is_read and view.refused is not None:
                        refused, view = view.refused, None  # DuckDB does not find it where the query reads it
                    if view is None:
                        continue
                    file = str(scratch / f"{next(numbers)}.parquet")
                    _write(file, view.schema, view.rows() if is_read else ())
                    order = f" ORDER BY {', '.join(view.order)}" if view.order else ""
                    for name in names.values():
                        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet([{text(file)}]){order}")
            relation: duckdb.DuckDBPyRelation | None = connection.sql(query)
            return pa.table({}) if relation is None else relation.to_arrow_table()  # not all statements answer
        except duckdb.Error as error:
            if refused is not None and isinstance(error, duckdb.CatalogException):
                raise refused from None
            shown = ", ".join(quoted(table) for table in tables if table not in alike)
            hint = f"; DuckDB ignores letter case: read {', '.join(alike)} in Python (`lockstep.open`)" if alike else ""
            raise UsageError(
                f"DuckDB refuses the query: {error}",
                code="stage.sql",
                remedy=f"fix the query; the tables are {shown}, each also with _changes appended, and with _by_key if "
                f"it has a key{hint}"
                if tables
                else NOTHING_STAGED,
            ) from None


def _alike(tables: Sequence[str]) -> list[str]:
    """The tables of which a view would have the name of another table's."""
    taken = Counter(f"{table}{suffix}".casefold() for table in tables for suffix in _VIEWS)
    return [table for table in tables if any(taken[f"{table}{suffix}".casefold()] > 1 for suffix in _VIEWS)]


def _sql_names(connection: duckdb.DuckDBPyConnection, table: str) -> dict[str, dict[str, str]]:
    """For each suffix, the SQL of the names of a table's views by the name in small letters without its schema, which
    is created."""
    database, _, short = table.partition(".")
    found = {suffix: {f"{table}{suffix}".casefold(): quoted(table + suffix)} for suffix in _VIEWS}
    if database and short and "." not in short and database.casefold() not in _RESERVED_SCHEMAS:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(database)}")
        for suffix, names in found.items():
            names[f"{short}{suffix}".casefold()] = f"{quoted(database)}.{quoted(short + suffix)}"
    return found


def _names_read(connection: duckdb.DuckDBPyConnection, query: str) -> frozenset[str] | None:
    """The names, in small letters and without their schemas, of what the query reads; None if DuckDB cannot say."""
    try:
        every = [connection.get_table_names(statement.query) for statement in duckdb.extract_statements(query)]
    except duckdb.Error:  # PIVOT is several statements
        return None
    return frozenset(name.casefold() for names in every for name in names)


@dataclass(frozen=True, slots=True)
class _View:
    """order: SQL. refused: why its rows must not be read; None where they may."""

    schema: pa.Schema
    rows: Callable[[], Iterable[pa.Table]]
    order: Sequence[str] = ()
    refused: Refused | None = None


def _write(path: str, schema: pa.Schema, rows: Iterable[pa.Table]) -> None:
    with pq.ParquetWriter(path, schema, compression="lz4") as writer:
        for some in rows:
            writer.write_table(some.cast(schema))


def _views(
    store: ObjectStore, every: TableFiles, purged: str, lacking: Sequence[str], *, partial: bool
) -> dict[str, _View]:
    """The views of a table, by suffix. every: its files. purged, lacking: what its state lacks."""
    state = every.needed()
    rule = state_rule(state)
    views = {
        "": _View(
            state_schema(list(rule.columns)),
            lambda: state_rows(store, state, rule),
            [quoted(name) for name in state_order(rule)],
            _state_refused(state, purged, lacking, partial=partial),
        )
    }
    files, refused = every, None
    try:
        key: Sequence[str] = every.key(every.columns())
    except Refused as error:  # the state alone can be read
        what = f"The changes cannot be read as those of one table: {error.what}"
        files, key, refused = state, rule.key, Refused(what, code=error.code, remedy=_ONE_SIDE)
    schema = history_schema(files)
    views["_changes"] = _View(schema, lambda: history_rows(store, files), refused=refused)
    if key:
        views["_by_key"] = _View(schema, lambda: by_key_rows(store, files, key), refused=refused)
    return views


def _state_refused(state: TableFiles, purged: str, lacking: Sequence[str], *, partial: bool) -> Refused | None:
    """Why the rows of a state must not be read; None where they may."""
    if purged:
        return Refused(f"{purged}.", code="stage.partial", remedy=_READ_OTHERWISE)
    if lacking:
        remedy = f"{_READ_OTHERWISE}; `lockstep snapshot` copies what is missing"
        return Refused(f"The state cannot be read: {'; '.join(lacking)}.", code="stage.partial", remedy=remedy)
    if not partial and (changed := state.key_changed()):
        return Refused(f"{changed[0].upper()}{changed[1:]}.", code="stage.key", remedy=COPY_AGAIN)
    if different := state.keys_differ():
        return Refused(f"The table has no key: {different}.", code="stage.key", remedy=GIVE_KEY)
    return None
