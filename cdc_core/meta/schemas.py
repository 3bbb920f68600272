"""The definitions of source tables: those of staged changes, and those that the log does not tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import insert, select

from cdc_core.meta.meta_schema import schema_version as _schema
from cdc_core.meta.meta_schema import table_definition
from cdc_core.meta.repository import Repository, reads, slices
from cdc_core.model.batch import Manifest
from cdc_core.model.json_codec import parsed, text_of
from cdc_core.model.schema import DefinedSince, TableSchema


class SchemaVersions(Repository):
    @reads
    def find(self, schema_ids: Sequence[str]) -> Mapping[str, TableSchema]:
        """The definitions that meta knows of those asked for."""
        schemas = {}
        for some in slices(schema_ids):
            chosen = _schema.c.schema_id.in_(some)
            for row in self.execute(select(_schema.c.schema_id, _schema.c.definition).where(chosen)):
                schemas[row.schema_id] = parsed(TableSchema, row.definition)
        return schemas

    @reads
    def history(self, source: str) -> tuple[DefinedSince, ...]:
        """The former definitions of the source's tables that its log does not have, in the order of the log."""
        rows = select(table_definition.c.definition).where(table_definition.c.source == source)
        found = self.execute(rows.order_by(table_definition.c.since_seq))
        return tuple(parsed(DefinedSince, row.definition) for row in found)

    def record(self, manifest: Manifest) -> None:
        """The definitions that a batch brings."""
        self._record_staged(manifest)
        self._record_history(manifest)

    def _record_staged(self, manifest: Manifest) -> None:
        """A definition gets a row where it takes effect: at its first change in the batch."""
        first: dict[str, int] = {}
        for part in manifest.parts:
            first[part.schema_id] = min(part.min_seq, first.get(part.schema_id, part.min_seq))
        names = sorted({manifest.schemas[schema_id].name for schema_id in first})
        known: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for some in slices(names):
            rows = select(_schema.c.source_table, _schema.c.first_seq, _schema.c.schema_id).where(
                _schema.c.source == manifest.source, _schema.c.source_table.in_(some)
            )
            for row in self.execute(rows):
                known[row.source_table].append((row.first_seq, row.schema_id))
        new = []
        for schema_id, first_seq in sorted(first.items(), key=lambda item: item[1]):
            schema = manifest.schemas[schema_id]
            earlier = [entry for entry in known[schema.name] if entry[0] <= first_seq]
            taken = any(seq == first_seq for seq, _ in earlier)  # by copied rows: readers find theirs in the manifest
            if not taken and (not earlier or max(earlier)[1] != schema_id):
                known[schema.name].append((first_seq, schema_id))
                definition = text_of(schema)
                new.append(
                    {
                        "source": manifest.source,
                        "source_table": schema.name,
                        "first_seq": first_seq,
                        "schema_id": schema_id,
                        "definition": definition,
                    }
                )
        if new:
            self.execute(insert(_schema), new)

    def _record_history(self, manifest: Manifest) -> None:
        """Where two tables have one name (`a.b`.`c` and `a`.`b.c`), the first is kept: the other is asked for again."""
        known: set[tuple[str, int]] = set()
        seqs = sorted({definition.seq for definition in manifest.definitions})
        for some in slices(seqs):
            rows = select(table_definition.c.source_table, table_definition.c.since_seq).where(
                table_definition.c.source == manifest.source, table_definition.c.since_seq.in_(some)
            )
            known |= {(row.source_table, row.since_seq) for row in self.execute(rows)}
        new = []
        for definition in manifest.definitions:
            key = (definition.schema.name, definition.seq)
            if key not in known:
                known.add(key)
                text = text_of(definition)
                new.append(
                    {"source": manifest.source, "source_table": key[0], "since_seq": definition.seq, "definition": text}
                )
        if new:
            self.execute(insert(table_definition), new)
