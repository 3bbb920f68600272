"""`lockstep_cuts`: the table of a namespace with one row for each mirror of each cut. It is published with the mirrors,
so that a reader who finds a cut there finds its snapshots."""

from __future__ import annotations

import json

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from cdc_core.config import IcebergTarget
from cdc_core.lake.compaction import rewrites, rewritten
from cdc_core.lake.data_files import write_rows
from cdc_core.lake.lake_tables import LOGICAL, OWNER, PROPERTIES, make_namespace, place_of, require_ours
from cdc_core.lake.publication import LakeSnapshot
from cdc_core.lake.snapshots import (
    RUN,
    SCHEMAS,
    FileChange,
    LiveFiles,
    ancestry,
    head,
    on_branch,
    said,
    snapshot_of,
    table_files,
)
from cdc_core.model.cut import Cut

NAME = "lockstep_cuts"
_KEY = ("published_at", "mirror")
_SCHEMA = Schema(
    NestedField(1, "run", StringType(), required=True, doc="the run that published the cut"),
    NestedField(2, "published_at", TimestamptzType(), required=True),
    NestedField(3, "positions", StringType(), required=True, doc="by source: file, offset, GTID set, commit time"),
    NestedField(4, "mirror", StringType(), required=True, doc="the table, with its namespace"),
    NestedField(5, "snapshot_id", LongType(), required=False, doc="of the mirror; null: it was empty"),
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


def with_cut(catalog: Catalog, target: IcebergTarget, cut: Cut, branch: str) -> LakeSnapshot | None:
    """A snapshot of the table, on a branch, with the rows of a cut; None if the table has them. Raises what the catalog
    raises."""
    table = catalog.load_table(identifier_of(target))
    now = head(table)
    if any(said(one, RUN) == cut.run_id for one in ancestry(table, now)):
        return None
    live = LiveFiles(table, now, _KEY)
    files = table_files(table, table.schema(), _KEY)
    due, _ = rewrites(live.files, {})
    merged = frozenset(one.path for rewrite in due for one in rewrite.files)
    added = [*write_rows(files, _rows(cut, files.columns)), *(new for one in due for new in rewritten(files, one))]
    made = snapshot_of(live, FileChange(tuple(added), merged), table.schema(), {RUN: cut.run_id})
    on_branch(made, branch)
    return LakeSnapshot(identifier_of(target), made.base, made.number, branch)


def _rows(cut: Cut, schema: pa.Schema) -> pa.Table:
    positions = {
        name: {"file": one.position.file, "offset": one.position.offset, "gtid": one.gtid_set, "us": one.committed_us}
        for name, one in sorted(cut.sources.items())
    }
    tables = sorted(cut.tables, key=lambda one: one.name)
    count = len(tables)
    columns = [
        pa.repeat(cut.run_id, count),
        pa.repeat(cut.made_us, count).cast(schema.field("published_at").type),
        pa.repeat(json.dumps(positions), count),
        pa.array([one.name for one in tables], pa.string()),
        pa.array([one.snapshot for one in tables], pa.int64()),
    ]
    return pa.table(columns, schema=schema)
