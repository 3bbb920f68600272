"""`lockstep_cuts`: the table of a namespace with one row for each mirror of each cut. It is published with the mirrors,
so that a reader who finds a cut there finds its snapshots."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from cdc_core.config import IcebergTarget
from cdc_core.lake.commits import TableCommit, commit
from cdc_core.lake.compaction import change_due, rewritten
from cdc_core.lake.data_files import deleted_rows, live_rows, write_rows
from cdc_core.lake.lake_tables import LOGICAL, OWNER, PROPERTIES, make_namespace, place_of, require_ours
from cdc_core.lake.publication import LakeSnapshot
from cdc_core.lake.snapshots import (
    MAIN,
    PLAN,
    RUN,
    SCHEMAS,
    FileChange,
    LiveFiles,
    ancestry,
    at_main,
    head,
    on_branch,
    pointing,
    said,
    snapshot_of,
    table_files,
)
from cdc_core.model.cut import Cut
from cdc_core.model.places import in_order

NAME = "lockstep_cuts"
_KEY = ("published_at", "mirror")
_SCHEMA = Schema(
    NestedField(1, "run", StringType(), required=True, doc="the run that published the cut"),
    NestedField(2, "published_at", TimestamptzType(), required=True),
    NestedField(3, "positions", StringType(), required=True, doc="by source: file, offset, GTID set, commit time"),
    NestedField(4, "mirror", StringType(), required=True, doc="the table, with its namespace"),
    NestedField(5, "snapshot_id", LongType(), required=False, doc="of the mirror; null: it was empty"),
    NestedField(6, "lacks", StringType(), required=False, doc="which rows the mirror does not have; null: none"),
    NestedField(7, "committed_at", TimestamptzType(), required=False, doc="the cut has all commits up to this time"),
)


def identifier_of(target: IcebergTarget) -> tuple[str, ...]:
    return (*target.namespace.split("."), NAME)


def ensure(catalog: Catalog, target: IcebergTarget, owner: str) -> None:
    """Makes the table if it is missing. Raises Refused (target.existing), and what the catalog raises."""
    try:
        table = catalog.load_table(identifier_of(target))
    except NoSuchTableError:
        location, place = place_of(catalog, identifier_of(target))
        properties = {**PROPERTIES, OWNER: owner, LOGICAL: NAME, SCHEMAS: "0", **place}
        make_namespace(catalog, identifier_of(target))
        try:
            table = catalog.create_table(identifier_of(target), _SCHEMA, location=location, properties=properties)
        except TableAlreadyExistsError:  # another run, at the same moment
            table = catalog.load_table(identifier_of(target))
    require_ours(table, NAME, owner)


def require_free(catalog: Catalog, target: IcebergTarget, owner: str) -> None:
    """Raises Refused (target.existing) where the namespace has the cuts of another target."""
    try:
        require_ours(catalog.load_table(identifier_of(target)), NAME, owner)
    except (NoSuchTableError, NoSuchNamespaceError):
        return


def opened(catalog: Catalog, target: IcebergTarget) -> Table:
    """Raises what the catalog raises."""
    return catalog.load_table(identifier_of(target))


def shown(table: Table) -> list[Snapshot]:
    """The snapshots of the table that come from cuts, and that readers see, newest first."""
    return [snapshot for snapshot in ancestry(table, head(table)) if said(snapshot, RUN)]


def with_cut(table: Table, cut: Cut, said_of_run: Mapping[str, str], branch: str) -> LakeSnapshot:
    """A snapshot of the table, on a branch, with the rows of a cut. said_of_run: the properties RUN and PLAN. Nobody
    publishes another cut between the table that is given and this snapshot. Raises what the catalog raises."""
    live = LiveFiles(table, head(table), _KEY)
    files = table_files(table, table.schema(), _KEY)
    due = change_due(live.files, [*write_rows(files, _rows(cut, files.columns))], {})
    change = due.done(new for rewrite in due.rewrites for new in rewritten(files, rewrite))
    made = snapshot_of(live, change, table.schema(), said_of_run)
    on_branch(made, branch)
    return LakeSnapshot(table.name(), made.base, made.number, branch)


def prune(table: Table, runs: Collection[str], before_us: int) -> int:
    """Removes the rows of cuts that were published before a time, but for those of these runs; how many rows. Raises
    what the catalog raises."""

    def kept(rows: pa.Table) -> pa.Table:
        before = pa.scalar(before_us, pa.int64()).cast(rows.schema.field("published_at").type)
        recent = pc.greater_equal(rows.column("published_at"), before)
        return rows.filter(pc.or_(pc.is_in(rows.column("run"), pa.array(runs, pa.string())), recent))

    return _change(table, kept)


def inherit(table: Table, mirror: str, heirs: Mapping[int, int]) -> None:
    """The cuts of a mirror have the heirs of its snapshots from now on. Raises what the catalog raises."""

    def renewed(rows: pa.Table) -> pa.Table:
        named = zip(rows.column("mirror").to_pylist(), rows.column("snapshot_id").to_pylist(), strict=True)
        numbers = [heirs.get(number, number) if name == mirror else number for name, number in named]
        place = rows.schema.get_field_index("snapshot_id")
        return rows.set_column(place, rows.schema.field(place), pa.array(numbers, pa.int64()))

    _change(table, renewed)


def _change(table: Table, change: Callable[[pa.Table], pa.Table]) -> int:
    """Publishes other rows instead of all that there are, if they are others; how many fewer."""
    last = next(iter(shown(table)), None)
    live, files = LiveFiles(table, head(table), _KEY), table_files(table, table.schema(), _KEY)
    parts = [part for file in live.files for part in live_rows(files, file, deleted_rows(files, file))]
    if last is None or not parts:
        return 0
    rows = pa.concat_tables(parts)
    new = change(rows)
    if not new.equals(rows):
        due = FileChange(tuple(write_rows(files, in_order(new, _KEY))), frozenset(live.data))
        made = snapshot_of(live, due, table.schema(), {name: said(last, name) for name in (RUN, PLAN)})
        updates = AddSnapshotUpdate(snapshot=made.listed(table)), pointing(MAIN, made.number)
        commit(table.catalog, [TableCommit(table, (at_main(head(table)),), updates)])
    return int(rows.num_rows - new.num_rows)


def _rows(cut: Cut, schema: pa.Schema) -> pa.Table:
    positions = {
        name: {
            "file": source.position.file,
            "offset": source.position.offset,
            "gtid": source.gtid_set,
            "us": source.committed_us,
        }
        for name, source in sorted(cut.sources.items())
    }
    tables = sorted(cut.tables, key=lambda table: table.name)
    count = len(tables)
    committed_us = min((source.committed_us for source in cut.sources.values()), default=None)
    columns = [
        pa.repeat(cut.run_id, count),
        pa.repeat(cut.made_us, count).cast(schema.field("published_at").type),
        pa.repeat(json.dumps(positions), count),
        pa.array([table.name for table in tables], pa.string()),
        pa.array([table.snapshot for table in tables], pa.int64()),
        pa.array(["; ".join(table.lacks) or None for table in tables], pa.string()),
        pa.repeat(pa.scalar(committed_us, pa.int64()), count).cast(schema.field("committed_at").type),
    ]
    return pa.table(columns, schema=schema)
