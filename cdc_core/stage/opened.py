"""The staged files of one table as DuckDB reads them: local, grouped by definition, and read as one table.

Files in a bucket are fetched into a temporary directory, which goes with the context; those of a directory are read in
place. No file is listed: the manifests name them.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from cdc_core.errors import Refused
from cdc_core.model.batch import Manifest, Part
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged import BEFORE_MARK
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.changes_sql import (
    FileGroup,
    TableFiles,
    absent_names,
    check_key,
    common_key,
    key_columns,
    key_of,
    text,
)
from cdc_core.stage.horizon import removed
from cdc_core.stage.intact import fetch, require_intact
from cdc_core.stage.layout import parse_compacted
from cdc_core.stage.needed import needed_parts
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.removed import unless_removed
from cdc_core.stage.unify import StagedPart, by_age, emptied_columns, latest_definitions, parts_of, unified_columns


@contextmanager
def duckdb_of_files() -> Iterator[duckdb.DuckDBPyConnection]:
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


@dataclass(frozen=True, slots=True)
class Opened:
    """The parts of a moment, in local files. described: those whose definitions the table has then.
    needed, needed_described: those that its state needs. emptied: from unify."""

    parts: Sequence[StagedPart]
    described: Sequence[StagedPart]
    needed: Sequence[StagedPart]
    needed_described: Sequence[StagedPart]
    groups: tuple[FileGroup, ...]
    needed_groups: tuple[FileGroup, ...]


@contextmanager
def opened_files(
    store: ObjectStore, manifests: Sequence[Manifest], table: str, as_of: AsOf | None, *, history: bool = True
) -> Iterator[Opened]:
    """The files are local as long as the context lasts. history: whether also those that the state does not need."""
    parts, described = parts_by(manifests, table, as_of)
    needed, needed_described = (needed_parts(one, manifests, table, as_of) for one in (parts, described))
    if not history:
        parts, described = needed, needed_described
    later = later_places(manifests, as_of)
    if as_of is not None:
        manifests = as_of.cut(manifests)
    emptied = emptied_columns(manifests, as_of)
    in_state = {one.part.path for one in needed}

    def condition(part: StagedPart) -> str:
        return "true" if as_of is None else as_of.condition_of(end_seq(part, later))

    with ExitStack() as stack:
        with unless_removed(store, begins_of(manifests), [one.part.path for one in parts]):
            groups = stack.enter_context(_local_files(store, parts, condition, emptied, in_state))
        yield Opened(
            parts, described, needed, needed_described,
            tuple(group for group, _ in groups), tuple(group for group, for_state in groups if for_state),
        )  # fmt: skip


COPY_AGAIN = (
    "copy the table again (`lockstep snapshot PIPELINE TABLE`): its state is then read from the copy on; or read "
    "its changes"
)


def key_changed(opened: Opened) -> str:
    """Which source table had another key than it has now in rows that its state needs, "" if none: rows that only the
    former key tells apart would be folded into one."""
    now: dict[str, set[frozenset[str]]] = {}
    for one in latest_definitions(opened.needed_described):
        now.setdefault(one.name, set()).add(key_columns(one))
    for group in opened.needed_groups:
        schema = group.schema
        if key_columns(schema) not in now.get(schema.name, {key_columns(schema)}):
            return f"the key of {schema.name} has changed, which was ({', '.join(schema.key) or 'none'})"
    return ""


GIVE_KEY = (
    "give the columns that identify a row in all of them (`stage export --key`, `Table.now(key=...)`), or read its "
    "changes; route source tables with different keys to different logical tables"
)


def keys_differ(opened: Opened) -> str:
    """The keys of the source tables that feed it, "" if they are one: whole rows do not tell which row a change is of
    where the log does not carry them, or where a row was copied while it changed."""
    definitions = latest_definitions(opened.needed_described)
    if common_key(definitions) is not None:
        return ""
    shown = "; ".join(f"{schema.name}: {', '.join(schema.key) or 'none'}" for schema in definitions)
    return f"its source tables have different keys ({shown})"


def files_of_state(
    connection: duckdb.DuckDBPyConnection,
    opened: Opened,
    table: str,
    key: Sequence[str] | None,
    dropped: bool = False,
) -> TableFiles:
    """What its state is folded from. Raises Refused (stage.schema_conflict, stage.key)."""
    return _described(
        connection, opened.needed, opened.needed_described, opened.needed_groups, table, key, dropped=dropped
    )


def files_of_history(
    connection: duckdb.DuckDBPyConnection, opened: Opened, table: str, key: Sequence[str] | None
) -> TableFiles:
    """Every change. Raises Refused (stage.schema_conflict, stage.key)."""
    return _described(connection, opened.parts, opened.described, opened.groups, table, key)


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
    every = definitions_of(described)
    absent = any(one.part.absent_rows for one in parts)
    if key is None:
        key = key_of(table, definitions, groups)
    else:
        for group in groups:
            check_key(table, key, group.schema)
            if absent:
                _require_carried(connection, group, table, key)
    spelled = {field.name.lower(): field.name for field in unified_columns(table, every)}
    state = unified_columns(table, every, None if dropped else definitions)
    unknown = {one.name.lower() for schema in every for one in schema.columns if absent and not one.logged}
    return TableFiles(
        groups=groups,
        columns=tuple(field for field in state if field.name.lower() not in unknown),
        all_columns=tuple(unified_columns(table, every)),
        key=tuple(spelled.get(name.lower(), name) for name in key),
        literals=_has_literals(connection, groups),
        absent=absent,
        truncated=any(one.part.ops.get("t") for one in parts),
        several_sources=len({one.source for one in parts}) > 1,
        shared=len({(one.source, one.schema.name) for one in parts}) > 1,
    )


def _require_carried(connection: duckdb.DuckDBPyConnection, group: FileGroup, table: str, key: Sequence[str]) -> None:
    """Raises Refused (stage.key) where changes lack a column of the key, which is not the table's own: nothing says
    which row they are of."""
    own = {column.name.lower(): column.name for column in group.schema.columns}
    names = ", ".join(text(mark + own[name.lower()]) for name in key for mark in ("", BEFORE_MARK))
    files = ", ".join(text(file) for file in group.files)
    found = connection.execute(
        f"SELECT count(*) FROM read_parquet([{files}], hive_partitioning = false) "
        f"WHERE {group.condition} AND list_has_any({absent_names()}, [{names}])"
    ).fetchone()
    if found is not None and found[0]:
        raise Refused(
            f"{found[0]} changes of {table} lack a column of the key ({', '.join(key)}): the log did not carry it.",
            where=f"{table}: {group.schema.name}",
            code="stage.key",
            remedy="name no other key than the table's own, whose columns the log always carries",
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
            require_there([file for _, files in groups.values() for file in files])
            raise


def require_there(files: Sequence[str]) -> None:
    """Raises RetryLater (stage.removed) for a file that DuckDB did not find because it was removed under the reader."""
    for file in files:
        if not os.path.exists(file):
            raise removed("it is gone.", where=file)


def parts_by(
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
    parts = parts_of(by_then, table) if table in tables_of(by_then) else []
    return parts, parts or every


def tables_of(manifests: Sequence[Manifest]) -> set[str]:
    return {part.table for manifest in manifests for part in manifest.parts}


def definitions_of(parts: Sequence[StagedPart]) -> list[TableSchema]:
    """Definitions in stream order, each at its last appearance, so that the newest comes last."""
    last: dict[str, TableSchema] = {}
    for one in by_age(parts):
        last.pop(one.schema.id, None)
        last[one.schema.id] = one.schema
    return list(last.values())


def begins_of(manifests: Sequence[Manifest]) -> dict[str, Position]:
    """Where the first batch of each source begins."""
    begins: dict[str, Position] = {}
    for one in manifests:
        place = one.begin.position
        begins[one.source] = min(place, begins.get(one.source, place))
    return begins


def later_places(manifests: Sequence[Manifest], moment: AsOf | None) -> Mapping[str, Sequence[int]]:
    return {} if moment is None else moment.later(manifests)


def end_seq(part: StagedPart, later: Mapping[str, Sequence[int]]) -> int | None:
    """From where on the rows of a compacted file are in batches after the moment; None if none of them is.

    later: from AsOf. The windows of the batches in one file follow one another (`apply.compaction`).
    """
    name = parse_compacted(part.part.path)
    places = later.get(part.source, ())
    at = len(places) if name is None else bisect_left(places, name.begin_seq)
    return places[at] if name is not None and at < len(places) and places[at] < name.end_seq else None
