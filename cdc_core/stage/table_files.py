"""The staged files of one table as of a moment, and how they are read as one table: under which columns and key.

Only manifests are looked at: no file is opened.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.errors import Refused
from cdc_core.model.batch import Manifest
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.layout import parse_compacted
from cdc_core.stage.needed import needed_parts
from cdc_core.stage.staged_events import FileOfEvents
from cdc_core.stage.unify import StagedPart, by_age, emptied_columns, latest_definitions, parts_of, unified_columns

COPY_AGAIN = (
    "copy the table again (`lockstep snapshot PIPELINE TABLE`): its state is then read from the copy on; or read "
    "its changes"
)
GIVE_KEY = (
    "give the columns that identify a row in all of them (`stage export --key`, `Table.now(key=...)`), or read its "
    "changes; route source tables with different keys to different logical tables"
)


@dataclass(frozen=True, slots=True)
class TableFiles:
    """parts: those in which something may have happened by the moment. described: those whose definitions the table has
    then, which are later ones if there are none yet."""

    table: str
    manifests: Sequence[Manifest]
    as_of: AsOf | None
    parts: Sequence[StagedPart]
    described: Sequence[StagedPart]

    @classmethod
    def at(cls, manifests: Sequence[Manifest], table: str, as_of: AsOf | None) -> TableFiles:
        """All of them. Raises Refused (usage.unknown_name, stage.as_of)."""
        every = parts_of(manifests, table)
        if as_of is None:
            return cls(table, manifests, as_of, every, every)
        as_of.require_begun(manifests)
        by_then = as_of.cut(manifests)
        parts = parts_of(by_then, table) if table in tables_of(by_then) else []
        return cls(table, manifests, as_of, parts, parts or every)

    def needed(self) -> TableFiles:
        """The files that the table's state needs."""
        parts, described = (
            needed_parts(some, self.manifests, self.table, self.as_of) for some in (self.parts, self.described)
        )
        return replace(self, parts=parts, described=described)

    @property
    def definitions(self) -> list[TableSchema]:
        return definitions_of(self.described)

    @property
    def shared(self) -> bool:
        """Whether several source tables feed the table, of one or more sources."""
        return len({(part.source, part.schema.name) for part in self.parts}) > 1

    @property
    def absent(self) -> bool:
        """Whether some change lacks values."""
        return any(part.part.absent_rows for part in self.parts)

    def columns(self) -> list[pa.Field]:
        """The row columns of all definitions. Raises Refused (stage.schema_conflict)."""
        return unified_columns(self.table, self.definitions)

    def state_columns(self, *, dropped: bool = False) -> list[pa.Field]:
        """Those that the table has at the moment. A generated column of MariaDB is left out if some change lacks
        values: nobody knows them, and null would be a wrong one. dropped: also columns that the table no longer has.

        Raises Refused (stage.schema_conflict).
        """
        every, latest = self.definitions, latest_definitions(self.described)
        unknown = {
            column.name.lower() for schema in every for column in schema.columns if self.absent and not column.logged
        }
        columns = unified_columns(self.table, every, None if dropped else latest)
        return [field for field in columns if field.name.lower() not in unknown]

    def key(self, columns: Sequence[pa.Field], given: Sequence[str] | None = None) -> tuple[str, ...]:
        """Those of the columns that identify a row; () if whole rows are matched.

        given: instead of the key of the last definitions. Raises Refused (stage.key) where a definition lacks one of
        its columns.
        """
        latest = latest_definitions(self.described)
        names = (common_key(latest) or ()) if given is None else given
        for schema in {schema.id: schema for schema in [*(part.schema for part in self.parts), *latest]}.values():
            _check_key(self.table, names, schema)
        spelled = {field.name.lower(): field.name for field in columns}
        return tuple(spelled[name.lower()] for name in names)

    def key_changed(self) -> str:
        """Which source table had another key than it has now, "" if none: rows that only the former key tells apart
        would become one."""
        now: dict[str, set[frozenset[str]]] = {}
        for schema in latest_definitions(self.described):
            now.setdefault(schema.name, set()).add(_key_columns(schema))
        for part in self.parts:
            if _key_columns(part.schema) not in now.get(part.schema.name, {_key_columns(part.schema)}):
                return f"the key of {part.schema.name} has changed, which was ({', '.join(part.schema.key) or 'none'})"
        return ""

    def keys_differ(self) -> str:
        """The keys of the source tables that feed it, "" if they are one: whole rows do not tell which row a change is
        of where the log does not carry them, or where a row was copied while it changed."""
        definitions = latest_definitions(self.described)
        if common_key(definitions) is not None:
            return ""
        shown = "; ".join(f"{schema.name}: {', '.join(schema.key) or 'none'}" for schema in definitions)
        return f"its source tables have different keys ({shown})"

    def files(self) -> Iterator[tuple[FileOfEvents, pc.Expression | None]]:
        """Each file with the condition on its changes that count."""
        manifests = self.manifests if self.as_of is None else self.as_of.cut(self.manifests)
        emptied = emptied_columns(manifests, self.as_of)
        for part, condition in self.conditions():
            of_table = emptied.get((part.source, part.schema.name), {})
            yield FileOfEvents(part.part, part.schema, part.part.key_changes, emptied=of_table), condition

    def conditions(self) -> Iterator[tuple[StagedPart, pc.Expression | None]]:
        later = later_places(self.manifests, self.as_of)
        for part in self.parts:
            yield part, None if self.as_of is None else self.as_of.expression_of(end_seq(part, later))


def common_key(definitions: Sequence[TableSchema]) -> tuple[str, ...] | None:
    """The key that all of them have; () if they have none, None if they have different ones."""
    keys = {_key_columns(schema): schema.key for schema in reversed(definitions)}
    return next(iter(keys.values()), ()) if len(keys) < 2 else None


def _key_columns(schema: TableSchema) -> frozenset[str]:
    return frozenset(name.lower() for name in schema.key)


def _check_key(table: str, key: Sequence[str], schema: TableSchema) -> None:
    lacking = [name for name in key if name.lower() not in {column.name.lower() for column in schema.columns}]
    if lacking:
        raise Refused(
            f"The key column {lacking[0]!r} is not in every definition of the table.",
            where=f"{table}: {schema.name} as of definition {schema.id}",
            code="stage.key",
            remedy="give key columns that all staged definitions have, or copy the table again (`lockstep "
            "snapshot`): its state then begins with the copy",
        )


def require_key(table: str, key: Sequence[str], lost: int) -> None:
    """lost: how many changes lack a column of the key, so that nothing says which row they are of. Raises Refused
    (stage.key)."""
    if lost:
        raise Refused(
            f"The log did not carry a column of the key ({', '.join(key)}) for {lost} changes of {table}.",
            where=table,
            code="stage.key",
            remedy="use the table's own key, which the log always carries; or copy the table again (`lockstep "
            "snapshot`)",
        )


def tables_of(manifests: Sequence[Manifest]) -> set[str]:
    return {part.table for manifest in manifests for part in manifest.parts}


def definitions_of(parts: Sequence[StagedPart]) -> list[TableSchema]:
    """Definitions in stream order, each at its last appearance, so that the newest comes last."""
    last: dict[str, TableSchema] = {}
    for part in by_age(parts):
        last.pop(part.schema.id, None)
        last[part.schema.id] = part.schema
    return list(last.values())


def begins_of(manifests: Sequence[Manifest]) -> dict[str, Position]:
    """Where the first batch of each source begins."""
    begins: dict[str, Position] = {}
    for manifest in manifests:
        place = manifest.begin.position
        begins[manifest.source] = min(place, begins.get(manifest.source, place))
    return begins


def later_places(manifests: Sequence[Manifest], moment: AsOf | None) -> Mapping[str, Sequence[int]]:
    return {} if moment is None else moment.later(manifests)


def end_seq(part: StagedPart, later: Mapping[str, Sequence[int]]) -> int | None:
    """From where on the rows of a compacted file are in batches after the moment; None if none of them is.

    later: from AsOf. The windows of the batches in one file follow one another (`apply.compact`).
    """
    name = parse_compacted(part.part.path)
    places = later.get(part.source, ())
    at = len(places) if name is None else bisect_left(places, name.begin_seq)
    return places[at] if name is not None and at < len(places) and places[at] < name.end_seq else None
