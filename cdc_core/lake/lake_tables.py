"""The tables of a mirror in their catalog: made, followed by their columns, opened at what readers see."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertLastAssignedFieldId,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
)

from cdc_core.config import IcebergTarget
from cdc_core.errors import ColumnsMissing, DataAtRisk, Refused, TableMissing
from cdc_core.lake.catalogs import name_of
from cdc_core.lake.change_rows import ChangeRows
from cdc_core.lake.commits import TableCommit, commit
from cdc_core.lake.lake_schema import (
    ANOTHER_MIRROR,
    CHANGES_KEY,
    COPIED_MIRROR,
    DELETED,
    evolved,
    first_changes_schema,
    first_schema,
)
from cdc_core.lake.mirror import Mirror
from cdc_core.lake.snapshots import (
    NUMBER,
    SCHEMAS,
    SINCE,
    WITH_CHANGES,
    WITH_TOMBSTONES,
    LiveFiles,
    head,
    latest_schema,
    number_of,
    own,
    own_schemas,
    said,
    table_files,
)
from cdc_core.lake.truncated import truncates_in
from cdc_core.model.version import VERSION_COLUMN

TOMBSTONES, CHANGES = "__deleted", "__changes"
"""The ends of the names of a mirror's table of tombstones, and of its changes table."""
_NOT_IN_PATHS = re.compile(r"[^\w.-]+", re.ASCII)
OWNER, LOGICAL, FOLDER = "lockstep.owner", "lockstep.table", "lockstep.folder"
PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.delete.mode": "merge-on-read",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


@dataclass(frozen=True, slots=True)
class MirrorRule:
    """What a mirror is made by, and keeps. flagged: whether deleted rows stay. changes: whether it has a changes
    table."""

    logical: str
    owner: str
    key: tuple[str, ...]
    flagged: bool
    changes: bool = False


@dataclass(frozen=True)
class MirrorTables:
    """The tables of a mirror as they are now. Rows are written with the latest schema of each, which readers may not
    see yet."""

    rule: MirrorRule
    rows: Table
    tombstones: Table
    changes: Table | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return self.rule.key

    @property
    def parts(self) -> tuple[Table, ...]:
        """The mirror, its tombstones, and its changes table if it has one: the order of whatever is for each."""
        return (self.rows, self.tombstones, *([self.changes] if self.changes is not None else []))

    @property
    def schema(self) -> Schema:
        return latest_schema(self.rows)

    def live(self) -> tuple[LiveFiles, ...]:
        """What readers see of `parts`. Raises DataAtRisk (lake.foreign_write), Refused (target.definition)."""
        last = own(self.rows, head(self.rows))
        for table, name in zip(self.parts[1:], (WITH_TOMBSTONES, WITH_CHANGES), strict=False):
            _require_with(self.rows, last, table, name)
        if self.changes is None and last is not None and said(last, WITH_CHANGES):
            self._require_no_changes()
        keys = (self.key, self.key, CHANGES_KEY)
        return tuple(LiveFiles(table, head(table), key) for table, key in zip(self.parts, keys, strict=False))

    def _require_no_changes(self) -> None:
        """Raises Refused (target.definition) where a run would leave changes out of a table that has earlier ones."""
        name = changes_of(self.rows.name())
        if self.rows.catalog.table_exists(name):
            raise Refused(
                f"{name_of(name)} has the changes of {self.rule.logical} so far, and its rule says changes: off now.",
                where=name_of(name),
                code="target.definition",
                remedy="set changes: table for the table; or drop or rename this one, which then gets no more changes",
            )

    def mirror(self, rows: LiveFiles, tombstones: LiveFiles) -> Mirror:
        """As workers need it."""
        files, places = (table_files(table, latest_schema(table), self.key) for table in (self.rows, self.tombstones))
        buried = tuple(tombstones.files)
        return Mirror(self.rule.logical, files, tuple(rows.files), places, buried, tuple(truncates_in(places, buried)))

    def change_rows(self, changes: LiveFiles) -> ChangeRows:
        """As workers need them."""
        return ChangeRows(table_files(changes.table, latest_schema(changes.table), CHANGES_KEY), tuple(changes.files))


def _require_with(rows: Table, last: Snapshot | None, table: Table, name: str) -> None:
    """Raises DataAtRisk (lake.foreign_write) for a table that was rolled back to before what its mirror shows, or
    dropped. last: our newest snapshot of the mirror. name: the property by which that says its number of the table."""
    snapshot = own(table, head(table))
    due, there = int((last and said(last, name)) or 0), int((snapshot and said(snapshot, NUMBER)) or 0)
    made_since = last is not None and int(table.properties.get(SINCE, 0)) >= int(said(last, NUMBER))
    behind = there < due and not made_since
    if behind and head(table) is None:
        raise DataAtRisk(
            f"{name_of(table.name())} was dropped, and made again: {name_of(rows.name())} had {due} snapshots of it. "
            "Deleted rows could come back.",
            where=name_of(table.name()),
            code="lake.foreign_write",
            remedy=f"restore it; or {ANOTHER_MIRROR} has its own",
        )
    # Compactions by others may be all that is left of its snapshots: it is not told then from which one they come.
    if behind and snapshot is not None:
        raise DataAtRisk(
            f"{name_of(table.name())} was rolled back to number {there} of its snapshots; what "
            f"{name_of(rows.name())} shows came with number {due}. Deleted rows could come back, and changes would be "
            "missing.",
            where=name_of(table.name()),
            code="lake.foreign_write",
            remedy="roll it forward again (Spark: CALL system.set_current_snapshot), or roll all tables of the mirror "
            "back to the snapshots of one run (lockstep.run in their summaries); the error of the next run says what "
            "to replay then",
        )


def tombstones_of(identifier: tuple[str, ...]) -> tuple[str, ...]:
    return (*identifier[:-1], identifier[-1] + TOMBSTONES)


def changes_of(identifier: tuple[str, ...]) -> tuple[str, ...]:
    return (*identifier[:-1], identifier[-1] + CHANGES)


def opened(
    catalog: Catalog, identifier: tuple[str, ...], rule: MirrorRule, renames: Sequence[tuple[str, str]] = ()
) -> MirrorTables:
    """renames: (old, new) of columns, which the tables may have to follow yet. Raises Refused (target.table,
    target.existing, target.definition), and what the catalog raises."""
    rows, tombstones = _loaded(catalog, identifier), _loaded(catalog, tombstones_of(identifier))
    changes = _loaded(catalog, changes_of(identifier)) if rule.changes else None
    tables = MirrorTables(rule, rows, tombstones, changes)
    for table in tables.parts:
        require_ours(table, rule.logical, rule.owner)
        _require_as_made(table)
    _require_same_rule(rows, tombstones, rule, renames)
    return tables


def _require_same_rule(rows: Table, tombstones: Table, rule: MirrorRule, renames: Sequence[tuple[str, str]]) -> None:
    """Raises Refused (target.definition) for a mirror that was made by another key, or that does otherwise with deleted
    rows."""
    name, known = rows.name(), key_names(tombstones)
    key, renamed = [column.lower() for column in rule.key], [column.lower() for column in known]
    made_by = list(renamed)
    for old, new in renames:
        renamed = [new.lower() if column == old.lower() else column for column in renamed]
    if key not in (made_by, renamed):
        lacking = set(key) - {column.lower() for column in latest_schema(rows).column_names}
        follows = "the run that has the change follows a column that was renamed. For another key, " if lacking else ""
        raise (ColumnsMissing if lacking else Refused)(
            f"The rows of {name_of(name)} are known by ({', '.join(known)}); the key is ({', '.join(rule.key)}) now.",
            where=name_of(name),
            code="target.definition",
            remedy=f"{follows}{COPIED_MIRROR} has the new key",
        )
    was, wanted = ("flag" if flagged else "remove" for flagged in (DELETED in rows.schema().column_names, rule.flagged))
    if was != wanted:
        raise Refused(
            f"{name_of(name)} was made with deletes: {was}, and its rule says deletes: {wanted} now.",
            where=name_of(name),
            code="target.definition",
            remedy=f"set deletes: {was} for the table; or {ANOTHER_MIRROR} has deletes: {wanted}",
        )


def key_names(tombstones: Table) -> tuple[str, ...]:
    """The key of a mirror by the columns of its tombstones: those that were there first, before the version."""
    schema = latest_schema(tombstones)
    version = schema.find_field(VERSION_COLUMN).field_id
    return tuple(field.name for field in schema.fields if field.field_id < version)


def _loaded(catalog: Catalog, identifier: tuple[str, ...]) -> Table:
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        raise TableMissing(
            f"The table {name_of(identifier)} does not exist.",
            where=name_of(identifier),
            remedy="create it with `lockstep target create`; on_missing_table: create lets runs do that once rows come",
        ) from None


def owner_of(pipeline: str, target: str) -> str:
    """Whose a table is: two targets of one pipeline do not share one either."""
    return f"{pipeline}/{target}"


def mirror_rule(target: IcebergTarget, pipeline: str, logical: str, key: Sequence[str]) -> MirrorRule:
    """The rule of a logical table in a target."""
    flagged, changes = target.flags_deletes(logical), target.keeps_changes(logical)
    return MirrorRule(logical, owner_of(pipeline, target.name), tuple(key), flagged, changes)


def require_ours(table: Table, logical: str, owner: str) -> None:
    """Raises Refused (target.existing) for a table that Lockstep has not made for this logical table."""
    found = table.properties.get(OWNER), table.properties.get(LOGICAL)
    if found != (owner, logical):
        whose = "was not made by Lockstep" if found[0] is None else f"belongs to {found[1]} of {found[0]}"
        raise Refused(
            f"The table {name_of(table.name())} {whose}.",
            where=name_of(table.name()),
            code="target.existing",
            remedy="give the mirror another name (`table` of its rule, or `namespace`), or rename that table",
        )


def place_of(catalog: Catalog, identifier: tuple[str, ...]) -> tuple[str | None, dict[str, str]]:
    """(where the files of a new table go, and the properties that say so). No other table has this folder, whatever it
    is called and whoever renames it: so what no snapshot of the table names is nobody's. None where the catalog decides
    about places."""
    warehouse, token = catalog.properties.get("warehouse", ""), secrets.token_hex(4)
    if "://" not in warehouse:
        return None, {}
    folder = f"{_NOT_IN_PATHS.sub('_', identifier[-1])}-{token}"
    return "/".join([warehouse.rstrip("/"), *identifier[:-1], folder]), {FOLDER: folder}


def make_namespace(catalog: Catalog, identifier: tuple[str, ...]) -> None:
    """The namespace of a table, and those around it, where they are missing. Raises what the catalog raises."""
    for end in range(1, len(identifier)):
        if not catalog.namespace_exists(identifier[:end]):
            with suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace(identifier[:end])


def _require_as_made(table: Table) -> None:
    """Raises Refused (target.definition) for a table that somebody has altered so that our rows do not fit any more.
    Comments and columns of others do not matter."""
    changes, metadata = [], table.metadata
    if metadata.format_version != 2:
        changes.append(f"is of format version {metadata.format_version} now")
    if not table.spec().is_unpartitioned():
        changes.append("is partitioned now")
    now, snapshot = metadata.current_schema_id, head(table)
    schema_ids = own_schemas(table)
    if now not in schema_ids:
        published = snapshot.schema_id if snapshot is not None and snapshot.schema_id in schema_ids else schema_ids[0]
        others = {field.field_id: field for field in table.schema().fields}
        for field in table.schemas()[published].fields:
            other = others.get(field.field_id)
            if other is None or (other.name, other.field_type) != (field.name, field.field_type):
                changes.append(f"has the column {field.name} no more" if other is None or other.name != field.name else
                               f"has {field.name} as {other.field_type}, which was {field.field_type}")  # fmt: skip
    if changes:
        raise Refused(
            f"Somebody has altered {name_of(table.name())}: it {', it '.join(changes)}.",
            where=name_of(table.name()),
            code="target.definition",
            remedy=f"take the change back with the engine that made it, or {ANOTHER_MIRROR} follows the columns of its "
            "source",
        )


def create(catalog: Catalog, identifier: tuple[str, ...], rule: MirrorRule, columns: Sequence[pa.Field]) -> bool:
    """Makes those of a mirror's tables that are missing; whether any was. Raises what the catalog raises."""
    make_namespace(catalog, identifier)
    of_key = [next(column for column in columns if column.name == name) for name in rule.key]
    ours = {**PROPERTIES, OWNER: rule.owner, LOGICAL: rule.logical, SCHEMAS: "0"}
    schemas = {
        identifier: first_schema(columns, rule.key, flagged=rule.flagged),
        tombstones_of(identifier): first_schema(of_key, rule.key, rows=False),
        **({changes_of(identifier): first_changes_schema(columns)} if rule.changes else {}),
    }
    made = False
    for name, schema in schemas.items():
        if not catalog.table_exists(name):
            since = {}
            if name == changes_of(identifier):
                mirror = catalog.load_table(identifier)
                since = {SINCE: str(number_of(mirror, head(mirror)))}
            with suppress(TableAlreadyExistsError):  # another run, at the same moment
                location, place = place_of(catalog, name)
                catalog.create_table(name, schema=schema, location=location, properties={**ours, **place, **since})
                made = True
    return made


def followed(
    tables: MirrorTables,
    columns: Sequence[pa.Field],
    renames: Sequence[tuple[str, str]] = (),
    every: Sequence[pa.Field] = (),
) -> MirrorTables:
    """The tables with a schema for rows with these columns, which is added where they have none. Readers see it once
    rows with it are published. every: as in `required_schemas`. Raises Refused (target.definition), and what the
    catalog raises."""
    commits = [_adding(table, made) for table, made in required_schemas(tables, columns, renames, every)]
    if not commits:
        return tables
    catalog = tables.rows.catalog
    commit(catalog, commits)
    return MirrorTables(tables.rule, *(catalog.load_table(table.name()) for table in tables.parts))


def _adding(table: Table, made: Schema) -> TableCommit:
    metadata, number = table.metadata, max(table.schemas()) + 1
    added = Schema(*made.fields, schema_id=number, identifier_field_ids=made.identifier_field_ids)
    requirements = (AssertLastAssignedFieldId(last_assigned_field_id=metadata.last_column_id),)
    mine = ",".join(str(schema_id) for schema_id in (*own_schemas(table), number))
    updates = AddSchemaUpdate.model_validate({"schema": added}), SetPropertiesUpdate(updates={SCHEMAS: mine})
    return TableCommit(table, requirements, updates)


def show_schema(tables: MirrorTables) -> None:
    """Readers see the schemas that were added last. Raises what the catalog raises."""
    due = [part for part in tables.parts if latest_schema(part).schema_id != part.metadata.current_schema_id]
    updates = [SetCurrentSchemaUpdate.model_validate({"schema-id": latest_schema(table).schema_id}) for table in due]
    commits = [TableCommit(table, (), (update,)) for table, update in zip(due, updates, strict=True)]
    if commits:
        commit(tables.rows.catalog, commits)


def required_schemas(
    tables: MirrorTables,
    columns: Sequence[pa.Field],
    renames: Sequence[tuple[str, str]] = (),
    every: Sequence[pa.Field] = (),
) -> list[tuple[Table, Schema]]:
    """The schemas that rows with these columns need, by those of the tables that have none. every: with columns that
    the rows' tables no longer have: of the changes. Raises Refused (target.definition)."""
    of_key = [next(column for column in columns if column.name == name) for name in tables.key]
    schemas = []
    wanted = columns, of_key, every or columns
    for table, mine in zip(tables.parts, wanted, strict=False):
        schema, last_id = latest_schema(table), table.metadata.last_column_id
        made = evolved(schema, last_id, mine, renames, table=name_of(table.name()))
        if made is not None:
            schemas.append((table, made))
    return schemas
