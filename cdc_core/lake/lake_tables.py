"""The two tables of a mirror in their catalog: made, followed by their columns, opened at what readers see."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertLastAssignedFieldId,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
)

from cdc_core.config import IcebergTarget
from cdc_core.errors import DataAtRisk, Refused, TableMissing
from cdc_core.lake.catalogs import name_of
from cdc_core.lake.commits import TableCommit, commit
from cdc_core.lake.lake_schema import ANOTHER_MIRROR, DELETED, evolved, first_schema
from cdc_core.lake.mirror import Mirror
from cdc_core.lake.snapshots import (
    NUMBER,
    SCHEMAS,
    WITH_TOMBSTONES,
    LiveFiles,
    head,
    latest_schema,
    own,
    own_schemas,
    said,
    table_files,
)
from cdc_core.lake.truncated import truncates_in

TOMBSTONES = "__deleted"
"""The end of the name of a mirror's table of tombstones."""
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
    """What a mirror is made by, and keeps. flagged: whether deleted rows stay."""

    logical: str
    owner: str
    key: tuple[str, ...]
    flagged: bool


@dataclass(frozen=True)
class MirrorTables:
    """The tables of a mirror as they are now. schema, tombstone_schema: that rows are written with, which readers may
    not see yet."""

    rule: MirrorRule
    rows: Table
    tombstones: Table

    @property
    def key(self) -> tuple[str, ...]:
        return self.rule.key

    @property
    def schema(self) -> Schema:
        return latest_schema(self.rows)

    @property
    def tombstone_schema(self) -> Schema:
        return latest_schema(self.tombstones)

    def live(self) -> tuple[LiveFiles, LiveFiles]:
        """What readers see. Raises DataAtRisk (lake.foreign_write)."""
        last = own(self.rows, head(self.rows))
        buried = own(self.tombstones, head(self.tombstones))
        due, there = int((last and said(last, WITH_TOMBSTONES)) or 0), int((buried and said(buried, NUMBER)) or 0)
        # Compactions by others may be all that is left of its snapshots: it is not told then from which one they come.
        compacted = buried is None and head(self.tombstones) is not None
        if there < due and not compacted:
            raise DataAtRisk(
                f"{name_of(self.tombstones.name())} was rolled back to number {there} of its snapshots; what "
                f"{name_of(self.rows.name())} shows came with number {due}. Older changes could revive deleted rows.",
                where=name_of(self.tombstones.name()),
                code="lake.foreign_write",
                remedy="roll it forward again (Spark: CALL system.set_current_snapshot), or roll both tables back to "
                "the snapshots of one run (lockstep.run in their summaries); the error of the next run says what to "
                "replay then",
            )
        rows, tombstones = (LiveFiles(table, head(table), self.key) for table in (self.rows, self.tombstones))
        return rows, tombstones

    def mirror(self, rows: LiveFiles, tombstones: LiveFiles) -> Mirror:
        """As workers need it."""
        places = table_files(self.tombstones, self.tombstone_schema, self.key)
        buried = tuple(tombstones.files)
        return Mirror(
            self.rule.logical,
            table_files(self.rows, self.schema, self.key),
            tuple(rows.files),
            places,
            buried,
            tuple(truncates_in(places, buried)),
        )


def tombstones_of(identifier: tuple[str, ...]) -> tuple[str, ...]:
    return (*identifier[:-1], identifier[-1] + TOMBSTONES)


def opened(catalog: Catalog, identifier: tuple[str, ...], rule: MirrorRule) -> MirrorTables:
    """Raises Refused (target.table, target.existing, target.definition), and what the catalog raises."""
    rows, tombstones = _loaded(catalog, identifier), _loaded(catalog, tombstones_of(identifier))
    for table in (rows, tombstones):
        require_ours(table, rule.logical, rule.owner)
        _require_as_made(table)
    _require_same_rule(rows, tombstones, rule)
    return MirrorTables(rule, rows, tombstones)


def _require_same_rule(rows: Table, tombstones: Table, rule: MirrorRule) -> None:
    """Raises Refused (target.definition) for a mirror that was made by another key, or that does otherwise with deleted
    rows."""
    name, known = rows.name(), tuple(one.name for one in tombstones.schema().fields[:-1])
    if known != rule.key:
        raise Refused(
            f"The rows of {name_of(name)} are known by ({', '.join(known)}); the key is ({', '.join(rule.key)}) now.",
            where=name_of(name),
            code="target.definition",
            remedy=f"{ANOTHER_MIRROR} has the new key",
        )
    was, wanted = ("flag" if one else "remove" for one in (DELETED in rows.schema().column_names, rule.flagged))
    if was != wanted:
        raise Refused(
            f"{name_of(name)} was made with deletes: {was}, and its rule says deletes: {wanted} now.",
            where=name_of(name),
            code="target.definition",
            remedy=f"set deletes: {was} for the table; or {ANOTHER_MIRROR} has deletes: {wanted}",
        )


def _loaded(catalog: Catalog, identifier: tuple[str, ...]) -> Table:
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        raise TableMissing(
            f"The table {name_of(identifier)} does not exist.",
            where=name_of(identifier),
            remedy="create it with `lockstep target create`; on_missing_table: create lets runs do that",
        ) from None


def owner_of(pipeline: str, target: str) -> str:
    """Whose a table is: two targets of one pipeline do not share one either."""
    return f"{pipeline}/{target}"


def mirror_rule(target: IcebergTarget, pipeline: str, logical: str, key: Sequence[str]) -> MirrorRule:
    """The rule of a logical table in a target."""
    return MirrorRule(logical, owner_of(pipeline, target.name), tuple(key), target.flags_deletes(logical))


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
    folder = f"{identifier[-1]}-{token}"
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
    mine = own_schemas(table)
    if now not in mine:
        published = snapshot.schema_id if snapshot is not None and snapshot.schema_id in mine else mine[0]
        others = {one.field_id: one for one in table.schema().fields}
        for one in table.schemas()[published].fields:
            other = others.get(one.field_id)
            if other is None or (other.name, other.field_type) != (one.name, one.field_type):
                changes.append(f"has the column {one.name} no more" if other is None or other.name != one.name else
                               f"has {one.name} as {other.field_type}, which was {one.field_type}")  # fmt: skip
    if changes:
        raise Refused(
            f"Somebody has altered {name_of(table.name())}: it {', it '.join(changes)}.",
            where=name_of(table.name()),
            code="target.definition",
            remedy=f"take the change back with the engine that made it, or {ANOTHER_MIRROR} follows the columns of its "
            "source",
        )


def create(catalog: Catalog, identifier: tuple[str, ...], rule: MirrorRule, columns: Sequence[pa.Field]) -> bool:
    """Makes those of a mirror's two tables that are missing; whether any was. Raises what the catalog raises."""
    make_namespace(catalog, identifier)
    of_key = [next(one for one in columns if one.name == name) for name in rule.key]
    ours = {**PROPERTIES, OWNER: rule.owner, LOGICAL: rule.logical, SCHEMAS: "0"}
    made = False
    for name, schema in (
        (identifier, first_schema(columns, rule.key, flagged=rule.flagged)),
        (tombstones_of(identifier), first_schema(of_key, rule.key, rows=False)),
    ):
        if not catalog.table_exists(name):
            with suppress(TableAlreadyExistsError):  # another run, at the same moment
                location, place = place_of(catalog, name)
                catalog.create_table(name, schema=schema, location=location, properties={**ours, **place})
                made = True
    return made


def followed(
    tables: MirrorTables, columns: Sequence[pa.Field], renames: Iterable[tuple[str, str]] = ()
) -> MirrorTables:
    """The tables with a schema for rows with these columns, which is added where they have none. Readers see it once
    rows with it are published. Raises Refused (target.definition), and what the catalog raises."""
    commits = [_adding(table, made) for table, made in required_schemas(tables, columns, renames)]
    if not commits:
        return tables
    catalog = tables.rows.catalog
    commit(catalog, commits)
    rows, tombstones = (catalog.load_table(table.name()) for table in (tables.rows, tables.tombstones))
    return replace(tables, rows=rows, tombstones=tombstones)


def _adding(table: Table, made: Schema) -> TableCommit:
    metadata, number = table.metadata, max(table.schemas()) + 1
    added = Schema(*made.fields, schema_id=number, identifier_field_ids=made.identifier_field_ids)
    requirements = (AssertLastAssignedFieldId(last_assigned_field_id=metadata.last_column_id),)
    mine = ",".join(str(one) for one in (*own_schemas(table), number))
    updates = AddSchemaUpdate.model_validate({"schema": added}), SetPropertiesUpdate(updates={SCHEMAS: mine})
    return TableCommit(table, requirements, updates)


def show_schema(tables: MirrorTables) -> None:
    """Readers see the schema that was added last. Raises what the catalog raises."""
    if tables.schema.schema_id != tables.rows.metadata.current_schema_id:
        update = SetCurrentSchemaUpdate.model_validate({"schema-id": tables.schema.schema_id})
        commit(tables.rows.catalog, [TableCommit(tables.rows, (), (update,))])


def required_schemas(
    tables: MirrorTables, columns: Sequence[pa.Field], renames: Iterable[tuple[str, str]] = ()
) -> list[tuple[Table, Schema]]:
    """The schemas that rows with these columns need, by those of the tables that have none. Raises Refused
    (target.definition)."""
    of_key = [next(one for one in columns if one.name == name) for name in tables.key]
    found = []
    for table, mine, renamed in ((tables.rows, columns, renames), (tables.tombstones, of_key, ())):
        schema, last_id = latest_schema(table), table.metadata.last_column_id
        made = evolved(schema, last_id, mine, renamed, table=name_of(table.name()))
        if made is not None:
            found.append((table, made))
    return found
