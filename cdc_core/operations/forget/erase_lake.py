"""Rows of mirrors in lakes, their tombstones and changes. Cuts stay: they get heirs of the snapshots that had them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdc_core.config import IcebergTarget
from cdc_core.lake import cut_table
from cdc_core.lake.catalogs import catalog_answers, identifier, name_of
from cdc_core.lake.lake_erasure import LakeRows, appoint, expire, other_sides
from cdc_core.lake.lake_erasure import find as find_rows
from cdc_core.lake.lake_schema import CHANGES_KEY
from cdc_core.lake.lake_tables import changes_of, mirror_rule, require_ours, tombstones_of
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import ROW, SEQ, SOURCE
from cdc_core.operations.forget.erase_traces import key_at
from cdc_core.operations.forget.erased_keys import ErasedKeys
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.verify.canonical import row_texts
from cdc_core.operations.verify.lake_rows import LakeSide, fitted, matching
from cdc_core.operations.verify.shape import Shape, shape_of
from cdc_core.stage import cuts


@dataclass(frozen=True)
class LakeTraces:
    """What one lake has under the keys: in the mirror, and in the tables beside it, of tombstones and of changes."""

    target: IcebergTarget
    shape: Shape
    mirror: LakeRows
    beside: tuple[LakeRows, ...]

    @property
    def places(self) -> list[tuple[str, str, int]]:
        return [place for table in (self.mirror, *self.beside) for place in table.places]

    @property
    def keys(self) -> set[str]:
        """Those that it has rows of, as `row_texts` has them. Raises as `catalog_answers`."""
        with catalog_answers(self.target):
            return self._texts(rows for table in (self.mirror, *self.beside) for rows in table.keys)

    @property
    def others(self) -> set[str]:
        """Keys that changes in its changes table lead to or from. Raises as `catalog_answers`."""
        of_changes = [table for table in self.beside if table.order == CHANGES_KEY]
        with catalog_answers(self.target):
            return self._texts(rows for table in of_changes for rows in other_sides(table, (SEQ, ROW, SOURCE)))

    def _texts(self, tables: Iterable[pa.Table]) -> set[str]:
        columns, errors = self.shape.key_columns, self.shape.errors
        return {text for rows in tables for text in row_texts(fitted(rows, columns), columns, errors).to_pylist()}

    @property
    def present(self) -> int:
        """How many rows readers see now."""
        return sum(map(len, self.mirror.present.values()))

    def erase(self, opened: OpenPipeline) -> None:
        """Raises what reading cuts raises, and as `catalog_answers`."""
        catalog, name = self.mirror.table.catalog, name_of(self.mirror.table.name())
        with catalog_answers(self.target):
            if self.mirror.snapshots:
                of_cuts = [
                    table for _, cut in cuts.newest_first(opened.store, self.target.name) for table in cut.tables
                ]
                heirs = appoint(self.mirror, [cut.snapshot for cut in of_cuts if cut.name == name and cut.snapshot])
                cuts.inherit(opened.store, self.target.name, name, heirs)
                cut_table.inherit(cut_table.opened(catalog, self.target), name, heirs)
            for table in self.beside:
                appoint(table, ())
            for table in (self.mirror, *self.beside):
                expire(table)


def find_in_lakes(opened: OpenPipeline, keys: ErasedKeys, schemas: Sequence[TableSchema]) -> Iterator[LakeTraces]:
    """schemas: the latest staged definitions. Raises Refused (stage.key, target.existing, target.definition),
    DataAtRisk (lake.foreign_write), and as `catalog_answers`."""
    for target in opened.pipeline.targets:
        if not isinstance(target, IcebergTarget) or target.table(keys.table) is None:
            continue
        key, name, catalog = key_at(target, keys, schemas), identifier(target, keys.table), opened.catalogs.of(target)
        with catalog_answers(target):
            if not catalog.table_exists(name):
                continue
            rule = mirror_rule(target, opened.name, keys.table, key)
            shape = shape_of(LakeSide.opened(target, catalog, rule, shared=False), schemas, schemas)
            wanted = matching(shape, sorted(keys.texts))
            mirror = find_rows(catalog.load_table(name), key, *wanted, spares_present=True)
            beside = [find_rows(catalog.load_table(tombstones_of(name)), key, *wanted)]
            if catalog.table_exists(changes_of(name)):
                changes = catalog.load_table(changes_of(name))
                require_ours(changes, rule.logical, rule.owner)
                beside.append(find_rows(changes, key, *wanted, order=CHANGES_KEY))
        yield LakeTraces(target, shape, mirror, tuple(beside))
