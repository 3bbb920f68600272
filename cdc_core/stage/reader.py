"""Reading staged batches: the changes of a table, its state folded from them, an export, and SQL over all of it.

It reads the manifests that it is given and never lists. Files in a bucket are fetched into a temporary directory; those
of a directory are read in place. DuckDB does the work, and spills to disk if memory is short.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import uuid
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from cdc_core.errors import Refused, RetryLater, UsageError
from cdc_core.model.batch import Manifest, Part
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema
from cdc_core.stage import coverage
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.by_key_sql import by_key_sql
from cdc_core.stage.changes_sql import FileGroup, TableFiles, changes_sql, check_key, key_of, quoted, text
from cdc_core.stage.fold import state_schema, state_sql
from cdc_core.stage.horizon import removed
from cdc_core.stage.intact import fetch, open_intact, require_intact
from cdc_core.stage.layout import parse_compacted
from cdc_core.stage.needed import needed_parts
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.removed import unless_removed
from cdc_core.stage.unify import (
    StagedPart,
    align,
    by_age,
    emptied_columns,
    latest_definitions,
    parts_of,
    unified_columns,
    unified_schema,
)

log = logging.getLogger(__name__)

_BATCH_ROWS = 122_880
_MARK = "\u2402"
"""Marks the reason why a view refuses to be read, so that it can be found in DuckDB's message."""
_READ_OTHERWISE = (
    "read the view of its changes (the name with _changes appended), or a target, or accept the rows that are there "
    "with --partial"
)

_SINCE_THE_CHANGE = (
    "read the state of the table (the view without a suffix), which is from after the change; or read the files of "
    "before and after the change separately (`lockstep stage ls --files`)"
)


def changes(store: ObjectStore, manifests: Sequence[Manifest], table: str) -> pa.Table:
    """Every staged change of a logical table, in the order of the manifests, under one schema.

    Added columns are null where they did not exist yet, widened types are widened.
    Raises Refused (stage.no_table, stage.schema_conflict), DataAtRisk (stage.missing).
    """
    parts = parts_of(manifests, table)
    schema = unified_schema(table, _definitions(parts))
    tables, begins = [], _begins(manifests)
    for one in parts:
        with unless_removed(store, begins, [one.part.path]), open_intact(store, one.part) as file:
            tables.append(align(pq.ParquetFile(file).read(), schema))
    return pa.concat_tables(tables)


def table_state(
    store: ObjectStore,
    manifests: Sequence[Manifest],
    table: str,
    key: Sequence[str] | None = None,
    *,
    since_horizon: bool = False,
    partial: bool = False,
    as_of: AsOf | None = None,
) -> pa.Table:
    """The table as its staged changes leave it: its columns, `_cdc_seq`, `_cdc_ts`, `_cdc_literal`,
    `_cdc_absent`, ordered by key.

    manifests: of one or more sources, each source's in stream order and complete.
    key:       columns that identify a row; by default the table's own key. Without any, whole rows are matched.
    since_horizon: where history was purged, give the rows that changed since.
    partial:   give the rows that are staged, whatever is missing.
    as_of:     the state at a moment; the caller has seen that it is staged completely.
    Raises Refused (stage.no_table, stage.schema_conflict, stage.key, stage.purged, stage.partial), DataAtRisk
    (stage.missing).
    """
    _require_all_rows(store, manifests, table, as_of, since_horizon=since_horizon, partial=partial)
    with _state(store, manifests, table, key, as_of) as (relation, schema):
        return relation.to_arrow_table().cast(schema)


def state_batches(
    store: ObjectStore,
    manifests: Sequence[Manifest],
    table: str,
    key: Sequence[str] | None = None,
    *,
    partial: bool = False,
    as_of: AsOf | None = None,
    rows: int = _BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """`table_state` in batches of at most `rows` rows: DuckDB spills to disk what does not fit into memory."""
    _require_all_rows(store, manifests, table, as_of, since_horizon=False, partial=partial)
    with _state(store, manifests, table, key, as_of) as (relation, schema):
        yield from _cast(relation, schema, rows)


def state_columns(manifests: Sequence[Manifest], table: str, *, as_of: AsOf | None = None) -> pa.Schema:
    """The schema of `table_state`; no file is opened."""
    _, described = _parts_by(manifests, table, as_of)
    parts = needed_parts(described, manifests, table, as_of)
    return state_schema(unified_columns(table, _definitions(parts), latest_definitions(parts)))


def changes_columns(manifests: Sequence[Manifest], table: str, *, as_of: AsOf | None = None) -> pa.Schema:
    """The schema of `changes`, as_of: by the definitions of the moment; no file is opened."""
    _, parts = _parts_by(manifests, table, as_of)
    return unified_schema(table, _definitions(parts))


def _parts_by(
    manifests: Sequence[Manifest], table: str, as_of: AsOf | None
) -> tuple[list[StagedPart], list[StagedPart]]:
    """The parts in which something may have happened by the moment; and those whose definitions the table has then,
    which are later ones if there are none yet.

    Raises Refused (stage.no_table, stage.as_of_before).
    """
    every = parts_of(manifests, table)
    if as_of is None:
        return every, every
    as_of.require_begun(manifests)
    by_then = as_of.cut(manifests)
    parts = parts_of(by_then, table) if table in _tables(by_then) else []
    return parts, parts or every


def _tables(manifests: Sequence[Manifest]) -> set[str]:
    return {part.table for manifest in manifests for part in manifest.parts}


def change_batches(
    store: ObjectStore,
    manifests: Sequence[Manifest],
    table: str,
    *,
    since: AsOf | None = None,
    until: AsOf | None = None,
    rows: int = _BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """`changes` in batches of at most `rows` rows: those that the state as of `since` lacks and that as of `until` has.

    The two are exact complements: what is left out up to a moment comes since it, late data too.
    """
    if until is not None:
        until.require_begun(manifests)
    parts = parts_of(manifests, table)
    schema = unified_schema(table, _definitions(parts))
    before, up_to = _paths(manifests, since), _paths(manifests, until)
    after_first, after_last = _later(manifests, since), _later(manifests, until)
    begins = _begins(manifests)
    for one in parts:
        if until is not None and one.part.path not in up_to:
            continue
        with unless_removed(store, begins, [one.part.path]), open_intact(store, one.part) as file:
            for batch in pq.ParquetFile(file).iter_batches(rows):
                aligned = align(pa.Table.from_batches([batch]), schema)
                if until is not None:
                    aligned = aligned.filter(until.expression_of(_end_seq(one, after_last)))
                if since is not None and one.part.path in before:
                    aligned = aligned.filter(~since.expression_of(_end_seq(one, after_first)))
                yield from aligned.to_batches()


def _later(manifests: Sequence[Manifest], moment: AsOf | None) -> Mapping[str, Sequence[int]]:
    return {} if moment is None else moment.later(manifests)


def _end_seq(part: StagedPart, later: Mapping[str, Sequence[int]]) -> int | None:
    """From where on the rows of a compacted file are in batches after the moment; None if none of them is.

    later: from AsOf. The windows of the batches in one file follow one another (`apply.compaction`).
    """
    name = parse_compacted(part.part.path)
    places = later.get(part.source, ())
    at = len(places) if name is None else bisect_left(places, name.begin_seq)
    return places[at] if name is not None and at < len(places) and places[at] < name.end_seq else None


def _begins(manifests: Sequence[Manifest]) -> dict[str, Position]:
    """Where the first batch of each source begins."""
    begins: dict[str, Position] = {}
    for one in manifests:
        place = one.begin.position
        begins[one.source] = min(place, begins.get(one.source, place))
    return begins


def _paths(manifests: Sequence[Manifest], moment: AsOf | None) -> frozenset[str]:
    """The parts in which something may have happened by the moment."""
    cut = () if moment is None else moment.cut(manifests)
    return frozenset(part.path for manifest in cut for part in manifest.parts)


def by_key_batches(
    store: ObjectStore,
    manifests: Sequence[Manifest],
    table: str,
    key: Sequence[str] | None = None,
    *,
    until: AsOf | None = None,
    rows: int = _BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """`changes`, each a change of one key (`by_key_sql`), in order. Raises Refused (stage.key) without a key."""
    with _duckdb() as connection, _opened(store, manifests, table, until) as opened:
        table_files = _of_history(connection, opened, table, key)
        if not table_files.key:
            raise Refused(
                f"{table} has no key, so it has no changes by key.",
                where=table,
                code="stage.key",
                remedy="read its changes as they are, or name the columns that identify a row",
            )
        schema = changes_columns(manifests, table, as_of=until)
        names = ", ".join(quoted(name) for name in schema.names)
        # A delete of a key comes before an insert of another one at the same place.
        order = ", ".join(
            ["_cdc_source, _cdc_seq, _cdc_row, _cdc_op DESC", *(quoted(name) for name in table_files.key)]
        )
        relation = connection.sql(f"SELECT {names} FROM ({by_key_sql(table_files)}) ORDER BY {order}")
        yield from _cast(relation, schema, rows)


def _cast(relation: duckdb.DuckDBPyRelation, schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    for batch in relation.to_arrow_reader(rows):
        yield from pa.Table.from_batches([batch]).cast(schema).to_batches()


def export(
    store: ObjectStore,
    manifests: Sequence[Manifest],
    table: str,
    path: Path,
    key: Sequence[str] | None = None,
    *,
    level: int = 3,
    since_horizon: bool = False,
    partial: bool = False,
    as_of: AsOf | None = None,
    dropped: bool = False,
) -> int:
    """Writes `table_state` to one Parquet file, batch by batch; the rows written. The file appears whole or not at all.

    dropped: also columns that the table no longer has, null in rows that changed since.
    Raises what `table_state` does, and RetryLater (stage.unwritable).
    """
    _require_all_rows(store, manifests, table, as_of, since_horizon=since_horizon, partial=partial)
    with _state(store, manifests, table, key, as_of, dropped) as (relation, schema):
        return write_parquet(schema, _cast(relation, schema, _BATCH_ROWS), path, level=level)


def write_parquet(schema: pa.Schema, batches: Iterator[pa.RecordBatch], path: Path, *, level: int = 3) -> int:
    """The rows written. The file appears whole or not at all. Raises RetryLater (stage.unwritable)."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    rows = 0
    try:
        with pq.ParquetWriter(temporary, schema, compression="zstd", compression_level=level) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
        os.replace(temporary, path)
    except OSError as error:
        raise RetryLater(
            f"Cannot write the export: {error.strerror or error}.",
            where=str(path),
            code="stage.unwritable",
            remedy="create the directory, free some space there, or let the account write there",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return rows


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
    tables = sorted(_tables(manifests))
    asked = query.casefold()
    named = [table for table in tables if table.rpartition(".")[2].replace('"', '""').casefold() in asked]
    if not named and _LISTING.search(asked):
        named = tables
    view_names = _view_names(tables)
    lacking = {} if partial else coverage.missing_of(store, manifests, tables, as_of)
    purged = {} if partial else coverage.purged_of(store, manifests, named, as_of)
    with ExitStack() as stack:
        connection = stack.enter_context(_duckdb())
        files: list[str] = []
        for table in named:
            opened = stack.enter_context(_opened(store, manifests, table, as_of))
            state = _of_state(connection, opened, table, None)
            reasons = {"stage.purged": purged.get(table, ""), "stage.partial": "; ".join(lacking.get(table, ()))}
            _views(
                connection,
                table,
                view_names[table],
                state,
                _history_or_refusal(connection, opened, table),
                next((pair for pair in reasons.items() if pair[1]), None),
            )
            files += [file for group in opened.groups for file in group.files]
        _confine(connection, files)
        try:
            relation: duckdb.DuckDBPyRelation | None = connection.sql(query)
            return pa.table({}) if relation is None else relation.to_arrow_table()  # not all statements answer
        except duckdb.Error as error:
            _require_there(files)
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


_LISTING = re.compile(r"\b(show|describe|pragma|information_schema|pg_catalog|sqlite_master|duckdb_\w+)\b")
"""In a query that may list the views, so that all of them are needed."""
_COPY = re.compile(r"\bcopy\b", re.IGNORECASE)


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
            remedy="write a SELECT; for a file of the answer use `lockstep stage export`, --json, or DuckDB itself on "
            "the paths that `lockstep stage ls --files` prints",
        )


def _confine(connection: duckdb.DuckDBPyConnection, files: Sequence[str]) -> None:
    """From here on the connection reads these files and spills to its own directory; no statement can change that."""
    connection.execute(f"SET allowed_paths = [{', '.join(text(file) for file in files)}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


_SUFFIXES = ("_changes", "_by_key")
"""Suffixes of the views other than that of a table's state."""


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


def _require_all_rows(
    store: ObjectStore,
    manifests: Sequence[Manifest],
    table: str,
    as_of: AsOf | None,
    *,
    since_horizon: bool,
    partial: bool,
) -> None:
    """Raises Refused (stage.purged, stage.partial) where rows are missing that the caller has not waived."""
    if not partial and not since_horizon:
        coverage.require_unpurged(store, manifests, table, as_of)
    if not partial:
        coverage.require_covered(store, manifests, table, as_of)


def _refused(said: str) -> Refused | None:
    """The error with which a view of a state refused to be read, from DuckDB's message; None for another error."""
    if said.count(_MARK) < 3:
        return None
    _, code, what, *_ = said.split(_MARK)
    if code in ("stage.schema_conflict", "stage.key"):
        return Refused(
            f"The changes cannot be read as those of one table: {what}.", code=code, remedy=_SINCE_THE_CHANGE
        )
    if code == "stage.purged":
        return Refused(f"{what}.", code="stage.purged", remedy=_READ_OTHERWISE)
    return Refused(f"The state cannot be read: {what}.", code="stage.partial", remedy=_READ_OTHERWISE)


def _definitions(parts: Sequence[StagedPart]) -> list[TableSchema]:
    """Definitions in stream order, each at its last appearance, so that the newest comes last."""
    last: dict[str, TableSchema] = {}
    for one in by_age(parts):
        last.pop(one.schema.id, None)
        last[one.schema.id] = one.schema
    return list(last.values())


@contextmanager
def _duckdb() -> Iterator[duckdb.DuckDBPyConnection]:
    """A private in-memory database that spills to a temporary directory and never reaches for the network."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        connection = duckdb.connect(
            config={
                "temp_directory": scratch,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "preserve_insertion_order": False,
                "allow_persistent_secrets": False,
            }
        )
        try:
            connection.execute("SET python_enable_replacements = false")  # a table is not a variable of ours
            connection.execute("SET TimeZone = 'UTC'")
            yield connection
        finally:
            connection.close()


@contextmanager
def _state(
    store: ObjectStore,
    manifests: Sequence[Manifest],
    table: str,
    key: Sequence[str] | None,
    as_of: AsOf | None,
    dropped: bool = False,
) -> Iterator[tuple[duckdb.DuckDBPyRelation, pa.Schema]]:
    with _duckdb() as connection, _opened(store, manifests, table, as_of, history=False) as opened:
        table_files = _of_state(connection, opened, table, key, dropped)
        yield connection.sql(state_sql(table_files)), state_schema(table_files.columns)


@dataclass(frozen=True, slots=True)
class _Opened:
    """The parts of a moment, in local files. described: those whose definitions the table has then.
    needed, needed_described: those that its state needs. emptied: from unify."""

    parts: Sequence[StagedPart]
    described: Sequence[StagedPart]
    needed: Sequence[StagedPart]
    needed_described: Sequence[StagedPart]
    groups: tuple[FileGroup, ...]
    needed_groups: tuple[FileGroup, ...]


@contextmanager
def _opened(
    store: ObjectStore, manifests: Sequence[Manifest], table: str, as_of: AsOf | None, *, history: bool = True
) -> Iterator[_Opened]:
    """The files are local as long as the context lasts. history: whether also those that the state does not need."""
    parts, described = _parts_by(manifests, table, as_of)
    needed, needed_described = (needed_parts(one, manifests, table, as_of) for one in (parts, described))
    if not history:
        parts, described = needed, needed_described
    later = _later(manifests, as_of)
    if as_of is not None:
        manifests = as_of.cut(manifests)
    emptied = emptied_columns(manifests, as_of)
    in_state = {one.part.path for one in needed}

    def condition(part: StagedPart) -> str:
        return "true" if as_of is None else as_of.condition_of(_end_seq(part, later))

    with ExitStack() as stack:
        with unless_removed(store, _begins(manifests), [one.part.path for one in parts]):
            groups = stack.enter_context(_local_files(store, parts, condition, emptied, in_state))
        yield _Opened(
            parts, described, needed, needed_described,
            tuple(group for group, _ in groups), tuple(group for group, for_state in groups if for_state),
        )  # fmt: skip


def _of_state(
    connection: duckdb.DuckDBPyConnection,
    opened: _Opened,
    table: str,
    key: Sequence[str] | None,
    dropped: bool = False,
) -> TableFiles:
    """What its state is folded from. Raises Refused (stage.schema_conflict, stage.key)."""
    return _described(
        connection, opened.needed, opened.needed_described, opened.needed_groups, table, key, dropped=dropped
    )


def _of_history(
    connection: duckdb.DuckDBPyConnection, opened: _Opened, table: str, key: Sequence[str] | None
) -> TableFiles:
    """Every change. Raises Refused (stage.schema_conflict, stage.key)."""
    return _described(connection, opened.parts, opened.described, opened.groups, table, key)


def _history_or_refusal(
    connection: duckdb.DuckDBPyConnection, opened: _Opened, table: str
) -> TableFiles | tuple[str, str]:
    """Code and reason where the changes cannot be read as one table, although the state perhaps can."""
    try:
        return _of_history(connection, opened, table, None)
    except Refused as error:
        return error.code, error.what.removesuffix(".")


def _described(
    connection: duckdb.DuckDBPyConnection,
    parts: Sequence[StagedPart],
    described: Sequence[StagedPart],
    groups: tuple[FileGroup, ...],
    table: str,
    key: Sequence[str] | None,
    *,
    dropped: bool = False,
) -> TableFiles:
    definitions = latest_definitions(described)
    every = _definitions(described)
    if key is None:
        chosen = key_of(table, definitions, groups)
    else:
        chosen = tuple(key)
        for group in groups:
            check_key(table, chosen, group.schema)
    return TableFiles(
        groups=groups,
        columns=tuple(unified_columns(table, every, None if dropped else definitions)),
        all_columns=tuple(unified_columns(table, every)),
        key=chosen,
        literals=_has_literals(connection, groups),
        absent=any(one.part.absent_rows for one in parts),
        truncated=any(one.part.ops.get("t") for one in parts),
        several_sources=len({one.source for one in parts}) > 1,
    )


def _has_literals(connection: duckdb.DuckDBPyConnection, groups: Sequence[FileGroup]) -> bool:
    if not groups:
        return False
    files = ", ".join(text(file) for group in groups for file in group.files)
    found = connection.execute(
        f"SELECT 1 FROM read_parquet([{files}], hive_partitioning = false, union_by_name = true) "
        "WHERE _cdc_literal IS NOT NULL LIMIT 1"
    ).fetchall()
    return bool(found)


@contextmanager
def _local_files(
    store: ObjectStore,
    parts: Sequence[StagedPart],
    condition: Callable[[StagedPart], str],
    emptied: Mapping[tuple[str, str], Mapping[str, int]],
    in_state: Collection[str],
) -> Iterator[tuple[tuple[FileGroup, bool], ...]]:
    """Groups, each with whether its paths are `in_state`. condition: on the changes of a part that count."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        groups: dict[tuple[str, str, str, bool], tuple[TableSchema, list[str]]] = {}
        in_place: list[Part] = []
        for number, one in enumerate(parts):
            local = store.local_path(one.part.path)
            if local is None:
                local = Path(scratch) / f"{number}.parquet"
                fetch(store, one.part, local)
            else:
                in_place.append(one.part)
            # Two sources may have tables of one definition, and order keys of their own.
            of = one.source if (one.source, one.schema.name) in emptied else ""
            group = one.schema.id, of, condition(one), one.part.path in in_state
            groups.setdefault(group, (one.schema, []))[1].append(str(local))
        require_intact(store, in_place)
        try:
            yield tuple(
                (FileGroup(schema, tuple(files), counting, emptied.get((source, schema.name), {})), for_state)
                for (_, source, counting, for_state), (schema, files) in groups.items()
            )
        except duckdb.Error:
            _require_there([file for _, files in groups.values() for file in files])
            raise


def _require_there(files: Sequence[str]) -> None:
    """Raises RetryLater (stage.removed) for a file that DuckDB did not find because it was removed under the reader."""
    for file in files:
        if not os.path.exists(file):
            raise removed("it is gone.", where=file)


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


_RESERVED_SCHEMAS = frozenset({"main", "temp", "system", "information_schema", "pg_catalog"})
