"""Reading staged batches: the changes of a table, its state, and an export.

It reads the manifests that it is given and never lists. DuckDB puts rows in order, and spills to disk if memory is
short.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from cdc_core.errors import Refused, RetryLater
from cdc_core.model.batch import Manifest
from cdc_core.model.staged_columns import OP, ROW, SEQ, SOURCE, TS
from cdc_core.stage import staged_coverage
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.intact import open_intact
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.scratch_duckdb import quoted, scratch_duckdb
from cdc_core.stage.state import state_order, state_rows, state_rule, state_schema
from cdc_core.stage.table_files import (
    COPY_AGAIN,
    GIVE_KEY,
    TableFiles,
    begins_of,
    definitions_of,
    end_seq,
    later_places,
)
from cdc_core.stage.table_history import aligned_rows, by_key_rows
from cdc_core.stage.unify import (
    StagedPart,
    conflict,
    latest_definitions,
    parts_of,
    sides,
    unified_schema,
)

_BATCH_ROWS = 122_880


@dataclass(frozen=True, slots=True)
class StateOptions:
    """How the state of a table is read.

    key:           columns that identify a row; by default the table's own key. Without any, whole rows are matched.
    since_horizon: where history was purged, give the rows that changed since.
    partial:       give the rows that are staged, whatever is missing.
    as_of:         the state at a moment; the caller has seen that it is staged completely.
    dropped:       also columns that the table no longer has, null in rows that changed since.
    """

    key: Sequence[str] | None = None
    since_horizon: bool = False
    partial: bool = False
    as_of: AsOf | None = None
    dropped: bool = False


WHOLE_STATE = StateOptions()


def state_batches(
    store: ObjectStore,
    manifests: Sequence[Manifest],
    table: str,
    options: StateOptions = WHOLE_STATE,
    *,
    rows: int = _BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The table as its staged changes leave it: its columns, `_cdc_seq`, `_cdc_ts`, `_cdc_literal`, `_cdc_absent`,
    ordered by key, in batches of at most `rows` rows: what does not fit into memory is spilled to disk.

    manifests: of one or more sources, each source's in stream order and complete.
    Raises Refused (usage.unknown_name, stage.schema_conflict, stage.key, stage.partial), DataAtRisk
    (stage.damaged).
    """
    key, partial, as_of = options.key, options.partial, options.as_of
    if as_of is not None:
        as_of.require_begun(manifests)
    if not partial and not options.since_horizon:
        staged_coverage.require_unpurged(store, manifests, table, as_of)
    if not partial:
        staged_coverage.require_covered(store, manifests, table, as_of)
    files = TableFiles.at(manifests, table, as_of).needed()
    if key is None and not partial and (changed := files.key_changed()):
        raise Refused(f"{changed[0].upper()}{changed[1:]}.", where=table, code="stage.key", remedy=COPY_AGAIN)
    if key is None and (different := files.keys_differ()):
        raise Refused(f"{table} has no key: {different}.", where=table, code="stage.key", remedy=GIVE_KEY)
    rule = state_rule(files, key, dropped=options.dropped)
    order = [quoted(name) for name in state_order(rule)]
    return _ordered(state_schema(list(rule.columns)), state_rows(store, files, rule), order, rows)


def state_columns(manifests: Sequence[Manifest], table: str, options: StateOptions = WHOLE_STATE) -> pa.Schema:
    """The schema of `state_batches`; no file is opened."""
    files = TableFiles.at(manifests, table, options.as_of).needed()
    return state_schema(files.state_columns(dropped=options.dropped))


def changes_columns(
    store: ObjectStore,
    manifests: Sequence[Manifest],
    table: str,
    *,
    since: AsOf | None = None,
    until: AsOf | None = None,
) -> pa.Schema:
    """The schema of `change_batches`: by the definitions of what is between the moments."""
    return _between(store, manifests, table, since, until)[1]


def change_batches(
    store: ObjectStore,
    manifests: Sequence[Manifest],
    table: str,
    *,
    since: AsOf | None = None,
    until: AsOf | None = None,
    rows: int = _BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The staged changes of a logical table, in the order of the manifests, in batches of at most `rows` rows: those
    that the state as of `since` lacks and that as of `until` has.

    Added columns are null where they did not exist yet, widened types are widened. The two moments are exact
    complements: what is left out up to one comes since it, late data too.
    """
    parts, schema = _between(store, manifests, table, since, until)
    before = _paths(manifests, since)
    after_first, after_last = later_places(manifests, since), later_places(manifests, until)
    begins = begins_of(manifests)
    for part in parts:
        condition = None if until is None else until.expression_of(end_seq(part, after_last))
        if since is not None and part.part.path in before:
            later = ~since.of(part.source).expression_of(end_seq(part, after_first))
            condition = later if condition is None else condition & later
        for some in aligned_rows(store, begins, part, schema, condition, rows):
            yield from some.to_batches()


def _between(
    store: ObjectStore, manifests: Sequence[Manifest], table: str, since: AsOf | None, until: AsOf | None
) -> tuple[list[StagedPart], pa.Schema]:
    """The parts that may have changes between two moments, and the schema of these. Files are opened only where the
    types of a column exclude each other. Raises Refused (usage.unknown_name, stage.as_of, stage.schema_conflict)."""
    if until is not None:
        until.require_begun(manifests)
    every, before, up_to = parts_of(manifests, table), _paths(manifests, since), _paths(manifests, until)
    parts = [
        part
        for part in every
        if (until is None or part.part.path in up_to)
        and (part.part.path not in before or since is None or since.may_have_later(part.source, part.part))
    ]
    if since is not None and since.time_us is not None and conflict(definitions_of(parts)):
        later = later_places(manifests, since)
        parts = [part for part in parts if part.part.path not in before or _goes_on(store, part, since, later)]
    try:
        return parts, unified_schema(table, definitions_of(parts) or latest_definitions(every))
    except Refused as error:
        if places := sides(manifests, parts):
            error.remedy = f"read the changes on either side: {'; '.join(places)}; {error.remedy}"
        raise


def _goes_on(store: ObjectStore, part: StagedPart, moment: AsOf, later: Mapping[str, Sequence[int]]) -> bool:
    """Whether a part has a change after a moment."""
    with open_intact(store, part.part) as file:
        places = pq.ParquetFile(file).read([SEQ, TS])
    return bool(places.filter(~moment.expression_of(end_seq(part, later))).num_rows)


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
    """The changes, each of one key (`history/by_key.py`), in order. Raises Refused (stage.key) without a key."""
    files = TableFiles.at(manifests, table, until)
    own = files.key(files.columns(), key)
    if not own:
        raise Refused(
            f"{table} has no key, so it has no changes by key.",
            where=table,
            code="stage.key",
            remedy="read its changes as they are, or name columns that identify a row",
        )
    schema = changes_columns(store, manifests, table, until=until)
    batches = (some.select(schema.names) for some in by_key_rows(store, files, own))
    # A delete of a key comes before an insert of another one at the same place.
    yield from _ordered(schema, batches, [SOURCE, SEQ, ROW, f"{OP} DESC", *map(quoted, own)], rows)


def _ordered(
    schema: pa.Schema, tables: Iterator[pa.Table], order: Sequence[str], rows: int
) -> Iterator[pa.RecordBatch]:
    """Batches of at most so many rows. order: SQL."""
    failed: list[Exception] = []

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for some in tables:
                yield from some.cast(schema).to_batches()
        except Exception as error:  # DuckDB would give its text alone
            failed.append(error)
            raise

    with scratch_duckdb() as connection:
        try:
            every = connection.from_arrow(pa.RecordBatchReader.from_batches(schema, batches()))
            for batch in every.order(", ".join(order)).to_arrow_reader(rows):
                yield from pa.Table.from_batches([batch]).cast(schema).to_batches()
        except duckdb.Error:
            if failed:
                raise failed[0] from None
            raise


def write_file(schema: pa.Schema, batches: Iterator[pa.RecordBatch], path: Path) -> int:
    """The rows written, as CSV to a path that ends with .csv, else as Parquet. The file appears whole or not at all.
    Raises RetryLater (disk.error)."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            rows += batch.num_rows
            yield batch

    try:
        if path.suffix.lower() == ".csv":
            with scratch_duckdb() as connection:
                connection.from_arrow(pa.RecordBatchReader.from_batches(schema, counted())).write_csv(str(temporary))
        else:
            with pq.ParquetWriter(temporary, schema, compression="zstd", compression_level=3) as writer:
                for batch in counted():
                    writer.write_batch(batch)
        os.replace(temporary, path)
    except (OSError, duckdb.IOException) as error:
        raise RetryLater(
            f"The export cannot be written: {getattr(error, 'strerror', None) or error}.",
            where=str(path),
            code="disk.error",
            remedy="create the directory, free space there, or let the account write there",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return rows
