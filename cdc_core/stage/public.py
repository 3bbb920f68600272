"""The public way to read a stage from Python; `import lockstep` offers what is here.

    stage = lockstep.open("shop.yaml")              # or a directory, or a URI such as s3://lake/shop
    stage.tables()                                  # ['shop.customers', 'shop.orders']
    orders = stage["shop.orders"]
    orders.now().to_pandas()                        # the table as it is staged now
    orders.as_of("2026-11-20T10:00:00Z").to_arrow() # as it was then
    orders.changes().batches()                      # its history, in batches of bounded size

A Stage is what was staged when it was opened: every answer is about that moment, until `refresh`. Nothing is read
before a method of Rows needs it. Errors are those of docs/errors.md, each with a code and a remedy.
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from cdc_core import config
from cdc_core.errors import LockstepError, Refused, UsageError
from cdc_core.model.batch import Manifest
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.windows import parse_moment, to_us
from cdc_core.process.extras import require
from cdc_core.stage import compactions, sql_views, staged_coverage, start_record
from cdc_core.stage import horizon as horizons
from cdc_core.stage import stage_reader as reader
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.compactions import NO_COMPACTIONS, Compactions
from cdc_core.stage.manifest import chain, require_found, require_reached
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stores import open_stage, open_store
from cdc_core.stage.table_files import common_key
from cdc_core.stage.unify import latest_definitions, parts_of

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

    from cdc_core.meta import Meta

__all__ = [
    "Chains",
    "Rows",
    "Stage",
    "StagedFile",
    "Table",
    "open",
    "read_chains",
    "recorded_ends",
    "recorded_manifests",
]

log = logging.getLogger(__name__)

T = TypeVar("T")

_ANSWER_S = 10.0
"""How long to wait for meta before the stage is read without it."""

Moment = datetime | str
"""A time with a zone, as a datetime or in ISO 8601; or a position in the one source's log: binlog.000042:1234."""


def open(stage: str | Path, *, s3_endpoint: str | None = None, s3_region: str = "us-east-1") -> Stage:
    """The stage of a pipeline file (*.yaml, *.yml), of a directory, or of a URI (`file:///…`, `s3://bucket/prefix`).

    With a pipeline file the stage is compared with the meta database, so that lost manifests are noticed at its end
    too, and of copied rows; a stage that is opened by its directory or URI alone is checked up to its last manifest.
    s3_endpoint, s3_region: for a URI; a pipeline file has its own.
    Raises UsageError (usage.argument, and what is wrong with a pipeline file), Refused (source.not_extracted),
    DataAtRisk (stage.chain and others, for a stage that is not whole).
    """
    text = str(stage)
    if text.endswith((".yaml", ".yml")):
        pipeline = config.load(Path(stage))
        return Stage(open_stage(pipeline.stage), pipeline)
    if "://" in text:
        return Stage(open_store(text, s3_endpoint=s3_endpoint, s3_region=s3_region), None)
    if Path(stage).is_dir():
        return Stage(open_store(Path(stage).absolute().as_uri()), None)
    raise UsageError(
        f"{text!r} is not a pipeline file, a directory or a URI.",
        where="lockstep.open",
        code="usage.argument",
        remedy="give the path of a pipeline file (.yaml), the directory of a stage, or a URI such as s3://lake/shop",
    )


@dataclass(frozen=True, slots=True)
class Chains:
    """Batches by source, each source's in stream order. reached: up to where each source is staged, by meta where it
    answered. ranges: those of the batches that are compacted: each of their files is in the manifest of the batch with
    its first row. compared: the end was compared with what the meta database has recorded."""

    by_source: dict[str, list[Manifest]]
    reached: dict[str, Checkpoint | None]
    compared: bool
    ranges: Compactions = NO_COMPACTIONS

    @property
    def all(self) -> list[Manifest]:
        return [manifest for chain in self.by_source.values() for manifest in chain]


def read_chains(
    store: ObjectStore, pipeline: config.Pipeline | None, sources: Sequence[str], note: Callable[[str], None]
) -> Chains:
    """All batches of the sources, verified to be chains that reach as far as meta says, with all copied rows that meta
    knows of.

    pipeline: None where there is no meta. note: called if meta did not answer.
    Raises DataAtRisk (stage.chain, stage.damaged and others), Refused (stage.other_pipeline).
    """
    if pipeline is not None:
        for name in sources:
            start_record.require_own(store, name, pipeline.pipeline)
    # Meta first: what is recorded is staged, and the stage only grows meanwhile.
    recorded = None if pipeline is None else recorded_ends(pipeline, sources, note)
    ranges = compactions.read(store, sources)
    chains = {name: list(chain(store, name, known=ranges.known(name))) for name in sources}
    reached: dict[str, Checkpoint | None] = {}
    for name, batches in chains.items():
        last = batches[-1] if batches else None
        reached[name] = None if last is None else last.end
        if recorded is not None:
            checkpoint, copied = recorded[name]
            require_reached(store, name, last, None if checkpoint is None else checkpoint.position)
            require_found(store, name, copied, {batch.path for batch in batches})
            reached[name] = checkpoint or reached[name]
    return Chains(chains, reached, recorded is not None, ranges)


def recorded_ends(
    pipeline: config.Pipeline, names: Sequence[str], note: Callable[[str], None]
) -> dict[str, tuple[Checkpoint | None, tuple[str, ...]]] | None:
    """The recorded end of each source, and the paths of its recorded manifests of copied rows; None, after a note,
    where meta does not answer."""
    return _recorded(
        pipeline,
        note,
        lambda meta: {name: (meta.positions.checkpoint(name), meta.batches.copied_manifests(name)) for name in names},
    )


def recorded_manifests(
    pipeline: config.Pipeline, names: Sequence[str], note: Callable[[str], None]
) -> dict[str, tuple[Checkpoint | None, list[str]]] | None:
    """The recorded end of each source, and the paths of all its recorded manifests; else as `recorded_ends`."""
    return _recorded(
        pipeline,
        note,
        lambda meta: {
            name: (meta.positions.checkpoint(name), [batch.manifest for batch in meta.batches.find(name)])
            for name in names
        },
    )


def _recorded(pipeline: config.Pipeline, note: Callable[[str], None], ask: Callable[[Meta], T]) -> T | None:
    from cdc_core.meta import Meta

    try:
        with Meta.open(pipeline.meta.url, pipeline.pipeline, create=False, answer_timeout_s=_ANSWER_S) as meta:
            return ask(meta)
    except LockstepError as error:
        note(f"The end of the stage was not compared with the meta database: {error.what} ({error.code})")
        return None


class Stage:
    """What is staged, as of the moment when it was opened or refreshed."""

    def __init__(self, store: ObjectStore, pipeline: config.Pipeline | None) -> None:
        """Use `open`."""
        self._store = store
        self._pipeline = pipeline
        self._chains = self._read()

    def __repr__(self) -> str:
        return f"<lockstep.Stage {self.uri}: {len(self.tables())} tables>"

    @property
    def uri(self) -> str:
        return self._store.uri

    @property
    def compared_with_meta(self) -> bool:
        """Whether the end of the stage was compared with what the meta database has recorded."""
        return self._chains.compared

    def refresh(self) -> None:
        """Read what was staged since."""
        self._chains = self._read()

    def tables(self) -> list[str]:
        """The names of the tables with staged changes."""
        return sorted({part.table for manifest in self._chains.all for part in manifest.parts})

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables())

    def __contains__(self, name: object) -> bool:
        return name in self.tables()

    def __getitem__(self, name: str) -> Table:
        """A table by its name, as `tables` has it, or by the last part of the name where only one table has it.

        Raises Refused (source.not_extracted, usage.unknown_name), UsageError (usage.unknown_name).
        """
        tables = self.tables()
        if not tables:
            raise _empty(self.uri)
        if name in tables:
            return Table(self, name)
        alike = [table for table in tables if table.rpartition(".")[2] == name]
        if len(alike) == 1:
            return Table(self, alike[0])
        if alike:
            raise UsageError(
                f"{len(alike)} tables are named {name!r}: {', '.join(alike)}.",
                where=self.uri,
                code="usage.unknown_name",
                remedy=f"give the whole name, for example {alike[0]!r}",
            )
        near = difflib.get_close_matches(name, [*tables, *(table.rpartition(".")[2] for table in tables)], n=1)
        raise UsageError(
            f"Nothing is staged for the table {name!r}.",
            where=self.uri,
            code="usage.unknown_name",
            remedy=(f"did you mean {near[0]!r}? " if near else "") + f"staged are: {', '.join(tables)}",
        )

    def sql(self, query: str, *, as_of: Moment | None = None, partial: bool = False) -> Rows:
        """The answer of a DuckDB query over the views of all tables, which is computed at once.

        The views of a table `shop.orders` are `shop.orders` (its state), `shop.orders_changes`, and, where it has a
        key, `shop.orders_by_key`. as_of: all of them as they were at a moment. partial: as in `Table.now`.
        Raises UsageError (stage.sql), and what `Table.now` raises.
        """
        answer = sql_views.sql(self._store, self._chains.by_source, query, as_of=self._moment(as_of), partial=partial)
        return Rows(lambda: answer.schema, lambda rows: iter(answer.to_batches(max_chunksize=rows)))

    def bookmark(self) -> str:
        """Marks how far this stage goes. Keep the text, and give it to a later stage: `changes(since=bookmark)` returns
        the changes that came since, each of them once, and rows of copies too."""
        chains = {name: chain for name, chain in self._chains.by_source.items() if chain}
        ids = {name: [manifest.batch_id for manifest in chain if manifest.copied] for name, chain in chains.items()}
        return json.dumps({name: [str(chain[-1].end.position), ids[name]] for name, chain in chains.items()})

    def _since(self, moment: Moment | None) -> AsOf | None:
        """As _moment, and accepts a bookmark. Raises Refused (stage.partial) if a purge has gone past it."""
        if not isinstance(moment, str) or not moment.startswith("{"):
            return self._moment(moment)
        try:
            read = {name: (Position.from_text(end), frozenset(ids)) for name, (end, ids) in json.loads(moment).items()}
        except (ValueError, TypeError, AttributeError):
            raise _no_moment(moment) from None
        for name, (end, _) in read.items():
            AsOf(position=end).require_staged({name: self._chains.reached.get(name)})
            horizon = horizons.read(self._store, name)
            if horizon is not None and horizon.position > end:
                raise Refused(
                    "Changes that came since the bookmark were purged.",
                    where=f"{name}: {end}",
                    code="stage.partial",
                    remedy="read the state (`now()`), and continue with a new bookmark",
                )
        return AsOf(read=read)

    def _read(self) -> Chains:
        pipeline = self._pipeline
        names = start_record.sources(self._store) if pipeline is None else [source.name for source in pipeline.sources]
        if not names:
            raise _empty(self._store.uri)
        return read_chains(self._store, pipeline, names, log.warning)

    def _moment(self, moment: Moment | None) -> AsOf | None:
        """Raises UsageError (usage.argument), Refused (stage.as_of) where it is not staged yet."""
        if moment is None:
            return None
        found = as_of(moment)
        found.require_staged(self._chains.reached)
        return found


class Table:
    """A staged table: its history, and its state at any moment of it."""

    def __init__(self, stage: Stage, name: str) -> None:
        """Use `Stage[name]`."""
        self._stage = stage
        self.name = name

    def __repr__(self) -> str:
        return f"<lockstep.Table {self.name} of {self._stage.uri}>"

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of its key; () where it has none, or its source tables have different ones."""
        return common_key(latest_definitions(parts_of(self._manifests, self.name))) or ()

    def missing(self) -> list[str]:
        """What the staged history of the table lacks, in words; empty where its state is that of the source."""
        store, manifests = self._stage._store, self._manifests
        purged = staged_coverage.purged_of(store, manifests, [self.name])
        return [*purged.values(), *staged_coverage.missing_of(store, manifests, [self.name]).get(self.name, [])]

    def now(self, *, key: Sequence[str] | None = None, partial: bool = False) -> Rows:
        """The table as the staged changes leave it: its columns, `_cdc_seq`, `_cdc_ts`, `_cdc_literal`, `_cdc_absent`,
        ordered by the key.

        key:     columns that identify a row; by default the table's own key. Without any, whole rows are matched.
        partial: accept that rows are missing; `missing` says which.
        Reading raises Refused (stage.partial, stage.key, stage.schema_conflict), DataAtRisk
        (stage.damaged).
        """
        return self._state(None, key, partial)

    def as_of(self, moment: Moment, *, key: Sequence[str] | None = None, partial: bool = False) -> Rows:
        """The table as it was at a moment; else as `now`.

        A time takes the changes that were committed at or before it, but none of a window that begins at it or later; a
        position those of transactions before it.
        Raises UsageError (usage.argument), Refused (stage.as_of) where that is not staged yet.
        Reading raises Refused (stage.as_of) too, where everything staged came later.
        """
        return self._state(self._stage._moment(moment), key, partial)

    def changes(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        by_key: bool = False,
        key: Sequence[str] | None = None,
    ) -> Rows:
        """The staged changes: each source's in the order of its log, with the columns of docs/analysts.md.

        since, until: the changes that `as_of(until)` includes and `as_of(since)` does not. since may also be a
                      `Stage.bookmark`.
        by_key:       each change concerns a single key, so that the last row of a key says whether the row exists: an
                      update that changes the key is a `d` of the old key and a `c` of the new one; a truncate is a `d`
                      of each key that exists. Not together with `since`.
        key:          the columns of the key; by default the table's own.
        If history was purged, it begins at the horizon. Raises what `as_of` raises; reading raises what `now` does.
        """
        manifests, store, name = self._manifests, self._stage._store, self.name
        first, last = self._stage._since(since), self._stage._moment(until)
        if (by_key and first is not None) or (key is not None and not by_key):
            raise UsageError(
                "Changes by key always begin with the history, and only they accept a key.",
                where=name,
                code="usage.argument",
                remedy="leave out `since`, and give `key` together with by_key=True",
            )
        if by_key:
            return Rows(
                lambda: reader.changes_columns(store, manifests, name, until=last),
                lambda rows: reader.by_key_batches(store, manifests, name, key, until=last, rows=rows),
            )
        return Rows(
            lambda: reader.changes_columns(store, manifests, name, since=first, until=last),
            lambda rows: reader.change_batches(store, manifests, name, since=first, until=last, rows=rows),
        )

    def files(self) -> list[StagedFile]:
        """The Parquet files of its changes that count, each source's in the order of its log."""
        store = self._stage._store
        return [
            StagedFile(
                path=store.location(part.part.path),
                spark_uri=store.spark_uri(part.part.path),
                rows=part.part.rows,
                size_bytes=part.part.size_bytes,
                sha256=part.part.sha256,
                source=part.source,
                definition=part.schema.id,
            )
            for part in parts_of(self._manifests, self.name)
        ]

    @property
    def _manifests(self) -> list[Manifest]:
        return self._stage._chains.all

    def _state(self, moment: AsOf | None, key: Sequence[str] | None, partial: bool) -> Rows:
        manifests, store, name = self._manifests, self._stage._store, self.name
        options = reader.StateOptions(key, partial=partial, as_of=moment)
        return Rows(
            lambda: reader.state_columns(manifests, name, options),
            lambda rows: reader.state_batches(store, manifests, name, options, rows=rows),
        )


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A Parquet file of changes.

    path:       as DuckDB, pandas and pyarrow open it. spark_uri: as Spark reads it.
    definition: files of one definition have the same columns.
    """

    path: str
    spark_uri: str
    rows: int
    size_bytes: int
    sha256: str
    source: str
    definition: str


class Rows:
    """Rows that are read when they are asked for, each time again. Anything that takes Arrow's C stream takes them too:
    `polars.DataFrame(rows)`, `pyarrow.table(rows)`, DuckDB."""

    def __init__(self, columns: Callable[[], pa.Schema], batches: Callable[[int], Iterator[pa.RecordBatch]]) -> None:
        """Made by Table and Stage."""
        self._columns = columns
        self._batches = batches

    @property
    def schema(self) -> pa.Schema:
        """The columns; no row is read for it."""
        return self._columns()

    def batches(self, max_rows: int = 122_880) -> Iterator[pa.RecordBatch]:
        """The rows in Arrow batches of at most `max_rows`: memory is bounded by them, and DuckDB's by its own limit."""
        return (batch for batch in self._batches(max_rows) if batch.num_rows)

    def reader(self, max_rows: int = 122_880) -> pa.RecordBatchReader:
        """The batches as Arrow's stream, for libraries that take one."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches(max_rows))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """All rows in memory."""
        return pa.Table.from_batches(self.batches(), schema=self.schema)

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """All rows as a DataFrame of Arrow types, which are exact; `options` are those of `pyarrow.Table.to_pandas`.

        Raises UsageError (install.missing) where pandas is not installed.
        """
        require("pandas", by="to_pandas")
        import pandas as pd

        return self.to_arrow().to_pandas(**{"types_mapper": pd.ArrowDtype, **options})

    def to_polars(self) -> pl.DataFrame:
        """All rows as a Polars DataFrame. Raises UsageError (install.missing) where Polars is not installed."""
        require("polars", by="to_polars")
        import polars as pl

        found = pl.from_arrow(self.to_arrow())
        assert isinstance(found, pl.DataFrame)
        return found

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """All rows as a DuckDB relation of the connection, by default of the module's own: `duckdb.sql` finds it by the
        name of the variable that holds it."""
        import duckdb

        return (connection or duckdb).from_arrow(self.to_arrow())

    def to_parquet(self, path: str | Path) -> int:
        """Writes the rows to one Parquet file (CSV if its name ends with .csv), batch by batch. Returns the number of
        rows. The file appears whole or not at all.

        Raises RetryLater (disk.error).
        """
        return reader.write_file(self.schema, self.batches(), Path(path))


def as_of(moment: Moment) -> AsOf:
    """A moment as the reader takes it. Raises UsageError (usage.argument)."""
    if isinstance(moment, str):
        with suppress(ValueError):
            return AsOf(position=Position.from_text(moment))
    elif not isinstance(moment, datetime):
        raise _no_moment(moment)
    try:
        return AsOf(time_us=to_us(parse_moment(str(moment))))
    except ValueError:
        raise _no_moment(moment) from None


def _no_moment(moment: object) -> UsageError:
    return UsageError(
        f"{str(moment)!r} is not a time with a zone, and not a position.",
        code="usage.argument",
        remedy="give a datetime with tzinfo, text such as '2026-11-21T04:00:00Z', or a position such as "
        "'binlog.000042:1234'",
    )


def _empty(uri: str) -> Refused:
    return Refused(
        "Nothing is staged here.",
        where=uri,
        code="source.not_extracted",
        remedy="run `lockstep extract` first; or check that the path is that of the stage (`stage.uri` in the pipeline "
        "file)",
    )
