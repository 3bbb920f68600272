"""What a target's bookkeeping has of rows that it no longer has: tombstones, and versions beside a table whose rows
somebody else has removed. Both have their keys.

A tombstone keeps an older change from reviving its row. Once all changes of the key are erased, there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cdc_core.config import MysqlTarget, Pipeline, Target
from cdc_core.errors import Refused
from cdc_core.model.schema import TableSchema
from cdc_core.operations.apply.table_rules import key_of
from cdc_core.operations.forget.erased_keys import ErasedKeys
from cdc_core.operations.repair.held import Held, forget_version, held
from cdc_core.operations.verify.shape import Shape, shape_of
from cdc_core.operations.verify.target_rows import ServerSide, TargetTables
from cdc_core.targets.reading.destination import TableUse


@dataclass(frozen=True)
class TargetTraces:
    """What one target has under the keys."""

    target: str
    shape: Shape
    side: ServerSide
    rows: Sequence[Held]

    @property
    def of_gone_rows(self) -> list[Held]:
        return [row for row in self.rows if row.tombstone is not None or row.left is not None]

    def erase(self) -> None:
        for row in self.of_gone_rows:
            forget_version(self.shape, self.side.shards[row.shard], replace(row, row=None))


def key_at(target: Target, keys: ErasedKeys, schemas: Sequence[TableSchema]) -> tuple[str, ...]:
    """The key of the table at a target, which must be that of its staged changes. Raises Refused (stage.key)."""
    key = key_of(target, keys.table, schemas)
    if [name.lower() for name in key] != [name.lower() for name in keys.key]:
        raise Refused(
            f"The target {target.name!r} identifies rows of {keys.table} by ({', '.join(key)}), and the staged "
            f"changes do by ({', '.join(keys.key)}).",
            where=f"targets.{target.name}.tables.{keys.table}.key",
            code="stage.key",
            remedy="leave out `key` in the target's rule, if the source's key identifies its rows too",
        )
    return key


def find_traces(
    pipeline: Pipeline, keys: ErasedKeys, schemas: Sequence[TableSchema], sessions: TargetTables
) -> Iterator[TargetTraces]:
    """schemas: the latest staged definitions. Raises Refused (stage.key), and what opening the targets raises."""
    for target in pipeline.targets:
        if not isinstance(target, MysqlTarget) or target.table(keys.table) is None:
            continue
        key = key_at(target, keys, schemas)
        use = TableUse(key=key, pipeline=pipeline.pipeline)  # as a writer: a fence refuses before anything is erased
        side = ServerSide.opened(target, keys.table, schemas, use, sessions)
        shape = shape_of(side, schemas, schemas)
        yield TargetTraces(target.name, shape, side, held(shape, sorted(keys.texts)))
